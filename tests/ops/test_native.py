"""Every op sample, compiled for the CPU, agrees with the op's definition: with known sizes and with unknown ones.

All samples of an op are one program, so that an op costs one compilation.
"""

from __future__ import annotations

import numpy as np
import pytest

from ops.cases import CASES, Case, build_all, make_operands, reference
from stitchwork import pipeline
from stitchwork.backends.cpu.backend import CpuBackend
from stitchwork.backends.cpu.pool import default_pool
from stitchwork.ops import REGISTRY
from stitchwork.runtime.executable import NativeProgram, VariableStore

OPS = [c for c in REGISTRY.values() if any(case.cls is c for case in CASES)]


def check(cases: list[Case], symbolic: bool) -> None:
    """Compile the samples together and compare every result with the reference."""
    operands = [make_operands(c) for c in cases]
    program, taken = build_all(cases, operands, symbolic)
    if not taken:
        pytest.skip("the op needs to know all these sizes when the graph is built")
    exact, _ = build_all(cases, operands, False)
    compiled = pipeline.run(program.module, CpuBackend())
    got = NativeProgram(program.module, compiled, default_pool(), VariableStore()).run(program.arrays)
    want = dict(zip(dict.fromkeys(exact.owners), zip_groups(exact.owners, reference(exact)), strict=True))
    for case, results in zip(dict.fromkeys(program.owners), zip_groups(program.owners, got), strict=True):
        for a, b in zip(results, want[case], strict=True):
            assert_agree(case, a, b)


def zip_groups(owners: list[Case], arrays: list[np.ndarray]) -> list[list[np.ndarray]]:
    """Results gathered by the case that they belong to."""
    groups: dict[Case, list[np.ndarray]] = {}
    for owner, array in zip(owners, arrays, strict=True):
        groups.setdefault(owner, []).append(array)
    return list(groups.values())


def assert_agree(case: Case, got: np.ndarray, want: np.ndarray) -> None:
    """Equal up to rounding, integers exactly."""
    label = f"{case}: {case.sample}"
    assert got.shape == want.shape, label
    assert got.dtype == want.dtype, label
    if want.dtype.kind in "biu" or want.dtype.name in ("int4", "uint4"):
        np.testing.assert_array_equal(got, want, err_msg=label)
        return
    loose = {"float16": 2e-3, "bfloat16": 2e-2, "float8_e4m3fn": 0.13, "float8_e5m2": 0.26}.get(want.dtype.name)
    tolerance = case.sample.tolerance * (
        loose or (1e-5 if want.dtype.itemsize <= 8 and want.dtype != np.float64 else 1e-10)
    )
    scale = np.complex128 if want.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(got.astype(scale), want.astype(scale), rtol=tolerance, atol=tolerance, err_msg=label)


@pytest.mark.parametrize("symbolic", [False, True], ids=["known", "unknown"])
@pytest.mark.parametrize("cls", OPS, ids=lambda c: c.name)
def test_agrees_with_reference(cls: type, symbolic: bool) -> None:
    check([c for c in CASES if c.cls is cls], symbolic)
