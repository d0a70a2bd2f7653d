"""Programs for hostile inputs, each beside its NumPy definition: shapes, layouts and contents may be anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import stitchwork as sw

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Program:
    """What to build, what NumPy says, and the inputs: a dtype and the names of the sizes of each."""

    build: Callable[..., list[sw.Tensor]]
    numpy: Callable[..., list[Array]]
    inputs: tuple[tuple[str, str], ...]
    positive: str = ""  # sizes that must not be 0
    tolerance: float = 1e-5

    @cache  # noqa: B019 - programs live as long as the module
    def executable(self) -> sw.Executable:
        """Compiled for all sizes, once."""
        g = sw.Graph()
        tensors = [g.placeholder(dims.split(), dtype, f"x{k}") for k, (dtype, dims) in enumerate(self.inputs)]
        return g.compile(self.build(g, *tensors), feeds=tensors)


def sliding(x: Array, k: int) -> Array:
    """Windows of k by k with reflected borders over the last two dims."""
    padded = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(k // 2, k // 2)] * 2, "reflect")
    return np.lib.stride_tricks.sliding_window_view(padded, (k, k), (-2, -1))


KERNEL = np.arange(1, 10, dtype=np.float32).reshape(3, 3) / 10
FILTERS = np.linspace(-1, 1, 3 * 3 * 2 * 4, dtype=np.float32).reshape(3, 3, 2, 4)


def conv(x: Array) -> Array:
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    return np.einsum("bhwcij,ijco->bhwo", windows, FILTERS)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
    return e / e.sum(-1, keepdims=True)


def gathered(x: Array, i: Array) -> Array:
    """x[i[0], i[1]], 0 where that is outside; negative indices count from the end."""
    out = np.zeros(len(i), x.dtype)
    for k, vector in enumerate(i.tolist()):
        at = [v + n if v < 0 else v for v, n in zip(vector, x.shape, strict=True)]
        if all(0 <= a < n for a, n in zip(at, x.shape, strict=True)):
            out[k] = x[tuple(at)]
    return out


def scattered(x: Array, i: Array) -> Array:
    """Sums of x by position i in a result of 4; what is outside is left out."""
    out = np.zeros(4, x.dtype)
    for value, at in zip(x, i.tolist(), strict=True):
        at = at + 4 if at < 0 else at
        if 0 <= at < 4:
            out[at] += value
    return out


def build_flow(g: sw.Graph, x: sw.Tensor, n: sw.Tensor) -> list[sw.Tensor]:
    def body(i: sw.Tensor, v: sw.Tensor) -> sw.Tensor:
        return g.if_else(g.equal(i % 2, 0), lambda: v + x, lambda: v * 0.5)

    looped = g.for_loop(n, x, body)
    chosen = g.if_else(g.max(x) > 0.0, lambda: looped, lambda: -looped)
    halved = g.while_loop(x, lambda v: (g.max(g.abs(v)) > 1.0, v), lambda v: g.clip(v * 0.5, -100.0, 100.0))
    return [chosen, halved]


def flow(x: Array, n: Array) -> list[Array]:
    v = x
    for i in range(int(n)):
        v = v + x if i % 2 == 0 else v * np.float32(0.5)
    chosen = v if np.fmax.reduce(x, initial=-np.inf) > 0 else -v
    w = x
    while np.fmax.reduce(np.abs(w), initial=-np.inf) > 1:  # NaN is skipped, as by `max`
        w = np.clip(w * np.float32(0.5), -100, 100)
    return [chosen, w]


PROGRAMS = {
    "pointwise": Program(
        lambda g, x, y: [g.exp(x) * y + g.where(x < y, x, -y), g.maximum_nan_propagation(x, y)],
        lambda x, y: [np.exp(x) * y + np.where(x < y, x, -y), np.maximum(x, y)],
        (("float32", "n m"), ("float32", "m")),
    ),
    "broadcast": Program(
        lambda g, x, y: [x + y, g.sqrt(g.abs(x)) - y],
        lambda x, y: [x + y, np.sqrt(np.abs(x)) - y],
        (("float32", "n p"), ("float32", "q n p")),
    ),
    "reductions": Program(
        lambda g, x: [g.sum(x), g.mean(x, 0), g.reduction_maximum_propagate_nan(x, 1), g.sum(x, 0) - g.sum(x * x, 0)],
        lambda x: [x.sum(), x.mean(0), x.max(1, initial=-np.inf), x.sum(0) - (x * x).sum(0)],
        (("float32", "n m"),),
        tolerance=1e-4,
    ),
    "softmax": Program(lambda g, x: [g.softmax(x)], lambda x: [softmax(x)], (("float32", "n m"),)),
    "matmul": Program(
        lambda g, x, y: [g.relu(x @ y)],
        lambda x, y: [np.where(np.isnan(x @ y), np.nan, np.maximum(x @ y, 0))],
        (("float32", "n k"), ("float32", "k m")),
        tolerance=1e-4,
    ),
    "batched matmul": Program(
        lambda g, x, y: [x @ y], lambda x, y: [x @ y], (("float64", "b n k"), ("float64", "b k m")), tolerance=1e-10
    ),
    "convolution": Program(
        lambda g, x: [g.conv2d(g.concat([x[..., None], x[..., None]], axis=-1), FILTERS, padding="same")],
        lambda x: [conv(np.stack([x, x], -1))],
        (("float32", "b h w"),),
        positive="h w",
        tolerance=1e-4,
    ),
    "stencil": Program(
        lambda g, x: [g.stencil(g.tanh(g.stencil(x, KERNEL, padding=1, boundary="reflect")), KERNEL, padding=1)],
        lambda x: [
            (
                np.lib.stride_tricks.sliding_window_view(
                    np.pad(np.tanh((sliding(x, 3) * KERNEL).sum((-2, -1))), ((0, 0), (1, 1), (1, 1))), (3, 3), (-2, -1)
                )
                * KERNEL
            ).sum((-2, -1))
        ],
        (("float32", "b h w"),),
        positive="h w",
        tolerance=1e-4,
    ),
    "gather": Program(
        lambda g, x, i: [g.gather_nd(x, g.stack([i, i // 2], axis=1))],
        lambda x, i: [gathered(x, np.stack([i, i // 2], 1))],
        (("float32", "n m"), ("int64", "k")),
    ),
    "scatter": Program(
        lambda g, x, i: [g.scatter(x, i, shape=(4,), axis=0)],
        lambda x, i: [scattered(x, i)],
        (("float32", "k"), ("int32", "k")),
    ),
    "concat": Program(
        lambda g, x, y: [g.concat([x, y, x], axis=0) * 2, g.concat([x, y], axis=0)[1:-1:2]],
        lambda x, y: [np.concatenate([x, y, x]) * 2, np.concatenate([x, y])[1:-1:2]],
        (("float32", "n m"), ("float32", "k m")),
    ),
    "reorder": Program(
        lambda g, x: [g.permute(x, (2, 0, 1)), g.flip(x, 1), g.reshape(x, (-1,)), g.cumsum(x, 0)],
        lambda x: [x.transpose(2, 0, 1), x[:, ::-1], x.reshape(-1), np.cumsum(x, 0)],
        (("float32", "a b c"),),
    ),
    "sort": Program(lambda g, x: [g.sort(x, 1)], lambda x: [np.sort(x, 1)], (("float32", "n m"),)),
    "integers": Program(
        lambda g, x, y: [x * y + 1, x - y, g.maximum(x, y), g.sum(g.cast(x, sw.int64)), x & y],
        lambda x, y: [x * y + np.int8(1), x - y, np.maximum(x, y), x.astype(np.int64).sum(), x & y],
        (("int8", "n m"), ("int8", "n m")),
    ),
    "control flow": Program(build_flow, flow, (("float32", "n"), ("int32", ""))),
    "scalar": Program(lambda g, x, y: [x * y + 1.0], lambda x, y: [x * y + 1], (("float32", ""), ("float32", "n"))),
}
