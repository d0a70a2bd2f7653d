"""Reshapes, broadcasts, and sizes as tensors.

Everything that keeps the row-major order of the elements decomposes to one primitive, `reshape`, which compilers treat
as another view of the same memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dims import Dim, Size
from stitchwork.ir.dtypes import DType, as_dtype, int32, int64
from stitchwork.ir.graph import Content, Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, cast, const, extent, where
from stitchwork.ops._build import F
from stitchwork.ops._contents import int_tuple, known, moved, one_int, one_size, size_tuple
from stitchwork.ops._op import (
    Array,
    Ints,
    Op,
    Operand,
    Sample,
    axes_index,
    axis_index,
    broadcast_shapes,
    operand,
    require_equal,
    sample,
)

Shape = tuple[Size, ...]


class Reshape(Op, name="reshape"):
    """The same elements in row-major order with another shape.

    `shape` holds ints, sizes, names of sizes, or is a tensor whose content is known; one entry may be -1 and takes what
    is left. A size that cannot be checked now is checked at each run.
    """

    x: Operand = operand("...", "any")
    shape: Shape | Sequence[Size] | Size
    alias = True

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        shape = list(size_tuple(cls.name, "shape", attrs["shape"]))
        wild = [d for d, n in enumerate(shape) if n == -1]
        if len(wild) > 1 or any(isinstance(n, int) and n < -1 for n in shape):
            raise cls(shape=tuple(shape)).fail(
                "`shape` is not a shape", expected="sizes, at most one of them -1", got=str(tuple(shape))
            )
        for d in wild:
            rest = dims.product(n for k, n in enumerate(shape) if k != d)
            if rest == 0:
                raise cls(shape=tuple(shape)).fail(
                    "-1 is not determined where another size is 0", got=str(tuple(shape))
                )
            shape[d] = dims.floordiv(types[0].elements, rest)
        return {"shape": tuple(shape)}

    def simplify(self, x: Value) -> Value | None:
        if x.shape == self.shape:
            return x
        inner = x.op
        return F.reshape(inner.operands[0], self.shape) if inner is not None and isinstance(inner.op, Reshape) else None

    @property
    def sizes(self) -> Shape:
        """The new shape, resolved."""
        assert isinstance(self.shape, tuple)
        return self.shape

    def infer(self, x: TensorType) -> TensorType:
        elements = dims.product(self.sizes)
        if not require_equal(self.name, x.elements, elements, "elements before == elements after"):
            raise self.fail(
                "the number of elements would change",
                expected=f"{x.elements} elements as in {x}",
                got=f"{elements} in [{', '.join(map(str, self.sizes))}]",
            )
        return x.with_shape(self.sizes)

    def numpy(self, x: Array) -> Array:
        return x.reshape([int(n) for n in self.sizes])

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        return x[reshape_index(out, self.sizes, x.shape)]

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.reshape(ct, shape=x.shape),)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return moved(self, types, contents)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4), shape=(2, 6))
        yield sample((3, 4, 5), shape=[3, -1])
        yield sample((6, 4), shape=(2, 3, 1, 4))
        yield sample((12,), shape=(-1, 3, 2))
        yield sample((1, 1), shape=())
        yield sample((), shape=(1, 1))
        yield sample((2, 15, 7), shape=(2, 3, 35))
        yield Sample(((0, 3),), {"shape": (3, 0)}, grad=False)
        yield sample((4,), shape=4)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "number of elements would change", sample((3, 4), shape=(5, 2))
        yield "`shape` is not a shape", sample((3, 4), shape=(-1, -1))
        yield "-1 is not determined", sample((3, 4), shape=(0, -1))
        yield "attribute `shape` is missing", sample((3, 4))
        yield "`shape` is not an integer", sample((3, 4), shape=(3.0, 4))


def reshape_index(out: Sequence[Expr], new: Shape, old: Shape) -> tuple[Expr, ...]:
    """Where element `out` of a tensor reshaped from `old` to `new` was before.

    Runs of dims with equal products are handled apart, so that untouched dims keep their plain index.
    """
    index: list[Expr] = []
    start = 0
    for stop_old, stop_new in _runs(old, new):
        flat = ravel(out[start:stop_new], new[start:stop_new])
        index.extend(unravel(flat, old[len(index) : stop_old]))
        start = stop_new
    return tuple(index)


def _runs(old: Shape, new: Shape) -> list[tuple[int, int]]:
    """Ends of the shortest runs of dims of both shapes that hold equally many elements."""
    ends: list[tuple[int, int]] = []
    j = 0
    for i in range(1, len(old)):
        reached = next((k for k in range(j, len(new)) if dims.product(new[:k]) == dims.product(old[:i])), None)
        if reached is not None:
            ends.append((i, reached))
            j = reached
    return [*ends, (len(old), len(new))]


def ravel(index: Sequence[Expr], shape: Sequence[Size]) -> Expr:
    """The row-major position of an index."""
    flat: Expr = extent(0)
    for i, n in zip(index, shape, strict=True):
        if n != 1:
            flat = flat * extent(n) + i
    return flat


def unravel(flat: Expr, shape: Sequence[Size]) -> list[Expr]:
    """The index at a row-major position; the first dim takes all that is left."""
    index: list[Expr] = [extent(0)] * len(shape)
    open_ = [d for d, n in enumerate(shape) if n != 1]
    for d in reversed(open_):
        index[d] = flat % extent(shape[d]) if d != open_[0] else flat
        flat = flat // extent(shape[d])
    return index


class Reshaping(Op):
    """An op that keeps the elements and their order; a subclass gives `target`, the new shape."""

    def target(self, shape: Shape) -> Shape:
        """The result's shape."""
        raise TypeError(f"{self.name} has no `target`")

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape(self.target(x.shape))

    def numpy(self, x: Array) -> Array:
        return x.reshape([int(n) for n in self.target(x.shape)])

    def decompose(self, x: Value) -> Value:
        return F.reshape(x, shape=self.target(x.shape))

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.reshape(ct, shape=x.shape),)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return moved(self, types, contents)


