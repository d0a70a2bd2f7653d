"""Sliding windows as tensors: all windows of a tensor, and the adjoint that adds windows up again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, cast, extent, total, where
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, operand, require_at_least, require_equal, sample
from stitchwork.ops._windows import (
    Pads,
    Sizes,
    inside_positions,
    map_inside,
    masked,
    owners,
    position,
    positions,
    take_windows,
    wide,
    widened,
    window_axes,
    window_counts,
)


class ExtractWindows(Op, name="extract_windows", internal=True):
    """All windows over the last dims of x: [leading..., sizes...] -> [leading..., counts..., window...].

    Element p of window o is x[..., o * stride + p * dilation - before]; outside x, what `boundary` says (see Load).
    """

    x: Operand = operand("...", "number bool")
    window: Sizes
    strides: Ints
    padding: Pads
    dilation: Ints
    boundary: str = "constant"
    fill: Any = 0

    def infer(self, x: TensorType) -> TensorType:
        rank = len(self.window)
        sizes = x.shape[x.rank - rank :]
        if self.boundary != "constant":
            check_not_empty(self, sizes)
        counts = window_counts(self.name, sizes, self.padding, self.window, self.strides, self.dilation)
        return x.with_shape((*x.shape[: x.rank - rank], *counts, *self.window))

    def numpy(self, x: Array) -> Array:
        window: Any = self.window
        pads: Any = self.padding
        return take_windows(x, window, self.strides, pads, self.dilation, self.boundary, self.fill)

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        rank = len(self.window)
        lead, o, p = out[: -2 * rank], out[-2 * rank : -rank], out[-rank:]
        index = [
            position(i, s, lo, q, d)
            for i, s, (lo, _), q, d in zip(o, self.strides, self.padding, p, self.dilation, strict=True)
        ]
        return x.at(*lead, *index, boundary=self.boundary, fill=self.fill)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (windows_cotangent(ct, x.shape, self.window, self.strides, self.padding, self.dilation, self.boundary),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 5), window=(3,), strides=(2,), padding=((1, 1),), dilation=(1,))
        yield sample(
            (4, 5), window=(2, 3), strides=(1, 2), padding=((1, 0), (0, 3)), dilation=(2, 1), boundary="reflect"
        )
        for boundary in ("clamp", "symmetric", "periodic", "antiperiodic"):
            yield sample((4,), window=(3,), strides=(1,), padding=((6, 5),), dilation=(2,), boundary=boundary)
        yield sample((1,), window=(3,), strides=(1,), padding=((3, 2),), dilation=(1,), boundary="reflect")
        yield sample((2, 0, 3), window=(2,), strides=(1,), padding=((0, 0),), dilation=(1,))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "larger than the padded input", sample((2,), window=(3,), strides=(1,), padding=((0, 0),), dilation=(1,))
        yield (
            "has no elements",
            sample((0,), window=(1,), strides=(1,), padding=((1, 0),), dilation=(1,), boundary="clamp"),
        )


def check_not_empty(op: Op, sizes: Sizes) -> None:
    """Raises OpError for an empty dim, whose boundary would have nothing to show; unknown sizes get guards."""
    for d, n in enumerate(sizes):
        if not require_at_least(op.name, n, 1, f"spatial dim {d} has elements"):
            raise op.fail(f"spatial dim {d} has no elements", expected="size >= 1", got=str(n))


class FoldWindows(Op, name="fold_windows", internal=True):
    """Adjoint of `extract_windows` with zeros outside: each window element is added to where it came from.

    y [leading..., counts..., window...] -> [leading..., sizes...].
    """

    y: Operand = operand("...", "number")
    sizes: Sizes
    strides: Ints
    padding: Pads
    dilation: Ints

    def infer(self, y: TensorType) -> TensorType:
        rank = len(self.sizes)
        counts = y.shape[-2 * rank : -rank]
        made = window_counts(self.name, self.sizes, self.padding, y.shape[-rank:], self.strides, self.dilation)
        for d in range(rank):
            if not require_equal(self.name, made[d], counts[d], f"number of windows along spatial dim {d}"):
                raise self.fail("the number of windows does not fit", expected=str(made), got=str(counts))
        return y.with_shape((*y.shape[: -2 * rank], *self.sizes))

    def numpy(self, y: Array) -> Array:
        rank = len(self.sizes)
        lead = y.shape[: -2 * rank]
        made = np.zeros((*lead, *map(int, self.sizes)), wide(y).dtype)
        for p in np.ndindex(y.shape[-rank:]):
            put: list[Array] = []
            taken: list[Array] = []
            for d, q in enumerate(p):
                before: Any = self.padding[d][0]
                at = positions(y.shape[len(lead) + d]) * self.strides[d] + q * self.dilation[d] - int(before)
                valid = (at >= 0) & (at < made.shape[len(lead) + d])
                put.append(at[valid])
                taken.append(np.flatnonzero(valid))
            made[(..., *np.ix_(*put))] += wide(y)[(..., *p)][(..., *np.ix_(*taken))]
        return made.astype(y.dtype)

    def compute(self, out: tuple[Axis, ...], y: Buffer) -> Expr:
        rank = len(self.sizes)
        lead, at = out[: len(out) - rank], out[len(out) - rank :]
        p = window_axes(y.shape[-rank:])
        index, whole = owners(at, p, self.strides, self.padding, self.dilation)
        value = y.at(*lead, *index, *p, boundary="constant")
        return cast(total(masked(whole, widened(value)), *p), y.dtype)

    def vjp(self, ct: Value, y: Value) -> tuple[Value]:
        window = y.shape[-len(self.sizes) :]
        made = F.extract_windows(ct, window=window, strides=self.strides, padding=self.padding, dilation=self.dilation)
        return (made if made.shape == y.shape else F.reshape(made, y.shape),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 3, 3), sizes=(5,), strides=(2,), padding=((1, 1),), dilation=(1,))
        yield sample((3, 3, 2, 3), sizes=(4, 5), strides=(1, 2), padding=((1, 0), (0, 3)), dilation=(2, 1))
        yield Sample(
            ((2, 3, 3),),
            {"sizes": (5,), "strides": (2,), "padding": ((1, 1),), "dilation": (1,)},
            dtype="f16",
            grad=False,
        )


class FoldBoundary(Op, name="fold_boundary", internal=True):
    """Adjoint of reading outside a dim: what was read at positions -before, ... of `axis` is added to where it came
    from.

    y has before + size + after elements along `axis`; the result has `size`. See Load for what a boundary maps where.
    """

    y: Operand = operand("...", "number")
    axis: int
    size: Size
    before: Size
    boundary: str

    def infer(self, y: TensorType) -> TensorType:
        check_not_empty(self, (self.size,))
        return y.with_shape((*y.shape[: self.axis], self.size, *y.shape[self.axis + 1 :]))

    def numpy(self, y: Array) -> Array:
        n: Any = self.size
        before: Any = self.before
        index, exists, flip = inside_positions(positions(y.shape[self.axis]) - int(before), n, self.boundary)
        moved = np.moveaxis(wide(y), self.axis, 0)
        moved = np.where((flip & exists).reshape(-1, *(1,) * (y.ndim - 1)), -moved, moved)
        made = np.zeros((n, *moved.shape[1:]), moved.dtype)
        np.add.at(made, index[exists], moved[exists])
        return np.moveaxis(made, 0, self.axis).astype(y.dtype)

    def loops(self, b: Any, outs: tuple[Buffer, ...], y: Buffer) -> None:
        """Rows before the axis in parallel, those after it as lanes; serial along the axis itself."""
        made = outs[0]
        with b.nest(y.shape[: self.axis]) as lead:
            with b.loop(self.size) as i, b.nest(y.shape[self.axis + 1 :], kind="vector") as rest:
                b.store(made, (*lead, i, *rest), 0)
            with b.loop(y.shape[self.axis]) as j, b.nest(y.shape[self.axis + 1 :], kind="vector") as rest:
                index, flip = map_inside(j - extent(self.before), self.size, self.boundary)
                value = y[(*lead, j, *rest)]
                b.store(made, (*lead, index, *rest), value if flip is None else where(flip, -value, value), "add")

    def vjp(self, ct: Value, y: Value) -> tuple[Value]:
        lead = tuple(range(self.axis))
        order = (*lead, *range(self.axis + 1, y.rank), self.axis)
        n = y.shape[self.axis]
        grown = F.extract_windows(
            F.permute(ct, order), window=(1,), strides=(1,), dilation=(1,), boundary=self.boundary,
            padding=((self.before, n - self.size - self.before),),
        )  # fmt: skip
        grown = F.reshape(grown, grown.shape[:-1])
        return (F.permute(grown, (*lead, y.rank - 1, *range(self.axis, y.rank - 1))),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for boundary in ("clamp", "reflect", "symmetric", "periodic", "antiperiodic"):
            yield sample((2, 9, 3), axis=1, size=4, before=3, boundary=boundary)
            yield sample((12,), axis=0, size=2, before=5, boundary=boundary)
        yield sample((4,), axis=0, size=1, before=2, boundary="reflect")


def windows_cotangent(
    ct: Value, shape: Sizes, window: Sizes, strides: Ints, padding: Pads, dilation: Ints, boundary: str
) -> Value:
    """Cotangent of x [leading..., sizes...] given that of its windows, [leading..., counts..., window...]."""
    rank = len(window)
    sizes = shape[len(shape) - rank :]
    if boundary == "constant":
        return F.fold_windows(ct, sizes=sizes, strides=strides, padding=padding, dilation=dilation)
    covered = tuple(n + lo + hi for n, (lo, hi) in zip(sizes, padding, strict=True))
    made = F.fold_windows(ct, sizes=covered, strides=strides, padding=((0, 0),) * rank, dilation=dilation)
    return fold_boundaries(made, shape, padding, boundary)


def fold_boundaries(y: Value, shape: Sizes, padding: Pads, boundary: str) -> Value:
    """`y` covers the last dims of `shape` and their padding; what lies in the padding goes where it came from."""
    first = len(shape) - len(padding)
    for d, (lo, hi) in enumerate(padding, first):
        if (lo, hi) != (0, 0):
            y = F.fold_boundary(y, axis=d, size=shape[d], before=lo, boundary=boundary)
    return y
