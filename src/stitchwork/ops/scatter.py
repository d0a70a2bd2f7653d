"""Writes at indices that are tensors: the counterparts of the gathers.

A negative index counts from the end; updates whose index is outside are left out. Updates are combined in row-major
order by `mode`: add, sub, mul, div, min, max, or set, of which the last one stays. Without data, they are combined into
the mode's identity: 0 for add, sub and set, 1 for mul and div, the largest number for min, the smallest for max.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stitchwork.ir import dtypes
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import DType, as_dtype
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._contents import known, one_int, size_tuple
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, axis_index, operand, require_at_least, sample
from stitchwork.ops._regions import Shape
from stitchwork.ops._values import filled
from stitchwork.ops.gather import check_along, check_batch
from stitchwork.ops.gather_general import ints
from stitchwork.ops.scatter_general import MODES, ScatterGeneral, check_mode, check_scatter


def identity_of(mode: str, dtype: DType) -> Any:
    """What updates are combined into where there is no data."""
    if mode in ("min", "max"):
        return dtypes.highest(dtype) if mode == "min" else dtypes.lowest(dtype)
    return 1 if mode in ("mul", "div") else 0


class Scattering(Op):
    """What all scatters share; a subclass says which general scatter it is."""

    mode: str = "add"

    def general(self, data: TensorType, indices: TensorType, updates: TensorType) -> ScatterGeneral:
        """The general scatter that this one is. Raises OpError where the types do not fit."""
        raise TypeError(f"{self.name} has no `general`")

    def checked(self, data: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        """The result's type."""
        check_mode(self, self.mode, data)
        check_scatter(self, self.general(data, indices, updates), data, indices, updates)
        return data

    def computed(self, data: Array, indices: Array, updates: Array) -> Array:
        """The result by NumPy."""
        return self.general(*map(_type, (data, indices, updates))).numpy(data, indices, updates)

    def built(self, data: Value, indices: Value, updates: Value) -> Value:
        """The result in the graph."""
        op = self.general(data.tensor, indices.tensor, updates.tensor)
        return F.scatter_general(data, indices, updates, **{a: getattr(op, a) for a in op.attributes()})

    def pulled(self, ct: Value, data: Value, indices: Value, updates: Value) -> tuple[Value, Value]:
        """Cotangents of data and updates."""
        op = self.general(data.tensor, indices.tensor, updates.tensor)
        of_data, _, of_updates = op.vjp(ct, data, indices, updates)
        return of_data, of_updates


def _type(x: Array) -> TensorType:
    return TensorType(as_dtype(x.dtype), x.shape)


class IntoShape(Scattering):
    """A scatter into the identity of its mode, of a given shape."""

    shape: Sequence[Size]

    @property
    def sizes(self) -> Shape:
        """The result's shape."""
        assert isinstance(self.shape, tuple)
        return self.shape

    @classmethod
    def shape_attribute(cls, attrs: dict[str, Any]) -> Shape:
        """The shape given, checked."""
        shape = size_tuple(cls.name, "shape", attrs["shape"])
        if not all(require_at_least(cls.name, n, 0, "shape >= 0") for n in shape):
            raise cls(shape=shape).fail("`shape` is not a shape", expected="sizes of 0 or more", got=str(shape))
        return shape

    def infer(self, updates: TensorType, indices: TensorType) -> TensorType:
        return self.checked(updates.with_shape(self.sizes), indices, updates)

    def numpy(self, updates: Array, indices: Array) -> Array:
        start = np.full(ints(self.sizes), identity_of(self.mode, as_dtype(updates.dtype))).astype(updates.dtype)
        return self.computed(start, indices, updates)

    def _start(self, updates: Value) -> Value:
        return filled(updates, self.sizes, identity_of(self.mode, updates.dtype))

    def decompose(self, updates: Value, indices: Value) -> Value:
        return self.built(self._start(updates), indices, updates)

    def vjp(self, ct: Value, updates: Value, indices: Value) -> tuple[Value, None]:
        return self.pulled(ct, self._start(updates), indices, updates)[1], None


class OntoData(Scattering):
    """A scatter onto a tensor."""

    def infer(self, data: TensorType, updates: TensorType, indices: TensorType) -> TensorType:
        return self.checked(data, indices, updates)

    def numpy(self, data: Array, updates: Array, indices: Array) -> Array:
        return self.computed(data, indices, updates)

    def decompose(self, data: Value, updates: Value, indices: Value) -> Value:
        return self.built(data, indices, updates)

    def vjp(self, ct: Value, data: Value, updates: Value, indices: Value) -> tuple[Value, Value, None]:
        return *self.pulled(ct, data, indices, updates), None


