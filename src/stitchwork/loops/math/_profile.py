"""Building blocks of the functions of this package: number formats, polynomials, bits of floats."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from stitchwork.ir.dtypes import DType, float32, float64, int32, int64, uint32, uint64
from stitchwork.loops.expr import Const, Expr, Operand, bitcast, call, where

INF, NAN = float("inf"), float("nan")
PI = Fraction("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798")
LN2 = Fraction(
    "0.693147180559945309417232121458176568075500134360255254120680009493393621969694715605863326996418687542"
)
LN10 = Fraction("2.30258509299404568401799145468436420760110148862877297603332790096757260967735248023599720508959830")


@dataclass(frozen=True, eq=False)
class Profile:
    """How a function is computed: the float format it works in, and which coefficients are accurate enough.

    "medium" is arithmetic in float64 for a float32 result.
    """

    name: str
    dtype: DType
    signed: DType
    unsigned: DType
    mantissa: int
    bias: int

    def const(self, value: float) -> Expr:
        """A literal of the format."""
        return Const(value, self.dtype)

    def coefficients(self, table: dict[str, tuple[float, ...]]) -> tuple[float, ...]:
        """The polynomial of a table of `coefficients` for this profile."""
        return table[self.name] if self.name in table else table["double"]

    def parts(self, number: Fraction, count: int) -> tuple[float, ...]:
        """`number` as a sum of `count` numbers of the format, each the nearest to what is left."""
        out: list[float] = []
        for _ in range(count):
            part = float(np.float32(float(number))) if self.mantissa == 23 else float(number)
            out.append(part)
            number -= Fraction(part)
        return tuple(out)

    @property
    def sign_bit(self) -> Expr:
        """The bits of -0.0."""
        return Const(-(1 << (self.signed.bits - 1)), self.signed)

    @property
    def smallest_normal(self) -> float:
        """The smallest number with all its mantissa."""
        return 2.0 ** (1 - self.bias)


SINGLE = Profile("single", float32, int32, uint32, 23, 127)
DOUBLE = Profile("double", float64, int64, uint64, 52, 1023)
MEDIUM = Profile("medium", float64, int64, uint64, 52, 1023)


def fma(a: Expr, b: Operand, c: Operand) -> Expr:
    """a * b + c, rounded once."""
    return call("fma", a, b, c)


def absolute(x: Expr) -> Expr:
    """|x|."""
    return call("abs", x)


def polynomial(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """c0 + c1 x + c2 x**2 + ... by Horner's rule; long ones as two interleaved chains, so that they wait less."""
    if len(coefficients) >= 10:
        square = x * x
        return fma(horner(square, coefficients[1::2]), x, horner(square, coefficients[::2]))
    return horner(x, coefficients)


def horner(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """c0 + c1 x + c2 x**2 + ... as one chain, which rounds least."""
    total: Expr = Const(coefficients[-1], x.dtype)
    for c in coefficients[-2::-1]:
        total = fma(total, x, c)
    return total


def power_of_two(n: Expr, p: Profile) -> Expr:
    """2**n for a whole number -bias < n <= bias. NaN gives some number."""
    shifted = n + (1.5 * 2.0**p.mantissa + p.bias)  # the low bits of the sum are n + bias
    return bitcast(call("shl", bitcast(shifted, p.signed), p.mantissa), p.dtype)


def scale(x: Expr, n: Expr, p: Profile) -> Expr:
    """x * 2**n for a whole number n, in two steps, so that results may overflow and underflow as they should."""
    half = call("rint", n * 0.5)
    return x * power_of_two(half, p) * power_of_two(n - half, p)


def sign_of(x: Expr, p: Profile) -> Expr:
    """The sign bit of x, other bits 0."""
    return bitcast(x, p.signed) & p.sign_bit


def with_sign(x: Expr, sign: Expr, p: Profile) -> Expr:
    """A number without sign bit, with these sign bits (see `sign_of`) put in."""
    return bitcast(bitcast(x, p.signed) | sign, p.dtype)


def flip_sign(x: Expr, sign: Expr, p: Profile) -> Expr:
    """x negated where the sign bit is set in `sign`."""
    return bitcast(bitcast(x, p.signed) ^ sign, p.dtype)


def clamp(x: Expr, lo: float, hi: float) -> Expr:
    """x moved into [lo, hi]; NaN stays."""
    return call("min", call("max", x, lo), hi)


def is_odd(n: Expr) -> Expr:
    """Whether a whole number is odd; infinities are not."""
    half = n * 0.5
    return call("floor", half).ne(half)


def two_sum(large: Expr, small: Expr) -> tuple[Expr, Expr]:
    """The sum and its rounding error, for |large| >= |small| or large 0."""
    total = large + small
    return total, small - (total - large)


def select_range(x: Expr, lo: float, y: Expr, at: float, below: float) -> Expr:
    """y where x > lo, `at` where x == lo, `below` elsewhere and for NaN."""
    return where(x > lo, y, where(x.eq(lo), Const(at, y.dtype), Const(below, y.dtype)))
