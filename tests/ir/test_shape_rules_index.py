"""The fast paths know no less than onnx's inference, and nothing else than what the cases of onnx record."""

import os
from functools import lru_cache

import numpy as np
import onnx
import pytest
from onnx.backend.test.loader import load_model_tests

from onnxad_ir.core import Graph, Model, Node
from onnxad_ir.infer import SHAPES, Inference
from onnxad_ir.proto import from_proto
from onnxad_ir.types import DataType, TensorType

OPS = ["DepthToSpace", "SpaceToDepth", "CenterCropPad", "GatherND", "Compress", "OneHot", "Unique"]
OPS += ["TensorScatter", "Einsum", "Det"]


@lru_cache(maxsize=1)
def nodes():
    """(inference, node, recorded types of its results) of every case that is one such node."""
    out = []
    with np.errstate(all="ignore"):
        cases = load_model_tests(kind="node")
    for c in cases:
        m = c.model if c.model is not None else onnx.load(os.path.join(c.model_dir, "model.onnx"))
        if len(m.graph.node) == 1 and m.graph.node[0].op_type in OPS:
            model = from_proto(m)
            (node,) = model.graph.nodes
            out.append((Inference(model), node, [v.type for v in model.graph.outputs]))
    return out


@pytest.mark.parametrize("op", OPS)
def test_against_onnx(op):
    found = [x for x in nodes() if x[1].op_type == op]
    assert found
    for inference, node, recorded in found:
        fast, onnx_types = SHAPES[op](inference, node), inference._ask_onnx(node)
        for f, o, want in zip(fast, onnx_types, recorded, strict=False):
            assert f.dtype == want.dtype
            if f.shape is None:
                assert o is None or o.shape is None
                continue
            assert len(f.shape) == len(want.shape)
            for i, (d, w) in enumerate(zip(f.shape, want.shape, strict=True)):
                if isinstance(d, int):
                    assert d == w or not isinstance(w, int)
                else:
                    assert o is None or o.shape is None or not isinstance(o.shape[i], int)


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
