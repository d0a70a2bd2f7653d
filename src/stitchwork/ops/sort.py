"""Sorting.

NaN counts as last, ascending or descending. Sorts are stable: equal elements keep their order. One primitive finds the
order, `sorting_order`; everything else gathers by it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import int32
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Buffer, cast
from stitchwork.ops._build import F
from stitchwork.ops._contents import known
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
from stitchwork.ops._records import RecordSorter, records
from stitchwork.ops._regions import arange
from stitchwork.ops._values import result_cotangents
from stitchwork.ops.cumulative import line
from stitchwork.ops.reduction import wide_array

_SELECT = 32  # up to so many first elements are kept in order while scanning, without sorting the rest
_POSITION = (1 << 32) - 1  # the bits of a record's last number that hold the position


class SortingOrder(Op, name="sorting_order", internal=True):
    """Where the elements of the sorted tensor are along `axis`, int32: `count` of them, or all (-1).

    The first of `keys` decides, the next where that is equal, and so on; then the position.
    """

    keys: Operand = operand("...", "real bool", same="", variadic=True)
    axis: int = -1
    descending: bool = False
    count: Size = -1

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        if not types[0]:
            raise cls().fail("no keys", expected="at least one")
        return {**attrs, "axis": axis_index(cls.name, attrs.get("axis", -1), types[0][0].rank)}

    def length(self, n: Size) -> Size:
        """How many positions there are along the axis for a dim of n."""
        return n if self.count == -1 else self.count

    def infer(self, keys: tuple[TensorType, ...]) -> TensorType:
        first = keys[0]
        for key in keys[1:]:
            if key.rank != first.rank or not all(
                require_equal(self.name, a, b, "keys have one shape")
                for a, b in zip(first.shape, key.shape, strict=True)
            ):
                raise self.fail("the keys differ in shape", expected=str(first), got=str(key))
        n = first.shape[self.axis]
        if not require_at_least(self.name, n - self.length(n), 0, "count <= elements"):
            raise self.fail("fewer elements than asked for", expected=f"{n} or fewer", got=str(self.count))
        return TensorType(int32, (*first.shape[: self.axis], self.length(n), *first.shape[self.axis + 1 :]))

    def numpy(self, keys: Sequence[Array]) -> Array:
        rows = [np.moveaxis(k, self.axis, -1) for k in keys]
        order = np.broadcast_to(arange(rows[0].shape[-1]), rows[0].shape)
        for row in reversed(rows):  # stable sorts by the last key first leave the first key to decide
            found = stable_order(np.take_along_axis(row, order, -1), self.descending)
            order = np.take_along_axis(order, found, -1)
        n = rows[0].shape[-1]
        return np.moveaxis(order[..., : int(self.length(n))], -1, self.axis).astype(np.int32)

    def loops(self, b: Any, outs: tuple[Buffer, ...], keys: tuple[Buffer, ...]) -> None:
        (out,) = outs
        n = keys[0].shape[self.axis]
        length = self.length(n)
        with b.nest([m for d, m in enumerate(keys[0].shape) if d != self.axis], "parallel") as at:
            sorter = RecordSorter(b, n, lambda i: records(keys, line(at, self.axis, i), i, self.descending))
            if isinstance(length, int) and length <= _SELECT and length != n:
                found, start = sorter.select(length)
            else:
                found, start = sorter.sort()
            with b.loop(length) as i:
                b.store(out, line(at, self.axis, i), cast(found[start + i] & _POSITION, int32))

    def permuted(self, permutation: Ints) -> Op:
        return dataclasses.replace(self, axis=permutation.index(self.axis))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        nans = np.array([[3, np.nan, 1, 1, np.nan, -np.inf, 2, np.inf, -0.0, 0.0]], np.float32)
        ties = np.array([3, 1, 3, 1, 2, 3, 1, 2, 2, 3, 1, 1, 3, 2, 2, 1, 3, 3, 1], np.int32)
        for descending in (False, True):
            yield Sample(([(3, 37)],), {"descending": descending}, grad=False)
            yield Sample(([(20, 2)],), {"axis": 0, "descending": descending}, grad=False)
            yield Sample(([nans],), {"descending": descending}, grad=False)
            yield Sample(
                ([ties, np.arange(19, dtype=np.float32)[::-1].copy()],), {"descending": descending}, grad=False
            )
            yield Sample(([(2, 40)],), {"descending": descending, "count": 5}, grad=False)
            yield Sample(([nans],), {"descending": descending, "count": 9}, grad=False)
        yield Sample(([(5,)],), {}, dtype="bool", grad=False)
        yield Sample(([(2, 9)],), {}, dtype="u8", grad=False)
        yield Sample(([(2, 9)],), {}, dtype="bf16", grad=False)
        for n in (0, 1, 2, 8, 9, 16, 17):
            yield Sample(([(n,)],), {}, grad=False)
        yield Sample(([(3, 0)],), {"axis": 0}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "fewer elements than asked for", sample([(3,)], count=4)
        yield "differ in shape", sample([(3,), (4,)])
        yield "no keys", sample([])


def stable_order(rows: Array, descending: bool) -> Array:
    """Stable order of the last axis, NaN last."""
    wide = rows.astype(np.int8) if rows.dtype == np.bool_ else wide_array(rows)
    nan = wide != wide
    clean = np.where(nan, np.zeros((), wide.dtype), wide)
    if descending:  # reversed twice, so that equal elements keep their order
        order = clean.shape[-1] - 1 - np.flip(np.argsort(np.flip(clean, -1), axis=-1, kind="stable"), -1)
    else:
        order = np.argsort(clean, axis=-1, kind="stable")
    last = np.argsort(np.take_along_axis(nan, order, -1), axis=-1, kind="stable")
    return np.take_along_axis(order, last, -1)


# --- ops on top ---------------------------------------------------------------------------------------------------
def sort_axis(op: type[Op], types: tuple[Any, ...], attrs: dict[str, Any]) -> int:
    return axis_index(op.name, known(op.name, "axis", attrs.get("axis", -1)), types[0].rank)


class Sort(Op, name="sort"):
    """x sorted along `axis` (the last unless given), ascending or `descending`; NaN last either way."""

    x: Operand = operand("...", "real bool")
    axis: int = -1
    descending: bool = False

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {**attrs, "axis": sort_axis(cls, types, attrs)}

    def infer(self, x: TensorType) -> TensorType:
        return x

    def numpy(self, x: Array) -> Array:
        rows = np.moveaxis(x, self.axis, -1)
        return np.moveaxis(np.take_along_axis(rows, stable_order(rows, self.descending), -1), -1, self.axis)

    def _order(self, x: Value) -> Value:
        return F.sorting_order([x], axis=self.axis, descending=self.descending)

    def decompose(self, x: Value) -> Value:
        return F.gather_along_axis(x, self._order(x), axis=self.axis)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.scatter_along_axis(ct, self._order(x), shape=x.shape, axis=self.axis, mode="add"),)

    def permuted(self, permutation: Ints) -> Op:
        return dataclasses.replace(self, axis=permutation.index(self.axis))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 17))
        yield sample((5, 3), axis=0, descending=True)
        yield Sample((np.array([2, np.nan, 1, np.nan, 3], np.float32),), {"descending": True}, grad=False)
        yield Sample(((4, 9),), {}, domain=(-100, 100), dtype="i8", grad=False)
        yield Sample(((9,),), {}, dtype="bool", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`axis` is out of range", sample((3,), axis=1)
        yield "`axis` is out of range", sample(())
        yield "has dtype c64", Sample(((3,),), {}, dtype="c64")


class ArgSort(Op, name="arg_sort", aliases=("argsort",)):
    """Where the elements of the sorted x are along `axis`, int32. Stable; NaN last, ascending or `descending`."""

    x: Operand = operand("...", "real bool")
    axis: int = -1
    descending: bool = False

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {**attrs, "axis": sort_axis(cls, types, attrs)}

    def infer(self, x: TensorType) -> TensorType:
        return x.with_dtype(int32)

    def numpy(self, x: Array) -> Array:
        rows = np.moveaxis(x, self.axis, -1)
        return np.moveaxis(stable_order(rows, self.descending), -1, self.axis).astype(np.int32)

    def decompose(self, x: Value) -> Value:
        return F.sorting_order([x], axis=self.axis, descending=self.descending)

    def vjp(self, ct: Value, x: Value) -> tuple[None]:
        return (None,)

    def permuted(self, permutation: Ints) -> Op:
        return dataclasses.replace(self, axis=permutation.index(self.axis))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(((3, 17),), {}, grad=False)
        yield Sample(((5, 3),), {"axis": 0, "descending": True}, grad=False)
        yield Sample((np.array([2, 1, 2, 1, 1, 2], np.int32),), {"descending": True}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`axis` is out of range", sample((3,), axis=1)


class SortTogether(Op, name="sort_together", internal=True):
    """Tensors of one shape sorted along `axis` by the first `num_keys` of them; the others come along."""

    xs: Operand = operand("...", "any", same="", variadic=True)
    axis: int = -1
    descending: bool = False
    num_keys: int = 1

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        if not 1 <= attrs.get("num_keys", 1) <= len(types[0]):
            raise cls().fail(
                "`num_keys` is out of range", expected=f"1 to {len(types[0])}", got=str(attrs.get("num_keys", 1))
            )
        return {**attrs, "axis": axis_index(cls.name, attrs.get("axis", -1), types[0][0].rank)}

    def _finder(self) -> SortingOrder:
        return SortingOrder(axis=self.axis, descending=self.descending)

    def infer(self, xs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self._finder().infer(xs)
        return tuple(x.with_shape(xs[0].shape) for x in xs)

    def numpy(self, xs: Sequence[Array]) -> tuple[Array, ...]:
        order = self._finder().numpy(xs[: self.num_keys]).astype(np.int64)
        return tuple(np.take_along_axis(x, order, self.axis) for x in xs)

    def _order(self, xs: tuple[Value, ...]) -> Value:
        return F.sorting_order(list(xs[: self.num_keys]), axis=self.axis, descending=self.descending)

    def decompose(self, xs: tuple[Value, ...]) -> tuple[Value, ...]:
        order = self._order(xs)
        return tuple(F.gather_along_axis(x, order, axis=self.axis) for x in xs)

    def vjp(self, *args: Any) -> tuple[Any]:
        *given, xs = args
        order = self._order(xs)

        def pulled(ct: Value | None, x: Value) -> Value | None:
            return None if ct is None else F.scatter_along_axis(ct, order, shape=x.shape, axis=self.axis)

        return (tuple(map(pulled, result_cotangents(given), xs)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(([(2, 9), (2, 9)],), {}, grad=False)
        keys = np.array([3, 1, 3, 1, 2], np.int32), np.array([1, 2, 0, 1, 5], np.int32)
        yield Sample(([*keys, (5,)],), {"num_keys": 2, "descending": True}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`num_keys` is out of range", sample([(3,)], num_keys=2)
