"""Fast paths of inference: operators that pick and move elements, with symbolic extents."""

from onnxad_ir.core import Graph, Model, Node
from onnxad_ir.infer import Inference
from onnxad_ir.types import DataType, TensorType


def infer(op, shapes, dtypes=None, outputs=1, **attributes):
    graph = Graph("g")
    dtypes = dtypes or [DataType.FLOAT] * len(shapes)
    inputs = [graph.add_input(f"x{i}", TensorType(d, s)) for i, (d, s) in enumerate(zip(dtypes, shapes, strict=True))]
    node = graph.append(Node(op, inputs, attributes, [""] * outputs))
    Inference(Model(graph, {"": 28})).node(node)
    return node.outputs[0].shape


def test_symbols_are_kept():
    i64, f = DataType.INT64, DataType.FLOAT
    assert infer("Einsum", [("B", "T", 4), ("B", 4, "S")], equation="btd,bds->bts") == ("B", "T", "S")
    assert infer("Einsum", [("B", "H", "T", 4), (1, 1, 4, "S")], equation="...td,...ds->...ts") == (
        "B",
        "H",
        "T",
        "S",
    )
    assert infer("Einsum", [("N", "N")], equation="ii->i") == ("N",)
    assert infer("Einsum", [None, (4, "S")], equation="td,ds")[0] == "S"
    assert infer("Einsum", [None, (4, "S")], equation="...d,ds->...s") is None
    assert infer("GatherND", [("B", "T", 8), ("B", 2)], [f, i64], batch_dims=0) == ("B", 8)
    assert infer("GatherND", [("B", "T", 8), ("B", "K", 1)], [f, i64], batch_dims=1) == ("B", "K", 8)
    assert infer("OneHot", [("B", "T"), (), (2,)], [i64, i64, f], axis=1)[::2] == ("B", "T")
    assert infer("DepthToSpace", [("B", 8, "H", 3)], blocksize=2)[::3] == ("B", 6)
    assert infer("Compress", [("B", "T"), ("T",)], [f, DataType.BOOL], axis=1)[0] == "B"
    assert infer("Det", [("B", 3, 3)]) == ("B",)
