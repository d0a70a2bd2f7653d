"""Stencils, compiled, against SciPy's filters; and two of them with a nonlinearity between as one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

import stitchwork as sw

Array = np.ndarray[Any, Any]
CONSTANT = 1.5
# Ours, and SciPy's name for the same.
BOUNDARIES = {
    "reflect": "mirror",
    "symmetric": "reflect",
    "clamp": "nearest",
    "clamp_to_edge": "nearest",
    "periodic": "wrap",
    "constant": "constant",
}
REDUCTIONS = ("sum", "min", "max", "product")
SHAPES = {1: (11,), 2: (7, 9), 3: (5, 4, 6)}
WINDOWS = {1: (5,), 2: (3, 5), 3: (3, 1, 3)}


def apart(weights: Array, dilation: tuple[int, ...]) -> Array:
    """Weights with holes between them."""
    spread = np.zeros([(k - 1) * d + 1 for k, d in zip(weights.shape, dilation, strict=True)], weights.dtype)
    spread[tuple(slice(None, None, d) for d in dilation)] = weights
    return spread


def oracle(x: Array, weights: Array, reduction: str, boundary: str, dilation: tuple[int, ...] = ()) -> Array:
    """SciPy's result in float64; all reductions but the sum have weights of one."""
    x = x.astype(np.float64)
    spread = apart(weights, dilation or (1,) * weights.ndim).astype(np.float64)
    options: dict[str, Any] = {"mode": BOUNDARIES[boundary], "cval": CONSTANT}
    if reduction == "sum":
        return ndimage.correlate(x, spread, **options)
    footprint = spread != 0
    if reduction == "product":
        return ndimage.generic_filter(x, np.prod, footprint=footprint, **options)
    filters = {"min": ndimage.minimum_filter, "max": ndimage.maximum_filter}
    return filters[reduction](x, footprint=footprint, **options)


def weights_of(reduction: str, window: tuple[int, ...], rng: np.random.Generator) -> Array:
    made = rng.uniform(-1, 1, window) if reduction == "sum" else np.ones(window)
    return made.astype(np.float32)


