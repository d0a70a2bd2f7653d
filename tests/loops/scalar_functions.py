"""What each function of `stitchwork.loops.expr.FUNCTIONS` means, in NumPy, for every dtype that it takes.

Transcendental functions of float32 are computed in float64 and rounded, so that they can serve as a reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from stitchwork.ir import dtypes
from stitchwork.ir.dtypes import DType

Array = npt.NDArray[Any]

COMPARISONS: dict[str, Any] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
TESTS = ("isnan", "isinf", "isfinite", "signbit")


def call(fn: str, args: list[Array], dtype: DType, result: DType) -> Array:
    """A function of FUNCTIONS applied elementwise to arrays of `dtype` (that of the last argument)."""
    if fn == "select":
        return np.where(args[0], args[1], args[2])
    if fn == "complex":
        real, imag = np.broadcast_arrays(*args)
        made = np.empty(real.shape, result.numpy)
        made.real, made.imag = real, imag
        return made
    if fn in COMPARISONS:
        return np.asarray(COMPARISONS[fn](*(widen(a, dtype) for a in args)), np.bool_)
    if dtype.kind == "b":
        return np.asarray(_of_bool(fn, args)).astype(result.numpy)
    if dtype.is_integer:
        return narrow(_of_integer(fn, [widen(a, dtype) for a in args], dtype), result)
    if dtype.is_complex:
        return np.asarray(_of_complex(fn, args)).astype(result.numpy)
    if fn == "nextafter":
        return np.nextafter(*args)
    return narrow(_of_float(fn, [widen(a, dtype) for a in args]), result)


def _multiply_add(a: Array, b: Array, c: Array) -> Any:
    return a * b + c


def _reciprocal_root(a: Array) -> Any:
    return 1 / np.sqrt(a)


def _sign_of_real(a: Array) -> Any:
    return np.signbit(np.real(a))


def widen(a: Array, dtype: DType) -> Array:
    """4-bit integers as 8-bit ones, floats narrower than 32 bits as float32: NumPy computes on these."""
    if dtype.is_integer and dtype.bits == 4:
        return a.astype(np.int8 if dtype.kind == "i" else np.uint8)
    return a.astype(np.float32) if dtype.is_float and dtype.bits < 32 else a


def narrow(a: Any, dtype: DType) -> Array:
    """Back to `dtype`; integers wrap."""
    a = np.asarray(a)
    if dtype.is_integer and dtype.bits == 4:
        low = a.astype(np.int64) & 15
        return (low if dtype.kind == "u" else (low ^ 8) - 8).astype(np.int8).astype(dtype.numpy)
    return a.astype(dtype.numpy)


# --- bool ---------------------------------------------------------------------------------------------------------
_BOOL: dict[str, Callable[..., Any]] = {
    "add": np.logical_or,
    "or": np.logical_or,
    "max": np.logical_or,
    "fmax": np.logical_or,
    "mul": np.logical_and,
    "and": np.logical_and,
    "min": np.logical_and,
    "fmin": np.logical_and,
    "sub": np.logical_xor,
    "xor": np.logical_xor,
    "not": np.logical_not,
}


def _of_bool(fn: str, args: list[Array]) -> Any:
    if fn in _BOOL:
        return _BOOL[fn](*args)
    if fn in TESTS:
        return np.zeros_like(args[0])
    return _of_integer(fn, [a.astype(np.uint8) for a in args], dtypes.uint8)


# --- integers -----------------------------------------------------------------------------------------------------
def _of_integer(fn: str, args: list[Array], dtype: DType) -> Any:
    if fn in _INTEGER:
        return _INTEGER[fn](*args)
    if fn in TESTS:
        return args[0] < 0 if fn == "signbit" else np.full(args[0].shape, fn == "isfinite")
    if fn in ("popcount", "clz"):
        return _count_bits(fn, args[0], dtype)
    if fn in ("shl", "shr"):
        return _shift(fn, args[0], args[1], dtype)
    if fn in ("floor", "ceil", "trunc", "rint", "round", "real", "conj"):
        return args[0]
    if fn == "imag":
        return np.zeros_like(args[0])
    raise TypeError(f"{fn} of {dtype}")


def _truncated_quotient(a: Array, b: Array) -> Any:
    q = np.floor_divide(a, b)
    inexact = np.asarray(a != q * b) & (b != 0)
    return np.where(inexact & ((a < 0) != (b < 0)), q + np.ones((), q.dtype), q)


def _count_bits(fn: str, a: Array, dtype: DType) -> Any:
    wide = a.astype(np.int64).view(np.uint64) & np.uint64((1 << dtype.bits) - 1)
    if fn == "popcount":
        return np.bitwise_count(wide)
    length = np.zeros(wide.shape, np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        big = wide >> np.uint64(step) != 0
        wide = np.where(big, wide >> np.uint64(step), wide)
        length += step * big
    return dtype.bits - length - (wide != 0)


def _shift(fn: str, a: Array, n: Array, dtype: DType) -> Any:
    outside = (n < 0) | (n >= dtype.bits)
    if fn == "shl":
        return np.where(outside, np.zeros_like(a), np.left_shift(a, np.where(outside, 0, n)))
    return (
        np.right_shift(a, np.where(outside, np.int8(dtype.bits - 1), n).astype(a.dtype))
        if dtype.kind == "i"
        else (np.where(outside, np.zeros_like(a), np.right_shift(a, np.where(outside, 0, n).astype(a.dtype))))
    )


def _integer_power(base: Array, exponent: Array) -> Any:
    """Repeated squaring; a negative exponent gives 0 unless the base is 1 or -1."""
    base, exponent = np.broadcast_arrays(base, exponent)
    result, square, left = np.ones_like(base), base.copy(), np.where(exponent < 0, 0, exponent)
    while np.any(left != 0):
        result = np.where(left & 1, result * square, result).astype(base.dtype)
        square, left = square * square, left >> 1
    odd = (exponent & 1) != 0
    reciprocal = np.where(base == 1, 1, np.where((base == -1) & odd, -1, np.where(base == -1, 1, 0)))
    return np.where(exponent < 0, reciprocal.astype(base.dtype), result)


_INTEGER: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _truncated_quotient,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "rem": np.fmod,
    "pow": _integer_power,
    "max": np.maximum,
    "min": np.minimum,
    "fmax": np.maximum,
    "fmin": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "neg": np.negative,
    "abs": np.abs,
    "fma": _multiply_add,
}


# --- complex ------------------------------------------------------------------------------------------------------
def _of_complex(fn: str, args: list[Array]) -> Any:
    if fn in _COMPLEX:
        return _COMPLEX[fn](*args)
    if fn in ("sub", "neg", "pow") or fn in _EXACT or fn in ROUNDED:
        return (_EXACT.get(fn) or ROUNDED[fn])(*args)
    raise TypeError(f"{fn} of complex numbers")


_COMPLEX: dict[str, Callable[..., Any]] = {
    "real": np.real,
    "imag": np.imag,
    "conj": np.conj,
    "fma": _multiply_add,
    "signbit": _sign_of_real,
    "rsqrt": _reciprocal_root,
}


# --- floats -------------------------------------------------------------------------------------------------------
def _of_float(fn: str, args: list[Array]) -> Any:
    if fn in _EXACT:
        return _EXACT[fn](*args)
    if args[0].dtype == np.float32:
        return ROUNDED[fn](*(a.astype(np.float64) for a in args)).astype(np.float32)
    return ROUNDED[fn](*args)


def _round_half_away(a: Array) -> Any:
    whole = np.trunc(a)
    return np.copysign(whole + np.copysign(np.abs(a - whole) >= 0.5, a), a).astype(a.dtype)


def _fma(a: Array, b: Array, c: Array) -> Any:
    """a * b + c rounded once: float32 through float64, float64 by the error terms of the product and the sum."""
    if a.dtype == np.float32:
        return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)
    (a_part, a_power), (b_part, b_power) = np.frexp(a), np.frexp(b)
    power = a_power.astype(np.int32) + b_power
    c_part = np.ldexp(c, -power)
    product = a_part * b_part
    (a_high, a_low), (b_high, b_low) = _halves(a_part), _halves(b_part)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    total = product + c_part
    part = total - product
    rest = (product - (total - part)) + (c_part - part)
    better = np.ldexp(total + (error + rest), power)
    usable = np.isfinite(better) & (np.abs(c_part) < 1e200) & (product != 0) & (better != 0)
    return np.where(usable, better, a * b + c)


def _halves(a: Array) -> tuple[Array, Array]:
    big = a * 134217729.0  # 2**27 + 1: Veltkamp's splitting
    high = big - (big - a)
    return high, a - high


_EXACT: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "rem": np.fmod,
    "max": np.maximum,
    "min": np.minimum,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "copysign": np.copysign,
    "nextafter": np.nextafter,
    "neg": np.negative,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "round": _round_half_away,
    "sqrt": np.sqrt,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "signbit": np.signbit,
    "real": np.positive,
    "conj": np.positive,
    "imag": np.zeros_like,
    "fma": _fma,
}

ROUNDED: dict[str, Callable[..., Any]] = {
    "pow": np.power,
    "atan2": np.arctan2,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": special.erf,
    "erfc": special.erfc,
    "cbrt": np.cbrt,
    "rsqrt": _reciprocal_root,
}
