"""A loop of 1000 short iterations whose condition depends on the data: what deciding the next iteration costs."""

from __future__ import annotations

from typing import Any

import numpy as np

import stitchwork as sw
from harness.peers import compiled, jax_prepared, numpy_arrays, torch_cpu
from harness.spec import OURS, Benchmark, Contender, Prepared, Reach

_FACTOR = 1.01
_LIMIT = _FACTOR**999.5  # half an iteration away from both neighbours, far more than rounding can move it


def inputs() -> list[Any]:
    """1024 ones."""
    return [np.ones(1024, np.float32)]


def expected(given: list[Any]) -> list[Any]:
    """1000 multiplications in float32, as the loop does them."""
    x = given[0].copy()
    for _ in range(1000):
        x = x * np.float32(_FACTOR)
    return [x]


def ours(given: list[Any]) -> Prepared:
    """Stitchwork."""
    g = sw.Graph()
    x = g.placeholder((1024,))
    (y,) = g.while_loop([x], before=lambda v: (g.less(v[0], _LIMIT), [v]), after=lambda v: [v * _FACTOR])
    return compiled([y], g, given)


def with_jax(given: list[Any]) -> Prepared:
    """lax.while_loop under jit."""

    def make(jax: Any) -> Any:
        return lambda x: jax.lax.while_loop(lambda v: v[0] < _LIMIT, lambda v: v * _FACTOR, x)

    return jax_prepared(make, given)


def with_torch(given: list[Any]) -> Prepared:
    """A Python loop over PyTorch tensors."""
    torch = torch_cpu()
    x = torch.from_numpy(given[0])

    def step(_: int) -> Any:
        v = x
        while v[0] < _LIMIT:
            v = v * _FACTOR
        return v

    return Prepared(step, numpy_arrays)


BENCHMARKS = [
    Benchmark(
        "while-loop",
        "1000 iterations of v = v * 1.01 while v[0] < limit, 1024 floats",
        inputs,
        (
            Contender(OURS, ours),
            Contender("JAX", with_jax, ("jax",)),
            Contender("PyTorch, eager", with_torch, ("torch",)),
        ),
        (Reach("at most 0.3 ms", seconds=0.3e-3),),
        expected,
    )
]
