"""Arithmetic of two operands, broadcast as NumPy does and promoted where their dtypes differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir import dims, dtypes
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import Content, Value, constant_array
from stitchwork.loops.expr import Expr, call, cast, const, where
from stitchwork.ops import _complex_math as complex_math
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Operand, Sample, operand, sample
from stitchwork.ops._pointwise import Elementwise, combined, truncated_quotient


class NumberBinary(Elementwise):
    """An elementwise op of two tensors of numbers of any kind."""

    promotes = True
    a: Operand = operand("...", "number")
    b: Operand = operand("...", "number")

    def content(self, a: Any, b: Any) -> Any:
        """What an integer result holds, from sizes; None where that is not known."""
        return None

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return combined(types, contents, types[0].dtype, self.content)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "shapes do not broadcast", sample((3, 4), (3, 5))


class NumberOrBoolBinary(NumberBinary):
    """An elementwise op of two tensors of any dtype."""

    a: Operand = operand("...", "number bool")
    b: Operand = operand("...", "number bool")


class Addition(NumberOrBoolBinary, name="addition", aliases=("add",), operator="add"):
    """a + b, broadcast; integers wrap, on bools it is "or"."""

    def wide(self, a: Array, b: Array) -> Any:
        return np.add(a, b)

    def element(self, a: Expr, b: Expr) -> Expr:
        return a | b if a.dtype is dtypes.bool_ else a + b

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, Value]:
        return ct, ct

    def content(self, a: Any, b: Any) -> Any:
        return a + b


class Subtraction(NumberBinary, name="subtraction", aliases=("subtract", "sub"), operator="sub"):
    """a - b, broadcast; integers wrap. Not for bools, as in NumPy."""

    def wide(self, a: Array, b: Array) -> Any:
        return np.subtract(a, b)

    def element(self, a: Expr, b: Expr) -> Expr:
        return a - b

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, Value]:
        return ct, -ct

    def content(self, a: Any, b: Any) -> Any:
        return a - b

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "has dtype bool", sample(np.array([True]), np.array([False]))


class Multiplication(NumberOrBoolBinary, name="multiplication", aliases=("multiply", "mul"), operator="mul"):
    """a * b, broadcast; integers wrap, on bools it is "and"."""

    def wide(self, a: Array, b: Array) -> Any:
        return np.multiply(a, b)

    def element(self, a: Expr, b: Expr) -> Expr:
        return a & b if a.dtype is dtypes.bool_ else a * b

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, Value]:
        return ct * b, ct * a

    def content(self, a: Any, b: Any) -> Any:
        return a * b


class SquaredDifference(NumberBinary, name="squared_difference"):
    """(a - b)^2, broadcast; complex input is squared, not its modulus."""

    def wide(self, a: Array, b: Array) -> Any:
        return np.square(a - b)

    def element(self, a: Expr, b: Expr) -> Expr:
        d = a - b
        return d * d

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, Value]:
        g = ct * (a - b) * 2
        return g, -g


class Power(NumberBinary, name="power", aliases=("pow",), operator="pow"):
    """a ** b, broadcast. Floats: NaN for a negative base with a fractional exponent. Complex: the principal value.

    Integers wrap; a negative exponent gives 1 / a**|b| rounded toward zero (0, or a power of 1 or -1; 0 for base 0).
    The gradient for the exponent is taken as 0 where the base is 0.
    """

    domain = (0.2, 2.0)

    def wide(self, a: Array, b: Array) -> Any:
        if a.dtype.kind in "iu":
            return _integer_power(a, b)
        return _complex_power(a, b) if a.dtype.kind == "c" else np.power(a, b)

    def element(self, a: Expr, b: Expr) -> Expr:
        return complex_math.power(a, b) if a.dtype.is_complex else call("pow", a, b)

    def simplify(self, a: Value, b: Value) -> Value | None:
        exponent = constant_array(b)
        if exponent is None or exponent.size != 1 or b.rank > a.rank:
            return None
        match complex(exponent.reshape(())):
            case 1:
                return a
            case 2:
                return a * a
            case _:
                return None

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, Value]:
        for_base = F.select(F.equal(b, 0), 0, ct * b * F.power(a, b - 1))
        log = F.log(F.select(F.equal(a, 0), 1, a))
        return for_base, ct * F.power(a, b) * log

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        integers = np.array([-7, -2, -1, 0, 1, 2, 3, 9], np.int32)
        yield Sample((integers[:, None], np.arange(-4, 12, dtype=np.int32)), {}, grad=False)
        yield Sample(((3, 4), np.array([0, 1, 2, 3], np.float32)), {}, (-2.0, 2.0), grad=False)


def _integer_power(a: Array, b: Array) -> Array:
    """Repeated squaring, modulo 2 to the width."""
    base, exponent = np.broadcast_arrays(a, b)
    result, left = np.ones_like(base), np.where(exponent < 0, 0, exponent)
    square = base.copy()
    while np.any(left):
        result = np.where(left & 1, result * square, result)
        square, left = square * square, left >> 1
    sign = np.where(exponent & 1, base, base * base)  # for |base| == 1, its power
    inverse = np.where((base == 1) | (base + 1 == 0), sign, 0)
    return np.where(exponent < 0, inverse, result)


def _complex_power(a: Array, b: Array) -> Array:
    zero = a == 0
    safe = np.exp(b * np.log(np.where(zero, 1, a)))
    return np.where(zero, np.where(b == 0, 1, 0), safe)


# --- quotients --------------------------------------------------------------------------------------------------------
class TrueDivide(NumberOrBoolBinary, name="true_divide", aliases=("divide",), operator="truediv"):
    """a / b, broadcast, as Python's `/`: integers and bools are converted to float32 first; by 0 as IEEE 754 says."""

    domain = (0.3, 2.0)

    def result_dtype(self, *dtypes_: DType) -> DType:
        return dtypes.float32 if dtypes_[0].kind in "biu" else dtypes_[0]

    def wide(self, a: Array, b: Array) -> Any:
        if a.dtype.kind in "biu":
            a, b = a.astype(np.float32), b.astype(np.float32)
        return np.divide(a, b)

    def element(self, a: Expr, b: Expr) -> Expr:
        if a.dtype.kind in "biu":
            a, b = cast(a, dtypes.float32), cast(b, dtypes.float32)
        return a / b

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, Value]:
        return ct / b, -(ct * (a / b)) / b


