"""Cases of matmul, and how each is computed: out[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n].

B is read in panels as wide as the register tile (packed at compile time or by a packing routine), in place where its
rows are contiguous and reuse is low, or along k by dot products where few rows or columns are wanted.
A work item is one column panel of one block of rows: items that follow each other share the rows, which stay in cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stitchwork.backends.cpu.microkernel import SCALAR_BYTES, Tile, choose_tile, compute_type, vector_lanes
from stitchwork.backends.cpu.pack import PackPlan, PackSpec, aligned_zeros, pack_matrix, plan_pack
from stitchwork.backends.cpu.routine import (
    Count,
    Size,
    TargetLike,
    ceil_div,
    digest,
    even_parts,
    known,
)

Form = Literal["panels", "strided", "columns"]
"""How B is read: packed panels; in place, rows contiguous; in place, columns contiguous (dot products)."""


STACK_BYTES = 64 << 10
"""Bytes of stack that a routine may take for one block of results."""

FEW = 4
"""Rows or columns of a result up to which dot products along k beat packing."""


@dataclass(frozen=True, slots=True)
class MatmulSpec:
    """A case of matmul. Sizes and strides are ints or `Slot`s of `ctx`; strides count elements; None: contiguous.

    `a`, `b`, `out` are the slots of the three pointers; `packed_a`, `packed_b` those of the buffers that packing
    routines fill, where the plan asks for them. A batch stride of literal 0 broadcasts. `b_constant`: B is packed at
    compile time by `pack_operand`. `key` tells epilogues apart: cases with equal specs share one function.
    """

    m: Size
    n: Size
    k: Size
    type: str = "float"
    out_type: str = ""
    batch: tuple[Size, ...] = ()
    a_strides: tuple[Size, Size] | None = None
    b_strides: tuple[Size, Size] | None = None
    a_batch_strides: tuple[Size, ...] | None = None
    b_batch_strides: tuple[Size, ...] | None = None
    out_row_stride: Size | None = None
    out_batch_strides: tuple[Size, ...] | None = None
    b_constant: bool = False
    a: int = 0
    b: int = 1
    out: int = 2
    packed_a: int = 3
    packed_b: int = 4
    key: str = ""

    @property
    def result_type(self) -> str:
        return self.out_type or self.type

    @property
    def a_steps(self) -> tuple[Size, Size]:
        return self.a_strides or (self.k, 1)

    @property
    def b_steps(self) -> tuple[Size, Size]:
        return self.b_strides or (self.n, 1)

    @property
    def row_step(self) -> Size:
        return self.n if self.out_row_stride is None else self.out_row_stride


@dataclass(frozen=True, slots=True)
class MatmulPlan:
    """How a case is computed. `pack_a` / `pack_b`: routines to run before it; `panel`: columns of a packed panel.

    `ahead`: elements of the panel that comes next which a tile asks for at each step of its own reduction; 0: none.
    """

    spec: MatmulSpec
    name: str
    form: Form
    tile: Tile
    row_block: int
    k_block: int | None
    pack_a: PackPlan | None
    pack_b: PackPlan | None
    ahead: int = 0

    @property
    def panel(self) -> int:
        return self.tile.columns

    @property
    def few_columns(self) -> bool:
        """In the `columns` form: lanes hold rows of the result, because its columns are few."""
        m, n = known(self.spec.m), known(self.spec.n)
        return n is not None and n <= FEW and (m is None or m > n)

    @property
    def items(self) -> Count:
        """Work items of the routine."""
        return (*((size, 1) for size in self.spec.batch), *self._item_sizes)

    @property
    def _item_sizes(self) -> tuple[tuple[Size, int], tuple[Size, int]]:
        """(size, items' share of it) of rows and columns."""
        spec = self.spec
        if self.form != "columns":
            return (spec.m, self.row_block), (spec.n, self.panel)
        if self.few_columns:
            return (spec.m, self.tile.lanes), (spec.n, FEW)
        return (spec.m, 1), (spec.n, self.tile.lanes)


def plan_matmul(spec: MatmulSpec, target: TargetLike) -> MatmulPlan:
    """Choose form, tile and blocks for a case on a target."""
    form = _form(spec, target)
    scalar = compute_type(spec.type)
    if form == "columns":
        tile = Tile(1, 1, vector_lanes(target, scalar), scalar)
        return MatmulPlan(spec, _name(spec, target), form, tile, 1, None, None, None)
    m, n = known(spec.m), known(spec.n)
    tile = choose_tile(target, scalar, m, n)
    if form == "strided" and m == 1:
        tile = Tile(1, 8 if n is None else min(8, max(1, ceil_div(n, tile.lanes))), tile.lanes, scalar)
    pack_b = None
    if form == "strided" and not _in_place(spec, tile, target):
        form, pack_b = "panels", plan_pack(_pack_b(spec, tile), target)
    pack_a = None if _rows_in_place(spec, tile) else plan_pack(_pack_a(spec, tile), target)
    k_block = _k_block(spec, tile, target)
    row_block = _row_block(spec, tile, target, k_block)
    ahead = _ahead(spec, tile, target, row_block // tile.rows) if form == "panels" else 0
    return MatmulPlan(spec, _name(spec, target), form, tile, row_block, k_block, pack_a, pack_b, ahead)


def pack_operand(plan: MatmulPlan, b: NDArray[Any]) -> NDArray[Any]:
    """A constant B [batch..., K, N] in the order the plan's code reads it, aligned to 64 bytes.

    Batch dimensions along which the spec says B is broadcast (stride 0) must have size 1 or be absent.
    """
    if plan.form == "panels":
        return pack_matrix(b, plan.panel)
    turned = np.swapaxes(b, -1, -2)
    out = aligned_zeros(turned.shape, turned.dtype)
    out[...] = turned
    return out


def _name(spec: MatmulSpec, target: TargetLike) -> str:
    return digest("matmul", spec, target.vector_bytes, target.vector_registers, target.has_masked_ops, target.l2_bytes)


def _form(spec: MatmulSpec, target: TargetLike) -> Form:
    """Before the tile is known: `strided` stands for "not constant" and may still become `panels`."""
    m, n, k = known(spec.m), known(spec.n), known(spec.k)
    long = k is None or k >= vector_lanes(target, compute_type(spec.type))
    rows_contiguous = spec.a_steps[1] == 1
    few = n is not None and n <= FEW and (m is None or m > n)
    if spec.b_constant:
        return "columns" if few and rows_contiguous and long else "panels"
    if spec.b_steps[0] == 1 and rows_contiguous and long:
        if few or (m is not None and m <= FEW):
            return "columns"
    return "strided"


def _in_place(spec: MatmulSpec, tile: Tile, target: TargetLike) -> bool:
    """Whether B's rows are contiguous and read too few times to be worth packing."""
    m, n = known(spec.m), known(spec.n)
    if spec.b_steps[1] != 1:
        return False
    if not target.has_masked_ops and (n is None or n % tile.columns):
        return False
    if m is not None and m <= 2 * tile.rows:
        return True
    return _close(n, spec.b_steps[0], spec.type)


def _rows_in_place(spec: MatmulSpec, tile: Tile) -> bool:
    m, n = known(spec.m), known(spec.n)
    if spec.a_steps[1] == 1:
        return True
    if spec.a_steps[0] != 1:
        return False
    return (n is not None and n <= 2 * tile.columns) or _close(m, spec.a_steps[1], spec.type)


def _close(width: int | None, stride: Size, type_: str) -> bool:
    """Whether a matrix's lines lie so close that reading them across costs no more than packing them."""
    return width is not None and isinstance(stride, int) and stride * SCALAR_BYTES[type_] <= 1024


def broadcast_free(
    batch: tuple[Size, ...], strides: tuple[Size, ...] | None
) -> tuple[tuple[Size, ...], tuple[Size, ...] | None]:
    """Sizes and strides of the batch dimensions an operand varies along."""
    if strides is None:
        return batch, None
    kept = [i for i, stride in enumerate(strides) if stride != 0]
    return tuple(batch[i] for i in kept), tuple(strides[i] for i in kept)


def _pack_b(spec: MatmulSpec, tile: Tile) -> PackSpec:
    kept = broadcast_free(spec.batch, spec.b_batch_strides)
    return PackSpec(
        spec.type, spec.k, spec.n, *spec.b_steps, tile.columns, *kept, source=spec.b, destination=spec.packed_b
    )


def _pack_a(spec: MatmulSpec, tile: Tile) -> PackSpec:
    """A transposed is a matrix [K, M] like B; its panels are as wide as the tile has rows."""
    kept = broadcast_free(spec.batch, spec.a_batch_strides)
    row, column = spec.a_steps
    return PackSpec(spec.type, spec.k, spec.m, column, row, tile.rows, *kept, source=spec.a, destination=spec.packed_a)


def _k_block(spec: MatmulSpec, tile: Tile, target: TargetLike) -> int | None:
    """Steps of the reduction whose panel fits a quarter of the second-level cache; None: never cut."""
    m, k = known(spec.m), known(spec.k)
    if m is not None and m <= tile.rows:
        return None
    most = max(256, target.l2_bytes // 4 // (tile.columns * SCALAR_BYTES[tile.scalar]) // 64 * 64)
    return None if k is not None and k <= most else most


def _ahead(spec: MatmulSpec, tile: Tile, target: TargetLike, tiles: int) -> int:
    """A large B comes from far memory, once per block of rows: its tiles together bring in the next panel."""
    n, k = known(spec.n), known(spec.k)
    small = n is not None and k is not None and n * k * SCALAR_BYTES[spec.type] <= target.l2_bytes // 2
    return 0 if small or tiles < 2 else ceil_div(tile.columns, tiles)


def _row_block(spec: MatmulSpec, tile: Tile, target: TargetLike, k_block: int | None) -> int:
    """Rows of an item: as many as stay in the second-level cache, fewer where too few items would result."""
    m, n, k = known(spec.m), known(spec.n), known(spec.k)
    depth = max(1, k_block or 1024 if k is None else min(k, k_block or k))
    most = max(1, target.l2_bytes // 2 // (depth * SCALAR_BYTES[tile.scalar]) // tile.rows)
    # Accumulators of cut reductions wait on the stack.
    most = min(most, max(1, STACK_BYTES // (tile.columns * SCALAR_BYTES[tile.scalar]) // tile.rows))
    if m is None:
        return tile.rows * min(most, 8)
    tiles = ceil_div(m, tile.rows)
    others = max(1, ceil_div(n, tile.columns)) if n is not None else 8
    for size in spec.batch:
        others *= size if isinstance(size, int) and size > 0 else 1
    blocks = max(ceil_div(tiles, most), min(tiles, ceil_div(32, others)))
    return tile.rows * even_parts(tiles, ceil_div(tiles, max(1, blocks)))
