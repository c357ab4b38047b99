"""Straight-through estimators: a rule set in which rounding passes a derivative on, where by default it is zero.

Round, Floor, Ceil and Sign pass it unchanged. Quantization passes it as the function that it rounds, x / scale clipped
to the range of the quantized type: unchanged inside, zero outside, as PyTorch's fake_quantize. Its scale has the
derivative of that function too, so that the scale of a pair of QuantizeLinear and DequantizeLinear receives the
gradient of a learned step size (Esser et al., "Learned step size quantization", ICLR 2020).

A quantized tensor carries its tangent or cotangent as a floating tensor, from QuantizeLinear or DynamicQuantizeLinear
through operators that move its elements only (`Ruleset.whole`), and through the regions of If, Loop and Scan and local
functions, to DequantizeLinear or a Cast to a floating type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnxad_ir.builder import Builder, Var
from onnxad_ir.diagnostics import UsageError, did_you_mean
from onnxad_ir.types import DataType, TensorType, is_floating
from onnxad_rules.families.quantization import scale_of_elements, scale_share
from onnxad_rules.kinds import Elementwise, Linear, Pair, Pushforward, Rule
from onnxad_rules.node import NodeView
from onnxad_rules.ruleset import Ruleset, default_rules

_ROUNDINGS = {"Round": "X", "Floor": "X", "Ceil": "X", "Sign": "input"}
_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")
#: What `straight_through` may be asked for.
OPERATORS = (*_ROUNDINGS, *_QUANTIZERS)

#: Operators that move the elements of a tensor; their rules do not look at its type.
_MOVES = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Slice", "DepthToSpace")

#: Operators that hand quantized tensors to their regions and back.
_REGIONS = ("If", "Loop", "Scan")

#: The largest number of the quantized types that are not whole numbers.
_LARGEST = {
    DataType.FLOAT8E4M3FN: 448.0,
    DataType.FLOAT8E4M3FNUZ: 240.0,
    DataType.FLOAT8E5M2: 57344.0,
    DataType.FLOAT8E5M2FNUZ: 57344.0,
    DataType.FLOAT4E2M1: 6.0,
}


def straight_through(operators: Iterable[str], rules: Ruleset | None = None) -> Ruleset:
    """`rules` (default: the built-in ones) with derivatives that go straight through some of `OPERATORS`.

    Raises UsageError for any other operator, with the nearest name.
    """
    rules = default_rules() if rules is None else rules
    chosen = list(dict.fromkeys(operators))
    for op in chosen:
        if op not in OPERATORS:
            hint = did_you_mean(op, OPERATORS)
            raise UsageError(f"there is no straight-through derivative of {op!r}{hint} (of: {', '.join(OPERATORS)})")
    added: list[Rule] = [Elementwise(op, formals={_ROUNDINGS[op]: 1}) for op in chosen if op in _ROUNDINGS]
    quantizers = [op for op in chosen if op in _QUANTIZERS]
    added += [_RULES[op] for op in quantizers]
    if not quantizers:
        return rules.merge(added)
    added += [_RULES["DequantizeLinear"], _RULES["Cast"]]
    whole = {("", op) for op in (*_MOVES, *_REGIONS, *quantizers, "DequantizeLinear", "Cast")}
    return rules.merge(added, whole)


def _wide(op: Builder, x: Var) -> Var:
    """`x` in single precision at least, in which quotients are rounded."""
    return x if x.dtype == DataType.DOUBLE else op.Cast(x, to=int(DataType.FLOAT))


def _inside(op: Builder, n: NodeView) -> Var:
    """Where the result of a QuantizeLinear is the rounded quotient, not the end of the range."""
    scale = scale_of_elements(op, n, n.y_scale, n.x)
    quotient = _wide(op, n.x) / _wide(op, scale)
    top = _LARGEST.get(n.y.dtype)
    if top is not None:
        return op.LessOrEqual(op.Abs(quotient), op.like(top, quotient))
    one = op.Expand(op.const(1.0, quotient.dtype), op.shape(n.y_scale))
    # without its zero point; exact, as every quantized type has few digits
    operands = [n.y.value, one.value] + ([n.y_zero_point.value] if n.y_zero_point is not None else [])
    attributes = {k: v for k, v in n.node.attributes.items() if k in ("axis", "block_size")}
    level = op.var(op.emit("DequantizeLinear", operands, attributes)[0])
    return op.LessOrEqual(op.Abs(quotient - level), op.like(0.5, quotient))


def _quantize_x(op: Builder, n: NodeView, t: Var) -> Var:
    """t / scale, inside of the range."""
    return op.where(_inside(op, n), t / op.cast_like(scale_of_elements(op, n, n.y_scale, n.x), t), 0)


def _quantize_scale(op: Builder, n: NodeView, t: Var) -> Var:
    """-(x / scale) t / scale, inside of the range."""
    scale = scale_of_elements(op, n, n.y_scale, n.x)
    share = op.cast_like(scale_of_elements(op, n, t, n.x), n.x) / op.cast_like(scale, n.x)
    return op.where(_inside(op, n), -(share * (n.x / op.cast_like(scale, n.x))), 0)


def _dequantize(op: Builder, n: NodeView, ts: Sequence[Var | None]) -> list[Var | None]:
    """tx scale + (x - zero point) ts."""
    tx, ts_ = ts[:2]
    terms: list[Var | None] = []
    if tx is not None:
        scale = scale_of_elements(op, n, n.x_scale, n.x)
        terms.append(op.cast_like(tx, n.y) * op.cast_like(scale, n.y))
    if ts_ is not None:
        operands = [n.x.value, ts_.value] + ([n.x_zero_point.value] if n.x_zero_point is not None else [])
        terms.append(op.var(op.emit("DequantizeLinear", operands, dict(n.node.attributes))[0]))
    return [op.add_n(terms)]


def _dequantize_reverse(
    op: Builder, n: NodeView, cts: Sequence[Var | None], wanted: Sequence[bool]
) -> list[Var | None]:
    ct = cts[0]
    assert ct is not None
    dx = ct * op.cast_like(scale_of_elements(op, n, n.x_scale, n.x), ct) if wanted[0] else None
    return [dx, scale_share(op, n, ct) if wanted[1] else None]


def _from_whole(n: NodeView) -> bool:
    return isinstance(n.input.type, TensorType) and not is_floating(n.input.type)


_RULES: dict[str, Rule] = {
    "QuantizeLinear": Pushforward(
        "QuantizeLinear",
        formals={"x": _quantize_x, "y_scale": _quantize_scale},
        zeros=frozenset({"y_zero_point"}),
    ),
    # its range is that of x, so that everything is inside; as an observer's, it is no function of x
    "DynamicQuantizeLinear": Pushforward(
        "DynamicQuantizeLinear",
        formals={"x": lambda op, n, t: {"y": t / n.y_scale}},
        zeros=frozenset({"y_scale", "y_zero_point"}),
    ),
    "DequantizeLinear": Pair(
        "DequantizeLinear",
        zeros=frozenset({"x_zero_point"}),
        forward=_dequantize,
        reverse=_dequantize_reverse,
    ),
    "Cast": Linear("Cast", formals={"input": lambda op, n, ct: ct}, when=_from_whole),
}
