"""Batch normalization whose training flag is a tensor: one executable trains and infers.

python examples/batch_norm.py
"""

from __future__ import annotations

import numpy as np

import stitchwork as sw

MOMENTUM, EPSILON = 0.9, 1e-3


def batch_norm(g: sw.Graph, x: sw.Tensor, training: sw.Tensor, mean: sw.Variable, variance: sw.Variable) -> sw.Tensor:
    """x [batch, channels] normalized by its own statistics while training, else by the running ones.

    Training also updates the running statistics. Nothing reads these writes, so a control dependency makes them happen.
    """

    def train() -> sw.Tensor:
        m, v = g.mean(x, axis=0), g.variance(x, axis=0)
        updates = [
            g.assign(mean, mean * MOMENTUM + m * (1 - MOMENTUM)),
            g.assign(variance, variance * MOMENTUM + v * (1 - MOMENTUM)),
        ]
        normalized = (x - m) / g.sqrt(v + EPSILON)
        return g.control_dependency(normalized, depends_on=updates)

    def infer() -> sw.Tensor:
        return (x - mean) / g.sqrt(variance + EPSILON)

    return g.if_else(training, then=train, otherwise=infer)


def main() -> None:
    """Train on batches of all sizes until the running statistics are those of the data, then infer."""
    g = sw.Graph()
    x = g.placeholder(("batch", 3), name="x")
    training = g.placeholder((), sw.bool_, name="training")
    mean = g.variable(np.zeros(3, np.float32), name="mean")
    variance = g.variable(np.ones(3, np.float32), name="variance")
    exe = g.compile([batch_norm(g, x, training, mean, variance)])

    rng = np.random.default_rng(0)
    center, spread = np.array([1, -2, 5], np.float32), np.array([0.5, 1, 2], np.float32)

    def batch(n: int) -> np.ndarray:
        return rng.normal(center, spread, (n, 3)).astype(np.float32)

    for step in range(100):
        (y,) = exe.run({x: batch(64 + step), training: True})
        if step in (0, 9, 99):
            print(f"after step {step + 1:3}: running mean {mean.value.round(2)}, variance {variance.value.round(2)}")
    assert np.allclose(y.numpy().mean(0), 0, atol=1e-4)  # normalized by its own batch

    before = mean.value
    (one,) = exe.run({x: center[None], training: False})
    print("inference of the centre:", one.numpy().round(1))
    assert np.array_equal(before, mean.value)
    assert np.allclose(mean.value, center, atol=0.2) and np.allclose(variance.value, spread**2, rtol=0.2)
    assert exe.compile_count == 1


if __name__ == "__main__":
    main()
