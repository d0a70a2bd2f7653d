"""A program of one op on 16 numbers: what a call costs."""

from __future__ import annotations

from typing import Any

import numpy as np

import stitchwork as sw
from harness.peers import compiled, jax_prepared, numpy_arrays, torch_prepared
from harness.spec import OURS, Benchmark, Contender, Prepared, Reach


def inputs() -> list[Any]:
    """16 numbers."""
    return [np.arange(16, dtype=np.float32)]


def expected(given: list[Any]) -> list[Any]:
    """x + 1."""
    return [given[0] + 1]


def ours(given: list[Any]) -> Prepared:
    """Stitchwork, sizes known at compile time."""
    g = sw.Graph()
    return compiled([g.placeholder((16,)) + 1.0], g, given)


def ours_symbolic(given: list[Any]) -> Prepared:
    """Stitchwork, the size unknown at compile time."""
    g = sw.Graph()
    return compiled([g.placeholder(("n",)) + 1.0], g, given)


def with_numpy(given: list[Any]) -> Prepared:
    """NumPy."""
    return Prepared(lambda _: given[0] + 1.0, numpy_arrays)


def with_torch(given: list[Any]) -> Prepared:
    """PyTorch, eager."""
    return torch_prepared(lambda torch: lambda x: x + 1.0, given, compile_it=False)


def with_torch_compile(given: list[Any]) -> Prepared:
    """torch.compile."""
    return torch_prepared(lambda torch: lambda x: x + 1.0, given, compile_it=True)


def with_jax(given: list[Any]) -> Prepared:
    """jax.jit."""
    return jax_prepared(lambda jax: lambda x: x + 1.0, given)


BENCHMARKS = [
    Benchmark(
        "one-op",
        "a call of x + 1 on 16 floats",
        inputs,
        (
            Contender(OURS, ours),
            Contender("stitchwork, size unknown", ours_symbolic),
            Contender("JAX", with_jax, ("jax",)),
            Contender("PyTorch, eager", with_torch, ("torch",)),
            Contender("torch.compile", with_torch_compile, ("torch",)),
            Contender("NumPy", with_numpy),
        ),
        (Reach("at most 10 µs", seconds=10e-6),),
        expected,
        repeats=100,
    )
]
