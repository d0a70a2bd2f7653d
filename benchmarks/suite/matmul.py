"""A square matmul of float32, both operands given at run time, so that nothing is packed ahead."""

from __future__ import annotations

from typing import Any

import numpy as np

import stitchwork as sw
from harness.peers import compiled, numpy_arrays, torch_prepared
from harness.spec import OURS, Benchmark, Contender, Prepared, Reach

_SIZE = 1024


def inputs() -> list[Any]:
    """Two matrices."""
    random = np.random.default_rng(0)
    return [random.standard_normal((_SIZE, _SIZE), np.float32) for _ in range(2)]


def expected(given: list[Any]) -> list[Any]:
    """Their product, computed in float64."""
    return [given[0].astype(np.float64) @ given[1].astype(np.float64)]


def ours(given: list[Any]) -> Prepared:
    """Stitchwork."""
    g = sw.Graph()
    a, b = (g.placeholder((_SIZE, _SIZE)) for _ in range(2))
    return compiled([g.matmul(a, b)], g, given)


def with_numpy(given: list[Any]) -> Prepared:
    """NumPy; the BLAS it comes with does the work."""
    a, b = given
    return Prepared(lambda _: a @ b, numpy_arrays)


def with_torch(given: list[Any]) -> Prepared:
    """PyTorch, eager; a compiled one calls the same routine."""
    return torch_prepared(lambda torch: torch.matmul, given, compile_it=False)


BENCHMARKS = [
    Benchmark(
        "matmul",
        f"matmul {_SIZE} x {_SIZE} x {_SIZE}, f32",
        inputs,
        (
            Contender(OURS, ours),
            Contender("PyTorch", with_torch, ("torch",)),
            Contender("NumPy", with_numpy),
        ),
        (
            Reach("as fast as PyTorch", times=1.0, peers=("PyTorch",)),
            Reach("as fast as NumPy", times=1.0, peers=("NumPy",)),
        ),
        expected,
    )
]
