"""Special functions: the error function and its kin, and the gamma function's.

Where the loop language has no such function, elements are computed in float64 from published formulas.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir import dtypes
from stitchwork.ir.graph import Value
from stitchwork.loops.expr import Expr, call, cast, const, where
from stitchwork.ops import _polygamma
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Sample, sample
from stitchwork.ops._pointwise import Unary

_ROOT_PI = math.sqrt(math.pi)


def _each(function: Any, x: Array) -> Array:
    """A function of Python floats applied to each element, rounded to x's dtype."""
    return np.asarray(np.frompyfunc(function, 1, 1)(x.astype(np.float64)), dtype=np.float64).astype(x.dtype)


class ErrorFunction(Unary, name="erf"):
    """2 / sqrt(pi) times the integral of e^-t^2 from 0 to x."""

    def wide(self, x: Array) -> Any:
        return _each(math.erf, x)

    def element(self, x: Expr) -> Expr:
        return call("erf", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.exp(-F.square(x)) * (2 / _ROOT_PI),)


class ComplementaryErrorFunction(Unary, name="erfc"):
    """1 - erf(x), exact to the last digits where that is small."""

    def wide(self, x: Array) -> Any:
        return _each(math.erfc, x)

    def element(self, x: Expr) -> Expr:
        return call("erfc", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.exp(-F.square(x)) * (-2 / _ROOT_PI),)


class InverseErrorFunction(Unary, name="erf_inv", aliases=("erfinv",)):
    """The y with erf(y) = x: infinite at -1 and 1, NaN outside.

    Formula: M. Giles, "Approximating the erfinv function", GPU Computing Gems 2 (2010); float64 adds Newton steps.
    """

    domain = (-0.9, 0.9)

    def wide(self, x: Array) -> Any:
        return _each(_erf_inv, x)

    def element(self, x: Expr) -> Expr:
        inside = call("abs", x) < 1
        safe = where(inside, x, const(0, x.dtype))
        y = _giles(safe)
        if x.dtype is dtypes.float64:
            for _ in range(3):
                y = _newton(safe, y)
        edge = where(call("abs", x).eq(1), x * math.inf, const(math.nan, x.dtype))
        return where(inside, y, edge)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.exp(F.square(F.erf_inv(x))) * (_ROOT_PI / 2),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        near = 1 - np.logspace(-15, -1, 15)
        yield Sample((np.concatenate([near, -near, near - 0.9, [1e-12, 0]]),), {}, grad=False)
        yield Sample((near.astype(np.float32),), {}, grad=False)


def _erf_inv(x: float) -> float:
    """The standard library's quantile of the normal distribution, improved by Newton steps on erf or, far out, erfc."""
    if not -1 < x < 1:
        return x * math.inf if abs(x) == 1 else math.nan
    target = abs(x)
    quantile = statistics.NormalDist().inv_cdf
    y = quantile(0.5 + target / 2) / math.sqrt(2) if target < 0.5 else -quantile((1 - target) / 2) / math.sqrt(2)
    for _ in range(2):
        error = math.erf(y) - target if target < 0.5 else (1 - target) - math.erfc(y)
        y -= error * _ROOT_PI / 2 * math.exp(y * y)
    return math.copysign(y, x)


_GILES_CENTRAL = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                  -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_GILES_TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
               0.00943887047, 1.00167406, 2.83297682)  # fmt: skip


def _giles(x: Expr) -> Expr:
    """To about 7 digits; 2 digits where only float64 reaches (|x| closer to 1 than 1e-7)."""
    w = -call("log1p", -(x * x))
    central = _polynomial(w - 2.5, _GILES_CENTRAL)
    tail = _polynomial(call("sqrt", call("max", w, const(5, w.dtype))) - 3, _GILES_TAIL)
    y = where(w < 5, central, tail) * x
    if x.dtype is not dtypes.float64:
        return y
    # erfc(y) ~ e^-y^2 / (y sqrt(pi)), solved once for y
    far = call("sqrt", w + math.log(2) - call("log", call("max", w, const(5, w.dtype)) * math.pi) * 0.5)
    return where(w < 15, y, call("copysign", far, x))


def _polynomial(t: Expr, coefficients: tuple[float, ...]) -> Expr:
    made: Expr = const(coefficients[0], t.dtype)
    for c in coefficients[1:]:
        made = made * t + c
    return made