class Squeeze(Reshaping, name="squeeze"):
    """Dims of size 1 taken away: those of `axes` (an int or several; none for an empty list), or every one for None.

    With None a dim of unknown size stays.
    """

    x: Operand = operand("...", "any")
    axes: Ints | int | None = None
    synonyms = {"axis": "axes"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        axes = known(cls.name, "axes", attrs.get("axes"))
        if axes is None:
            return {"axes": tuple(d for d, n in enumerate(types[0].shape) if n == 1)}
        return {"axes": axes_index(cls.name, axes, types[0].rank)}

    def target(self, shape: Shape) -> Shape:
        assert isinstance(self.axes, tuple)
        for a in self.axes:
            if not require_equal(self.name, shape[a], 1, f"x[{a}] == 1"):
                raise self.fail(f"dim {a} is not of size 1", expected=f"x[{a}] == 1", got=str(shape[a]))
        return tuple(n for d, n in enumerate(shape) if d not in self.axes)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 1, 4), axes=1)
        yield sample((1, 3, 1), axis=(0, -1))
        yield sample((1, 3, 1), axes=())

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "dim 0 is not of size 1", sample((3, 1), axes=0)
        yield "`axes` is out of range", sample((3, 1), axes=2)


class ExpandDims(Reshaping, name="expand_dims"):
    """New dims of size 1 at `axes`, which are positions in the result: axes (0, 2) of [2, 4] give [1, 2, 1, 4]."""

    x: Operand = operand("...", "any")
    axes: Ints | int
    synonyms = {"axis": "axes"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        axes = int_tuple(cls.name, "axes", attrs["axes"])
        return {"axes": axes_index(cls.name, axes, types[0].rank + len(axes))}

    def target(self, shape: Shape) -> Shape:
        assert isinstance(self.axes, tuple)
        rest = iter(shape)
        return tuple(1 if d in self.axes else next(rest) for d in range(len(shape) + len(self.axes)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4), axes=0)
        yield sample((2, 4), axes=(0, 2))
        yield sample((3, 4), axis=-1)
        yield sample((), axes=0)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`axes` is out of range", sample((3, 4), axes=3)
        yield "names an axis twice", sample((3, 4), axes=(0, 0))


class Flatten2D(Reshaping, name="flatten2d", aliases=("flatten",)):
    """A matrix of the same elements: dims before `axis` become its rows, the others its columns."""

    x: Operand = operand("...", "any")
    axis: int = 1

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        axis = one_int(cls.name, "axis", attrs.get("axis", 1))
        rank = types[0].rank
        return {"axis": axis if axis == rank else axis_index(cls.name, axis, rank)}

    def target(self, shape: Shape) -> Shape:
        return dims.product(shape[: self.axis]), dims.product(shape[self.axis :])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for axis in (0, 1, 3, -1):
            yield sample((2, 3, 4), axis=axis)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`axis` is out of range", sample((2, 3), axis=3)


class Broadcast(Op, name="broadcast", aliases=("broadcast_to",)):
    """The tensor repeated to a larger shape by NumPy's rule: aligned at the end, dims of size 1 repeat."""

    x: Operand = operand("...", "any")
    shape: Shape | Sequence[Size] | Size

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        shape = size_tuple(cls.name, "shape", attrs["shape"])
        if any(isinstance(n, int) and n < 0 for n in shape):
            raise cls(shape=shape).fail("`shape` is not a shape", expected="sizes of 0 or more", got=str(shape))
        return {"shape": shape}

    @property
    def sizes(self) -> Shape:
        """The new shape."""
        assert isinstance(self.shape, tuple)
        return self.shape

    def infer(self, x: TensorType) -> TensorType:
        both = broadcast_shapes(self.name, x.shape, self.sizes)
        fits = len(both) == len(self.sizes)
        if not fits or not all(
            require_equal(self.name, a, b, "the shape fits") for a, b in zip(both, self.sizes, strict=True)
        ):
            raise self.fail(
                "the tensor does not fit the shape",
                expected="each dim of x equal to the shape's, or 1",
                got=f"{x} to [{', '.join(map(str, self.sizes))}]",
            )
        return x.with_shape(self.sizes)

    def numpy(self, x: Array) -> Array:
        return np.broadcast_to(x, [int(n) for n in self.sizes]).copy()

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        return x.broadcast(out, self.sizes)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct,)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return moved(self, types, contents)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 1), shape=(2, 3, 4))
        yield sample((), shape=(2, 3))
        yield sample((4,), shape=[3, 4])
        yield sample((1, 3), shape=(1, 3))
        yield Sample(((1, 3),), {"shape": (0, 3)}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "do not broadcast", sample((3, 4), shape=(3, 5))
        yield "does not fit the shape", sample((3, 4), shape=(4,))
        yield "does not fit the shape", sample((3, 4), shape=(1, 4))
        yield "`shape` is not a shape", sample((3, 4), shape=(-1, 4))


class ShapeOf(Op, name="shape_of"):
    """The sizes of a tensor as a vector of `dtype` (int32 or int64), followed as sizes while the graph is built."""

    x: Operand = operand("...", "any")
    dtype: DType = int32

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {"dtype": as_dtype(attrs.get("dtype", int32))}

    def infer(self, x: TensorType) -> TensorType:
        if self.dtype not in (int32, int64):
            raise self.fail("`dtype` is not one for sizes", expected="i32 or i64", got=str(self.dtype))
        return TensorType(self.dtype, (x.rank,))

    def numpy(self, x: Array) -> Array:
        return np.array(x.shape, self.dtype.numpy)

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        found = const(0, self.dtype)
        for d in reversed(range(x.rank)):
            found = where(out[0].eq(d), cast(extent(x.shape[d]), self.dtype), found)
        return found

    def vjp(self, ct: Value, x: Value) -> tuple[None]:
        return (None,)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return types[0].shape

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(((3, 4, 5),), {}, grad=False)
        yield Sample(((3, 0),), {"dtype": np.int64}, grad=False)
        yield Sample(((),), {}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`dtype` is not one for sizes", sample((3, 4), dtype="f32")


class SizeValue(Op, name="size_value", internal=True):
    """A size as a scalar of some dtype."""

    size: Size
    dtype: DType = int64

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {**attrs, "size": one_size(cls.name, "size", attrs["size"])}

    def infer(self) -> TensorType:
        return TensorType(self.dtype, ())

    def numpy(self) -> Array:
        assert not isinstance(self.size, Dim)
        return np.array(self.size).astype(self.dtype.numpy)

    def compute(self, out: tuple[Axis, ...]) -> Expr:
        return cast(extent(self.size), self.dtype)

    def vjp(self, ct: Value) -> tuple[()]:
        return ()

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return self.size
