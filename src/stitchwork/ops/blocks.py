"""Blocks of some dims traded with another dim: space to depth, space to batch, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._contents import int_tuple, known, one_int
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, axes_index, axis_index, operand, require_equal, sample

Shape = tuple[Size, ...]


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
