"""Cases of 2-D convolution, and how each is computed: NHWC input, HWIO filter, NHWC result.

A register tile is a small rectangle of output pixels x a panel of output channels; its reduction walks the input where
it lies: for one filter row, the inputs of a pixel are contiguous. Padded inputs are first copied, one block of rows at
a time, into the thread's scratch memory with a border of zeros. A 1x1 convolution sees an image as one long row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from stitchwork.backends.cpu.microkernel import (
    SCALAR_BYTES,
    Tile,
    compute_type,
    most_rows,
    tile_cost,
    vector_lanes,
)
from stitchwork.backends.cpu.pack import ALIGNMENT, pack_filter
from stitchwork.backends.cpu.routine import Count, Size, TargetLike, ceil_div, digest, even_parts, known

ENOUGH_ITEMS = 16
"""Work items that keep many threads busy; more would only repeat copying at borders and reading of the filter."""


@dataclass(frozen=True, slots=True)
class ConvSpec:
    """A case of convolution. `n`, `h`, `w` are ints or `Slot`s of `ctx`; channels and filter are static.

    `out_h`, `out_w`: sizes of the result, to be given where `h`, `w` are run-time sizes. `padding`: top, bottom, left,
    right. A 1-D convolution has h = 1. `x`, `weights`, `out`, `scratch` are slots of pointers; `scratch` is read only
    where the plan asks for scratch bytes and holds that many, 64-byte aligned, for each thread, side by side.
    `key` tells epilogues apart: cases with equal specs share one function.
    """

    n: Size
    h: Size
    w: Size
    channels: int
    filters: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1
    out_h: Size | None = None
    out_w: Size | None = None
    type: str = "float"
    out_type: str = ""
    x: int = 0
    weights: int = 1
    out: int = 2
    scratch: int = 3
    key: str = ""

    @property
    def result_type(self) -> str:
        return self.out_type or self.type

    @property
    def rows(self) -> Size:
        """Rows of the result."""
        return self._extent(self.out_h, self.h, 0)

    @property
    def columns(self) -> Size:
        """Pixels of a row of the result."""
        return self._extent(self.out_w, self.w, 1)

    def _extent(self, given: Size | None, size: Size, axis: int) -> Size:
        if given is not None or not isinstance(size, int):
            assert given is not None, "the compiler gives result sizes where input sizes are run-time values"
            return given
        padded = size + self.padding[2 * axis] + self.padding[2 * axis + 1]
        return max(0, (padded - self.span(axis)) // self.strides[axis] + 1)

    def span(self, axis: int) -> int:
        """Input rows or columns that one result reaches over."""
        return self.dilation[axis] * (self.kernel[axis] - 1) + 1

    @property
    def group_channels(self) -> int:
        return self.channels // self.groups

    @property
    def group_filters(self) -> int:
        return self.filters // self.groups

    @property
    def depth(self) -> int:
        """Steps of the reduction."""
        return self.kernel[0] * self.kernel[1] * self.group_channels


@dataclass(frozen=True, slots=True)
class ConvPlan:
    """How a case is computed: tiles of `tile_h` x `tile_w` pixels, items of `block_h` x `block_w` pixels.

    `flat`: an image is one row of pixels. `padded`: items copy their input. `all_panels`: an item computes all output
    channels of its pixels, else one panel.
    """

    spec: ConvSpec
    name: str
    tile: Tile
    tile_h: int
    tile_w: int
    block_h: int
    block_w: int
    flat: bool
    padded: bool
    all_panels: bool

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory for each thread."""
        if not self.padded:
            return 0
        size = math.prod(self.patch) * self.spec.group_channels * SCALAR_BYTES[self.spec.type]
        return ceil_div(size + ALIGNMENT, ALIGNMENT) * ALIGNMENT  # zeros may be written up to a vector too far

    @property
    def panel(self) -> int:
        """Columns of a packed panel of the filter (see `pack_filter`)."""
        return self.tile.columns

    @property
    def panels(self) -> int:
        return ceil_div(self.spec.group_filters, self.panel)

    @property
    def ahead(self) -> int:
        """Elements that a tile asks for at each step of its own reduction, before they are needed; 0: none.

        They are of the next panel where items take one panel each: filters larger than the second-level cache are read
        from far memory once per block of pixels, and the tiles of one panel together bring in the next. Where a 1x1
        convolution takes all panels, it is the image that comes from far: the panels together bring in the next tile.
        """
        if self.all_panels:
            return ceil_div(self.tile_w, self.panels) if self.flat else 0
        tiles = ceil_div(self.block_h, self.tile_h) * ceil_div(self.block_w, self.tile_w)
        return 0 if tiles < 2 else ceil_div(self.panel, tiles)

    @property
    def extent(self) -> tuple[Size, Size]:
        """Rows and columns of the result as the tiles see it."""
        rows, columns = self.spec.rows, self.spec.columns
        if self.flat:
            assert isinstance(rows, int) and isinstance(columns, int)
            return 1, rows * columns
        return rows, columns

    @property
    def patch(self) -> tuple[int, int]:
        """Rows and columns of input under a block."""
        spec = self.spec
        return (
            (self.block_h - 1) * spec.strides[0] + spec.span(0),
            (self.block_w - 1) * spec.strides[1] + spec.span(1),
        )

    @property
    def items(self) -> Count:
        """Work items of the routine."""
        rows, columns = self.extent
        panels = 1 if self.all_panels else self.panels
        return ((self.spec.n, 1), (rows, self.block_h), (columns, self.block_w), (self.spec.groups, 1), (panels, 1))


