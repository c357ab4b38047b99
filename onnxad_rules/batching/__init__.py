"""Batching (vmap): what becomes of a node when some of its operands get a leading axis.

`core` has the vocabulary of the rules, one file per family declares them, and `sweep` applies them to a graph: an
operator without a rule is batched through its composition, and what has none is run for each entry in turn, by a Scan.
"""

from importlib import import_module
from pkgutil import iter_modules

from onnxad_rules.batching.core import Batch, Same, Table, batch_rules, batched

_MACHINERY = ("core", "ragged", "regions", "sweep")

with batch_rules() as _declared:
    for _module in iter_modules(__path__):
        if _module.name not in _MACHINERY:
            import_module(f"{__name__}.{_module.name}")

#: The built-in batching rules by (domain, op_type).
RULES: Table = _declared

__all__ = ["RULES", "Batch", "Same", "Table", "batch_rules", "batched"]
