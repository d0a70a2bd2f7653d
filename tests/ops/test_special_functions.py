"""The `numpy` rules that are formulas of ours agree with SciPy, and dtype rules with NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import special

from stitchwork.backends.reference.interpreter import Interpreter
from stitchwork.ir import dims, dtypes
from stitchwork.ir.graph import Module
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._op import building


def run(name: str, *arrays: np.ndarray, **attrs: Any) -> np.ndarray:
    """One op by its `numpy` rule."""
    module = Module("case")
    values = [module.body.add_argument(TensorType(dtypes.as_dtype(a.dtype), a.shape)) for a in arrays]
    with building(module):
        module.body.results = (getattr(F, name)(*values, **attrs),)
    return Interpreter(module, {}).run(*arrays)[0]


POSITIVE = np.concatenate([np.logspace(-6, 4, 60), [1.0, 2.0, 0.5]])
SIGNED = np.concatenate([POSITIVE, np.linspace(-9.9, -0.05, 41), [-3.0, 0.0]])


def test_erf_inv_agrees_with_scipy() -> None:
    x = np.concatenate([1 - np.logspace(-15, -0.01, 50), np.linspace(-0.99, 0.99, 31), [0, 1e-12, 1, -1, 1.5, np.nan]])
    np.testing.assert_allclose(run("erf_inv", x), special.erfinv(x), rtol=1e-13)


def test_lgamma_agrees_with_scipy() -> None:
    x = np.concatenate([SIGNED, [np.inf, -np.inf, np.nan, 1e300]])
    expected = special.gammaln(x)
    expected[x == -np.inf] = np.inf  # C's lgamma and ours; SciPy says -inf
    np.testing.assert_allclose(run("lgamma", x), expected, rtol=1e-13, atol=1e-14)


def test_digamma_agrees_with_scipy() -> None:
    x = SIGNED[SIGNED != 0]
    expected = special.digamma(x)
    np.testing.assert_allclose(run("digamma", x), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("order", [1, 2, 3, 6])
def test_polygamma_agrees_with_scipy(order: int) -> None:
    np.testing.assert_allclose(run("polygamma", POSITIVE, order=order), special.polygamma(order, POSITIVE), rtol=1e-12)


def test_polygamma_reflects_below_zero() -> None:
    x = np.array([-0.3, -1.7, -4.2])
    expected = [-special.polygamma(1, 1 - v) + (np.pi / np.sin(np.pi * v)) ** 2 for v in x]
    np.testing.assert_allclose(run("polygamma", x, order=1), expected, rtol=1e-12)


@pytest.mark.parametrize(
    "name", ["addition", "multiplication", "subtraction", "maximum_nan_propagation", "floor_divide"]
)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "i8", "i32", "u8", "i64"])
def test_dtype_is_kept(name: str, dtype: str) -> None:
    numpy = dtypes.by_name(dtype).numpy
    a, b = np.array([1, 2, 5]).astype(numpy), np.array([3, 1, 2]).astype(numpy)
    assert run(name, a, b).dtype == numpy


def test_mixed_dtypes_are_promoted() -> None:
    assert run("addition", np.ones(2, np.int64), np.ones(2, np.float16)).dtype == np.float16
    assert run("true_divide", np.array([7]), np.array([2]))[0] == np.float32(3.5)
    assert run("division", np.array([-7, 7]), np.array([2, 0])).tolist() == [-3, 0]
    assert run("floor_divide", np.array([-7]), np.array([2])).tolist() == [-4]


def test_sign_and_zero_follow_numpy() -> None:
    x = np.array([np.nan, -0.0, 0.0, -3.0, np.inf], np.float32)
    np.testing.assert_array_equal(run("sign", x), np.sign(x))
    assert not np.signbit(run("sign", x)[1])
    np.testing.assert_array_equal(run("signbit", x), np.signbit(x))


def test_sizes_are_followed_through_arithmetic() -> None:
    """Integer tensors that hold sizes stay known: shape chains of imported models depend on it."""
    module = Module("case")
    n = dims.symbol("n")
    size = module.body.add_argument(TensorType(dtypes.int64, (2,)))
    size.content = (n, 3)
    with building(module):
        assert (size * 2 + 1).content == (n * 2 + 1, 7)
        assert F.floor_divide(size * 4, 2).content == (n * 2, 6)
        assert F.division(size, np.int64(2)).content == (n // 2, 1)
        assert F.maximum(size, np.int64(0)).content == (dims.maximum(n, 0), 3)
        assert F.cast(-size, dtypes.int32).content == (-n, -3)
        assert (size * 2**62).content is None  # 3 * 2**62 wraps
