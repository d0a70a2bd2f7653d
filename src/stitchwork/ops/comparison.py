"""Comparisons and tests of numbers. The result is always bool, whatever the operands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir import dtypes
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import Content
from stitchwork.loops.expr import Expr, call, cast, compare, const
from stitchwork.ops._op import Array, Operand, Sample, operand, sample
from stitchwork.ops._pointwise import Elementwise, combined, sign_of_difference, wide_dtype


class Comparison(Elementwise):
    """A comparison of two tensors, broadcast; mixed dtypes are promoted."""

    promotes = True
    a: Operand = operand("...", "real bool")
    b: Operand = operand("...", "real bool")

    def result_dtype(self, *dtypes_: DType) -> DType:
        return dtypes.bool_

    def function(self) -> str:
        """The comparison of loop expressions."""
        raise TypeError(f"{self.name} has no `function`")

    def holds(self, sign: int) -> bool:
        """Whether the comparison holds, by the sign of a - b."""
        raise TypeError(f"{self.name} has no `holds`")

    def element(self, a: Expr, b: Expr) -> Expr:
        if a.dtype is dtypes.bool_:
            a, b = cast(a, dtypes.uint8), cast(b, dtypes.uint8)
        return compare(self.function(), a, b)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        def decide(a: Any, b: Any) -> bool | None:
            sign = sign_of_difference(a, b)
            return None if sign is None else self.holds(sign)

        return combined(types, contents, dtypes.bool_, decide)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        integers = np.array([-1, 0, 1, 2], np.int64)
        yield Sample((integers[:, None], integers), {}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "shapes do not broadcast", sample((3, 4), (3, 5))


class Equal(Comparison, name="equal"):
    """a == b, broadcast, as bool. NaN equals nothing."""

    a: Operand = operand("...", "any")
    b: Operand = operand("...", "any")

    def function(self) -> str:
        return "eq"

    def holds(self, sign: int) -> bool:
        return sign == 0

    def wide(self, a: Array, b: Array) -> Any:
        return np.equal(a, b)


class NotEqual(Comparison, name="not_equal"):
    """a != b, broadcast, as bool. NaN differs from everything."""

    a: Operand = operand("...", "any")
    b: Operand = operand("...", "any")

    def function(self) -> str:
        return "ne"

    def holds(self, sign: int) -> bool:
        return sign != 0

    def wide(self, a: Array, b: Array) -> Any:
        return np.not_equal(a, b)


class LessThan(Comparison, name="less_than", aliases=("less",), operator="lt"):
    """a < b, broadcast, as bool. False where either is NaN."""

    def function(self) -> str:
        return "lt"

    def holds(self, sign: int) -> bool:
        return sign < 0

    def wide(self, a: Array, b: Array) -> Any:
        return np.less(a, b)


class LessThanOrEqualTo(Comparison, name="less_than_or_equal_to", aliases=("less_equal",), operator="le"):
    """a <= b, broadcast, as bool. False where either is NaN."""

    def function(self) -> str:
        return "le"

    def holds(self, sign: int) -> bool:
        return sign <= 0

    def wide(self, a: Array, b: Array) -> Any:
        return np.less_equal(a, b)


class GreaterThan(Comparison, name="greater_than", aliases=("greater",), operator="gt"):
    """a > b, broadcast, as bool. False where either is NaN."""

    def function(self) -> str:
        return "gt"

    def holds(self, sign: int) -> bool:
        return sign > 0

    def wide(self, a: Array, b: Array) -> Any:
        return np.greater(a, b)


class GreaterThanOrEqualTo(Comparison, name="greater_than_or_equal_to", aliases=("greater_equal",), operator="ge"):
    """a >= b, broadcast, as bool. False where either is NaN."""

    def function(self) -> str:
        return "ge"

    def holds(self, sign: int) -> bool:
        return sign >= 0

    def wide(self, a: Array, b: Array) -> Any:
        return np.greater_equal(a, b)


# --- tests of one number ----------------------------------------------------------------------------------------------
class NumberTest(Elementwise):
    """A test of each element; the complex ones combine the parts."""

    x: Operand = operand("...", "any")

    def result_dtype(self, *dtypes_: DType) -> DType:
        return dtypes.bool_

    def of_float(self, x: Expr) -> Expr:
        """The test of a float expression."""
        raise TypeError(f"{self.name} has no `of_float` rule")

    def scalar(self, *args: Expr) -> Expr:
        (x,) = args
        if x.dtype.is_complex:
            parts = self.of_float(call("real", x)), self.of_float(call("imag", x))
            return parts[0] & parts[1] if self.constant() else parts[0] | parts[1]
        return self.of_float(cast(x, wide_dtype(x.dtype))) if x.dtype.is_float else const(self.constant(), dtypes.bool_)

    def constant(self) -> bool:
        """What the test says of every integer."""
        return False

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        inf, nan = np.inf, np.nan
        parts = [complex(a, b) for a in (0, inf, -inf, nan) for b in (1, inf, -inf, nan)]
        yield Sample((np.array(parts, np.complex64),), {}, grad=False)


class IsInfinite(NumberTest, name="is_infinite", aliases=("isinf",)):
    """Whether x is infinite (of complex numbers, either part), as bool. False for integers."""

    def wide(self, x: Array) -> Any:
        return np.isinf(x)

    def of_float(self, x: Expr) -> Expr:
        return call("isinf", x)


class IsFinite(NumberTest, name="is_finite", aliases=("isfinite",)):
    """Whether x is neither infinite nor NaN (of complex numbers, both parts), as bool. True for integers."""

    def wide(self, x: Array) -> Any:
        return np.isfinite(x)

    def of_float(self, x: Expr) -> Expr:
        return call("isfinite", x)

    def constant(self) -> bool:
        return True


class IsNaN(NumberTest, name="is_nan", aliases=("isnan",)):
    """Whether x is NaN (of complex numbers, either part), as bool. False for integers."""

    def wide(self, x: Array) -> Any:
        return np.isnan(x)

    def of_float(self, x: Expr) -> Expr:
        return call("isnan", x)
