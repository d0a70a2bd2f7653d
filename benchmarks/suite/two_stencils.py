"""Filters with two stencils and a tone curve between them: one kernel should read and write each pixel once."""

from __future__ import annotations

from typing import Any

import numpy as np

import stitchwork as sw
from harness.peers import compiled, jax_prepared, torch_prepared
from harness.spec import OURS, Benchmark, Contender, Prepared, Reach
from suite.laplacian import inputs, jax_laplacian, numpy_laplacian, our_laplacian, torch_laplacian


def expected_plain(given: list[Any]) -> list[Any]:
    """laplacian(tanh(laplacian(x))), in float64."""
    return [numpy_laplacian(np.tanh(numpy_laplacian(given[0].astype(np.float64))))]


def expected_sharpen(given: list[Any]) -> list[Any]:
    """y = x + 0.1 tanh(laplacian(x)); y + relu(laplacian(y)), in float64."""
    x = given[0].astype(np.float64)
    y = np.tanh(numpy_laplacian(x)) * 0.1 + x
    return [np.maximum(numpy_laplacian(y), 0) + y]


def our_plain(given: list[Any]) -> Prepared:
    """Stitchwork."""
    g = sw.Graph()
    x = g.placeholder(given[0].shape)
    return compiled([our_laplacian(g, g.tanh(our_laplacian(g, x)))], g, given)


def our_sharpen(given: list[Any]) -> Prepared:
    """Stitchwork."""
    g = sw.Graph()
    x = g.placeholder(given[0].shape)
    y = g.tanh(our_laplacian(g, x)) * 0.1 + x
    return compiled([g.relu(our_laplacian(g, y)) + y], g, given)


def _torch_plain(torch: Any) -> Any:
    return lambda x: torch_laplacian(torch, torch.tanh(torch_laplacian(torch, x)))


def _torch_sharpen(torch: Any) -> Any:
    def sharpen(x: Any) -> Any:
        y = torch.tanh(torch_laplacian(torch, x)) * 0.1 + x
        return torch.relu(torch_laplacian(torch, y)) + y

    return sharpen


def _jax_plain(jax: Any) -> Any:
    return lambda x: jax_laplacian(jax, jax.numpy.tanh(jax_laplacian(jax, x)))


def _jax_sharpen(jax: Any) -> Any:
    def sharpen(x: Any) -> Any:
        y = jax.numpy.tanh(jax_laplacian(jax, x)) * 0.1 + x
        return jax.nn.relu(jax_laplacian(jax, y)) + y

    return sharpen


def torch_plain(given: list[Any]) -> Prepared:
    """torch.compile."""
    return torch_prepared(_torch_plain, given, compile_it=True)


def torch_sharpen(given: list[Any]) -> Prepared:
    """torch.compile."""
    return torch_prepared(_torch_sharpen, given, compile_it=True)


def jax_plain(given: list[Any]) -> Prepared:
    """jax.jit."""
    return jax_prepared(_jax_plain, given)


def jax_sharpen(given: list[Any]) -> Prepared:
    """jax.jit."""
    return jax_prepared(_jax_sharpen, given)


_GOALS = (Reach("8 times as fast as the best peer", times=1 / 8, peers=("torch.compile", "JAX")),)

BENCHMARKS = [
    Benchmark(
        "two-stencils",
        "laplacian(tanh(laplacian(x))) of 2048 x 2048, f32",
        inputs,
        (
            Contender(OURS, our_plain),
            Contender("torch.compile", torch_plain, ("torch",)),
            Contender("JAX", jax_plain, ("jax",)),
        ),
        _GOALS,
        expected_plain,
    ),
    Benchmark(
        "sharpen",
        "y = x + 0.1 tanh(laplacian(x)); y + relu(laplacian(y)) of 2048 x 2048, f32",
        inputs,
        (
            Contender(OURS, our_sharpen),
            Contender("torch.compile", torch_sharpen, ("torch",)),
            Contender("JAX", jax_sharpen, ("jax",)),
        ),
        _GOALS,
        expected_sharpen,
    ),
]
