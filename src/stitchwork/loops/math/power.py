"""Powers and roots."""

from __future__ import annotations

from fractions import Fraction

from stitchwork.ir.dtypes import DType, int32, int64, uint32, uint64
from stitchwork.loops.expr import Const, Expr, call, cast, where
from stitchwork.loops.math import coefficients
from stitchwork.loops.math._profile import (
    INF,
    LN2,
    NAN,
    Profile,
    absolute,
    clamp,
    fma,
    is_odd,
    polynomial,
    power_of_two,
    scale,
    sign_of,
    two_sum,
    with_sign,
)
from stitchwork.loops.math.exponential import exp_of_reduced
from stitchwork.loops.math.logarithm import finish, higher_terms, split


def rsqrt(x: Expr, p: Profile) -> Expr:
    """1 / sqrt(x)."""
    return 1.0 / call("sqrt", x)


def cbrt(x: Expr, p: Profile) -> Expr:
    """The real cube root: a polynomial, then a step of Halley's method and, for float64, one of Newton's."""
    a = absolute(x)
    e, m = split(a, p)
    third = call("floor", fma(e, 1 / 3, 1 / 6))
    v = m * power_of_two(e - 3.0 * third, p)  # sqrt(1/2) <= v < 4 sqrt(2): the fit is scaled by its exponent
    rest = e - 3.0 * third
    y = polynomial(m, p.coefficients(coefficients.CBRT))
    y = y * where(rest.eq(0.0), p.const(1.0), where(rest > 1.0, p.const(2 ** (2 / 3)), p.const(2 ** (1 / 3))))
    cube = y * y * y
    y = y * (fma(v, 2.0, cube) / fma(cube, 2.0, v))
    if p.name == "double":
        square = y * y
        residue = fma(square, y, -v) + fma(y, y, -square) * y
        y = y - residue / (3.0 * square)
    usual = (a > 0.0) & (a < INF)
    return where(usual, with_sign(y * power_of_two(third, p), sign_of(x, p), p), x)


def power(x: Expr, y: Expr, p: Profile) -> Expr:
    """x**y with the special cases of C99: x**0 and 1**y are 1, negative x has powers for whole y only."""
    a = absolute(x)
    m = _medium_power(a, y, p) if p.name == "medium" else _double_power(a, y, p)
    m = where(a.eq(1.0) & y.eq(y), p.const(1.0), m)  # 1**inf
    whole = call("rint", y).eq(y)
    odd = whole & is_odd(y)
    signed = where(odd, with_sign(m, sign_of(x, p), p), m)
    signed = where((x < 0.0) & (a < INF) & ~whole, p.const(NAN), signed)
    return where(x.eq(1.0) | y.eq(0.0), p.const(1.0), signed)


def simple_power(x: Expr, exponent: Expr, p: Profile) -> Expr | None:
    """x**exponent by multiplications, a division or a root; None where the exponent is no literal that allows it."""
    if not isinstance(exponent, Const):
        return None
    y = exponent.value
    if y == 0.0:
        return p.const(1.0)
    if y in (1.0, 2.0, 3.0, 4.0):
        square = x * x
        return {1.0: x, 2.0: square, 3.0: square * x}.get(y.real, square * square)
    if y == -1.0:
        return 1.0 / x
    if y == 0.5:
        return where(x.eq(-INF), p.const(INF), call("sqrt", x + 0.0))  # -0.0 has the root 0.0 here
    return None


def _medium_power(a: Expr, y: Expr, p: Profile) -> Expr:
    """a**y for a >= 0, in float64 for a float32 result."""
    e, m = split(a, p)
    f = m - 1.0
    logarithm = finish(a, fma(f + higher_terms(f, p), float(1 / LN2), e))
    t = clamp(y * logarithm, -200.0, 200.0)
    n = call("rint", t)
    return exp_of_reduced((t - n) * float(LN2), p) * power_of_two(n, p)


def _double_power(a: Expr, y: Expr, p: Profile) -> Expr:
    """a**y for a >= 0: y log2(a) as a sum of two floats, of which 2**-60 is right."""
    e, m = split(a, p)
    high, low = _log2_in_two_parts(e, m, p)
    high = finish(a, high)
    t = y * high
    small = absolute(t) < 2000.0
    rest = where(small, fma(y, high, -t) + y * low, p.const(0.0))
    t = clamp(t, -2000.0, 2000.0)
    n = call("rint", t)
    return scale(exp_of_reduced(((t - n) + rest) * float(LN2), p), n, p)


def _log2_in_two_parts(e: Expr, m: Expr, p: Profile) -> tuple[Expr, Expr]:
    """e + log2(m) by 2 atanh(s) = 2 (s + s**3/3 + s**5 P(s**2)), s = (m - 1) / (m + 1), the first terms doubled."""
    f = m - 1.0
    d, d_low = two_sum(p.const(2.0), f)
    s = f / d
    s_low = (fma(-s, d, f) - s * d_low) / d
    z = s * s
    z_low = fma(s, s, -z) + 2.0 * s * s_low
    third, third_low = p.parts(Fraction(1, 3), 2)
    t, t_low = _product(z, z_low, third, third_low)
    t, more = two_sum(t, z * z * polynomial(z, p.coefficients(coefficients.ATANH)))
    t_low = t_low + more
    cubic = s * t
    cubic_low = fma(s, t, -cubic) + fma(s, t_low, s_low * t)
    total, more = two_sum(s, cubic)
    high, low = _product(total, more + (cubic_low + s_low), *p.parts(2 / LN2, 2))
    high, more = two_sum(e, high)
    return high, more + low


def _product(a: Expr, a_low: Expr, b: float, b_low: float) -> tuple[Expr, Expr]:
    high = a * b
    return high, fma(a, b, -high) + fma(a, b_low, a_low * b)


def integer_power(x: Expr, y: Expr) -> Expr:
    """x**y of integers, wrapping; a negative exponent gives 0 unless x is 1 or -1. Squaring, a step per bit of y."""
    own = x.dtype
    wide = _working_type(own)
    if isinstance(y, Const) and isinstance(y.value, int) and y.value >= 0:
        return cast(_by_known_exponent(cast(x, wide), y.value), own)
    steps = own.bits if own.kind == "u" else own.bits - 1
    square, left = cast(x, wide), cast(y, wide)
    base, exponent = square, left
    result: Expr = Const(1, wide)
    for k in range(steps):
        result = where((left & (1 << k)).ne(0), result * square, result)
        if k + 1 < steps:
            square = square * square
    if own.kind == "u":
        return cast(result, own)
    sign = where((exponent & 1).ne(0), base, Const(1, wide))
    reciprocal = where(base.eq(1) | base.eq(-1), sign, Const(0, wide))
    return cast(where(exponent < 0, reciprocal, result), own)


def _working_type(dtype: DType) -> DType:
    if dtype.kind == "u":
        return uint64 if dtype.bits == 64 else uint32
    return int64 if dtype.bits == 64 else int32


def _by_known_exponent(x: Expr, exponent: int) -> Expr:
    result: Expr | None = None
    while exponent:
        if exponent & 1:
            result = x if result is None else result * x
        exponent >>= 1
        x = x * x if exponent else x
    return Const(1, x.dtype) if result is None else result
