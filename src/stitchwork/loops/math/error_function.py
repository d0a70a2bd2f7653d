"""The error function and its complement."""

from __future__ import annotations

from stitchwork.loops.expr import Expr, call, where
from stitchwork.loops.math import coefficients
from stitchwork.loops.math._profile import Profile, absolute, fma, horner, polynomial, power_of_two, sign_of, with_sign
from stitchwork.loops.math.exponential import exp, reduce


def erf(x: Expr, p: Profile) -> Expr:
    """-expm1(-y) with y = -log(erfc(|x|)), which is |x| times a polynomial; 1 from 4 (6 in float64) on."""
    single = p.mantissa == 23
    a = call("min", absolute(x), 4.0 if single else 6.0)
    table = coefficients.ERF if single else coefficients.ERF_WIDE
    n, r = reduce(fma(a, polynomial(a, p.coefficients(table)), a), p)
    mirrored = tuple(-c if k % 2 == 0 else c for k, c in enumerate(p.coefficients(coefficients.EXPM1)))
    y = fma(r * r, polynomial(r, mirrored), r)  # -expm1(-r)
    s = power_of_two(-n, p)
    return with_sign(fma(s, y, 1.0 - s), sign_of(x, p), p)


def erfc(x: Expr, p: Profile) -> Expr:
    """exp(-a**2) P(t) / (1 + 2 a) with t = (a - 4) / (a + 4) for a = |x| (after Shepherd and Laframboise, 1981)."""
    a = call("min", absolute(x), 28.0)
    square = a * a
    lost = fma(a, a, -square)
    power = exp(-square, p)
    y = horner(fma(a / (a + 4.0), 2.0, -1.0), p.coefficients(coefficients.ERFCX)) / fma(a, 2.0, 1.0)
    y = fma(y * power, -lost, y * power)
    return where(x < 0.0, 2.0 - y, y)
