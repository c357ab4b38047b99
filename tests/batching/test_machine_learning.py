"""Classical machine learning: the entries are further examples."""

import numpy as np
import pytest
from batched import check_batched, check_node, node_model

RNG = np.random.default_rng(0)
ML = "ai.onnx.ml"
FOREST = {
    "n_targets": 1,
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [1, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
    "nodes_missing_value_tracks_true": [0, 0, 0],
    "nodes_hitrates": [1.0, 1.0, 1.0],
    "target_treeids": [0, 0],
    "target_nodeids": [1, 2],
    "target_ids": [0, 0],
    "target_weights": [1.0, 2.0],
}
CASES = [
    ("LinearRegressor", {"coefficients": RNG.uniform(-1, 1, 6).tolist(), "intercepts": [0.1, 0.2], "targets": 2}),
    ("Normalizer", {"norm": "L2"}),
    ("Scaler", {"offset": [0.1, 0.2, 0.3], "scale": [2.0, 3.0, 4.0]}),
    ("Imputer", {"imputed_value_floats": [5.0], "replaced_value_float": 0.5}),
    ("TreeEnsembleRegressor", FOREST),
    ("Binarizer", {"threshold": 0.5}),
]


@pytest.mark.parametrize(("op", "attrs"), CASES, ids=[c[0] for c in CASES])
def test_more_examples(op, attrs):
    x = RNG.uniform(0, 1, (4, 3)).astype(np.float32)
    check_node(op, [x], attrs, domain=ML, tolerance=1e-5)


def test_a_classifier_has_two_results():
    attrs = {
        "coefficients": RNG.uniform(-1, 1, 9).tolist(),
        "intercepts": [0.1, 0.2, 0.3],
        "classlabels_ints": [4, 5, 6],
    }
    x = RNG.uniform(0, 1, (4, 3)).astype(np.float32)
    check_node("LinearClassifier", [x], attrs, outputs=2, domain=ML, tolerance=1e-5)


def test_a_vector_is_one_example():
    attrs = {"coefficients": RNG.uniform(-1, 1, 6).tolist(), "intercepts": [0.1, 0.2], "targets": 2}
    x = RNG.uniform(0, 1, 3).astype(np.float32)
    model = node_model("LinearRegressor", [x], attrs, domain=ML)
    check_batched(model, {"x0": x}, ["x0"], tolerance=1e-5)


def test_features():
    x = RNG.uniform(0, 1, (4, 3)).astype(np.float32)
    check_node("ArrayFeatureExtractor", [x, np.array([2, 0])], domain=ML, which=[[0]])
