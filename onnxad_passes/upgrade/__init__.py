"""Old spellings of the default domain to the modern one: any opset from 1 to 17 is rewritten at opset 18.

`upgrade_model` does a model and its functions, `upgrade_graph` one body. Each changed spelling has an
adapter, a short function registered for the opsets that had it; see `registry`.
"""

from onnxad_passes.upgrade.driver import TARGET, upgrade_graph, upgrade_model

__all__ = ["TARGET", "upgrade_graph", "upgrade_model"]
