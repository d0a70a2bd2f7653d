"""Attributes given as tensors, and integer tensors followed as sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from stitchwork.errors import OpError
from stitchwork.ir import dims
from stitchwork.ir.dims import Dim, Size
from stitchwork.ir.graph import Content, Value
from stitchwork.ir.types import TensorType
from stitchwork.ops._op import Array, Op


def known(op: str, what: str, x: Any) -> Any:
    """An attribute without tensors in it: a Value is replaced by what it holds, an array by nested tuples.

    Raises OpError where a Value's content is not known while the graph is built.
    """
    if isinstance(x, Value):
        if x.content is None:
            raise OpError(
                op,
                f"`{what}` is a tensor whose content is not known while the graph is built",
                expected=f"{what} as numbers, sizes, or a tensor computed from constants and shapes",
                got=repr(x),
            )
        return x.content
    if isinstance(x, np.ndarray):
        return as_content(cast("Array", x))
    if isinstance(x, list | tuple):
        return tuple(known(op, what, e) for e in cast("Sequence[Any]", x))
    return x


def size_tuple(op: str, what: str, x: Any) -> tuple[Size, ...]:
    """An attribute as a tuple of ints and sizes; one number counts as a tuple of one. Negative ints are let through."""
    x = known(op, what, x)
    many = cast("tuple[Any, ...]", x) if isinstance(x, tuple) else (x,)
    return tuple(one_size(op, what, e) for e in many)


def one_size(op: str, what: str, x: Any) -> Size:
    """An attribute as an int (of any sign) or a size; a name means the size called so."""
    found = _alone(known(op, what, x))
    if isinstance(found, str):
        try:
            return dims.as_size(found)
        except ValueError as e:
            raise OpError(op, f"`{what}` is not a size", got=str(e)) from None
    if isinstance(found, Dim):
        return found
    try:
        return int(found.__index__())
    except AttributeError:
        raise OpError(op, f"`{what}` is not an integer", expected="ints or sizes", got=repr(found)) from None


def _alone(x: Any) -> Any:
    """The only element of a tuple of one; anything else as it is."""
    many = cast("tuple[Any, ...]", x) if isinstance(x, tuple) else (x, x)
    return many[0] if len(many) == 1 else cast("Any", x)


def one_int(op: str, what: str, x: Any) -> int:
    """An attribute that must be a number when the graph is built."""
    size = one_size(op, what, x)
    if isinstance(size, Dim):
        raise OpError(op, f"`{what}` must be a number, not a symbolic size", got=str(size))
    return size


def int_tuple(op: str, what: str, x: Any) -> tuple[int, ...]:
    """As `size_tuple`, numbers only."""
    return tuple(one_int(op, what, n) for n in size_tuple(op, what, x))


def as_content(array: Array) -> Content:
    """Nested tuples of an array; a scalar's element itself."""
    if array.ndim == 0:
        return array.item()
    return tuple(as_content(np.asarray(row)) if array.ndim > 1 else _plain(row) for row in array)


def _plain(x: Any) -> Any:
    return cast("Any", x).item() if isinstance(x, np.generic) else x


def as_objects(content: Content, type_: TensorType) -> Array | None:
    """What an integer tensor holds as an array of sizes; None where that or its shape is not known."""
    if content is None or not type_.is_static:
        return None
    array: Array = np.empty(cast("tuple[int, ...]", type_.shape), dtype=object)
    for position in np.ndindex(array.shape):
        element: Any = content
        for p in position:
            element = element[p]
        array[position] = element
    return array


def moved(op: Op, types: Sequence[Any], contents: Sequence[Content]) -> Content:
    """`shape_value` of an op that only moves elements: its `numpy` rule applied to arrays of sizes."""
    grouped: list[Any] = []
    for type_, content in zip(types, contents, strict=True):
        if isinstance(type_, tuple):
            pairs = zip(cast("tuple[Any, ...]", content), cast("tuple[TensorType, ...]", type_), strict=True)
            grouped.append([as_objects(c, t) for c, t in pairs])
        else:
            grouped.append(as_objects(content, type_))
    if any(g is None or (isinstance(g, list) and any(e is None for e in cast("list[Any]", g))) for g in grouped):
        return None
    if any(has_symbols(getattr(op, a)) for a in op.attributes()):
        return None
    return as_content(np.asarray(op.numpy(*grouped)))


def has_symbols(x: Any) -> bool:
    """Whether an attribute holds sizes that are not numbers."""
    return isinstance(x, Dim) or (isinstance(x, tuple) and any(map(has_symbols, cast("tuple[Any, ...]", x))))
