"""The distinct rows of a matrix: by sorting the rows and looking for neighbours that differ."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stitchwork.importers.onnx.registry import F
from stitchwork.ir import dtypes
from stitchwork.ir.graph import Value
from stitchwork.ops.control_flow import for_loop


class Unique(NamedTuple):
    """For u distinct rows of n: where each occurs first [u], its number for every row [n], how often it occurs [u]."""

    first: Value
    inverse: Value
    counts: Value


def unique_rows(x: Value, by_value: bool) -> Unique:
    """Of x [n, columns], with the rows in the order of their elements, or else of their first occurrence.

    NaN counts as equal to NaN and comes last, as in NumPy's unique.
    """
    order = _sorted_rows(x)
    (n,) = order.shape
    begins = _differs_from_last(F.gather(x, order, axis=0))
    starts = F.squeeze(F.non_zero_indices(begins), axes=1)
    group = F.subtraction(F.cumulative_sum(F.cast(begins, dtypes.int32), axis=0), 1)
    inverse = F.scatter(group, order, shape=(n,), axis=0, mode="set")
    first = F.gather(order, starts, axis=0)
    total = F.reshape(F.size_value(size=n, dtype=dtypes.int32), shape=(1,))
    ends = F.slice_dim(F.concat([starts, total], axis=0), axis=0, start=1, length=starts.shape[0])
    counts = F.subtraction(ends, starts)
    if by_value:
        return Unique(first, inverse, counts)
    turn = F.arg_sort(first, axis=0)
    place = F.scatter(_positions(turn), turn, shape=turn.shape, axis=0, mode="set")
    return Unique(F.gather(first, turn, axis=0), F.gather(place, inverse, axis=0), F.gather(counts, turn, axis=0))


def _positions(like: Value) -> Value:
    """0, 1, 2, ... as a vector as long as another."""
    return F.coordinate_along_axis(axis=0, shape=like.shape[:1], dtype=dtypes.int32)


def _sorted_rows(x: Value) -> Value:
    """The order of the rows: stable sorts by one column after the other, the last column first."""
    n, columns = x.shape
    start = F.coordinate_along_axis(axis=0, shape=(n,), dtype=dtypes.int32)
    turned = F.permute(x, permutation=(1, 0))
    last = F.size_value(size=columns - 1, dtype=dtypes.int64)

    def step(i: Value, order: Value) -> list[Value]:
        column = F.gather(turned, F.subtraction(last, i), axis=0)
        return [F.gather(order, F.arg_sort(F.gather(column, order, axis=0), axis=0), axis=0)]

    if columns == 1:
        return F.arg_sort(F.reshape(x, shape=(n,)), axis=0)
    return for_loop(F.size_value(size=columns, dtype=dtypes.int64), [start], step)[0]


def _differs_from_last(rows: Value) -> Value:
    """Whether each row differs from the one before it; the first does."""
    at = _positions(rows)
    before = F.gather(rows, F.maximum(F.subtraction(at, 1), 0), axis=0)
    differs = F.not_equal(rows, before)
    if rows.dtype.is_float:
        differs = F.logical_and(differs, F.logical_not(F.logical_and(F.is_nan(rows), F.is_nan(before))))
    return F.logical_or(F.equal(at, np.int32(0)), F.reduction_or(differs, axes=1))
