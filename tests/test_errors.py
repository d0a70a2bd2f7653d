"""Every mistake that a user can make gives an error of one shape; here each message is compared as a whole.

The files of `tests/errors/` hold them: the call, then class and message. To write what the calls raise now into the
files: `UPDATE_GOLDEN=1 pytest tests/test_errors.py`, and read the difference before you keep it.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stitchwork as sw
from stitchwork.errors import CompileError, ExecutionError, FeedError, GraphError, OpError, StitchworkError

FOLDER = Path(__file__).parent / "errors"
# Words that are NumPy's or Python's own and change between their versions.
FOREIGN = r"setting an array element.*|operands could not be broadcast.*|data type '\w+' not understood|'\w+' object .*"


def golden(name: str, *calls: Callable[[], Any]) -> None:
    """Each call raises what the file `name` says, and the message ends with a place inside the call."""
    made = "\n".join(map(raised, calls))
    path = FOLDER / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(made)
    assert made == path.read_text()


def raised(call: Callable[[], Any]) -> str:
    """The call's text, the class and message of what it raises; other places of this file read HERE in it."""
    source = inspect.getsource(call).strip().partition("  # type:")[0].removesuffix(",").removeprefix("lambda: ")
    with pytest.raises(StitchworkError) as e:
        call()
    message, _, place = str(e.value).rpartition("\n  at        ")
    file, _, line = place.rpartition(":")
    assert (file, int(line)) == (__file__, call.__code__.co_firstlineno), place
    message = re.sub(re.escape(__file__) + r":\d+", "HERE", re.sub(FOREIGN, "~", message))
    return f"{source}\n{type(e.value).__name__}: {message}\n"


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
        assert (e.op, e.problem, e.expected, e.got, e.hint, e.at) == (
            "op",
            "problem",
            "this",
            "that",
            "do it",
            "file:1",
        )
        assert isinstance(e, StitchworkError)
    assert str(OpError("op", "problem", at="")) == "op: problem"
    assert issubclass(OpError, ValueError) and issubclass(FeedError, ValueError) and issubclass(GraphError, ValueError)
    assert issubclass(ExecutionError, RuntimeError)


# --- building: placeholders, constants, variables ---------------------------------------------------------------------
def test_placeholders(s: Scene) -> None:
    g = s.g
    golden(
        "placeholders",
        lambda: g.placeholder((2, -1)),
        lambda: g.placeholder((2, 1.5)),
        lambda: g.placeholder(("two words",)),
        lambda: g.placeholder(("max",)),
        lambda: g.placeholder((2**63,)),
        lambda: g.placeholder(5),  # type: ignore[arg-type]
        lambda: g.placeholder((2,), "f99"),
        lambda: g.placeholder((2,), object),
        lambda: g.placeholder((2,), name="x"),
    )


def test_constants_and_variables(s: Scene) -> None:
    g, v = s.g, s.v
    golden(
        "state",
        lambda: g.constant("text"),
        lambda: g.constant([[1, 2], [3]]),
        lambda: g.constant(np.zeros(3), shape=(2,)),
        lambda: g.constant(1, dtype="f99"),
        lambda: g.constant(300, dtype=sw.uint8),
        lambda: g.variable(1.0, name="v"),
        lambda: g.variable(None),
        lambda: g.assign(v, np.zeros((3, 2), np.float32)),
        lambda: g.assign(v, s.y),
        lambda: g.assign(v, np.zeros((2, 3), np.float64)),
        lambda: s.other.assign(v, 1.0),
        lambda: g.assign(v, s.foreign),
        lambda: g.assign(s.x, s.x),  # type: ignore[arg-type]
        lambda: s.foreign + v,
        lambda: setattr(v, "value", np.zeros(3)),
    )


# --- building: ops ----------------------------------------------------------------------------------------------------
def test_operands(s: Scene) -> None:
    g, x, y, i = s.g, s.x, s.y, s.i
    golden(
        "operands",
        lambda: x + s.foreign,
        lambda: sw.exp(np.ones(3)),
        lambda: x + y,
        lambda: g.add(x, np.ones(2, np.float32)),
        lambda: x @ x,
        lambda: x + "text",
        lambda: x + None,
        lambda: x * y.shape[0],
        lambda: g.exp(i),
        lambda: i + 2**40,
        lambda: g.exp(),
        lambda: g.exp(x, x),
        lambda: g.exp(x, axis=1),
        lambda: g.sum(x, 0, axis=1),
        lambda: g.concat(x, axis=0),
        lambda: g.concat([x, i], axis=0),
        lambda: g.concat([], axis=0),
        lambda: g.gather(x, x),
        lambda: bool(x),
        lambda: list(x),
        lambda: len(x),
    )


