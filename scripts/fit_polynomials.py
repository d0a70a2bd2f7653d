"""Fit the polynomials of stitchwork.loops.math and write them to coefficients.py (needs mpmath).

Each is a least-squares fit on Chebyshev nodes, which is nearly minimax, of the error relative to the function.
Coefficients are rounded to the format they are used in one at a time, from the lowest power, the rest refitted each
time. Three profiles: "single" (float32), "double" (float64), "medium" (float64 arithmetic for a float32 result).

    python scripts/fit_polynomials.py > src/stitchwork/loops/math/coefficients.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mpmath as mp
import numpy as np

mp.mp.dps = 70
Real = Any  # an mpmath number
Function = Callable[[Real], Real]


@dataclass(frozen=True)
class Fit:
    """A polynomial in x for `target` on [lo, hi], error weighted by `weight`; how many coefficients per profile."""

    name: str
    target: Function
    weight: Function
    lo: Real
    hi: Real
    counts: dict[str, int]
    about: str


def root(z: Real) -> Real:
    """sqrt, moved off 0, where the targets are limits."""
    return mp.sqrt(max(z, mp.mpf(10) ** -16))


def off_zero(x: Real) -> Real:
    """x, moved off 0, where the targets are limits."""
    return x if abs(x) > mp.mpf(10) ** -16 else mp.mpf(10) ** -16


def of_exp(r: Real) -> Real:
    r = off_zero(r)
    return (mp.expm1(r) - r) / r**2


def of_log(f: Real) -> Real:
    f = off_zero(f)
    return (mp.log1p(f) - f) / f**2


def of_atanh(z: Real) -> Real:
    s = max(root(z), mp.mpf(10) ** -8)
    return (mp.atanh(s) - s - s**3 / 3) / s**5


def odd(f: Function) -> tuple[Function, Function]:
    """Target and weight for f(x) = x + x**3 P(x**2), as functions of z = x**2."""
    return lambda z: (f(root(z)) / root(z) - 1) / root(z) ** 2, lambda z: root(z) ** 3 / f(root(z))


def of_erfcx(t: Real) -> Real:
    """(1 + 2 x) exp(x**2) erfc(x) with t = (x - 4) / (x + 4)."""
    x = 4 * (1 + t) / (1 - t)
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


def of_log_erfc(x: Real) -> Real:
    """-log(erfc(x)) / x - 1, so that erf(x) = -expm1(-(x + x P(x)))."""
    x = off_zero(x)
    return -mp.log(mp.erfc(x)) / x - 1


def fits() -> Iterator[Fit]:
    half_ln2 = mp.log(2) / 2 * mp.mpf("1.01")
    quarter = mp.mpf("0.83")
    yield Fit(
        "EXP",
        of_exp,
        lambda r: r**2 / mp.exp(r),
        -half_ln2,
        half_ln2,
        {"single": 5, "double": 10, "medium": 6},
        "exp(r) = 1 + r + r**2 P(r), |r| <= log(2)/2",
    )
    yield Fit(
        "EXPM1",
        of_exp,
        lambda r: off_zero(r) ** 2 / mp.expm1(off_zero(r)),
        -half_ln2,
        half_ln2,
        {"single": 5, "double": 11},
        "expm1(r) = r + r**2 P(r), |r| <= log(2)/2",
    )
    yield Fit(
        "LOG",
        of_log,
        lambda f: off_zero(f) ** 2 / mp.log1p(off_zero(f)),
        mp.sqrt(0.5) - 1,
        mp.sqrt(2) - 1,
        {"single": 9, "double": 21, "medium": 12},
        "log(1 + f) = f + f**2 P(f), sqrt(1/2) <= 1 + f <= sqrt(2)",
    )
    yield Fit(
        "ATANH",
        of_atanh,
        lambda z: root(z) ** 5 / mp.atanh(root(z)),
        mp.mpf(0),
        mp.mpf("0.0296"),
        {"double": 7},
        "atanh(s) = s + s**3 / 3 + s**5 P(s**2), |s| <= 0.172",
    )
    yield Fit(
        "SIN",
        *odd(mp.sin),
        mp.mpf(0),
        quarter**2,
        {"single": 3, "double": 6, "medium": 4},
        "sin(r) = r + r**3 P(r**2), |r| <= 0.83",
    )
    yield Fit(
        "COS",
        lambda z: (mp.cos(root(z)) - 1 + root(z) ** 2 / 2) / root(z) ** 4,
        lambda z: z**2 / mp.cos(root(z)),
        mp.mpf(0),
        quarter**2,
        {"single": 3, "double": 6},
        "cos(r) = 1 - r**2/2 + r**4 P(r**2), |r| <= 0.83",
    )
    yield Fit(
        "TAN",
        *odd(mp.tan),
        mp.mpf(0),
        quarter**2,
        {"double": 15, "medium": 8},
        "tan(r) = r + r**3 P(r**2), |r| <= 0.83",
    )
    yield Fit(
        "ASIN",
        *odd(mp.asin),
        mp.mpf(0),
        mp.mpf(0.25),
        {"single": 5, "double": 12},
        "asin(x) = x + x**3 P(x**2), |x| <= 1/2",
    )
    yield Fit(
        "ATAN", *odd(mp.atan), mp.mpf(0), mp.mpf(1), {"single": 9, "double": 19}, "atan(x) = x + x**3 P(x**2), |x| <= 1"
    )
    yield Fit(
        "TANH",
        *odd(mp.tanh),
        mp.mpf(0),
        mp.mpf(0.55) ** 2,
        {"single": 4, "double": 11},
        "tanh(x) = x + x**3 P(x**2), |x| <= 0.55",
    )
    yield Fit(
        "SINH", *odd(mp.sinh), mp.mpf(0), mp.mpf(1), {"double": 7, "medium": 4}, "sinh(x) = x + x**3 P(x**2), |x| <= 1"
    )
    yield Fit(
        "ERFCX",
        of_erfcx,
        lambda t: 1 / of_erfcx(t),
        mp.mpf(-1),
        mp.mpf("0.76"),
        {"double": 24, "medium": 14},
        "(1 + 2 x) exp(x**2) erfc(x) = P((x - 4) / (x + 4)), 0 <= x <= 29",
    )
    yield Fit(
        "ERF",
        of_log_erfc,
        lambda x: off_zero(x) * mp.erfc(x) / mp.erf(off_zero(x)),
        mp.mpf(0),
        mp.mpf(4),
        {"single": 9},
        "erf(x) = -expm1(-(x + x P(x))), 0 <= x <= 4",
    )
    yield Fit(
        "ERF_WIDE",
        of_log_erfc,
        lambda x: off_zero(x) * mp.erfc(x) / mp.erf(off_zero(x)),
        mp.mpf(0),
        mp.mpf(6),
        {"double": 28},
        "the same, 0 <= x <= 6",
    )
    yield Fit(
        "CBRT",
        mp.cbrt,
        lambda m: 1 / mp.cbrt(m),
        mp.sqrt(0.5),
        mp.sqrt(2),
        {"double": 4},
        "cbrt(m) = P(m), sqrt(1/2) <= m <= sqrt(2), roughly",
    )


def least_squares(f: Fit, power: int, count: int, fixed: list[Real]) -> list[Real]:
    """`count` coefficients of x**power and up, for target minus the fixed lower terms."""
    n = 4 * count + 8
    nodes = [(f.lo + f.hi) / 2 - (f.hi - f.lo) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * n)) for i in range(n)]
    rows = [[f.weight(x) * x ** (power + k) for k in range(count)] for x in nodes]
    values = [f.weight(x) * (f.target(x) - sum(c * x**k for k, c in enumerate(fixed))) for x in nodes]
    a = mp.matrix(rows)
    return list(mp.lu_solve(a.T * a, a.T * mp.matrix(values)))


def fit(f: Fit, profile: str, count: int) -> tuple[list[float], Real]:
    """Rounded coefficients, lowest power first, and the error they leave."""
    coefficients = least_squares(f, 0, count, [])
    fixed: list[Real] = []
    for k in range(count):
        number = float(coefficients[0])
        fixed.append(mp.mpf(float(np.float32(number)) if profile == "single" else number))
        if k + 1 < count:
            coefficients = least_squares(f, k + 1, count - k - 1, fixed)
    grid = [f.lo + (f.hi - f.lo) * i / 1000 for i in range(1001)]  # measured away from the nodes
    worst = max(abs((f.target(x) - sum(c * x**k for k, c in enumerate(fixed))) * f.weight(x)) for x in grid)
    return [float(c) for c in fixed], worst


def main() -> None:
    """Write the module."""
    print('"""Coefficients of minimax polynomials, lowest power first, by profile (scripts/fit_polynomials.py)."""')
    print("\n# fmt: off")
    for f in fits():
        print(f"\n# {f.about}\n{f.name}: dict[str, tuple[float, ...]] = {{")
        for profile, count in f.counts.items():
            coefficients, worst = fit(f, profile, count)
            print(f.name, profile, f"2**{float(mp.log(worst, 2)):.1f}", file=sys.stderr)
            print(f'    "{profile}": (  # 2**{float(mp.log(worst, 2)):.1f}')
            for c in coefficients:
                print(f"        {c!r},")
            print("    ),")
        print("}")


if __name__ == "__main__":
    main()
