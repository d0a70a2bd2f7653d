"""The k largest or smallest elements along an axis, and their gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir.dims import Dim, Size
from stitchwork.ir.dtypes import int32
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._contents import known, one_size
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
from stitchwork.ops._values import result_cotangents
from stitchwork.ops.sort import sort_axis, stable_order


class Extremes(Op):
    """The k first elements of a sort along an axis, and where they are."""

    k: Size
    axis: int = -1
    largest = True

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        axis = sort_axis(cls, types, attrs)
        k = one_size(cls.name, "k", attrs["k"])
        n = types[0].shape[axis]
        if not (require_at_least(cls.name, k, 0, "k >= 0") and require_at_least(cls.name, n - k, 0, f"k <= x[{axis}]")):
            raise cls(k=k).fail("`k` is out of range", expected=f"0 <= k <= {n}", got=str(k))
        return {"axis": axis, "k": k}

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        values = x.with_shape((*x.shape[: self.axis], self.k, *x.shape[self.axis + 1 :]))
        return values, values.with_dtype(int32)

    def numpy(self, x: Array) -> tuple[Array, Array]:
        rows = np.moveaxis(x, self.axis, -1)
        assert not isinstance(self.k, Dim)
        order = stable_order(rows, self.largest)[..., : self.k]
        values = np.take_along_axis(rows, order, -1)
        return np.moveaxis(values, -1, self.axis), np.moveaxis(order, -1, self.axis).astype(np.int32)

    def order(self, x: Value) -> Value:
        """Where the elements are."""
        return F.sorting_order([x], axis=self.axis, descending=self.largest, count=self.k)

    def decompose(self, x: Value) -> tuple[Value, Value]:
        order = self.order(x)
        return F.gather_along_axis(x, order, axis=self.axis), order

    def vjp(self, *args: Any) -> tuple[Value | None]:
        *given, x = args
        ct = result_cotangents(given)[0]
        return (None if ct is None else F.scatter_along_axis(ct, self.order(x), shape=x.shape, axis=self.axis),)

    def permuted(self, permutation: Ints) -> Op:
        return dataclasses.replace(self, axis=permutation.index(self.axis))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(((3, 17),), {"k": 3}, grad=False)
        yield Sample(((5, 3),), {"k": 5, "axis": 0}, grad=False)
        yield Sample(((2, 50),), {"k": 40}, grad=False)
        yield Sample((np.array([1, np.nan, 3, 3, 2], np.float32),), {"k": 4}, grad=False)
        yield Sample(((9,),), {"k": 0}, grad=False)
        yield Sample(((40,),), {"k": 2}, domain=(-100, 100), dtype="i8", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`k` is out of range", sample((3,), k=4)
        yield "`k` is out of range", sample((3,), k=-1)
        yield "`axis` is out of range", sample((3,), k=1, axis=1)


class TopK(Extremes, name="top_k"):
    """The k largest elements along `axis` (the last unless given), largest first, and where they are, int32.

    Of equal elements the first comes first; NaN counts as smallest.
    """

    x: Operand = operand("...", "real")


class BottomK(Extremes, name="bottom_k"):
    """The k smallest elements along `axis` (the last unless given), smallest first, and where they are, int32.

    Of equal elements the first comes first; NaN counts as largest.
    """

    x: Operand = operand("...", "real")
    largest = False


class ExtremesGradient(Op):
    """The gradient of the values of `top_k` or `bottom_k`."""

    k: Size
    axis: int = -1
    largest = True

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        axis = axis_index(cls.name, known(cls.name, "axis", attrs.get("axis", -1)), types[1].rank)
        return {"axis": axis, "k": one_size(cls.name, "k", attrs["k"])}

    def infer(self, gradient: TensorType, source: TensorType) -> TensorType:
        wanted = (*source.shape[: self.axis], self.k, *source.shape[self.axis + 1 :])
        if gradient.rank != source.rank or not all(
            require_equal(self.name, a, b, f"gradient[{d}] is the result's size")
            for d, (a, b) in enumerate(zip(gradient.shape, wanted, strict=True))
        ):
            raise self.fail(
                "`gradient` does not have the shape of the values",
                expected=str(gradient.with_shape(wanted)),
                got=str(gradient),
            )
        return gradient.with_shape(source.shape)

    def numpy(self, gradient: Array, source: Array) -> Array:
        rows = np.moveaxis(source, self.axis, -1)
        made = np.zeros(rows.shape, gradient.dtype)
        order = stable_order(rows, self.largest)[..., : gradient.shape[self.axis]]
        np.put_along_axis(made, order, np.moveaxis(gradient, self.axis, -1), -1)
        return np.moveaxis(made, -1, self.axis)

    def _order(self, source: Value) -> Value:
        return F.sorting_order([source], axis=self.axis, descending=self.largest, count=self.k)

    def decompose(self, gradient: Value, source: Value) -> Value:
        return F.scatter_along_axis(gradient, self._order(source), shape=source.shape, axis=self.axis)

    def vjp(self, ct: Value, gradient: Value, source: Value) -> tuple[Value, None]:
        return F.gather_along_axis(ct, self._order(source), axis=self.axis), None

    def permuted(self, permutation: Ints) -> Op:
        return dataclasses.replace(self, axis=permutation.index(self.axis))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4), (3, 9), k=4)
        yield sample((2, 3), (5, 3), k=2, axis=0)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "does not have the shape of the values", sample((3, 4), (3, 9), k=3)


class TopKGradient(ExtremesGradient, name="top_k_gradient"):
    """The gradient of the values of `top_k`: `gradient` at the k largest elements of `source`, 0 elsewhere."""

    gradient: Operand = operand("...", "float")
    source: Operand = operand("...", "real", same="S")


class BottomKGradient(ExtremesGradient, name="bottom_k_gradient"):
    """The gradient of the values of `bottom_k`: `gradient` at the k smallest elements of `source`, 0 elsewhere."""

    gradient: Operand = operand("...", "float")
    source: Operand = operand("...", "real", same="S")
    largest = False
