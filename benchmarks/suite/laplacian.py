"""The 5-point Laplacian of an image, reflected at its border. Bound by memory: a copy of the image is the measure."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np

import stitchwork as sw
from harness.peers import compiled, jax_prepared, numpy_arrays, threads, torch_prepared
from harness.spec import OURS, Benchmark, Contender, Prepared, Reach

_SIZE = 2048
WEIGHTS = [[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]]


def inputs() -> list[Any]:
    """An image."""
    return [np.random.default_rng(0).standard_normal((_SIZE, _SIZE), np.float32)]


def numpy_laplacian(x: Any) -> Any:
    """The definition, in the dtype of x."""
    p = np.pad(x, 1, mode="reflect")
    return p[1:-1, :-2] + p[1:-1, 2:] + p[:-2, 1:-1] + p[2:, 1:-1] - 4 * x


def expected(given: list[Any]) -> list[Any]:
    """Computed in float64."""
    return [numpy_laplacian(given[0].astype(np.float64))]


def our_laplacian(g: sw.Graph, x: Any) -> Any:
    """As a stencil of a graph."""
    return g.stencil(x, WEIGHTS, padding="same", boundary="reflect")


def torch_laplacian(torch: Any, x: Any) -> Any:
    """As slices of a padded tensor, which torch.compile fuses."""
    p = torch.nn.functional.pad(x[None, None], (1, 1, 1, 1), mode="reflect")[0, 0]
    return p[1:-1, :-2] + p[1:-1, 2:] + p[:-2, 1:-1] + p[2:, 1:-1] - 4 * p[1:-1, 1:-1]


def jax_laplacian(jax: Any, x: Any) -> Any:
    """As slices of a padded array, which XLA fuses."""
    p = jax.numpy.pad(x, 1, mode="reflect")
    return p[1:-1, :-2] + p[1:-1, 2:] + p[:-2, 1:-1] + p[2:, 1:-1] - 4 * p[1:-1, 1:-1]


def ours(given: list[Any]) -> Prepared:
    """Stitchwork."""
    g = sw.Graph()
    return compiled([our_laplacian(g, g.placeholder((_SIZE, _SIZE)))], g, given)


def copy(given: list[Any]) -> Prepared:
    """np.copyto into an array that is there: one thread, nothing allocated. Its result is the image, so the right
    answer is put into its place for the comparison."""
    x = given[0]
    into = np.empty_like(x)
    return Prepared(lambda _: np.copyto(into, x), lambda _: [numpy_laplacian(into)])


def copy_threads(given: list[Any]) -> Prepared:
    """The same, rows divided among the threads."""
    x = given[0]
    into = np.empty_like(x)
    parts = list(zip(np.array_split(into, threads()), np.array_split(x, threads()), strict=True))
    pool = ThreadPoolExecutor(threads())
    return Prepared(lambda _: list(pool.map(lambda p: np.copyto(*p), parts)), lambda _: [numpy_laplacian(into)])


def with_numba(given: list[Any]) -> Prepared:
    """Loops as a person would write them for Numba, parallel over rows, into an array that is there."""
    numba = import_module("numba")
    prange = numba.prange

    @numba.njit(parallel=True)
    def laplacian(x: Any, y: Any) -> None:
        height, width = x.shape
        for i in prange(height):
            up = i - 1 if i > 0 else 1
            down = i + 1 if i < height - 1 else height - 2
            y[i, 0] = 2 * x[i, 1] + x[up, 0] + x[down, 0] - 4 * x[i, 0]
            for j in range(1, width - 1):
                y[i, j] = x[i, j - 1] + x[i, j + 1] + x[up, j] + x[down, j] - 4 * x[i, j]
            end = width - 1
            y[i, end] = 2 * x[i, end - 1] + x[up, end] + x[down, end] - 4 * x[i, end]

    into = np.empty_like(given[0])
    return Prepared(lambda _: laplacian(given[0], into), lambda _: [into])


def with_scipy(given: list[Any]) -> Prepared:
    """scipy.ndimage, one thread."""
    ndimage = import_module("scipy.ndimage")
    weights = np.array(WEIGHTS, np.float32)
    return Prepared(lambda _: ndimage.correlate(given[0], weights, mode="mirror"), numpy_arrays)


def with_torch_compile(given: list[Any]) -> Prepared:
    """torch.compile."""
    return torch_prepared(lambda torch: lambda x: torch_laplacian(torch, x), given, compile_it=True)


def with_jax(given: list[Any]) -> Prepared:
    """jax.jit."""
    return jax_prepared(lambda jax: lambda x: jax_laplacian(jax, x), given)


BENCHMARKS = [
    Benchmark(
        "laplacian",
        f"5-point Laplacian of {_SIZE} x {_SIZE}, f32, reflected border",
        inputs,
        (
            Contender(OURS, ours),
            Contender("copy, 1 thread", copy),
            Contender("copy, all threads", copy_threads),
            Contender("Numba", with_numba, ("numba",)),
            Contender("SciPy", with_scipy, ("scipy",)),
            Contender("torch.compile", with_torch_compile, ("torch",)),
            Contender("JAX", with_jax, ("jax",)),
        ),
        (Reach("at most 2.5 times a copy (np.copyto, 1 thread)", times=2.5, peers=("copy, 1 thread",)),),
        expected,
    )
]
