"""Softmax over a flattened tail, BatchNormalization in its old modes, Dropout before it had operands."""

from __future__ import annotations

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Node
from onnxad_ir.types import DataType, Shape
from onnxad_passes.upgrade.registry import Results, adapter, number, required, take


@adapter("Softmax", "LogSoftmax", "Hardmax", before=13)
def softmax(op: Builder, n: Node) -> Results:
    """The input was seen as a matrix, whose columns are the axes from `axis` (1 by default) on together."""
    x, axis = required(op, n, 0), int(take(n, "axis", 1))
    alone = _only_axis(x.shape, axis)
    if alone is not None:
        n.attributes["axis"] = alone
        return None
    rows = getattr(op, n.op_type)(op.Flatten(x, axis=axis), axis=-1)
    return op.reshape_like(rows, x)


def _only_axis(shape: Shape | None, axis: int) -> int | None:
    """The one axis from `axis` on whose extent is not known to be 1, if there is no second one."""
    if shape is None:
        return None
    rank = len(shape)
    first = axis + rank if axis < 0 else axis
    if first >= rank:
        return None
    long = [i for i in range(first, rank) if shape[i] != 1] or [rank - 1]
    if len(long) > 1:
        return None
    return -1 if long[0] == rank - 1 else long[0]


@adapter("BatchNormalization", before=14)
def batch_normalization(op: Builder, n: Node) -> Results:
    """The results asked for tell the mode, and with spatial=0 every element has statistics of its own.

    Before opset 7 is_test=1 overrides the results; is_test=0 does not: by the operator's text a node with a
    single result is in test mode. Variances are those of the population, as they are since opset 14, and what
    is saved of them for the gradient is what ONNX Runtime and Caffe2 save: 1 / sqrt(variance + epsilon).
    """
    x, scale, bias, mean, var = (required(op, n, i) for i in range(5))
    spatial, test = bool(take(n, "spatial", 1)), bool(take(n, "is_test", 0))
    results = [bool(v.name or v.users) for v in n.outputs]
    if test or not any(results[1:]):
        if spatial and len(n.outputs) == 1:
            return None
        epsilon = float(take(n, "epsilon", 1e-5))
        if spatial:
            y = op.BatchNormalization(x, scale, bias, mean, var, epsilon=epsilon)
        else:
            y = _normalize(op, x, mean, var, epsilon, scale, bias)
        return y, mean, var, mean, var
    epsilon, momentum = float(take(n, "epsilon", 1e-5)), float(take(n, "momentum", 0.9))
    m, v = _statistics(op, x, None if spatial else op.const([0])) if not spatial or any(results[3:]) else (None, None)
    saved = (m, None if v is None else op.Reciprocal(op.Sqrt(v + number(op, epsilon, x))))
    if spatial:
        y, new_mean, new_var = op.BatchNormalization(
            x, scale, bias, mean, var, epsilon=epsilon, momentum=momentum, training_mode=1, outputs=3
        )
        new_mean.value.name, new_var.value.name = "running_mean", "running_var"  # written even if unused
        return y, new_mean, new_var, *saved
    assert m is not None and v is not None
    old, new = number(op, momentum, x), number(op, 1 - momentum, x)
    y = _normalize(op, x, m, v, epsilon, scale, bias)
    return y, mean * old + m * new, var * old + v * new, *saved


def _normalize(op: Builder, x: Var, mean: Var, var: Var, epsilon: float, scale: Var, bias: Var) -> Var:
    """The formula itself, on operands of the shape of one element of the batch."""
    return (x - mean) / op.Sqrt(var + number(op, epsilon, x)) * scale + bias


def _statistics(op: Builder, x: Var, axes: Var | None) -> tuple[Var, Var]:
    """Mean and population variance over `axes` (None: all but axis 1)."""
    if axes is None:
        if x.rank is not None:
            axes = op.const([0, *range(2, x.rank)])
        else:
            axes = op.Concat([0], op.Range(op.const(2), op.scalar(op.rank(x)), op.const(1)), axis=0)
    centred = x - op.ReduceMean(x, axes, keepdims=1)
    return op.ReduceMean(x, axes, keepdims=0), op.ReduceMean(centred * centred, axes, keepdims=0)


@adapter("Dropout", before=7)
def dropout_moded(op: Builder, n: Node) -> Results:
    """In training mode unless is_test=1; the mask was of the element type of the data."""
    training = not take(n, "is_test", 0)
    return _dropout(op, n, op.const(True) if training else None, mask_like_data=True)


@adapter("Dropout", since=7, before=10)
def dropout_masked(op: Builder, n: Node) -> Results:
    """In test mode; the mask was of the element type of the data."""
    return _dropout(op, n, None, mask_like_data=True)


@adapter("Dropout", since=10, before=12)
def dropout(op: Builder, n: Node) -> Results:
    """In test mode. The mask, of which the old texts say nothing then, is all ones since opset 12."""
    return _dropout(op, n, None, mask_like_data=False)


def _dropout(op: Builder, n: Node, training: Var | None, mask_like_data: bool) -> Results:
    x, ratio = required(op, n, 0), op.const(float(take(n, "ratio", 0.5)), DataType.FLOAT)
    masked = len(n.outputs) > 1 and bool(n.outputs[1].name or n.outputs[1].users)
    if not masked:
        return op.Dropout(x, ratio, training)
    y, mask = op.Dropout(x, ratio, training, outputs=2)
    if mask_like_data:
        mask = op.CastLike(mask, x) if x.value.dtype is None else op.cast_like(mask, x)
    return y, mask
