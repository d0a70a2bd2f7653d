"""Tensors joined along an axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Content, Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, broadcast_index, extent, where
from stitchwork.ops._build import F
from stitchwork.ops._contents import known, moved
from stitchwork.ops._op import (
    Array,
    Ints,
    Op,
    Operand,
    Sample,
    axis_index,
    broadcast_shapes,
    operand,
    sample,
)
from stitchwork.ops._regions import Shape
from stitchwork.ops.slicing import fill_of


def _no_tensors(op: type[Op], xs: Sequence[Any]) -> None:
    if not xs:
        raise op().fail("no tensors", expected="at least one", got="an empty list")


class Concat(Op, name="concat", aliases=("concatenate",)):
    """Tensors one after the other along `axis`. Their other dims broadcast; mixed dtypes are promoted.

    With `interleave` the tensors, of one size along `axis` or 1, take turns: [1, 2, 3] and [4, 5, 6] give
    [1, 4, 2, 5, 3, 6].
    """

    xs: Operand = operand("...", "any", variadic=True)
    axis: int = 0
    interleave: bool = False
    promotes = True
    synonyms = {"dimension": "axis", "tensors": "xs"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        _no_tensors(cls, types[0])
        rank = types[0][0].rank
        if any(t.rank != rank for t in types[0]):
            raise cls().fail("the tensors differ in rank", expected=f"rank {rank}", got="  ".join(map(str, types[0])))
        return {**attrs, "axis": axis_index(cls.name, known(cls.name, "axis", attrs.get("axis", 0)), rank)}

    def _shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """The operands' shapes once broadcast."""
        if self.interleave:
            return [broadcast_shapes(self.name, *shapes)] * len(shapes)
        a = self.axis
        common = broadcast_shapes(self.name, *((*s[:a], 1, *s[a + 1 :]) for s in shapes))
        return [(*common[:a], s[a], *common[a + 1 :]) for s in shapes]

    def infer(self, xs: tuple[TensorType, ...]) -> TensorType:
        shapes = self._shapes([x.shape for x in xs])
        total: Size = sum((s[self.axis] for s in shapes[1:]), shapes[0][self.axis])
        return xs[0].with_shape((*shapes[0][: self.axis], total, *shapes[0][self.axis + 1 :]))

    def numpy(self, xs: Sequence[Array]) -> Array:
        whole = [np.broadcast_to(x, s) for x, s in zip(xs, _numpy_shapes(self, xs), strict=True)]
        if not self.interleave:
            return np.concatenate(whole, axis=self.axis)
        made = np.stack(whole, axis=self.axis + 1)
        return made.reshape(*whole[0].shape[: self.axis], -1, *whole[0].shape[self.axis + 1 :])

    def compute(self, out: tuple[Axis, ...], xs: tuple[Buffer, ...]) -> Expr:
        position = out[self.axis]
        if self.interleave:
            return self._interleaved(out, position, xs)
        starts: list[Size] = [0]
        for x in xs:
            starts.append(starts[-1] + x.shape[self.axis])
        found: Expr | None = None
        for k, x in reversed(list(enumerate(xs))):
            here = self._element(out, position - extent(starts[k]), x)
            found = here if found is None else where(position < extent(starts[k + 1]), here, found)
        assert found is not None
        return found

    def _interleaved(self, out: tuple[Axis, ...], position: Expr, xs: tuple[Buffer, ...]) -> Expr:
        turn, place = position % len(xs), position // len(xs)
        size: Size = 1
        for x in xs:
            size = dims.broadcast(size, x.shape[self.axis])
        found: Expr | None = None
        for k, x in reversed(list(enumerate(xs))):
            here = self._element(out, broadcast_index(place, size, x.shape[self.axis]), x)
            found = here if found is None else where(turn.eq(k), here, found)
        assert found is not None
        return found

    def _element(self, out: tuple[Axis, ...], position: Expr, x: Buffer) -> Expr:
        index = [broadcast_index(i, i.extent, n) for i, n in zip(out, x.shape, strict=True)]
        index[self.axis] = position
        return x.at(*index, boundary="constant", fill=fill_of(x.dtype, 0))

    def vjp(self, ct: Value, xs: tuple[Value, ...]) -> tuple[Any]:
        a = self.axis
        shapes = self._shapes([x.shape for x in xs])
        parts: list[Value] = []
        start: Size = 0
        for k, s in enumerate(shapes):
            starts = [0] * len(s)
            strides = [1] * len(s)
            first: list[Size] = [*starts[:a], k if self.interleave else start, *starts[a + 1 :]]
            strides[a] = len(xs) if self.interleave else 1
            parts.append(F.strided_slice(ct, starts=first, sizes=s, strides=strides))
            start = start + s[a]
        return (tuple(parts),)

    def permuted(self, permutation: Ints) -> Op:
        return dataclasses.replace(self, axis=permutation.index(self.axis))

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return moved(self, types, contents)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample([(3, 4), (3, 2)], axis=1)
        yield sample([(3, 4), (1, 4), (2, 4)])
        yield sample([(3, 1, 4), (1, 2, 4)], axis=-1)
        yield sample([(5,)], axis=0)
        yield sample([(3,), (0,), (2,)])
        yield sample([(2, 3), (2, 3), (2, 3)], axis=1, interleave=True)
        yield sample([(2, 3), (2, 1)], axis=-1, interleave=True)
        yield Sample(([(3,), np.arange(3, dtype=np.float64)],), {}, grad=False)
        yield Sample(([(3,), (2,)],), {}, dtype="bool", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "shapes do not broadcast", sample([(3, 4), (2, 4)], axis=1)
        yield "differ in rank", sample([(3, 4), (3,)])
        yield "`axis` is out of range", sample([(3, 4), (3, 4)], axis=2)
        yield "no tensors", sample([])
        yield "is not a list", sample((3, 4))


def _numpy_shapes(op: Concat, xs: Sequence[Array]) -> list[Ints]:
    if op.interleave:
        return [np.broadcast_shapes(*(x.shape for x in xs))] * len(xs)
    a = op.axis
    common = np.broadcast_shapes(*((*x.shape[:a], 1, *x.shape[a + 1 :]) for x in xs))
    return [(*common[:a], x.shape[a], *common[a + 1 :]) for x in xs]


class Stack(Op, name="stack"):
    """Tensors along a new `axis` of the result. Shapes broadcast, as do ranks; mixed dtypes are promoted."""

    xs: Operand = operand("...", "any", variadic=True)
    axis: int = 0
    promotes = True
    synonyms = {"tensors": "xs"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        _no_tensors(cls, types[0])
        rank = max(t.rank for t in types[0]) + 1
        return {"axis": axis_index(cls.name, known(cls.name, "axis", attrs.get("axis", 0)), rank)}

    def infer(self, xs: tuple[TensorType, ...]) -> TensorType:
        common = broadcast_shapes(self.name, *(x.shape for x in xs))
        return xs[0].with_shape((*common[: self.axis], len(xs), *common[self.axis :]))

    def numpy(self, xs: Sequence[Array]) -> Array:
        return np.stack(np.broadcast_arrays(*xs), axis=self.axis)

    def decompose(self, xs: tuple[Value, ...]) -> Value:
        rank = max(x.rank for x in xs)
        rows: list[Value] = []
        for x in xs:
            whole = (*(1,) * (rank - x.rank), *x.shape)
            rows.append(F.reshape(x, shape=(*whole[: self.axis], 1, *whole[self.axis :])))
        return F.concat(rows, axis=self.axis)

    def vjp(self, ct: Value, xs: tuple[Value, ...]) -> tuple[Any]:
        rest = (*ct.shape[: self.axis], *ct.shape[self.axis + 1 :])
        parts = (F.slice_dim(ct, axis=self.axis, start=k, length=1) for k in range(len(xs)))
        return (tuple(F.reshape(p, shape=rest) for p in parts),)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return moved(self, types, contents)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample([(3, 4), (3, 4)])
        yield sample([(3, 4), (1, 4), (4,)], axis=-1)
        yield sample([(), ()])
        yield sample([(2,)], axis=1)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "shapes do not broadcast", sample([(3,), (2,)])
        yield "`axis` is out of range", sample([(3,), (3,)], axis=2)
        yield "no tensors", sample([])
