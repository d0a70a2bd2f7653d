"""What an op's `compute` or `loops` rule says agrees with its `numpy` rule. No op is named in this file."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from loops.evaluate import evaluate, junk, run_nest
from ops.cases import CASES, Built, Case, build, build_symbolic, by_op, each, make_operands
from stitchwork.backends.reference.interpreter import Interpreter
from stitchwork.ir import dims, dtypes
from stitchwork.ir.graph import Array, Operation, Value
from stitchwork.loops.expr import Buffer, axes_for
from stitchwork.loops.nest import Builder

KERNELS = [c for c in CASES if c.cls.has("compute") or c.cls.has("loops")]
TOLERANCE = {
    "f8e4m3": 0.13,
    "f8e5m2": 0.26,
    "f16": 4e-3,
    "bf16": 3e-2,
    "f32": 2e-5,
    "c64": 2e-5,
    "f64": 1e-11,
    "c128": 1e-11,
}


@pytest.mark.parametrize("cases", by_op(KERNELS))
def test_kernel_agrees_with_numpy(cases: list[Case]) -> None:
    each(cases, lambda case: check(case, build(case, make_operands(case))))


@pytest.mark.parametrize("cases", by_op(KERNELS))
def test_kernel_with_symbolic_sizes_agrees_with_numpy(cases: list[Case]) -> None:
    each(cases, lambda case: check(case, build_symbolic(case, make_operands(case))))


def check(case: Case, graph: Built) -> None:
    """Compare the kernel of the graph's one call with what the reference backend gives for it."""
    operation = graph.results[0].op
    assert operation is not None
    sizes = bind(graph)
    operands = [v for v in operation.operands if not v.is_token]
    graph.module.body.results = (*operands, *operation.results)
    interpreter = Interpreter(graph.module, sizes)
    values = interpreter.run(*graph.arrays)
    made = run_kernel(operation, dict(zip(operands, values[: len(operands)], strict=True)), interpreter.sizes)
    for result, array, expected in zip(operation.results, made, values[len(operands) :], strict=True):
        assert array.shape == expected.shape and array.dtype == expected.dtype
        compare(array, expected, TOLERANCE.get(result.dtype.name, 0.0) * case.sample.tolerance)


def bind(graph: Built) -> dict[str, int]:
    """The values of the symbols in the types of the arguments."""
    return {
        str(symbol): n
        for argument, array in zip(graph.module.body.arguments, graph.arrays, strict=True)
        for symbol, n in zip(argument.shape, array.shape, strict=True)
        if isinstance(symbol, dims.Dim)
    }


def run_kernel(operation: Operation, arrays: dict[Value, Array], sizes: dict[str, int]) -> list[Array]:
    """Results of the operation by its `compute` or `loops` rule."""
    op = operation.op
    buffers = {v: Buffer(v.dtype, v.shape, v) for v in arrays}
    known = {buffers[v]: a for v, a in arrays.items()}
    groups = zip(op.group(operation.operands), op.operands.values(), strict=True)
    args = [_buffers(part, buffers) for part, spec in groups if not spec.token]
    if op.has("compute"):
        out = axes_for(operation.results[0].shape)
        made: Any = op.compute(out, *args)
        many = cast("tuple[Any, ...]", made) if isinstance(made, tuple) else (made,)
        return [evaluate(e, out, known, sizes) for e in many]
    outs = tuple(Buffer(v.dtype, v.shape, v) for v in operation.results)
    for b in outs:
        known[b] = np.full(tuple(dims.evaluate(n, sizes) for n in b.shape), junk(b.dtype), b.dtype.numpy)
    builder = Builder()
    op.loops(builder, outs, *args)
    run_nest(builder.statements, known, sizes)
    return [known[b] for b in outs]


def _buffers(part: Any, buffers: dict[Value, Buffer]) -> Any:
    if isinstance(part, tuple):
        return tuple(buffers[v] for v in cast("tuple[Value, ...]", part))
    return None if part is None else buffers[part]


def compare(array: Array, expected: Array, tolerance: float) -> None:
    """Assert that the arrays are equal, or for floats, close in absolute or relative terms."""
    if not tolerance:
        np.testing.assert_array_equal(array, expected)
        return
    wide = np.complex128 if dtypes.as_dtype(expected.dtype).is_complex else np.float64
    np.testing.assert_allclose(array.astype(wide), expected.astype(wide), rtol=tolerance, atol=tolerance)
