"""Control dependencies: an assign that nobody reads runs when something depends on it, and in the order asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stitchwork as sw
from stitchwork.errors import GraphError

X = np.array([0.0, 1.0, 2.0], np.float32)
Spelling = Callable[[sw.Graph, Any, Callable[[], Any]], Any]


def by_tensor(g: sw.Graph, tokens: Any, build: Callable[[], Any]) -> Any:
    return g.control_dependency(build(), depends_on=tokens)


def by_callable(g: sw.Graph, tokens: Any, build: Callable[[], Any]) -> Any:
    return g.control_dependency(build, depends_on=tokens)


def by_block(g: sw.Graph, tokens: Any, build: Callable[[], Any]) -> Any:
    with g.control_dependencies(tokens):
        return build()


SPELLINGS = pytest.mark.parametrize("spelling", [by_tensor, by_callable, by_block])
READING = pytest.mark.parametrize("spelling", [by_callable, by_block])  # those whose reads come after


def counter(shape: tuple[int, ...] = ()) -> tuple[sw.Graph, sw.Tensor, sw.Variable, sw.Tensor]:
    """A graph with an input, a variable that starts at 0, and an assign that adds 1."""
    g = sw.Graph()
    x = g.placeholder(("n",), name="x")
    calls = g.variable(np.zeros(shape, np.float32), name="calls")
    return g, x, calls, g.assign(calls, calls + 1.0)


@SPELLINGS
@pytest.mark.parametrize("shape", [(), (5,)])
@pytest.mark.parametrize("listed", [True, False])
def test_an_assign_that_nobody_reads_runs(spelling: Spelling, shape: tuple[int, ...], listed: bool) -> None:
    g, x, calls, update = counter(shape)
    y = spelling(g, [update] if listed else update, lambda: g.exp(x))
    exe = g.compile([y])
    for k in range(1, 4):
        np.testing.assert_allclose(exe.run([X])[0], np.exp(X), rtol=1e-6)
        np.testing.assert_array_equal(calls.value, np.full(shape, k))


def test_without_a_dependency_it_is_dropped() -> None:
    g, x, calls, _ = counter()
    exe = g.compile([g.exp(x)])
    exe.run([X])
    assert calls.value == 0


def test_a_targeted_assign_runs_and_gives_no_result() -> None:
    g, x, calls, update = counter()
    exe = g.compile([g.exp(x), update])
    assert [len(exe.run([X])) for _ in range(3)] == [1, 1, 1]
    assert calls.value == 3
    assert g.compile([update]).run([]) == []
    assert calls.value == 4


def test_one_assign_under_several_tensors_runs_once() -> None:
    g, x, calls, update = counter()
    first, second = g.control_dependency([g.exp(x), x * 2.0], depends_on=[update])
    with g.control_dependencies([update]):
        third = x + 1.0
    results = g.compile([first, second, third, update]).run([X])
    for got, want in zip(results, (np.exp(X), X * 2, X + 1), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    assert calls.value == 1


def test_a_placeholder_or_constant_can_depend() -> None:
    g, x, calls, update = counter()
    same, two = g.control_dependency([x, 2.0], depends_on=[update])
    first, second = g.compile([same, two]).run([X])
    np.testing.assert_array_equal(first, X)
    assert (second.item(), calls.value) == (2, 1)


def test_the_assigned_value_is_that_of_the_inputs() -> None:
    g = sw.Graph()
    x = g.placeholder((3,), name="x")
    kept = g.variable(np.zeros(3, np.float32))
    y = g.control_dependency(g.sum(x), depends_on=[g.assign(kept, g.tanh(x))])
    exe = g.compile([y])
    for scale in (1, -2):
        exe.run([X * scale])
        np.testing.assert_allclose(kept.value, np.tanh(X * scale), rtol=1e-6)


@pytest.mark.parametrize("doubled_first", [True, False])
def test_the_order_of_two_assigns(doubled_first: bool) -> None:
    """Both write one variable: + 1 and * 2 do not commute."""
    g = sw.Graph()
    v = g.variable(np.float32(3))
    steps: list[Callable[[], Any]] = [lambda: v * 2.0, lambda: v + 1.0]
    first, second = steps if doubled_first else steps[::-1]
    with g.control_dependencies([g.assign(v, first())]):
        last = g.assign(v, second())
    exe = g.compile([last])
    want = 3.0
    for _ in range(3):
        exe.run([])
        want = want * 2 + 1 if doubled_first else (want + 1) * 2
        assert v.value == want


def test_order_across_variables() -> None:
    """A swap needs both reads before both writes; reads outside a dependency are those."""
    g = sw.Graph()
    a, b = g.variable(np.arange(4, dtype=np.float32)), g.variable(np.full(4, 7, np.float32))
    old_a, old_b = a.read(), b.read()
    exe = g.compile([g.assign(a, old_b), g.assign(b, old_a)])
    exe.run([])
    np.testing.assert_array_equal(a.value, np.full(4, 7))
    np.testing.assert_array_equal(b.value, np.arange(4))
    exe.run([])
    np.testing.assert_array_equal(a.value, np.arange(4))


@READING
def test_reads_before_and_after(spelling: Spelling) -> None:
    g = sw.Graph()
    v = g.variable(np.arange(5, dtype=np.float32))
    before = v.read()
    update = g.assign(v, before * 10.0)
    after = spelling(g, [update], v.read)
    later = spelling(g, [g.assign(v, after + 1.0)], v.read)
    results = [r.numpy() for r in g.compile([later, before, after]).run([])]
    want = np.arange(5)
    for got, expected in zip(results, (want * 10 + 1, want, want * 10), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_reads_without_order_see_the_start_of_the_run() -> None:
    """Wherever they were built, and whatever else the run does."""
    g, _, calls, update = counter((3,))
    built_after = calls.read() + 0.5
    forced = g.control_dependency(g.constant(np.float32(1)), depends_on=[update])
    exe = g.compile([forced, built_after])
    for k in range(3):
        np.testing.assert_array_equal(exe.run([])[1], np.full(3, k + 0.5))
    np.testing.assert_array_equal(calls.value, np.full(3, 3))


def test_variables_are_shared_by_executables() -> None:
    g, _, calls, update = counter((2,))
    up, read = g.compile([update]), g.compile([calls * 100.0])
    reset = g.compile([g.assign(calls, np.zeros(2, np.float32))])
    for k in (1, 2):
        up.run([])
        np.testing.assert_array_equal(read.run([])[0], np.full(2, k * 100))
    calls.value = [5, 6]
    np.testing.assert_array_equal(read.run([])[0], [500, 600])
    reset.run([])
    np.testing.assert_array_equal(read.run([])[0], [0, 0])
    late = g.compile([calls.read()])  # compiled after all this: sees the state, not the initial value
    up.run([])
    np.testing.assert_array_equal(late.run([])[0], [1, 1])


def test_an_assign_inside_a_branch() -> None:
    g = sw.Graph()
    x = g.placeholder((), name="x")
    v = g.variable(np.float32(0))
    y = g.if_else(x > 0.0, lambda: g.control_dependency(x * 2.0, depends_on=[g.assign(v, x)]), lambda: x)
    exe = g.compile([y])
    seen = [(exe.run([np.float32(k)])[0].item(), v.value.item()) for k in (1, -5, 3)]
    assert seen == [(2, 1), (-5, 1), (6, 3)]


def test_assigns_inside_a_loop() -> None:
    """Each iteration's write is seen by the next one's ordered read."""
    g = sw.Graph()
    n = g.placeholder((), sw.int32, name="n")
    v = g.variable(np.float32(1))

    def body(_: Any, carried: Any) -> Any:
        with g.control_dependencies([g.assign(v, v * 2.0)]):
            return carried + v

    exe = g.compile([g.for_loop(n, np.float32(0), body)])
    assert exe.run([np.int32(4)])[0].item() == 2 + 4 + 8 + 16
    assert v.value == 16
    assert exe.run([np.int32(0)])[0].item() == 0
    assert v.value == 16


def test_what_is_refused() -> None:
    g, x, calls, update = counter()
    other = sw.Graph()
    mine = other.constant(1.0)
    with pytest.raises(GraphError, match="something else"):
        g.control_dependency(x, depends_on=[calls])
    with pytest.raises(GraphError, match="another graph"):
        other.control_dependency(mine, depends_on=[update])
    with pytest.raises(GraphError, match="another graph"):
        other.assign(calls, 1.0)
    with pytest.raises(GraphError, match="not a variable"):
        g.assign(x, 1.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(sw.errors.StitchworkError, match="assign"):
        g.assign(calls, np.zeros(3, np.float32))
