"""Runs that would end the process if something were unchecked; `test_bad_input.py` does them in processes of their own.

python tests/risky_runs.py NAME ...
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stitchwork as sw
from stitchwork.errors import ExecutionError, FeedError, StitchworkError

Array = np.ndarray[Any, Any]


def compute(build: Callable[..., Any], *arrays: Array) -> list[Array]:
    """Results of a graph of unknown sizes."""
    g = sw.Graph()
    tensors = [g.placeholder((None,) * a.ndim, a.dtype, f"x{k}") for k, a in enumerate(arrays)]
    made = build(g, *tensors)
    return [r.numpy() for r in g.compile(made, feeds=tensors).run(list(arrays))]


def refused(kind: type[StitchworkError], part: str, call: Callable[[], Any]) -> None:
    """The call raises `kind` with `part` in its message."""
    with pytest.raises(kind, match=re.escape(part)):
        call()


def integer_extremes() -> None:
    """Division by 0 and of the smallest number by -1 trap on many CPUs; shifts by more than the width are undefined."""
    for dtype in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint64):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        minus = -1 if low else high
        a = np.array([5, low, low, high, 0, 1, 7], dtype)
        b = np.array([0, minus, 0, minus, 0, low, 3], dtype)
        quotient, rest, power, left, right, magnitude = compute(
            lambda g, x, y: [x // y, x % y, g.power(x, y), x << y, x >> y, g.abs(x) + -x], a, b
        )
        assert quotient[-1] == 2 and rest[-1] == 1 and power[-1].item() == np.array(343).astype(dtype)
        assert left[-1].item() == np.array(56).astype(dtype) and right[-1] == 0
        assert magnitude.shape == a.shape
        if low:
            assert quotient[1] == low and rest[1] == 0  # wraps, as NumPy does


def float_extremes() -> None:
    """Conversions of what no integer holds are unspecified, never a fault; the rest is IEEE."""
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 3.99], np.float32)
    integers = (sw.int8, sw.uint8, sw.int32, sw.uint32, sw.int64, sw.uint64, sw.int4)
    for made in compute(lambda g, v: [g.cast(v, d) for d in integers], x):
        assert made[-1] == 3
    half, exp, log, power = compute(lambda g, v: [g.cast(v, sw.float16), g.exp(v), g.log(v), g.power(v, v)], x)
    np.testing.assert_array_equal(half, [np.nan, np.inf, -np.inf, np.inf, -np.inf, np.float16(3.99)])
    np.testing.assert_array_equal(exp[:5], [np.nan, np.inf, 0, np.inf, 0])
    np.testing.assert_array_equal(np.isnan(log), [True, False, True, False, True, False])
    assert np.isnan(power[0]) and power[1] == np.inf


def wild_indices() -> None:
    """Indices are data: whatever they are, reads and writes stay inside."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for dtype in (np.int32, np.int64):
        i = np.array([0, -1, 3, -4, np.iinfo(dtype).min, np.iinfo(dtype).max, 2], dtype)
        want = np.array([0, 2, None, None, None, None, 2], object)
        pairs = [(w, k) for k, w in enumerate(want)]
        rows, along, vectors, hot, scattered, updated, start = compute(
            lambda g, t, k: [
                g.gather(t, k, axis=0),
                g.take_along_axis(t, g.broadcast(g.reshape(k, (-1, 1)), (k.shape[0], 4)), axis=0),
                g.gather_nd(t, g.stack([k, k], axis=1)),
                g.one_hot(k, 3),
                g.scatter(g.cast(k * 0 + 1, sw.float32), k, shape=(3,), axis=0),
                g.scatter_nd_with_data(t, g.gather(t, k, axis=0), g.reshape(k, (-1, 1))),
                g.dynamic_slice(t, g.slice(k, (4,), (6,)), (2, 2)),
            ],
            x, i,
        )  # fmt: skip
        for w, k in pairs:
            np.testing.assert_array_equal(rows[k], 0 if w is None else x[w])
            np.testing.assert_array_equal(along[k], 0 if w is None else x[w])
            assert vectors[k] == (0 if w is None else x[w, w if i[k] >= 0 else 3])
        assert hot.sum() == 2 and scattered.tolist() == [1, 0, 2]
        assert updated.shape == x.shape and np.isfinite(updated).all()
        np.testing.assert_array_equal(start, x[0:2, 2:4])  # starts are clamped


