"""Control flow against the same Python: every nesting, captured tensors, ranges at the edges, zero rounds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import stitchwork as sw

X = np.array([1.0, -2.0, 3.0], np.float32)
Inner = Callable[[Any, Any], Any]


# --- the same program twice: once in a graph, once in Python ----------------------------------------------------------
class InGraph:
    """Control flow built with the graph `g`."""

    def __init__(self, g: sw.Graph) -> None:
        self.g = g

    def branch(self, v: Any, k: Any, inner: Inner) -> Any:
        return self.g.if_else(self.g.equal(k % 2, 0), lambda: inner(v, k) + k, lambda: inner(v * 0.5, k))

    def count(self, v: Any, k: Any, inner: Inner) -> Any:
        return self.g.for_loop(k, v, lambda i, w: inner(w, i) + 1.0)

    def span(self, v: Any, k: Any, inner: Inner) -> Any:
        return self.g.for_loop(initial=v, lower=1, upper=k + 2, step=2, body=lambda i, w: inner(w, i) + k)

    def repeat(self, v: Any, k: Any, inner: Inner) -> Any:
        return self.g.while_loop(
            [v, k * 0], lambda w, n: (n < k, [w, n + 1]), lambda w, n: [inner(w, n) - 1.0, n]
        )[0]  # fmt: skip


class InPython:
    """The same with Python's own."""

    def branch(self, v: Any, k: Any, inner: Inner) -> Any:
        return inner(v, k) + np.float32(k) if k % 2 == 0 else inner(v * np.float32(0.5), k)

    def count(self, v: Any, k: Any, inner: Inner) -> Any:
        for i in range(k):
            v = inner(v, i) + np.float32(1)
        return v

    def span(self, v: Any, k: Any, inner: Inner) -> Any:
        for i in range(1, k + 2, 2):
            v = inner(v, i) + np.float32(k)
        return v

    def repeat(self, v: Any, k: Any, inner: Inner) -> Any:
        n = 0
        while True:
            go, n = n < k, n + 1
            if not go:
                return v
            v = inner(v, n) - np.float32(1)


KINDS = ("branch", "count", "span", "repeat")


def nested(make: Any, kinds: tuple[str, ...], x: Any) -> Inner:
    """The kinds inside each other, the first outermost; the innermost block uses `x`, which is not carried."""
    if not kinds:
        return lambda v, k: v * 0.5 + x * k
    inner = nested(make, kinds[1:], x)
    return lambda v, k: getattr(make, kinds[0])(v, k, inner)


@pytest.mark.parametrize("outer", KINDS)
def test_nesting(outer: str) -> None:
    """Each kind around each other kind, and some three deep, in one program."""
    g = sw.Graph()
    x, n = g.placeholder((None,), name="x"), g.placeholder((), sw.int32, name="n")
    cases = [(outer, inner) for inner in KINDS] + [(outer, *pair) for pair in product(KINDS[::2], KINDS[1::2])]
    exe = g.compile([nested(InGraph(g), c, x)(x, n) for c in cases], feeds=[x, n])
    for many in (0, 1, 2, 3):
        for data in (X, X[:0], X[:1]):
            for case, got in zip(cases, exe.run([data, np.int32(many)]), strict=True):
                want = nested(InPython(), case, data)(data, many)
                np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=f"{case}, n = {many}")


# --- branches ---------------------------------------------------------------------------------------------------------
def test_predicates_of_every_kind() -> None:
    """What is not 0 chooses `then`: NaN too, -0.0 not; any dtype, any shape with one element."""
    cases: list[tuple[Any, bool]] = [
        (np.float32(np.nan), True), (np.float32(-0.0), False), (np.float32(1e-45), True), (np.float64(-3), True),
        (np.float16(0), False), (np.int8(-1), True), (np.uint8(0), False), (np.int64(2**32), True),
        (np.bool_(True), True), (np.complex64(1j), True), (np.array([[5]], np.int32), True),
        (np.array([0.0], np.float32), False),
    ]  # fmt: skip
    g = sw.Graph()
    made = []
    for p, _ in cases:
        tensor = g.placeholder(p.shape, p.dtype)
        made.append(g.if_else(tensor, lambda: g.constant(1), lambda: g.constant(0)))
    results = g.compile(made).run([p for p, _ in cases])
    assert [r.item() for r in results] == [int(want) for _, want in cases]


