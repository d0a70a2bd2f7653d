"""Control flow inside the graph: if, for (both forms) and while, nested, on the device.

python examples/control_flow.py
"""

from __future__ import annotations

import numpy as np

import stitchwork as sw


def branches() -> None:
    """The predicate is a tensor: one executable takes either way."""
    g = sw.Graph()
    x, y = g.placeholder(("n",), name="x"), g.placeholder(("n",), name="y")
    # The blocks are plain callables. They may use any tensor made before them.
    z = g.if_else(g.sum(x) < g.sum(y), then=lambda: x + y, otherwise=lambda: x - y)
    exe = g.compile([z])
    a, b = np.array([1, 2], np.float32), np.array([10, 20], np.float32)
    print("if_else:", exe.run([a, b])[0].numpy(), exe.run([b, a])[0].numpy())


def loops() -> None:
    """Count, range and condition; a loop may carry several values of different types."""
    g = sw.Graph()
    x = g.placeholder((), name="x")
    n = g.placeholder((), sw.int32, name="n")
    powers = g.for_loop(n, x, body=lambda i, v: v * 2.0)  # n is data, not a number in the program
    odd = g.for_loop(initial=x, lower=1, upper=n, step=2, body=lambda i, v: v + g.cast(i, sw.float32))
    fibonacci = g.for_loop(n, [np.int64(0), np.int64(1)], body=lambda i, a, b: [b, a + b])
    # before: computes the predicate and the results. after: computes the next carried values from these results.
    halvings = g.while_loop(
        [x, np.int32(0)],
        before=lambda v, count: (v > 1.0, [v, count]),
        after=lambda v, count: [v / 2.0, count + 1],
    )
    exe = g.compile([powers, odd, fibonacci[0], halvings[1]])
    for many in (0, 1, 5, 10):
        results = [r.item() for r in exe.run([np.float32(100), np.int32(many)])]
        print(f"for and while, n = {many:2}: x 2^n = {results[0]}, x + 1 + 3 + ... < n = {results[1]}, "
              f"fibonacci = {results[2]}, halvings of x = {results[3]}")  # fmt: skip


def collatz(start: int) -> int:
    """The same in Python."""
    steps = 0
    while start != 1:
        start = 3 * start + 1 if start % 2 else start // 2
        steps += 1
    return steps


def nested() -> None:
    """A branch inside a while inside a for: the longest Collatz sequence below a limit, one native call."""
    g = sw.Graph()
    limit = g.placeholder((), sw.int64, name="limit")

    def steps(start: sw.Tensor) -> sw.Tensor:
        def after(n: sw.Tensor, count: sw.Tensor) -> list[sw.Tensor]:
            following = g.if_else(g.equal(n % 2, 1), then=lambda: n * 3 + 1, otherwise=lambda: n // 2)
            return [following, count + 1]

        zero = start * 0
        return g.while_loop([start, zero], lambda n, count: (g.not_equal(n, 1), [n, count]), after)[1]

    def body(i: sw.Tensor, best: sw.Tensor, longest: sw.Tensor) -> list[sw.Tensor]:
        found = steps(i)
        # `found`, `best` and `longest` come from the blocks around.
        return g.if_else(found > longest, then=lambda: [i, found], otherwise=lambda: [best, longest])

    best, longest = g.for_loop(initial=[np.int64(1), np.int64(0)], lower=1, upper=limit, step=1, body=body)
    exe = g.compile([best, longest])
    for many in (10, 100, 3000):
        got = [r.item() for r in exe.run([np.int64(many)])]
        want = max(range(1, many), key=collatz)
        print(f"nested, below {many}: {got[0]} takes {got[1]} steps")
        assert got == [want, collatz(want)]


if __name__ == "__main__":
    branches()
    loops()
    nested()
