"""Slices with positions known while the graph is built, their gradients, and writes into them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import DType, as_dtype
from stitchwork.ir.graph import Content, Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, Scalar, const, where
from stitchwork.ops._build import F
from stitchwork.ops._contents import known, moved, one_size, size_tuple
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
from stitchwork.ops._regions import (
    Region,
    Shape,
    grid_arrays,
    grid_index,
    grid_position,
    inside,
    normalize_slices,
    resolve_slices,
)
from stitchwork.ops._values import filled


def fill_of(dtype: DType, number: Scalar) -> Scalar:
    """A fill value as a literal of a dtype."""
    return bool(number) if dtype.kind == "b" else int(number.real) if dtype.is_integer else number


def reordered(op: Op, permutation: Ints, *names: str) -> Op:
    """`op` with the per-dim attributes `names` in the order of permuted dims."""
    return dataclasses.replace(op, **{k: tuple(getattr(op, k)[d] for d in permutation) for k in names})


class StridedSlice(Op, name="strided_slice", internal=True):
    """The elements at starts + i · strides, i < sizes. Where `guarded`, positions outside x read 0."""

    x: Operand = operand("...", "any")
    starts: Shape
    sizes: Shape
    strides: Ints
    guarded: bool = False

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape(self.sizes)

    def numpy(self, x: Array) -> Array:
        made = np.zeros([int(n) for n in self.sizes], x.dtype)
        positions, points = grid_arrays(x.shape, self.starts, made.shape, self.strides)
        made[points] = x[positions]
        return made

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        index = grid_position(out, self.starts, self.strides)
        return x.at(*index, boundary="constant", fill=fill_of(x.dtype, 0)) if self.guarded else x[index]

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.place(ct, shape=x.shape, starts=self.starts, strides=self.strides),)

    def permuted(self, permutation: Ints) -> Op:
        return reordered(self, permutation, "starts", "sizes", "strides")

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return moved(self, types, contents)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((7, 5), starts=(6, 1), sizes=(3, 2), strides=(-2, 3))
        yield sample((4, 5), starts=(-1, 3), sizes=(6, 4), strides=(1, 1), guarded=True)
        yield sample((), starts=(), sizes=(), strides=())


class Place(Op, name="place", internal=True):
    """A tensor of `shape` filled with `fill`, with x at starts + i · strides; what would fall outside is dropped.

    The adjoint of `strided_slice`, and a pad with negative edges and gaps between the elements.
    """

    x: Operand = operand("...", "any")
    shape: Shape
    starts: Shape
    strides: Ints
    fill: Scalar = 0

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape(self.shape)

    def numpy(self, x: Array) -> Array:
        made = np.full([int(n) for n in self.shape], fill_of(as_dtype(x.dtype), self.fill)).astype(x.dtype)
        positions, points = grid_arrays(made.shape, self.starts, x.shape, self.strides)
        made[positions] = x[points]
        return made

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        index, on_grid = grid_index(out, self.starts, self.strides)
        fill = fill_of(x.dtype, self.fill)
        found = x.at(*index, boundary="constant", fill=fill)
        return found if on_grid is None else where(on_grid, found, const(fill, x.dtype))

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.strided_slice(ct, starts=self.starts, sizes=x.shape, strides=self.strides, guarded=True),)

    def permuted(self, permutation: Ints) -> Op:
        return reordered(self, permutation, "shape", "starts", "strides")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 2), shape=(7, 5), starts=(6, 1), strides=(-2, 3))
        yield sample((4, 5), shape=(3, 9), starts=(-1, 2), strides=(1, 1), fill=1.5)
        yield Sample(((3,),), {"shape": (9,), "starts": (1,), "strides": (3,), "fill": 1}, dtype="bool", grad=False)
        yield sample((), shape=(), starts=(), strides=())


class SliceWrite(Op, name="slice_write", internal=True):
    """`data` with `update` written over the elements at starts + i · strides, all inside."""

    data: Operand = operand("...", "any")
    update: Operand = operand("...", "any")
    starts: Shape
    strides: Ints

    def infer(self, data: TensorType, update: TensorType) -> TensorType:
        return data

    def numpy(self, data: Array, update: Array) -> Array:
        made = np.array(data)
        positions, points = grid_arrays(data.shape, self.starts, update.shape, self.strides)
        made[positions] = update[points]
        return made

    def compute(self, out: tuple[Axis, ...], data: Buffer, update: Buffer) -> Expr:
        index, on_grid = grid_index(out, self.starts, self.strides)
        here = inside(index, update.shape, on_grid)
        new = update.at(*index, boundary="constant", fill=fill_of(update.dtype, 0))
        return new if here is None else where(here, new, data[out])

    def vjp(self, ct: Value, data: Value, update: Value) -> tuple[Value, Value]:
        empty = filled(ct, update.shape)
        kept = F.slice_write(ct, empty, starts=self.starts, strides=self.strides)
        return kept, F.strided_slice(ct, starts=self.starts, sizes=update.shape, strides=self.strides)

    def permuted(self, permutation: Ints) -> Op:
        return reordered(self, permutation, "starts", "strides")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((7, 5), (3, 2), starts=(6, 1), strides=(-2, 3))
        yield sample((7, 5), (7, 2), starts=(0, 3), strides=(1, 1))
        yield sample((), (), starts=(), strides=())


class Slicing(Op):
    """What the ops share that take slices as attributes: starts, ends and strides per dim, leading dims first.

    None, or a bit of a mask, leaves an end open; fewer entries than dims leave the last dims whole.
    """

    starts: Sequence[Size | None] | Size | None
    ends: Sequence[Size | None] | Size | None
    strides: Sequence[int] | int | None = None
    start_mask: int = 0
    end_mask: int = 0
    squeeze_mask: int = 0
    synonyms = {"begin": "starts", "end": "ends", "start": "starts", "stride": "strides"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return normalize_slices(cls.name, types[0].rank, attrs)

    def region(self, shape: Shape) -> Region:
        """The region meant in a tensor of `shape`."""
        assert isinstance(self.starts, tuple) and isinstance(self.ends, tuple) and isinstance(self.strides, tuple)
        return resolve_slices(self.name, shape, self.starts, self.ends, self.strides, self.squeeze_mask)


class Slice(Slicing, name="slice"):
    """Part of a tensor, x[starts:ends:strides] per dim, by Python's rules: negative ints count from the end.

    Ends beyond the tensor are clamped; symbolic sizes count from the start. A bit of `squeeze_mask` makes the dim take
    only the element at its start and vanish from the result.
    """

    x: Operand = operand("...", "any")

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape(self.region(x.shape).shape)

    def numpy(self, x: Array) -> Array:
        r = self.region(x.shape)
        positions, _ = grid_arrays(x.shape, r.starts, r.sizes, r.strides)
        return x[positions].reshape([int(n) for n in r.shape])

    def decompose(self, x: Value) -> Value:
        r = self.region(x.shape)
        made = F.strided_slice(x, starts=r.starts, sizes=r.sizes, strides=r.strides)
        return F.reshape(made, shape=r.shape) if r.squeezed else made

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        r = self.region(x.shape)
        whole = F.reshape(ct, shape=r.sizes) if r.squeezed else ct
        return (F.place(whole, shape=x.shape, starts=r.starts, strides=r.strides),)

    def permuted(self, permutation: Ints) -> Op | None:
        return None if self.squeeze_mask else reordered(self, permutation, "starts", "ends", "strides")

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return moved(self, types, contents)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((7, 5), starts=(1, -3), ends=(6, None), strides=(2, 1))
        yield sample((7, 5), starts=(None, 4), ends=(None, 0), strides=(-1, -2))
        yield sample((7, 5), starts=(5, 2), ends=(0, 0), strides=(1, 1), start_mask=1, end_mask=3)
        yield sample((7, 5), starts=(-2, 1), ends=(0, 4), squeeze_mask=1)
        yield sample((7, 5), starts=[2], ends=[100])
        yield sample((3, 4, 5), starts=(1, 0, -1), ends=(2, 1, 5), squeeze_mask=0b101)
        yield sample((7,), starts=-100, ends=-2)
        yield sample((7,), starts=(100,), ends=(-100,), strides=(-3,))
        yield Sample(((7, 5),), {"starts": (5, 0), "ends": (2, 5)}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "a stride is 0", sample((7,), starts=(0,), ends=(5,), strides=(0,))
        yield "more entries than dims", sample((7,), starts=(0, 0), ends=(5,))
        yield "index 7 of dim 0 is outside", sample((7,), starts=(7,), ends=(8,), squeeze_mask=1)
        yield "`starts` is not an integer", sample((7,), starts=(0.5,), ends=(8,))


class SliceDim(Op, name="slice_dim", aliases=("narrow",)):
    """`length` elements along `axis` from `start` (negative counts from the end); all must be there."""

    x: Operand = operand("...", "any")
    axis: int
    start: Size
    length: Size
    synonyms = {"dimension": "axis"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        axis = axis_index(cls.name, known(cls.name, "axis", attrs["axis"]), types[0].rank)
        n = types[0].shape[axis]
        start, length = (one_size(cls.name, k, attrs[k]) for k in ("start", "length"))
        start = n + start if isinstance(start, int) and start < 0 else start
        op = cls(axis=axis, start=start, length=length)
        fits = (length, "length >= 0"), (start, "start >= 0"), (n - start - length, "start + length fits")
        if not all(require_at_least(cls.name, size, 0, what) for size, what in fits):
            raise op.fail(
                "the slice is not inside the tensor",
                expected=f"0 <= start, start + length <= {n}",
                got=f"start {start}, length {length}",
            )
        return {"axis": axis, "start": start, "length": length}

    def _region(self, shape: Shape) -> tuple[Shape, Shape, Ints]:
        starts = tuple(self.start if d == self.axis else 0 for d in range(len(shape)))
        return starts, tuple(self.length if d == self.axis else n for d, n in enumerate(shape)), (1,) * len(shape)

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape(self._region(x.shape)[1])

    def numpy(self, x: Array) -> Array:
        return np.take(x, np.arange(int(self.length)) + int(self.start), axis=self.axis)

    def decompose(self, x: Value) -> Value:
        starts, sizes, strides = self._region(x.shape)
        return F.strided_slice(x, starts=starts, sizes=sizes, strides=strides)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        starts, _, strides = self._region(x.shape)
        return (F.place(ct, shape=x.shape, starts=starts, strides=strides),)

    def permuted(self, permutation: Ints) -> Op:
        return dataclasses.replace(self, axis=permutation.index(self.axis))

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return moved(self, types, contents)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((7, 5), axis=0, start=2, length=3)
        yield sample((7, 5), dimension=-1, start=-2, length=2)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "not inside the tensor", sample((7, 5), axis=0, start=5, length=3)
        yield "not inside the tensor", sample((7, 5), axis=0, start=-8, length=1)
        yield "`axis` is out of range", sample((7, 5), axis=2, start=0, length=1)


class SliceGradient(Slicing, name="slice_gradient"):
    """The gradient of `slice`: zeros of `shape`, the shape of the slice's operand, with `gradient` at the slice."""

    gradient: Operand = operand("...", "any")
    shape: Sequence[Size]

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        shape = size_tuple(cls.name, "shape", attrs["shape"])
        return {**normalize_slices(cls.name, len(shape), attrs), "shape": shape}

    def _regions(self) -> tuple[Shape, Region]:
        assert isinstance(self.shape, tuple)
        return self.shape, self.region(self.shape)

    def infer(self, gradient: TensorType) -> TensorType:
        shape, region = self._regions()
        _require_shape(self, "gradient", gradient, region.shape)
        return gradient.with_shape(shape)

    def numpy(self, gradient: Array) -> Array:
        shape, r = self._regions()
        made = np.zeros([int(n) for n in shape], gradient.dtype)
        positions, _ = grid_arrays(made.shape, r.starts, r.sizes, r.strides)
        made[positions] = gradient.reshape([int(n) for n in r.sizes])
        return made

    def decompose(self, gradient: Value) -> Value:
        shape, r = self._regions()
        return F.place(F.reshape(gradient, shape=r.sizes), shape=shape, starts=r.starts, strides=r.strides)

    def vjp(self, ct: Value, gradient: Value) -> tuple[Value]:
        return (F.slice(ct, starts=self.starts, ends=self.ends, strides=self.strides, squeeze_mask=self.squeeze_mask),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 2), shape=(7, 5), starts=(1, -2), ends=(6, None), strides=(2, 1))
        yield sample((5,), shape=(7, 5), starts=(-2, 0), ends=(0, 5), squeeze_mask=1)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`gradient` does not have the slice's shape", sample((3,), shape=(7,), starts=(1,), ends=(3,))


