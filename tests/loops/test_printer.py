"""Programs and kernels as text."""

from __future__ import annotations

from typing import Any

import pytest

import stitchwork as sw
from ops.cases import CASES, Case, build, make_operands
from stitchwork import pipeline
from stitchwork.backends.cpu.backend import CpuBackend
from stitchwork.ir import dims
from stitchwork.ir.dtypes import bool_, float32, int64
from stitchwork.ir.graph import Module
from stitchwork.loops.expr import Axis, Buffer, call, cast, extent, maximum, reduce, total, where
from stitchwork.loops.kernel import NestKernel, Stage
from stitchwork.loops.memory import plan
from stitchwork.loops.nest import Builder
from stitchwork.loops.printer import print_kernel, print_program, print_stage

N = dims.symbol("n")
FIRST = list({c.cls: c for c in reversed(CASES)}.values())


def stage(value: Any, *axes: Axis) -> str:
    return print_stage(Stage(named("out", tuple(a.extent for a in axes)), axes, value))


def named(name: str, shape: tuple[Any, ...]) -> Buffer:
    builder = Builder()
    return builder.array(float32, shape, name)


def test_a_stage_is_one_line() -> None:
    x, y, i, j = named("x", (N, 5)), named("y", (5,)), Axis(N), Axis(5)
    assert stage(x[i, j] + y[j], i, j) == "out[i0, i1] = (x[i0, i1] + y[i1])  for i0 < n, i1 < 5"
    assert stage(-x[i, j], i, j) == "out[i0, i1] = -x[i0, i1]  for i0 < n, i1 < 5"
    assert stage(maximum(x[0, 0], 1.5)) == "out[] = max(x[0, 0], 1.5)"


def test_indices_and_boundaries() -> None:
    x, i = named("x", (N,)), Axis(N)
    assert stage(x[(i + 1) * 2], i) == "out[i0] = x[(i0 + 1) * 2]  for i0 < n"
    assert stage(x.at(i - 1, boundary="clamp"), i) == "out[i0] = x[i0 - 1 | clamp]  for i0 < n"
    assert stage(x.at(i - 1, boundary="constant", fill=2.0), i) == "out[i0] = x[i0 - 1 | 2.0]  for i0 < n"
    assert stage(x[i % extent(N - 1)], i) == "out[i0] = x[i0 % (n - 1)]  for i0 < n"
    condition = where(i < 3, x[i], cast(i, float32))
    assert stage(condition, i) == "out[i0] = select((i0 < 3), x[i0], f32(i0))  for i0 < n"


def test_reductions_name_their_axes_by_depth() -> None:
    x, i, j, k = named("x", (N, 5, 7)), Axis(N), Axis(5), Axis(7)
    inner = reduce("max", x[i, j, k], k)
    assert stage(total(inner, j), i) == "out[i0] = sum(r0 < 5: max(r1 < 7: x[i0, r0, r1]))  for i0 < n"
    assert stage(total(x[i, j, k], j, k), i) == "out[i0] = sum(r0 < 5, r1 < 7: x[i0, r0, r1])  for i0 < n"


def test_what_is_shared_is_written_once() -> None:
    x, i, j = named("x", (N, 5)), Axis(N), Axis(5)
    top = reduce("max", x[i, j], j)
    e = call("exp", x[i, j] - top)
    assert stage(total(e * e, j) + top, i).split("\n") == [
        "v = max(r0 < 5: x[i0, r0])",
        "out[i0] = (sum(r0 < 5: v_2 = exp((x[i0, r0] - v)); (v_2 * v_2)) + v)  for i0 < n",
    ]
    doubled = x[i, j]
    for _ in range(64):  # 2^64 terms, were they written out
        doubled = doubled + doubled
    assert len(stage(doubled, i, j)) < 3000
    index = i
    for _ in range(64):
        index = index + index
    assert len(stage(x[index, 0], i)) < 9000


def test_nests() -> None:
    b = Builder()
    x, out = named("x", (N,)), named("out", (N,))
    with b.loop(N, kind="parallel", name="i") as i:
        best = b.variable(0.0, float32, "best")
        with b.when(x[i] > best):
            b.assign(best, x[i])
        with b.otherwise():
            b.store(out, (i,), 1.0)
        going = b.variable(True, bool_, "going")
        with b.while_(going):
            b.assign(going, False)
        b.store(out, (i + 1,), best, combine="add", boundary="drop")
    assert print_kernel(NestKernel(b.statements, [b.array(int64, (N, 2), "order")])).split("\n") == [
        "scratch order: i64[n, 2]",
        "parallel for i in 0..n",
        "  best = 0.0",
        "  if x[i] > best",
        "    best = x[i]",
        "  else",
        "    out[i] = 1.0",
        "  going = true",
        "  while going",
        "    going = false",
        "  out[i + 1 | drop] add= best",
    ]


def test_program() -> None:
    g = sw.Graph()
    x, k = g.placeholder(("n",), name="x"), g.placeholder((), sw.int64, name="k")
    state = g.variable(1.0, name="w")
    chosen = g.if_else(k > 0, lambda: x * 2.0, lambda: x)
    last = g.while_loop([chosen, k], lambda v, i: (i < 3, [v, i]), lambda v, i: [v + state.read(), i + 1])
    g.module.body.results = (last[0],)
    text = print_program(stitched(g.module))
    assert text.startswith(
        "program of n\n  input x: f32[n]\n  input k: i64[]\n  output out0: f32[n]\n  variable w: f32[]\n"
    )
    for line in ("if t0", "else", "loop", "launch less_than", "copy out0 = carried"):
        assert any(part.strip() == line for part in text.split("\n")), text
    assert any(part.strip().startswith("while t") for part in text.split("\n"))
    assert "[i0] = (x[i0] * 2.0)  for i0 < n" in text


def test_arena() -> None:
    g = sw.Graph()
    x = g.placeholder((16, 16), name="x")
    g.module.body.results = (g.sort(g.sort(x, axis=0), axis=1),)
    program = stitched(g.module)
    arena = plan(program)
    text = print_program(program, arena)
    assert text.count(" in slot ") == len(arena.slot_of) > 0
    assert f"  slot 0: {arena.sizes[0]} bytes\n" in text


@pytest.mark.parametrize("case", FIRST, ids=str)
def test_every_op_prints(case: Case) -> None:
    text = print_program(stitched(build(case, make_operands(case)).module))
    assert text.startswith("program") and "<" not in text.replace(" < ", "").replace("<<", "").replace(" <= ", "")
    assert max(map(len, text.split("\n"))) < 20000


def stitched(module: Module) -> Any:
    return pipeline.run(module, CpuBackend(), "stitch")
