"""What there is a derivative rule for: the rows of `onnxad-opt --list-rules` and of docs/rules.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnx import defs

from onnxad_ir import schema
from onnxad_rules.kinds import Decompose, Multilinear, Pushforward, Rule
from onnxad_rules.ruleset import Ruleset, default_rules

_FLOATING = frozenset({"tensor(float16)", "tensor(float)", "tensor(double)", "tensor(bfloat16)"})
#: Domains whose operators are listed even where they have no rule.
_DOMAINS = ("", "ai.onnx.ml")
#: A column of the table for a terminal is not wider than this; what is longer sticks out.
_WIDEST = 32
NO_RULE, NOT_NEEDED = "no rule", "needs none"

_EXPLAINED = {
    "elementwise": "a partial per operand",
    "linear": "the transpose of the operator",
    "multilinear": "linear in each operand alone",
    "pushforward": "the tangent, transposed for reverse mode",
    "decompose": "in terms of other operators",
    "pair": "both modes by hand",
    "control": "control flow, differentiated in place with what its regions capture",
    "zero": "the derivative is zero by definition",
    NO_RULE: "differentiating through it is an error",
    NOT_NEEDED: "it has no floating-point operand or no floating-point result",
}


@dataclass(frozen=True)
class Row:
    """One rule of one operator, or one operator without a rule.

    `since`: the opset of its newest form, 0 where onnx does not define it. `operands`: those a derivative
    passes through. `zeros`: operands and results that have none by definition. `refused`: operands whose
    derivative is an error, with the reason.
    """

    domain: str
    op_type: str
    since: int
    kind: str
    operands: tuple[str, ...]
    zeros: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    note: str

    @property
    def name(self) -> str:
        """The operator with its domain, if that is not the default one."""
        return f"{self.domain}.{self.op_type}" if self.domain else self.op_type


def coverage(rules: Ruleset | None = None) -> list[Row]:
    """Every operator of the installed onnx, and every other with a rule: a row per rule, by name."""
    rules = default_rules() if rules is None else rules
    by_key: dict[tuple[str, str], list[Rule]] = {}
    for r in rules.all():
        by_key.setdefault(r.key, []).append(r)
    known = {(s.domain, s.name) for s in defs.get_all_schemas() if s.domain in _DOMAINS and not s.deprecated}
    rows: list[Row] = []
    for key in sorted(known | set(by_key)):
        found = by_key.get(key, [])
        rows += [_row(r, i) for i, r in enumerate(found)] if found else [_without(*key)]
    return rows


def _row(rule: Rule, position: int) -> Row:
    f = schema.latest(rule.domain, rule.op)
    floating = _floating(f, rule.zeros)
    refused = dict(rule.refuse)
    named = list(rule.formals or ())
    if isinstance(rule, Multilinear):
        named += [x for x in rule.additive if x not in named]
    if rule.kind == "zero":
        named = []
    elif rule.formals is None:
        named = [x for x in floating if x not in refused]
    else:
        for x in floating:
            if x not in named:
                refused.setdefault(x, "its derivative is not defined by the operator's rule")
    order = list(f.inputs) if f is not None else named
    notes = [rule.reason] if rule.reason else []
    if isinstance(rule, Decompose):
        notes.append("the specification's function body" if rule.fn is None else "a composition of ours")
    if isinstance(rule, Pushforward) and rule.whole is not None and not notes:
        notes.append("all operands at once")
    if rule.when is not None:
        notes.append("where it applies" + (" (else the next)" if position == 0 else ""))
    return Row(
        rule.domain,
        rule.op,
        0 if f is None else f.since,
        rule.kind,
        tuple(sorted(named, key=lambda x: order.index(x) if x in order else len(order))),
        tuple(sorted(rule.zeros)),
        tuple(sorted(refused.items())),
        "; ".join(notes),
    )


def _without(domain: str, op_type: str) -> Row:
    f = schema.latest(domain, op_type)
    smooth = f is not None and bool(_floating(f, frozenset())) and _any_floating(f.schema.outputs, f.schema)
    kind = NO_RULE if smooth else NOT_NEEDED
    return Row(domain, op_type, 0 if f is None else f.since, kind, (), (), (), "")


def _floating(f: schema.Facts | None, zeros: frozenset[str]) -> list[str]:
    """The operands that may be floating tensors and are not listed as zero."""
    if f is None:
        return []
    if f.schema is None:  # an operator of a runtime, whose types nothing tells
        return [name for name in f.inputs if name not in zeros]
    return [p.name for p in f.schema.inputs if p.name not in zeros and _any_floating([p], f.schema)]


def _any_floating(formals: Iterable[defs.OpSchema.FormalParameter], s: defs.OpSchema) -> bool:
    allowed = {c.type_param_str: c.allowed_type_strs for c in s.type_constraints}
    kinds = {t for p in formals for t in allowed.get(p.type_str, [p.type_str])}
    return any(t in _FLOATING or any(x in t for x in _FLOATING) for t in kinds)


def _zeros_and_refusals(r: Row) -> str:
    parts = [f"{z}: zero" for z in r.zeros] + [f"{name}: refused, {why}" for name, why in r.refused]
    return "; ".join(parts)


def text(rows: Iterable[Row]) -> str:
    """The rows as a table for a terminal, with a summary."""
    rows = list(rows)
    cells = [("operator", "since", "kind", "operands", "notes")]
    for r in rows:
        notes = "; ".join(x for x in (_zeros_and_refusals(r), r.note) if x)
        cells.append((r.name, str(r.since or "-"), r.kind, ", ".join(r.operands) or "-", notes))
    widths = [min(max(len(c[i]) for c in cells), _WIDEST) for i in range(4)]
    lines = ["  ".join([*(c[i].ljust(widths[i]) for i in range(4)), c[4]]).rstrip() for c in cells]
    return "\n".join([*lines, "", summary(rows)])


def summary(rows: Iterable[Row]) -> str:
    """How many operators have a rule, in one line."""
    kinds: dict[tuple[str, str], str] = {}
    for r in rows:
        kinds.setdefault((r.domain, r.op_type), r.kind)
    missing = sum(k == NO_RULE for k in kinds.values())
    unneeded = sum(k == NOT_NEEDED for k in kinds.values())
    ruled = len(kinds) - missing - unneeded
    return f"{len(kinds)} operators: {ruled} with a rule, {unneeded} need none, {missing} without"


def markdown(rows: Iterable[Row]) -> str:
    """The rows as the page docs/rules.md."""
    rows = list(rows)
    lines = [
        "# Derivative rules",
        "",
        "Written by `onnxad-opt --list-rules=markdown`; do not edit.",
        "",
        summary(rows) + ".",
        "",
        "Kinds: " + "; ".join(f"*{k}*, {v}" for k, v in _EXPLAINED.items()) + ".",
    ]
    for domain in sorted({r.domain for r in rows}):
        lines += ["", f"## {domain or 'ai.onnx'}", ""]
        lines += [
            "| operator | since | kind | operands | zero or refused | notes |",
            "|---|---|---|---|---|---|",
        ]
        for r in rows:
            if r.domain == domain:
                cells = (
                    r.op_type,
                    str(r.since or "-"),
                    r.kind,
                    ", ".join(r.operands),
                    _zeros_and_refusals(r),
                    r.note,
                )
                lines.append("| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |")
    return "\n".join(lines)
