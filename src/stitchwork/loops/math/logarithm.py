"""Logarithms and inverse hyperbolic functions.

x = 2**e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), and log(1 + f) = f + f**2 P(f).
"""

from __future__ import annotations

import numpy as np

from stitchwork.loops.expr import Const, Expr, bitcast, call, where
from stitchwork.loops.math import coefficients
from stitchwork.loops.math._profile import (
    INF,
    LN2,
    LN10,
    NAN,
    Profile,
    absolute,
    fma,
    polynomial,
    power_of_two,
    select_range,
    sign_of,
    with_sign,
)


def split(x: Expr, p: Profile, subnormal: bool = True) -> tuple[Expr, Expr]:
    """(e, 1 + f) of a positive finite x; e as a float. `subnormal` False promises that x is not."""
    whole = 2.0**p.mantissa
    offset: Expr = p.const(whole + p.bias)
    if subnormal:
        tiny = x < p.smallest_normal
        offset = where(tiny, p.const(whole + p.bias + p.mantissa), offset)
        x = where(tiny, x * whole, x)
    root_half = int(np.array(0.5**0.5, p.dtype.numpy).view(p.signed.numpy))
    bits = bitcast(x, p.unsigned) + Const((p.bias << p.mantissa) - root_half, p.unsigned)
    exponent = call("shr", bits, p.mantissa) | int(np.array(whole, p.dtype.numpy).view(p.signed.numpy))
    mantissa = (bits & ((1 << p.mantissa) - 1)) + Const(root_half, p.unsigned)
    return bitcast(exponent, p.dtype) - offset, bitcast(mantissa, p.dtype)


def higher_terms(f: Expr, p: Profile) -> Expr:
    """log(1 + f) - f."""
    return f * f * polynomial(f, p.coefficients(coefficients.LOG))


def finish(x: Expr, y: Expr) -> Expr:
    """y, the logarithm of x, with the results for x that is 0, negative, infinite or NaN."""
    return select_range(x, 0.0, where(x < INF, y, x), -INF, NAN)


def log_of_parts(e: Expr, f: Expr, p: Profile) -> Expr:
    """log(2**e (1 + f))."""
    high, low = p.parts(LN2, 2)
    return fma(e, high, f + fma(e, low, higher_terms(f, p)))


def log(x: Expr, p: Profile) -> Expr:
    """The natural logarithm."""
    e, m = split(x, p)
    return finish(x, log_of_parts(e, m - 1.0, p))


def log2(x: Expr, p: Profile) -> Expr:
    """The logarithm to base 2, exact for powers of two."""
    e, m = split(x, p)
    return finish(x, e + _times(m - 1.0, p.parts(1 / LN2, 2), None, p))


def log10(x: Expr, p: Profile) -> Expr:
    """The logarithm to base 10."""
    e, m = split(x, p)
    high, low = p.parts(LN2 / LN10, 2)
    return finish(x, fma(e, high, _times(m - 1.0, p.parts(1 / LN10, 2), e * low, p)))


def _times(f: Expr, factor: tuple[float, ...], more: Expr | None, p: Profile) -> Expr:
    """log(1 + f) times a number of two parts, plus `more`, which is small."""
    high, low = factor
    rest = f * low if more is None else fma(f, low, more)
    return fma(f, high, fma(higher_terms(f, p), high, rest))


def log1p(x: Expr, p: Profile) -> Expr:
    """log(1 + x): the part of x that rounding 1 + x loses goes into f."""
    large, small = call("max", x, 1.0), call("min", x, 1.0)
    u = large + small
    lost = small - (u - large)
    e, m = split(u, p, subnormal=False)
    f = fma(lost, power_of_two(-call("min", e, float(p.bias - 1)), p), m - 1.0)
    return with_sign(finish(u, log_of_parts(e, f, p)), sign_of(x, p), p)


_LARGE = 2.0**28  # beyond it, x**2 + 1 is x**2


def asinh(x: Expr, p: Profile) -> Expr:
    """log(a + sqrt(a**2 + 1)) for a = |x|, as log1p."""
    a = absolute(x)
    large = a > _LARGE
    square = a * a
    argument = where(large, a - 1.0, a + square / (call("sqrt", square + 1.0) + 1.0))
    return with_sign(log1p(argument, p) + where(large, p.const(float(LN2)), p.const(0.0)), sign_of(x, p), p)


def acosh(x: Expr, p: Profile) -> Expr:
    """log(x + sqrt(x**2 - 1)), as log1p of x - 1 and more. NaN below 1."""
    large = x > _LARGE
    t = x - 1.0
    argument = where(large, t, t + call("sqrt", t * (t + 2.0)))
    y = log1p(argument, p) + where(large, p.const(float(LN2)), p.const(0.0))
    return where(x >= 1.0, y, p.const(NAN))


def atanh(x: Expr, p: Profile) -> Expr:
    """log((1 + a) / (1 - a)) / 2 for a = |x|, as log1p."""
    a = absolute(x)
    return with_sign(0.5 * log1p((a + a) / (1.0 - a), p), sign_of(x, p), p)