class ByVectors(Scattering):
    """A scatter at index vectors, the last dim of the indices."""

    batch_dims: int = 0
    synonyms = {"batch_dimensions": "batch_dims"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        batch_dims = one_int(cls.name, "batch_dims", attrs.get("batch_dims", 0))
        shape = {"shape": cls.shape_attribute(attrs)} if issubclass(cls, IntoShape) else {}
        return {**attrs, **shape, "batch_dims": batch_dims}

    def general(self, data: TensorType, indices: TensorType, updates: TensorType) -> ScatterGeneral:
        b, q = self.batch_dims, indices.rank
        check_batch(self, b, data, indices, min(data.rank, q - 1), "data")
        k = indices.shape[-1]
        if not isinstance(k, int):
            raise self.fail("the last dim of `indices` must have a known size", got=str(indices))
        rest = data.rank - b - k
        if rest < 0 or updates.rank != q - 1 + rest:
            raise self.fail("the ranks do not fit", expected=f"updates of rank {q - 1 + max(rest, 0)}: indices without "
                            f"the last dim, then dims not indexed", got=f"{data}  {updates}  {indices}")  # fmt: skip
        return ScatterGeneral(
            update_window_dims=tuple(range(q - 1, q - 1 + rest)),
            inserted_window_dims=tuple(range(b, b + k)),
            scatter_dims_to_operand_dims=tuple(range(b, b + k)),
            index_vector_dim=q - 1,
            input_batching_dims=tuple(range(b)),
            scatter_indices_batching_dims=tuple(range(b)),
            mode=self.mode,
            wrap=True,
        )


class ScatterND(ByVectors, IntoShape, name="scatter_nd"):
    """A tensor of `shape` with updates combined in at index vectors, the last dim of `indices`: see `gather_nd`.

    Updates have the shape indices.shape[:-1] + shape[batch_dims + K:], where K is the length of a vector. For modes,
    indices outside and what is there before, see the head of this family: the identity of `mode`.
    """

    updates: Operand = operand("...", "any")
    indices: Operand = operand("... k", "int", same="I")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        index = np.array([[0], [3], [-1], [9], [0]], np.int32)
        for mode in MODES:
            yield Sample(((5, 3), index), {"shape": (4, 3), "mode": mode}, (0.5, 2.0), grad=mode not in ("min", "max"))
        yield sample((2, 3), np.array([[[1], [0], [1]], [[3], [3], [2]]]), shape=(2, 4), batch_dims=1)
        yield sample((4,), np.array([[0, 1], [3, -1], [4, 0], [0, 1]]), shape=(4, 5))
        yield Sample(((3,), np.array([[1], [0], [1]])), {"shape": (3,), "mode": "max"}, dtype="i32", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "the ranks do not fit", sample((4, 2), np.zeros((4, 2), np.int32), shape=(4, 5))
        yield "updates and indices differ", sample((3,), np.zeros((4, 2), np.int32), shape=(4, 5))
        yield "a window does not fit", sample((4, 6), np.zeros((4, 1), np.int32), shape=(4, 5))
        yield "`batch_dims` is out of range", sample((4,), np.zeros((4, 1), np.int32), shape=(4,), batch_dims=2)
        yield "unknown `mode`", sample((4,), np.zeros((4, 1), np.int32), shape=(4,), mode="mean")
        yield "`shape` is not a shape", sample((4,), np.zeros((4, 1), np.int32), shape=(-4,))


class ScatterNDWithData(ByVectors, OntoData, name="scatter_nd_with_data"):
    """`data` with updates combined in at index vectors, the last dim of `indices`: see `scatter_nd`."""

    data: Operand = operand("...", "any")
    updates: Operand = operand("...", "any")
    indices: Operand = operand("... k", "int", same="I")
    promotes = True

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        index = np.array([[0], [3], [-1], [9], [0]], np.int32)
        for mode in MODES:
            yield Sample(((4, 3), (5, 3), index), {"mode": mode}, domain=(0.5, 2.0))
        yield sample((2, 4), (2, 3), np.array([[[1], [0], [1]], [[3], [3], [2]]]), batch_dims=1)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "the ranks do not fit", sample((4, 5), (4, 2), np.zeros((4, 2), np.int32))
        yield "unknown `mode`", sample((4,), (4,), np.zeros((4, 1), np.int32), mode="mean")


class AtPositions(Scattering):
    """A scatter of slices along an axis."""

    axis: int = 0

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        axis = axis_index(cls.name, known(cls.name, "axis", attrs.get("axis", cls.axis)), types[0].rank)
        shape = {"shape": cls.shape_attribute(attrs)} if issubclass(cls, IntoShape) else {}
        return {**attrs, **shape, "axis": axis}

    def general(self, data: TensorType, indices: TensorType, updates: TensorType) -> ScatterGeneral:
        if data.rank != updates.rank:
            raise self.fail("`updates` and the result differ in rank", expected=str(updates), got=str(data))
        return ScatterGeneral(
            update_window_dims=tuple(d for d in range(data.rank) if d != self.axis),
            inserted_window_dims=(self.axis,),
            scatter_dims_to_operand_dims=(self.axis,),
            index_vector_dim=1,
            mode=self.mode,
            wrap=True,
        )


class Scatter(AtPositions, IntoShape, name="scatter"):
    """A tensor of `shape` with slices of `updates` combined in at positions along `axis`.

    `indices` is a vector with a position per slice; for modes see `scatter_nd`. Other dims of updates may be smaller.
    """

    updates: Operand = operand("...", "any")
    indices: Operand = operand("n", "int", same="I")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        index = np.array([0, 3, -1, 9, 0], np.int32)
        yield sample((5, 3), index, shape=(4, 3))
        yield sample((3, 5), index, shape=(3, 4), axis=-1, mode="set")
        yield Sample(((3, 5, 2), index), {"shape": (3, 4, 2), "axis": 1, "mode": "mul"}, domain=(0.5, 2.0))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "differ in rank", sample((5, 3), np.zeros(5, np.int32), shape=(4,))
        yield "updates and indices differ", sample((5, 3), np.zeros(4, np.int32), shape=(4, 3))
        yield "`axis` is out of range", sample((5,), np.zeros(5, np.int32), shape=(4,), axis=1)
        yield "`indices` has rank 2", sample((5,), np.zeros((5, 1), np.int32), shape=(4,))


class ScatterWithData(AtPositions, OntoData, name="scatter_with_data"):
    """`data` with slices of `updates` combined in at positions along `axis`: see `scatter`."""

    data: Operand = operand("...", "any")
    updates: Operand = operand("...", "any")
    indices: Operand = operand("n", "int", same="I")
    promotes = True

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        index = np.array([0, 3, -1, 9, 0], np.int32)
        yield sample((4, 3), (5, 3), index)
        yield sample((3, 4), (3, 5), index, axis=-1, mode="set")
        yield sample((3, 4), (3, 5), index, axis=1, mode="min")

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "updates and indices differ", sample((4, 3), (5, 3), np.zeros(4, np.int32))


class AlongAxis(Scattering):
    """A scatter with an index per element."""

    axis: int = -1

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        axis = axis_index(cls.name, known(cls.name, "axis", attrs.get("axis", cls.axis)), types[0].rank)
        shape = {"shape": cls.shape_attribute(attrs)} if issubclass(cls, IntoShape) else {}
        return {**attrs, **shape, "axis": axis}

    def general(self, data: TensorType, indices: TensorType, updates: TensorType) -> ScatterGeneral:
        check_along(self, data, indices, self.axis, "data")
        others = tuple(d for d in range(data.rank) if d != self.axis)
        return ScatterGeneral(
            update_window_dims=(),
            inserted_window_dims=(self.axis,),
            scatter_dims_to_operand_dims=(self.axis,),
            index_vector_dim=data.rank,
            input_batching_dims=others,
            scatter_indices_batching_dims=others,
            mode=self.mode,
            wrap=True,
        )


class ScatterAlongAxis(AlongAxis, IntoShape, name="scatter_along_axis"):
    """A tensor of `shape` with each update combined in at its own index along `axis`: see `gather_along_axis`.

    Updates and indices have one shape, whose other dims may be smaller than the result's. For modes see `scatter_nd`.
    """

    updates: Operand = operand("...", "any")
    indices: Operand = operand("...", "int", same="I")

    def permuted(self, permutation: Ints) -> Op:
        shape = tuple(self.sizes[d] for d in permutation)
        return dataclasses.replace(self, axis=permutation.index(self.axis), shape=shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        index = np.array([[2, 1, 0], [1, -1, 2]], np.int32)
        for mode in MODES:
            attrs = {"shape": (4, 3), "axis": 0, "mode": mode}
            yield Sample(((2, 3), index), attrs, (0.5, 2.0), grad=mode not in ("min", "max"))
        yield sample((2, 3), index, shape=(2, 2))
        yield sample((2, 3), index, shape=(3, 3))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        index = np.zeros((2, 3), np.int32)
        yield "`indices` and `data` differ in rank", sample((2, 3), index, shape=(4,))
        yield "`indices` is larger than `data` in dim 0", sample((2, 3), index, shape=(1, 3))
        yield "updates and indices differ", sample((2, 4), index, shape=(2, 4))


class ScatterAlongAxisWithData(AlongAxis, OntoData, name="scatter_along_axis_with_data"):
    """`data` with each update combined in at its own index along `axis`: see `scatter_along_axis`."""

    data: Operand = operand("...", "any")
    updates: Operand = operand("...", "any")
    indices: Operand = operand("...", "int", same="I")
    promotes = True

    def permuted(self, permutation: Ints) -> Op:
        return dataclasses.replace(self, axis=permutation.index(self.axis))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        index = np.array([[2, 1, 0], [1, 3, 2]], np.int32)
        for mode in MODES:
            yield Sample(((4, 3), (2, 3), index), {"axis": 0, "mode": mode}, domain=(0.5, 2.0))
        yield sample((2, 5), (2, 3), np.array([[4, 4, -1], [0, 7, 0]]), mode="set")

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "differ in rank", sample((4,), (2, 3), np.zeros((2, 3), np.int32))