def test_branches_return_what_they_capture() -> None:
    """A block may return an outer tensor, an input or a constant as it is, once or twice, and several values."""
    g = sw.Graph()
    x, p = g.placeholder((None,), name="x"), g.placeholder((), sw.bool_, name="p")
    y = x * 2
    a, b = g.if_else(p, lambda: [x, y], lambda: [y, y])
    c = g.if_else(p, lambda: np.float32(1), lambda: x[0])
    d, e = g.if_else(p, lambda: [y, x], lambda: (x, y))
    exe = g.compile([a, b, c, d, e], feeds=[x, p])
    for flag in (True, False):
        want = [X, 2 * X, 1, 2 * X, X] if flag else [2 * X, 2 * X, X[0], X, 2 * X]
        for got, w in zip(exe.run([X, flag]), want, strict=True):
            np.testing.assert_array_equal(got, w)
    assert g.if_else(p, lambda: [], lambda: []) == []


def test_constant_predicates_run_one_side() -> None:
    g = sw.Graph()
    x = g.placeholder((3,), name="x")
    yes, no = g.if_else(True, lambda: x + 1, lambda: x - 1), g.if_else(0.0, lambda: x + 1, lambda: x - 1)
    got = g.compile([yes, no]).run([X])
    np.testing.assert_array_equal(got[0], X + 1)
    np.testing.assert_array_equal(got[1], X - 1)


# --- loops ------------------------------------------------------------------------------------------------------------
RANGES = [(0, 5, 1), (5, 0, 1), (0, 5, -1), (0, 5, 0), (-7, 8, 3), (3, 4, 100), (2, 2, 1), (-5, -1, 2)]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ranges(dtype: Any) -> None:
    """Bounds as tensors, in i32 and i64; a step that is not positive runs no round."""
    g = sw.Graph()
    bounds = [g.placeholder((), dtype, name=n) for n in ("lower", "upper", "step")]
    lower, upper, step = bounds
    count, last, total = g.for_loop(
        initial=[np.int32(0), dtype(-99), dtype(0)], lower=lower, upper=upper, step=step,
        body=lambda i, c, _, s: [c + 1, i, s + i],
    )  # fmt: skip
    assert last.dtype is bounds[0].dtype
    exe = g.compile([count, last, total])
    ends = [(2**31 - 3, 2**31 - 1, 5)] + (
        [(2**40, 2**40 + 5, 2), (-(2**63), -(2**63) + 2, 1)] if dtype is np.int64 else []
    )
    for lo, up, by in RANGES + ends:
        seen = list(range(lo, up, by)) if by > 0 else []
        with np.errstate(over="ignore"):
            want = [len(seen), seen[-1] if seen else -99, int(np.sum(seen, dtype=dtype)) if seen else 0]
        assert [r.item() for r in exe.run([dtype(v) for v in (lo, up, by)])] == want, (lo, up, by)


def test_ranges_known_when_built() -> None:
    g = sw.Graph()
    made = [g.for_loop(initial=0, lower=lo, upper=up, step=by, body=lambda i, s: s + i + 1) for lo, up, by in RANGES]
    got = [r.item() for r in g.compile([*made, g.for_loop(4, 0, lambda i, s: s + i)]).run([])]
    assert got == [sum(i + 1 for i in range(*r)) if r[2] > 0 else 0 for r in RANGES] + [6]