def _newton(x: Expr, y: Expr) -> Expr:
    """A step on erf, or on erfc where x is near 1 and erf(y) - x would cancel."""
    size, root = call("abs", x), call("abs", y)
    error = where(size < 0.5, call("erf", root) - size, (1 - size) - call("erfc", root))
    step = error * (_ROOT_PI / 2) * call("exp", y * y)
    # Halley's correction keeps a poor start from overshooting
    return call("copysign", root - step / (root * step + 1), x)


# --- the gamma function -----------------------------------------------------------------------------------------------
class LogGamma(Unary, name="lgamma", aliases=("log_gamma", "gammaln")):
    """log |gamma(x)|; inf at 0, -1, -2, ...

    Formula: C. Lanczos, "A precision approximation of the gamma function" (1964), with g = 7 and 9 terms; below 1/2 the
    reflection gamma(x) gamma(1 - x) = pi / sin(pi x).
    """

    domain = (0.3, 5.0)

    def wide(self, x: Array) -> Any:
        return _each(_log_gamma, x)

    def element(self, x: Expr) -> Expr:
        wide = cast(x, dtypes.float64)
        reflect = wide < 0.5
        z = where(reflect, 1 - wide, wide) - 1
        series: Expr = const(_LANCZOS[0], wide.dtype)
        for k, c in enumerate(_LANCZOS[1:], 1):
            series = series + c / (z + k)
        t = z + 7.5
        right = (z + 0.5) * (call("log", t) - 1) + (call("log", series) + (0.5 * math.log(2 * math.pi) - 7))
        right = where(call("isinf", wide), const(math.inf, wide.dtype), right)
        fraction = wide - call("floor", wide)
        left = math.log(math.pi) - call("log", call("sin", fraction * math.pi)) - right
        pole = (fraction.eq(0) & reflect) | call("isinf", wide)
        left = where(pole, const(math.inf, wide.dtype), left)
        return cast(where(reflect, left, right), x.dtype)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.digamma(x),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield Sample((np.array([-7.3, -1.0, -0.5, 1e-9, 1, 2, 1.0001, 30, 1e5]),), {}, grad=False)
        yield sample(np.array([-3.7, -0.4, 0.2], np.float64))


_LANCZOS = (0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
            12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7)  # fmt: skip


def _log_gamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    try:
        return math.lgamma(x)
    except OverflowError:
        return math.inf


class Digamma(Unary, name="digamma"):
    """The derivative of log gamma(x): `polygamma` of order 0."""

    domain = (0.3, 5.0)

    def wide(self, x: Array) -> Any:
        return _polygamma.of_array(0, x)

    def element(self, x: Expr) -> Expr:
        return _polygamma.of_expression(0, x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.polygamma(x, 1),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(np.array([-3.7, -0.4, 0.2, 40], np.float64))


class Polygamma(Unary, name="polygamma"):
    """The derivative of order `order` of digamma, 0 <= `order` <= 30; NaN at 0, -1, -2, ...

    Formula: shifted upward by recurrence, then the asymptotic series (Abramowitz and Stegun 6.4.6 and 6.4.11); below
    1/2 the reflection formula 6.4.7.
    """

    order: int
    domain = (0.4, 5.0)

    def infer(self, *types: Any) -> Any:
        if not 0 <= self.order <= 30:
            raise self.fail("`order` is out of range", expected="0 <= order <= 30", got=str(self.order))
        return super().infer(*types)

    def wide(self, x: Array) -> Any:
        return _polygamma.of_array(self.order, x)

    def element(self, x: Expr) -> Expr:
        return _polygamma.of_expression(self.order, x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.polygamma(x, self.order + 1),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(((3, 5),), {"order": 0}, cls.domain)
        yield Sample(((2, 3),), {"order": 1}, cls.domain)
        yield Sample(((),), {"order": 2}, cls.domain)
        yield Sample(((0,),), {"order": 1}, cls.domain)
        yield Sample(((2, 3),), {"order": 1}, cls.domain, "f16", grad=False)
        yield Sample(((2, 3),), {"order": 3}, cls.domain, "f64", grad=False)
        yield sample(np.array([-3.7, -0.4, 0.4, 40], np.float64), order=1)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`order` is out of range", sample((3,), order=-1)
