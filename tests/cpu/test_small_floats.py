"""Floats of 8 bits or fewer: every code, and numbers at and around every rounding border, against ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import stitchwork as sw
from stitchwork.ir import dtypes
from stitchwork.ir.dtypes import DType

SMALL = [
    dtypes.float4_e2m1,
    dtypes.float8_e4m3,
    dtypes.float8_e5m2,
    dtypes.float8_e4m3fnuz,
    dtypes.float8_e5m2fnuz,
    dtypes.float8_e8m0,
]


def convert(array: np.ndarray, target: DType) -> np.ndarray:
    g = sw.Graph()
    x = g.placeholder(("n",), dtypes.as_dtype(array.dtype))
    (made,) = g.compile([g.cast(x, target)]).run([array])
    return made.numpy()


def codes(dtype: DType) -> np.ndarray:
    return np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy)


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_decodes_every_code(dtype: DType) -> None:
    every = codes(dtype)
    got, wanted = convert(every, dtypes.float32), every.astype(np.float32)
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(wanted[~np.isnan(wanted)]))


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_rounds_as_ml_dtypes(dtype: DType) -> None:
    finite = np.unique(codes(dtype).astype(np.float32))
    finite = finite[np.isfinite(finite)]
    with np.errstate(over="ignore"):
        borders = np.concatenate([finite, (finite[1:] + finite[:-1]) / 2, finite * 2, finite * 1.5])
    near = [np.nextafter(borders, np.float32(way)) for way in (-np.inf, np.inf)]
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 1e-20, 2.0**-126], np.float32)
    x = np.concatenate([borders, *near, special])
    with np.errstate(all="ignore"):
        wanted = x.astype(dtype.numpy)
    got = convert(x, dtype)
    if dtype is dtypes.float4_e2m1:  # whose NaN is a zero of either sign
        got, wanted = (np.where(np.isnan(x), 0, a.view(np.uint8)) for a in (got, wanted))
    else:
        is_nan = np.isnan(wanted.astype(np.float32))
        np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), is_nan)
        got, wanted = (np.where(is_nan, 0, a.view(np.uint8)) for a in (got, wanted))
    differing = np.flatnonzero(got != wanted)
    assert not differing.size, [(float(x[k]), int(got[k]), int(wanted[k])) for k in differing[:8]]


def test_the_names_are_those_of_ml_dtypes() -> None:
    for dtype in SMALL:
        assert dtypes.as_dtype(getattr(ml_dtypes, dtype.numpy.name)) is dtype
        assert dtypes.by_name(str(dtype)) is dtype
