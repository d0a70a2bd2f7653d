"""Channels first or last: the same numbers, and transposes only where data enters and leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stitchwork as sw


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.uniform(-0.5, 0.5, shape).astype(np.float32)


def permutes(exe: sw.Executable) -> int:
    return sum("permute" in line for line in exe.report().splitlines() if not line.startswith("note"))


def network(g: sw.Graph, x: sw.Tensor, layout: str, w: list[np.ndarray]) -> sw.Tensor:
    """Convolutions, bias, normalization, a residual and pooling; per-channel parameters fit the layout."""
    first = layout == "NCHW"

    def channels(p: np.ndarray) -> np.ndarray:
        return p[:, None, None] if first else p

    options = {"data_layout": layout, "padding": "same"}
    y = g.relu(g.conv2d(x, w[0], **options) + channels(w[1]))
    z = g.conv2d(y, w[2], **options) * channels(w[3]) + channels(w[1])
    z = g.relu(z + y)
    pooled = g.max_pooling2d(z, 2, strides=2, data_layout=layout)
    return g.mean(g.conv2d(pooled, w[2], **options), (2, 3) if first else (1, 2))


def test_channels_first_equals_channels_last(rng: np.random.Generator) -> None:
    w = [weights(rng, 3, 3, 3, 8), weights(rng, 8), weights(rng, 3, 3, 8, 8), weights(rng, 8)]
    g = sw.Graph()
    x = g.placeholder(("n", 3, "h", "w"), name="x")
    last = g.placeholder(("n", "h", "w", 3), name="last")
    one, two = g.compile([network(g, x, "NCHW", w)]), g.compile([network(g, last, "NHWC", w)])
    for shape in ((1, 3, 8, 8), (2, 3, 7, 10)):
        data = rng.uniform(-1, 1, shape).astype(np.float32)
        want = two.run([data.transpose(0, 2, 3, 1)])[0]
        np.testing.assert_allclose(one.run([data])[0], want, rtol=1e-4, atol=1e-5)
    assert permutes(one) <= 1, one.report()  # where the data enters
    assert permutes(two) == 0


def test_transposes_that_meet_cancel(rng: np.random.Generator) -> None:
    g = sw.Graph()
    x = g.placeholder(("a", "b", "c"), name="x")
    there = g.permute(x, (2, 0, 1))
    exe = g.compile([g.permute(g.tanh(there) + 1.0, (1, 2, 0))])
    assert permutes(exe) == 0, exe.report()
    data = rng.uniform(-1, 1, (3, 4, 5)).astype(np.float32)
    np.testing.assert_allclose(exe.run([data])[0], np.tanh(data) + 1, rtol=1e-5)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (0, 2, 3, 1), (0, 3, 1, 2), (2, 3, 0, 1)])
def test_every_order_moves_every_element(order: Any, rng: np.random.Generator) -> None:
    """Alone, before a reduction, after a pointwise op, and with a broadcast operand."""
    g = sw.Graph()
    x, b = g.placeholder((None,) * 4, name="x"), g.placeholder((None,), name="b")
    y = g.permute(g.exp(x), order)
    exe = g.compile([g.permute(x, order), y, g.sum(y, 1), g.softmax(y + b), g.argmax(g.permute(x, order), 2)])
    for shape in ((2, 3, 4, 5), (1, 17, 1, 33), (2, 0, 3, 1)):
        data = rng.uniform(-1, 1, shape).astype(np.float32)
        moved = data.transpose(order)
        row = rng.uniform(-1, 1, moved.shape[-1]).astype(np.float32)
        e = np.exp(moved)
        soft = np.exp(e + row) / np.exp(e + row).sum(-1, keepdims=True)
        got = exe.run([data, row])
        for r, want in zip(got[:4], [moved, e, e.sum(1), soft], strict=True):
            np.testing.assert_allclose(r, want, rtol=1e-4, atol=1e-6)
        if moved.shape[2]:
            np.testing.assert_array_equal(got[4], moved.argmax(2))


def test_memory_orders_of_inputs(rng: np.random.Generator) -> None:
    """An array is its elements, however they lie in memory."""
    g = sw.Graph()
    x = g.placeholder((None, None, None), name="x")
    exe = g.compile([g.cumsum(x, 1), x * 2])
    data = rng.uniform(-1, 1, (4, 6, 5)).astype(np.float32)
    views = [
        data,
        np.asfortranarray(data),
        data[::-1, ::2],
        data.transpose(1, 2, 0),
        data[..., None, :].swapaxes(2, 3)[..., 0],
    ]
    for view in [*views, np.broadcast_to(data[:1], data.shape), data[:, 1:1], data.astype(">f4")]:
        total, double = exe.run([view])
        np.testing.assert_allclose(total, np.cumsum(view, 1), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(double, view * 2)
        assert double.numpy().flags.c_contiguous
