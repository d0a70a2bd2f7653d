"""Every mistake that a user can make gives an error of one shape; here each is compared as a whole.

The place (`at file:line`) is checked by `assert_message`: it is the line of this file that made the mistake.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from messages import assert_message

import stitchwork as sw
from stitchwork.errors import CompileError, ExecutionError, FeedError, GraphError, OpError, StitchworkError

ONES = np.ones((2, 3), np.float32)


class Scene:
    """A graph with tensors of several kinds, to make mistakes with."""

    def __init__(self) -> None:
        self.g = sw.Graph()
        self.x = self.g.placeholder((2, 3), name="x")
        self.y = self.g.placeholder(("n", 4), name="y")
        self.i = self.g.placeholder((3,), sw.int32, name="i")
        self.b = self.g.placeholder((), sw.bool_, name="b")
        self.v = self.g.variable(np.zeros((2, 3), np.float32), name="v")
        self.other = sw.Graph()
        self.foreign = self.other.placeholder((2, 3), name="foreign")


@pytest.fixture
def s() -> Scene:
    return Scene()


def test_every_class_has_the_one_shape() -> None:
    for kind in (OpError, GraphError, FeedError, CompileError, ExecutionError, StitchworkError):
        e = kind("op", "problem", expected="this", got="that", hint="do it", at="file:1")
        assert str(e) == "op: problem\n  expected  this\n  got       that\n  hint      do it\n  at        file:1"
        assert (e.op, e.problem, e.expected, e.got, e.hint, e.at) == ("op", "problem", "this", "that", "do it", "file:1")
        assert isinstance(e, StitchworkError)
    assert str(OpError("op", "problem", at="")) == "op: problem"
    assert issubclass(OpError, ValueError) and issubclass(FeedError, ValueError) and issubclass(GraphError, ValueError)
    assert issubclass(ExecutionError, RuntimeError)


# --- building: placeholders, constants, variables -----------------------------------------------------------------------
def test_placeholders(s: Scene) -> None:
    g = s.g
    assert_message(GraphError, """@@""", lambda: g.placeholder((2, -1)))
    assert_message(GraphError, """@@""", lambda: g.placeholder((2, 1.5)))
    assert_message(GraphError, """@@""", lambda: g.placeholder(("two words",)))
    assert_message(GraphError, """@@""", lambda: g.placeholder(("max",)))
    assert_message(GraphError, """@@""", lambda: g.placeholder((2**63,)))
    assert_message(GraphError, """@@""", lambda: g.placeholder(5))  # type: ignore[arg-type]
    assert_message(GraphError, """@@""", lambda: g.placeholder((2,), "f99"))
    assert_message(GraphError, """@@""", lambda: g.placeholder((2,), object))
    assert_message(GraphError, """@@""", lambda: g.placeholder((2,), name="x"))


def test_constants_and_variables(s: Scene) -> None:
    g, v = s.g, s.v
    assert_message(OpError, """@@""", lambda: g.constant("text"))
    assert_message(OpError, """@@""", lambda: g.constant([[1, 2], [3]]))
    assert_message(OpError, """@@""", lambda: g.constant(np.zeros(3), shape=(2,)))
    assert_message(OpError, """@@""", lambda: g.constant(1, dtype="f99"))
    assert_message(OpError, """@@""", lambda: g.constant(300, dtype=sw.uint8))
    assert_message(GraphError, """@@""", lambda: g.variable(1.0, name="v"))
    assert_message(OpError, """@@""", lambda: g.variable(None))
    assert_message(OpError, """@@""", lambda: g.assign(v, np.zeros((3, 2), np.float32)))
    assert_message(OpError, """@@""", lambda: g.assign(v, s.y))
    assert_message(OpError, """@@""", lambda: g.assign(v, np.zeros((2, 3), np.int32)))
    assert_message(GraphError, """@@""", lambda: s.other.assign(v, 1.0))
    assert_message(GraphError, """@@""", lambda: g.assign(v, s.foreign))
    assert_message(GraphError, """@@""", lambda: g.assign(s.x, s.x))  # type: ignore[arg-type]
    assert_message(GraphError, """@@""", lambda: s.foreign + v)
    assert_message(GraphError, """@@""", lambda: setattr(v, "value", np.zeros(3)))


# --- building: ops ---------------------------------------------------------------------------------------------------------
def test_operands(s: Scene) -> None:
    g, x, y, i = s.g, s.x, s.y, s.i
    assert_message(GraphError, """@@""", lambda: x + s.foreign)
    assert_message(GraphError, """@@""", lambda: sw.exp(np.ones(3)))
    assert_message(OpError, """@@""", lambda: x + y)
    assert_message(OpError, """@@""", lambda: g.add(x, np.ones(2, np.float32)))
    assert_message(OpError, """@@""", lambda: x @ y)
    assert_message(OpError, """@@""", lambda: x + "text")
    assert_message(OpError, """@@""", lambda: x + None)
    assert_message(OpError, """@@""", lambda: x * y.shape[0])
    assert_message(OpError, """@@""", lambda: g.exp(i))
    assert_message(OpError, """@@""", lambda: i + 2**40)
    assert_message(OpError, """@@""", lambda: g.exp())
    assert_message(OpError, """@@""", lambda: g.exp(x, x))
    assert_message(OpError, """@@""", lambda: g.exp(x, axis=1))
    assert_message(OpError, """@@""", lambda: g.sum(x, 0, axis=1))
    assert_message(OpError, """@@""", lambda: g.concat(x, axis=0))
    assert_message(OpError, """@@""", lambda: g.concat([x, i], axis=0))
    assert_message(OpError, """@@""", lambda: g.concat([], axis=0))
    assert_message(OpError, """@@""", lambda: g.gather(x, x))
    assert_message(GraphError, """@@""", lambda: bool(x))
    assert_message(GraphError, """@@""", lambda: list(x))
    assert_message(GraphError, """@@""", lambda: len(x))


def test_attributes(s: Scene) -> None:
    g, x, y = s.g, s.x, s.y
    image = g.placeholder((1, 8, 8, 3))
    assert_message(OpError, """@@""", lambda: g.sum(x, axis=2))
    assert_message(OpError, """@@""", lambda: g.sum(x, axis=(0, -2)))
    assert_message(OpError, """@@""", lambda: g.sum(x, axis="rows"))
    assert_message(OpError, """@@""", lambda: g.softmax(x, axis=5))
    assert_message(OpError, """@@""", lambda: g.reshape(x, (4, 2)))
    assert_message(OpError, """@@""", lambda: g.reshape(x, (-1, -1)))
    assert_message(OpError, """@@""", lambda: g.permute(x, (0, 0)))
    assert_message(OpError, """@@""", lambda: g.cast(x, "f99"))
    assert_message(OpError, """@@""", lambda: x[2])
    assert_message(OpError, """@@""", lambda: x[0, 0, 0])
    assert_message(OpError, """@@""", lambda: x["name"])
    assert_message(OpError, """@@""", lambda: g.slice(x, (0, 0), (2, 3), (1, 0)))
    assert_message(OpError, """@@""", lambda: g.broadcast(x, (3, 2)))
    assert_message(OpError, """@@""", lambda: g.split(x, 2, axis=1))
    assert_message(OpError, """@@""", lambda: g.conv2d(image, np.ones((3, 3, 4, 8), np.float32)))
    assert_message(OpError, """@@""", lambda: g.conv2d(image, np.ones((9, 9, 3, 8), np.float32)))
    assert_message(OpError, """@@""", lambda: g.conv2d(image, np.ones((3, 3, 3, 8), np.float32), padding="full"))
    assert_message(OpError, """@@""", lambda: g.stencil(x, [1, 2, 1], boundary="mirror"))
    assert_message(OpError, """@@""", lambda: g.stencil(x, [1, 2, 1], reduction="mean"))
    assert_message(OpError, """@@""", lambda: g.stencil(x, np.ones((1, 1, 1), np.float32)))
    assert_message(OpError, """@@""", lambda: g.gather_nd(x, np.zeros((2, 3), np.int32)))
    assert_message(OpError, """@@""", lambda: g.gather_nd(x, np.zeros((2, 1), np.int32), batch_dims=2))
    assert_message(OpError, """@@""", lambda: g.one_hot(x, 3))
    assert_message(OpError, """@@""", lambda: g.top_k(x, 4))
    assert_message(OpError, """@@""", lambda: g.pad(y, ((0, 0),)))


# --- building: order and control flow ---------------------------------------------------------------------------------------
def test_control_dependencies(s: Scene) -> None:
    g, x = s.g, s.x
    token = g.assign(s.v, s.x)
    assert_message(GraphError, """@@""", lambda: g.control_dependency(s.foreign, [token]))
    assert_message(GraphError, """@@""", lambda: g.control_dependency(x, [s.foreign]))
    assert_message(GraphError, """@@""", lambda: g.control_dependency(x, ["update"]))  # type: ignore[list-item]
    assert_message(GraphError, """@@""", lambda: g.control_dependency(x, token))  # type: ignore[arg-type]
    assert_message(GraphError, """@@""", lambda: g.control_dependencies([s.foreign]).__enter__())
    assert_message(OpError, """@@""", lambda: g.exp(token))


def test_branches(s: Scene) -> None:
    g, x, y, b = s.g, s.x, s.y, s.b
    leaked: list[Any] = []
    g.if_else(b, lambda: leaked.append(x * 2) or x, lambda: x)
    assert_message(OpError, """@@""", lambda: g.if_else(x, lambda: x, lambda: x))
    assert_message(GraphError, """@@""", lambda: g.if_else(b, lambda: x))
    assert_message(GraphError, """@@""", lambda: g.if_else(b, lambda: x, lambda: [x, x]))
    assert_message(GraphError, """@@""", lambda: g.if_else(b, lambda: x, lambda: y))
    assert_message(GraphError, """@@""", lambda: g.if_else(b, lambda: x, lambda: g.cast(x, sw.float64)))
    assert_message(GraphError, """@@""", lambda: g.if_else(b, lambda: x, lambda: g.assign(s.v, x)))
    assert_message(GraphError, """@@""", lambda: g.if_else(b, lambda: x, lambda: s.foreign))
    assert_message(GraphError, """@@""", lambda: leaked[0] + 1)
    assert_message(GraphError, """@@""", lambda: g.if_else(b, lambda: leaked[0], lambda: x))
    assert_message(GraphError, """@@""", lambda: g.compile([leaked[0]]))


def test_loops(s: Scene) -> None:
    g, x, y, i = s.g, s.x, s.y, s.i
    less = g.sum(x) < 1.0
    assert_message(GraphError, """@@""", lambda: g.for_loop(3, [x]))
    assert_message(GraphError, """@@""", lambda: g.for_loop(initial=[x], body=lambda k, v: [v]))
    assert_message(GraphError, """@@""", lambda: g.for_loop(3, [x], lambda k, v: [v], upper=4))
    assert_message(GraphError, """@@""", lambda: g.for_loop(3, [x], lambda k, v: [v, v]))
    assert_message(GraphError, """@@""", lambda: g.for_loop(3, x, lambda k, v: v[0]))
    assert_message(GraphError, """@@""", lambda: g.for_loop(3, x, lambda k, v: g.concat([v, v], axis=0)))
    assert_message(GraphError, """@@""", lambda: g.for_loop(3, x, lambda k, v: g.cast(v, sw.float16)))
    assert_message(OpError, """@@""", lambda: g.for_loop(1.5, x, lambda k, v: v))
    assert_message(OpError, """@@""", lambda: g.for_loop(i, x, lambda k, v: v))
    assert_message(GraphError, """@@""", lambda: g.for_loop(3, s.foreign, lambda k, v: v + x))
    assert_message(GraphError, """@@""", lambda: g.for_loop(3, lambda k, v: v))
    assert_message(GraphError, """@@""", lambda: g.for_loop(3, x, lambda v: v))
    assert_message(GraphError, """@@""", lambda: g.while_loop([x], lambda v: v, lambda v: [v]))
    assert_message(GraphError, """@@""", lambda: g.while_loop([x], lambda v: (less, [v, v]), lambda v, w: [v, w]))
    assert_message(GraphError, """@@""", lambda: g.while_loop([x], lambda v: (less, y), lambda v: [v]))
    assert_message(OpError, """@@""", lambda: g.while_loop([x], lambda v: (v < 1.0, [v]), lambda v: [v]))


# --- compiling -----------------------------------------------------------------------------------------------------------------
def test_compiling(s: Scene) -> None:
    g, x, y = s.g, s.x, s.y
    total = g.sum(x) + g.sum(y)
    assert_message(GraphError, """@@""", lambda: g.compile(["x"]))
    assert_message(GraphError, """@@""", lambda: g.compile([s.foreign]))
    assert_message(GraphError, """@@""", lambda: g.compile([total], feeds=[x]))
    assert_message(GraphError, """@@""", lambda: g.compile([total], feeds=[x, y, total]))
    assert_message(GraphError, """@@""", lambda: g.compile([total], feeds=[x, y, y]))
    assert_message(GraphError, """@@""", lambda: g.compile([total], feeds={"x": ONES}))  # type: ignore[dict-item]
    assert_message(GraphError, """@@""", lambda: g.compile([total], feeds=x))  # type: ignore[arg-type]
    assert_message(FeedError, """@@""", lambda: g.compile([total], feeds={x: (2, 3), y: (2, 5)}))
    assert_message(FeedError, """@@""", lambda: g.compile([total], feeds={x: (2, 3), y: (2,)}))
    assert_message(FeedError, """@@""", lambda: g.compile([total], feeds={x: (2, 3), y: None}))
    assert_message(CompileError, """@@""", lambda: g.compile([total], device="quantum"))
    assert_message(CompileError, """@@""", lambda: g.compile([total], device="cpu:7"))
    assert_message(CompileError, """@@""", lambda: g.compile([total], device=5))  # type: ignore[arg-type]
    assert_message(CompileError, """@@""", lambda: sw.CompileOptions(threads=0))
    assert_message(CompileError, """@@""", lambda: sw.CompileOptions(iteration_limit=-1))
    assert_message(GraphError, """@@""", lambda: g.gradients(s.foreign, [x]))
    assert_message(GraphError, """@@""", lambda: g.gradients(x, [x]))


# --- running -------------------------------------------------------------------------------------------------------------------
def test_feeds(s: Scene) -> None:
    g, x, y, i = s.g, s.x, s.y, s.i
    exe = g.compile([g.sum(x) + g.sum(y) + g.cast(g.sum(i), sw.float32)])
    good = [ONES, np.ones((5, 4), np.float32), np.ones(3, np.int32)]
    exe.run(good)
    assert_message(FeedError, """@@""", lambda: exe.run(good[:2]))
    assert_message(FeedError, """@@""", lambda: exe.run([*good, ONES]))
    assert_message(FeedError, """@@""", lambda: exe.run({x: good[0], y: good[1]}))
    assert_message(FeedError, """@@""", lambda: exe.run({x: good[0], y: good[1], "z": good[2]}))
    assert_message(FeedError, """@@""", lambda: exe.run({x: good[0], y: good[1], s.foreign: good[2]}))
    assert_message(FeedError, """@@""", lambda: exe.run(3))  # type: ignore[arg-type]
    assert_message(FeedError, """@@""", lambda: exe.run([ONES[0], *good[1:]]))
    assert_message(FeedError, """@@""", lambda: exe.run([ONES.T, *good[1:]]))
    assert_message(FeedError, """@@""", lambda: exe.run([ONES.astype(np.float64), *good[1:]]))
    assert_message(FeedError, """@@""", lambda: exe.run([ONES.astype(">f8"), *good[1:]]))
    assert_message(FeedError, """@@""", lambda: exe.run([*good[:2], [1.5, 2, 3]]))
    assert_message(FeedError, """@@""", lambda: exe.run([*good[:2], [2**31, 2, 3]]))
    assert_message(FeedError, """@@""", lambda: exe.run([*good[:2], [[1], [2, 3]]]))
    assert_message(FeedError, """@@""", lambda: exe.run([*good[:2], ["a", "b", "c"]]))
    assert_message(FeedError, """@@""", lambda: exe.run([*good[:2], None]))
    assert_message(FeedError, """@@""", lambda: exe.run([*good[:2], object()]))
    assert_message(FeedError, """@@""", lambda: exe.run([*good[:2], np.zeros(3, "M8[s]")]))
    assert_message(FeedError, """@@""", lambda: exe.run([*good[:2], i]))
    assert_message(FeedError, """@@""", lambda: exe.output_types([(2, 3), (5, 5), (3,)]))
    assert_message(FeedError, """@@""", lambda: exe.output_types([(2, 3)]))
    assert_message(FeedError, """@@""", lambda: exe.run_async([ONES.T, *good[1:]]).result())
    assert_message(FeedError, """@@""", lambda: g.run({x: ONES.T}, targets=[g.exp(x)]))


def test_sizes_that_disagree() -> None:
    g = sw.Graph()
    a, b = g.placeholder(("n", 3), name="a"), g.placeholder(("n", "m"), name="b")
    exe = g.compile([a + g.sum(b, axis=1, keepdims=True)])
    assert_message(FeedError, """@@""", lambda: exe.run([np.ones((2, 3), np.float32), np.ones((4, 1), np.float32)]))
    square = g.placeholder(("k", "k"), name="square")
    exe = g.compile([square @ square])
    assert_message(FeedError, """@@""", lambda: exe.run([np.ones((2, 3), np.float32)]))


def guarded(build: Any, *ranks: int) -> sw.Executable:
    g = sw.Graph()
    return g.compile([build(g, *(g.placeholder((None,) * r, name=n) for r, n in zip(ranks, "abc", strict=False)))])


def test_guards() -> None:
    """Sizes that only a run tells: the message names the op, what must hold, the sizes, and the line that built it."""
    add = guarded(lambda g, a, b: a + b, 2, 2)
    matmul = guarded(lambda g, a, b: a @ b, 2, 2)
    reshape = guarded(lambda g, a: g.reshape(a, (-1, 4)), 2)
    pick = guarded(lambda g, a: a[5], 1)
    concat = guarded(lambda g, a, b: g.concat([a, b], axis=0), 2, 2)
    window = guarded(lambda g, a: g.stencil(a, [1, 1, 1, 1]), 1)
    branch = guarded(lambda g, a, b: g.if_else(g.sum(a) > 0.0, lambda: a, lambda: b), 1, 1)
    top = guarded(lambda g, a: g.top_k(a, 3)[0], 1)
    three, four = np.ones(3, np.float32), np.ones(4, np.float32)
    wide, tall = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    assert_message(FeedError, """@@""", lambda: add.run([wide, tall]))
    assert_message(FeedError, """@@""", lambda: matmul.run([wide, wide]))
    assert_message(FeedError, """@@""", lambda: reshape.run([wide]))
    assert_message(FeedError, """@@""", lambda: pick.run([three]))
    assert_message(FeedError, """@@""", lambda: concat.run([wide, tall]))
    assert_message(FeedError, """@@""", lambda: window.run([three]))
    assert_message(FeedError, """@@""", lambda: branch.run([three, four]))
    assert_message(FeedError, """@@""", lambda: top.run([three[:2]]))


def test_runs_that_cannot_finish(s: Scene) -> None:
    g = s.g
    huge = g.compile([g.broadcast(g.reshape(s.x, (2, 3, 1, 1)), (2, 3, 2**25, 2**25))])
    huger = g.compile([g.broadcast(g.reshape(s.x, (2, 3, 1, 1)), (2, 3, 2**40, 2**40))])
    any_ = g.placeholder((None, None), name="any")
    copied = g.compile([g.sum(any_)])
    claim = np.broadcast_to(np.float32(1), (2**25, 2**25))
    endless = g.while_loop(s.x, lambda v: (True, v), lambda v: v + 1.0)
    limited = g.compile([endless], options=sw.CompileOptions(iteration_limit=1000))
    queue = sw.CommandQueue()
    queue.close()
    assert_message(ExecutionError, """@@""", lambda: huge.run([ONES]))
    assert_message(ExecutionError, """@@""", lambda: huger.run([ONES]))
    assert_message(ExecutionError, """@@""", lambda: copied.run([claim]))
    assert_message(ExecutionError, """@@""", lambda: limited.run([ONES]))
    assert_message(ExecutionError, """@@""", lambda: limited.run_async([ONES], queue=queue))