class Division(NumberBinary, name="division", aliases=("div",)):
    """a / b in the operands' dtype, broadcast. Integers truncate toward zero (the original's and ONNX's rule), and by 0
    give 0; floats follow IEEE 754. Python's `/` is `true_divide`, `//` is `floor_divide`."""

    domain = (0.3, 2.0)

    def wide(self, a: Array, b: Array) -> Any:
        return _truncated(a, b) if a.dtype.kind in "iu" else np.divide(a, b)

    def element(self, a: Expr, b: Expr) -> Expr:
        return a / b

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, Value]:
        return ct / b, -(ct * (a / b)) / b

    def content(self, a: Any, b: Any) -> Any:
        return truncated_quotient(a, b)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield _signs(np.int32)
        yield _signs(np.int8)


def _truncated(a: Array, b: Array) -> Array:
    down = np.floor_divide(a, b)  # 0 where b is 0
    inexact = (down * b != a) & (b != 0) & ((a < 0) != (b < 0))
    return down + inexact.astype(down.dtype)


def _signs(dtype: Any) -> Sample:
    """Integers of both signs by each other, 0 and the extremes included."""
    least = np.iinfo(dtype).min
    numbers = np.array([least, -7, -6, -1, 0, 1, 5, 6, -(least + 1)], dtype)
    return Sample((numbers[:, None], numbers), {}, grad=False)


class DivisionNoNan(NumberBinary, name="division_no_nan"):
    """a / b, but 0 where b is 0, broadcast. A NaN in b stays NaN; integers truncate toward zero."""

    domain = (0.3, 2.0)

    def wide(self, a: Array, b: Array) -> Any:
        quotient = _truncated(a, b) if a.dtype.kind in "iu" else np.divide(a, b)
        return np.where(b == 0, np.zeros((), a.dtype), quotient)

    def element(self, a: Expr, b: Expr) -> Expr:
        zero = const(0, b.dtype)
        return where(b.eq(zero), const(0, a.dtype), a / b)

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, Value]:
        return F.division_no_nan(ct, b), -F.division_no_nan(ct * F.division_no_nan(a, b), b)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield Sample(((3, 4), np.array([0, 1, -2, 0], np.float32)), {}, grad=False)


class RealBinary(NumberBinary):
    """An elementwise op of two float or integer tensors."""

    a: Operand = operand("...", "real")
    b: Operand = operand("...", "real")


class FloorDivide(RealBinary, name="floor_divide", operator="floordiv"):
    """The largest whole number not above a / b, in the operands' dtype, broadcast, as Python's `//`.

    Integers by 0 give 0.
    """

    domain = (0.3, 3.0)

    def wide(self, a: Array, b: Array) -> Any:
        return np.floor_divide(a, b)

    def element(self, a: Expr, b: Expr) -> Expr:
        return call("floordiv", a, b)

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[None, None]:
        return None, None

    def content(self, a: Any, b: Any) -> Any:
        return 0 if isinstance(b, int) and b == 0 else dims.floordiv(a, b)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield _signs(np.int32)
        yield _signs(np.int8)