class SliceUpdate(Slicing, name="slice_update"):
    """`data` with `update` written over data[starts:ends:strides], as the assignment in NumPy; `update` broadcasts.

    For starts that are computed at run time see `dynamic_update_slice`.
    """

    data: Operand = operand("...", "any")
    update: Operand = operand("...", "any")
    promotes = True

    def infer(self, data: TensorType, update: TensorType) -> TensorType:
        wanted = self.region(data.shape).shape
        both = broadcast_shapes(self.name, update.shape, wanted)
        _require_shape(self, "update", update.with_shape(both), wanted)
        return data

    def numpy(self, data: Array, update: Array) -> Array:
        r = self.region(data.shape)
        made = np.array(data)
        positions, _ = grid_arrays(data.shape, r.starts, r.sizes, r.strides)
        made[positions] = np.broadcast_to(update, [int(n) for n in r.shape]).reshape([int(n) for n in r.sizes])
        return made

    def decompose(self, data: Value, update: Value) -> Value:
        r = self.region(data.shape)
        whole = F.reshape(F.broadcast(update, shape=r.shape), shape=r.sizes)
        return F.slice_write(data, whole, starts=r.starts, strides=r.strides)

    def vjp(self, ct: Value, data: Value, update: Value) -> tuple[Value, Value]:
        r = self.region(data.shape)
        kept = F.slice_write(ct, filled(ct, r.sizes), starts=r.starts, strides=r.strides)
        taken = F.strided_slice(ct, starts=r.starts, sizes=r.sizes, strides=r.strides)
        return kept, F.reshape(taken, shape=r.shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((7, 5), (3, 2), starts=(1, -2), ends=(6, None), strides=(2, 1))
        yield sample((7, 5), (5,), starts=(-2, 0), ends=(0, 5), squeeze_mask=1)
        yield sample((7, 5), (), starts=(1, 0), ends=(3, 5), strides=(1, -1), start_mask=2, end_mask=2)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "do not broadcast", sample((7,), (3,), starts=(1,), ends=(3,))
        yield "`update` does not have the slice's shape", sample((7,), (3, 2), starts=(1,), ends=(3,))


def _require_shape(op: Op, what: str, t: TensorType, wanted: Shape) -> None:
    def agree(d: int) -> bool:
        return require_equal(op.name, t.shape[d], wanted[d], f"{what}[{d}] is the slice's")

    if t.rank != len(wanted) or not all(map(agree, range(t.rank))):
        raise op.fail(f"`{what}` does not have the slice's shape", expected=str(t.with_shape(wanted)), got=str(t))
