"""Reductions over axes: sums, products, extremes, logical ones and positions of extremes.

All take `axes` (or `axis`): an int, several, or None for all of them; and `keepdims`, False unless given, as in NumPy.
Sums and products of floats narrower than float32 are formed in float32. Over no elements, each gives its identity: 0,
1, -inf or the smallest integer for a maximum, inf or the largest for a minimum, true for `and`, false for `or`, and
position -1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir import dtypes
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import DType, as_dtype, bool_, int32
from stitchwork.ir.graph import Content, Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, call, cast, const, reduce, where
from stitchwork.ops._build import F
from stitchwork.ops._contents import as_objects
from stitchwork.ops._families import Reduction, accumulator, count, reduction_index
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, operand, require_at_least, sample
from stitchwork.ops._values import convert, indicator, spread

_NAN_ROWS = np.array([[1, np.nan, 3], [np.nan, np.nan, np.nan], [np.nan, -np.inf, -2]], np.float32)


def wide_array(x: Array) -> Array:
    """An array in a dtype that NumPy itself reduces: float32 for narrower floats, int32 for integers below 8 bits."""
    dtype = as_dtype(x.dtype)
    if dtype.is_integer and dtype.bits < 8:
        return x.astype(np.int32)
    return x.astype(accumulator(dtype).numpy)


def constant_product(self: Reduction, types: tuple[Any, ...], content: Content, reduce_: Any) -> Content:
    """What a full reduction of a vector of sizes holds."""
    objects = as_objects(content, types[0])
    if objects is None or objects.ndim != 1 or self.over != (0,):
        return None
    total: Size = reduce_(objects)
    return (total,) if self.keepdims else total


class ReductionSum(Reduction, name="reduction_sum", aliases=("sum",)):
    """Sum over axes: y = Σ x. Narrow floats are added in float32; integers wrap; bools are counted, as int32."""

    x: Operand = operand("...", "number bool")

    def kind(self) -> str:
        return "sum"

    def result_dtype(self, dtype: DType) -> DType:
        return int32 if dtype is bool_ else dtype

    def element(self, x: Expr) -> Expr:
        return cast(x, accumulator(self.result_dtype(x.dtype)))

    def numpy(self, x: Array) -> Array:
        wide = x.astype(np.int32) if x.dtype == np.bool_ else wide_array(x)
        total = np.sum(wide, axis=self.over, keepdims=self.keepdims, dtype=wide.dtype)
        return total.astype(np.int32 if x.dtype == np.bool_ else x.dtype)

    def vjp(self, ct: Value, x: Value) -> tuple[Value | None]:
        return (spread(ct, x.shape, self.over, self.keepdims) if x.dtype.kind in "fc" else None,)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return constant_product(self, types, contents[0], np.sum)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _samples()
        yield Sample(((5, 9),), {"axis": 1}, dtype="bf16")
        yield Sample(((5, 9),), {"axis": 0}, dtype="c64")
        yield Sample(((5, 9),), {"axis": 0}, domain=(-120, 120), dtype="i8", grad=False)
        yield Sample(((5, 9),), {}, dtype="bool", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield from _rejects()


class ReductionProduct(Reduction, name="reduction_product", aliases=("prod", "product")):
    """Product over axes: y = Π x. Narrow floats are multiplied in float32; integers wrap.

    The gradient multiplies the other elements, so it is right where elements are 0.
    """

    x: Operand = operand("...", "number")

    def kind(self) -> str:
        return "product"

    def element(self, x: Expr) -> Expr:
        return cast(x, accumulator(x.dtype))

    def numpy(self, x: Array) -> Array:
        wide = wide_array(x)
        return np.prod(wide, axis=self.over, keepdims=self.keepdims, dtype=wide.dtype).astype(x.dtype)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        kept = tuple(d for d in range(x.rank) if d not in self.over)
        order = kept + self.over
        rows = F.permute(x, permutation=order)
        flat = F.reshape(rows, shape=(*(x.shape[d] for d in kept), count(x.shape, self.over)))
        before = F.cumulative_product(flat, axis=-1, exclusive=True)
        after = F.cumulative_product(flat, axis=-1, exclusive=True, reverse=True)
        others = before * after
        back = F.permute(F.reshape(others, shape=rows.shape), permutation=tuple(order.index(d) for d in range(x.rank)))
        return (spread(ct, x.shape, self.over, self.keepdims) * back,)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return constant_product(self, types, contents[0], np.prod)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _samples()
        yield Sample((np.array([[0, 2, 3], [0, 0, 1], [4, 0, 2]], np.float32),), {"axes": 1})
        yield Sample(((5, 9),), {"axis": 1}, dtype="f16")
        yield Sample(((5, 3),), {"axis": 0}, dtype="i16", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield from _rejects()


class Extreme(Reduction):
    """Maximum or minimum over axes. The gradient is shared equally by the elements that are the extreme."""

    def vjp(self, ct: Value, x: Value) -> tuple[Value | None]:
        if not x.dtype.is_float:
            return (None,)
        best = F.broadcast(type(self)._apply(x, self.over), shape=x.shape)
        chosen = indicator(F.equal(x, best), accumulator(x.dtype))
        number = F.reduction_sum(chosen, axes=self.over, keepdims=True)
        share = chosen / F.maximum(number, 1.0)
        return (spread(ct, x.shape, self.over, self.keepdims) * convert(share, x.dtype),)

    @classmethod
    def _apply(cls, x: Value, axes: tuple[int, ...]) -> Value:
        return getattr(F, cls.name)(x, axes=axes, keepdims=True)

    def _reduce(self, ufunc: np.ufunc, x: Array, identity: Any) -> Array:
        wide = wide_array(x)
        made = ufunc.reduce(wide, axis=self.over, keepdims=self.keepdims, initial=identity) if self.over else wide
        return np.asarray(made).astype(x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _samples()
        yield Sample((_NAN_ROWS,), {"axis": 1}, grad=False)
        yield Sample(((5, 9),), {"axis": 1}, dtype="f16")
        yield Sample(((5, 9),), {"axis": 0}, domain=(-120, 120), dtype="i8", grad=False)
        yield Sample(((5, 9),), {}, domain=(-120, 120), dtype="u8", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield from _rejects()
        yield "has dtype bool", Sample(((3, 4),), {}, dtype="bool")


class ReductionMaximum(Extreme, name="reduction_maximum", aliases=("max", "amax")):
    """Maximum over axes, NaN skipped; -inf where there is nothing else. `reduction_maximum_propagate_nan` keeps NaN."""

    x: Operand = operand("...", "real")

    def kind(self) -> str:
        return "fmax"

    def numpy(self, x: Array) -> Array:
        return self._reduce(np.fmax, x, dtypes.lowest(as_dtype(x.dtype)))


class ReductionMinimum(Extreme, name="reduction_minimum", aliases=("min", "amin")):
    """Minimum over axes, NaN skipped; inf where there is nothing else. `reduction_minimum_propagate_nan` keeps NaN."""

    x: Operand = operand("...", "real")

    def kind(self) -> str:
        return "fmin"

    def numpy(self, x: Array) -> Array:
        return self._reduce(np.fmin, x, dtypes.highest(as_dtype(x.dtype)))


class ReductionMaximumPropagateNaN(Extreme, name="reduction_maximum_propagate_nan"):
    """Maximum over axes, NaN where any element is NaN, as NumPy's max."""

    x: Operand = operand("...", "real")

    def kind(self) -> str:
        return "max"

    def numpy(self, x: Array) -> Array:
        return self._reduce(np.maximum, x, dtypes.lowest(as_dtype(x.dtype)))


