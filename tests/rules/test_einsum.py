import numpy as np
import pytest

from onnxad_rules.testing import check_rule

R = np.random.default_rng(0)
r = R.standard_normal


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij->ji", [(2, 3)]),
        ("ij", [(2, 3)]),
        ("ba", [(2, 3)]),
        ("ij->i", [(2, 3)]),
        ("ij->", [(2, 3)]),
        ("ijk->ki", [(2, 3, 4)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("iji->j", [(3, 2, 3)]),
        ("iijj->ij", [(3, 3, 2, 2)]),
        ("iii->i", [(3, 3, 3)]),
        ("iij->", [(3, 3, 2)]),
        ("...->...", [(2, 3)]),
        ("...ij->...ji", [(4, 2, 3)]),
        ("i...->...i", [(2, 3, 4)]),
        ("...ii->...i", [(2, 3, 3)]),
        ("i...i->...", [(3, 2, 4, 3)]),
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("i,i->", [(3,), (3,)]),
        ("i,j->ij", [(3,), (2,)]),
        ("i,j->", [(3,), (2,)]),
        (",i->i", [(), (2,)]),
        ("ij,ij->ij", [(2, 3), (2, 3)]),
        ("ij,j->i", [(2, 3), (3,)]),
        ("ij,k->jk", [(2, 3), (4,)]),
        ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
        ("...ij,...jk->...ik", [(5, 2, 3), (5, 3, 4)]),
        ("...ij,...jk->...ik", [(1, 2, 3), (5, 3, 4)]),
        ("...ij,jk->...ik", [(5, 2, 3), (3, 4)]),
        ("ii,ij->j", [(3, 3), (3, 2)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
        ("ij,ik,il->jkl", [(2, 3), (2, 2), (2, 4)]),
        ("ab,bc,cd,ad->", [(2, 3), (3, 2), (2, 4), (2, 4)]),
        (" i j , jk -> ik ", [(2, 3), (3, 4)]),
        ("aA,Ab->ab", [(2, 3), (3, 4)]),
    ],
)
def test_einsum(equation, shapes):
    check_rule("Einsum", [r(s) for s in shapes], {"equation": equation})


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij,jk->ik", [(2, 0), (0, 3)]),
        ("ij,jk->ik", [(0, 4), (4, 3)]),
        ("ij,jk->ik", [(2, 4), (4, 0)]),
        ("bij,bjk->bik", [(0, 2, 3), (0, 3, 4)]),
        ("...ij,jk->...ik", [(0, 2, 3), (3, 4)]),
    ],
)
def test_empty(equation, shapes):
    """ONNX Runtime ends the process where it has to transpose an empty operand for an Einsum."""
    check_rule("Einsum", [r(s) for s in shapes], {"equation": equation})


def test_extents_of_one_are_broadcast_where_they_are_known():
    check_rule("Einsum", [r((2, 1)), r((3, 4))], {"equation": "ij,jk->ik"}, symbolic=False, unknown_rank=False)
