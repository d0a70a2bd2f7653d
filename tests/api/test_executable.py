"""Executables: how inputs are given and results taken, many sizes, many threads, and what a report says."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import stitchwork as sw
from stitchwork.errors import ExecutionError, FeedError

X, Y = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 10, np.float32)


class OnlyDLPack:
    """An array that gives itself by DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class OnlyArray:
    """An array that gives itself by `__array__` alone."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array, dtype=dtype, copy=copy)


def subtraction() -> tuple[sw.Graph, sw.Executable, sw.Tensor, sw.Tensor]:
    g = sw.Graph()
    x, y = g.placeholder(("n", 3), name="x"), g.placeholder(("n", 3), name="y")
    return g, g.compile([x - y, x + y], feeds=[x, y]), x, y


# --- inputs and results -----------------------------------------------------------------------------------------------
def test_inputs_as_list_tuple_and_dicts() -> None:
    _, exe, x, y = subtraction()
    assert exe.inputs == [x, y]
    for feeds in ([X, Y], (X, Y), {x: X, y: Y}, {y: Y, x: X}, {"x": X, "y": Y}, {"y": Y, x: X}):
        difference, total = exe.run(feeds)
        np.testing.assert_array_equal(difference, X - Y)
        np.testing.assert_array_equal(total, X + Y)


@pytest.mark.parametrize("wrap", [np.asarray, sw.TensorData, OnlyDLPack, OnlyArray, np.ndarray.tolist])
def test_kinds_of_inputs(wrap: Any) -> None:
    _, exe, _, _ = subtraction()
    np.testing.assert_array_equal(exe.run([wrap(X), wrap(Y)])[0], X - Y)


def test_jax_arrays_come_in_and_go_out() -> None:
    jax_numpy = pytest.importorskip("jax.numpy", reason="JAX is what the arrays come from")
    _, exe, _, _ = subtraction()
    (difference, _) = exe.run([jax_numpy.asarray(X), jax_numpy.asarray(Y)])
    np.testing.assert_array_equal(jax_numpy.from_dlpack(difference), X - Y)


def test_numbers_feed_scalars() -> None:
    g = sw.Graph()
    x, n, b = g.placeholder((), name="x"), g.placeholder((), sw.int32, name="n"), g.placeholder((), sw.bool_, name="b")
    exe = g.compile([x * 2, n + 1, g.logical_not(b)])
    assert [r.item() for r in exe.run([1.5, 3, True])] == [3.0, 4, False]
    assert [r.item() for r in exe.run({"x": 2, "n": np.int32(-1), "b": False})] == [4.0, 0, True]


def test_results_give_themselves_without_a_copy() -> None:
    _, exe, _, _ = subtraction()
    result = exe.run([X, Y])[0]
    array = result.numpy()
    assert np.shares_memory(np.asarray(result), array)
    assert np.shares_memory(np.from_dlpack(result), array)
    assert result.shape == (2, 3) and result.dtype is sw.float32 and result.device == "cpu" and len(result) == 2
    np.testing.assert_array_equal(result[0], X[0] - Y[0])
    assert float(exe.run([X[:1], Y[:1]])[0][0, 2]) == -8
    again = exe.run([result, Y])[0]  # results are inputs of other runs
    np.testing.assert_array_equal(again, X - 2 * Y)
    np.testing.assert_array_equal(array, X - Y)  # and later runs leave them alone


def test_inputs_are_never_written_and_results_never_shared() -> None:
    g = sw.Graph()
    x = g.placeholder((None,), name="x")
    exe = g.compile([x, g.for_loop(3, x, lambda i, v: v + 1.0)])
    data = np.zeros(4, np.float32)
    data.flags.writeable = False
    first, second = exe.run([data]), exe.run([data])
    np.testing.assert_array_equal(first[1], np.full(4, 3))
    for a in first:
        assert a.numpy().flags.writeable
        assert not any(np.shares_memory(a.numpy(), b) for b in (data, *(r.numpy() for r in second)))


def test_output_types() -> None:
    g = sw.Graph()
    x, y = g.placeholder(("n", "m"), name="x"), g.placeholder(("m", None), name="y")
    exe = g.compile([x @ y, g.sum(x, 0), g.concat([x, x], axis=0), g.argmax(x, 1)])
    assert [str(t) for t in exe.output_types()] == ["f32[n, d.1]", "f32[m]", "f32[2*n, m]", "i32[n]"]
    want = ["f32[2, 5]", "f32[3]", "f32[4, 3]", "i32[2]"]
    types = [sw.TensorType(sw.float32, (2, 3)), sw.TensorType(sw.float32, (3, 5))]
    for given in (types, [(2, 3), (3, 5)], [X, np.zeros((3, 5))]):
        assert [str(t) for t in exe.output_types(given)] == want
    assert [r.shape for r in exe.run([X, np.zeros((3, 5), np.float32)])] == [t.shape for t in exe.output_types(types)]


def test_one_compilation_for_fifty_lengths(rng: np.random.Generator) -> None:
    g = sw.Graph()
    x = g.placeholder(("n", "m"), name="x")
    options = sw.CompileOptions(disable_type_inference=True)
    exe = g.compile([g.softmax(x @ g.permute(x, (1, 0))) @ x], feeds={x: (3, 4)}, options=options)
    for n in range(50):
        data = rng.uniform(-1, 1, (n * 3 % 50, n)).astype(np.float32)
        e = np.exp((data @ data.T).astype(np.float64))
        want = e / e.sum(-1, keepdims=True) @ data
        np.testing.assert_allclose(exe.run([data])[0], want, rtol=1e-3, atol=1e-5)
    assert exe.compile_count == 1


def test_the_report_names_kernels_in_order() -> None:
    g = sw.Graph()
    x = g.placeholder((8, 8), name="x")
    y = g.relu(x @ x) + 1.0
    lines = g.compile([g.sort(y, 1), y]).report().splitlines()
    assert int(lines[0].split()[0]) >= 2
    assert "matmul" in lines[1] and "relu" in lines[1] and "sort" in lines[2]
    assert g.compile([x]).report() == "0 kernels"


# --- asynchronous runs ------------------------------------------------------------------------------------------------
def test_async_results_and_callbacks() -> None:
    _, exe, _, _ = subtraction()
    called = threading.Event()
    pending = exe.run_async({"x": X, "y": Y})
    pending.add_done_callback(lambda p: called.set())
    np.testing.assert_array_equal(pending.result(timeout=60)[0], X - Y)
    assert called.wait(60) and pending.done()
    with pytest.raises(FeedError, match="wrong number of inputs"):
        exe.run_async([X]).result()


def test_runs_of_a_queue_go_in_order() -> None:
    g = sw.Graph()
    digit, number = g.placeholder((), name="digit"), g.variable(np.float64(0), name="number")
    push = g.compile([g.assign(number, number * 10.0 + g.cast(digit, sw.float64))])
    with sw.CommandQueue() as queue:
        for d in range(1, 10):
            push.run_async([np.float32(d)], queue=queue)
        queue.wait()
        assert number.value == 123456789
    with pytest.raises(ExecutionError, match="the queue is closed"):
        push.run_async([np.float32(1)], queue=queue)


def test_queues_do_not_wait_for_each_other() -> None:
    g = sw.Graph()
    n = g.placeholder((), sw.int64, name="n")
    count = g.compile([g.for_loop(n, np.float32(1), lambda i, v: v * 0.5 + 1.0)])
    with sw.CommandQueue("slow") as slow, sw.CommandQueue("fast") as fast:
        long = count.run_async([np.int64(30_000_000)], queue=slow)
        assert count.run_async([np.int64(1)], queue=fast).result(60)[0].item() == 1.5
        assert not long.done()
        assert long.result(120)[0].item() == 2


# --- threads ----------------------------------------------------------------------------------------------------------
def in_threads(count: int, call: Any) -> list[Any]:
    """call(k) for every k, started at the same moment."""
    start = threading.Barrier(count)

    def run(k: int) -> Any:
        start.wait()
        return call(k)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


def test_eight_threads_on_one_executable(rng: np.random.Generator) -> None:
    """Sizes differ, so plans and temporaries do; a kernel large enough to use the pool is among them."""
    g = sw.Graph()
    x = g.placeholder(("n", "n"), name="x")
    exe = g.compile([g.sort(g.tanh(x @ x), 1), g.cumsum(x, 0), g.sum(x)])
    inputs = [rng.uniform(-1, 1, (n, n)).astype(np.float32) for n in (3, 17, 64, 1, 0, 130, 33, 200)]
    want = [[r.numpy().copy() for r in exe.run([a])] for a in inputs]

    def call(k: int) -> None:
        for step in range(15):
            number = (k + step) % len(inputs)
            for got, w in zip(exe.run([inputs[number]]), want[number], strict=True):
                np.testing.assert_array_equal(got, w)

    in_threads(8, call)
    assert exe.compile_count == 1


def test_several_executables_at_once(rng: np.random.Generator) -> None:
    """Compiled and run by threads of their own."""
    data = rng.uniform(-1, 1, (40, 30)).astype(np.float32)

    def call(k: int) -> None:
        g = sw.Graph()
        x = g.placeholder(("n", "m"))
        exe = g.compile([g.sum(x * float(k) + 1.0, axis=k % 2), g.softmax(x + float(k))])
        for _ in range(10):
            total, soft = exe.run([data])
            np.testing.assert_allclose(total, (data * k + 1).sum(k % 2), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(soft.numpy().sum(-1), np.ones(40), rtol=1e-5)

    in_threads(4, call)


def test_a_specialised_executable_compiles_its_fallback_once() -> None:
    g = sw.Graph()
    x = g.placeholder(("n",), name="x")
    exe = g.compile([g.exp(x)], feeds={x: (4,)})
    in_threads(
        8, lambda k: np.testing.assert_allclose(exe.run([np.ones(k, np.float32)])[0], np.full(k, np.e), rtol=1e-6)
    )
    assert exe.compile_count == 2


def test_variables_from_several_threads() -> None:
    """Runs that touch variables go one at a time: no addition is lost, no half-written value seen."""
    g = sw.Graph()
    v = g.variable(np.zeros(1000, np.float32), name="v")
    x = g.placeholder((), name="x")
    add, read = g.compile([g.assign(v, v + x)]), g.compile([g.max(v), g.min(v)])

    def call(k: int) -> None:
        for _ in range(100):
            add.run([1.0])
            high, low = read.run([])
            assert high.item() == low.item()
            assert len(set(v.value.tolist())) == 1

    in_threads(4, call)
    np.testing.assert_array_equal(v.value, np.full(1000, 400))


def test_thread_counts_give_the_same_results(rng: np.random.Generator) -> None:
    g = sw.Graph()
    x = g.placeholder(("n", "m"), name="x")
    y = g.softmax(g.tanh(x) * 3.0)
    data = rng.uniform(-1, 1, (300, 500)).astype(np.float32)
    results = [g.compile([y], options=sw.CompileOptions(threads=n)).run([data])[0].numpy() for n in (1, 2, 5)]
    for r in results[1:]:
        np.testing.assert_array_equal(r, results[0])
