"""gather_nd, compiled, against NumPy's own indexing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stitchwork as sw

TABLE = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)


def gather(x: np.ndarray, indices: np.ndarray, **options: Any) -> np.ndarray:
    """Compiled with unknown sizes, except how many entries an index vector has."""
    g = sw.Graph()
    table = g.placeholder((None,) * x.ndim, x.dtype)
    at = g.placeholder((*(None,) * (indices.ndim - 1), indices.shape[-1]), indices.dtype)
    return g.compile([g.gather_nd(table, at, **options)]).run([x, indices])[0].numpy()


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int8, np.uint16])
@pytest.mark.parametrize("entries", [1, 2, 3, 4])
def test_elements_rows_and_slices(entries: int, dtype: Any, rng: np.random.Generator) -> None:
    """Dims that the vectors do not reach come along."""
    for outer in ((6,), (2, 3), (0,), ()):
        indices = np.stack([rng.integers(0, n, outer) for n in TABLE.shape[:entries]], -1).astype(dtype)
        want = TABLE[tuple(np.moveaxis(indices, -1, 0).astype(np.int64))]
        np.testing.assert_array_equal(gather(TABLE, indices), want)


def test_no_entries_at_all() -> None:
    """An empty index vector means the whole table."""
    np.testing.assert_array_equal(gather(TABLE, np.zeros((2, 0), np.int32)), np.stack([TABLE, TABLE]))


@pytest.mark.parametrize("batch_dims", [1, 2])
@pytest.mark.parametrize("entries", [1, 2])
def test_batch_dims(batch_dims: int, entries: int, rng: np.random.Generator) -> None:
    batch, rest = TABLE.shape[:batch_dims], TABLE.shape[batch_dims:]
    indices = np.stack([rng.integers(0, n, (*batch, 3)) for n in rest[:entries]], -1).astype(np.int32)
    want = np.empty((*batch, 3, *rest[entries:]), np.float32)
    for b in np.ndindex(*batch):
        for k in range(3):
            want[(*b, k)] = TABLE[b][tuple(indices[(*b, k)])]
    np.testing.assert_array_equal(gather(TABLE, indices, batch_dims=batch_dims), want)


def test_negative_and_outside() -> None:
    """Negative indices count from the end; outside reads 0; one entry outside is enough."""
    indices = np.array([[-1, -1], [-2, 0], [-3, 0], [2, 0], [0, 3], [0, -4], [2**31 - 1, 0], [-(2**31), 0]], np.int32)
    want = np.zeros((8, 4, 5), np.float32)
    want[0], want[1] = TABLE[-1, -1], TABLE[-2, 0]
    np.testing.assert_array_equal(gather(TABLE, indices), want)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.bool_, np.complex64])
def test_tables_of_other_dtypes(dtype: Any) -> None:
    table = (TABLE[0] % 7).astype(dtype)
    indices = np.array([[0, 1], [2, 3], [9, 9]], np.int32)
    want = np.concatenate([table[[0, 2], [1, 3]], np.zeros((1, 5), dtype)])
    np.testing.assert_array_equal(gather(table, indices), want)


def test_empty_tables_read_zero() -> None:
    np.testing.assert_array_equal(
        gather(np.zeros((0, 2), np.float32), np.array([[0], [-1]], np.int32)), np.zeros((2, 2))
    )


def test_gathers_are_stitched_into_what_uses_them() -> None:
    """The gathered rows never reach memory."""
    g = sw.Graph()
    table, at = g.placeholder((None, None)), g.placeholder((None, 1), sw.int32)
    exe = g.compile([g.sum(g.exp(g.gather_nd(table, at) * 2.0), axis=1)])
    assert exe.report().startswith("1 kernels"), exe.report()
    x, i = TABLE[0, 0], np.array([[3], [0], [3]], np.int32)
    np.testing.assert_allclose(exe.run([x / 10, i])[0], np.exp(x[[3, 0, 3]] / 5).sum(1), rtol=1e-5)


def test_gradients_add_up_where_indices_repeat() -> None:
    g = sw.Graph()
    table, at = g.placeholder((None, None)), g.placeholder((None, 1), sw.int32)
    (gradient,) = g.gradients(g.sum(g.gather_nd(table, at) * 3.0), [table])
    (got,) = g.compile([gradient], feeds=[table, at]).run([TABLE[0, 0], np.array([[1], [1], [-1], [8]], np.int32)])
    np.testing.assert_array_equal(got, np.array([[0], [6], [0], [3]]) * np.ones(5))