def wild_grids() -> None:
    """Coordinates that are no numbers."""
    c = np.array([np.nan, np.inf, -np.inf, 1e30, 0, 0, 2, -5], np.float32).reshape(1, 2, 2, 2)
    (made,) = compute(lambda g, x, p: [g.sample_grid(x, p)], np.ones((1, 4, 4, 1), np.float32), c)
    assert made.shape == (1, 2, 2, 1)


def wild_loops() -> None:
    """Bounds at the ends of the integers; counts are exact where a subtraction would wrap."""
    for dtype in (np.int32, np.int64):
        g = sw.Graph()
        limits = [g.placeholder((), dtype) for _ in range(3)]
        lower, upper, step = limits
        count = g.for_loop(initial=np.int64(0), body=lambda i, n: n + 1, lower=lower, upper=upper, step=step)
        exe = g.compile([count], feeds=limits)
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        for lo, up, by in [
            (0, 10, 3), (10, 0, 1), (0, 10, 0), (0, 10, -1), (high - 5, high, 3),
            (high - 1, high, high), (low, low + 3, 1), (low, high, high // 2), (high, low, 1),
            (0, high, high // 4), (low, 0, high),
        ]:  # fmt: skip
            want = len(range(lo, up, by)) if by > 0 else 0
            assert exe.run([np.array(v, dtype) for v in (lo, up, by)])[0].item() == want, (lo, up, by)


def huge_claims() -> None:
    """Results, temporaries and copies that cannot exist are refused before anything is computed."""
    one = np.ones((1, 1), np.float32)
    for n in (2**25, 2**40, 2**62):
        refused(
            ExecutionError,
            "result `0` does not fit into memory",
            lambda n=n: compute(lambda g, x: [g.broadcast(x, (n, n))], one),
        )
    g = sw.Graph()
    x = g.placeholder(("n",), name="x")
    for n in (2**44, 2**61):
        wide = g.broadcast(g.reshape(x, (x.shape[0], 1)), (x.shape[0], n))
        exe = g.compile([g.sort(g.cumsum(wide, 1), 1)[0, 0]])
        refused(
            ExecutionError, "the temporaries do not fit into memory", lambda exe=exe: exe.run([np.ones(3, np.float32)])
        )
    claim = np.broadcast_to(np.float32(1), (2**25, 2**25))
    refused(ExecutionError, "a contiguous copy of input `x0`", lambda: compute(lambda g, x: [g.sum(x)], claim))
    refused(ExecutionError, "result `0`", lambda: compute(lambda g, x: [g.tile(x, (2**30, 2**30))], one))
    empty = np.zeros((2**31 + 5, 0, 2**20), np.float32)
    (made,) = compute(lambda g, x: [g.reduction_sum(x + 1, axes=(0, 1))[:3]], empty)
    np.testing.assert_array_equal(made, [0, 0, 0])


def past_2_31() -> None:
    """Offsets of more than 32 bits. The array is mostly pages that were never touched."""
    x = np.zeros(2**31 + 2**20 + 3, np.uint8)
    x[-1], x[2**31 + 5], x[2**31 - 1] = 7, 3, 2
    at = np.array([2**31 + 5, -1, 2**31 - 1, 0], np.int64)
    largest, picked, part, strided = compute(
        lambda g, v, i: [g.max(v), g.gather(v, i), v[2**31 + 4 : 2**31 + 7], v[:: 2**30]], x, at
    )
    assert largest == 7
    np.testing.assert_array_equal(picked, x[at])
    np.testing.assert_array_equal(part, x[2**31 + 4 : 2**31 + 7])
    np.testing.assert_array_equal(strided, x[:: 2**30])
    refused(FeedError, "positions fit into int32", lambda: compute(lambda g, v: [g.argmax(v, 0)], x))
    rows = x[: 3 * 2**29 + 2**29].reshape(4, 2**29)
    (made,) = compute(lambda g, v: [g.max(v[:, -(2**20) :], 1)], rows)
    np.testing.assert_array_equal(made, rows[:, -(2**20) :].max(1))
    (total,) = compute(lambda g, v: [g.sum(g.broadcast(v, (2**16 + 1, 2**15 + 1)))], np.ones((1, 1), np.uint8))
    assert total == (2**16 + 1) * (2**15 + 1) % 256


RUNS = (integer_extremes, float_extremes, wild_indices, wild_grids, wild_loops, huge_claims, past_2_31)

if __name__ == "__main__":
    for name in sys.argv[1:]:
        next(run for run in RUNS if run.__name__ == name)()
        print(name, flush=True)
