"""Writes that nobody reads: they happen where a control dependency says so, in order, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stitchwork as sw


class Counter:
    """A graph whose variable counts."""

    def __init__(self) -> None:
        self.g = sw.Graph()
        self.x = self.g.placeholder((None,), name="x")
        self.v = self.g.variable(np.float32(0), name="v")

    def add(self, n: float) -> sw.Tensor:
        return self.g.assign(self.v, self.v + n)


X = np.array([1.0, 2.0], np.float32)


def test_without_a_dependency_the_write_is_dropped() -> None:
    c = Counter()
    c.add(1)
    exe = c.g.compile([c.x * 2])
    exe.run([X])
    assert c.v.value == 0
    assert exe.report().startswith("1 kernels")


def test_both_spellings_and_targets() -> None:
    c = Counter()
    g, x = c.g, c.x
    update = c.add(1)
    first = g.control_dependency(dependent=g.exp(x), depends_on=[update])
    with g.control_dependencies([update]):
        second = g.exp(x)
    third = g.control_dependency(lambda: g.exp(x), [update])
    fourth, fifth = g.control_dependency([g.exp(x), x], [update])
    sixth = g.control_dependency(g.exp(x), update)  # one need not be in a list
    for count, target in enumerate([first, second, third, fourth, sixth], 1):
        (got,) = g.compile([target]).run([X])
        np.testing.assert_allclose(got, np.exp(X), rtol=1e-6)
        assert c.v.value == count
    assert g.compile([g.exp(x), update]).run([X])[0].shape == (2,)
    assert c.v.value == 6
    g.compile([first, second, third, fourth, fifth]).run([X])  # one write, however many depend on it
    assert c.v.value == 7
    assert g.compile([update]).run([]) == []
    assert c.v.value == 8


def test_a_gradient_goes_through() -> None:
    c = Counter()
    y = c.g.control_dependency(c.x * c.x, [c.add(1)])
    (gradient,) = c.g.gradients(c.g.sum(y), [c.x])
    value, got = c.g.compile([y, gradient]).run([X])
    np.testing.assert_array_equal(value, X * X)
    np.testing.assert_array_equal(got, 2 * X)
    assert c.v.value == 1


def test_reads_are_ordered_by_what_they_depend_on() -> None:
    g = sw.Graph()
    v = g.variable(np.float32(1), name="v")
    before = v.read()
    double = g.assign(v, before * 2.0)
    with g.control_dependencies([double]):
        middle = v.read()
        triple = g.assign(v, middle * 3.0)
    with g.control_dependencies([triple]):
        last = v + 0.0
    late = g.control_dependency(lambda: v * 10.0, [double])
    for targets, want, left in [
        ([before, middle, last], [1, 2, 6], 6),
        ([last, middle, before], [6, 2, 1], 6),
        ([last], [6], 6),
        ([before, late], [1, 20], 2),
        ([before, double], [1], 2),
        ([triple], [], 6),
        ([before], [1], 1),
    ]:
        v.value = 1.0
        assert [r.item() for r in g.compile(targets).run([])] == want
        assert v.value == left


def test_a_read_before_a_write_keeps_its_value() -> None:
    """Even where it is returned, or used after the write."""
    g = sw.Graph()
    v = g.variable(np.arange(4, dtype=np.float32), name="v")
    old = v.read()
    write = g.assign(v, old + 1.0)
    with g.control_dependencies([write]):
        both = old * 100.0 + v
    got_old, got_both = (r.numpy() for r in g.compile([old, both]).run([]))
    np.testing.assert_array_equal(got_old, [0, 1, 2, 3])
    np.testing.assert_array_equal(got_both, np.arange(4) * 100 + np.arange(1, 5))


def test_swapping_two_variables() -> None:
    g = sw.Graph()
    a, b = g.variable(np.float32(1), name="a"), g.variable(np.float32(2), name="b")
    old_a, old_b = a.read(), b.read()
    exe = g.compile([g.assign(a, old_b), g.assign(b, old_a)])
    for want in ((2, 1), (1, 2)):
        exe.run([])
        assert (a.value, b.value) == want


def test_a_chain_of_dependencies_that_carry_no_data() -> None:
    g = sw.Graph()
    log = g.variable(np.zeros(4, np.float32), name="log")
    position = g.variable(np.int32(0), name="position")
    tokens: list[sw.Tensor] = []
    for k in (4, 2, 3):
        with g.control_dependencies(tokens):
            spot = g.equal(g.arange(4), position)
            write = g.assign(log, g.where(spot, float(k), log))
            with g.control_dependencies([write]):
                tokens = [g.assign(position, position + 1)]
    g.compile(tokens).run([])
    np.testing.assert_array_equal(log.value, [4, 2, 3, 0])
    assert position.value == 3


@pytest.mark.parametrize("flag", [True, False])
def test_writes_inside_branches(flag: bool) -> None:
    c = Counter()
    g = c.g
    predicate = g.placeholder((), sw.bool_, name="predicate")
    token = g.if_else(predicate, lambda: c.add(1), lambda: c.add(10))
    alone = g.if_else(predicate, lambda: c.add(1))
    value = g.if_else(predicate, lambda: g.control_dependency(c.x, [c.add(100)]), lambda: c.x * 2)
    y = g.control_dependency(c.x, [token])
    g.compile([y], feeds=[c.x, predicate]).run([X, flag])
    assert c.v.value == (1 if flag else 10)
    g.compile([alone]).run([flag])
    assert c.v.value == (2 if flag else 10)
    (got,) = g.compile([value], feeds=[c.x, predicate]).run([X, flag])
    np.testing.assert_array_equal(got, X if flag else X * 2)
    assert c.v.value == (102 if flag else 10)


def test_writes_inside_loops() -> None:
    g = sw.Graph()
    n = g.placeholder((), sw.int32, name="n")
    v = g.variable(np.float32(1), name="v")

    def body(i: sw.Tensor, seen: sw.Tensor) -> Any:
        write = g.assign(v, v * 2.0)
        with g.control_dependencies([write]):
            return seen + v  # the value of this round

    total = g.for_loop(n, np.float32(0), body)
    exe = g.compile([total])
    for rounds in (0, 1, 4):
        v.value = 1.0
        assert exe.run([np.int32(rounds)])[0].item() == sum(2**k for k in range(1, rounds + 1))
        assert v.value == 2**rounds


def test_depending_on_a_tensor_or_a_loop() -> None:
    """What a tensor needs happens, writes inside its blocks included."""
    c = Counter()
    g = c.g
    looped = g.for_loop(3, np.float32(0), lambda i, t: g.control_dependency(t, [c.add(1)]))
    y = g.control_dependency(c.x + 1, [looped])
    np.testing.assert_array_equal(g.compile([y]).run([X])[0], X + 1)
    assert c.v.value == 3


def test_what_was_read_before_a_loop_keeps_its_value() -> None:
    g = sw.Graph()
    v = g.variable(np.float32(1), name="v")
    n = g.placeholder((), sw.int32, name="n")
    old = v.read()

    def before(k: sw.Tensor) -> Any:
        counted = g.control_dependency(k, [g.assign(v, v * 3.0)])  # this block writes, too
        return counted < n, counted

    loops = g.while_loop(np.int32(0), before, lambda k: g.control_dependency(k + 1, [g.assign(v, v + 1.0)]))
    with g.control_dependencies([loops]):
        new = v.read()
    exe = g.compile([old, new, loops, old + new * 100.0], feeds=[n])
    for rounds in (0, 1, 3):
        v.value = want = 1.0
        for k in range(rounds + 1):
            want = want * 3 + (1 if k < rounds else 0)
        assert [r.item() for r in exe.run([np.int32(rounds)])] == [1, want, rounds, 1 + want * 100]
        assert v.value == want