def test_attributes(s: Scene) -> None:
    g, x = s.g, s.x
    image = g.placeholder((1, 8, 8, 3))
    golden(
        "attributes",
        lambda: g.sum(x, axis=2),
        lambda: g.sum(x, axis=(0, -2)),
        lambda: g.sum(x, axis="rows"),
        lambda: g.softmax(x, axis=5),
        lambda: g.reshape(x, (4, 2)),
        lambda: g.reshape(x, (-1, -1)),
        lambda: g.permute(x, (0, 0)),
        lambda: g.cast(x, "f99"),
        lambda: x[2],
        lambda: x[0, 0, 0],
        lambda: x["name"],
        lambda: g.slice(x, (0, 0), (2, 3), (1, 0)),
        lambda: g.broadcast(x, (3, 2)),
        lambda: g.split(x, 2, axis=1),
        lambda: g.conv2d(image, np.ones((3, 3, 4, 8), np.float32)),
        lambda: g.conv2d(image, np.ones((9, 9, 3, 8), np.float32)),
        lambda: g.conv2d(image, np.ones((3, 3, 3, 8), np.float32), padding="full"),
        lambda: g.stencil(x, [1, 2, 1], boundary="mirror"),
        lambda: g.stencil(x, [1, 2, 1], reduction="mean"),
        lambda: g.stencil(x, np.ones((1, 1, 1), np.float32)),
        lambda: g.gather_nd(x, np.zeros((2, 3), np.int32)),
        lambda: g.gather_nd(x, np.zeros((2, 1), np.int32), batch_dims=2),
        lambda: g.one_hot(x, 3),
        lambda: g.top_k(x, 4),
    )


# --- building: order and control flow ---------------------------------------------------------------------------------
def test_control_dependencies(s: Scene) -> None:
    g, x = s.g, s.x
    token = g.assign(s.v, s.x)
    golden(
        "order",
        lambda: g.control_dependency(s.foreign, [token]),
        lambda: g.control_dependency(x, [s.foreign]),
        lambda: g.control_dependency(x, ["update"]),  # type: ignore[list-item]
        lambda: g.control_dependencies([s.foreign]),
        lambda: g.control_dependency(token, [token]),
        lambda: g.assign(s.v, token),
        lambda: g.for_loop(3, [token], lambda k, v: [v]),
        lambda: g.exp(token),
    )


def test_branches(s: Scene) -> None:
    g, x, y, b = s.g, s.x, s.y, s.b
    leaked: list[Any] = []
    g.if_else(b, lambda: leaked.append(x * 2) or x, lambda: x)
    golden(
        "branches",
        lambda: g.if_else(x, lambda: x, lambda: x),
        lambda: g.if_else(b, lambda: x),
        lambda: g.if_else(b, lambda: x, lambda: [x, x]),
        lambda: g.if_else(b, lambda: x, lambda: y),
        lambda: g.if_else(b, lambda: x, lambda: g.cast(x, sw.float64)),
        lambda: g.if_else(b, lambda: x, lambda: g.assign(s.v, x)),
        lambda: g.if_else(b, lambda: x, lambda: s.foreign),
        lambda: leaked[0] + 1,
        lambda: g.if_else(b, lambda: leaked[0], lambda: x),
        lambda: g.compile([leaked[0]]),
    )


def test_loops(s: Scene) -> None:
    g, x, y, i = s.g, s.x, s.y, s.i
    less = g.sum(x) < 1.0
    golden(
        "loops",
        lambda: g.for_loop(3, [x]),
        lambda: g.for_loop(initial=[x], body=lambda k, v: [v]),
        lambda: g.for_loop(3, [x], lambda k, v: [v], upper=4),
        lambda: g.for_loop(3, [x], lambda k, v: [v, v]),
        lambda: g.for_loop(3, x, lambda k, v: v[0]),
        lambda: g.for_loop(3, x, lambda k, v: g.concat([v, v], axis=0)),
        lambda: g.for_loop(3, x, lambda k, v: g.cast(v, sw.float16)),
        lambda: g.for_loop(1.5, x, lambda k, v: v),
        lambda: g.for_loop(i, x, lambda k, v: v),
        lambda: g.for_loop(3, s.foreign, lambda k, v: v + x),
        lambda: g.for_loop(3, lambda k, v: v),
        lambda: g.for_loop(3, x, lambda: x),
        lambda: g.for_loop(3, x, lambda v: v),
        lambda: g.while_loop([x], lambda v: v, lambda v: [v]),
        lambda: g.while_loop([x], lambda v: (less, [v, v]), lambda v, w: [v, w]),
        lambda: g.while_loop([x], lambda v: (less, y), lambda v: [v]),
        lambda: g.while_loop([x], lambda v: (v < 1.0, [v]), lambda v: [v]),
    )


