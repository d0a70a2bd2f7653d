"""Running sums, products and extremes along an axis.

All take `axis` (0 unless given), `exclusive` (each element combines those before it, not itself) and `reverse` (from
the end). Narrow floats are combined in float32. The first element of an exclusive scan is the seed: 0, 1, the largest
finite number for a minimum, the smallest finite one for a maximum. Minima and maxima skip NaN.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, cast

import ml_dtypes
import numpy as np

from stitchwork.ir import dims, dtypes
from stitchwork.ir.dtypes import DType, as_dtype, int32
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops import expr
from stitchwork.loops.expr import Buffer, Expr, call, extent, minimum
from stitchwork.ops._build import F
from stitchwork.ops._contents import one_int
from stitchwork.ops._families import accumulator
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, axis_index, operand, require_equal, sample
from stitchwork.ops._values import convert, coordinates, filled, wide
from stitchwork.ops.reduction import wide_array

_SIDE = 256  # lines that advance together


def line(at: tuple[Expr, ...], axis: int, i: Expr) -> tuple[Expr, ...]:
    """The index of position i along `axis` of the line at `at`, the other dims."""
    return (*at[:axis], i, *at[axis:])


Step = Callable[[Expr, tuple[Expr, ...]], Expr]  # the next running value, from the last one and an index


def scan_loops(b: Any, out: Buffer, axis: int, reverse: bool, exclusive: bool, seed: Any, step: Step) -> None:
    """Loops of a running value along `axis` that starts as `seed`; stored after each step, or before (`exclusive`)."""
    wide = accumulator(out.dtype)
    n = out.shape[axis]

    def along(i: Expr) -> Expr:
        return extent(n - 1) - i if reverse else i

    if axis == out.rank - 1:
        with b.nest(out.shape[:-1], "parallel") as at, ExitStack() as inner:
            running = b.variable(seed, wide, "running")
            index = (*at, along(inner.enter_context(b.loop(n))))
            if exclusive:
                b.store(out, index, expr.cast(running, out.dtype))
            b.assign(running, step(running, index))
            if not exclusive:
                b.store(out, index, expr.cast(running, out.dtype))
        return
    # Lines side by side in memory advance together, so that memory is read in order.
    others = [m for d, m in enumerate(out.shape[:-1]) if d != axis]
    last = out.shape[-1]
    with b.nest([*others, dims.ceildiv(last, _SIDE)], "parallel") as (*at, block):
        running = b.array(wide, (_SIDE,), "running")
        low = b.let(block * _SIDE, "low")
        width = b.let(minimum(extent(last) - low, _SIDE), "width")
        with b.loop(width, kind="vector") as j:
            b.store(running, (j,), seed)
        with b.loop(n) as i, b.loop(width, kind="vector") as j:
            index = line((*at, low + j), axis, along(i))
            before = b.let(running[j])
            after = b.let(step(before, index))
            b.store(out, index, expr.cast(before if exclusive else after, out.dtype))
            b.store(running, (j,), after)


class Scan(Op):
    """What the running ops share; a subclass says how elements combine."""

    axis: int = 0
    exclusive: bool = False
    reverse: bool = False

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        axis = one_int(cls.name, "axis", attrs.get("axis", 0))
        return {**attrs, "axis": axis_index(cls.name, axis, types[0].rank)}

    def function(self) -> str:
        """The scalar function that combines."""
        raise TypeError(f"{self.name} has no `function`")

    def seed(self, dtype: DType) -> Any:
        """What the first element is combined with."""
        raise TypeError(f"{self.name} has no `seed`")

    def infer(self, x: TensorType) -> TensorType:
        return x

    def numpy(self, x: Array) -> Array:
        ufunc = {"add": np.add, "mul": np.multiply, "fmax": np.fmax, "fmin": np.fmin}[self.function()]
        rows = np.moveaxis(wide_array(x), self.axis, -1)
        rows = np.flip(rows, -1) if self.reverse else rows
        seed = np.full((*rows.shape[:-1], 1), self.seed(as_dtype(x.dtype))).astype(rows.dtype)
        made = ufunc.accumulate(np.concatenate([seed, rows], axis=-1), axis=-1, dtype=rows.dtype)
        made = made[..., :-1] if self.exclusive else made[..., 1:]
        return np.moveaxis(np.flip(made, -1) if self.reverse else made, -1, self.axis).astype(x.dtype)

    def loops(self, b: Any, outs: tuple[Buffer, ...], x: Buffer) -> None:
        (out,) = outs

        def step(running: Expr, index: tuple[Expr, ...]) -> Expr:
            return call(self.function(), running, expr.cast(x[index], accumulator(x.dtype)))

        scan_loops(b, out, self.axis, self.reverse, self.exclusive, self.seed(x.dtype), step)

    def permuted(self, permutation: Ints) -> Op:
        return dataclasses.replace(self, axis=permutation.index(self.axis))

    def again(self, x: Value, exclusive: bool, reverse: bool) -> Value:
        """The same scan in another direction."""
        return getattr(F, self.name)(x, axis=self.axis, exclusive=exclusive, reverse=reverse)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for exclusive in (False, True):
            for reverse in (False, True):
                yield sample((3, 5), axis=1, exclusive=exclusive, reverse=reverse)
        yield sample((4, 3, 2), axis=-2)
        yield sample((7,))
        yield Sample(((3, 5),), {"axis": 1}, dtype="f16")
        yield Sample(((3, 5),), {"axis": 0}, domain=(-60, 60), dtype="i8", grad=False)
        yield Sample(((3, 0),), {"axis": 1}, grad=False)
        yield Sample((np.array([1, np.nan, 3, 2], np.float32),), {}, grad=False)
        yield Sample((np.array([np.nan, -np.inf, np.inf, 2], np.float32),), {"exclusive": True}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`axis` is out of range", sample((3,), axis=1)
        yield "`axis` is out of range", sample(())
        yield "has dtype bool", Sample(((3,),), {}, dtype="bool")


class CumulativeSum(Scan, name="cumulative_sum", aliases=("cumsum",)):
    """Running sum along `axis`: y[i] = Σ x[j] over j <= i; integers wrap. `exclusive`, `reverse`: see this family."""

    x: Operand = operand("...", "number")

    def function(self) -> str:
        return "add"

    def seed(self, dtype: DType) -> Any:
        return 0

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (self.again(ct, self.exclusive, not self.reverse),)


class CumulativeProduct(Scan, name="cumulative_product", aliases=("cumprod",)):
    """Running product along `axis`: y[i] = Π x[j] over j <= i; integers wrap. `exclusive`, `reverse`: see this family.

    The gradient is right where elements are 0.
    """

    x: Operand = operand("...", "number")

    def function(self) -> str:
        return "mul"

    def seed(self, dtype: DType) -> Any:
        return 1

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        # dL/dx[k] = Π_{j<k} x[j] · s[k], s[k] = Σ_{i>=k} ct[i] Π_{k<j<=i} x[j], and s[k] = ct[k] + x[k+1] · s[k+1].
        base, given = wide(x), wide(ct)
        before = self.again(base, True, self.reverse)
        step = -1 if self.reverse else 1
        if self.exclusive:
            given = shifted(given, self.axis, step)
        factor = shifted(base, self.axis, step)
        sums = F.linear_scan(factor, given, axis=self.axis, reverse=not self.reverse)
        return (convert(before * sums, x.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        zeros = np.array([[2, 0, 3, 0, 1], [0, 1, 2, 3, 4]], np.float32)
        for exclusive in (False, True):
            yield sample(zeros, axis=1, exclusive=exclusive)


class RunningExtreme(Scan):
    """A running minimum or maximum. The gradient goes to the last element that is the extreme so far."""

    def vjp(self, ct: Value, x: Value) -> tuple[Value | None]:
        if not x.dtype.is_float:
            return (None,)
        n = x.shape[self.axis]
        best = self.again(x, False, self.reverse)
        place = coordinates(x, self.axis, x.shape, int32)
        beyond = filled(x, (), dtype=int32) + F.size_value(size=n, dtype=int32)
        hit = F.equal(x, best)
        if self.reverse:
            last = F.cumulative_minimum(F.select(hit, place, beyond), axis=self.axis, reverse=True)
        else:
            last = F.cumulative_maximum(F.select(hit, place, filled(x, (), -1, int32)), axis=self.axis)
            last = F.select(F.less_than(last, filled(x, (), 0, int32)), beyond, last)  # -1 would count from the end
        given = shifted(wide(ct), self.axis, -1 if self.reverse else 1) if self.exclusive else wide(ct)
        return (convert(F.scatter_along_axis(given, last, shape=x.shape, axis=self.axis), x.dtype),)


class CumulativeMaximum(RunningExtreme, name="cumulative_maximum", aliases=("cummax",)):
    """Running maximum along `axis`, NaN skipped. `exclusive`, `reverse`: see this family."""

    x: Operand = operand("...", "real")

    def function(self) -> str:
        return "fmax"

    def seed(self, dtype: DType) -> Any:
        return _finite(dtype)[0] if self.exclusive else dtypes.lowest(dtype)


class CumulativeMinimum(RunningExtreme, name="cumulative_minimum", aliases=("cummin",)):
    """Running minimum along `axis`, NaN skipped. `exclusive`, `reverse`: see this family."""

    x: Operand = operand("...", "real")

    def function(self) -> str:
        return "fmin"

    def seed(self, dtype: DType) -> Any:
        return _finite(dtype)[1] if self.exclusive else dtypes.highest(dtype)


def _finite(dtype: DType) -> tuple[Any, Any]:
    """The smallest and largest finite number."""
    if dtype.is_integer:
        return dtypes.lowest(dtype), dtypes.highest(dtype)
    info = cast("Any", ml_dtypes).finfo(dtype.numpy)
    return float(info.min), float(info.max)


def shifted(x: Value, axis: int, by: int) -> Value:
    """Element i + by at position i along `axis`, 0 where there is none."""
    starts = tuple(by if d == axis else 0 for d in range(x.rank))
    return F.strided_slice(x, starts=starts, sizes=x.shape, strides=(1,) * x.rank, guarded=True)


class LinearScan(Op, name="linear_scan", internal=True):
    """y[i] = a[i] · y[i-1] + b[i] along `axis`, y[-1] = 0; from the end with `reverse`."""

    a: Operand = operand("...", "float complex")
    b: Operand = operand("...", "float complex")
    axis: int = 0
    reverse: bool = False

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        if a.rank != b.rank or not all(
            require_equal(self.name, m, n, "a and b have one shape") for m, n in zip(a.shape, b.shape, strict=True)
        ):
            raise self.fail("the operands differ in shape", expected=str(a), got=str(b))
        return b

    def numpy(self, a: Array, b: Array) -> Array:
        factors, terms = (np.moveaxis(wide_array(x), self.axis, 0) for x in (a, b))
        made = np.zeros(terms.shape, terms.dtype)
        running = np.zeros(terms.shape[1:], terms.dtype)
        positions = range(len(made))
        for i in reversed(positions) if self.reverse else positions:
            running = factors[i] * running + terms[i]
            made[i] = running
        return np.moveaxis(made, 0, self.axis).astype(b.dtype)

    def loops(self, b: Any, outs: tuple[Buffer, ...], *operands: Buffer) -> None:
        (out,), (factor, term) = outs, operands
        wide = accumulator(out.dtype)

        def step(running: Expr, index: tuple[Expr, ...]) -> Expr:
            return expr.cast(factor[index], wide) * running + expr.cast(term[index], wide)

        scan_loops(b, out, self.axis, self.reverse, False, 0, step)

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, Value]:
        # The cotangent of b runs the other way with the factors moved by one; that of a meets the element before.
        step = -1 if self.reverse else 1
        factors = shifted(a, self.axis, step)
        made = F.linear_scan(a, b, axis=self.axis, reverse=self.reverse)
        of_b = F.linear_scan(factors, ct, axis=self.axis, reverse=not self.reverse)
        return of_b * shifted(made, self.axis, -step), of_b

    def permuted(self, permutation: Ints) -> Op:
        return dataclasses.replace(self, axis=permutation.index(self.axis))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for reverse in (False, True):
            yield sample((3, 5), (3, 5), axis=1, reverse=reverse)
            yield sample((4, 2), (4, 2), axis=0, reverse=reverse)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "differ in shape", sample((3,), (4,))
