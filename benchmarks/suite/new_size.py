"""The first run at a length not seen before, of a small network: ours and dynamic torch.compile keep their code."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

import stitchwork as sw
from harness.peers import numpy_arrays, torch_cpu
from harness.spec import OURS, Benchmark, Contender, Prepared, Reach

_WIDTH, _HIDDEN = 64, 128
_FIRST = 100  # length of the first run; each run is one longer than the one before
_LONGEST = 400


def inputs() -> list[Any]:
    """Rows, of which a run takes the first n, and two matrices."""
    random = np.random.default_rng(0)
    sizes = ((_LONGEST, _WIDTH), (_WIDTH, _HIDDEN), (_HIDDEN, _WIDTH))
    return [random.standard_normal(s, np.float32) / 8 for s in sizes]


def expected(given: list[Any]) -> list[Any]:
    """Of the first run, in float64."""
    x, v, w = (a.astype(np.float64) for a in given)
    return [np.tanh(x[:_FIRST] @ v) @ w]


def _length(k: int) -> int:
    assert _FIRST + k <= _LONGEST, "more runs than new lengths"
    return _FIRST + k


def ours(given: list[Any]) -> Prepared:
    """Stitchwork: one executable for all lengths."""
    rows, v, w = given
    g = sw.Graph()
    x = g.placeholder(("n", _WIDTH))
    executable = g.compile([g.matmul(g.tanh(g.matmul(x, v)), w)])
    return Prepared(
        lambda k: executable.run([rows[: _length(k)]]),
        numpy_arrays,
        lambda: {"compiles after the first": executable.compile_count - 1},
    )


def with_jax(given: list[Any]) -> Prepared:
    """jax.jit, which compiles for every length."""
    jax = import_module("jax")
    v, w = (jax.device_put(a) for a in given[1:])
    call = jax.jit(lambda x: jax.numpy.tanh(x @ v) @ w)
    return Prepared(
        lambda k: jax.block_until_ready(call(given[0][: _length(k)])),
        numpy_arrays,
        lambda: {"compiles after the first": call._cache_size() - 1},  # the public API does not tell
    )


def _with_torch(given: list[Any], compile_it: bool) -> Prepared:
    torch = torch_cpu()
    rows, v, w = (torch.from_numpy(a) for a in given)

    def network(x: Any) -> Any:
        return torch.tanh(x @ v) @ w

    call = torch.compile(network, dynamic=True) if compile_it else network
    return Prepared(lambda k: call(rows[: _length(k)]), numpy_arrays)


def with_torch(given: list[Any]) -> Prepared:
    """PyTorch, eager."""
    return _with_torch(given, compile_it=False)


def with_torch_compile(given: list[Any]) -> Prepared:
    """torch.compile, told that sizes change."""
    return _with_torch(given, compile_it=True)


BENCHMARKS = [
    Benchmark(
        "new-size",
        f"tanh(x @ v) @ w, x: n x {_WIDTH}, v: {_WIDTH} x {_HIDDEN}; every run at a length n never met before",
        inputs,
        (
            Contender(OURS, ours),
            Contender("JAX", with_jax, ("jax",)),
            Contender("PyTorch, eager", with_torch, ("torch",)),
            Contender("torch.compile, dynamic", with_torch_compile, ("torch",)),
        ),
        (Reach("at most 2 ms, nothing compiled", seconds=2e-3),),
        expected,
        rounds=5,
        runs=20,
    )
]