@dataclass(frozen=True, slots=True)
class _Shape:
    """A candidate for the register tile."""

    vectors: int
    tile_h: int
    tile_w: int
    cost: float


def plan_direct(spec: ConvSpec, target: TargetLike) -> ConvPlan:
    """Choose tile and blocks of a convolution that is not depthwise."""
    scalar = compute_type(spec.type)
    lanes = vector_lanes(target, scalar)
    rows, columns = known(spec.rows), known(spec.columns)
    padded = any(spec.padding)
    flat = spec.kernel == (1, 1) and spec.strides == (1, 1) and not padded and rows is not None and columns is not None
    if flat:
        rows, columns = 1, (rows or 0) * (columns or 0)
    shape = min(_shapes(spec, target, lanes, rows, columns), key=lambda s: s.cost)
    all_panels = _all_panels(spec, target, shape, rows, columns)
    panels = 1 if all_panels else ceil_div(spec.group_filters, shape.vectors * lanes)
    block_h, block_w = _blocks(spec, target, shape, rows, columns, panels)
    return ConvPlan(
        spec,
        digest("conv", spec, target.vector_bytes, target.vector_registers, target.has_masked_ops, target.l2_bytes),
        Tile(shape.tile_h * shape.tile_w, shape.vectors, lanes, scalar),
        shape.tile_h,
        shape.tile_w,
        block_h,
        block_w,
        flat,
        padded,
        all_panels,
    )


def pack_direct(plan: ConvPlan, weights: NDArray[Any]) -> NDArray[Any]:
    """A filter [R, S, C / groups, K] in the order the plan's code reads it, aligned to 64 bytes."""
    return pack_filter(weights, plan.spec.groups, plan.panel)


def _shapes(spec: ConvSpec, target: TargetLike, lanes: int, rows: int | None, columns: int | None) -> Iterator[_Shape]:
    for vectors in (1, 2, 3, 4, 6):
        if vectors == 1 and spec.group_filters > lanes:
            continue
        most = min(most_rows(target, vectors), 16)
        tile_w = most if columns is None else even_parts(columns, most)
        tile_h = 1
        if columns is not None and tile_w >= columns:
            tile_h = max(1, most // tile_w)
            tile_h = tile_h if rows is None else even_parts(rows, tile_h)
        cost = sum(
            count_h * count_w * tile_cost(h * w, vectors)
            for h, count_h in _cover(rows, tile_h)
            for w, count_w in _cover(columns, tile_w)
        )
        yield _Shape(vectors, tile_h, tile_w, cost * ceil_div(spec.group_filters, vectors * lanes))


def _cover(total: int | None, size: int) -> list[tuple[int, float]]:
    """(tile size, tiles) along an axis; an unknown axis counts per element."""
    if total is None:
        return [(size, 1 / size)]
    return [(size, total // size), (total % size, 1)] if total % size else [(size, total // size)]


def _all_panels(spec: ConvSpec, target: TargetLike, shape: _Shape, rows: int | None, columns: int | None) -> bool:
    """Whether an item computes every channel: the filter stays in cache and there are pixels enough for all threads."""
    if spec.depth * spec.group_filters * SCALAR_BYTES[spec.type] > target.l2_bytes // 2:
        return False
    if rows is None or columns is None or not isinstance(spec.n, int):
        return True
    return spec.n * ceil_div(rows, shape.tile_h) * ceil_div(columns, shape.tile_w) >= ENOUGH_ITEMS


def _blocks(
    spec: ConvSpec, target: TargetLike, shape: _Shape, rows: int | None, columns: int | None, panels: int
) -> tuple[int, int]:
    """Rows and columns of an item: their input fits a quarter of the second-level cache, and items are enough."""
    share = 4 if any(spec.padding) else 2
    elements = max(1, target.l2_bytes // share // SCALAR_BYTES[spec.type] // spec.group_channels)

    def most_tiles(axis: int, tile: int, across: int) -> int:
        """Tiles along an axis whose input, `across` wide, fits."""
        lines = elements // across - spec.span(axis)
        return max(1, (lines // spec.strides[axis] + 1) // tile)

    def across(axis: int, size: int) -> int:
        return (size - 1) * spec.strides[axis] + spec.span(axis)

    others = panels * spec.groups * (spec.n if isinstance(spec.n, int) and spec.n > 0 else 1)
    most_w = most_tiles(1, shape.tile_w, across(0, shape.tile_h))
    if columns is None:
        block_w = shape.tile_w * min(most_w, 8)
    else:
        tiles = max(1, ceil_div(columns, shape.tile_w))
        wanted = min(tiles, ceil_div(ENOUGH_ITEMS, others)) if rows == 1 else 1
        block_w = shape.tile_w * even_parts(tiles, ceil_div(tiles, max(ceil_div(tiles, most_w), wanted)))
        others *= max(1, ceil_div(columns, block_w))
    most_h = most_tiles(0, shape.tile_h, across(1, block_w))
    if rows is None:
        return shape.tile_h * min(most_h, 4), block_w
    tiles = max(1, ceil_div(rows, shape.tile_h))
    wanted = min(tiles, ceil_div(ENOUGH_ITEMS, others))
    return shape.tile_h * even_parts(tiles, ceil_div(tiles, max(ceil_div(tiles, most_h), wanted))), block_w
