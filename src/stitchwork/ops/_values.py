"""Small graph pieces that `decompose` and `vjp` rules share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import DType, float32
from stitchwork.ir.graph import Value
from stitchwork.ops._build import F
from stitchwork.ops._families import accumulator, reduced_shape
from stitchwork.ops._op import Array, Ints, building


def wide(x: Value) -> Value:
    """`x` in the dtype that sums are formed in; integers and bools become float32."""
    return convert(x, accumulator(x.dtype) if x.dtype.kind in "fc" else float32)


def convert(x: Value, dtype: DType) -> Value:
    """`x` cast to `dtype`, itself where it has it."""
    return x if x.dtype is dtype else F.cast(x, dtype=dtype)


def filled(like: Value, shape: Sequence[Size], number: float = 0, dtype: DType | None = None) -> Value:
    """A tensor of `shape` whose elements are all `number`, in the graph and dtype of `like`."""
    with building(like.module):
        return F.broadcast(scalar_array(number, dtype or like.dtype), shape=tuple(shape))


def scalar_array(number: float, dtype: DType) -> Array:
    """A 0-d array of a dtype."""
    return np.array(number).astype(dtype.numpy)


def size_scalar(like: Value, size: Size, dtype: DType) -> Value:
    """A size as a scalar tensor in the graph of `like`."""
    with building(like.module):
        return F.size_value(size=size, dtype=dtype)


def coordinates(like: Value, axis: int, shape: Sequence[Size], dtype: DType) -> Value:
    """The position along `axis` of every element of `shape`, in the graph of `like`."""
    with building(like.module):
        return F.coordinate_along_axis(axis=axis, shape=tuple(shape), dtype=dtype)


def spread(reduced: Value, shape: tuple[Size, ...], axes: Ints, keepdims: bool) -> Value:
    """The result of a reduction repeated along the reduced axes of `shape`."""
    kept = reduced if keepdims else F.reshape(reduced, shape=reduced_shape(shape, axes, True))
    return F.broadcast(kept, shape=shape)


def indicator(condition: Value, dtype: DType) -> Value:
    """1 where a bool tensor holds, else 0."""
    return F.cast(condition, dtype=dtype)


def result_cotangents(given: Sequence[Any]) -> list[Value | None]:
    """Cotangents of several results, handed to a `vjp` rule one by one or as one tuple; None for results not used."""
    if len(given) == 1 and isinstance(given[0], tuple):
        return list(cast("tuple[Value | None, ...]", given[0]))
    return list(given)
