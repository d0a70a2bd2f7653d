"""Numbers of which some depend on sizes: what shape arithmetic of exported models computes with.

An element is an int, bool or float; a `Dim`; a `Ratio` of sizes (exporters divide and scale sizes as floats); a
`Relation` (a comparison that sizes decide at run time); or None where nothing is known.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stitchwork.ir import dims
from stitchwork.ir.dims import Dim, Size

_FRACTION = 4096  # float factors of sizes are followed where they are multiples of 1 / _FRACTION: then floats are exact


@dataclass(frozen=True)
class Ratio:
    """numerator / denominator, where that is not known to be a whole number; the denominator is positive."""

    numerator: Size
    denominator: Size


@dataclass(frozen=True)
class Relation:
    """A comparison ("==", "<" or "<=", or its opposite) of two sizes that no rule decides."""

    symbol: str
    a: Size
    b: Size
    negated: bool = False


def is_number(x: Any) -> bool:
    """Whether an element is a plain number."""
    return isinstance(x, int | float)


def as_ratio(x: Any) -> Ratio | None:
    """An element as a fraction; None for what is not one exactly."""
    if isinstance(x, Ratio):
        return x
    if isinstance(x, int | Dim):
        return Ratio(int(x) if isinstance(x, bool) else x, 1)
    if isinstance(x, float) and math.isfinite(x) and (x * _FRACTION).is_integer() and abs(x) < 2**40:
        numerator, denominator = x.as_integer_ratio()
        return Ratio(numerator, denominator)
    return None


def _reduced(numerator: Size, denominator: Size) -> Any:
    """A fraction as the simplest element; None where the denominator may be 0 or negative."""
    if isinstance(denominator, int) and denominator < 0:
        numerator, denominator = numerator * -1, -denominator
    if (isinstance(denominator, int) and denominator == 0) or not dims.is_nonnegative(denominator):
        return None
    common = math.gcd(*_coefficients(numerator), *_coefficients(denominator))
    if common > 1:
        numerator, denominator = dims.floordiv(numerator, common), dims.floordiv(denominator, common)
    quotient = dims.floordiv(numerator, denominator)
    if quotient * denominator == numerator:
        return quotient
    if isinstance(numerator, int) and isinstance(denominator, int):
        return numerator / denominator
    return Ratio(numerator, denominator)


def _coefficients(x: Size) -> list[int]:
    return list(x.terms.values()) if isinstance(x, Dim) else [x]


def _fractions(fn: Callable[[Ratio, Ratio], Any]) -> Callable[[Any, Any], Any]:
    """`fn` on both elements as fractions, None where one is none."""

    def apply(x: Any, y: Any) -> Any:
        a, b = as_ratio(x), as_ratio(y)
        return None if a is None or b is None else fn(a, b)

    return apply


def _add(a: Ratio, b: Ratio) -> Any:
    return _reduced(a.numerator * b.denominator + b.numerator * a.denominator, a.denominator * b.denominator)


def _subtract(a: Ratio, b: Ratio) -> Any:
    return _reduced(a.numerator * b.denominator - b.numerator * a.denominator, a.denominator * b.denominator)


def _multiply(a: Ratio, b: Ratio) -> Any:
    return _reduced(a.numerator * b.numerator, a.denominator * b.denominator)


def _divide(a: Ratio, b: Ratio) -> Any:
    return _reduced(a.numerator * b.denominator, a.denominator * b.numerator)


add, subtract, multiply, divide = map(_fractions, (_add, _subtract, _multiply, _divide))


def floor(x: Any) -> Any:
    """x rounded down."""
    a = as_ratio(x)
    return None if a is None else dims.floordiv(a.numerator, a.denominator)


def ceil(x: Any) -> Any:
    """x rounded up."""
    a = as_ratio(x)
    return None if a is None else dims.ceildiv(a.numerator, a.denominator)


def truncate(x: Any) -> Any:
    """x rounded toward zero; None where its sign is not known."""
    a = as_ratio(x)
    if a is None or (not isinstance(a.numerator, int) and not dims.is_nonnegative(a.numerator)):
        return floor(x) if isinstance(x, int | Dim) else None
    return -dims.floordiv(-a.numerator, a.denominator) if isinstance(a.numerator, int) and a.numerator < 0 else floor(x)


def truncated_division(x: Any, y: Any) -> Any:
    """x / y rounded toward zero, as ONNX divides integers."""
    quotient = divide(x, y)
    return None if quotient is None else truncate(quotient)


def floor_division(x: Any, y: Any) -> Any:
    """x / y rounded down."""
    return floor(divide(x, y))


def modulo(x: Any, y: Any) -> Any:
    """The remainder of `floor_division`."""
    return None if not isinstance(y, int | Dim) or y == 0 or not isinstance(x, int | Dim) else dims.mod(x, y)


def _extreme(pick: Callable[[Size, Size], Size]) -> Callable[[Any, Any], Any]:
    return lambda x, y: pick(x, y) if isinstance(x, int | Dim) and isinstance(y, int | Dim) else None


minimum, maximum = _extreme(dims.minimum), _extreme(dims.maximum)


def compare(symbol: str) -> Callable[[Any, Any], Any]:
    """The comparison "==", "<" or "<=" of elements: a bool where it is decided, else a Relation."""
    decide: Callable[[Any, Any], bool] = {"==": operator.eq, "<": operator.lt, "<=": operator.le}[symbol]

    def apply(x: Any, y: Any) -> Any:
        difference = subtract(x, y)
        if difference is None:
            return None
        if is_number(difference):
            return decide(difference, 0)
        if isinstance(difference, Ratio):
            return None
        if dims.is_nonnegative(difference - 1):
            return False
        if dims.is_nonnegative(-difference - 1):
            return symbol != "=="
        if symbol == "<=" and dims.is_nonnegative(-difference):
            return True
        if symbol == "<" and dims.is_nonnegative(difference):
            return False
        return Relation(symbol, x, y) if isinstance(x, int | Dim) and isinstance(y, int | Dim) else None

    return apply


def negation(x: Any) -> Any:
    """The opposite of a truth value."""
    if isinstance(x, Relation):
        return Relation(x.symbol, x.a, x.b, not x.negated)
    return not x if is_number(x) else None


def conjunction(x: Any, y: Any) -> Any:
    """Whether both are true."""
    for a, b in ((x, y), (y, x)):
        if is_number(a):
            return truth(b) if a else False
    return None


def disjunction(x: Any, y: Any) -> Any:
    """Whether one is true."""
    return negation(conjunction(negation(x), negation(y)))


def truth(x: Any) -> Any:
    """x as a bool: whether it is not 0."""
    if isinstance(x, Relation):
        return x
    if is_number(x):
        return bool(x)
    return negation(compare("==")(x, 0)) if isinstance(x, Dim) else None
