"""Reads at indices that are tensors.

One rule for all of them: a negative index counts from the end, and an index outside reads 0; nothing ever faults.
`gather_general` is the exception where its attributes say so. Gradients add up where indices repeat.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Content, Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, as_index, extent, where
from stitchwork.ops._build import F
from stitchwork.ops._contents import known, moved, one_int
from stitchwork.ops._op import (
    Array,
    Ints,
    Op,
    Operand,
    Sample,
    axis_index,
    operand,
    require_at_least,
    require_equal,
    sample,
)
from stitchwork.ops._regions import arange
from stitchwork.ops._values import convert, filled, wide
from stitchwork.ops.slicing import fill_of


def wrapped(index: Expr, size: Size) -> Expr:
    """An index in which negative numbers count from the end of a dim of `size`, as an i64."""
    i = as_index(index)
    return i if index.dtype.kind == "u" else where(i < 0, i + extent(size), i)


def taken(x: Array, index: Sequence[Array]) -> Array:
    """x at arrays of indices, one per dim, by this file's rule."""
    if not index:
        return np.array(x)
    shape = np.broadcast_shapes(*(i.shape for i in index))
    ok: Array = np.ones(shape, np.bool_)
    fixed: list[Array] = []
    for i, n in zip(index, x.shape, strict=True):
        j: Array = np.broadcast_to(i, shape).astype(np.int64)
        j = np.where(j < 0, j + n, j)
        ok &= (j >= 0) & (j < n)
        fixed.append(j)
    found: Array = np.full(shape, 0, x.dtype)
    found[ok] = x[tuple(j[ok] for j in fixed)]
    return found


def check_batch(op: Op, batch_dims: int, data: TensorType, indices: TensorType, limit: int, what: str) -> None:
    """Raise OpError unless the first `batch_dims` dims of both tensors agree and there are no more than `limit`."""
    if not 0 <= batch_dims <= limit:
        raise op.fail("`batch_dims` is out of range", expected=f"0 <= batch_dims <= {limit}", got=str(batch_dims))
    for d in range(batch_dims):
        if not require_equal(op.name, data.shape[d], indices.shape[d], f"{what}[{d}] == indices[{d}]"):
            raise op.fail(f"batch dim {d} differs", expected=f"{what}[{d}] == indices[{d}]", got=f"{data}  {indices}")


def index_contents(types: tuple[Any, ...], contents: tuple[Content, ...], op: Op) -> Content:
    """`shape_value` of gathers: sizes taken at known positions."""
    return moved(op, types, contents) if _numbers(contents[1]) else None


def _numbers(x: Content) -> bool:
    if isinstance(x, tuple):
        return all(map(_numbers, cast("tuple[Content, ...]", x)))
    return isinstance(x, int)


