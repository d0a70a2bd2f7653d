"""Executables: ways to feed them, runs that do not wait, threads, what is compiled when, reports and limits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import stitchwork as sw
from stitchwork.errors import ExecutionError, FeedError

Array = np.ndarray[Any, Any]
F = np.float32


class Lent:
    """Memory that can only be had through DLPack."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def difference() -> tuple[sw.Graph, sw.Tensor, sw.Tensor, sw.Executable]:
    g = sw.Graph()
    x, y = g.placeholder(("n",), name="x"), g.placeholder(("n",), name="y")
    return g, x, y, g.compile([x - 2.0 * y])


A, B = np.array([1, 2, 3], F), np.array([10, 20, 30], F)


def test_feeds_as_list_dict_and_names() -> None:
    _, x, y, exe = difference()
    feeds: list[Any] = [[A, B], (A, B), {x: A, y: B}, {y: B, x: A}, {"y": B, "x": A}, {x: A, "y": B}]
    for given in (*feeds, [A.tolist(), B.tolist()], [np.repeat(A, 2)[::2], B]):
        np.testing.assert_array_equal(exe.run(given)[0], A - 2 * B)
    assert [v.name for v in exe.inputs] == ["x", "y"]


@pytest.mark.parametrize(
    "feeds, message",
    [
        ([A], "wrong number of inputs"),
        ({"x": A}, "inputs are missing"),
        ({"x": A, "y": B, "z": A}, "not one of this executable's"),
        ([A, B.astype(np.float64)], "wrong dtype"),
        ([Lent(A), Lent(B.astype(np.int32))], "wrong dtype"),
        ([A, B[:2]], "size"),
        ([A, B[None]], "rank"),
        ([A, "text"], "not an array"),
    ],
)
def test_feeds_that_do_not_fit(feeds: Any, message: str) -> None:
    exe = difference()[3]
    with pytest.raises(FeedError, match=message):
        exe.run(feeds)


def test_dlpack_in_and_out() -> None:
    exe = difference()[3]
    for x in (A, np.repeat(A, 2)[::2]):
        (got,) = exe.run([Lent(x), Lent(B)])
        taken = np.from_dlpack(got)
        np.testing.assert_array_equal(taken, A - 2 * B)
        assert np.shares_memory(taken, got.numpy())  # no copy
    np.testing.assert_array_equal(exe.run([got, B])[0], A - 4 * B)  # a result is an input


def test_runs_of_a_queue_go_in_order() -> None:
    g = sw.Graph()
    digit = g.placeholder((), sw.float64)
    number = g.variable(np.float64(0))
    with g.control_dependencies([g.assign(number, number * 10.0 + digit)]):
        exe = g.compile([number.read()])
    with sw.CommandQueue("digits") as queue:
        pending = [exe.run_async([np.float64(d)], queue=queue) for d in (3, 1, 4, 1, 5, 9)]
        assert [p.result()[0].item() for p in pending] == [3, 31, 314, 3141, 31415, 314159]
        queue.wait()
        assert all(p.done() for p in pending)
    assert number.value == 314159
    with pytest.raises(ExecutionError, match="closed"):
        exe.run_async([np.float64(0)], queue=queue)


def test_an_error_waits_with_the_result() -> None:
    exe = difference()[3]
    bad, good = exe.run_async([A, B[:2]]), exe.run_async([A, B])
    with pytest.raises(FeedError, match="size") as e:
        bad.result()
    assert "test_executable.py" in str(e.value)
    np.testing.assert_array_equal(good.result()[0], A - 2 * B)


def test_eight_threads_on_one_executable(rng: np.random.Generator) -> None:
    g = sw.Graph()
    x = g.placeholder(("n", "n"))
    calls = g.variable(np.int32(0))
    plain = g.compile([g.softmax(g.tanh(x @ x))])
    counting = g.compile([g.control_dependency(g.sum(x), depends_on=[g.assign(calls, calls + 1)])])
    inputs = [rng.uniform(-1, 1, (n, n)).astype(F) for n in (1, 7, 16, 40)]
    want = [plain.run([a])[0].numpy() for a in inputs]

    def work(k: int) -> None:
        np.testing.assert_array_equal(plain.run([inputs[k % 4]])[0], want[k % 4])
        counting.run([inputs[k % 4]])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(160)))
    assert calls.value == 160


def test_fifty_lengths_one_program(rng: np.random.Generator) -> None:
    g = sw.Graph()
    x = g.placeholder(("batch", "length", 8))
    options = sw.CompileOptions(disable_type_inference=True)
    exe = g.compile([g.softmax(g.layer_norm(x))], feeds={x: (1, 16, 8)}, options=options)

    @sw.function
    def same(a: Any) -> Any:
        return sw.softmax(sw.layer_norm(a))

    for length in range(1, 100, 2):
        data = rng.normal(0, 1, (2, length, 8)).astype(F)
        (got,) = exe.run([data])
        centred = data - data.mean(-1, keepdims=True)
        e = np.exp(centred / np.sqrt(data.var(-1, keepdims=True) + 1e-5))
        np.testing.assert_allclose(got, e / e.sum(-1, keepdims=True), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(same(data), got, rtol=1e-4, atol=1e-5)
    assert exe.compile_count == same.compile_count == 1


def test_a_specialised_program_falls_back_once() -> None:
    g = sw.Graph()
    x = g.placeholder(("n", 4))
    exe = g.compile([g.sum(g.tanh(x), axis=0)], feeds={x: (3, 4)})
    counts: list[int] = []
    for n in (3, 3, 5, 6, 3, 7):
        data = np.full((n, 4), 0.5, F)
        np.testing.assert_allclose(exe.run([data])[0], n * np.tanh(data[0]), rtol=1e-5)
        counts.append(exe.compile_count)
    assert counts == [1, 1, 2, 2, 2, 2]


def test_types_and_report() -> None:
    g, x, y, exe = difference()
    assert [str(t) for t in exe.output_types()] == ["f32[n]"]
    assert [t.shape for t in exe.output_types([(5,), (5,)])] == [(5,)]
    names = g.compile([g.sum(g.tanh(x) * y), g.sort(x)]).report()
    first, *lines = names.splitlines()
    assert int(first.split()[0]) == len([line for line in lines if not line.startswith("note:")])
    assert all(word in names for word in ("tanh", "multiplication", "reduction_sum", "sort"))


def test_an_endless_loop_meets_the_limit() -> None:
    g = sw.Graph()
    x = g.placeholder(())
    v = g.variable(F(1))
    with g.control_dependencies([g.assign(v, v * 0.0 + x)]):
        y = g.while_loop([x], lambda c: (c > 0.0, [c]), lambda c: [c + 1.0])[0] + v
    exe = g.compile([y], options=sw.CompileOptions(iteration_limit=50))
    assert exe.run([F(-2)])[0].item() == -4
    with pytest.raises(ExecutionError, match="a loop did not end"):
        exe.run([F(1)])
    assert v.value == -2  # as it was before
    assert exe.run([F(-3)])[0].item() == -6
