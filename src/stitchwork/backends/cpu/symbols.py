"""Which symbols a kernel's code needs."""

from __future__ import annotations

from collections.abc import Iterable

from stitchwork.ir.dims import Size, symbols_of
from stitchwork.loops.expr import Axis, Expr, Extent, Load, Reduce, walk
from stitchwork.loops.kernel import Kernel, LoopKernel, NestKernel
from stitchwork.loops.nest import For, If, Let, Statement, Store, While


def kernel_symbols(kernel: Kernel) -> set[str]:
    """Symbols of every size in a kernel: shapes of buffers, extents of axes, literals."""
    sizes: list[Size] = []
    match kernel:
        case LoopKernel():
            for stage in kernel.stages:
                sizes += [*stage.buffer.shape, *(a.extent for a in stage.axes)]
                sizes += _expression_sizes(stage.value)
        case NestKernel():
            for buffer in kernel.scratch:
                sizes += buffer.shape
            for s in kernel.statements:
                sizes += _statement_sizes(s)
        case _:
            sizes += [n for b in (*kernel.operands, kernel.buffer) for n in b.shape]
            sizes += _expression_sizes(kernel.epilogue)
    return set[str]().union(*map(symbols_of, sizes))


def _expression_sizes(expr: Expr) -> Iterable[Size]:
    for e in walk(expr):
        match e:
            case Load():
                yield from e.buffer.shape
            case Extent():
                yield e.size
            case Axis():
                yield e.extent
            case Reduce():
                yield from (a.extent for a in e.axes)
            case _:
                pass


def _statement_sizes(s: Statement) -> Iterable[Size]:
    match s:
        case For():
            exprs, inner = [s.lo, s.hi, s.axis], s.body
        case Store():
            yield from s.buffer.shape
            exprs, inner = [*s.index, s.value], []
        case Let():
            exprs, inner = [s.value], []
        case If():
            exprs, inner = [s.condition], [*s.then, *s.otherwise]
        case While():
            exprs, inner = [s.condition], s.body
    for e in exprs:
        yield from _expression_sizes(e)
    for statement in inner:
        yield from _statement_sizes(statement)
