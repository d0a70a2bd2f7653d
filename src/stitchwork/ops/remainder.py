"""Remainders, extremes and the other functions of two operands."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir import dims, dtypes
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import Value
from stitchwork.loops.expr import Expr, bitcast, call, const, where
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Operand, Sample, operand
from stitchwork.ops._pointwise import SPECIAL, Binary, truncated_remainder
from stitchwork.ops.binary import NumberBinary, RealBinary


class Modulo(RealBinary, name="modulo", aliases=("fmod",)):
    """The remainder with the sign of a (C's `%` and `fmod`): a - truncate(a / b) * b, broadcast.

    By 0: NaN for floats, 0 for integers. Python's `%` is `floor_modulo`.
    """

    domain = (0.3, 3.0)

    def wide(self, a: Array, b: Array) -> Any:
        return np.fmod(a, b)

    def element(self, a: Expr, b: Expr) -> Expr:
        return call("rem", a, b)

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, Value]:
        return ct, -ct * F.truncate(a / b)

    def content(self, a: Any, b: Any) -> Any:
        return truncated_remainder(a, b)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield _remainders()


class FloorModulo(RealBinary, name="floor_modulo", aliases=("mod", "remainder"), operator="mod"):
    """The remainder with the sign of b, as Python's `%`: a - floor(a / b) * b, broadcast.

    0 where b is 0, for floats too: the original's rule, where NumPy gives NaN.
    """

    domain = (0.3, 3.0)

    def wide(self, a: Array, b: Array) -> Any:
        return np.where(b == 0, np.zeros((), a.dtype), np.mod(a, b))

    def element(self, a: Expr, b: Expr) -> Expr:
        return where(b.eq(0), const(0, a.dtype), call("mod", a, b))

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, Value]:
        return ct, -ct * F.floor_divide(a, b)

    def content(self, a: Any, b: Any) -> Any:
        return 0 if isinstance(b, int) and b == 0 else dims.mod(a, b)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield _remainders()


def _remainders() -> Sample:
    numbers = np.array([-128, -7, -1, 0, 1, 5, 127], np.int8)
    return Sample((numbers[:, None], numbers), {}, grad=False)


# --- extremes ---------------------------------------------------------------------------------------------------------
class Extreme(NumberBinary):
    """The larger or smaller of two; the gradient goes to the chosen one, half to each where they are equal."""

    a: Operand = operand("...", "real bool")
    b: Operand = operand("...", "real bool")

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, Value]:
        chosen = type(self).name
        made = getattr(F, chosen)(a, b)
        from_a, from_b = F.cast(F.equal(a, made), ct.dtype), F.cast(F.equal(b, made), ct.dtype)
        shared = ct / (from_a + from_b)
        return shared * from_a, shared * from_b

    def pick(self, a: Any, b: Any, larger: bool) -> Any:
        """The content of a result, from sizes."""
        if a is True or a is False:
            return (a or b) if larger else (a and b)
        return dims.maximum(a, b) if larger else dims.minimum(a, b)


class Minimum(Extreme, name="minimum", aliases=("fmin",)):
    """The smaller of a and b, broadcast; a NaN is ignored where the other is a number (C's `fmin`, as the original).

    NumPy's `minimum` is `minimum_nan_propagation` here.
    """

    def wide(self, a: Array, b: Array) -> Any:
        return np.fmin(a, b)

    def element(self, a: Expr, b: Expr) -> Expr:
        return a & b if a.dtype is dtypes.bool_ else call("fmin" if a.dtype.is_float else "min", a, b)

    def content(self, a: Any, b: Any) -> Any:
        return self.pick(a, b, larger=False)


class Maximum(Extreme, name="maximum", aliases=("fmax",)):
    """The larger of a and b, broadcast; a NaN is ignored where the other is a number (C's `fmax`, as the original).

    NumPy's `maximum` is `maximum_nan_propagation` here.
    """

    def wide(self, a: Array, b: Array) -> Any:
        return np.fmax(a, b)

    def element(self, a: Expr, b: Expr) -> Expr:
        return a | b if a.dtype is dtypes.bool_ else call("fmax" if a.dtype.is_float else "max", a, b)

    def content(self, a: Any, b: Any) -> Any:
        return self.pick(a, b, larger=True)


class MinimumNanPropagation(Extreme, name="minimum_nan_propagation"):
    """The smaller of a and b, broadcast; NaN where either is NaN. The original refuses integers and bools."""

    def wide(self, a: Array, b: Array) -> Any:
        return np.minimum(a, b)

    def element(self, a: Expr, b: Expr) -> Expr:
        return a & b if a.dtype is dtypes.bool_ else call("min", a, b)

    def content(self, a: Any, b: Any) -> Any:
        return self.pick(a, b, larger=False)


class MaximumNanPropagation(Extreme, name="maximum_nan_propagation"):
    """The larger of a and b, broadcast; NaN where either is NaN. The original refuses integers and bools."""

    def wide(self, a: Array, b: Array) -> Any:
        return np.maximum(a, b)

    def element(self, a: Expr, b: Expr) -> Expr:
        return a | b if a.dtype is dtypes.bool_ else call("max", a, b)

    def content(self, a: Any, b: Any) -> Any:
        return self.pick(a, b, larger=True)


# --- floats -----------------------------------------------------------------------------------------------------------
class ArcTangent2(Binary, name="atan2", aliases=("arctan2",)):
    """The angle of the point (x = b, y = a) in [-pi, pi], broadcast: atan(a / b) in the right quadrant."""

    domain = (0.3, 2.0)

    def wide(self, a: Array, b: Array) -> Any:
        return np.arctan2(a, b)

    def element(self, a: Expr, b: Expr) -> Expr:
        return call("atan2", a, b)

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, Value]:
        scaled = ct / (F.square(a) + F.square(b))
        return scaled * b, -scaled * a


class CopySign(Binary, name="copysign"):
    """The magnitude of a with the sign of b, broadcast."""

    def wide(self, a: Array, b: Array) -> Any:
        return np.copysign(a, b)

    def element(self, a: Expr, b: Expr) -> Expr:
        return call("copysign", a, b)

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, None]:
        return F.select(F.equal(F.signbit(a), F.signbit(b)), ct, -ct), None


class LogAddExp(Binary, name="logaddexp"):
    """log(e^a + e^b) without overflow, broadcast: max(a, b) + log1p(e^-|a - b|)."""

    def wide(self, a: Array, b: Array) -> Any:
        return np.logaddexp(a, b)

    def element(self, a: Expr, b: Expr) -> Expr:
        sum_ = call("max", a, b) + call("log1p", call("exp", -call("abs", a - b)))
        return where(a.eq(b), a + math.log(2), sum_)  # a - b is NaN for equal infinities

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, Value]:
        return ct * F.sigmoid(a - b), ct * F.sigmoid(b - a)


class NextAfter(Binary, name="nextafter"):
    """The next number of the dtype after a in the direction of b, broadcast; b where they are equal."""

    a: Operand = operand("...", "f16 bf16 f32 f64")
    b: Operand = operand("...", "f16 bf16 f32 f64")

    def numpy(self, *arrays: Array) -> Array:
        return np.asarray(np.nextafter(*arrays))

    def scalar(self, *args: Expr) -> Expr:
        """Floats of one sign are ordered as their bits are."""
        a, b = args
        integer = _INTEGER_OF[a.dtype]
        up = (b > a).eq(a > 0)  # away from zero
        moved = bitcast(a, integer) + where(up, const(1, integer), const(-1, integer))
        least = bitcast(const(1, integer), a.dtype)
        from_zero = where(b > 0, least, -least)
        made = where(a.eq(0), from_zero, bitcast(moved, a.dtype))
        unordered = a.ne(a) | b.ne(b)
        return where(unordered, const(math.nan, a.dtype), where(a.eq(b), b, made))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(((3, 4), (3, 4)), {}, grad=False)
        yield Sample(((3, 1), (4,)), {}, dtype="f64", grad=False)
        yield Sample(((), (2, 3)), {}, dtype="f16", grad=False)
        yield Sample(((0, 3), (1, 3)), {}, dtype="bf16", grad=False)
        yield Sample((SPECIAL[:, None], SPECIAL), {}, grad=False)


_INTEGER_OF: dict[DType, DType] = {
    dtypes.float16: dtypes.int16,
    dtypes.bfloat16: dtypes.int16,
    dtypes.float32: dtypes.int32,
    dtypes.float64: dtypes.int64,
}
