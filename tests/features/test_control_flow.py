"""Control flow on the device: if, for and while, nested, against the same written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stitchwork as sw
from stitchwork.errors import FeedError, GraphError, OpError, StitchworkError

F = np.float32
Step = Callable[[Any], Any]
KINDS = ("if", "for", "range", "while")


def build(g: sw.Graph, kind: str, v: Any, n: Any, step: Step) -> Any:
    """One construct around a step."""
    if kind == "if":
        return g.if_else(n > 2, lambda: step(v), lambda: v - 1.0)
    if kind == "for":
        return g.for_loop(n, v, lambda _, u: step(u))
    if kind == "range":
        return g.for_loop(initial=v, lower=1, upper=2 * n, step=3, body=lambda i, u: step(u) + g.cast(i, sw.float32))
    start = [v, g.constant(np.int32(0))]
    return g.while_loop(start, lambda u, k: (k < n, [u, k]), lambda u, k: [step(u), k + 1])[0]


def by_hand(kind: str, v: Any, n: int, step: Step) -> Any:
    """The same in Python."""
    if kind == "if":
        return step(v) if n > 2 else v - 1
    for i in range(1, 2 * n, 3) if kind == "range" else range(n):
        v = step(v) + (i if kind == "range" else 0)
    return v


@pytest.mark.parametrize("outer", KINDS)
@pytest.mark.parametrize("inner", KINDS)
def test_nested_pairwise_with_captured_tensors(rng: np.random.Generator, outer: str, inner: str) -> None:
    g = sw.Graph()
    x, c, n = g.placeholder(("m",)), g.placeholder(("m",)), g.placeholder((), sw.int32)
    scaled = c * 0.5  # made outside, used in the innermost block
    exe = g.compile([build(g, outer, x, n, lambda u: build(g, inner, u, n, lambda w: w * 0.5 + scaled))])
    a, b = (rng.uniform(-1, 1, 5).astype(F) for _ in range(2))
    for many in (0, 1, 3, 4):
        (got,) = exe.run([a, b, np.int32(many)])
        want = by_hand(outer, a, many, lambda u, k=many: by_hand(inner, u, k, lambda w: w * 0.5 + b * 0.5))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_several_carried_values() -> None:
    g = sw.Graph()
    n = g.placeholder((), sw.int32)
    initial = [np.int64(0), np.int64(1), np.zeros(3, F)]
    made = g.for_loop(n, initial, lambda i, a, b, v: [b, a + b, v + g.cast(i, sw.float32)])
    exe = g.compile(made)
    for many, fibonacci in ((0, 0), (1, 1), (10, 55), (90, 2880067194370816120)):
        a, _, v = exe.run([np.int32(many)])
        assert a.item() == fibonacci
        np.testing.assert_array_equal(v, np.full(3, sum(range(many))))


@pytest.mark.parametrize(
    "lower, upper, step",
    [(0, 5, 1), (2, 11, 3), (5, 5, 1), (6, 5, 1), (-4, 4, 2), (0, 5, 0), (0, 5, -1), (5, 0, -1), (0, 1, 100)],
)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ranges(lower: int, upper: int, step: int, dtype: Any) -> None:
    """A step that is not positive runs no iteration."""
    g = sw.Graph()
    limits = [g.placeholder((), dtype) for _ in range(3)]
    many, last = g.for_loop(
        initial=[np.int32(0), np.array(-99, dtype)],
        lower=limits[0],
        upper=limits[1],
        step=limits[2],
        body=lambda i, k, _: [k + 1, i],
    )
    seen = list(range(lower, upper, step)) if step > 0 else []
    got = [r.item() for r in g.compile([many, last]).run([dtype(lower), dtype(upper), dtype(step)])]
    assert got == [len(seen), seen[-1] if seen else -99]


def test_bounds_beyond_int32() -> None:
    g = sw.Graph()
    start = g.placeholder((), sw.int64)
    total = g.for_loop(initial=np.int64(0), lower=start, upper=start + 10, step=4, body=lambda i, t: t + i)
    base = 2**40
    assert g.compile([total]).run([np.int64(base)])[0].item() == 3 * base + 12


def test_predicates() -> None:
    """Anything but 0 chooses the first block, NaN too; one element of any rank will do."""
    g = sw.Graph()
    p, stop = g.placeholder((1, 1)), g.placeholder(())
    chosen = g.if_else(p, lambda: g.constant(1), lambda: g.constant(0))
    rounds = g.while_loop([stop, 0], lambda a, k: (a, [a, k]), lambda _, k: [g.constant(F(0)), k + 1])[1]
    exe = g.compile([chosen, rounds])
    for value, want in ((np.nan, 1), (np.inf, 1), (-0.0, 0), (0.0, 0), (1e-45, 1), (-2.0, 1)):
        assert [r.item() for r in exe.run([np.full((1, 1), value, F), F(value)])] == [want, want]


def refused() -> list[tuple[str, Callable[[sw.Graph, Any], Any]]]:
    """Mistakes in blocks, with a part of the message."""
    return [
        ("sizes cannot change", lambda g, x: g.for_loop(3, x, lambda _, c: g.concat([c, c], axis=0))),
        ("sizes cannot change", lambda g, x: g.while_loop([x], lambda c: (g.sum(c), [c]), lambda c: [c[1:]])),
        ("sizes cannot change", lambda g, x: g.if_else(g.sum(x), lambda: x, lambda: x[:2])),
        ("`body` must return values", lambda g, x: g.for_loop(3, x, lambda _, c: [c, c])),
        ("`otherwise` must return", lambda g, x: g.if_else(g.sum(x), lambda: x, lambda: [x, x])),
        ("`after` must return", lambda g, x: g.while_loop([x], lambda c: (g.sum(c), [c]), lambda c: [c, c])),
        ("did not return two things", lambda g, x: g.while_loop([x], g.sum, lambda c: [c])),
        ("does not take", lambda g, x: g.for_loop(3, x, lambda i: i)),
        ("more than one element", lambda g, x: g.if_else(x, lambda: x, lambda: x)),
        ("`otherwise` is missing", lambda g, x: g.if_else(g.sum(x), lambda: x)),
        ("the range is not clear", lambda g, x: g.for_loop(None, x, lambda _, c: c)),
    ]


@pytest.mark.parametrize("message, wrong", refused())
def test_mistakes_are_refused(message: str, wrong: Callable[[sw.Graph, Any], Any]) -> None:
    g = sw.Graph()
    with pytest.raises((GraphError, OpError), match=message) as e:
        wrong(g, g.placeholder((3,)))
    assert "test_control_flow.py" in str(e.value)


def test_changing_sizes_that_are_not_known_are_refused_when_run() -> None:
    g = sw.Graph()
    x, y = g.placeholder(("n",)), g.placeholder(("m",))
    exe = g.compile([g.if_else(g.sum(x) > 0.0, lambda: x, lambda: y)])
    np.testing.assert_array_equal(exe.run([np.ones(2, F), np.zeros(2, F)])[0], [1, 1])
    with pytest.raises(FeedError, match="the same in each iteration or branch"):
        exe.run([np.ones(2, F), np.ones(3, F)])


def test_a_tensor_of_an_ended_block_is_refused() -> None:
    g = sw.Graph()
    x = g.placeholder((3,))
    kept: list[Any] = []

    def body(_: Any, c: Any) -> Any:
        kept.append(c * 2.0)
        return c

    g.for_loop(3, x, body)
    for use in (lambda: kept[0] + x, lambda: g.for_loop(3, kept[0], lambda _, c: c)):
        with pytest.raises(GraphError, match="block that has ended"):
            use()
    with pytest.raises(GraphError, match="inside a block"):
        g.compile([kept[0]])


@pytest.mark.parametrize(
    "outer, inner", [("for", "if"), ("if", "for"), ("range", "for"), ("if", "if"), ("for", "range")]
)
@pytest.mark.parametrize("n", [0, 3, 4])
def test_gradients_agree_with_finite_differences(rng: np.random.Generator, outer: str, inner: str, n: int) -> None:
    """Of the carried value and of a captured one."""
    g = sw.Graph()
    x, c = (g.placeholder(("m",), sw.float64) for _ in range(2))

    def nest(kind: str, v: Any, step: Step) -> Any:
        if kind == "if":
            return g.if_else(g.sum(v) > 0.0, lambda: step(v), lambda: v * v)
        if kind == "for":
            return g.for_loop(n, v, lambda _, u: step(u))
        return g.for_loop(initial=v, lower=1, upper=n, step=2, body=lambda i, u: step(u) * g.cast(i, sw.float64))

    loss = g.sum(nest(outer, x, lambda u: nest(inner, u, lambda w: g.sin(w) * c)))
    exe, slopes = g.compile([loss], feeds=[x, c]), g.compile(g.gradients(loss, [x, c]), feeds=[x, c])
    for sign in (1, -1):
        data = [sign * rng.uniform(0.5, 1, 3), rng.uniform(0.5, 1, 3)]
        for k, got in enumerate(slopes.run(data)):
            want = np.zeros(3)
            for j in range(3):
                ends: list[float] = []
                for h in (1e-6, -1e-6):
                    moved = [d.copy() for d in data]
                    moved[k][j] += h
                    ends.append(exe.run(moved)[0].item())
                want[j] = (ends[0] - ends[1]) / 2e-6
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-8)


def test_a_while_loop_has_no_gradient() -> None:
    g = sw.Graph()
    x = g.placeholder(())
    y = g.while_loop([x], lambda c: (c > 0.0, [c]), lambda c: [c - 1.0])[0]
    with pytest.raises(StitchworkError, match="while loop has no gradient"):
        g.gradients(y, [x])


def test_a_gradient_needs_a_number_of_iterations_known_as_a_size() -> None:
    g = sw.Graph()
    x, n = g.placeholder(()), g.placeholder((), sw.int32)
    with pytest.raises(OpError, match="not known as a size"):
        g.gradients(g.for_loop(n, x, lambda _, c: c * 2.0), [x])
