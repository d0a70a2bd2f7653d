"""Precompiled executables: `compile` does all the work, `run` never compiles.

python examples/precompiled_executable.py
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

import stitchwork as sw


def main() -> None:
    """Compile once, look at the executable, and run it on inputs given in every way."""
    g = sw.Graph()
    image = g.placeholder(("batch", 32, 32, 3), name="image")
    rng = np.random.default_rng(0)
    weights = rng.uniform(-0.1, 0.1, (3, 3, 3, 8)).astype(np.float32)
    features = g.relu(g.conv2d(image, weights, padding="same"))
    scores = g.softmax(g.mean(features, axis=(1, 2)))

    start = perf_counter()
    exe = g.compile([scores])
    print(f"compiled in {perf_counter() - start:.3f} s; later processes take it from the cache on disk")
    print("inputs: ", [f"{v.name}: {v.type}" for v in exe.inputs])
    print("outputs:", [str(t) for t in exe.output_types()])
    print("for batch 7:", [str(t) for t in exe.output_types([(7, 32, 32, 3)])])
    print("kernels:", exe.report())

    # Inputs come as a list in the order of `inputs`, or as a dict by tensor or by name.
    for batch in (1, 4, 7):
        x = rng.uniform(0, 1, (batch, 32, 32, 3)).astype(np.float32)
        start = perf_counter()
        results = [exe.run(feeds)[0].numpy() for feeds in ([x], {image: x}, {"image": x})]
        seconds = (perf_counter() - start) / 3
        assert all(np.array_equal(results[0], r) for r in results)
        print(f"batch {batch}: {seconds * 1e3:.2f} ms a run, {results[0].shape}, compiled {exe.compile_count} time")
    assert exe.compile_count == 1

    # Giving sizes to `compile` specialises the program to them. Others still work: then a program for all sizes is
    # made, once.
    special = g.compile([scores], feeds={image: np.zeros((2, 32, 32, 3), np.float32)})
    for batch in (2, 3, 5, 2):
        special.run([np.zeros((batch, 32, 32, 3), np.float32)])
        print(f"specialised to batch 2, run with batch {batch}: compiled {special.compile_count} time(s)")
    assert special.compile_count == 2

    # A mistake is explained before anything runs.
    try:
        exe.run([np.zeros((1, 32, 31, 3), np.float32)])
    except sw.errors.FeedError as e:
        print(e)


if __name__ == "__main__":
    main()