def centred(window: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    """Padding that gives a result for each element."""
    return tuple((k - 1) * d // 2 for k, d in zip(window, dilation, strict=True))


@pytest.mark.parametrize("rank", SHAPES)
@pytest.mark.parametrize("known", [True, False])
def test_reductions_and_boundaries(rng: np.random.Generator, rank: int, known: bool) -> None:
    shape, window = SHAPES[rank], WINDOWS[rank]
    x = rng.uniform(-1, 1, shape).astype(np.float32)
    g = sw.Graph()
    p = g.placeholder(shape if known else (None,) * rank)
    cases = [(r, b, weights_of(r, window, rng)) for r in REDUCTIONS for b in BOUNDARIES]
    made = [g.stencil(p, w, padding="same", boundary=b, reduction=r, constant=CONSTANT) for r, b, w in cases]
    exe = g.compile(made)
    for got, (reduction, boundary, weights) in zip(exe.run([x]), cases, strict=True):
        want = oracle(x, weights, reduction, boundary)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=f"{reduction} {boundary}")


@pytest.mark.parametrize(
    "rank, dilation, strides",
    [
        (1, (2,), (1,)),
        (1, (1,), (3,)),
        (1, (2,), (2,)),
        (2, (2, 1), (1, 2)),
        (2, (1, 2), (3, 1)),
        (3, (2, 1, 2), (2, 1, 1)),
    ],
)
def test_dilation_and_strides(
    rng: np.random.Generator, rank: int, dilation: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    shape, window = SHAPES[rank], WINDOWS[rank]
    x = rng.uniform(-1, 1, shape).astype(np.float32)
    g = sw.Graph()
    p = g.placeholder((None,) * rank)
    cases = [(r, b, weights_of(r, window, rng)) for r in REDUCTIONS for b in ("reflect", "periodic", "constant")]
    padding = tuple((n, n) for n in centred(window, dilation))
    options: dict[str, Any] = {"padding": padding, "dilation": dilation, "strides": strides, "constant": CONSTANT}
    exe = g.compile([g.stencil(p, w, boundary=b, reduction=r, **options) for r, b, w in cases])
    for got, (reduction, boundary, weights) in zip(exe.run([x]), cases, strict=True):
        full = oracle(x, weights, reduction, boundary, dilation)
        want = full[tuple(slice(None, None, s) for s in strides)]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=f"{reduction} {boundary}")


def test_windows_of_even_size_and_strided_offsets(rng: np.random.Generator) -> None:
    """SciPy centres an even window at its later middle element: `same_lower`, or an offset of half the window."""
    x, weights = rng.uniform(-1, 1, (9, 8)).astype(np.float32), rng.uniform(-1, 1, (4, 2)).astype(np.float32)
    g = sw.Graph()
    p = g.placeholder((None, None))
    lower = g.stencil(p, weights, padding="same_lower", boundary="symmetric")
    offsets = g.stencil(p, weights, offsets=(-2, -1), strides=(2, 3), boundary="symmetric")
    want = oracle(x, weights, "sum", "symmetric")
    for got, expected in zip(g.compile([lower, offsets]).run([x]), (want, want[::2, ::3]), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_windows_larger_than_the_image(rng: np.random.Generator, boundary: str) -> None:
    g = sw.Graph()
    p = g.placeholder(("n",))
    weights = rng.uniform(-1, 1, 9).astype(np.float32)
    exe = g.compile([g.stencil(p, weights, padding="same", boundary=boundary, constant=CONSTANT)])
    for n in (1, 2, 3, 4, 8):
        x = rng.uniform(-1, 1, n).astype(np.float32)
        np.testing.assert_allclose(exe.run([x])[0], oracle(x, weights, "sum", boundary), rtol=1e-5, atol=1e-5)


def test_weights_that_are_inputs(rng: np.random.Generator) -> None:
    g = sw.Graph()
    p, w = g.placeholder((None, None)), g.placeholder((None, None))
    padding = tuple((k, k) for k in (1, 2))
    exe = g.compile([g.stencil(p, w, padding=padding, boundary=b, constant=CONSTANT) for b in BOUNDARIES])
    x, weights = rng.uniform(-1, 1, (6, 7)).astype(np.float32), rng.uniform(-1, 1, (3, 5)).astype(np.float32)
    for got, boundary in zip(exe.run([x, weights]), BOUNDARIES, strict=True):
        np.testing.assert_allclose(got, oracle(x, weights, "sum", boundary), rtol=1e-5, atol=1e-5, err_msg=boundary)


def test_leading_dims_are_batch(rng: np.random.Generator) -> None:
    x, weights = rng.uniform(-1, 1, (3, 2, 6, 5)).astype(np.float32), rng.uniform(-1, 1, (3, 3)).astype(np.float32)
    g = sw.Graph()
    p = g.placeholder(("a", "b", "h", "w"))
    (got,) = g.compile([g.stencil(p, weights, padding="same", boundary="reflect")]).run([x])
    want = [[oracle(image, weights, "sum", "reflect") for image in images] for images in x]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "boundary, known",
    [*((b, k) for b in ("reflect", "symmetric", "clamp", "constant") for k in (True, False)), ("periodic", True)],
)
def test_two_stencils_with_tanh_between_are_one_kernel(
    rng: np.random.Generator, boundary: str, rank: int, known: bool
) -> None:
    shape, window = ((70,), (20, 37), (16, 16, 16))[rank - 1], (3,) * rank
    first, second = (rng.uniform(-1, 1, window).astype(np.float32) for _ in range(2))
    g = sw.Graph()
    p = g.placeholder(shape if known else (None,) * rank)
    options: dict[str, Any] = {"padding": "same", "boundary": boundary, "constant": CONSTANT}
    twice = g.stencil(g.tanh(g.stencil(p, first, **options)), second, **options)
    exe = g.compile([twice])
    assert exe.report().startswith("1 kernels\n"), exe.report()
    for size in (shape,) if known else (shape, (4,) * rank, (1, 2, 33)[:rank]):
        x = rng.uniform(-1, 1, size).astype(np.float32)
        want = oracle(np.tanh(oracle(x, first, "sum", boundary)), second, "sum", boundary)
        np.testing.assert_allclose(exe.run([x])[0], want, rtol=1e-4, atol=1e-4)


def test_a_chain_of_three_reductions(rng: np.random.Generator) -> None:
    """Opening, then a gradient of the image: different reductions in one chain."""
    g = sw.Graph()
    p = g.placeholder(("h", "w"))
    ones = np.ones((3, 3), np.float32)
    options: dict[str, Any] = {"padding": "same", "boundary": "symmetric"}
    opened = g.stencil(g.stencil(p, ones, reduction="min", **options), ones, reduction="max", **options)
    sobel = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], np.float32)
    exe = g.compile([g.stencil(opened, sobel, **options)])
    filters: list[Callable[..., Any]] = [ndimage.minimum_filter, ndimage.maximum_filter]
    for shape in ((24, 41), (3, 3), (1, 5)):
        x = rng.uniform(-1, 1, shape).astype(np.float32)
        want: Any = x
        for apply in filters:
            want = apply(want, size=3, mode="reflect")
        want = ndimage.correlate(want, sobel, mode="reflect")
        np.testing.assert_allclose(exe.run([x])[0], want, rtol=1e-5, atol=1e-5)
