"""stitchwork.loops.math: accuracy in units in the last place, special values, and what is left after expanding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from loops import scalar_functions
from loops.evaluate import Array, evaluate
from stitchwork.ir import dtypes
from stitchwork.ir.dtypes import DType
from stitchwork.loops.expr import FUNCTIONS, Buffer, Call, Const, Expr, axes_for, call, walk
from stitchwork.loops.math import RULES, expand

BASIC = {
    *("add", "sub", "mul", "div", "neg", "abs", "min", "max", "fmin", "fmax", "floor", "ceil", "trunc", "rint", "sqrt"),
    *("fma", "and", "or", "xor", "not", "shl", "shr", "lt", "le", "gt", "ge", "eq", "ne", "select", "isnan"),
}
EXACT = ("round", "copysign", "isinf", "isfinite", "signbit", "rem", "mod", "floordiv")
INEXACT = [fn for fn in RULES if fn not in EXACT]
UNARY = [fn for fn in INEXACT if FUNCTIONS[fn] == 1]
LIMIT = {"f32": 2.0, "f64": 4.0}
# Where formulas change, and where results overflow, underflow or saturate.
EDGES = [0.5, 1, 2, 3, 4, 6, 8.66, 9.2, 10, 20, 28, 38, 88.7, 103.9, 709.7, 745, 1e5, 2**17, 2**28, 2**48, 2**52, 2**64]
EDGES += [0.5**0.5, 2**0.5, 0.25, 2**-12, 2**-26, np.log(2) / 2, *(np.pi / 4 * np.arange(1, 10)), 10, 100, 1000]


def samples(dtype: DType, per_exponent: int) -> Array:
    """Every exponent with random mantissas, steps of one unit around edges, and special numbers, of both signs."""
    rng = np.random.default_rng(1)
    mantissa = 23 if dtype is dtypes.float32 else 52
    integer = np.dtype(f"u{dtype.bits // 8}")
    exponents = np.repeat(np.arange(1 << (dtype.bits - 1 - mantissa), dtype=integer), per_exponent)
    bits = (exponents << integer.type(mantissa)) | rng.integers(0, 1 << mantissa, exponents.size, dtype=integer)
    edges = np.array(EDGES).astype(dtype.numpy).view(integer)
    near = (edges[:, None] + np.arange(-40, 41).astype(integer)).ravel()
    around = np.concatenate([rng.uniform(0, hi, 20 * per_exponent) for hi in (1, 2, 4, 8, 30, 100, 800, 1e5)])
    tiny = np.array(
        [0.0, np.finfo(dtype.numpy).smallest_subnormal, np.finfo(dtype.numpy).tiny, np.finfo(dtype.numpy).max]
    )
    x = np.concatenate(
        [bits.view(dtype.numpy), near.view(dtype.numpy), around.astype(dtype.numpy), tiny.astype(dtype.numpy)]
    )
    return np.concatenate([x, -x, np.array([np.inf, -np.inf, np.nan], dtype.numpy)])


def run(fn: str, *arrays: Array) -> Array:
    """A function by its expansion."""
    buffers = [Buffer(dtypes.as_dtype(a.dtype), a.shape) for a in arrays]
    out = axes_for(arrays[0].shape)
    e = expand(call(fn, *(b[out] for b in buffers)))
    return evaluate(e, out, dict(zip(buffers, arrays, strict=True)))


def errors(made: Array, exact: Array) -> Array:
    """Distance from `exact` (of a wider type) in units in the last place; infinite where a special value is wrong."""
    dtype = made.dtype
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype)
        special = ~np.isfinite(rounded) | ~np.isfinite(made) | (rounded == 0)
        same = (made == rounded) & (np.signbit(made) == np.signbit(rounded)) | (np.isnan(made) & np.isnan(rounded))
        unit = np.spacing(np.abs(np.where(special, 1, rounded)).astype(dtype))
        distance = np.abs(made.astype(exact.dtype) - exact) / unit
        # Next to overflow and to 0 a number stands for the infinity or zero beside it.
        largest = np.finfo(dtype).max
        beside = (np.abs(made) == largest) & (np.abs(exact) > largest) | np.isinf(made) & (np.abs(rounded) == largest)
        beside |= (rounded == 0) & (np.abs(made) == np.finfo(dtype).smallest_subnormal)
        distance = np.where(special, np.where(same, 0, np.where(beside, 1, np.inf)), distance)
    return distance.astype(np.float64)


def worst(made: Array, exact: Array, *arrays: Array) -> tuple[float, str]:
    """The largest error, and where it is."""
    distance = errors(made, exact)
    i = int(np.argmax(distance))
    return float(distance[i]), f"{distance[i]} ULP at {[float(a[i]) for a in arrays]}: {made[i]!r} for {exact[i]!r}"


def reference(fn: str, *arrays: Array) -> Array:
    """The function of float32 numbers in float64."""
    with np.errstate(all="ignore"):
        return scalar_functions.ROUNDED[fn](*(a.astype(np.float64) for a in arrays))


@pytest.mark.parametrize("fn", UNARY)
def test_float32(fn: str) -> None:
    x = samples(dtypes.float32, 200)
    distance, where = worst(run(fn, x), reference(fn, x), x)
    assert distance <= LIMIT["f32"], where


@pytest.mark.parametrize("fn", [fn for fn in UNARY if fn not in ("erf", "erfc")])
def test_float64(fn: str) -> None:
    x = samples(dtypes.float64, 8)
    with np.errstate(all="ignore"):
        exact = scalar_functions.ROUNDED[fn](x.astype(np.longdouble))
    distance, where = worst(run(fn, x), exact, x)
    assert distance <= LIMIT["f64"], where


@pytest.mark.parametrize("fn", ["erf", "erfc", "sin", "cos", "tan", "log10", "pow", "cbrt"])
def test_float64_against_many_digits(fn: str) -> None:
    rng = np.random.default_rng(2)
    spread = np.exp(rng.uniform(-700, 700, 150)) * rng.choice([-1, 1], 150)
    x = np.concatenate([rng.uniform(-6, 28, 600), rng.uniform(-1, 1, 300), spread])
    arrays = [x] if fn != "pow" else [np.abs(x), rng.uniform(-300, 300, x.size) / np.abs(np.log(np.abs(x)))]
    functions: dict[str, Callable[..., Any]] = {"pow": mp.power, "cbrt": lambda v: mp.sign(v) * mp.cbrt(abs(v))}
    function = functions.get(fn, getattr(mp, fn, None))
    assert function is not None
    if fn == "erfc":
        x = arrays[0] = np.clip(x, -40, 40)
    with mp.workprec(1400 if fn in ("sin", "cos", "tan") else 160):
        values = [function(*(mp.mpf(float(v)) for v in row)) for row in zip(*arrays, strict=True)]
        exact = np.array([np.longdouble(mp.nstr(v, 25)) if mp.im(v) == 0 else np.nan for v in values])
    distance, where = worst(run(fn, *arrays), exact, *arrays)
    assert distance <= LIMIT["f64"], where


@pytest.mark.parametrize("fn", ["sin", "cos", "tan"])
def test_arguments_next_to_a_multiple_of_half_pi(fn: str) -> None:
    """The float32 and float64 that come nearest to one (J.-M. Muller, Elementary Functions), and others."""
    single = np.array([16367173.0 * 2.0**72, 131071.9, *np.float32(np.pi / 2 * np.arange(1.0, 90000, 97))], np.float32)
    double = np.array([6381956970095103.0 * 2.0**797, 2.0**48 + 1, *(np.pi / 2 * 3.0 ** np.arange(60))])
    for x, limit in ((single, LIMIT["f32"]), (double, LIMIT["f64"])):
        with mp.workprec(1400):
            exact = np.array([np.longdouble(mp.nstr(getattr(mp, fn)(mp.mpf(float(v))), 25)) for v in x])
        distance, where = worst(run(fn, x), exact, x)
        assert distance <= limit, where


def pairs(dtype: DType, count: int) -> tuple[Array, Array]:
    """Arguments of two-argument functions: all of many special ones, and random ones of all sizes."""
    rng = np.random.default_rng(3)
    big, small = float(np.finfo(dtype.numpy).max), float(np.finfo(dtype.numpy).smallest_subnormal)
    one = float(np.nextafter(dtype.numpy.type(1), dtype.numpy.type(2)))
    special = np.array(
        [0, small, 0.25, 0.5, 1, one, 1.5, 2, 2.5, 3, 5, 1e5, 2**24 - 1, 2**24, 2**53 - 1, 2**60, big, np.inf]
    )
    special = np.concatenate([special, -special, [np.nan]])
    grid = np.meshgrid(special, special)
    everything = samples(dtype, 20 if dtype is dtypes.float32 else 4)
    mixed = [
        rng.choice(everything, count),
        np.abs(rng.choice(everything, count)),
        rng.uniform(-9, 9, count),
        rng.lognormal(0, 0.1, count),
    ]
    other = [
        rng.choice(everything, count),
        rng.uniform(-20, 20, count),
        rng.uniform(-9, 9, count),
        rng.uniform(-800, 800, count),
    ]
    with np.errstate(all="ignore"):
        x, y = (np.concatenate([g.ravel(), *m]).astype(dtype.numpy) for g, m in zip(grid, (mixed, other), strict=True))
    return x, y


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("fn", ["pow", "atan2"])
def test_two_arguments(fn: str, dtype: DType) -> None:
    x, y = pairs(dtype, 30000)
    wide = np.float64 if dtype is dtypes.float32 else np.longdouble
    with np.errstate(all="ignore"):
        exact = scalar_functions.ROUNDED[fn](x.astype(wide), y.astype(wide))
    distance, where = worst(run(fn, x, y), exact, x, y)
    assert distance <= LIMIT[dtype.name], where


@pytest.mark.parametrize("y", [0.0, 1.0, 2.0, 3.0, 4.0, -1.0, 0.5, 0.3, -2.0])
def test_pow_by_a_constant(y: float) -> None:
    x = samples(dtypes.float32, 20)
    buffer, out = Buffer(dtypes.float32, x.shape), axes_for(x.shape)
    e = expand(call("pow", buffer[out], y))
    assert (len(walk(e)) < 15) == (y not in (0.3, -2.0))
    made = evaluate(e, out, {buffer: x})
    y32 = float(np.float32(y))
    distance, where = worst(made, reference("pow", x, np.full_like(x, y32)), x)
    assert distance <= LIMIT["f32"], where


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("fn", [*EXACT, "nextafter"])
def test_exact_functions(fn: str, dtype: DType) -> None:
    if dtype.bits == 16:
        rng = np.random.default_rng(4)
        x, y = (rng.integers(0, 1 << 16, 200000).astype(np.uint16).view(dtype.numpy) for _ in range(2))
    else:
        x, y = pairs(dtype, 30000)
    if dtype is dtypes.float64 and fn in ("rem", "mod", "floordiv"):
        with np.errstate(all="ignore"):
            near = ~(np.isfinite(x) & (np.abs(x / y) >= 2.0**300) & (y != 0))
        x, y = x[near], y[near]
    arrays = [x, y][: FUNCTIONS[fn]]
    made = run(fn, *arrays)
    with np.errstate(all="ignore"):
        expected = scalar_functions.call(fn, arrays, dtype, dtypes.as_dtype(made.dtype))
        if fn == "floordiv" and dtype is dtypes.float32:  # NumPy's is sometimes off by one in float32
            expected = np.floor_divide(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    made, expected = made.astype(np.float64), expected.astype(np.float64)
    if fn == "floordiv":  # NumPy's own rounds differently beyond the whole numbers that the format has
        with np.errstate(all="ignore"):
            whole = ~(
                np.isfinite(expected)
                & (np.abs(expected) > 1 / np.float64(np.finfo(np.float32).eps if dtype.bits < 64 else 2**-50))
            )
        made, expected, arrays = made[whole], expected[whole], [a[whole] for a in arrays]
    same = ((made == expected) & (np.signbit(made) == np.signbit(expected))) | (np.isnan(made) & np.isnan(expected))
    bad = np.flatnonzero(~same)[:5]
    assert not bad.size, [(*(float(a[i]) for a in arrays), float(made[i]), float(expected[i])) for i in bad]


@pytest.mark.parametrize("fn", UNARY)
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_half_precision(fn: str, dtype: DType) -> None:
    x = np.arange(1 << 16).astype(np.uint16).view(dtype.numpy)
    with np.errstate(all="ignore"):
        made, expected = run(fn, x), reference(fn, x).astype(np.float32).astype(dtype.numpy)
    difference = np.abs(_ordinal(made) - _ordinal(expected))
    assert np.all((difference <= 1) | (np.isnan(made) & np.isnan(expected)))


def _ordinal(x: Array) -> Array:
    bits = x.view(np.int16).astype(np.int32)
    return np.where(bits < 0, -(bits & 0x7FFF), bits)


@pytest.mark.parametrize("dtype", dtypes.GROUPS["int"], ids=str)
def test_integer_powers(dtype: DType) -> None:
    rng = np.random.default_rng(5)
    low, high = int(dtypes.lowest(dtype)), int(dtypes.highest(dtype))
    wide = np.uint64 if low == 0 else np.int64
    pool = np.array([low, high, 0, 1, 2, 3, 5, 7, *([-1, -2, -3] if low else [])], wide)
    x, y = (
        np.concatenate([g.ravel(), rng.choice(pool, 50), rng.integers(low, high, 50, wide)])
        for g in np.meshgrid(pool, pool)
    )
    arrays = [x.astype(dtype.numpy), y.astype(dtype.numpy)]
    with np.errstate(all="ignore"):
        expected = scalar_functions.call("pow", arrays, dtype, dtype)
    np.testing.assert_array_equal(run("pow", *arrays), expected)
    buffer, out = Buffer(dtype, x.shape), axes_for(x.shape)
    cube = evaluate(expand(call("pow", buffer[out], 3)), out, {buffer: arrays[0]})
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(
            cube, scalar_functions.call("pow", [arrays[0], arrays[0] * 0 + arrays[0].dtype.type(3)], dtype, dtype)
        )


def test_exact_where_people_expect_it() -> None:
    for dtype in (np.float32, np.float64):
        powers = np.array([10.0**k for k in range(-5, 11)]).astype(dtype)
        assert run("log10", powers)[5:].tolist() == list(range(11))
        n = np.arange(-126, 127)
        assert np.array_equal(run("exp2", n.astype(dtype)), 2.0**n)
        assert np.array_equal(run("log2", (2.0**n).astype(dtype)), n)
        cubes = np.arange(1, 200)
        assert np.array_equal(run("cbrt", (cubes**3).astype(dtype)), cubes)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("fn", [*RULES, "nextafter"])
def test_only_basic_functions_are_left(fn: str, dtype: DType) -> None:
    arguments: list[Expr] = [Buffer(dtype, ())[()] for _ in range(FUNCTIONS[fn])]
    left = {x.fn for x in walk(expand(call(fn, *arguments))) if isinstance(x, Call)}
    assert left <= BASIC


def test_sharing_is_kept() -> None:
    x = Buffer(dtypes.float32, ())[()]
    both = expand(call("sin", x) + call("cos", x))
    apart = len(walk(expand(call("sin", x)))) + len(walk(expand(call("cos", x))))
    assert len(walk(both)) < 0.65 * apart
    y = call("exp", x)
    assert len(walk(expand(y * y))) == len(walk(expand(y))) + 1


def test_complex_and_integer_functions_stay() -> None:
    z = call("exp", Buffer(dtypes.complex64, ())[()])
    assert expand(z) is z
    k = Buffer(dtypes.int32, ())[()] % Const(3, dtypes.int32)
    assert expand(k) is k