def test_bounds_of_other_integer_dtypes() -> None:
    g = sw.Graph()
    n, m = g.placeholder((), sw.uint8, name="n"), g.placeholder((1, 1), sw.int16, name="m")
    a, b = g.for_loop(n, 0, lambda i, s: s + 1), g.for_loop(initial=0, lower=m, upper=3, body=lambda i, s: s + 1)
    got = g.compile([a, b]).run([np.uint8(200), np.array([[-2]], np.int16)])
    assert [r.item() for r in got] == [200, 5]


def test_several_carried_values_of_several_types() -> None:
    """Swapped, replaced, kept, captured, and growing in value; their types differ."""
    g = sw.Graph()
    x, n = g.placeholder((None,), name="x"), g.placeholder((), sw.int32, name="n")
    flags = g.placeholder((2, 2), sw.bool_, name="flags")

    def body(i: Any, a: Any, b: Any, f: Any, k: Any, kept: Any) -> list[Any]:
        return [b, a + x, g.logical_not(f), k * 2 + g.cast(i, sw.int64), kept]

    results = g.for_loop(n, [x, x * 10, flags, np.int64(1), x - 1], body)
    exe = g.compile(results, feeds=[x, n, flags])
    f = np.array([[True, False], [False, False]])
    for many in (0, 1, 2, 5):
        a, b, h, k = X, X * 10, f, 1
        for i in range(many):
            a, b, h, k = b, a + X, ~h, k * 2 + i
        for got, want in zip(exe.run([X, np.int32(many), f]), [a, b, h, k, X - 1], strict=True):
            np.testing.assert_array_equal(got, want)


def test_three_values_that_rotate() -> None:
    g = sw.Graph()
    n = g.placeholder((), sw.int32, name="n")
    rotated = g.for_loop(n, [np.float32(1), np.float32(2), np.float32(3)], lambda i, a, b, c: [c, a, b])
    exe = g.compile(rotated)
    assert [[r.item() for r in exe.run([np.int32(k)])] for k in range(4)] == [
        [1, 2, 3],
        [3, 1, 2],
        [2, 3, 1],
        [1, 2, 3],
    ]


def test_while_results_may_differ_from_what_is_carried() -> None:
    """`before` maps the carried values to others in number, dtype and shape; these are the results."""
    g = sw.Graph()
    x = g.placeholder((3,), name="x")

    def before(v: Any) -> Any:
        total = g.sum(g.abs(v))
        return total < 100.0, [g.cast(v, sw.int32), total, v]

    whole, total, v = g.while_loop([x], before, lambda whole, total, v: [v * 2.0 + g.cast(whole, sw.float32)])
    exe = g.compile([whole, total, v])
    for data in (X, X * 1000):
        w = data
        while np.abs(w).sum() < 100:
            w = w * 2 + w.astype(np.int32)
        got = exe.run([data])
        np.testing.assert_array_equal(got[0], w.astype(np.int32))
        np.testing.assert_array_equal(got[1], np.abs(w).sum())
        np.testing.assert_array_equal(got[2], w)


def test_one_tensor_in_one_tensor_out() -> None:
    """A list comes back where a list goes in, a tensor where a tensor does."""
    g = sw.Graph()
    x = g.placeholder((3,), name="x")
    assert isinstance(g.for_loop(2, x, lambda i, v: v), sw.Tensor)
    assert isinstance(g.for_loop(2, [x], lambda i, v: [v]), list)
    assert isinstance(g.while_loop(x, lambda v: (False, v), lambda v: v), sw.Tensor)
    assert isinstance(g.while_loop([x], lambda v: (False, [v]), lambda v: [v]), list)
    assert isinstance(g.if_else(True, lambda: x, lambda: x), sw.Tensor)
    assert isinstance(g.if_else(True, lambda: [x], lambda: [x]), list)


