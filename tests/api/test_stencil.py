"""Compiled stencils against SciPy's ndimage, in every mode, and what is stitched into one kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import ndimage

import stitchwork as sw

MODES = {
    "zero": "constant",
    "reflect": "mirror",
    "symmetric": "reflect",
    "clamp_to_edge": "nearest",
    "periodic": "wrap",
}
REDUCTIONS = ("sum", "min", "max", "product", "argmin", "argmax")
WINDOWS = {1: (5,), 2: (3, 5), 3: (3, 1, 3), 4: (1, 3, 1, 2)}
SIZES = {1: [(1,), (3,), (40,)], 2: [(1, 1), (5, 7), (4, 33)], 3: [(2, 3, 4), (5, 1, 18)], 4: [(2, 3, 2, 5)]}
LAPLACIAN = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]], np.float32)


def oracle(x: np.ndarray, weights: np.ndarray, reduction: str, mode: str) -> np.ndarray:
    """SciPy's result for a centred window: `correlate`, or any function of the window by `generic_filter`."""
    centre = tuple(-1 if k % 2 == 0 else 0 for k in weights.shape)  # ours has the extra element after
    if reduction == "sum":
        return ndimage.correlate(x.astype(np.float64), weights, mode=mode, origin=centre)
    call = {"min": np.min, "max": np.max, "product": np.prod, "argmin": np.argmin, "argmax": np.argmax}[reduction]
    wide = weights.astype(np.float64).ravel()
    ones = np.ones(weights.shape, bool)
    return ndimage.generic_filter(
        x.astype(np.float64), lambda w: float(call(w * wide)), footprint=ones, mode=mode, origin=centre
    )


@pytest.mark.parametrize("rank", WINDOWS)
@pytest.mark.parametrize("boundary", MODES)
def test_every_mode_and_reduction(rank: int, boundary: str, rng: np.random.Generator) -> None:
    """Sizes unknown, images smaller than the window among them. Of rank 2 everything, else a sum and one other."""
    weights = rng.uniform(0.5, 1.5, WINDOWS[rank]).astype(np.float32)
    reductions = REDUCTIONS if rank == 2 else ("sum", REDUCTIONS[1 + list(MODES).index(boundary)])
    g = sw.Graph()
    x = g.placeholder((None,) * rank, name="x")
    exe = g.compile([g.stencil(x, weights, padding="same", boundary=boundary, reduction=r) for r in reductions])
    for shape in SIZES[rank]:
        data = rng.uniform(-2, 2, shape).astype(np.float32)
        for reduction, got in zip(reductions, exe.run([data]), strict=True):
            want = oracle(data, weights, reduction, MODES[boundary])
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=f"{reduction} of {shape}")
            assert got.dtype is (sw.int32 if reduction.startswith("arg") else sw.float32)


def test_a_constant_border(rng: np.random.Generator) -> None:
    data = rng.uniform(-2, 2, (6, 9)).astype(np.float32)
    g = sw.Graph()
    x = g.placeholder((None, None))
    made = [
        g.stencil(x, LAPLACIAN, padding="same", boundary="constant", constant=2.5),
        g.stencil(x, np.ones((3, 3), np.float32), padding="same", boundary="constant", constant=2.5, reduction="max"),
    ]
    total, largest = g.compile(made).run([data])
    np.testing.assert_allclose(
        total, ndimage.correlate(data, LAPLACIAN, mode="constant", cval=2.5), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(largest, ndimage.maximum_filter(data, 3, mode="constant", cval=2.5))


def test_antiperiodic(rng: np.random.Generator) -> None:
    """No one else has it: the signal, its negative, the signal, ..., laid out by hand."""
    data = rng.uniform(-2, 2, 7).astype(np.float32)
    weights = rng.uniform(-1, 1, 9).astype(np.float32)
    g = sw.Graph()
    x = g.placeholder((None,))
    (got,) = g.compile([g.stencil(x, weights, padding=20, boundary="antiperiodic")]).run([data])
    laid = np.concatenate([-data, data, -data, data, -data, data, -data])[21 - 20 : 21 + 7 + 20]
    np.testing.assert_allclose(got, np.correlate(laid, weights, "valid"), rtol=1e-5, atol=1e-5)


def test_strides_dilation_padding_and_offsets(rng: np.random.Generator) -> None:
    data = rng.uniform(-2, 2, (3, 11, 14)).astype(np.float32)
    weights = rng.uniform(-1, 1, (2, 3)).astype(np.float32)
    g = sw.Graph()
    x = g.placeholder((None, None, None))
    made = [
        g.stencil(x, weights, strides=(2, 3), dilation=(3, 2), padding=((1, 2), (0, 4)), boundary="reflect"),
        g.stencil(x, weights, strides=2, offsets=(-1, 2), boundary="clamp"),
        g.stencil(x, weights),
    ]
    first, second, third = (r.numpy() for r in g.compile(made).run([data]))
    spread = np.zeros((4, 5), np.float32)
    spread[::3, ::2] = weights
    padded = np.pad(data, ((0, 0), (1, 2), (0, 4)), "reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (4, 5), (1, 2))
    np.testing.assert_allclose(first, (windows * spread).sum((-2, -1))[:, ::2, ::3], rtol=1e-5, atol=1e-5)
    padded = np.pad(data, ((0, 0), (1, 3), (0, 6)), "edge")[:, :, 2:]
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2, 3), (1, 2))
    np.testing.assert_allclose(second, (windows * weights).sum((-2, -1))[:, :11:2, :14:2], rtol=1e-5, atol=1e-5)
    windows = np.lib.stride_tricks.sliding_window_view(data, (2, 3), (1, 2))
    np.testing.assert_allclose(third, (windows * weights).sum((-2, -1)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.uint8])
