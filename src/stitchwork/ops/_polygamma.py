"""The polygamma functions, written once for NumPy arrays and for loop expressions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from stitchwork.ir import dtypes
from stitchwork.loops.expr import Expr, call, cast, const, where
from stitchwork.ops._op import Array

_TERMS = 8  # of the asymptotic series


@dataclass(frozen=True)
class _Functions:
    """What the formula needs besides arithmetic, for one kind of operand."""

    log: Callable[[Any], Any]
    sin: Callable[[Any], Any]
    cos: Callable[[Any], Any]
    rint: Callable[[Any], Any]
    select: Callable[[Any, Any, Any], Any]


def _expression_select(condition: Expr, a: Any, b: Any) -> Expr:
    return where(condition, a if isinstance(a, Expr) else const(a, dtypes.float64), b)


_ARRAYS = _Functions(np.log, np.sin, np.cos, np.rint, np.where)
_EXPRESSIONS = _Functions(
    lambda x: call("log", x),
    lambda x: call("sin", x),
    lambda x: call("cos", x),
    lambda x: call("rint", x),
    _expression_select,
)


def of_array(order: int, x: Array) -> Array:
    """Polygamma of floats, computed in float64 and given in x's dtype."""
    with np.errstate(all="ignore"):
        return np.asarray(_polygamma(order, x.astype(np.float64), _ARRAYS)).astype(x.dtype)


def of_expression(order: int, x: Expr) -> Expr:
    """Polygamma of a float expression."""
    return cast(_polygamma(order, cast(x, dtypes.float64), _EXPRESSIONS), x.dtype)


def _polygamma(n: int, x: Any, f: _Functions) -> Any:
    """With (-1)^n psi_n(1 - x) - psi_n(x) = d^n/dx^n of pi cot(pi x) below 1/2."""
    reflect = x < 0.5
    right = _right_half(n, f.select(reflect, 1 - x, x), f)
    turn = (x - f.rint(x)) * math.pi
    cotangent = f.cos(turn) / f.sin(turn)
    derivative: Any = 0.0
    for c in reversed(_cotangent_derivative(n)):
        derivative = cotangent * derivative + float(c)
    left = right * (-1) ** n - derivative * math.pi ** (n + 1)
    pole = reflect & (x - f.rint(x) == 0 if isinstance(x, np.ndarray | np.generic) else (x - f.rint(x)).eq(0))
    return f.select(pole, math.nan, f.select(reflect, left, right))


def _right_half(n: int, x: Any, f: _Functions) -> Any:
    """For x >= 1/2: terms of the recurrence up to x + shift, then the asymptotic series there.

    For n >= 1, (-1)^(n+1) psi_n(x) = n! sum over k of (x + k)^-(n+1), its tail by the Euler-Maclaurin formula.
    """
    shift = 9 + n
    q = x + float(shift)
    total: Any = 0.0
    for k in range(shift):
        total = _inverse_power(x + float(k), n + 1) + total
    inverse = 1 / q
    square = inverse * inverse
    series: Any = 0.0
    for j in range(_TERMS, 0, -1):
        series = (series + _tail_coefficient(n, j)) * square
    if n == 0:
        return f.log(q) - inverse * 0.5 - series - total
    tail = _inverse_power(q, n) * (series + inverse * (n / 2) + 1.0) * (1.0 / n)
    return (total + tail) * (math.factorial(n) * (-1) ** (n + 1))


def _inverse_power(x: Any, n: int) -> Any:
    inverse = made = 1 / x
    for _ in range(n - 1):
        made = made * inverse
    return made


def _tail_coefficient(n: int, j: int) -> float:
    """Of q^-2j: B_2j / 2j for order 0; B_2j (n + 2j - 1)! / ((2j)! (n - 1)!) within q^-n / n otherwise."""
    if n == 0:
        return float(_bernoulli(2 * j) / (2 * j))
    factor = Fraction(math.factorial(n + 2 * j - 1), math.factorial(2 * j) * math.factorial(n - 1))
    return float(_bernoulli(2 * j) * factor)


@cache
def _bernoulli(m: int) -> Fraction:
    if m == 0:
        return Fraction(1)
    return -sum((math.comb(m + 1, k) * _bernoulli(k) for k in range(m)), Fraction(0)) / (m + 1)


@cache
def _cotangent_derivative(n: int) -> tuple[int, ...]:
    """Coefficients of the polynomial in c = cot(t) that is the n-th derivative of cot(t); c' = -(1 + c^2)."""
    if n == 0:
        return (0, 1)
    before = _cotangent_derivative(n - 1)
    made = [0] * (len(before) + 1)
    for k, c in enumerate(before[1:], 1):
        made[k - 1] -= k * c
        made[k + 1] -= k * c
    return tuple(made)
