"""Stencils: windows of rank 1 to 4, every reduction, every way to treat the border, against plain NumPy.

python examples/stencils.py
"""

from __future__ import annotations

from itertools import product

import numpy as np

import stitchwork as sw

REDUCTIONS = ("sum", "product", "min", "max", "argmin", "argmax")
# Ours, and the mode of `numpy.pad` that means the same.
BOUNDARIES = {
    "zero": "constant",
    "reflect": "reflect",
    "symmetric": "symmetric",
    "clamp_to_edge": "edge",
    "periodic": "wrap",
}
SHAPES = {1: (3,), 2: (3, 3), 3: (3, 1, 3), 4: (1, 3, 3, 1)}  # windows, by rank


def by_hand(x: np.ndarray, weights: np.ndarray, reduction: str, boundary: str) -> np.ndarray:
    """The definition in NumPy: pad, look through every window, weigh, reduce."""
    margins = [(k // 2, k // 2) for k in weights.shape]
    padded = np.pad(x, margins, BOUNDARIES[boundary])
    windows = np.lib.stride_tricks.sliding_window_view(padded, weights.shape)
    terms = (windows * weights).reshape(*x.shape, -1)
    call = {"sum": np.sum, "product": np.prod, "min": np.min, "max": np.max, "argmin": np.argmin, "argmax": np.argmax}
    return call[reduction](terms, axis=-1)


def main() -> None:
    """Print the largest difference for every rank, reduction and boundary, then stitch a chain of stencils."""
    rng = np.random.default_rng(0)
    print("largest difference from NumPy")
    print(f"{'rank':<6}{'boundary':<16}" + "".join(f"{r:>9}" for r in REDUCTIONS))
    for rank, window in SHAPES.items():
        x = rng.uniform(-1, 1, (5, 4, 6, 3)[:rank]).astype(np.float32)
        weights = rng.uniform(0.5, 1.5, window).astype(np.float32)
        # All these are results of one graph, so they are compiled together.
        g = sw.Graph()
        p = g.placeholder((None,) * rank)
        boundaries = list(BOUNDARIES) if rank == 2 else [list(BOUNDARIES)[rank]]
        cases = list(product(boundaries, REDUCTIONS))
        results = [g.stencil(p, weights, padding="same", boundary=b, reduction=r) for b, r in cases]
        differences = {
            case: np.abs(got.numpy() - by_hand(x, weights, case[1], case[0])).max()
            for case, got in zip(cases, g.compile(results).run([x]), strict=True)
        }
        for b in boundaries:
            print(f"{rank:<6}{b:<16}" + "".join(f"{differences[b, r]:>9.0e}" for r in REDUCTIONS))
        assert max(differences.values()) < 1e-5

    # Two stencils with a nonlinearity between them become one kernel: the intermediate images never reach memory.
    g = sw.Graph()
    image = g.placeholder(("height", "width"), name="image")
    laplacian = [[0, 1, 0], [1, -4, 1], [0, 1, 0]]
    once = g.stencil(image, laplacian, padding="same", boundary="reflect")
    twice = g.stencil(g.tanh(once), laplacian, padding="same", boundary="reflect")
    print("\nlaplacian, tanh, laplacian:", g.compile([twice]).report())


if __name__ == "__main__":
    main()
