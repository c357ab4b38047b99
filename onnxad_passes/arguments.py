"""What a caller hands to a public function, checked where it comes in: a wrong kind is one clear TypeError."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from onnxad_rules.ruleset import Ruleset

T = TypeVar("T")


def name_list(names: Iterable[str] | str) -> tuple[str, ...]:
    """Names of values; one name may stand for itself."""
    return all_of(str, (names,) if isinstance(names, str) else names, "names of values")


def names_or_all(names: Iterable[str] | str | None) -> tuple[str, ...] | None:
    """Names of values, or None for the default of an option."""
    return None if names is None else name_list(names)


def all_of(kind: type[T], values: Iterable[Any], what: str) -> tuple[T, ...]:
    """The values as a tuple. Raises TypeError where they are not a list of that kind."""
    if not isinstance(values, Iterable):
        raise TypeError(f"{what} are a list of {kind.__name__}, not a {type(values).__name__}")
    found = tuple(values)
    for v in found:
        if not isinstance(v, kind):
            raise TypeError(f"{what} are a list of {kind.__name__}, but there is a {type(v).__name__} in it")
    return found


def check_options(options: object) -> None:
    """Raise TypeError for a pass whose options with one value are of another kind."""
    for name, kind in (("output", str), ("prefix", str), ("rules", Ruleset)):
        value = getattr(options, name, None)
        if value is not None and not isinstance(value, kind):
            hint = "; default_rules().merge(...) makes one" if kind is Ruleset else ""
            raise TypeError(f"{name} is a {kind.__name__}, not a {type(value).__name__}{hint}")
