"""Train a small network to tell two spirals apart: variables, gradients and Adam, one compiled program per step.

    python examples/train_mlp.py [steps]

A step is a single call of one executable: it computes the loss and the gradients and writes every variable. The number
of points is a symbol, so the same program takes batches of any size.
"""

from __future__ import annotations

import sys

import numpy as np

import stitchwork as sw

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
HIDDEN = 32


def spirals(points: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points [points, 2] on two interleaved spirals, with some noise, and which spiral each is on, [points]."""
    labels = rng.integers(0, 2, points)
    turn = np.sqrt(rng.uniform(0.05, 1.0, points)) * 3 * np.pi
    angle = turn + labels * np.pi
    xy = np.stack([turn * np.cos(angle), turn * np.sin(angle)], 1) / 10 + rng.normal(0, 0.02, (points, 2))
    return xy.astype(np.float32), labels.astype(np.int32)


def make_parameters(g: sw.Graph, rng: np.random.Generator) -> list[sw.Variable]:
    """Weights and biases of a network 2 -> HIDDEN -> HIDDEN -> 2."""
    made: list[sw.Variable] = []
    for k, (m, n) in enumerate([(2, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 2)]):
        made.append(g.variable(rng.normal(0, np.sqrt(2 / m), (m, n)).astype(np.float32), name=f"w{k}"))
        made.append(g.variable(np.zeros(n, np.float32), name=f"b{k}"))
    return made


def logits(x: sw.Tensor, parameters: list[sw.Variable]) -> sw.Tensor:
    """Scores [batch, 2] of points [batch, 2]."""
    w0, b0, w1, b1, w2, b2 = parameters
    hidden = sw.tanh(x @ w0 + b0)
    hidden = sw.tanh(hidden @ w1 + b1)
    return hidden @ w2 + b2


def adam_writes(g: sw.Graph, parameters: list[sw.Variable], gradients: list[sw.Tensor], rate: float) -> list[sw.Tensor]:
    """What to run to move the parameters by one step of Adam."""
    powers = [g.variable(1.0, name="beta1_power"), g.variable(1.0, name="beta2_power")]
    power1, power2 = powers[0] * BETA1, powers[1] * BETA2
    updates: list[tuple[sw.Variable, sw.Tensor]] = [(powers[0], power1), (powers[1], power2)]
    for p, gradient in zip(parameters, gradients, strict=True):
        zeros = np.zeros(p.value.shape, np.float32)
        state = [p, g.variable(zeros, name=f"{p.name}_momentum"), g.variable(zeros, name=f"{p.name}_velocity")]
        new = g.adam(rate, BETA1, BETA2, EPSILON, power1, power2, *state, gradient)
        updates.extend(zip(state, new, strict=True))
    return [g.assign(variable, value) for variable, value in updates]


def main(steps: int = 1500) -> float:
    """Train, print the loss now and then, and return the accuracy on new points."""
    rng = np.random.default_rng(0)
    g = sw.Graph("train")
    x, labels = g.placeholder(("batch", 2), name="x"), g.placeholder(("batch",), sw.int32, name="labels")
    parameters = make_parameters(g, rng)
    scores = logits(x, parameters)
    loss = g.softmax_cross_entropy(scores, g.one_hot(labels, 2), axis=-1, reduction="mean")
    writes = adam_writes(g, parameters, g.gradients(loss, parameters), rate=0.01)
    step = g.compile([loss, *writes], feeds=[x, labels])
    predict = g.compile([g.argmax(scores, -1)], feeds=[x])
    for k in range(steps):
        value = step.run(list(spirals(256, rng)))[0].item()
        if k % (steps // 10 or 1) == 0 or k == steps - 1:
            print(f"step {k:5}  loss {value:.4f}")
    points, truth = spirals(1000, rng)
    accuracy = float(np.mean(predict.run([points])[0].numpy().reshape(-1) == truth))
    print(f"accuracy on new points: {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main(*(int(a) for a in sys.argv[1:2]))
