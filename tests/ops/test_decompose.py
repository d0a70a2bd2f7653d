"""What a composite op decomposes to agrees with its `numpy` rule, with known and unknown sizes. No op is named here."""

from __future__ import annotations

import numpy as np
import pytest

from ops.cases import CASES, Built, Case, build, build_symbolic, by_op, each, make_operands
from stitchwork.backends.reference.interpreter import Interpreter
from stitchwork.ir import dims, dtypes
from stitchwork.passes.decompose import Decompose

COMPOSITES = [c for c in CASES if c.cls.has("decompose")]
TOLERANCE = {"f8e4m3": 0.13, "f8e5m2": 0.26, "f16": 2e-3, "bf16": 2e-2, "f32": 1e-5, "c64": 1e-5}


@pytest.mark.parametrize("cases", by_op(COMPOSITES))
def test_known_sizes(cases: list[Case]) -> None:
    each(cases, lambda case: check(case, build(case, make_operands(case)), {}))


@pytest.mark.parametrize("cases", by_op(COMPOSITES))
def test_unknown_sizes(cases: list[Case]) -> None:
    each(cases, check_unknown_sizes)


def check_unknown_sizes(case: Case) -> None:
    graph = build_symbolic(case, make_operands(case))
    arguments = zip(graph.module.body.arguments, graph.arrays, strict=True)
    pairs = [p for argument, array in arguments for p in zip(argument.shape, array.shape, strict=True)]
    check(case, graph, {str(symbol): n for symbol, n in pairs if isinstance(symbol, dims.Dim)})


def check(case: Case, graph: Built, sizes: dict[str, int]) -> None:
    """Compare the reference backend's results for the op and for what it decomposes to."""
    expected = Interpreter(graph.module, sizes).run(*graph.arrays)
    result = Decompose().run(graph.module)
    assert result.modified
    for made, wanted in zip(Interpreter(result.module, sizes).run(*graph.arrays), expected, strict=True):
        assert (made.shape, made.dtype) == (wanted.shape, wanted.dtype)
        tolerance = TOLERANCE.get(dtypes.as_dtype(wanted.dtype).name, 1e-12) * case.sample.tolerance
        if wanted.dtype.kind in "biu":
            np.testing.assert_array_equal(made, wanted)
        else:
            wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(made.astype(wide), wanted.astype(wide), rtol=tolerance, atol=tolerance)