class ReductionMinimumPropagateNaN(Extreme, name="reduction_minimum_propagate_nan"):
    """Minimum over axes, NaN where any element is NaN, as NumPy's min."""

    x: Operand = operand("...", "real")

    def kind(self) -> str:
        return "min"

    def numpy(self, x: Array) -> Array:
        return self._reduce(np.minimum, x, dtypes.highest(as_dtype(x.dtype)))


class Logical(Reduction):
    """A logical reduction of "is not 0"; the result is 0 or 1 in the operand's dtype (bool for bool)."""

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        index, over = reduction_index(out, x.shape, self.over, self.keepdims)
        element = x[index] if x.dtype is bool_ else x[index].ne(const(0, x.dtype))
        return cast(reduce(self.kind(), element, *over) if over else element, x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ones = np.array([[1, 0, 2], [3, 1, np.nan], [0, 0, 0]], np.float32)
        for s in _samples():
            yield Sample(s.operands, s.attrs, dtype="bool", grad=False)
        yield Sample((ones,), {"axes": 1}, grad=False)
        yield Sample((np.nan_to_num(ones).astype(np.int32),), {"axes": 0}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield from _rejects()


class ReductionAnd(Logical, name="reduction_and", aliases=("all",)):
    """Whether all elements along axes are not 0: 1 or 0 in the operand's dtype, so a bool for bools. NaN is not 0."""

    x: Operand = operand("...", "any")

    def kind(self) -> str:
        return "and"

    def numpy(self, x: Array) -> Array:
        return np.all(x != 0, axis=self.over, keepdims=self.keepdims).astype(x.dtype)


class ReductionOr(Logical, name="reduction_or", aliases=("any",)):
    """Whether any element along axes is not 0: 1 or 0 in the operand's dtype, so a bool for bools. NaN is not 0."""

    x: Operand = operand("...", "any")

    def kind(self) -> str:
        return "or"

    def numpy(self, x: Array) -> Array:
        return np.any(x != 0, axis=self.over, keepdims=self.keepdims).astype(x.dtype)


class Position(Reduction):
    """Where the extreme is: int32, counted in row-major order over the axes (all of them by default, as in NumPy)."""

    def infer(self, x: TensorType) -> TensorType:
        room = 2**31 - count(x.shape, self.over)
        if not require_at_least(self.name, room, 0, "positions fit into int32"):
            raise self.fail("positions do not fit into int32", expected="at most 2**31 elements along axes", got=str(x))
        return super().infer(x)

    def result_dtype(self, dtype: DType) -> DType:
        return int32

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        index, over = reduction_index(out, x.shape, self.over, self.keepdims)
        if over:
            return cast(reduce(self.kind(), x[index], *over), int32)
        alone = const(0, int32)
        return where(call("isnan", x[index]), -1, alone) if x.dtype.is_float else alone

    def permuted(self, permutation: Ints) -> Op | None:
        return super().permuted(permutation) if len(self.over) <= 1 else None  # positions count in the order of dims

    def _positions(self, x: Array, ufunc: np.ufunc) -> Array:
        wide = wide_array(x)
        kept = [d for d in range(x.ndim) if d not in self.over]
        length = int(np.prod([x.shape[d] for d in self.over]))
        rows = wide.transpose(*kept, *self.over).reshape(*(x.shape[d] for d in kept), length)
        if rows.shape[-1] == 0:
            first = np.full(rows.shape[:-1], -1)
        else:
            valid = rows == rows
            best = (np.fmax if ufunc is np.maximum else np.fmin).reduce(rows, axis=-1, keepdims=True)
            hits = (rows == best) & valid
            first = np.where(hits.any(axis=-1), hits.argmax(axis=-1), -1)
        shape = tuple(1 if d in self.over else n for d, n in enumerate(x.shape)) if self.keepdims else first.shape
        return first.reshape(shape).astype(np.int32)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for s in _samples():
            yield Sample(s.operands, s.attrs, grad=False)
        yield Sample((_NAN_ROWS,), {"axis": 1}, grad=False)
        yield Sample((np.array([[3, 7, 7, 1], [2, 2, 2, 2]], np.int32),), {"axis": -1}, grad=False)
        yield Sample((np.array([0.0, -0.0], np.float32),), {"axis": 0}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield from _rejects()


class ReductionArgMaximum(Position, name="reduction_arg_maximum", aliases=("arg_maximum", "argmax")):
    """Position of the first maximum along axes, int32. NaN is never chosen; -1 where there is nothing but NaN."""

    x: Operand = operand("...", "real")

    def kind(self) -> str:
        return "argmax"

    def numpy(self, x: Array) -> Array:
        return self._positions(x, np.maximum)


class ReductionArgMinimum(Position, name="reduction_arg_minimum", aliases=("arg_minimum", "argmin")):
    """Position of the first minimum along axes, int32. NaN is never chosen; -1 where there is nothing but NaN."""

    x: Operand = operand("...", "real")

    def kind(self) -> str:
        return "argmin"

    def numpy(self, x: Array) -> Array:
        return self._positions(x, np.minimum)


def _samples() -> Iterator[Sample]:
    yield sample((3, 4))
    yield sample((3, 4, 5), axes=(0, -1))
    yield sample((3, 4, 5), axis=1, keepdims=True)
    yield sample((2, 3, 17), axes=[-1])
    yield sample((7, 33), axis=0)
    yield sample((3, 1), axes=1)
    yield sample((2, 3), axes=())
    yield sample(())
    yield Sample(((3, 0),), {"axis": 1}, grad=False)
    yield Sample(((0, 3),), {"axis": 1}, grad=False)


def _rejects() -> Iterator[tuple[str, Sample]]:
    yield "`axes` is out of range", sample((3, 4), axes=2)
    yield "`axes` names an axis twice", sample((3, 4), axes=(1, -1))
    yield "argument `axes` given twice", sample((3, 4), axes=1, axis=1)
    yield "`axes` is not an integer", sample((3, 4), axes=0.5)
