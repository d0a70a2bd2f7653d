"""sin, cos, tan and their inverses.

|x| = n pi/2 + r with |r| <= pi/4. Up to 2**17 in float32 and 2**48 in float64, r comes from subtracting n pi/2 in three
parts, the first of which is exact (n times the leading part of pi/2 differs from x by a multiple of the last bit of
that part, so a fused multiply-add rounds nothing). Larger arguments are multiplied with as many bits of 2/pi as their
exponent needs (Payne and Hanek): in float32 all parts of 2/pi at once, in float64 integers picked by the exponent.
"""

from __future__ import annotations

from functools import lru_cache

from stitchwork.loops.expr import Expr, RareSelect, bitcast, call, where
from stitchwork.loops.math import coefficients
from stitchwork.loops.math._payne_hanek import reduce_by_integers, reduce_by_parts
from stitchwork.loops.math._profile import (
    DOUBLE,
    INF,
    PI,
    SINGLE,
    Profile,
    absolute,
    flip_sign,
    fma,
    polynomial,
    sign_of,
    with_sign,
)


@lru_cache(maxsize=256)  # sin and cos of one argument share it
def reduce(x: Expr, p: Profile) -> tuple[Expr, Expr]:
    """(r, q): |x| = (q + 4 k) pi/2 + r; q an integer whose low two bits count."""
    a = absolute(x)
    n = call("rint", a * float(2 / PI))
    r = a
    for part in p.parts(PI / 2, 3):
        r = fma(n, -part, r)
    q = bitcast(n + 1.5 * 2.0**p.mantissa, p.signed)
    usual = a <= (2.0**17 if p is SINGLE else 2.0**48)
    rare_r, rare_q = reduce_by_integers(a) if p is DOUBLE else reduce_by_parts(a, p)
    return RareSelect(usual, r, rare_r), RareSelect(usual, q, rare_q)


@lru_cache(maxsize=256)
def _sine_and_cosine(x: Expr, p: Profile) -> tuple[Expr, Expr, Expr]:
    """(sin r, cos r, q) of the reduced argument."""
    r, q = reduce(x, p)
    z = r * r
    sine = fma(r * z, polynomial(z, p.coefficients(coefficients.SIN)), r)
    cosine = fma(z, fma(z, polynomial(z, p.coefficients(coefficients.COS)), -0.5), 1.0)
    return sine, cosine, q


def _in_quadrant(x: Expr, shift: int, p: Profile) -> tuple[Expr, Expr]:
    """sin(|x| + shift pi/2) but for its sign, and the sign's bit."""
    sine, cosine, q = _sine_and_cosine(x, p)
    q = q + shift if shift else q
    sign = call("shl", q & 2, p.signed.bits - 2)
    return where((q & 1).ne(0), cosine, sine), sign


def sin(x: Expr, p: Profile) -> Expr:
    """The sine; NaN at infinities."""
    y, sign = _in_quadrant(x, 0, p)
    return flip_sign(y, sign ^ sign_of(x, p), p)


def cos(x: Expr, p: Profile) -> Expr:
    """The cosine; NaN at infinities."""
    y, sign = _in_quadrant(x, 1, p)
    return flip_sign(y, sign, p)


def tan(x: Expr, p: Profile) -> Expr:
    """The tangent; NaN at infinities."""
    r, q = reduce(x, p)
    z = r * r
    t = fma(r * z, polynomial(z, p.coefficients(coefficients.TAN)), r)
    return flip_sign(where((q & 1).ne(0), -1.0 / t, t), sign_of(x, p), p)


def _arcsine(a: Expr, p: Profile) -> tuple[Expr, Expr, Expr]:
    """(far, s, t) with asin(s) = s + t, where s is a for a <= 1/2 and sqrt((1 - a) / 2) beyond, when `far` holds."""
    far = a > 0.5
    z = where(far, fma(a, -0.5, 0.5), a * a)
    s = where(far, call("sqrt", z), a)
    return far, s, s * z * polynomial(z, p.coefficients(coefficients.ASIN))


def asin(x: Expr, p: Profile) -> Expr:
    """The angle in [-pi/2, pi/2]; NaN outside [-1, 1]."""
    far, s, t = _arcsine(absolute(x), p)
    high, low = p.parts(PI / 2, 2)
    y = where(far, high - (2.0 * s + (2.0 * t - low)), s + t)
    return with_sign(y, sign_of(x, p), p)


def acos(x: Expr, p: Profile) -> Expr:
    """The angle in [0, pi]; NaN outside [-1, 1]."""
    far, s, t = _arcsine(absolute(x), p)
    (high, low), (pi_high, pi_low) = p.parts(PI / 2, 2), p.parts(PI, 2)
    sign = sign_of(x, p)
    near = high - (flip_sign(s, sign, p) + (flip_sign(t, sign, p) - low))
    edge = where(x < 0.0, pi_high - (2.0 * s + (2.0 * t - pi_low)), 2.0 * (s + t))
    return where(far, edge, near)


def atan(x: Expr, p: Profile) -> Expr:
    """The angle in [-pi/2, pi/2]."""
    a = absolute(x)
    y = _arctangent(call("min", a, 1.0) / call("max", a, 1.0), p)
    high, low = p.parts(PI / 2, 2)
    return with_sign(where(a > 1.0, high - (y - low), y), sign_of(x, p), p)


def _arctangent(t: Expr, p: Profile) -> Expr:
    z = t * t
    return fma(t * z, polynomial(z, p.coefficients(coefficients.ATAN)), t)


def atan2(y: Expr, x: Expr, p: Profile) -> Expr:
    """The angle of the point (x, y) in [-pi, pi], signed zeros and infinities as in C."""
    a, b = absolute(y), absolute(x)
    small, large = call("min", a, b), call("max", a, b)
    quotient = where(large.eq(0.0), large, where(small.eq(INF), p.const(1.0), small / large))
    angle = _arctangent(quotient, p)
    (high, low), (pi_high, pi_low) = p.parts(PI / 2, 2), p.parts(PI, 2)
    angle = where(a > b, high - (angle - low), angle)
    angle = where(bitcast(x, p.signed) < 0, pi_high - (angle - pi_low), angle)
    return with_sign(angle, sign_of(y, p), p)
