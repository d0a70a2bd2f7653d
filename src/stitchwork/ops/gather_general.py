"""The general gather: windows of a tensor read at index vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import float32
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, as_index, const, extent, where
from stitchwork.ops._build import F
from stitchwork.ops._contents import int_tuple, size_tuple
from stitchwork.ops._dimension_numbers import Numbers, window_start
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, operand, sample
from stitchwork.ops._regions import Shape
from stitchwork.ops._values import convert, filled, wide
from stitchwork.ops.gather import wrapped
from stitchwork.ops.slicing import fill_of


class GatherGeneral(Op, name="gather_general", internal=True):
    """A window of x of `slice_sizes` for each index vector, by StableHLO's dimension numbers.

    `outside` says what happens to a window that is not inside x: "clamp" moves it there, "zero" reads it as zeros.
    `wrap` makes negative indices count from the end. Indices may have fewer batches than x.
    """

    x: Operand = operand("...", "any")
    indices: Operand = operand("...", "int", same="I")
    slice_sizes: Sequence[Size]
    offset_dims: Ints
    collapsed_slice_dims: Ints
    start_index_map: Ints
    index_vector_dim: int
    operand_batching_dims: Ints = ()
    start_indices_batching_dims: Ints = ()
    outside: str = "clamp"
    wrap: bool = False

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        names = ("offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims",
                 "start_indices_batching_dims")  # fmt: skip
        lists = {k: int_tuple(cls.name, k, attrs.get(k, ())) for k in names}
        return {**attrs, **lists, "slice_sizes": size_tuple(cls.name, "slice_sizes", attrs["slice_sizes"])}

    def numbers(self, rank: int) -> Numbers:
        """The dimension numbers for a tensor of `rank`."""
        return Numbers(rank, self.offset_dims, self.collapsed_slice_dims, self.operand_batching_dims,
                       self.start_indices_batching_dims, self.start_index_map, self.index_vector_dim)  # fmt: skip

    @property
    def window(self) -> Shape:
        """The slice sizes, resolved."""
        assert isinstance(self.slice_sizes, tuple)
        return self.slice_sizes

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        if self.outside not in ("clamp", "zero"):
            raise self.fail("unknown `outside`", expected="clamp or zero", got=self.outside)
        if len(self.window) != x.rank:
            raise self.fail("`slice_sizes` does not have one entry per dim", expected=str(x.rank), got=str(self.window))
        numbers = self.numbers(x.rank)
        rank = indices.rank - (self.index_vector_dim < indices.rank) + len(self.offset_dims)
        numbers.check(self, x.shape, indices.shape, self.window, rank, self.outside == "clamp")
        outer = iter(numbers.index_dims(indices.shape))
        inner = iter(self.window[d] for d in numbers.kept)
        return x.with_shape(tuple(next(inner) if d in self.offset_dims else next(outer) for d in range(rank)))

    def numpy(self, x: Array, indices: Array) -> Array:
        shape = self.infer(*(TensorType(float32, a.shape) for a in (x, indices))).shape
        at, ok = self.numbers(x.ndim).located(
            ints(shape), indices, x.shape, ints(self.window), self.wrap, self.outside == "clamp"
        )
        made = np.zeros(ints(shape), x.dtype)
        made[ok] = x[tuple(p[ok] for p in at)] if at else x
        return made

    def compute(self, out: tuple[Axis, ...], x: Buffer, indices: Buffer) -> Expr:
        clamp = self.outside == "clamp"
        numbers = self.numbers(x.rank)
        starts, batches, within = numbers.parts(
            list[Expr](out), lambda outer, k: read_index(numbers, indices, outer, k)
        )
        ok: Expr | None = None
        index: list[Expr] = []
        for d, (n, w) in enumerate(zip(x.shape, self.window, strict=True)):
            position = batches.get(d, within.get(d, extent(0)))
            if d in starts:
                start = window_start(starts[d], n, w, self.wrap, clamp, wrapped)
                here = (start >= 0) & (start <= extent(n - w))
                ok = ok if clamp else here if ok is None else ok & here
                position = start + position
            index.append(position)
        found = x.at(*index, boundary="constant", fill=fill_of(x.dtype, 0))
        return found if ok is None else where(ok, found, const(fill_of(x.dtype, 0), x.dtype))

    def vjp(self, ct: Value, x: Value, indices: Value) -> tuple[Value, None]:
        made = F.scatter_general(
            filled(wide(ct), x.shape), indices, wide(ct),
            update_window_dims=self.offset_dims,
            inserted_window_dims=self.collapsed_slice_dims,
            scatter_dims_to_operand_dims=self.start_index_map,
            index_vector_dim=self.index_vector_dim,
            input_batching_dims=self.operand_batching_dims,
            scatter_indices_batching_dims=self.start_indices_batching_dims,
            mode="add",
            outside="clamp" if self.outside == "clamp" else "drop",
            wrap=self.wrap,
        )  # fmt: skip
        return convert(made, x.dtype), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rows = {"offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,), "index_vector_dim": 1}
        for outside in ("clamp", "zero"):
            yield sample((4, 5), np.array([0, 3, 7, -1], np.int32), slice_sizes=(1, 5), outside=outside, **rows)
            corners = {
                "offset_dims": (0, 2),
                "collapsed_slice_dims": (),
                "start_index_map": (1, 0),
                "index_vector_dim": 1,
            }
            index = np.array([[2, 1], [3, 3], [-1, 0]])
            yield sample((4, 5), index, slice_sizes=(2, 3), outside=outside, **corners)
        yield sample((4, 5), np.array([0, -1, -5], np.int32), slice_sizes=(1, 5), outside="zero", wrap=True, **rows)
        yield sample((2, 4, 3), np.array([[1, 0], [3, 3]], np.int32), slice_sizes=(1, 1, 3), offset_dims=(2,),
                     collapsed_slice_dims=(1,), operand_batching_dims=(0,), start_indices_batching_dims=(0,),
                     start_index_map=(1,), index_vector_dim=2)  # fmt: skip

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        rows = {"offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,), "index_vector_dim": 1}
        index = np.array([0], np.int32)

        def wrong(**attrs: Any) -> Sample:
            return sample((4, 5), index, **{"slice_sizes": (1, 5), **rows, **attrs})

        yield "a window does not fit", wrong(slice_sizes=(1, 6))
        yield "a window does not fit", wrong(slice_sizes=(2, 5))
        yield "one entry per dim", wrong(slice_sizes=(1,))
        yield "not distinct dims", wrong(start_index_map=(2,))
        yield "does not fit the index vectors", wrong(index_vector_dim=0, start_index_map=(0, 1), offset_dims=(0,))
        yield "do not fit the operand", wrong(offset_dims=())
        yield "unknown `outside`", wrong(outside="wrap")


def read_index(numbers: Numbers, indices: Buffer, outer: Sequence[Expr], k: int) -> Expr:
    """Entry k of the index vector at `outer`, as an i64."""
    at: list[Any] = list(outer)
    if numbers.vector_dim < indices.rank:
        at.insert(numbers.vector_dim, k)
    return as_index(indices[tuple(at)])


def ints(shape: Shape) -> Ints:
    """A shape whose sizes are known to be ints."""
    return tuple(int(n) for n in shape)
