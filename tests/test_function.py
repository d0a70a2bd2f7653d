"""Functions of arrays: one program per dtypes, ranks, nesting and static values; the same results as NumPy's."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import stitchwork as sw
from stitchwork.errors import FeedError, GraphError, OpError


class Pair(NamedTuple):
    first: Any
    second: Any


def test_one_program_for_all_sizes(rng: np.random.Generator) -> None:
    @sw.function
    def norm(a: Any) -> Any:
        spread = sw.standard_deviation(a, axis=-1, keepdims=True)
        return (a - sw.mean(a, axis=-1, keepdims=True)) / (spread + 1e-3)

    for shape in ((4, 7), (1, 7), (3, 1), (33, 16), (0, 5)):
        x = rng.uniform(-1, 1, shape).astype(np.float32)
        want = (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-3)
        got = norm(x)
        assert isinstance(got, sw.TensorData)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert norm.compile_count == 1
    norm(np.ones(3, np.float32))
    norm(np.ones((2, 3), np.float64))
    norm(np.ones((5, 4), np.float64))
    assert norm.compile_count == 3


@pytest.mark.parametrize(
    "shapes",
    [
        ((4, 7), (4, 7)),
        ((1, 7), (4, 7)),
        ((4, 1), (1, 7)),
        ((4, 7), (1, 1)),
        ((1, 1), (1, 1)),
        ((0, 7), (1, 7)),
        ((1, 3), (0, 1)),
    ],
)
def test_sizes_of_one_broadcast_when_run(rng: np.random.Generator, shapes: tuple[tuple[int, int], ...]) -> None:
    a, b = (rng.uniform(-1, 1, s).astype(np.float32) for s in shapes)
    np.testing.assert_allclose(_combined(a, b), np.exp(a) * b + a.sum(0) - b, rtol=1e-5, atol=1e-6)
    assert _combined.compile_count == 1


@sw.function
def _combined(a: Any, b: Any) -> Any:
    return sw.exp(a) * b + sw.sum(a, 0) - b


def test_sizes_that_do_not_fit() -> None:
    @sw.function
    def add(a: Any, b: Any) -> Any:
        return a + b

    with pytest.raises(FeedError) as e:
        add(np.ones((2, 3), np.float32), np.ones((3, 3), np.float32))
    assert "broadcast" in str(e.value) and "test_function.py" in str(e.value)


def test_nested_arguments_and_results() -> None:
    @sw.function
    def step(state: Any, pair: Any, /, *rest: Any, scale: Any = 2.0) -> Any:
        w, b = state["layers"][0]
        return {"sum": w + b * scale, "rest": [x * pair.first for x in rest]}, (None, "text", Pair(pair.second, 3))

    one = np.ones(3, np.float32)
    for _ in range(2):
        made = step({"layers": [(one, one)], "note": "x"}, Pair(one, one * 2), one, one * 3, scale=4.0)
        first, (nothing, text, pair) = made
        np.testing.assert_array_equal(first["sum"], one * 5)
        np.testing.assert_array_equal(first["rest"][1], one * 3)
        assert nothing is None and text == "text" and isinstance(pair, Pair)
        np.testing.assert_array_equal(pair.first, one * 2)
        assert pair.second.item() == 3
    assert step.compile_count == 1
    step({"layers": [(one, one)], "note": "y"}, Pair(one, one * 2), one, one * 3, scale=4.0)
    step({"layers": [(one, one)], "note": "x"}, Pair(one, one * 2), one, scale=5.0)
    assert step.compile_count == 3


class Unified:
    """An array that gives itself by DLPack only."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def test_kinds_of_arrays() -> None:
    @sw.function
    def double(x: Any) -> Any:
        return x * 2

    array = np.arange(4, dtype=np.float32)
    for x in (array, sw.TensorData(array), Unified(array), array[::-1][::-1], double(array / 2)):
        np.testing.assert_array_equal(double(x), array * 2)
    np.testing.assert_array_equal(double(np.arange(8, dtype=np.float32)[::2]), array * 4)
    assert double.compile_count == 1
    assert double(np.float32(3)).item() == 6
    assert double.compile_count == 2


