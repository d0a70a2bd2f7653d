"""One executable for every sequence length: an attention layer, compiled once, run at 50 lengths.

python examples/any_sequence_length.py
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

import stitchwork as sw

WIDTH, HEADS = 32, 4


def layer(g: sw.Graph, x: sw.Tensor, rng: np.random.Generator) -> sw.Tensor:
    """Self-attention with a residual and a layer norm: x and the result are [batch, length, WIDTH]."""
    batch, length, _ = x.shape

    def projected() -> sw.Tensor:
        w = rng.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32)
        return g.permute(g.reshape(x @ w, (batch, length, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

    mixed = g.attention(projected(), projected(), projected())
    joined = g.reshape(g.permute(mixed, (0, 2, 1, 3)), (batch, length, WIDTH))
    return g.layer_norm(x + joined)


def main() -> None:
    """Compile with sizes left symbolic, run 50 lengths, and compare some with programs compiled for them alone."""
    g = sw.Graph()
    x = g.placeholder(("batch", "length", WIDTH), name="x")
    y = layer(g, x, np.random.default_rng(0))
    options = sw.CompileOptions(disable_type_inference=True)  # sizes given to `compile`, if any, are not built in
    exe = g.compile([y], feeds={x: (1, 16, WIDTH)}, options=options)
    print("result type:", exe.output_types()[0])

    rng = np.random.default_rng(1)
    lengths = [*rng.permutation(np.arange(1, 148, 3))[:49].tolist(), 256]
    seconds: list[float] = []
    for length in lengths:
        data = rng.normal(0, 1, (2, length, WIDTH)).astype(np.float32)
        start = perf_counter()
        (got,) = exe.run([data])
        seconds.append(perf_counter() - start)
        assert got.shape == (2, length, WIDTH) and np.isfinite(got.numpy()).all()
    print(f"{len(lengths)} lengths from {min(lengths)} to {max(lengths)}: compiled {exe.compile_count} time")
    print(f"first run of a length: {np.median(seconds) * 1e3:.2f} ms median, {max(seconds) * 1e3:.2f} ms at most")
    assert exe.compile_count == 1

    for length in (1, 33, 100):
        data = rng.normal(0, 1, (1, length, WIDTH)).astype(np.float32)
        special = g.compile([y], feeds={x: data})
        np.testing.assert_allclose(exe.run([data])[0], special.run([data])[0], rtol=1e-4, atol=1e-5)
    print("the same results as programs compiled for one length alone")


if __name__ == "__main__":
    main()
