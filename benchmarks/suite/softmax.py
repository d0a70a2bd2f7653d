"""Softmax over rows: three passes over a row that one kernel keeps close."""

from __future__ import annotations

from typing import Any

import numpy as np

import stitchwork as sw
from harness.peers import compiled, jax_prepared, torch_prepared
from harness.spec import OURS, Benchmark, Contender, Prepared, Reach

SHAPE = (512, 1000)


def inputs() -> list[Any]:
    """A matrix."""
    return [np.random.default_rng(0).standard_normal(SHAPE, np.float32)]


def expected(given: list[Any]) -> list[Any]:
    """In float64."""
    e = np.exp(given[0].astype(np.float64))
    return [e / e.sum(axis=-1, keepdims=True)]


def ours(given: list[Any]) -> Prepared:
    """Stitchwork."""
    g = sw.Graph()
    return compiled([g.softmax(g.placeholder(SHAPE), axis=-1)], g, given)


def with_torch(given: list[Any]) -> Prepared:
    """PyTorch, eager: one hand-written kernel."""
    return torch_prepared(lambda torch: lambda x: torch.softmax(x, -1), given, compile_it=False)


def with_torch_compile(given: list[Any]) -> Prepared:
    """torch.compile."""
    return torch_prepared(lambda torch: lambda x: torch.softmax(x, -1), given, compile_it=True)


def with_jax(given: list[Any]) -> Prepared:
    """jax.jit."""
    return jax_prepared(lambda jax: lambda x: jax.nn.softmax(x, axis=-1), given)


BENCHMARKS = [
    Benchmark(
        "softmax",
        f"softmax over the rows of {SHAPE[0]} x {SHAPE[1]}, f32",
        inputs,
        (
            Contender(OURS, ours),
            Contender("PyTorch, eager", with_torch, ("torch",)),
            Contender("torch.compile", with_torch_compile, ("torch",)),
            Contender("JAX", with_jax, ("jax",)),
        ),
        (Reach("as fast as PyTorch", times=1.0, peers=("PyTorch, eager",)),),
        expected,
        runs=50,
        repeats=5,
    )
]