class GatherND(Op, name="gather_nd"):
    """Elements or slices of x at index vectors, the last dim of `indices`.

    With B batch dims and K index entries, result[b, i, ...] = x[b, indices[b, i, 0], ..., indices[b, i, K-1], ...]:
    dims of x that are not indexed come along as slices. Shape: indices.shape[:-1] + x.shape[B + K:].
    """

    x: Operand = operand("...", "any")
    indices: Operand = operand("... k", "int", same="I")
    batch_dims: int = 0
    synonyms = {"updates": "x", "batch_dimensions": "batch_dims"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {"batch_dims": one_int(cls.name, "batch_dims", attrs.get("batch_dims", 0))}

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        b, k = self.batch_dims, indices.shape[-1]
        check_batch(self, b, x, indices, min(x.rank, indices.rank - 1), "x")
        if not isinstance(k, int):
            raise self.fail("the last dim of `indices` must have a known size", got=str(indices))
        if b + k > x.rank:
            raise self.fail("more index entries than dims", expected=f"{x.rank - b} or fewer", got=str(indices))
        return x.with_shape((*indices.shape[:-1], *x.shape[b + k :]))

    def numpy(self, x: Array, indices: Array) -> Array:
        b, k = self.batch_dims, indices.shape[-1]
        outer, rest = indices.shape[:-1], x.shape[b + k :]
        grid = np.meshgrid(*map(arange, (*outer, *rest)), indexing="ij", sparse=True)
        vectors = [indices[..., j].reshape((*outer, *(1,) * len(rest))) for j in range(k)]
        return np.broadcast_to(taken(x, [*grid[:b], *vectors, *grid[len(outer) :]]), (*outer, *rest)).copy()

    def compute(self, out: tuple[Axis, ...], x: Buffer, indices: Buffer) -> Expr:
        b, outer = self.batch_dims, indices.rank - 1
        k = indices.shape[-1]
        assert isinstance(k, int)
        vector = [wrapped(indices[(*out[:outer], j)], x.shape[b + j]) for j in range(k)]
        return x.at(*out[:b], *vector, *out[outer:], boundary="constant", fill=fill_of(x.dtype, 0))

    def vjp(self, ct: Value, x: Value, indices: Value) -> tuple[Value, None]:
        made = F.scatter_nd(wide(ct), indices, shape=x.shape, batch_dims=self.batch_dims)
        return convert(made, x.dtype), None

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return index_contents(types, contents, self)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((4, 5), np.array([[0, 1], [3, -1], [4, 0], [-5, 2]], np.int32))
        yield sample((4, 5, 2), np.array([[0], [3], [-1]]))
        yield sample((2, 4, 3), np.array([[[1], [0]], [[3], [3]]], np.int32), batch_dims=1)
        yield sample((4, 5), np.zeros((3, 0), np.int32))
        yield sample((4, 5), np.array([3, 2], np.uint8))
        yield sample((4, 5), np.zeros((0, 2), np.int32))
        yield sample((0, 5), np.array([[0, 1], [-1, 0]], np.int32))
        yield Sample(((4,), np.array([[1], [9]])), {}, dtype="bool", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "more index entries than dims", sample((4,), np.zeros((3, 2), np.int32))
        yield "`batch_dims` is out of range", sample((4,), np.zeros((3,), np.int32), batch_dims=1)
        yield "batch dim 0 differs", sample((4, 2), np.zeros((3, 1), np.int32), batch_dims=1)
        yield "`indices` has dtype f32", sample((4,), (3, 1))


class Gather(Op, name="gather", aliases=("take",)):
    """Slices of x at positions along `axis`, which the dims of `indices` (after the batch dims) replace.

    result[b, o, i, r] = x[b, o, indices[b, i], r]; shape x.shape[:axis] + indices.shape[B:] + x.shape[axis+1:].
    """

    x: Operand = operand("...", "any")
    indices: Operand = operand("...", "int", same="I")
    axis: int = 0
    batch_dims: int = 0
    synonyms = {"updates": "x", "batch_dimensions": "batch_dims"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        axis = axis_index(cls.name, known(cls.name, "axis", attrs.get("axis", 0)), types[0].rank)
        return {"axis": axis, "batch_dims": one_int(cls.name, "batch_dims", attrs.get("batch_dims", 0))}

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        check_batch(self, self.batch_dims, x, indices, min(self.axis, indices.rank), "x")
        return x.with_shape((*x.shape[: self.axis], *indices.shape[self.batch_dims :], *x.shape[self.axis + 1 :]))

    def numpy(self, x: Array, indices: Array) -> Array:
        a, b, inner = self.axis, self.batch_dims, indices.ndim - self.batch_dims
        shape = (*x.shape[:a], *indices.shape[b:], *x.shape[a + 1 :])
        grid = np.meshgrid(*map(arange, shape), indexing="ij", sparse=True)
        before, after = (1,) * (a - b), (1,) * (x.ndim - a - 1)
        at = indices.reshape((*indices.shape[:b], *before, *indices.shape[b:], *after))
        return np.broadcast_to(taken(x, [*grid[:a], at, *grid[a + inner :]]), shape).copy()

    def compute(self, out: tuple[Axis, ...], x: Buffer, indices: Buffer) -> Expr:
        a, b, inner = self.axis, self.batch_dims, indices.rank - self.batch_dims
        at = wrapped(indices[(*out[:b], *out[a : a + inner])], x.shape[a])
        return x.at(*out[:a], at, *out[a + inner :], boundary="constant", fill=fill_of(x.dtype, 0))

    def vjp(self, ct: Value, x: Value, indices: Value) -> tuple[Value, None]:
        a, b, inner = self.axis, self.batch_dims, indices.rank - self.batch_dims
        made = F.scatter_general(
            filled(wide(ct), x.shape), indices, wide(ct),
            update_window_dims=(*range(b, a), *range(a + inner, ct.rank)),
            inserted_window_dims=(a,),
            input_batching_dims=tuple(range(b)),
            scatter_indices_batching_dims=tuple(range(b)),
            scatter_dims_to_operand_dims=(a,),
            index_vector_dim=indices.rank,
            mode="add",
            wrap=True,
        )  # fmt: skip
        return convert(made, x.dtype), None

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return index_contents(types, contents, self)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((4, 5), np.array([0, 3, -1, 4, -5, 3], np.int32))
        yield sample((4, 5), np.array([[0, 3], [4, 9]]), axis=1)
        yield sample((4, 5, 2), np.array(2, np.uint8), axis=-2)
        yield sample((2, 4, 3), np.array([[1, 0], [3, 3]], np.int32), axis=1, batch_dims=1)
        yield sample((2, 3, 4), np.array([[1, 0], [3, 3]], np.int32), axis=2, batch_dims=1)
        yield sample((4, 5), np.zeros((0,), np.int32))
        yield sample((0, 5), np.array([0, -1], np.int32))
        yield sample((0, 5, 2), np.zeros((0, 3), np.int32), axis=1, batch_dims=1)
        yield Sample(((4, 5), np.array([1], np.int32)), {}, dtype="bf16", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`axis` is out of range", sample((4,), np.array([0]), axis=1)
        yield "`batch_dims` is out of range", sample((4,), np.array([0]), batch_dims=1)
        yield "batch dim 0 differs", sample((4, 2), np.zeros((3, 1), np.int32), axis=1, batch_dims=1)
        yield "`indices` has dtype f32", sample((4,), (3,))


class GatherAlongAxis(Op, name="gather_along_axis", aliases=("take_along_axis",)):
    """x at an index per element along `axis`: result[..., i, ...] = x[..., indices[..., i, ...], ...].

    The result has the shape of `indices`, whose other dims may be smaller than those of x (as in ONNX and PyTorch).
    """

    x: Operand = operand("...", "any")
    indices: Operand = operand("...", "int", same="I")
    axis: int = -1
    synonyms = {"updates": "x"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {"axis": axis_index(cls.name, known(cls.name, "axis", attrs.get("axis", -1)), types[0].rank)}

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        check_along(self, x, indices, self.axis, "x")
        return x.with_shape(indices.shape)

    def numpy(self, x: Array, indices: Array) -> Array:
        grid: list[Array] = list(np.meshgrid(*map(arange, indices.shape), indexing="ij", sparse=True))
        grid[self.axis] = indices
        return taken(x, grid)

    def compute(self, out: tuple[Axis, ...], x: Buffer, indices: Buffer) -> Expr:
        index: list[Expr] = list(out)
        index[self.axis] = wrapped(indices[out], x.shape[self.axis])
        return x.at(*index, boundary="constant", fill=fill_of(x.dtype, 0))

    def vjp(self, ct: Value, x: Value, indices: Value) -> tuple[Value, None]:
        made = F.scatter_along_axis(wide(ct), indices, shape=x.shape, axis=self.axis)
        return convert(made, x.dtype), None

    def permuted(self, permutation: Ints) -> Op:
        return dataclasses.replace(self, axis=permutation.index(self.axis))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((4, 5), np.array([[0, 4, -1], [1, 1, 1], [5, -6, 2], [0, 0, 3]], np.int32), axis=1)
        yield sample((4, 3), np.array([[0, 3, -1], [1, 1, 4]]), axis=0)
        yield sample((4, 3), np.array([[2, 1]], np.int32))
        yield sample((3,), np.array([2, 2, 0, 1], np.int32))
        yield sample((4, 0), np.array([[0, 1]], np.int32))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`indices` and `x` differ in rank", sample((4, 3), np.array([0]))
        yield "`indices` is larger than `x` in dim 0", sample((4, 3), np.zeros((5, 1), np.int32))
        yield "`axis` is out of range", sample((4,), np.array([0]), axis=1)


def check_along(op: Op, data: TensorType, indices: TensorType, axis: int, what: str) -> None:
    """Raise OpError unless `indices` has the rank of `data` and, apart from `axis`, no larger dims."""
    if data.rank != indices.rank:
        raise op.fail(f"`indices` and `{what}` differ in rank", expected=f"rank {data.rank}", got=str(indices))
    for d, (n, m) in enumerate(zip(data.shape, indices.shape, strict=True)):
        if d != axis and not require_at_least(op.name, n - m, 0, f"indices[{d}] <= {what}[{d}]"):
            raise op.fail(f"`indices` is larger than `{what}` in dim {d}", expected=f"{n} or less", got=str(m))