def test_captured_tensors_are_computed_once_outside() -> None:
    """Tensors made before a loop are captured from every depth, variables are read, numbers and arrays are taken."""
    g = sw.Graph()
    x = g.placeholder((None,), name="x")
    v = g.variable(np.float32(10), name="v")
    y, z = g.exp(x), g.sum(x)

    def outer(i: Any, a: Any) -> Any:
        def inner(k: Any, b: Any) -> Any:
            return g.if_else(z > 0.0, lambda: b + y * v, lambda: b + np.ones(1, np.float32) * i * k)

        return g.for_loop(2, a, inner)

    exe = g.compile([g.for_loop(3, x, outer)])
    np.testing.assert_allclose(exe.run([X])[0], X + 6 * np.exp(X) * 10, rtol=1e-5)
    want = -X + sum(i * k for i in range(3) for k in range(2))
    np.testing.assert_allclose(exe.run([-X])[0], want, rtol=1e-5)


def test_a_loop_over_the_rows_of_a_tensor() -> None:
    """The index selects data, and writes go where it says: a scan with sizes known only to the run."""
    g = sw.Graph()
    x = g.placeholder(("n", 2), name="x")
    rows = g.shape_of(x)[0]

    def body(i: Any, state: Any, out: Any) -> list[Any]:
        state = state * 0.5 + g.gather(x, i, axis=0)
        spot = g.equal(g.reshape(g.coordinate_along_axis(0, shape=(x.shape[0], 1)), (x.shape[0], 1)), i)
        return [state, g.where(spot, state, out)]

    last, all_ = g.for_loop(rows, [np.zeros(2, np.float32), x * 0.0], body)
    exe = g.compile([last, all_])
    for n in (0, 1, 5):
        data = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
        state, want = np.zeros(2, np.float32), []
        for row in data:
            state = state * np.float32(0.5) + row
            want.append(state)
        got = exe.run([data])
        np.testing.assert_array_equal(got[0], state)
        np.testing.assert_array_equal(got[1], np.array(want, np.float32).reshape(n, 2))


def test_matmul_convolution_and_stencil_inside_a_loop() -> None:
    g = sw.Graph()
    w, image = g.placeholder((3, 3), name="w"), g.placeholder((1, "h", "w", 2), name="image")
    filters = np.full((3, 3, 2, 2), 0.05, np.float32)
    power = g.for_loop(5, np.eye(3, dtype=np.float32), lambda i, m: m @ w)
    convolved = g.for_loop(3, image, lambda i, v: g.relu(g.conv2d(v, filters, padding="same")) + 1.0)
    exe = g.compile([power, convolved, g.for_loop(3, w, lambda i, v: g.stencil(v, [[1, 1], [1, 1]], padding="same"))])
    a = np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)
    x = np.linspace(0, 1, 2 * 4 * 5, dtype=np.float32).reshape(1, 4, 5, 2)
    got = exe.run({"w": a, "image": x})
    np.testing.assert_allclose(got[0], np.linalg.matrix_power(a, 5), rtol=1e-4, atol=1e-5)
    for _ in range(3):
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
        x = np.maximum(np.einsum("bhwcij,ijco->bhwo", windows, filters), 0) + 1
        padded = np.pad(a, ((0, 1), (0, 1)))
        a = padded[:-1, :-1] + padded[1:, :-1] + padded[:-1, 1:] + padded[1:, 1:]
    np.testing.assert_allclose(got[1], x, rtol=1e-4)
    np.testing.assert_allclose(got[2], a, rtol=1e-4, atol=1e-5)


def test_a_million_rounds_stay_on_the_device() -> None:
    g = sw.Graph()
    n = g.placeholder((), sw.int32, name="n")
    exe = g.compile([g.for_loop(n, np.int32(1), lambda i, v: v * 5 + i)])
    value = 1
    for i in range(1000):
        value = (value * 5 + i + 2**31) % 2**32 - 2**31  # wraps as i32 does
    assert exe.run([np.int32(1000)])[0].item() == value
    exe.run([np.int32(1_000_000)])
    assert exe.compile_count == 1
