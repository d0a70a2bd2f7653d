"""Exponential and hyperbolic functions.

exp(x) = 2**n exp(r) with n = round(x / log(2)) and r = x - n log(2) (Cody and Waite), a polynomial for exp(r).
"""

from __future__ import annotations

from stitchwork.loops.expr import Expr, call, where
from stitchwork.loops.math import coefficients
from stitchwork.loops.math._profile import (
    LN2,
    Profile,
    absolute,
    clamp,
    fma,
    polynomial,
    power_of_two,
    scale,
    sign_of,
    with_sign,
)

LOG2E = float(1 / LN2)


def reduce(x: Expr, p: Profile) -> tuple[Expr, Expr]:
    """(n, r) with x = n log(2) + r, n whole, |r| <= log(2) / 2."""
    n = call("rint", x * LOG2E)
    high, low = p.parts(LN2, 2)
    return n, fma(n, -low, fma(n, -high, x))


def exp_of_reduced(r: Expr, p: Profile) -> Expr:
    """exp(r) for |r| <= log(2) / 2."""
    return fma(r * r, polynomial(r, p.coefficients(coefficients.EXP)), r) + 1.0


def expm1_of_reduced(r: Expr, p: Profile) -> Expr:
    """exp(r) - 1 for |r| <= log(2) / 2."""
    return fma(r * r, polynomial(r, p.coefficients(coefficients.EXPM1)), r)


def exp(x: Expr, p: Profile) -> Expr:
    """e**x."""
    return _scaled_exp(x, 0.0, p)


def _scaled_exp(x: Expr, shift: float, p: Profile) -> Expr:
    """e**x * 2**shift. Beyond the limits of the clamp the result is 0 or infinite all the same."""
    n, r = reduce(clamp(x, -104.0, 90.0) if p.mantissa == 23 else clamp(x, -746.0, 711.0), p)
    return scale(exp_of_reduced(r, p), n + shift if shift else n, p)


def exp2(x: Expr, p: Profile) -> Expr:
    """2**x, exact for whole x."""
    x = clamp(x, -151.0, 129.0) if p.mantissa == 23 else clamp(x, -1076.0, 1025.0)
    n = call("rint", x)
    return scale(exp_of_reduced((x - n) * float(LN2), p), n, p)


def expm1(x: Expr, p: Profile) -> Expr:
    """e**x - 1 = 2 (2**(n-1) expm1(r) + 2**(n-1) - 1/2), which loses nothing near 0 and overflows no earlier."""
    n, r = reduce(clamp(x, -18.0, 89.0) if p.mantissa == 23 else clamp(x, -38.0, 710.0), p)
    half_scale = power_of_two(n - 1.0, p)
    y = fma(half_scale, expm1_of_reduced(r, p), half_scale - 0.5)
    return with_sign(y + y, sign_of(x, p), p)


def tanh(x: Expr, p: Profile) -> Expr:
    """1 - 2 / (e**2a + 1) for a = |x| >= 0.55, a polynomial below; 1 from 9.2 (20 in float64) on."""
    a = call("min", absolute(x), 9.2 if p.mantissa == 23 else 20.0)
    n = call("rint", a * (2.0 * LOG2E))
    r = fma(n, -float(LN2), a + a)  # one part of log(2) will do: where n is large, so is e**2a
    large = 1.0 - 2.0 / fma(power_of_two(n, p), exp_of_reduced(r, p), 1.0)
    square = a * a
    small = fma(a * square, polynomial(square, p.coefficients(coefficients.TANH)), a)
    return with_sign(where(a < 0.55, small, large), sign_of(x, p), p)


def sinh(x: Expr, p: Profile) -> Expr:
    """(e**a - e**-a) / 2 for a = |x| >= 1, a polynomial below."""
    a = absolute(x)
    half = _scaled_exp(a, -1.0, p)
    square = a * a
    small = fma(a * square, polynomial(square, p.coefficients(coefficients.SINH)), a)
    return with_sign(where(a < 1.0, small, half - 0.25 / half), sign_of(x, p), p)


def cosh(x: Expr, p: Profile) -> Expr:
    """(e**a + e**-a) / 2 for a = |x|."""
    half = _scaled_exp(absolute(x), -1.0, p)
    return half + 0.25 / half
