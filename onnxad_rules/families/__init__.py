"""The built-in rules, one file per family of operators."""

from importlib import import_module
from pkgutil import iter_modules

from onnxad_rules.kinds import Rule, declarations

with declarations() as _declared:
    for _module in iter_modules(__path__):
        import_module(f"{__name__}.{_module.name}")

#: Every built-in rule, by file and in order of declaration.
RULES: tuple[Rule, ...] = tuple(_declared)
