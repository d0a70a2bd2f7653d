"""`gather_nd`, compiled, against NumPy: index vectors of every length, batch dims, indices that are outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stitchwork as sw
from stitchwork.errors import OpError

Array = np.ndarray[Any, Any]


def oracle(x: Array, indices: Array, batch_dims: int = 0) -> Array:
    """Negative indices count from the end; what is still outside reads zeros."""
    if batch_dims:
        return np.stack([oracle(a, i, batch_dims - 1) for a, i in zip(x, indices, strict=True)])
    depth = indices.shape[-1]
    found = np.zeros((*indices.shape[:-1], *x.shape[depth:]), x.dtype)
    for where in np.ndindex(indices.shape[:-1]):
        vector = [int(i) + (n if i < 0 else 0) for i, n in zip(indices[where], x.shape, strict=False)]
        if all(0 <= i < n for i, n in zip(vector, x.shape, strict=False)):
            found[where] = x[tuple(vector)]
    return found


def random_indices(rng: np.random.Generator, lead: tuple[int, ...], sizes: tuple[int, ...], extra: int = 0) -> Array:
    """Index vectors for dims of `sizes`, each from -n - extra to n + extra - 1."""
    return np.stack([rng.integers(-n - extra, n + extra, lead) for n in sizes], -1)


# (shape of x, batch dims, shape of the indices without their last dim, length of a vector)
CASES = [
    ((6,), 0, (4,), 1),
    ((4, 5), 0, (3,), 1),
    ((4, 5), 0, (3, 2), 2),
    ((3, 4, 5), 0, (2, 3), 1),
    ((3, 4, 5), 0, (7,), 2),
    ((3, 4, 5), 0, (2, 2), 3),
    ((3, 4, 5), 0, (), 2),
    ((2, 4, 5), 1, (2, 3), 1),
    ((2, 4, 5), 1, (2,), 2),
    ((2, 4, 5), 1, (2, 3, 2), 2),
    ((2, 3, 4, 5), 2, (2, 3, 6), 1),
    ((2, 3, 4, 5), 2, (2, 3), 1),
    ((2, 3, 4, 5), 2, (2, 3, 2), 2),
]


@pytest.mark.parametrize("shape, batch_dims, lead, depth", CASES)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_against_numpy(
    rng: np.random.Generator, shape: tuple[int, ...], batch_dims: int, lead: tuple[int, ...], depth: int, dtype: str
) -> None:
    x = rng.uniform(1, 2, shape).astype(np.float32)
    sizes = shape[batch_dims : batch_dims + depth]
    inside, anywhere = (random_indices(rng, lead, sizes, extra).astype(dtype) for extra in (0, 3))
    g = sw.Graph()
    table, indices = g.placeholder((None,) * x.ndim), g.placeholder((*[None] * len(lead), depth), dtype)
    exe = g.compile([g.gather_nd(table, indices, batch_dims=batch_dims)])
    fixed = g.compile([g.gather_nd(x, inside, batch_dims=batch_dims)])
    for i in (inside, anywhere):
        np.testing.assert_array_equal(exe.run([x, i])[0], oracle(x, i, batch_dims))
    np.testing.assert_array_equal(fixed.run([])[0], oracle(x, inside, batch_dims))


def test_full_vectors_are_numpy_indexing(rng: np.random.Generator) -> None:
    """The oracle above is a loop; this one is NumPy's own indexing."""
    x = rng.integers(-100, 100, (3, 4, 5)).astype(np.int32)
    vectors = random_indices(rng, (20,), x.shape).astype(np.int32)
    g = sw.Graph()
    (got,) = g.compile([g.gather_nd(g.constant(x), vectors)]).run([])
    np.testing.assert_array_equal(got, x[tuple(vectors.T)])
    (rows,) = g.compile([g.gather_nd(g.constant(x), vectors[:, :1])]).run([])
    np.testing.assert_array_equal(rows, x[vectors[:, 0]])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_extreme_indices_read_zeros(dtype: str) -> None:
    """Also in the middle of a vector whose other entries are inside, and whole rows at once."""
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    limits = np.iinfo(dtype)
    far: list[int] = [limits.max, limits.min, limits.max - 1, limits.min + 1, 3, -4]
    g = sw.Graph()
    table, pairs = g.placeholder((None, None)), g.placeholder((None, 2), dtype)
    rows = g.placeholder((None, 1), dtype)
    exe = g.compile([g.gather_nd(table, pairs), g.gather_nd(table, rows)])
    elements, lines = exe.run(
        [x, np.array([[n, 0] for n in far] + [[0, 2]], dtype), np.array([[n] for n in far], dtype)]
    )
    np.testing.assert_array_equal(elements, [*[0] * len(far), 3])
    np.testing.assert_array_equal(lines, np.zeros((len(far), 4)))


def test_empty_tables_and_indices() -> None:
    g = sw.Graph()
    table, indices = g.placeholder((None, None)), g.placeholder((None, 1), "int32")
    exe = g.compile([g.gather_nd(table, indices)])
    for shape, many in (((3, 4), 0), ((0, 4), 2), ((3, 0), 2)):
        i = np.zeros((many, 1), np.int32)
        (got,) = exe.run([np.ones(shape, np.float32), i])
        np.testing.assert_array_equal(got, oracle(np.ones(shape, np.float32), i))


@pytest.mark.parametrize("dtype", ["float64", "int8", "uint16", "bool", "float16", "complex64"])
def test_dtypes_of_the_table(rng: np.random.Generator, dtype: str) -> None:
    x = rng.integers(0, 2, (5, 3)).astype(dtype)
    i = random_indices(rng, (6,), (5,), 2).astype(np.int32)
    g = sw.Graph()
    (got,) = g.compile([g.gather_nd(g.placeholder((None, 3), dtype), i)]).run([x])
    assert got.numpy().dtype == x.dtype
    np.testing.assert_array_equal(got, oracle(x, i))


def test_gradient_adds_up_what_was_read_twice() -> None:
    g = sw.Graph()
    table = g.placeholder((3, 2), name="table")
    picked = g.gather_nd(table, np.array([[0], [2], [0], [-1], [7]], np.int32))
    (slope,) = g.gradients(g.sum(picked * picked), [table])
    x = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    (got,) = g.compile([slope]).run([x])
    np.testing.assert_allclose(got, x * 2 * np.array([[2], [0], [2]]))


def test_what_is_refused() -> None:
    g = sw.Graph()
    table = g.placeholder((3, 4))
    with pytest.raises(OpError, match="gather_nd"):
        g.gather_nd(table, np.zeros((2, 3), np.int32))  # three indices for two dims
    with pytest.raises(OpError, match="gather_nd"):
        g.gather_nd(table, np.zeros((2, 1), np.int32), batch_dims=1)  # batches of 3 and 2
    with pytest.raises(OpError, match="gather_nd"):
        g.gather_nd(table, np.zeros((2, 1), np.float32))
