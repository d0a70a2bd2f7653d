"""Regular grids inside a tensor: Python's slice rules on symbolic sizes, and grids as index expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from stitchwork.errors import OpError
from stitchwork.ir import dims
from stitchwork.ir.dims import Dim, Size
from stitchwork.loops.expr import Expr, extent
from stitchwork.ops._contents import int_tuple, known, one_int, one_size
from stitchwork.ops._op import Array, Ints, require_at_least

Shape = tuple[Size, ...]


@dataclass(frozen=True)
class Region:
    """Positions starts + i · strides, i < sizes, per dim; `squeezed` dims (of size 1) are not in the result's shape."""

    starts: Shape
    sizes: Shape
    strides: Ints
    squeezed: Ints

    @property
    def shape(self) -> Shape:
        """The region's shape without the squeezed dims."""
        return tuple(n for d, n in enumerate(self.sizes) if d not in self.squeezed)


def normalize_slices(op: str, rank: int, attrs: dict[str, Any]) -> dict[str, Any]:
    """Slice attributes with one entry per dim, None where an end is open, and masks of open ends worked in."""
    start_mask, end_mask, squeeze = (
        one_int(op, k, attrs.get(k, 0)) for k in ("start_mask", "end_mask", "squeeze_mask")
    )
    starts = _entries(op, "starts", attrs["starts"], rank, None)
    ends = _entries(op, "ends", attrs["ends"], rank, None)
    strides = int_tuple(op, "strides", _entries(op, "strides", attrs.get("strides"), rank, 1))
    if 0 in strides:
        raise OpError(op, "a stride is 0", expected="strides other than 0", got=str(strides))
    return {
        **attrs,
        "starts": tuple(None if start_mask >> d & 1 else n for d, n in enumerate(starts)),
        "ends": tuple(None if end_mask >> d & 1 else n for d, n in enumerate(ends)),
        "strides": strides,
        "start_mask": 0,
        "end_mask": 0,
        "squeeze_mask": squeeze,
    }


def _entries(op: str, what: str, x: Any, rank: int, default: Any) -> tuple[Any, ...]:
    x = known(op, what, x)
    many = cast("tuple[Any, ...]", x if isinstance(x, tuple) else () if x is None else (x,))
    if len(many) > rank:
        raise OpError(op, f"`{what}` has more entries than dims", expected=f"{rank} or fewer", got=str(len(many)))
    return tuple(default if n is None else one_size(op, what, n) for n in (*many, *(None,) * (rank - len(many))))


def resolve_slices(
    op: str, shape: Shape, starts: Sequence[Any], ends: Sequence[Any], strides: Ints, squeeze_mask: int
) -> Region:
    """The region that normalized slice attributes mean in a tensor of `shape`, by Python's rules.

    Negative ints count from the end; symbolic sizes always count from the start. Ends beyond the tensor are clamped. A
    squeezed dim takes the element at its start, which must be there. Raises OpError; adds guards.
    """
    first: list[Size] = []
    sizes: list[Size] = []
    squeezed = tuple(d for d in range(len(shape)) if squeeze_mask >> d & 1)
    for d, (n, start, end, stride) in enumerate(zip(shape, starts, ends, strides, strict=True)):
        if d in squeezed:
            first.append(element_position(op, n, 0 if start is None else start, f"index {start} of dim {d}"))
            sizes.append(1)
        else:
            position, size = _span(n, start, end, stride)
            first.append(position)
            sizes.append(size)
    return Region(tuple(first), tuple(sizes), tuple(1 if d in squeezed else s for d, s in enumerate(strides)), squeezed)


def element_position(op: str, n: Size, index: Size, what: str) -> Size:
    """A position from the start for an index that may be negative. Raises OpError where it is outside."""
    negative = isinstance(index, int) and index < 0
    room = n + index if negative else n - index - 1
    enough = require_at_least(op, room, 0, f"{what} is inside")
    if not enough:
        raise OpError(op, f"{what} is outside", expected=f"-{n} <= index < {n}", got=str(index))
    return n + index if negative else index


def _span(n: Size, start: Size | None, end: Size | None, stride: int) -> tuple[Size, Size]:
    from_end = isinstance(start, int) and start < 0
    if stride > 0:
        first = 0 if start is None else _least(n + start, 0) if from_end else start
        last = n if end is None else n + end if isinstance(end, int) and end < 0 else dims.minimum(end, n)
        return first, _least(dims.ceildiv(last - first, stride), 0)
    first = n - 1 if start is None else n + start if from_end else dims.minimum(start, n - 1)
    last = -1 if end is None else _least(n + end, -1) if isinstance(end, int) and end < 0 else end
    return first, _least(dims.ceildiv(first - last, -stride), 0)


def _least(x: Size, least: int) -> Size:
    """max(x, least), simplified where x >= least is evident."""
    return x if isinstance(x, Dim) and dims.is_nonnegative(x - least) else dims.maximum(x, least)


# --- grids --------------------------------------------------------------------------------------------------------
def grid_position(index: Sequence[Expr], starts: Sequence[Size], strides: Sequence[int]) -> tuple[Expr, ...]:
    """Positions of grid points."""
    return tuple(extent(s) + i * extent(k) for i, s, k in zip(index, starts, strides, strict=True))


def grid_index(
    position: Sequence[Expr], starts: Sequence[Size], strides: Sequence[int]
) -> tuple[tuple[Expr, ...], Expr | None]:
    """Which grid point is at a position (perhaps one outside the grid), and whether there is one (None: always)."""
    index: list[Expr] = []
    on_grid: Expr | None = None
    for p, start, stride in zip(position, starts, strides, strict=True):
        ahead = p - extent(start) if stride > 0 else extent(start) - p
        step = abs(stride)
        index.append(ahead // step)
        if step > 1:
            exact = (ahead % step).eq(0)
            on_grid = exact if on_grid is None else on_grid & exact
    return tuple(index), on_grid


def inside(index: Sequence[Expr], sizes: Sequence[Size], condition: Expr | None = None) -> Expr | None:
    """Whether an index is inside a shape, and `condition` holds; None for always."""
    for i, n in zip(index, sizes, strict=True):
        here = (i >= 0) & (i < extent(n))
        condition = here if condition is None else condition & here
    return condition


def grid_arrays(
    shape: Sequence[Any], starts: Sequence[Any], sizes: Sequence[Any], strides: Sequence[int]
) -> tuple[Any, Any]:
    """NumPy indices (positions in `shape`, grid points) of the grid points that are inside `shape`."""
    positions: list[Array] = []
    points: list[Array] = []
    for n, start, size, stride in zip(shape, starts, sizes, strides, strict=True):
        p: Array = start + stride * arange(size)
        ok = np.flatnonzero((p >= 0) & (p < n))
        positions.append(p[ok].astype(np.int64))
        points.append(ok)
    return np.ix_(*positions), np.ix_(*points)


def arange(n: Any) -> Array:
    """The positions of a dim of n, as int64."""
    return np.arange(int(n), dtype=np.int64)
