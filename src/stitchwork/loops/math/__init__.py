"""Transcendental functions as expressions of the loop IR, so that they vectorise on every CPU.

`expand` leaves add sub mul div neg abs min max fmin fmax floor ceil trunc rint sqrt fma, logic, shifts, comparisons,
select, isnan, Cast and Bitcast, whatever is complex, and the integer functions div floordiv mod rem popcount clz.

Largest errors, in units in the last place (ULP), over all exponents: tests/loops/test_math.py asserts 2 for float32
and 4 for float64. sin, cos and tan hold that for every finite argument. Narrower floats are computed in float32 and
rounded once more. Signed zeros, infinities and NaN give what C99 says; subnormal numbers are not flushed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stitchwork.ir.dtypes import DType, float64
from stitchwork.loops.expr import Call, Expr, cast, children, rebuild
from stitchwork.loops.expr import RareSelect as RareSelect
from stitchwork.loops.math import error_function, exponential, logarithm, power, rounding, trigonometric
from stitchwork.loops.math._profile import DOUBLE, MEDIUM, SINGLE, Profile


@dataclass(frozen=True)
class Rule:
    """How a function is built from its arguments and a profile; `wide` ones do float32 in float64."""

    build: Callable[..., Expr]
    wide: bool = False


RULES: dict[str, Rule] = {
    "exp": Rule(exponential.exp),
    "exp2": Rule(exponential.exp2),
    "expm1": Rule(exponential.expm1),
    "tanh": Rule(exponential.tanh),
    "sinh": Rule(exponential.sinh, wide=True),
    "cosh": Rule(exponential.cosh, wide=True),
    "log": Rule(logarithm.log),
    "log2": Rule(logarithm.log2),
    "log10": Rule(logarithm.log10),
    "log1p": Rule(logarithm.log1p),
    "asinh": Rule(logarithm.asinh, wide=True),
    "acosh": Rule(logarithm.acosh, wide=True),
    "atanh": Rule(logarithm.atanh, wide=True),
    "sin": Rule(trigonometric.sin),
    "cos": Rule(trigonometric.cos),
    "tan": Rule(trigonometric.tan, wide=True),
    "asin": Rule(trigonometric.asin),
    "acos": Rule(trigonometric.acos),
    "atan": Rule(trigonometric.atan),
    "atan2": Rule(trigonometric.atan2),
    "erf": Rule(error_function.erf),
    "erfc": Rule(error_function.erfc, wide=True),
    "pow": Rule(power.power, wide=True),
    "cbrt": Rule(power.cbrt, wide=True),
    "rsqrt": Rule(power.rsqrt),
    "round": Rule(rounding.round_half_away),
    "copysign": Rule(rounding.copysign),
    "isinf": Rule(rounding.isinf),
    "isfinite": Rule(rounding.isfinite),
    "signbit": Rule(rounding.signbit),
    "rem": Rule(rounding.remainder, wide=True),
    "mod": Rule(rounding.modulo, wide=True),
    "floordiv": Rule(rounding.floor_divide, wide=True),
}


def expand(e: Expr, memo: dict[Expr, Expr] | None = None) -> Expr:
    """`e` with every function of RULES (and nextafter, and pow of integers) written out; sharing is kept.

    `memo`, given to several calls, keeps it between their expressions too.
    """
    memo = {} if memo is None else memo

    def go(x: Expr) -> Expr:
        found = memo.get(x)
        if found is None:
            found = rebuild(x, tuple(map(go, children(x))))
            if isinstance(found, Call):
                found = _expand_call(found)
            memo[x] = found
        return found

    return go(e)


def _expand_call(e: Call) -> Expr:
    dtype = e.args[0].dtype
    if dtype.is_integer and e.fn == "pow":
        return power.integer_power(*e.args)
    if not dtype.is_float:
        return e
    if e.fn == "nextafter":
        return rounding.nextafter(*e.args)
    rule = RULES.get(e.fn)
    if rule is None:
        return e
    made = _simple_power(e) if e.fn == "pow" else None
    if made is None:
        profile = _profile(rule.wide, dtype)
        made = rule.build(*(cast(a, profile.dtype) for a in e.args), profile)
    return made if made.dtype is e.dtype else cast(made, e.dtype)


def _simple_power(e: Call) -> Expr | None:
    base, exponent = e.args
    profile = _profile(False, base.dtype)
    return power.simple_power(cast(base, profile.dtype), exponent, profile)


def _profile(wide: bool, dtype: DType) -> Profile:
    if dtype is float64:
        return DOUBLE
    return MEDIUM if wide else SINGLE
