"""Exponentials and logarithms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stitchwork.ir.graph import Value
from stitchwork.loops.expr import Expr, call, const
from stitchwork.ops import _complex_math as complex_math
from stitchwork.ops._build import F
from stitchwork.ops._op import Array
from stitchwork.ops._pointwise import ComplexUnary, Unary

_LN2, _LN10 = math.log(2), math.log(10)


class Exp(ComplexUnary, name="exp"):
    """e to the power x."""

    def wide(self, x: Array) -> Any:
        return np.exp(x)

    def element(self, x: Expr) -> Expr:
        return complex_math.exp(x) if x.dtype.is_complex else call("exp", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.exp(x),)


class Exp2(ComplexUnary, name="exp2"):
    """2 to the power x."""

    def wide(self, x: Array) -> Any:
        return np.exp2(x)

    def element(self, x: Expr) -> Expr:
        return complex_math.exp(x * _LN2) if x.dtype.is_complex else call("exp2", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.exp2(x) * _LN2,)


class Exp10(ComplexUnary, name="exp10"):
    """10 to the power x."""

    def wide(self, x: Array) -> Any:
        return np.power(np.asarray(10, x.dtype), x)

    def element(self, x: Expr) -> Expr:
        return complex_math.exp(x * _LN10) if x.dtype.is_complex else call("pow", const(10, x.dtype), x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.exp10(x) * _LN10,)


class ExpMinus1(Unary, name="expm1"):
    """e^x - 1, exact to the last digits for small x."""

    def wide(self, x: Array) -> Any:
        return np.expm1(x)

    def element(self, x: Expr) -> Expr:
        return call("expm1", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.exp(x),)


class Log(ComplexUnary, name="log"):
    """Natural logarithm: -inf for 0, NaN for negative x; the principal value for complex x."""

    domain = (0.1, 3.0)

    def wide(self, x: Array) -> Any:
        return np.log(x)

    def element(self, x: Expr) -> Expr:
        return complex_math.log(x) if x.dtype.is_complex else call("log", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct / x,)


class Log2(ComplexUnary, name="log2"):
    """Logarithm to base 2."""

    domain = (0.1, 3.0)

    def wide(self, x: Array) -> Any:
        return np.log2(x)

    def element(self, x: Expr) -> Expr:
        return complex_math.log(x) * (1 / _LN2) if x.dtype.is_complex else call("log2", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct / (x * _LN2),)


class Log10(ComplexUnary, name="log10"):
    """Logarithm to base 10."""

    domain = (0.1, 3.0)

    def wide(self, x: Array) -> Any:
        return np.log10(x)

    def element(self, x: Expr) -> Expr:
        return complex_math.log(x) * (1 / _LN10) if x.dtype.is_complex else call("log10", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct / (x * _LN10),)


class LogPlus1(Unary, name="log1p"):
    """log(1 + x), exact to the last digits for small x."""

    domain = (-0.8, 3.0)

    def wide(self, x: Array) -> Any:
        return np.log1p(x)

    def element(self, x: Expr) -> Expr:
        return call("log1p", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct / (x + 1),)
