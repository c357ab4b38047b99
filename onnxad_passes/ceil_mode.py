"""Pools with ceil_mode that have as many windows for those who infer shapes as in the run.

With ceil_mode a last window that starts behind the image and its begin pad is dropped, by every runtime. Before opset
22 onnx's own inference counts it, and a runtime that infers so refuses a model in which such a result meets a value of
the right shape. The same windows without ceil_mode, up to other end pads, are told rightly by everybody.
"""

from __future__ import annotations

from onnxad_ir.core import Node
from onnxad_ir.infer import operand_type
from onnxad_ir.shape_rules_nn import window_extent

POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})


def settle(node: Node) -> bool:
    """Take ceil_mode out of a pool that drops a window, where its extents are known; True where it has done so."""
    a, x = node.attributes, operand_type(node, 0)
    auto = a.get("auto_pad", "NOTSET")
    if not a.get("ceil_mode") or auto not in ("NOTSET", "VALID") or x is None or x.shape is None:
        return False
    kernel, image = a["kernel_shape"], x.shape[2:]
    r = len(kernel)
    strides, dilations = a.get("strides") or (1,) * r, a.get("dilations") or (1,) * r
    pads = (a.get("pads") if auto == "NOTSET" else None) or (0,) * (2 * r)
    if {len(image), len(strides), len(dilations), len(pads) // 2} != {r}:
        return False  # what does not fit is inference's to say
    ends: list[int] = []
    dropped = False
    for i, (d, k, s, e) in enumerate(zip(image, kernel, strides, dilations, strict=True)):
        begin, end = pads[i], pads[r + i]
        count = window_extent(d, k, s, e, begin + end, True, begin)
        if not isinstance(d, int) or not isinstance(count, int) or count < 1:
            return False
        span = (k - 1) * e + 1
        dropped |= count <= -(-(d + begin + end - span) // s)
        ends.append(max((count - 1) * s + span - d - begin, 0))
    grown = any(new > old for new, old in zip(ends, pads[r:], strict=True))
    counts_pads = node.op_type == "AveragePool" and a.get("count_include_pad") == 1
    if not dropped or (grown and counts_pads) or any(p >= k for p, k in zip(ends, kernel, strict=True)):
        return False
    node.attributes = {k: v for k, v in a.items() if k not in ("ceil_mode", "auto_pad")} | {"pads": (*pads[:r], *ends)}
    return True
