"""Layer normalization of rows, with scale and shift, written as a person writes it for Stitchwork and JAX."""

from __future__ import annotations

from typing import Any

import numpy as np

import stitchwork as sw
from harness.peers import compiled, jax_prepared, torch_prepared
from harness.spec import OURS, Benchmark, Contender, Prepared, Reach
from suite.softmax import SHAPE

_EPSILON = 1e-5


def inputs() -> list[Any]:
    """A matrix, the scale and the shift."""
    random = np.random.default_rng(0)
    return [random.standard_normal(s, np.float32) for s in (SHAPE, SHAPE[1:], SHAPE[1:])]


def _normalized(x: Any, scale: Any, shift: Any, mean: Any, sqrt: Any) -> Any:
    """The formula, for any library's functions."""
    d = x - mean(x)
    return d / sqrt(mean(d * d) + _EPSILON) * scale + shift


def expected(given: list[Any]) -> list[Any]:
    """In float64."""
    x, scale, shift = (a.astype(np.float64) for a in given)
    return [_normalized(x, scale, shift, lambda a: np.mean(a, axis=-1, keepdims=True), np.sqrt)]


def ours(given: list[Any]) -> Prepared:
    """Stitchwork, from single ops: stitching them is its task."""
    g = sw.Graph()
    x, scale, shift = (g.placeholder(a.shape) for a in given)
    y = _normalized(x, scale, shift, lambda a: g.mean(a, axes=-1, keepdims=True), g.sqrt)
    return compiled([y], g, given)


def _torch_layer_norm(torch: Any) -> Any:
    return lambda x, scale, shift: torch.nn.functional.layer_norm(x, SHAPE[1:], scale, shift, _EPSILON)


def with_torch(given: list[Any]) -> Prepared:
    """PyTorch, eager: one hand-written kernel."""
    return torch_prepared(_torch_layer_norm, given, compile_it=False)


def with_torch_compile(given: list[Any]) -> Prepared:
    """torch.compile."""
    return torch_prepared(_torch_layer_norm, given, compile_it=True)


def with_jax(given: list[Any]) -> Prepared:
    """jax.jit."""

    def make(jax: Any) -> Any:
        jnp = jax.numpy

        def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
            return _normalized(x, scale, shift, lambda a: jnp.mean(a, axis=-1, keepdims=True), jnp.sqrt)

        return layer_norm

    return jax_prepared(make, given)


BENCHMARKS = [
    Benchmark(
        "layer-norm",
        f"layer normalization of the rows of {SHAPE[0]} x {SHAPE[1]}, f32",
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
