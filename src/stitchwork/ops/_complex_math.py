"""Functions of complex numbers as expressions of their real parts, so that a code generator needs arithmetic only."""

from __future__ import annotations

from stitchwork.loops.expr import Expr, call, complex_of, const, where


def parts(z: Expr) -> tuple[Expr, Expr]:
    """Real and imaginary part."""
    return call("real", z), call("imag", z)


def exp(z: Expr) -> Expr:
    """e to the power z: e^a (cos b + i sin b); real where b is 0, even if e^a overflows."""
    a, b = parts(z)
    radius = call("exp", a)
    return complex_of(radius * call("cos", b), where(b.eq(0), b, radius * call("sin", b)), z.dtype)


def log(z: Expr) -> Expr:
    """Principal natural logarithm."""
    a, b = parts(z)
    return complex_of(call("log", call("abs", z)), call("atan2", b, a), z.dtype)


def sqrt(z: Expr) -> Expr:
    """Principal square root, without cancellation: the larger part first, the other from it."""
    a, b = parts(z)
    large = call("sqrt", (call("abs", z) + call("abs", a)) * 0.5)
    small = where(large.eq(0), b, call("abs", b) / (large * 2))
    right = a >= 0
    real, imag = where(right, large, small), where(right, small, large)
    return complex_of(real, call("copysign", imag, b), z.dtype)


def power(base: Expr, exponent: Expr) -> Expr:
    """Principal value of base ** exponent; 0 ** 0 is 1, other powers of 0 are 0."""
    zero, one = const(0, base.dtype), const(1, base.dtype)
    at_zero = where(exponent.eq(zero), one, zero)
    return where(base.eq(zero), at_zero, exp(exponent * log(where(base.eq(zero), one, base))))


def sin(z: Expr) -> Expr:
    """sin a cosh b + i cos a sinh b."""
    a, b = parts(z)
    return complex_of(call("sin", a) * call("cosh", b), call("cos", a) * call("sinh", b), z.dtype)


def cos(z: Expr) -> Expr:
    """cos a cosh b - i sin a sinh b."""
    a, b = parts(z)
    return complex_of(call("cos", a) * call("cosh", b), -(call("sin", a) * call("sinh", b)), z.dtype)


def sinh(z: Expr) -> Expr:
    """sinh a cos b + i cosh a sin b."""
    a, b = parts(z)
    return complex_of(call("sinh", a) * call("cos", b), call("cosh", a) * call("sin", b), z.dtype)


def cosh(z: Expr) -> Expr:
    """cosh a cos b + i sinh a sin b."""
    a, b = parts(z)
    return complex_of(call("cosh", a) * call("cos", b), call("sinh", a) * call("sin", b), z.dtype)


def tanh(z: Expr) -> Expr:
    """(sinh 2a + i sin 2b) / (cosh 2a + cos 2b)."""
    a, b = parts(z)
    real, imag = _tanh(a, b)
    return complex_of(real, imag, z.dtype)


def tan(z: Expr) -> Expr:
    """(sin 2a + i sinh 2b) / (cos 2a + cosh 2b)."""
    a, b = parts(z)
    imag, real = _tanh(b, a)
    return complex_of(real, imag, z.dtype)


def _tanh(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Parts of tanh(a + ib); from |a| = 20 on it is the sign of a to all digits of float64."""
    far = call("abs", a) > 20
    near = where(far, const(0, a.dtype), a) * 2
    below = call("cosh", near) + call("cos", b * 2)
    real = where(far, call("copysign", const(1, a.dtype), a), call("sinh", near) / below)
    return real, where(far, const(0, a.dtype), call("sin", b * 2) / below)
