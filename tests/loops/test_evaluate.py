"""The evaluator itself: boundaries, reductions and statements against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from loops.evaluate import evaluate, run_nest
from loops.scalar_functions import call as scalar
from stitchwork.ir import dims, dtypes
from stitchwork.loops.expr import FUNCTIONS, Axis, Buffer, Const, axes_for, call, cast, reduce, total
from stitchwork.loops.nest import Builder

MODES = {
    "constant": {"constant_values": 7},
    "clamp": "edge",
    "reflect": "reflect",
    "symmetric": "symmetric",
    "periodic": "wrap",
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_boundaries_are_those_of_numpy_pad(mode: str, n: int) -> None:
    x = np.arange(1, n + 1, dtype=np.float32)
    buffer = Buffer(dtypes.float32, (n,))
    (i,) = axes_for((n + 12,))
    made = evaluate(buffer.at(i - 6, boundary=mode, fill=7), (i,), {buffer: x})
    how = MODES[mode]
    np.testing.assert_array_equal(made, np.pad(x, 6, **how) if isinstance(how, dict) else np.pad(x, 6, mode=how))


def test_antiperiodic_flips_once_per_wrap() -> None:
    buffer = Buffer(dtypes.float32, (2, 3))
    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    i, j = axes_for((6, 9))
    made = evaluate(buffer.at(i - 2, j - 3, boundary="antiperiodic"), (i, j), {buffer: x})
    np.testing.assert_array_equal(made, np.block([[x, -x, x], [-x, x, -x], [x, -x, x]]))


def test_reductions_share_axes_and_nest() -> None:
    n = dims.symbol("n")
    buffer = Buffer(dtypes.float64, (n, 4, 5))
    x = np.random.default_rng(0).normal(size=(3, 4, 5))
    i, k, m = Axis(n), Axis(4), Axis(5)
    inner = total(buffer[i, k, m], m)
    made = evaluate(reduce("max", inner * 2.0 + total(buffer[i, k, m], k, m), k), (i,), {buffer: x}, {"n": 3})
    np.testing.assert_allclose(made, (x.sum(2) * 2 + x.sum((1, 2))[:, None]).max(1))


def test_a_reduction_repeats_a_body_that_lacks_its_axis() -> None:
    (i,) = axes_for((3,))
    assert evaluate(total(i, Axis(4)), (i,), {}).tolist() == [0, 4, 8]


def test_argmax_skips_nan() -> None:
    buffer = Buffer(dtypes.float32, (4, 2, 2))
    i, j, k = axes_for((4, 2, 2))
    nan, inf = np.nan, np.inf
    x = np.array([[nan, 1, 3, 3], [nan] * 4, [nan, -inf, -inf, nan], [0, -1, -1, 0]], np.float32).reshape(4, 2, 2)
    assert evaluate(reduce("argmax", buffer[i, j, k], j, k), (i,), {buffer: x}).tolist() == [2, -1, 1, 0]
    assert evaluate(reduce("argmin", buffer[i, j, k], j, k), (i,), {buffer: x}).tolist() == [1, -1, 1, 1]
    assert evaluate(reduce("argmin", buffer[i, j, k], Axis(0)), (i, j, k), {buffer: x}).max() == -1


@pytest.mark.parametrize("dtype", dtypes.GROUPS["int"], ids=str)
def test_integer_arithmetic(dtype: dtypes.DType) -> None:
    rng = np.random.default_rng(0)
    bits = dtype.bits
    low = -(1 << (bits - 1)) if dtype.kind == "i" else 0
    high = low + (1 << bits) - 1
    a = [low, high, low, *(int(v) for v in rng.integers(low, high, 40, dtype=np.int64 if low else np.uint64))]
    b = [0, min(3, high), high, *(int(v) for v in rng.integers(low, high, 40, dtype=np.int64 if low else np.uint64))]
    wrap = lambda v: (v - low) % (1 << bits) + low  # noqa: E731
    truncated = lambda x, y: int(abs(x) // abs(y)) * (-1 if (x < 0) != (y < 0) else 1)  # noqa: E731
    expected = {
        "add": [wrap(x + y) for x, y in zip(a, b, strict=True)],
        "mul": [wrap(x * y) for x, y in zip(a, b, strict=True)],
        "div": [wrap(truncated(x, y)) if y else 0 for x, y in zip(a, b, strict=True)],
        "rem": [x - y * truncated(x, y) if y else 0 for x, y in zip(a, b, strict=True)],
        "floordiv": [wrap(x // y) if y else 0 for x, y in zip(a, b, strict=True)],
        "mod": [x % y if y else 0 for x, y in zip(a, b, strict=True)],
        "shl": [wrap(x << y) if 0 <= y < bits else 0 for x, y in zip(a, b, strict=True)],
        "shr": [x >> y if 0 <= y < bits else (-1 if x < 0 else 0) for x, y in zip(a, b, strict=True)],
        "pow": [wrap(pow(x, y)) if 0 <= y < 99 else None for x, y in zip(a, b, strict=True)],
        "clz": [wrap(bits - (x % (1 << bits)).bit_length()) for x in a],
        "popcount": [wrap((x % (1 << bits)).bit_count()) for x in a],
    }
    for fn, wanted in expected.items():
        args = [np.array(v, np.int64 if low else np.uint64).astype(dtype.numpy) for v in (a, b)][: FUNCTIONS[fn]]
        with np.errstate(all="ignore"):
            made = scalar(fn, args, dtype, dtype).astype(object)
        assert [int(m) for m, w in zip(made, wanted, strict=True) if w is not None] == [
            w for w in wanted if w is not None
        ], fn


@pytest.mark.parametrize(
    "dtype", [dtypes.float8_e4m3, dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64], ids=str
)
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_every_function_takes_floats(fn: str, dtype: dtypes.DType) -> None:
    if fn in ("complex", "select", "popcount", "clz", "and", "or", "xor", "not", "shl", "shr"):
        args = [Const(1, dtypes.int32)] * FUNCTIONS[fn]
        e = call(fn, *args) if fn not in ("complex", "select") else Const(0, dtype)
    else:
        e = call(fn, *[Const(0.5, dtype)] * FUNCTIONS[fn])
    assert evaluate(e, (), {}).shape == ()


def test_fma_rounds_once() -> None:
    for dtype in (dtypes.float32, dtypes.float64):
        a = np.array(1, dtype.numpy) + np.finfo(dtype.numpy).eps
        made = evaluate(
            call("fma", Const(float(a), dtype), Const(float(a), dtype), Const(-float(a * a), dtype)), (), {}
        )
        assert made == np.finfo(dtype.numpy).eps ** 2


def test_casts_wrap() -> None:
    assert evaluate(cast(Const(-7.9, dtypes.float32), dtypes.int4), (), {}) == -7
    assert evaluate(cast(Const(300, dtypes.int32), dtypes.uint8), (), {}) == 44
    assert evaluate(cast(Const(13, dtypes.int32), dtypes.int4), (), {}) == -3
    assert evaluate(cast(Const(2 + 1j, dtypes.complex64), dtypes.bfloat16), (), {}) == 2


def test_a_nest_sorts_rows() -> None:
    rows, columns = 4, 6
    x = np.random.default_rng(1).normal(size=(rows, columns)).astype(np.float32)
    source, target = Buffer(dtypes.float32, x.shape), Buffer(dtypes.float32, x.shape)
    count = Buffer(dtypes.int64, ())
    b = Builder()
    with b.loop(rows, kind="parallel") as i:
        row = b.array(dtypes.float32, (columns,))
        with b.loop(columns) as j:
            b.store(row, (j,), source[i, j])
            k = b.variable(j, dtypes.int64)
            going = b.variable(True, dtypes.bool_)
            with b.while_(going & (k > 0)):
                before, here = b.let(row[k - 1]), b.let(row[k])
                with b.when(before > here):
                    b.store(row, (k - 1,), here)
                    b.store(row, (k,), before)
                    b.store(count, (), 1, combine="add")
                with b.otherwise():
                    b.assign(going, False)
                b.assign(k, call("max", k - 1, 0))
        with b.loop(columns) as j:
            b.store(target, (i, j), row[j])
            b.store(target, (i, j + columns), 0.0, boundary="drop")
    y, swaps = np.zeros_like(x), np.array(0)
    run_nest(b.statements, {source: x, target: y, count: swaps})
    np.testing.assert_array_equal(y, np.sort(x, 1))
    assert swaps == sum(int(p > q) for r in x for n, p in enumerate(r) for q in r[n + 1 :])


def test_scratch_does_not_survive_an_iteration() -> None:
    out = Buffer(dtypes.float32, (2,))
    b = Builder()
    scratch = b.array(dtypes.float32, (1,))
    with b.loop(2, kind="parallel") as i:
        b.store(out, (i,), scratch[0])
        b.store(scratch, (0,), 1.0)
    y = np.zeros(2, np.float32)
    run_nest(b.statements, {out: y})
    assert np.isnan(y).all()


def test_an_index_outside_is_refused() -> None:
    buffer = Buffer(dtypes.float32, (3,))
    (i,) = axes_for((4,))
    with pytest.raises(AssertionError, match="outside"):
        evaluate(buffer[i], (i,), {buffer: np.zeros(3, np.float32)})
