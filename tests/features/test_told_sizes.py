"""Sizes that only the run tells: what non_zero_indices gives, and everything computed from it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import stitchwork as sw
from stitchwork.errors import ExecutionError, GraphError
from stitchwork.ir import dims
from stitchwork.ir.intervals import upper_bound


def mask(rng: np.random.Generator, *shape: int, share: float = 0.4) -> np.ndarray:
    """Floats of which about this share are not 0."""
    return np.where(rng.random(shape) < share, rng.normal(size=shape), 0).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.bool_, np.int8, np.uint64, np.complex64])
def test_positions_are_those_of_argwhere(dtype: Any, rng: np.random.Generator) -> None:
    g = sw.Graph()
    exe = g.compile([g.non_zero_indices(g.placeholder((None, None, None), dtype))])
    for shape in ((2, 3, 4), (5, 1, 33), (0, 2, 2), (1, 1, 1)):
        x = (rng.integers(0, 3, shape) % 2).astype(dtype)
        (got,) = exe.run([x])
        assert got.dtype is sw.int32
        np.testing.assert_array_equal(got, np.argwhere(x))
        np.testing.assert_array_equal(exe.run([np.ones_like(x)])[0], np.argwhere(np.ones_like(x)))
        assert exe.run([np.zeros_like(x)])[0].shape == (0, 3)


@pytest.mark.parametrize("shape", [(), (7,)])
def test_few_dims(shape: tuple[int, ...]) -> None:
    g = sw.Graph()
    exe = g.compile([g.argwhere(g.placeholder(shape))])
    for x in (np.ones(shape, np.float32), np.zeros(shape, np.float32)):
        np.testing.assert_array_equal(exe.run([x])[0], np.argwhere(x))


def test_later_ops_take_the_size_as_any_other(rng: np.random.Generator) -> None:
    g = sw.Graph()
    x, w = g.placeholder((None, None)), g.placeholder((2, 40))
    at = g.non_zero_indices(x)
    values = g.gather_nd(x, at)
    targets = {
        "values": (values, lambda a, i: a[a != 0]),
        "chain": (g.tanh(values * 2.0 + 1.0), lambda a, i: np.tanh(a[a != 0] * 2 + 1)),
        "sum": (g.sum(values), lambda a, i: a.sum()),
        "columns": (g.sum(at, axis=0), lambda a, i: i.sum(0)),
        "shape": (g.shape_of(at), lambda a, i: np.array(i.shape)),
        "product": (g.cast(at, sw.float32) @ w, lambda a, i: i.astype(np.float32) @ W),
        "softmax": (g.softmax(values), lambda a, i: softmax(a[a != 0])),
        "sorted": (g.sort(values), lambda a, i: np.sort(a[a != 0])),
        "running": (g.cumulative_sum(values), lambda a, i: np.cumsum(a[a != 0])),
        "both": (g.concat([values, values], axis=0), lambda a, i: np.tile(a[a != 0], 2)),
        "flat": (g.reshape(at, (-1,)), lambda a, i: i.reshape(-1)),
        "turned": (g.transpose(at), lambda a, i: i.T),
        "every second": (values[::2], lambda a, i: a[a != 0][::2]),
        "back": (g.scatter_nd_with_data(g.identity(x) * 0.0, values, at), lambda a, i: a),
        "room": (g.pad(values, (0,), (x.shape[0] * x.shape[1] - at.shape[0],)), lambda a, i: padded(a)),
        "table": (g.broadcast(1.0, (at.shape[0], 3)), lambda a, i: np.ones((len(i), 3), np.float32)),
    }
    exe = g.compile([t for t, _ in targets.values()], feeds=[x, w])
    W = rng.normal(size=(2, 40)).astype(np.float32)
    for shape in ((4, 5), (64, 70), (1, 1), (0, 3)):
        for share in (0.4, 0.0, 1.0):
            a = mask(rng, *shape, share=share)
            for (name, (_, want)), got in zip(targets.items(), exe.run([a, W]), strict=True):
                np.testing.assert_allclose(got, want(a, np.argwhere(a)), rtol=2e-4, atol=2e-4, err_msg=name)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(initial=0))
    return e / e.sum()


def padded(a: np.ndarray) -> np.ndarray:
    return np.concatenate([a[a != 0], np.zeros((a == 0).sum(), a.dtype)])


def test_a_size_may_be_all_that_is_used() -> None:
    g = sw.Graph()
    x = g.placeholder((None,))
    n = g.non_zero_indices(x).shape[0]
    exe = g.compile([g.broadcast(2.0, (n,)), g.range(0, n, 1)])
    twos, numbers = exe.run([np.array([1, 0, 3, 4], np.float32)])
    np.testing.assert_array_equal(twos, [2, 2, 2])
    np.testing.assert_array_equal(numbers, [0, 1, 2])


def test_sizes_of_sizes(rng: np.random.Generator) -> None:
    """Positions among what was chosen before; only what targets need is computed."""
    g = sw.Graph()
    x = g.placeholder((None,))
    values = g.gather_nd(x, g.non_zero_indices(x))
    positive = g.gather_nd(values, g.non_zero_indices(values > 0))
    g.non_zero_indices(g.placeholder((None,)))
    exe = g.compile([positive, g.sum(positive)])
    a = mask(rng, 100)
    np.testing.assert_array_equal(exe.run([a])[0], a[a > 0])


def test_equal_sizes_are_checked_when_they_are_known(rng: np.random.Generator) -> None:
    g = sw.Graph()
    x, y, z = g.placeholder((None,), name="x"), g.placeholder((None,), name="y"), g.placeholder(("k",), name="z")
    first, second = (g.gather_nd(v, g.non_zero_indices(v)) for v in (x, y))
    exe = g.compile([first + second, first * z])
    a, b = np.array([1, 0, 2], np.float32), np.array([0, 5, 0, 0, 6], np.float32)
    both, scaled = exe.run([a, b, np.array([3, 4], np.float32)])
    np.testing.assert_array_equal(both, [6, 8])
    np.testing.assert_array_equal(scaled, [3, 8])
    with pytest.raises(ExecutionError, match=r"addition: sizes do not fit(.|\n)*= 2, non_zero.\d+ = 3") as e:
        exe.run([a, np.ones(3, np.float32), z_of(2)])
    assert "test_told_sizes.py" in str(e.value)
    with pytest.raises(ExecutionError, match=r"multiplication: sizes do not fit(.|\n)*k = 3"):
        exe.run([a, b, z_of(3)])
    np.testing.assert_array_equal(exe.run([a, b, z_of(1)])[1], [1, 2])


def z_of(n: int) -> np.ndarray:
    return np.ones(n, np.float32)


def test_a_failed_check_leaves_variables_as_they_were() -> None:
    g = sw.Graph()
    x, y = g.placeholder((None,)), g.placeholder((None,))
    count = g.variable(np.zeros((), np.float32))
    update = g.assign(count, count + 1.0)
    with g.control_dependencies([update]):
        chosen = g.gather_nd(x, g.non_zero_indices(x)) + y
    exe = g.compile([chosen, update])
    exe.run([np.ones(2, np.float32), np.ones(2, np.float32)])
    with pytest.raises(ExecutionError):
        exe.run([np.ones(2, np.float32), np.ones(3, np.float32)])
    assert count.value == 1


def test_a_least_size_is_checked(rng: np.random.Generator) -> None:
    g = sw.Graph()
    x = g.placeholder((None,))
    values = g.gather_nd(x, g.non_zero_indices(x))
    exe = g.compile([g.top_k(values, 3)[0]])
    np.testing.assert_array_equal(exe.run([np.array([4, 0, 1, 9, 2], np.float32)])[0], [9, 4, 2])
    with pytest.raises(ExecutionError, match="top_k"):
        exe.run([np.array([4, 0, 1, 0, 0], np.float32)])


# --- blocks -------------------------------------------------------------------------------------------------------
def test_inside_branches() -> None:
    g = sw.Graph()
    x = g.placeholder((None,))

    def total(which: sw.Tensor) -> sw.Tensor:
        return g.sum(g.gather_nd(x, g.non_zero_indices(which)))

    exe = g.compile([g.if_else(g.sum(x) > 0.0, lambda: total(x > 1.0), lambda: total(x < -1.0))])
    assert exe.run([np.array([3, 0, 2, 1], np.float32)])[0].item() == 5
    assert exe.run([np.array([-3, 0, -2, 1], np.float32)])[0].item() == -5


def test_inside_loops_the_size_changes_from_round_to_round() -> None:
    g = sw.Graph()
    x = g.placeholder((None,))

    def body(i: sw.Tensor, total: sw.Tensor) -> sw.Tensor:
        at = g.non_zero_indices(x > g.cast(i, sw.float32))
        return total + g.sum(g.gather_nd(x, at)) + g.cast(g.shape_of(at)[0], sw.float32)

    exe = g.compile([g.for_loop(4, np.float32(0), body)])
    a = np.array([0.5, 3.5, 1.5, 2.5, 0], np.float32)
    assert exe.run([a])[0].item() == sum(a[a > i].sum() + (a > i).sum() for i in range(4))


def test_a_loop_carries_tensors_of_a_size_found_before() -> None:
    g = sw.Graph()
    x = g.placeholder((None,))
    values = g.gather_nd(x, g.non_zero_indices(x))
    (made,) = g.while_loop([values], lambda v: (g.sum(v) < 100.0, [v]), lambda v: [v * 2.0])
    np.testing.assert_array_equal(g.compile([made]).run([np.array([0, 3, 0, 4], np.float32)])[0], [48, 64])


def test_the_size_does_not_leave_its_block() -> None:
    g = sw.Graph()
    x = g.placeholder((None,))
    leaked: list[Any] = []

    def some() -> sw.Tensor:
        leaked.append(g.non_zero_indices(x))
        return leaked[0]

    with pytest.raises(GraphError, match="`then` returns a tensor whose size `non_zero"):
        g.if_else(g.sum(x) > 0.0, some, some)
    with pytest.raises(GraphError, match="`before` returns a tensor whose size"):
        g.while_loop([x], lambda v: (g.sum(v) < 1.0, [v, g.non_zero_indices(v)]), lambda v, _: [v])
    with pytest.raises(GraphError, match="known only inside the block that finds it"):
        g.broadcast(1.0, (leaked[0].shape[0],))
    with pytest.raises(GraphError, match="made inside a block that has ended"):
        g.sum(leaked[0])


# --- gradients, functions, threads ----------------------------------------------------------------------------------
def test_gradients_go_through_what_was_chosen() -> None:
    g = sw.Graph()
    x = g.placeholder((None,))
    chosen = g.gather_nd(x, g.non_zero_indices(x > 0.0))
    branch = g.if_else(g.sum(x) > 0.0, lambda: g.sum(g.gather_nd(x, g.non_zero_indices(x < 0.0))), lambda: g.sum(x))
    a = np.array([-1, 2, -3, 4], np.float32)
    for loss, want in ((g.sum(chosen * chosen), [0, 4, 0, 8]), (branch * 3.0, [3, 0, 3, 0])):
        np.testing.assert_array_equal(g.compile(g.gradients(loss, [x])).run([a])[0], want)


def test_functions_and_types() -> None:
    @sw.function
    def kept(x: sw.Tensor, low: float) -> sw.Tensor:
        return sw.gather_nd(x, sw.non_zero_indices(x > low))

    for a in (np.array([1, 5, 2], np.float32), np.arange(9, dtype=np.float32)):
        np.testing.assert_array_equal(kept(a, 1.5), a[a > 1.5])
    assert kept.compile_count == 1
    g = sw.Graph()
    x = g.placeholder((None, 4))
    exe = g.compile([g.non_zero_indices(x), g.relu(x)])
    positions, whole = exe.output_types([(3, 4)])
    assert not positions.is_static and positions.shape[1] == 2 and whole.shape == (3, 4)


def test_results_do_not_hold_much_more_memory_than_they_need() -> None:
    g = sw.Graph()
    exe = g.compile([g.non_zero_indices(g.placeholder((None,)))])
    x = np.zeros(100_000, np.float32)
    x[7] = 1
    made = exe.run([x])[0].numpy()
    assert (made if made.base is None else made.base).nbytes <= 8


def test_runs_at_the_same_time_have_sizes_of_their_own(rng: np.random.Generator) -> None:
    g = sw.Graph()
    x = g.placeholder((None,))
    exe = g.compile([g.gather_nd(x, g.non_zero_indices(x))])
    arrays = [mask(rng, 1000, share=s) for s in np.linspace(0, 1, 40)]
    with ThreadPoolExecutor(8) as threads:
        for a, (got,) in zip(arrays, threads.map(lambda a: exe.run([a]), arrays), strict=True):
            np.testing.assert_array_equal(got, a[a != 0])


# --- how much memory is enough ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    ["k", "3*k + n", "n - k", "2*k - j", "k*j", "n*k - k*j", "floordiv(k, 3)", "floordiv(n, k)", "mod(k, 4)",
     "floordiv(k - 5, 2)", "mod(n, k)", "min(k, n)", "max(k - j, 3)", "broadcast(k, n)", "max(k, 2)*min(j, n) - k",
     "floordiv(n - 7, 2)*k", "floordiv(k - 9, j)*n"],
)  # fmt: skip
def test_upper_bounds_hold(text: str) -> None:
    size = dims.parse(text)
    limits = {"k": dims.symbol("n") * 2, "j": dims.symbol("k") + 1}
    bound = upper_bound(size, limits)
    assert dims.symbols_of(bound) <= {"n"}
    for n in range(5):
        top = dims.evaluate(bound, {"n": n})
        for k in range(2 * n + 1):
            for j in range(k + 2):
                assert dims.evaluate(size, {"n": n, "k": k, "j": j}) <= top, (n, k, j)