# --- compiling --------------------------------------------------------------------------------------------------------
def test_compiling(s: Scene) -> None:
    g, x, y = s.g, s.x, s.y
    total = g.sum(x) + g.sum(y)
    golden(
        "compiling",
        lambda: g.compile(["x"]),
        lambda: g.compile([s.foreign]),
        lambda: g.compile([total], feeds=[x]),
        lambda: g.compile([total], feeds=[x, y, total]),
        lambda: g.compile([total], feeds=[x, y, y]),
        lambda: g.compile([total], feeds={"x": ONES}),  # type: ignore[dict-item]
        lambda: g.compile([total], feeds={x: (2, 3), y: (2, 5)}),
        lambda: g.compile([total], feeds={x: (2, 3), y: (2,)}),
        lambda: g.compile([total], feeds={x: (2, 3), y: None}),
        lambda: g.compile([total], device="quantum"),
        lambda: g.compile([total], device="cpu:7"),
        lambda: g.compile([total], device=5),  # type: ignore[arg-type]
        lambda: sw.CompileOptions(threads=0),
        lambda: sw.CompileOptions(iteration_limit=-1),
        lambda: g.gradients(s.foreign, [x]),
        lambda: g.gradients(x, [x]),
    )


# --- running ----------------------------------------------------------------------------------------------------------
def test_feeds(s: Scene) -> None:
    g, x, y, i = s.g, s.x, s.y, s.i
    exe = g.compile([g.sum(x) + g.sum(y) + g.cast(g.sum(i), sw.float32)])
    good = [ONES, np.ones((5, 4), np.float32), np.ones(3, np.int32)]
    exe.run(good)
    golden(
        "feeds",
        lambda: exe.run(good[:2]),
        lambda: exe.run([*good, ONES]),
        lambda: exe.run({x: good[0], y: good[1]}),
        lambda: exe.run({x: good[0], y: good[1], "z": good[2]}),
        lambda: exe.run({x: good[0], y: good[1], s.foreign: good[2]}),
        lambda: exe.run(3),  # type: ignore[arg-type]
        lambda: exe.run([ONES[0], *good[1:]]),
        lambda: exe.run([ONES.T, *good[1:]]),
        lambda: exe.run([ONES.astype(np.float64), *good[1:]]),
        lambda: exe.run([ONES.astype(">f8"), *good[1:]]),
        lambda: exe.run([*good[:2], [1.5, 2, 3]]),
        lambda: exe.run([*good[:2], [2**31, 2, 3]]),
        lambda: exe.run([*good[:2], [[1], [2, 3]]]),
        lambda: exe.run([*good[:2], ["a", "b", "c"]]),
        lambda: exe.run([*good[:2], None]),
        lambda: exe.run([*good[:2], object()]),
        lambda: exe.run([*good[:2], np.zeros(3, "M8[s]")]),
        lambda: exe.run([*good[:2], i]),
        lambda: exe.output_types([(2, 3), (5, 5), (3,)]),
        lambda: exe.output_types([(2, 3)]),
        lambda: exe.run_async([ONES.T, *good[1:]]).result(),
        lambda: g.run({x: ONES.T}, targets=[g.exp(x)]),
    )


def test_sizes_that_disagree() -> None:
    g = sw.Graph()
    a, b = g.placeholder(("n", 3), name="a"), g.placeholder(("n", "m"), name="b")
    exe = g.compile([a + g.sum(b, axis=1, keepdims=True)])
    square = g.placeholder(("k", "k"), name="square")
    power = g.compile([square @ square])
    golden(
        "sizes",
        lambda: exe.run([np.ones((2, 3), np.float32), np.ones((4, 1), np.float32)]),
        lambda: power.run([np.ones((2, 3), np.float32)]),
    )


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
    golden(
        "guards",
        lambda: add.run([wide, tall]),
        lambda: matmul.run([wide, wide]),
        lambda: reshape.run([wide]),
        lambda: pick.run([three]),
        lambda: concat.run([wide, tall]),
        lambda: window.run([three]),
        lambda: branch.run([three, four]),
        lambda: top.run([three[:2]]),
    )


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
    golden(
        "running",
        lambda: huge.run([ONES]),
        lambda: huger.run([ONES]),
        lambda: copied.run([claim]),
        lambda: limited.run([ONES]),
        lambda: limited.run_async([ONES], queue=queue),
    )
