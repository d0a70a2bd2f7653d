"""Whatever arrays a run is given, it agrees with NumPy or says what is wrong; it never crashes."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stitchwork as sw
from bad_input_programs import PROGRAMS, Array, Program
from risky_runs import RUNS
from stitchwork.errors import ExecutionError, FeedError

SIZES = st.sampled_from([0, 1, 1, 2, 3, 5, 7, 16, 17, 33])
FLOATS = [0.0, -0.0, 1.0, -1.5, 3e-41, 30.0, -30.0, np.nan, np.inf, -np.inf]
LAYOUTS = ("C", "F", "reversed", "strided", "offset", "read-only", "foreign", "misaligned", "broadcast", "list")


def contents(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], special: bool) -> Array:
    """Numbers of every kind; with `special`, infinities and NaN among floats, extremes among integers."""
    kind = np.dtype(dtype).kind
    if kind == "f":
        x = rng.uniform(-3, 3, shape)
        if special:
            x = np.where(rng.random(shape) < 0.2, rng.choice(FLOATS, shape), x)
        return x.astype(dtype)
    if not shape:
        return np.asarray(rng.integers(0, 6), dtype)
    limits = np.iinfo(dtype)
    low, high = (limits.min, limits.max) if special else (-20, 20)
    return np.where(rng.random(shape) < 0.5, rng.integers(-6, 6, shape), rng.integers(low, high, shape)).astype(dtype)


def laid_out(x: Array, layout: str) -> Any:
    """The same numbers in memory in another way ("broadcast": the first row everywhere)."""
    if layout == "F":
        return np.asfortranarray(x) if x.ndim else x
    if layout == "reversed":
        return np.flip(np.flip(x).copy()) if x.ndim else x
    if layout in ("strided", "offset"):
        step = 2 if layout == "strided" else 1
        big = np.full([n * step + 3 for n in x.shape], 99).astype(x.dtype)
        view = big[(..., *(slice(1, 1 + n * step, step) for n in x.shape))]
        view[...] = x
        return view
    if layout == "read-only":
        x.flags.writeable = False
        return x
    if layout == "foreign":
        return x.astype(x.dtype.newbyteorder())
    if layout == "misaligned":
        raw = np.zeros(x.nbytes + 1, np.uint8)
        view = raw[1:].view(x.dtype).reshape(x.shape) if x.size else x
        view[...] = x
        return view
    if layout == "broadcast":
        return np.broadcast_to(x[:1], x.shape) if x.ndim and len(x) else x
    return x


def make(program: Program, data: st.DataObject) -> list[Array]:
    """Inputs of drawn sizes, layouts and contents."""
    names = sorted({n for _, dims in program.inputs for n in dims.split()})
    sizes = {n: data.draw(SIZES, label=n) or int(n in program.positive) for n in names}
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), label="seed"))
    special = data.draw(st.booleans(), label="special")
    made: list[Array] = []
    for dtype, dims in program.inputs:
        x = contents(rng, dtype, tuple(sizes[n] for n in dims.split()), special)
        made.append(laid_out(x, data.draw(st.sampled_from(LAYOUTS), label="layout")))
    return made


@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=40)
@given(data=st.data())
def test_agrees_with_numpy(name: str, data: st.DataObject) -> None:
    program = PROGRAMS[name]
    inputs = make(program, data)
    copies = [np.array(x) for x in inputs]
    got = program.executable().run(inputs)
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        want = program.numpy(*(x.astype(x.dtype.newbyteorder("=")) for x in copies))
    for a, b in zip(got, want, strict=True):
        assert a.shape == np.shape(b)
        assert a.numpy().dtype == np.asarray(b).dtype
        np.testing.assert_allclose(a, b, rtol=program.tolerance, atol=program.tolerance, equal_nan=True)
    for x, copy in zip(inputs, copies, strict=True):
        np.testing.assert_array_equal(x, copy)  # inputs are never written
    assert program.executable().compile_count == 1


@pytest.mark.parametrize("names", [[r.__name__ for r in RUNS[:-1]], [RUNS[-1].__name__]], ids=["many", "past_2_31"])
def test_risky_runs(names: list[str]) -> None:
    """In a process of their own: a crash would be seen as one."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", Path(__file__).parent / "risky_runs.py", *names],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == names


def test_long_sums_stay_exact() -> None:
    """Millions of equal numbers: adding them one by one in f32 would stop at 2**24 times the first."""
    g = sw.Graph()
    x = g.placeholder((None, None))
    exe = g.compile([g.sum(x), g.mean(x), g.sum(x, 0), g.sum(x, 1)])
    for shape in ((1, 2**24), (2**21, 4), (2**10, 2**14)):
        data = np.full(shape, 0.1, np.float32)
        exact = np.float64(data[0, 0])
        total, mean, columns, rows = (r.numpy().astype(np.float64) for r in exe.run([data]))
        np.testing.assert_allclose(total, exact * data.size, rtol=5e-5)
        np.testing.assert_allclose(mean, exact, rtol=5e-5)
        np.testing.assert_allclose(columns, exact * shape[0], rtol=5e-5)
        np.testing.assert_allclose(rows, exact * shape[1], rtol=5e-5)


def test_a_refused_run_changes_nothing() -> None:
    """Variables keep what they held, and the executable works on."""
    g = sw.Graph()
    x, y = g.placeholder((None,), name="x"), g.placeholder((None,), name="y")
    v = g.variable(np.float32(1), name="v")
    exe = g.compile([x + y, g.assign(v, v + g.sum(x))])
    one, two = np.ones(3, np.float32), np.ones(2, np.float32)
    for feeds in ([one], [one, two], [one, one.astype(np.float64)], [one, None], [one, one[:, None]]):
        with pytest.raises(FeedError):
            exe.run(feeds)
        assert v.value == 1
    exe.run([one, one])
    assert v.value == 4


def test_an_endless_loop_changes_nothing() -> None:
    """A run that is ended by its iteration limit gives variables back what they held."""
    g = sw.Graph()
    x = g.placeholder((), name="x")
    v = g.variable(np.float32(1), name="v")
    with g.control_dependencies([g.assign(v, v + 1.0)]):
        y = g.while_loop(x + v, lambda a: (a > 0.0, a), lambda a: a * 1.0)
    exe = g.compile([y], options=sw.CompileOptions(iteration_limit=100))
    with pytest.raises(ExecutionError, match="a loop did not end"):
        exe.run([1.0])
    assert v.value == 1
    assert exe.run([-5.0])[0].item() == -3
    assert v.value == 2
