"""Dividing a stage where its expression changes: out[i] = i < n ? a : b becomes two stages, each without the question.

Concatenation, padding by pieces and the like come out as plain copies.
"""

from __future__ import annotations

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.loops.affine import affine
from stitchwork.loops.expr import Axis, Call, Expr, Reduce, extent, substitute, transform, walk
from stitchwork.loops.kernel import LoopKernel, Stage

_PIECES = 64


def split_ranges(kernel: LoopKernel) -> list[LoopKernel]:
    """The kernel as one kernel per piece; itself where nothing divides it (or it has several stages)."""
    if len(kernel.stages) != 1:
        return [kernel]
    pieces = _split(kernel.root, _PIECES)
    return [kernel] if len(pieces) == 1 else [LoopKernel([p], kernel.name, kernel.ops) for p in pieces]


def _split(stage: Stage, most: int) -> list[Stage]:
    found = _question(stage)
    if found is None or most < 2:
        return [stage]
    axis, bound = found
    low = _piece(stage, axis, 0, bound, bound, True)
    high = _piece(stage, axis, bound, axis.extent - bound, bound, False)
    kept = [p for p in (low, high) if not any(isinstance(a.extent, int) and a.extent == 0 for a in p.axes)]
    return [s for p in kept for s in _split(p, most // 2 if p is low else most - 1)]


def _question(stage: Stage) -> tuple[Axis, Size] | None:
    """(axis, n) of a condition axis < n that a select outside reductions asks, where 0 <= n <= extent is certain."""
    inside: set[Expr] = set()
    for e in walk(stage.value):
        if isinstance(e, Reduce):
            inside.update(walk(e.body))
    for e in walk(stage.value):
        if isinstance(e, Call) and e.fn == "select" and e not in inside:
            found = _comparison(e.args[0], stage.axes)
            if found is not None:
                return found
    return None


def _comparison(condition: Expr, axes: tuple[Axis, ...]) -> tuple[Axis, Size] | None:
    if not isinstance(condition, Call) or condition.fn != "lt":
        return None
    left, right = affine(condition.args[0]), affine(condition.args[1])
    if left is None or right is None or right.terms or len(left.terms) != 1:
        return None
    ((axis, c),) = left.terms.items()
    if axis not in axes or c != 1:
        return None
    bound = right.constant - left.constant
    return (axis, bound) if _certain(bound) and _certain(axis.extent - bound) else None


def _certain(n: Size) -> bool:
    return n >= 0 if isinstance(n, int) else dims.is_nonnegative(n)


def _piece(stage: Stage, axis: Axis, low: Size, size: Size, bound: Size, answer: bool) -> Stage:
    """The stage for `axis` in [low, low + size), where the comparison with `bound` has a known answer."""
    own = Axis(size, axis.name)
    place: dict[Expr, Expr] = {axis: own + extent(low)}

    def leaf(e: Expr) -> Expr | None:
        if isinstance(e, Call) and e.fn == "select" and _comparison(e.args[0], (axis,)) == (axis, bound):
            return transform(e.args[1] if answer else e.args[2], leaf, memo)
        return place.get(e)

    memo: dict[Expr, Expr] = {}
    value = transform(stage.value, leaf, memo)
    index = tuple(substitute(i, place) for i in stage.index or stage.axes)
    axes = tuple(own if a is axis else a for a in stage.axes)
    return Stage(stage.buffer, axes, value, stage.name, index)
