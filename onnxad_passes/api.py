"""The public functions. Each takes an onnx.ModelProto, an onnx_ir.Model or an IR Model and returns the same kind."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from onnxad_ir.core import Model, clone_model
from onnxad_ir.proto import from_proto, to_proto
from onnxad_ir.traverse import deep_regions
from onnxad_ir.verify import verify
from onnxad_passes.arguments import check_options, name_list, names_or_all
from onnxad_passes.forward import Forward
from onnxad_passes.gradient import Gradient
from onnxad_passes.hessian import Hessian
from onnxad_passes.jacobian import Jacobian
from onnxad_passes.layouts import check_layout
from onnxad_passes.manager import Pass, PassManager
from onnxad_passes.pipeline import parse_pipeline
from onnxad_passes.reverse import Reverse
from onnxad_passes.unroll import LIMIT, Unroll
from onnxad_passes.vectorize import Vectorize
from onnxad_rules.ruleset import Ruleset

M = TypeVar("M")


def run_pipeline(model: M, pipeline: str | Iterable[Pass], verify_each: bool = True) -> M:
    """Run a pipeline, text or passes, on a model of any kind; the model itself is not changed.

    The model is verified first, and with `verify_each` after every pass that changed it.

    Raises UsageError for a pipeline that does not parse or a request that makes no sense for the model,
    ModelError for a broken model, UnsupportedOperator where operators without a rule stand in the way; TypeError for
    arguments of a wrong kind.
    """
    if not isinstance(pipeline, str | Iterable):
        raise TypeError(f"a pipeline is text or a list of passes, not {pipeline!r}")
    passes = parse_pipeline(pipeline) if isinstance(pipeline, str) else list(pipeline)
    with paused_gc(), deep_regions():
        lifted, back = lift(model)
        if not verify_each:
            verify(lifted)
        PassManager(passes, verify_each=verify_each).run(lifted)
        return back(lifted)


@contextmanager
def paused_gc() -> Iterator[None]:
    """Hold the cycle collector off: a growing graph is all live, and walking it again and again is not linear."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def lift(model: Any) -> tuple[Model, Callable[[Model], Any]]:
    """An IR model that may be rewritten, and how to get back to the kind of model it came from."""
    import onnx

    if isinstance(model, Model):
        return clone_model(model), lambda m: m
    if isinstance(model, onnx.ModelProto):
        return from_proto(model), to_proto
    import onnx_ir

    if isinstance(model, onnx_ir.Model):
        from onnxad_ir.onnx_ir import from_onnx_ir, to_onnx_ir

        return from_onnx_ir(model), to_onnx_ir
    raise TypeError(f"expected an onnx.ModelProto, an onnx_ir.Model or an onnxad_ir Model, not {type(model).__name__}")


def _derivative(model: M, p: Pass) -> M:
    check_options(p)
    return run_pipeline(model, [p], verify_each=False)


def _text(number: int | str | None) -> str | None:
    return None if number is None else str(number)


def forward(
    model: M,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    prefix: str | None = None,
    dim: str | None = None,
    layout: str = "casadi",
    rules: Ruleset | None = None,
    functions: str = "inline",
    straight_through: Sequence[str] | str = (),
) -> M:
    """The model with inputs fwd_<x> and outputs fwd_<y> = (dy/dx) fwd_<x> added; its signature stays a prefix.

    inputs, outputs: names (default: every floating input, every floating output); inputs may name initializers and
    inner values, and "*.weight" is every floating input and initializer of such a name. prefix: of the new names
    (default: counted up as CasADi's diff_prefix). rules: a rule set instead of the built-in one. functions: "inline",
    or "keep": a local function is differentiated once and called (in layout single). straight_through: operators of
    rounding and quantization that pass the derivative on, where by default it is zero: Round, Floor, Ceil, Sign,
    QuantizeLinear, DynamicQuantizeLinear.

    layout: how n directions are handed over. "leading": in front, [n, *shape]; "onnx": behind, [*shape, n]; "casadi":
    those of a value of r rows and c columns are one matrix [r, n * c], of a scalar [1, n], of a vector [r, n], of a
    value of rank 3 and more [size, n]; "single": one direction, of the shape of the value. dim: what n is called
    (default: nfwd, or nadj in reverse mode, counted up like the prefix).

    Raises as `run_pipeline` does.
    """
    check_layout(layout, dim)
    options = (prefix, layout, rules, functions, name_list(straight_through), dim)
    return _derivative(model, Forward(names_or_all(inputs), names_or_all(outputs), *options))


