"""Every op sample, compiled for the CPU, agrees with the op's definition: with known sizes and with unknown ones."""

from __future__ import annotations

import numpy as np
import pytest
from ops.cases import CASES, Built, Case, build, make_operands, reference

from stitchwork import pipeline
from stitchwork.backends.cpu.backend import CpuBackend
from stitchwork.backends.cpu.pool import default_pool
from stitchwork.errors import OpError
from stitchwork.runtime.executable import NativeProgram, VariableStore

PUBLIC = [c for c in CASES if not c.cls.effect]


def native(graph: Built) -> list[np.ndarray]:
    """Results by compiled code."""
    compiled = pipeline.run(graph.module, CpuBackend())
    return NativeProgram(graph.module, compiled, default_pool(), VariableStore()).run(graph.arrays)


def assert_agree(case: Case, got: np.ndarray, want: np.ndarray) -> None:
    """Equal up to rounding, integers exactly."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    if want.dtype.kind in "biu" or want.dtype.name in ("int4", "uint4"):
        np.testing.assert_array_equal(got, want)
        return
    loose = {"float16": 2e-3, "bfloat16": 2e-2, "float8_e4m3fn": 0.13, "float8_e5m2": 0.26}.get(want.dtype.name)
    tolerance = case.sample.tolerance * (loose or (1e-5 if want.dtype.itemsize <= 8 and want.dtype != np.float64 else 1e-10))
    scale = np.complex128 if want.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(got.astype(scale), want.astype(scale), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", PUBLIC, ids=str)
def test_known_sizes(case: Case) -> None:
    graph = build(case, make_operands(case))
    for got, want in zip(native(graph), reference(graph), strict=True):
        assert_agree(case, got, want)


@pytest.mark.parametrize("case", PUBLIC, ids=str)
def test_unknown_sizes(case: Case) -> None:
    operands = make_operands(case)
    try:
        graph = build(case, operands, symbolic=True)
    except OpError:
        pytest.skip("the op needs to know these sizes when the graph is built")
    if not graph.arrays:
        pytest.skip("no operand has a size")
    for got, want in zip(native(graph), reference(build(case, operands)), strict=True):
        assert_agree(case, got, want)
