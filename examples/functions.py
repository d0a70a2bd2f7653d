"""Plain Python functions as compiled programs: `sw.function`.

python examples/functions.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import stitchwork as sw


@sw.function
def norm(a: Any, epsilon: float = 1e-5) -> Any:
    """Rows of `a` with mean 0 and deviation 1."""
    return (a - sw.mean(a, axis=-1, keepdims=True)) / (sw.std(a, axis=-1, keepdims=True) + epsilon)


@sw.function(static_argnames="order")
def moments(a: Any, order: int) -> dict[str, Any]:
    """The first moments; `order` decides how many there are, so it is static: part of the program."""
    centred = norm(a)  # functions call each other: this adds the operations of `norm` here
    return {f"moment {k}": sw.mean(centred**k) for k in range(1, order + 1)}


@sw.function
def descend(w: Any, x: Any, y: Any, rate: float) -> tuple[Any, Any]:
    """100 steps of gradient descent on |x w - y|², the loop and the gradients inside one program."""

    def body(_: Any, w: Any) -> Any:
        loss = sw.mean(sw.square(x @ w - y))
        return w - rate * sw.gradients(loss, [w])[0]

    better = sw.for_loop(100, w, body)
    return better, sw.mean(sw.square(x @ better - y))


def main() -> None:
    """Call each function on arrays of several sizes and count the programs that were compiled."""
    rng = np.random.default_rng(0)
    for shape in ((2, 8), (5, 3), (1, 100)):
        x = rng.normal(3, 2, shape).astype(np.float32)
        y = norm(x)
        print(f"norm of {shape}: mean {float(np.mean(y)):.1e}, programs compiled: {norm.compile_count}")
    norm(rng.normal(3, 2, (4, 4)))
    print(f"norm of f64: programs compiled: {norm.compile_count} (one per dtypes and ranks, never per size)")

    made = moments(rng.normal(0, 1, (10, 1000)).astype(np.float32), order=4)
    print({k: round(v.item(), 3) for k, v in made.items()})

    x = rng.normal(0, 1, (50, 3)).astype(np.float32)
    solution = np.array([[1.0], [-2.0], [0.5]], np.float32)
    w, loss = descend(np.zeros((3, 1), np.float32), x, x @ solution, 0.1)
    print("descent found", w.numpy().ravel().round(3), f"with loss {loss.item():.1e}")
    assert np.allclose(w, solution, atol=1e-2)
    print(norm, "\n" + str(descend))


if __name__ == "__main__":
    main()
