"""Graphs: what is built, what a compilation takes from it, and what `Graph.run` keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stitchwork as sw

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_the_shortest_program() -> None:
    g = sw.Graph()
    x = g.placeholder(("n", 5), name="x")
    y = (x + 1.0) * 2
    exe = g.compile([y])
    for n in (0, 1, 4):
        (got,) = exe.run([np.ones((n, 5), np.float32)])
        np.testing.assert_array_equal(got.numpy(), np.full((n, 5), 4, np.float32))


def test_only_what_targets_need_is_compiled() -> None:
    g = sw.Graph()
    x, y, z = (g.placeholder((2, 3), name=n) for n in "xyz")
    a, b = x + y, y * z
    g.exp(z)
    exe = g.compile([a])
    assert exe.inputs == [x, y]
    assert g.compile([b]).inputs == [y, z]
    np.testing.assert_array_equal(exe.run([X, X])[0], X + X)
    assert g.compile([a], feeds=[z, y, x]).inputs == [z, y, x]  # more than needed, and in this order
    np.testing.assert_array_equal(g.compile([b - x], feeds=[z, y, x]).run([X, X + 1, X + 2])[0], (X + 1) * X - (X + 2))


@pytest.mark.parametrize("value", [3, 2.5, True, [[1, 2], [3, 4]], np.float64(2), np.arange(3, dtype=np.int8), 1 + 2j])
def test_constants(value: Any) -> None:
    g = sw.Graph()
    (got,) = g.compile([g.constant(value)]).run([])
    np.testing.assert_array_equal(got, value)


def test_constants_of_a_dtype_and_shape() -> None:
    g = sw.Graph()
    results = [g.constant(1, sw.float16), g.constant(7, shape=(2, 3)), g.constant([1, 2], sw.int64, (3, 2))]
    half, filled, rows = (r.numpy() for r in g.compile(results).run([]))
    assert half.dtype == np.float16 and half.shape == ()
    np.testing.assert_array_equal(filled, np.full((2, 3), 7, np.int32))
    np.testing.assert_array_equal(rows, np.array([[1, 2]] * 3, np.int64))


def test_targets_of_every_kind() -> None:
    """A placeholder, a constant, a variable, one tensor twice, and a reshape that shares memory."""
    g = sw.Graph()
    x = g.placeholder((2, 3), name="x")
    v = g.variable(X, name="v")
    y = x * 2
    exe = g.compile([x, g.constant(5), v, y, y, g.reshape(x, (6,)), g.reshape(y, (3, 2))])
    results = [r.numpy() for r in exe.run([X])]
    for got, want in zip(results, [X, np.int32(5), X, X * 2, X * 2, X.reshape(6), (X * 2).reshape(3, 2)], strict=True):
        np.testing.assert_array_equal(got, want)
    for k, r in enumerate(results):  # all of them memory of their own
        assert not any(np.shares_memory(r, other) for other in (*results[k + 1 :], X, v.value))
    assert g.compile(y).run([X])[0].shape == (2, 3)  # one target need not be in a list
    assert g.compile([]).run([]) == []


def test_operators_follow_python_and_numpy() -> None:
    g = sw.Graph()
    x, i = g.placeholder((2, 3), name="x"), g.placeholder((3,), sw.int32, name="i")
    n = np.array([7, -7, 3], np.int32)

    def floats(x: Any, turned: Any) -> list[Any]:
        return [x + 1, 1 - x, x * X, X * x, 2 / (x + 1), x**2, -x, abs(x - 3), x < 2, x >= X[::-1], x @ turned]

    def integers(i: Any) -> list[Any]:
        return [i // 2, i % 4, i & 5, i | 8, i ^ 3, ~i, i << 1, i >> 1, 100 // (i * 0 + 7), i[::-1], i[None, 1]]

    exe = g.compile([*floats(x, g.permute(x, (1, 0))), *integers(i)])
    for got, want in zip(exe.run([X, n]), [*floats(X, X.T), *integers(n)], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
        assert got.numpy().dtype == np.asarray(want).dtype


def test_symbols_that_the_user_named_are_one_size() -> None:
    g = sw.Graph()
    x, y = g.placeholder(("n", "m"), name="x"), g.placeholder(("m", "n"), name="y")
    z = x @ y
    assert [str(n) for n in z.shape] == ["n", "n"]
    assert not g.module.guards  # nothing to check at run time but the names themselves
    np.testing.assert_array_equal(g.run({x: X, y: X.T}, targets=[z])[0], X @ X.T)


def test_run_compiles_once_per_targets() -> None:
    g = sw.Graph()
    x = g.placeholder((None, 3), name="x")
    y, z = x + 1, x * 2
    compiled: list[Any] = []
    original = g.compile
    g.compile = lambda *a, **k: compiled.append(a) or original(*a, **k)  # type: ignore[method-assign]
    for n in (1, 2, 5):
        data = np.ones((n, 3), np.float32)
        np.testing.assert_array_equal(g.run({x: data}, targets=[y])[0], data + 1)
        np.testing.assert_array_equal(g.run([data], targets=z)[0], data * 2)
    assert len(compiled) == 2
    for k in range(40):  # the cache is bounded, and forgetting is no mistake
        g.run({"x": X}, targets=[x + float(k)])
    np.testing.assert_array_equal(g.run({"x": X}, targets=[y])[0], X + 1)


def test_variables_are_shared_by_executables_and_outlive_runs() -> None:
    g = sw.Graph()
    v = g.variable(np.zeros(3, np.float32), name="v")
    x = g.placeholder((3,), name="x")
    write, read = g.compile([g.assign(v, v + x)]), g.compile([v * 2])
    for k in range(1, 4):
        write.run([np.ones(3, np.float32)])
        np.testing.assert_array_equal(read.run([])[0], np.full(3, 2 * k))
    v.value = [7, 8, 9]
    np.testing.assert_array_equal(read.run([])[0], [14, 16, 18])
    copy = v.value
    copy[:] = 0
    np.testing.assert_array_equal(v.value, [7, 8, 9])
    scalar = g.variable(1.5, sw.float64)
    assert scalar.value == 1.5 and scalar.dtype is sw.float64 and scalar.name == "variable_1"


def test_building_goes_on_after_compiling_and_after_mistakes() -> None:
    g = sw.Graph()
    x = g.placeholder((2, 3), name="x")
    first = g.compile([x + 1])
    with pytest.raises(sw.errors.OpError):
        x + np.ones(4, np.float32)
    with pytest.raises(sw.errors.GraphError):
        g.for_loop(3, x, lambda i, v: [v, v])
    with pytest.raises(RuntimeError, match="mine"):
        g.if_else(True, lambda: _raise(), lambda: x)
    second = g.compile([x + 2])  # the block that failed is closed, so this goes into the body
    np.testing.assert_array_equal(first.run([X])[0], X + 1)
    np.testing.assert_array_equal(second.run([X])[0], X + 2)


def _raise() -> Any:
    raise RuntimeError("mine")