def test_other_dtypes_and_weights_that_are_tensors(dtype: Any, rng: np.random.Generator) -> None:
    data = rng.integers(0, 9, (8, 21)).astype(dtype)
    weights = rng.integers(0, 4, (3, 3)).astype(dtype)
    g = sw.Graph()
    x, w = g.placeholder((None, None), dtype), g.placeholder((3, None), dtype)
    exe = g.compile(
        [g.stencil(x, w, padding=1, boundary="periodic"), g.stencil(x, weights, padding=1, boundary="periodic")]
    )
    want = (
        ndimage.correlate(data.astype(np.float64), weights.astype(np.float64), mode="wrap")
        .astype(np.int64)
        .astype(dtype)
    )
    for got in exe.run([data, weights]):
        np.testing.assert_array_equal(got, want)


def test_nan_is_never_an_extreme_position() -> None:
    g = sw.Graph()
    x = g.placeholder((None,))
    exe = g.compile([g.stencil(x, [1, 1, 1], reduction=r) for r in ("argmin", "argmax")])
    data = np.array([np.nan, 2, 1, np.nan, np.nan, np.nan, -np.inf, np.inf], np.float32)
    low, high = (r.numpy().tolist() for r in exe.run([data]))
    assert low == [2, 1, 0, -1, 2, 1]
    assert high == [1, 0, 0, -1, 2, 2]


# --- stitching --------------------------------------------------------------------------------------------------------
def kernels(exe: sw.Executable) -> int:
    return int(exe.report().split()[0])


def test_two_stencils_with_a_nonlinearity_between_are_one_kernel(rng: np.random.Generator) -> None:
    """The intermediate images never reach memory; sizes do not divide the tiles."""
    g = sw.Graph()
    x = g.placeholder(("h", "w"), name="x")
    once = g.stencil(x, LAPLACIAN, padding="same", boundary="reflect")
    twice = g.stencil(g.tanh(once), LAPLACIAN, padding="same", boundary="reflect")
    exe = g.compile([twice])
    assert kernels(exe) == 1, exe.report()
    for shape in ((1, 1), (3, 5), (33, 70), (130, 257)):
        data = rng.uniform(-1, 1, shape).astype(np.float32)
        inner = np.tanh(ndimage.correlate(data.astype(np.float64), LAPLACIAN, mode="mirror"))
        want = ndimage.correlate(inner, LAPLACIAN, mode="mirror")
        np.testing.assert_allclose(exe.run([data])[0], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reduction", ["min", "max", "argmax", "product"])
def test_chains_of_other_reductions_are_one_kernel(reduction: str, rng: np.random.Generator) -> None:
    ones = np.ones((3, 3), np.float32)
    g = sw.Graph()
    x = g.placeholder(("h", "w"), name="x")
    smooth = g.exp(g.stencil(x, ones / 9, padding="same", boundary="clamp") * 0.5)
    exe = g.compile([g.stencil(smooth, ones, padding="same", boundary="clamp", reduction=reduction)])
    assert kernels(exe) == 1, exe.report()
    data = rng.uniform(-1, 1, (37, 50)).astype(np.float32)
    inner = np.exp(ndimage.correlate(data.astype(np.float64), ones / 9, mode="nearest") * 0.5)
    np.testing.assert_allclose(exe.run([data])[0], oracle(inner, ones, reduction, "nearest"), rtol=1e-4)


def test_three_steps_of_diffusion_are_one_kernel(rng: np.random.Generator) -> None:
    g = sw.Graph()
    x = g.placeholder(("h", "w"), name="x")
    y = x
    for _ in range(3):
        y = y + 0.1 * g.stencil(y, LAPLACIAN, padding="same", boundary="reflect")
    exe = g.compile([y])
    data = rng.uniform(-1, 1, (40, 70)).astype(np.float32)
    want = data.astype(np.float64)
    for _ in range(3):
        want = want + 0.1 * ndimage.correlate(want, LAPLACIAN, mode="mirror")
    np.testing.assert_allclose(exe.run([data])[0], want, rtol=1e-4, atol=1e-5)
    assert kernels(exe) == 1, exe.report()
