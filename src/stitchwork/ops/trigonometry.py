"""Trigonometric and hyperbolic functions and their inverses. Angles are in radians."""

from __future__ import annotations

from typing import Any

import numpy as np

from stitchwork.ir.graph import Value
from stitchwork.loops.expr import Expr, call
from stitchwork.ops import _complex_math as complex_math
from stitchwork.ops._build import F
from stitchwork.ops._op import Array
from stitchwork.ops._pointwise import ComplexUnary, Unary


class Sine(ComplexUnary, name="sin"):
    """Sine; NaN for infinite x."""

    def wide(self, x: Array) -> Any:
        return np.sin(x)

    def element(self, x: Expr) -> Expr:
        return complex_math.sin(x) if x.dtype.is_complex else call("sin", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.cos(x),)


class Cosine(ComplexUnary, name="cos"):
    """Cosine; NaN for infinite x."""

    def wide(self, x: Array) -> Any:
        return np.cos(x)

    def element(self, x: Expr) -> Expr:
        return complex_math.cos(x) if x.dtype.is_complex else call("cos", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (-ct * F.sin(x),)


class Tangent(ComplexUnary, name="tan"):
    """Tangent; NaN for infinite x."""

    domain = (-1.2, 1.2)

    def wide(self, x: Array) -> Any:
        return np.tan(x)

    def element(self, x: Expr) -> Expr:
        return complex_math.tan(x) if x.dtype.is_complex else call("tan", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * (F.square(F.tan(x)) + 1),)


class HyperbolicSine(ComplexUnary, name="sinh"):
    """Hyperbolic sine."""

    def wide(self, x: Array) -> Any:
        return np.sinh(x)

    def element(self, x: Expr) -> Expr:
        return complex_math.sinh(x) if x.dtype.is_complex else call("sinh", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.cosh(x),)


class HyperbolicCosine(ComplexUnary, name="cosh"):
    """Hyperbolic cosine."""

    def wide(self, x: Array) -> Any:
        return np.cosh(x)

    def element(self, x: Expr) -> Expr:
        return complex_math.cosh(x) if x.dtype.is_complex else call("cosh", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.sinh(x),)


class HyperbolicTangent(ComplexUnary, name="tanh"):
    """Hyperbolic tangent; -0.0 for -0.0."""

    def wide(self, x: Array) -> Any:
        return np.tanh(x)

    def element(self, x: Expr) -> Expr:
        return complex_math.tanh(x) if x.dtype.is_complex else call("tanh", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * (1 - F.square(F.tanh(x))),)


class ArcSine(Unary, name="asin", aliases=("arcsin",)):
    """Inverse sine in [-pi/2, pi/2]; NaN outside [-1, 1]."""

    domain = (-0.9, 0.9)

    def wide(self, x: Array) -> Any:
        return np.arcsin(x)

    def element(self, x: Expr) -> Expr:
        return call("asin", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.rsqrt(1 - F.square(x)),)


class ArcCosine(Unary, name="acos", aliases=("arccos",)):
    """Inverse cosine in [0, pi]; NaN outside [-1, 1]."""

    domain = (-0.9, 0.9)

    def wide(self, x: Array) -> Any:
        return np.arccos(x)

    def element(self, x: Expr) -> Expr:
        return call("acos", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (-ct * F.rsqrt(1 - F.square(x)),)


class ArcTangent(Unary, name="atan", aliases=("arctan",)):
    """Inverse tangent in [-pi/2, pi/2]."""

    def wide(self, x: Array) -> Any:
        return np.arctan(x)

    def element(self, x: Expr) -> Expr:
        return call("atan", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct / (F.square(x) + 1),)


class AreaSine(Unary, name="asinh", aliases=("arcsinh",)):
    """Inverse hyperbolic sine."""

    def wide(self, x: Array) -> Any:
        return np.arcsinh(x)

    def element(self, x: Expr) -> Expr:
        return call("asinh", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.rsqrt(F.square(x) + 1),)


class AreaCosine(Unary, name="acosh", aliases=("arccosh",)):
    """Inverse hyperbolic cosine, >= 0; NaN below 1."""

    domain = (1.2, 3.0)

    def wide(self, x: Array) -> Any:
        return np.arccosh(x)

    def element(self, x: Expr) -> Expr:
        return call("acosh", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.rsqrt(F.square(x) - 1),)


class AreaTangent(Unary, name="atanh", aliases=("arctanh",)):
    """Inverse hyperbolic tangent; infinite at -1 and 1, NaN outside."""

    domain = (-0.8, 0.8)

    def wide(self, x: Array) -> Any:
        return np.arctanh(x)

    def element(self, x: Expr) -> Expr:
        return call("atanh", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct / (1 - F.square(x)),)
