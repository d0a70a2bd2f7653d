"""Arithmetic of one operand: sign, magnitude, powers and rounding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir import dims, dtypes
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import Content, Value
from stitchwork.loops.expr import Expr, call, complex_of, const, where
from stitchwork.ops import _complex_math as complex_math
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Sample, sample
from stitchwork.ops._pointwise import ComplexUnary, NumberUnary, RealUnary, Unary, combined


class Absolute(NumberUnary, name="absolute", aliases=("abs",), operator="abs"):
    """Magnitude |x|. Complex input gives the real modulus; the smallest signed integer wraps to itself.

    The gradient at 0 is 0.
    """

    def result_dtype(self, *dtypes_: DType) -> DType:
        return dtypes.real_of(dtypes_[0])

    def wide(self, x: Array) -> Any:
        return np.abs(x)

    def element(self, x: Expr) -> Expr:
        return x if x.dtype.kind == "u" else call("abs", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (_to_dtype_of(ct, x) * _conjugate(F.sign(x)),)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return combined(types, contents, types[0].dtype, _magnitude)


def _negated(a: Any) -> Any:
    return a * -1


def _squared(a: Any) -> Any:
    return a * a


def _magnitude(a: Any) -> Any:
    if isinstance(a, int):
        return abs(a)
    return a if dims.is_nonnegative(a) else None


def _to_dtype_of(ct: Value, x: Value) -> Value:
    return ct if ct.dtype is x.dtype else F.cast(ct, x.dtype)


def _conjugate(x: Value) -> Value:
    return F.conjugate(x) if x.dtype.is_complex else x


class AbsoluteSquare(NumberUnary, name="absolute_square"):
    """|x|^2: x * x, or re^2 + im^2 of complex input as a real tensor."""

    def result_dtype(self, *dtypes_: DType) -> DType:
        return dtypes.real_of(dtypes_[0])

    def wide(self, x: Array) -> Any:
        return np.square(np.real(x)) + np.square(np.imag(x)) if np.iscomplexobj(x) else x * x

    def element(self, x: Expr) -> Expr:
        if not x.dtype.is_complex:
            return x * x
        a, b = complex_math.parts(x)
        return a * a + b * b

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (_to_dtype_of(ct, x) * _conjugate(x) * 2,)


class Negative(NumberUnary, name="negative", aliases=("neg", "negate"), operator="neg"):
    """-x. Unsigned integers and the smallest signed one wrap."""

    def wide(self, x: Array) -> Any:
        return np.negative(x)

    def element(self, x: Expr) -> Expr:
        return -x

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (-ct,)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return combined(types, contents, types[0].dtype, _negated)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "has dtype bool", sample(np.array([True]))


class Sign(NumberUnary, name="sign"):
    """-1, 0 or 1, as NumPy: sign(NaN) is NaN, sign(-0.0) is 0.0; x / |x| for complex x (0 for 0).

    The original documents that zeros keep their sign, and was measured to give 0.0 and, for NaN, 0; NumPy's rule is
    taken. The gradient of a real sign is 0.
    """

    def wide(self, x: Array) -> Any:
        return np.sign(x)

    def element(self, x: Expr) -> Expr:
        zero, one = const(0, x.dtype), const(1, x.dtype)
        if x.dtype.is_complex:
            modulus = call("abs", x)
            scale = 1 / where(modulus.eq(0), const(1, modulus.dtype), modulus)
            a, b = complex_math.parts(x)
            return complex_of(a * scale, b * scale, x.dtype)
        if x.dtype.kind == "u":
            return where(x > 0, one, zero)
        other = where(x.eq(0), zero, x) if x.dtype.is_float else zero
        return where(x > 0, one, where(x < 0, const(-1, x.dtype), other))

    def vjp(self, ct: Value, x: Value) -> tuple[Value | None]:
        if not x.dtype.is_complex:
            return (None,)
        modulus, s = F.absolute(x), F.sign(x)
        ct_conjugate = F.conjugate(ct)
        inner = F.division_no_nan(ct - ct_conjugate * F.conjugate(s * s), F.cast(modulus * 2, x.dtype))
        return (inner,)


class SignBit(RealUnary, name="signbit"):
    """True where the sign bit is set (-0.0 and negative NaN included). The result is bool, as NumPy's."""

    smooth = False

    def result_dtype(self, *dtypes_: DType) -> DType:
        return dtypes.bool_

    def wide(self, x: Array) -> Any:
        return np.signbit(x) if x.dtype.kind == "f" else x < 0

    def element(self, x: Expr) -> Expr:
        return call("signbit", x) if x.dtype.is_float else x < 0


