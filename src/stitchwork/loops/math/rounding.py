"""Rounding, remainders and bits of floats."""

from __future__ import annotations

from stitchwork.ir.dtypes import by_name
from stitchwork.loops.expr import Const, Expr, RareSelect, bitcast, call, where
from stitchwork.loops.math._profile import (
    INF,
    Profile,
    absolute,
    flip_sign,
    fma,
    sign_of,
    with_sign,
)


def round_half_away(x: Expr, p: Profile) -> Expr:
    """x to the nearest whole number, halves away from 0: what is added is the largest number below 1/2."""
    below_half = p.const(0.5 - 2.0 ** (-2 - p.mantissa))
    return call("trunc", x + with_sign(below_half, sign_of(x, p), p))


def copysign(x: Expr, y: Expr, p: Profile) -> Expr:
    """|x| with the sign of y."""
    return with_sign(absolute(x), sign_of(y, p), p)


def isinf(x: Expr, p: Profile) -> Expr:
    """Whether x is infinite."""
    return absolute(x).eq(INF)


def isfinite(x: Expr, p: Profile) -> Expr:
    """Whether x is neither infinite nor NaN."""
    return absolute(x) < INF


def signbit(x: Expr, p: Profile) -> Expr:
    """Whether the sign bit is set."""
    return bitcast(x, p.signed) < 0


def nextafter(x: Expr, y: Expr) -> Expr:
    """The neighbour of x in the direction of y: the bits of a float, as an integer, count its neighbours."""
    dtype = x.dtype
    signed = by_name(f"i{dtype.bits}")
    bits = bitcast(x, signed)
    away = (y > x).eq(x > 0.0)
    one = Const(1, signed)
    moved = where(away, bits + one, bits - one)
    from_zero = one | (bitcast(y, signed) & (-(1 << (dtype.bits - 1))))
    made = bitcast(where(x.eq(0.0), from_zero, moved), dtype)
    unordered = call("isnan", x) | call("isnan", y)
    return where(unordered, where(call("isnan", x), x, y), where(x.eq(y), y, made))


def remainder(x: Expr, y: Expr, p: Profile) -> Expr:
    """x - y trunc(x / y), exact, with the sign of x (C's fmod).

    Exact for quotients up to 2**50, and beyond them for all float32; in float64 to 2**300, and 0 further on.
    """
    a, b = absolute(x), absolute(y)
    steps = 6
    quotient = call("trunc", a / b)
    usual = _step(a, b, quotient)
    left = usual
    for _ in range(steps - 1):
        left = _step(left, b, call("trunc", left / b))
    if p.name == "double":
        hopeless = (quotient >= 2.0**300) & (b > 0.0) & (a < INF)
        left = where(hopeless, p.const(0.0), left)
    r = RareSelect(~(quotient >= 2.0**50), usual, left)
    r = where(r < 0.0, r + b, r)
    r = where(b.eq(INF) & (a < INF), a, r)
    return flip_sign(r, sign_of(x, p), p)


def _step(a: Expr, b: Expr, quotient: Expr) -> Expr:
    return fma(-quotient, b, a)


def modulo(x: Expr, y: Expr, p: Profile) -> Expr:
    """x - y floor(x / y), with the sign of y, as Python and NumPy define it."""
    r = remainder(x, y, p)
    crossed = (r < 0.0).ne(y < 0.0)
    return where(r.eq(0.0), with_sign(p.const(0.0), sign_of(y, p), p), where(crossed, r + y, r))


def floor_divide(x: Expr, y: Expr, p: Profile) -> Expr:
    """x / y rounded down; x / y itself where y is 0."""
    quotient = x / y
    r = remainder(x, y, p)
    whole = call("rint", (x - r) / y)
    whole = where(r.ne(0.0) & (r < 0.0).ne(y < 0.0), whole - 1.0, whole)
    whole = where(whole.eq(0.0), with_sign(p.const(0.0), sign_of(quotient, p), p), whole)
    return where(y.eq(0.0), quotient, whole)
