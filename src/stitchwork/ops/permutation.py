"""Dims in another order, reversed, or traded with each other in blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Content, Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, extent
from stitchwork.ops._build import F
from stitchwork.ops._contents import int_tuple, known, moved, one_int
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, axes_index, axis_index, operand, require_equal, sample

Shape = tuple[Size, ...]


class Permute(Op, name="permute"):
    """Dims in another order: dim d of the result is dim permutation[d] of x. Without one, the order is reversed."""

    x: Operand = operand("...", "any")
    permutation: Sequence[int] | None = None
    synonyms = {"axes": "permutation", "perm": "permutation"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        rank = types[0].rank
        given = known(cls.name, "permutation", attrs.get("permutation"))
        if given is None:
            return {"permutation": tuple(reversed(range(rank)))}
        order = tuple(axis_index(cls.name, a, rank, "permutation") for a in int_tuple(cls.name, "permutation", given))
        if sorted(order) != list(range(rank)):
            raise cls().fail(
                "`permutation` does not name each dim once", expected=f"0 to {rank - 1} in some order", got=str(given)
            )
        return {"permutation": order}

    @property
    def order(self) -> Ints:
        """The permutation, resolved."""
        assert isinstance(self.permutation, tuple)
        return self.permutation

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape(tuple(x.shape[a] for a in self.order))

    def numpy(self, x: Array) -> Array:
        return np.transpose(x, self.order).copy()

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        return x[tuple(out[a] for a in inverse(self.order))]

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.permute(ct, permutation=inverse(self.order)),)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return moved(self, types, contents)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4))
        yield sample((2, 3, 4), permutation=(2, 0, 1))
        yield sample((2, 3, 4, 5), axes=(0, -2, -1, 1))
        yield sample((), permutation=())
        yield Sample(((3, 0, 2),), {"permutation": (1, 2, 0)}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "does not name each dim once", sample((3, 4), permutation=(0, 0))
        yield "does not name each dim once", sample((3, 4), permutation=(0,))
        yield "`permutation` is out of range", sample((3, 4), permutation=(0, 2))


def inverse(permutation: Ints) -> Ints:
    """The permutation that undoes one."""
    return tuple(permutation.index(d) for d in range(len(permutation)))


class Transpose(Op, name="transpose", aliases=("swapaxes",)):
    """Two dims exchanged; the last two unless others are named. For a full permutation see `permute`."""

    x: Operand = operand("...", "any")
    axis1: int = -2
    axis2: int = -1
    synonyms = {"dimension": "axis1", "dimension2": "axis2"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        given = {"axis1": attrs.get("axis1", -2), "axis2": attrs.get("axis2", -1)}
        return {k: axis_index(cls.name, known(cls.name, k, v), types[0].rank, k) for k, v in given.items()}

    def swap(self, rank: int) -> Ints:
        """The permutation of `rank` dims that this is."""
        exchanged = {self.axis1: self.axis2, self.axis2: self.axis1}
        return tuple(exchanged.get(d, d) for d in range(rank))

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape(tuple(x.shape[a] for a in self.swap(x.rank)))

    def numpy(self, x: Array) -> Array:
        return np.swapaxes(x, self.axis1, self.axis2).copy()

    def decompose(self, x: Value) -> Value:
        return F.permute(x, permutation=self.swap(x.rank))

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.permute(ct, permutation=self.swap(x.rank)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4))
        yield sample((2, 3, 4), axis1=0, axis2=2)
        yield sample((2, 3, 4), axis1=1, axis2=1)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`axis1` is out of range", sample((3,))


class Reverse(Op, name="reverse", aliases=("flip",)):
    """Elements in reverse order along `axes` (an int or several; all for None, none for an empty list)."""

    x: Operand = operand("...", "any")
    axes: Ints | int | None = None
    synonyms = {"axis": "axes"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {"axes": axes_index(cls.name, known(cls.name, "axes", attrs.get("axes")), types[0].rank)}

    @property
    def over(self) -> Ints:
        """The axes, resolved."""
        assert isinstance(self.axes, tuple)
        return self.axes

    def infer(self, x: TensorType) -> TensorType:
        return x

    def numpy(self, x: Array) -> Array:
        return np.flip(x, self.over).copy()

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        return x[tuple(extent(x.shape[d] - 1) - i if d in self.over else i for d, i in enumerate(out))]

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.reverse(ct, axes=self.over),)

    def permuted(self, permutation: Ints) -> Op:
        return dataclasses.replace(self, axes=tuple(sorted(permutation.index(a) for a in self.over)))

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return moved(self, types, contents)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4))
        yield sample((2, 3, 4), axes=(0, -1))
        yield sample((2, 3), axis=1)
        yield sample((2, 3), axes=())

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`axes` is out of range", sample((3,), axes=1)
        yield "names an axis twice", sample((3,), axes=(0, 0))


# --- blocks -------------------------------------------------------------------------------------------------------
class BlockMove(Op):
    """Blocks of some dims moved into another dim, or back: a reshape, a permutation and a reshape."""

    inward = True  # into the other dim

    def blocks(self) -> tuple[Ints, int, Ints, bool]:
        """Block axes, the other axis, block sizes, and whether a block lies together in the other axis."""
        raise TypeError(f"{self.name} has no `blocks`")

    def opposite(self, ct: Value) -> Value:
        """The op that undoes this one."""
        raise TypeError(f"{self.name} has no `opposite`")

    def plan(self, shape: Shape) -> tuple[Shape, Ints, Shape]:
        """Shape to take apart, permutation, and final shape."""
        axes, other, sizes, together = self.blocks()
        return (
            _inward(shape, axes, other, sizes, together)
            if self.inward
            else _outward(shape, axes, other, sizes, together)
        )

    def infer(self, x: TensorType) -> TensorType:
        axes, other, sizes, _ = self.blocks()
        whole = zip(axes, sizes, strict=True) if self.inward else ((other, int(np.prod(sizes))),)
        for axis, block in whole:
            if not require_equal(self.name, dims.mod(x.shape[axis], block), 0, f"x[{axis}] is a multiple of {block}"):
                raise self.fail(
                    f"dim {axis} is not a multiple of the block",
                    expected=f"a multiple of {block}",
                    got=str(x.shape[axis]),
                )
        return x.with_shape(self.plan(x.shape)[2])

    def numpy(self, x: Array) -> Array:
        apart, order, final = self.plan(x.shape)
        return x.reshape([int(n) for n in apart]).transpose(order).reshape([int(n) for n in final]).copy()

    def decompose(self, x: Value) -> Value:
        apart, order, final = self.plan(x.shape)
        return F.reshape(F.permute(F.reshape(x, shape=apart), permutation=order), shape=final)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (self.opposite(ct),)


def _inward(shape: Shape, axes: Ints, other: int, sizes: Ints, together: bool) -> tuple[Shape, Ints, Shape]:
    apart: list[Size] = []
    outer: dict[int, int] = {}  # where each dim is once taken apart
    block: dict[int, int] = {}  # and each block
    for d, n in enumerate(shape):
        outer[d] = len(apart)
        if d in axes:
            size = sizes[axes.index(d)]
            block[d] = len(apart) + 1
            apart += [dims.floordiv(n, size), size]
        else:
            apart.append(n)
    inner = [block[a] for a in axes]
    order: list[int] = []
    for d in range(len(shape)):
        order += ([outer[d], *inner] if together else [*inner, outer[d]]) if d == other else [outer[d]]
    final = [apart[outer[d]] * (int(np.prod(sizes)) if d == other else 1) for d in range(len(shape))]
    return tuple(apart), tuple(order), tuple(final)


def _outward(shape: Shape, axes: Ints, other: int, sizes: Ints, together: bool) -> tuple[Shape, Ints, Shape]:
    apart: list[Size] = []
    outer: dict[int, int] = {}
    first = 0  # where the blocks start
    for d, n in enumerate(shape):
        if d == other:
            rest = dims.floordiv(n, int(np.prod(sizes)))
            outer[d] = len(apart) + (0 if together else len(sizes))
            first = len(apart) + (1 if together else 0)
            apart += [rest, *sizes] if together else [*sizes, rest]
        else:
            outer[d] = len(apart)
            apart.append(n)
    order: list[int] = []
    final: list[Size] = []
    for d in range(len(shape)):
        order.append(outer[d])
        final.append(apart[outer[d]])
        if d in axes:
            order.append(first + axes.index(d))
            final[-1] = shape[d] * sizes[axes.index(d)]
    return tuple(apart), tuple(order), tuple(final)


def _check_axes(op: str, rank: int, named: dict[str, Any]) -> dict[str, int]:
    found = {k: axis_index(op, known(op, k, v), rank, k) for k, v in named.items()}
    axes_index(op, tuple(found.values()), rank)  # no axis twice
    return found


def _check_block(op: Op, sizes: Ints) -> None:
    if any(n < 1 for n in sizes):
        raise op.fail("a block size is not positive", expected="ints of 1 or more", got=str(sizes))


class DepthMove(BlockMove):
    """Square blocks of height and width traded with depth."""

    block_size: int
    height_axis: int = -3
    width_axis: int = -2
    depth_axis: int = -1
    use_pixel_shuffle_order: bool = False

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        names = {"height_axis": -3, "width_axis": -2, "depth_axis": -1}
        axes = _check_axes(cls.name, types[0].rank, {k: attrs.get(k, v) for k, v in names.items()})
        size = one_int(cls.name, "block_size", attrs["block_size"])
        _check_block(cls(block_size=size), (size,))
        return {**attrs, **axes, "block_size": size}

    def blocks(self) -> tuple[Ints, int, Ints, bool]:
        return (
            (self.height_axis, self.width_axis),
            self.depth_axis,
            (self.block_size,) * 2,
            self.use_pixel_shuffle_order,
        )

    def _own(self) -> dict[str, Any]:
        return {a: getattr(self, a) for a in self.attributes()}

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "is not a multiple of the block", sample((1, 3, 5, 7), block_size=2)
        yield "names an axis twice", sample((1, 4, 4, 4), block_size=2, height_axis=1, width_axis=1)
        yield "block size is not positive", sample((1, 4, 4, 4), block_size=0)
        yield "`height_axis` is out of range", sample((4, 4), block_size=2)


class SpaceToDepth2D(DepthMove, name="space_to_depth2d", aliases=("space_to_depth",)):
    """Each block of block_size × block_size pixels becomes depth; axes are those of NHWC unless named.

    Depth index: (row · block + column) · C + channel, as TensorFlow does it; with `use_pixel_shuffle_order`
    channel · block² + row · block + column, as PyTorch's pixel_unshuffle does it.
    """

    x: Operand = operand("...", "any")

    def opposite(self, ct: Value) -> Value:
        return F.depth_to_space2d(ct, **self._own())

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 4, 6, 3), block_size=2)
        yield sample((2, 4, 6, 3), block_size=2, use_pixel_shuffle_order=True)
        yield sample((1, 3, 6, 3), block_size=3, height_axis=2, width_axis=3, depth_axis=1)


class DepthToSpace2D(DepthMove, name="depth_to_space2d", aliases=("depth_to_space",)):
    """Depth becomes blocks of block_size × block_size pixels: the inverse of `space_to_depth2d`, same arguments."""

    x: Operand = operand("...", "any")
    inward = False

    def opposite(self, ct: Value) -> Value:
        return F.space_to_depth2d(ct, **self._own())

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 2, 3, 12), block_size=2)
        yield sample((2, 2, 3, 12), block_size=2, use_pixel_shuffle_order=True)
        yield sample((1, 9, 2, 1), block_size=3, height_axis=2, width_axis=3, depth_axis=1)


class BatchMove(BlockMove):
    """Blocks of any dims traded with a batch dim."""

    spatial_axes: Ints | int
    block_dimensions: Ints | int
    batch_axis: int = 0
    use_pixel_shuffle_order: bool = False

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        axes = int_tuple(cls.name, "spatial_axes", attrs["spatial_axes"])
        sizes = int_tuple(cls.name, "block_dimensions", attrs["block_dimensions"])
        op = cls(spatial_axes=axes, block_dimensions=sizes)
        if len(axes) != len(sizes):
            raise op.fail("`spatial_axes` and `block_dimensions` differ in length", got=f"{axes} and {sizes}")
        _check_block(op, sizes)
        rank = types[0].rank
        resolved = tuple(axis_index(cls.name, a, rank, "spatial_axes") for a in axes)
        batch = axis_index(cls.name, known(cls.name, "batch_axis", attrs.get("batch_axis", 0)), rank, "batch_axis")
        axes_index(cls.name, (*resolved, batch), rank)  # no axis twice
        return {**attrs, "spatial_axes": resolved, "block_dimensions": sizes, "batch_axis": batch}

    def blocks(self) -> tuple[Ints, int, Ints, bool]:
        assert isinstance(self.spatial_axes, tuple) and isinstance(self.block_dimensions, tuple)
        return self.spatial_axes, self.batch_axis, self.block_dimensions, self.use_pixel_shuffle_order

    def _own(self) -> dict[str, Any]:
        return {a: getattr(self, a) for a in self.attributes()}

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "is not a multiple of the block", sample((3, 3, 5), spatial_axes=(1, 2), block_dimensions=(2, 2))
        yield "names an axis twice", sample((4, 4), spatial_axes=(0,), block_dimensions=(2,))
        yield "differ in length", sample((4, 4), spatial_axes=(1,), block_dimensions=(2, 2))


class SpaceToBatch(BatchMove, name="space_to_batch"):
    """Blocks of the dims `spatial_axes`, of sizes `block_dimensions`, become batch entries.

    Batch index: offset in the block · N + n, as TensorFlow does it; with `use_pixel_shuffle_order` n · block + offset.
    """

    x: Operand = operand("...", "any")

    def opposite(self, ct: Value) -> Value:
        return F.batch_to_space(ct, **self._own())

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 4, 6, 3), spatial_axes=(1, 2), block_dimensions=(2, 3))
        yield sample((2, 4, 6, 3), spatial_axes=(2, 1), block_dimensions=(3, 2), use_pixel_shuffle_order=True)
        yield sample((4, 3), spatial_axes=0, block_dimensions=2, batch_axis=-1)


class BatchToSpace(BatchMove, name="batch_to_space"):
    """Batch entries become blocks: the inverse of `space_to_batch`, same arguments."""

    x: Operand = operand("...", "any")
    inward = False

    def opposite(self, ct: Value) -> Value:
        return F.space_to_batch(ct, **self._own())

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((12, 2, 3), spatial_axes=(1, 2), block_dimensions=(2, 3))
        yield sample((12, 2, 3), spatial_axes=(2, 1), block_dimensions=(3, 2), use_pixel_shuffle_order=True)
        yield sample((4, 6), spatial_axes=0, block_dimensions=2, batch_axis=-1)