class Square(NumberUnary, name="square"):
    """x * x; integers wrap."""

    def wide(self, x: Array) -> Any:
        return x * x

    def element(self, x: Expr) -> Expr:
        return x * x

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * x * 2,)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return combined(types, contents, types[0].dtype, _squared)


class SquareRoot(ComplexUnary, name="sqrt"):
    """Square root: NaN for negative x, -0.0 for -0.0; the principal root of complex x."""

    domain = (0.2, 3.0)

    def wide(self, x: Array) -> Any:
        return np.sqrt(x)

    def element(self, x: Expr) -> Expr:
        return complex_math.sqrt(x) if x.dtype.is_complex else call("sqrt", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * 0.5 / F.sqrt(x),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield Sample((np.array([4j, -4, -3 - 4j, 0, -2 + 1j], np.complex64),), {}, grad=False)


class ReciprocalSquareRoot(ComplexUnary, name="rsqrt", aliases=("reciprocal_square_root", "reverse_sqrt")):
    """1 / sqrt(x); rsqrt(0) is inf, rsqrt(-0.0) is -inf."""

    domain = (0.2, 3.0)

    def wide(self, x: Array) -> Any:
        return 1 / np.sqrt(x)

    def element(self, x: Expr) -> Expr:
        if x.dtype.is_complex:
            return const(1, x.dtype) / complex_math.sqrt(x)
        return call("rsqrt", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.rsqrt(x) / x * -0.5,)


class CubeRoot(Unary, name="cbrt"):
    """Real cube root, negative for negative x."""

    domain = (0.2, 3.0)

    def wide(self, x: Array) -> Any:
        return np.cbrt(x)

    def element(self, x: Expr) -> Expr:
        return call("cbrt", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct / (F.square(F.cbrt(x)) * 3),)


class Reciprocal(ComplexUnary, name="reciprocal"):
    """1 / x; 1 / -0.0 is -inf."""

    domain = (0.3, 3.0)

    def wide(self, x: Array) -> Any:
        return 1 / x

    def element(self, x: Expr) -> Expr:
        return const(1, x.dtype) / x

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (-ct * F.square(F.reciprocal(x)),)


# --- rounding: integers are whole already ---------------------------------------------------------------------------
class Rounding(RealUnary):
    """To a whole number of the same dtype. The gradient is 0."""

    domain = (-3.3, 3.3)

    def vjp(self, ct: Value, x: Value) -> tuple[None]:
        return (None,)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return contents[0]


class Ceil(Rounding, name="ceil"):
    """The smallest whole number not below x, in x's dtype."""

    def wide(self, x: Array) -> Any:
        return np.ceil(x) if x.dtype.kind == "f" else x

    def element(self, x: Expr) -> Expr:
        return call("ceil", x) if x.dtype.is_float else x


class Floor(Rounding, name="floor"):
    """The largest whole number not above x, in x's dtype."""

    def wide(self, x: Array) -> Any:
        return np.floor(x) if x.dtype.kind == "f" else x

    def element(self, x: Expr) -> Expr:
        return call("floor", x) if x.dtype.is_float else x


class Truncate(Rounding, name="truncate", aliases=("trunc",)):
    """x without its fraction, in x's dtype."""

    def wide(self, x: Array) -> Any:
        return np.trunc(x) if x.dtype.kind == "f" else x

    def element(self, x: Expr) -> Expr:
        return call("trunc", x) if x.dtype.is_float else x


class Round(Rounding, name="round"):
    """The nearest whole number, halves away from zero (C's `round`); NumPy's `round` is `rint` here."""

    def wide(self, x: Array) -> Any:
        if x.dtype.kind != "f":
            return x
        whole = np.trunc(x)
        return np.copysign(whole + np.copysign(np.abs(x - whole) >= 0.5, x), x)

    def element(self, x: Expr) -> Expr:
        return call("round", x) if x.dtype.is_float else x


class RoundToEven(Rounding, name="rint", aliases=("round_even",)):
    """The nearest whole number, halves to the even one (C's `rint`)."""

    def wide(self, x: Array) -> Any:
        return np.rint(x) if x.dtype.kind == "f" else x

    def element(self, x: Expr) -> Expr:
        return call("rint", x) if x.dtype.is_float else x
