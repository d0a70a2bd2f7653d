"""Tensors joined, taken apart and repeated along axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Content, Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, broadcast_index, extent, where
from stitchwork.ops._build import F
from stitchwork.ops._contents import known, moved, size_tuple
from stitchwork.ops._op import (
    Array,
    Ints,
    Op,
    Operand,
    Sample,
    axis_index,
    broadcast_shapes,
    operand,
    require_at_least,
    require_equal,
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

    def vjp(self, ct: Value, xs: tuple[Value, ...]) -> tuple[tuple[Value, ...]]:
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

    def vjp(self, ct: Value, xs: tuple[Value, ...]) -> tuple[tuple[Value, ...]]:
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


class Splitting(Op):
    """An op that gives consecutive parts of x along `axis`."""

    axis: int = 0

    def lengths(self, shape: Shape) -> Shape:
        """The parts' sizes along the axis."""
        raise TypeError(f"{self.name} has no `lengths`")

    def _parts(self, shape: Shape) -> list[tuple[Shape, Shape]]:
        """Starts and sizes of each part."""
        parts: list[tuple[Shape, Shape]] = []
        start: Size = 0
        for length in self.lengths(shape):
            starts = tuple(start if d == self.axis else 0 for d in range(len(shape)))
            parts.append((starts, tuple(length if d == self.axis else n for d, n in enumerate(shape))))
            start = start + length
        return parts

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return tuple(x.with_shape(sizes) for _, sizes in self._parts(x.shape))

    def numpy(self, x: Array) -> tuple[Array, ...]:
        ends = np.cumsum([int(cast("int", n)) for n in self.lengths(x.shape)])[:-1]
        return tuple(part.copy() for part in np.split(x, ends, axis=self.axis))

    def decompose(self, x: Value) -> tuple[Value, ...]:
        ones = (1,) * x.rank
        return tuple(F.strided_slice(x, starts=a, sizes=n, strides=ones) for a, n in self._parts(x.shape))

    def vjp(self, cts: tuple[Value, ...] | Value, x: Value) -> tuple[Value]:
        return (F.concat(list(cts) if isinstance(cts, tuple) else [cts], axis=self.axis),)


class Split(Splitting, name="split"):
    """Parts of x along `axis`, of sizes `split_sizes`; one of them may be -1 and takes what is left."""

    x: Operand = operand("...", "any")
    split_sizes: Sequence[Size]
    axis: int = 0

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        axis = axis_index(cls.name, known(cls.name, "axis", attrs.get("axis", 0)), types[0].rank)
        sizes = list(size_tuple(cls.name, "split_sizes", attrs["split_sizes"]))
        wild = [k for k, n in enumerate(sizes) if n == -1]
        n = types[0].shape[axis]
        total: Size = sum((s for k, s in enumerate(sizes) if k not in wild), 0)
        op = cls(split_sizes=tuple(sizes))
        if not sizes or len(wild) > 1:
            raise op.fail(
                "`split_sizes` does not say how to split",
                expected="sizes, at most one of them -1",
                got=str(tuple(sizes)),
            )
        for k in wild:
            sizes[k], total = n - total, n
        if not all(require_at_least(cls.name, s, 0, f"split_sizes[{k}] >= 0") for k, s in enumerate(sizes)) or not (
            require_equal(cls.name, n, total, f"x[{axis}] == sum of split_sizes")
        ):
            raise op.fail("`split_sizes` does not add up to the dim", expected=f"a sum of {n}", got=str(op.split_sizes))
        return {"axis": axis, "split_sizes": tuple(sizes)}

    def lengths(self, shape: Shape) -> Shape:
        assert isinstance(self.split_sizes, tuple)
        return self.split_sizes

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((7, 3), split_sizes=(2, 1, 4))
        yield sample((3, 7), split_sizes=[-1, 2, 0], axis=-1)
        yield sample((3,), split_sizes=3)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "does not add up to the dim", sample((7,), split_sizes=(2, 3))
        yield "does not add up to the dim", sample((7,), split_sizes=(9, -1))
        yield "does not say how to split", sample((7,), split_sizes=(-1, -1))
        yield "`axis` is out of range", sample((7,), split_sizes=(7,), axis=1)


class SplitEqual(Splitting, name="split_equal"):
    """`num_splits` parts of x of one size along `axis`, which must be a multiple of it."""

    x: Operand = operand("...", "any")
    num_splits: int
    axis: int = 0

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        axis = axis_index(cls.name, known(cls.name, "axis", attrs.get("axis", 0)), types[0].rank)
        count = known(cls.name, "num_splits", attrs["num_splits"])
        n = types[0].shape[axis]
        op = cls(num_splits=count)
        if not isinstance(count, int) or count < 1:
            raise op.fail("`num_splits` is not a positive int", got=repr(count))
        if not require_equal(cls.name, dims.mod(n, count), 0, f"x[{axis}] is a multiple of {count}"):
            raise op.fail("the dim does not split equally", expected=f"a multiple of {count}", got=str(n))
        return {"axis": axis, "num_splits": count}

    def lengths(self, shape: Shape) -> Shape:
        return (dims.floordiv(shape[self.axis], self.num_splits),) * self.num_splits

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((6, 3), num_splits=3)
        yield sample((3, 4), num_splits=2, axis=-1)
        yield sample((3, 4), num_splits=1)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "does not split equally", sample((7, 3), num_splits=2)
        yield "is not a positive int", sample((7, 3), num_splits=0)


