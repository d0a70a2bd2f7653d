"""Runs that do not wait: pending results, queues that keep order, and threads that share one executable.

python examples/async_runs.py
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import stitchwork as sw


def main() -> None:
    """Start runs and collect them, order writes by a queue, and run one executable from eight threads."""
    g = sw.Graph()
    x = g.placeholder(("n", "n"), name="x")
    exe = g.compile([g.sum(g.tanh(x @ x))])
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(-1, 1, (n, n)).astype(np.float32) for n in (200, 10, 100, 50)]

    # run_async returns at once; the caller may do something else until it needs the result.
    pending = [exe.run_async([a]) for a in inputs]
    print("started", len(pending), "runs, done already:", sum(p.done() for p in pending))
    for a, p in zip(inputs, pending, strict=True):
        (got,) = p.result()
        np.testing.assert_allclose(got.item(), np.tanh(a @ a).sum(), rtol=1e-3, atol=1e-2)
    print("all results agree with NumPy")

    # Runs of one queue go in order, so state that they write is written in order.
    h = sw.Graph()
    digit = h.placeholder((), name="digit")
    number = h.variable(np.float64(0), name="number")
    push = h.compile([h.assign(number, number * 10.0 + h.cast(digit, sw.float64))])
    with sw.CommandQueue("digits") as queue:
        for d in (3, 1, 4, 1, 5, 9):
            push.run_async([np.float32(d)], queue=queue)
        queue.wait()
        print("digits pushed in order:", int(number.value))
    assert number.value == 314159

    # An executable is safe to share between threads; the native call holds no lock of Python.
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda a: exe.run([a])[0].item(), inputs * 8))
    assert results == results[:4] * 8
    print("eight threads,", len(results), "runs, the same results every time")

    # An error waits with the result, and names the line that started the run.
    bad = exe.run_async([np.ones((2, 3), np.float32)])
    try:
        bad.result()
    except sw.errors.FeedError as e:
        print(e)


if __name__ == "__main__":
    main()
