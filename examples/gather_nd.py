"""N-dimensional gathers: index vectors pick elements, rows or whole slices; batch dims walk along.

python examples/gather_nd.py
"""

from __future__ import annotations

import numpy as np

import stitchwork as sw


def main() -> None:
    """Gather with three, two and one index per vector, with batch dims, and with indices that are outside."""
    g = sw.Graph()
    table = g.placeholder((None, None, None), name="table")
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    print("table of shape", x.shape, "holding 0 ... 23")

    # The last dim of the indices is one index vector. Dims of the table that it does not reach come along as slices.
    for vectors in ([[0, 0, 1], [1, 2, 3]], [[0, 1], [1, 0]], [[1]]):
        indices = np.array(vectors, np.int32)
        (got,) = g.run({table: x}, targets=[g.gather_nd(table, indices)])
        want = x[tuple(indices.T)]
        print(f"vectors {vectors} -> shape {got.shape}: {got.numpy().reshape(-1).tolist()}")
        np.testing.assert_array_equal(got, want)

    # batch_dims=1: entry b of the indices is looked up in entry b of the table.
    per_batch = np.array([[[0], [2]], [[1], [1]]], np.int32)
    (got,) = g.run({table: x}, targets=[g.gather_nd(table, per_batch, batch_dims=1)])
    print(f"one row list per batch entry -> shape {got.shape}, first elements {got[:, :, 0].tolist()}")
    np.testing.assert_array_equal(got, np.stack([x[b][per_batch[b, :, 0]] for b in range(2)]))

    # Indices are data: they may be anything. Negative ones count from the end, and outside reads give 0.
    outside = np.array([[-1, -1, -1], [5, 0, 0], [0, 0, 2**31 - 1]], np.int32)
    (got,) = g.run({table: x}, targets=[g.gather_nd(table, outside)])
    print(f"last, and twice outside -> {got.numpy().tolist()}")
    np.testing.assert_array_equal(got, [23, 0, 0])

    # Indices can be computed by the graph itself, and then the sizes need not be known either.
    rows = g.placeholder(("n",), sw.int32, name="rows")
    picked = g.gather_nd(table, g.reshape(rows % 2, (rows.shape[0], 1)))
    exe = g.compile([g.sum(picked, axis=(1, 2))])
    for many in (3, 5):
        (got,) = exe.run([x, np.arange(many, dtype=np.int32)])
        print(f"{many} computed indices -> sums {got.numpy().tolist()}")


if __name__ == "__main__":
    main()