class Tile(Op, name="tile"):
    """x repeated `multiplier` times along each dim; more entries than dims add leading dims, fewer leave those at 1."""

    x: Operand = operand("...", "any")
    multiplier: Sequence[Size] | Size
    synonyms = {"reps": "multiplier"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        many = size_tuple(cls.name, "multiplier", attrs["multiplier"])
        return {"multiplier": _multiplier(cls(multiplier=many), many, types[0].rank)}

    @property
    def times(self) -> Shape:
        """The multiplier, one entry per dim of the result."""
        assert isinstance(self.multiplier, tuple)
        return self.multiplier

    def infer(self, x: TensorType) -> TensorType:
        whole = (*(1,) * (len(self.times) - x.rank), *x.shape)
        return x.with_shape(tuple(n * m for n, m in zip(whole, self.times, strict=True)))

    def numpy(self, x: Array) -> Array:
        return np.tile(x, [int(m) for m in self.times])

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        skip = len(out) - x.rank
        return x[tuple(i if self.times[skip + d] == 1 else i % extent(x.shape[d]) for d, i in enumerate(out[skip:]))]

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (_tile_sum(ct, x.shape, self.times),)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return moved(self, types, contents)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4), multiplier=(2, 3))
        yield sample((3, 4), multiplier=(2, 1, 2))
        yield sample((3, 4), multiplier=2)
        yield sample((), multiplier=(2, 3))
        yield Sample(((3, 4),), {"multiplier": (0, 1)}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`multiplier` is negative", sample((3, 4), multiplier=(-1, 2))
        yield "`multiplier` is not an integer", sample((3, 4), multiplier=(1.5, 2))


def _multiplier(op: Op, many: Shape, rank: int) -> Shape:
    if any(not require_at_least(op.name, m, 0, "multiplier >= 0") for m in many):
        raise op.fail("`multiplier` is negative", expected="sizes of 0 or more", got=str(many))
    return (*(1,) * (rank - len(many)), *many)


def _tile_sum(ct: Value, shape: Shape, times: Shape) -> Value:
    """The sum over the copies that a tile made of a tensor of `shape`."""
    whole = (*(1,) * (len(times) - len(shape)), *shape)
    apart = [n for pair in zip(times, whole, strict=True) for n in pair]
    copies = [2 * d for d in range(len(times))]
    return F.reshape(F.reduction_sum(F.reshape(ct, shape=apart), axes=copies), shape=shape)


class TileGradient(Op, name="tile_gradient"):
    """The gradient of `tile`: the sum of `gradient` over the copies of `source`, of which only the shape matters."""

    gradient: Operand = operand("...", "number")
    source: Operand = operand("...", "any", same="S")
    multiplier: Sequence[Size] | Size

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        many = size_tuple(cls.name, "multiplier", attrs["multiplier"])
        return {"multiplier": _multiplier(cls(multiplier=many), many, types[1].rank)}

    def infer(self, gradient: TensorType, source: TensorType) -> TensorType:
        tiled = Tile(multiplier=self.multiplier).infer(source)
        if gradient.rank != tiled.rank or not all(
            require_equal(self.name, a, b, f"gradient[{d}] is the tiled size")
            for d, (a, b) in enumerate(zip(gradient.shape, tiled.shape, strict=True))
        ):
            raise self.fail("`gradient` does not have the tiled shape", expected=str(tiled), got=str(gradient))
        return gradient.with_shape(source.shape)

    def numpy(self, gradient: Array, source: Array) -> Array:
        assert isinstance(self.multiplier, tuple)
        times = [int(cast("int", m)) for m in self.multiplier]
        whole = (*(1,) * (len(times) - source.ndim), *source.shape)
        apart = gradient.reshape([n for pair in zip(times, whole, strict=True) for n in pair])
        return apart.sum(axis=tuple(range(0, apart.ndim, 2))).reshape(source.shape).astype(gradient.dtype)

    def decompose(self, gradient: Value, source: Value) -> Value:
        assert isinstance(self.multiplier, tuple)
        return _tile_sum(gradient, source.shape, self.multiplier)

    def vjp(self, ct: Value, gradient: Value, source: Value) -> tuple[Value, None]:
        return F.tile(ct, multiplier=self.multiplier), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((6, 12), (3, 4), multiplier=(2, 3))
        yield sample((2, 3, 4), (3, 4), multiplier=(2, 1, 1))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "does not have the tiled shape", sample((6, 4), (3, 4), multiplier=(2, 3))