def reverse(
    model: M,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    prefix: str | None = None,
    dim: str | None = None,
    layout: str = "casadi",
    rules: Ruleset | None = None,
    functions: str = "inline",
    straight_through: Sequence[str] | str = (),
    checkpoint: int | str | None = None,
) -> M:
    """The model with inputs adj_<y> and outputs adj_<x> = (dy/dx)^T adj_<y> added; its signature stays a prefix.

    Arguments and errors are those of `forward`. checkpoint: keep the state of every so many-th iteration of a Scan or
    Loop only, and compute in between again: a number, or "auto" for about the square root of the number of iterations.
    """
    check_layout(layout, dim)
    options = (prefix, layout, rules, functions, name_list(straight_through), _text(checkpoint), dim)
    return _derivative(model, Reverse(names_or_all(inputs), names_or_all(outputs), *options))


def gradient(
    model: M,
    output: str | None = None,
    inputs: Sequence[str] | None = None,
    rules: Ruleset | None = None,
    functions: str = "inline",
    straight_through: Sequence[str] | str = (),
    checkpoint: int | str | None = None,
) -> M:
    """The model with outputs grad_<x> added, the gradient of an output with one element; no seed.

    output: its name (default: the only floating output). inputs: names (default: every floating input); they
    may name initializers and inner values, and "*.weight" every one of such a name. Raises as `run_pipeline` does.
    """
    options = (None, rules, functions, name_list(straight_through), _text(checkpoint))
    return _derivative(model, Gradient(output, names_or_all(inputs), *options))


def jacobian(
    model: M,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    mode: str = "auto",
    rules: Ruleset | None = None,
    straight_through: Sequence[str] | str = (),
) -> M:
    """The model with outputs jac_<y>_<x> added, every derivative of y with respect to x, of shape y.shape + x.shape.

    inputs, outputs: names (default: every floating input, every floating output); inputs may name initializers and
    inner values. mode: "forward", "reverse", or "auto": for each output the one that takes fewer directions; where
    extents are symbols, the one whose number of directions is known, else reverse. Raises as `run_pipeline` does.
    """
    options = (None, mode, rules, name_list(straight_through))
    return _derivative(model, Jacobian(names_or_all(inputs), names_or_all(outputs), *options))


def hessian(
    model: M,
    output: str | None = None,
    inputs: Sequence[str] | None = None,
    rules: Ruleset | None = None,
    straight_through: Sequence[str] | str = (),
) -> M:
    """The model with outputs hess_<x1>_<x2> added, the second derivatives of an output with one element, of shape
    x1.shape + x2.shape.

    output: its name (default: the only floating output). inputs: names (default: every floating input); they may name
    initializers and inner values. Raises as `run_pipeline` does.
    """
    return _derivative(model, Hessian(output, names_or_all(inputs), None, rules, name_list(straight_through)))


def vectorize(model: M, inputs: Sequence[str] | None = None, dim: str = "batch", rules: Ruleset | None = None) -> M:
    """The model with a leading axis on inputs (names; default: all) and on every output that depends on them (vmap).

    dim: the name of the axis, one that the model does not have. Raises as `run_pipeline` does.
    """
    return _derivative(model, Vectorize(names_or_all(inputs), dim, rules))


def unroll(model: M, limit: int = LIMIT, *, max_nodes: int | None = None) -> M:
    """The model with every Scan and Loop written out whose number of iterations is known.

    limit: the most nodes the model may have; UnrollTooLarge beyond. max_nodes: the same, as onnx-ad calls it. A loop
    that ends on a condition stays.
    """
    limit = limit if max_nodes is None else max_nodes
    return run_pipeline(model, [Unroll(limit)], verify_each=False)