@pytest.mark.parametrize(
    "numbers, dtype",
    [
        ((1, 2), "i4"),
        ((1, 2**40), "i8"),
        ((1.5, 2), "f4"),
        ((2j, 1.0), "c8"),
        ((True, 3), "i4"),
        ((0.1, np.float64(1)), "f8"),
    ],
)
def test_python_numbers(numbers: tuple[Any, Any], dtype: str) -> None:
    @sw.function
    def product(a: Any, b: Any) -> Any:
        return a * b

    got = product(*numbers)
    assert got.numpy().dtype == np.dtype(dtype)
    np.testing.assert_allclose(got.item(), numbers[0] * numbers[1], rtol=1e-6 if dtype != "f8" else 1e-15)
    product(*(type(n)(1) for n in numbers))
    assert product.compile_count <= 2  # values are no part of the key, only that 2**40 needs i64


def test_static_arguments() -> None:
    @sw.function(static_argnames=("axis", "mode"))
    def reduced(x: Any, axis: Any = -1, *, mode: Any = "sum") -> Any:
        return getattr(sw, mode)(x, axis)

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(reduced(x), x.sum(-1))
    np.testing.assert_array_equal(reduced(x, 0), x.sum(0))
    np.testing.assert_array_equal(reduced(x, axis=0), x.sum(0))
    np.testing.assert_array_equal(reduced(x, mode="mean"), x.mean(-1))
    np.testing.assert_array_equal(reduced(x, (0, 1)), x.sum())
    assert reduced.compile_count == 4
    with pytest.raises(FeedError, match="cannot be used as a static value"):
        reduced(x, [0, 1])


def test_mistakes() -> None:
    @sw.function
    def power(x: Any, axis: Any) -> Any:
        return sw.sum(x, axis)

    with pytest.raises(GraphError, match="names `axes`, which is no argument"):
        sw.function(static_argnames="axes")(power)
    with pytest.raises(FeedError, match="the arguments do not fit"):
        power(np.ones(3, np.float32), ax=0)
    with pytest.raises(OpError, match="not known while the graph is built"):
        power(np.ones(3, np.float32), 0)
    with pytest.raises(FeedError, match="is not an array of numbers"):
        power(np.array(["a"]), 0)


def test_inlined_in_graphs_and_functions() -> None:
    @sw.function
    def inner(x: Any, y: Any) -> Any:
        return {"made": sw.exp(x) + y}

    @sw.function
    def outer(x: Any) -> Any:
        return inner(x, np.ones(3, np.float32))["made"] * inner(np.zeros(3, np.float32), y=2.0)["made"]

    x = np.arange(3, dtype=np.float32)
    np.testing.assert_allclose(outer(x), (np.exp(x) + 1) * 3, rtol=1e-6)
    assert inner.compile_count == 0
    g = sw.Graph()
    p = g.placeholder((3,))
    (got,) = g.compile([outer(p)]).run([x])
    np.testing.assert_allclose(got, (np.exp(x) + 1) * 3, rtol=1e-6)
    assert outer.compile_count == 1


def test_control_flow_and_gradients_inside() -> None:
    @sw.function
    def descend(w: Any, x: Any, y: Any, rate: Any) -> Any:
        def body(_: Any, w: Any) -> Any:
            loss = sw.mean(sw.square(x @ w - y))
            return w - rate * sw.gradients(loss, [w])[0]

        better = sw.for_loop(200, w, body)
        return sw.if_else(rate > 0.0, lambda: better, lambda: w)

    rng = np.random.default_rng(1)
    for rows, columns in ((12, 3), (7, 2)):
        x = rng.uniform(-1, 1, (rows, columns)).astype(np.float32)
        solution = rng.uniform(-1, 1, (columns, 1)).astype(np.float32)
        w = descend(np.zeros((columns, 1), np.float32), x, x @ solution, 1.0)
        np.testing.assert_allclose(w, solution, atol=2e-2)
    assert descend.compile_count == 1


def test_methods_lower_and_bounds() -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @sw.function
        def apply(self, x: Any) -> Any:
            return x * self.factor

    x = np.ones(2, np.float32)
    assert Scale(2.0).apply(x).numpy().tolist() == [2, 2]
    assert Scale(3.0).apply(x).numpy().tolist() == [3, 3]

    @sw.function
    def ranked(x: Any) -> Any:
        """Twice x."""
        return x * 2

    module = ranked.lower(x)
    assert len(module.body.arguments) == 1 and module.body.results[0].rank == 1
    assert ranked.compile_count == 0 and ranked.__doc__ == "Twice x." and ranked.__name__ == "ranked"
