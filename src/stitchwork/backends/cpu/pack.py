"""Panels: the order in which micro-kernels read their right-hand operand.

A matrix [K, N] becomes [ceil(N / P)][K][P], zeros filling the last panel, so that a register tile P columns wide reads
memory strictly forwards. Constant operands are packed by NumPy at compile time, others by a generated routine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stitchwork.backends.cpu.llvm import Function, Int, Module, V, i64, lanes, vector
from stitchwork.backends.cpu.microkernel import SCALAR_BYTES, compute_type, vector_lanes
from stitchwork.backends.cpu.routine import (
    Context,
    Count,
    Size,
    TargetLike,
    batch_steps,
    begin_kernel,
    ceil_div,
    ceil_div_value,
    digest,
    dot_index,
    row_major,
    unravel,
)

ALIGNMENT = 64
"""Bytes that packed operands are aligned to, whoever packs them."""


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeros whose first element lies on a 64-byte boundary."""
    count = int(np.prod(shape, dtype=np.int64))
    raw = np.zeros(count * dtype.itemsize + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + count * dtype.itemsize].view(dtype).reshape(shape)


def pack_matrix(matrix: NDArray[Any], panel: int) -> NDArray[Any]:
    """[..., K, N] of any strides -> [..., ceil(N / panel), K, panel], zero-padded, aligned to 64 bytes."""
    *batch, k, n = matrix.shape
    panels = ceil_div(n, panel)
    out = aligned_zeros((*batch, panels, k, panel), matrix.dtype)
    whole = n // panel
    if whole:
        parts = matrix[..., : whole * panel].reshape(*batch, k, whole, panel)
        out[..., :whole, :, :] = np.moveaxis(parts, -2, -3)
    if n % panel:
        out[..., whole, :, : n % panel] = matrix[..., whole * panel :]
    return out


def pack_filter(weights: NDArray[Any], groups: int, panel: int) -> NDArray[Any]:
    """HWIO [R, S, C / groups, K] -> [groups, ceil(K / groups / panel), R * S * C / groups, panel], zero-padded."""
    *_, k = weights.shape
    rows = weights.reshape(-1, groups, k // groups)
    return pack_matrix(np.moveaxis(rows, 1, 0), panel)


# --- packing at run time ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackSpec:
    """A matrix [batch..., rows, columns] in `ctx[source]` to be packed into the 64-byte aligned `ctx[target]`.

    Strides count elements; batch strides None: contiguous matrices. The result is
    [batch..., ceil(columns / panel), rows, panel].
    """

    type: str
    rows: Size
    columns: Size
    row_stride: Size
    column_stride: Size
    panel: int
    batch: tuple[Size, ...] = ()
    batch_strides: tuple[Size, ...] | None = None
    source: int = 0
    destination: int = 1


@dataclass(frozen=True, slots=True)
class PackPlan:
    """A packing routine: its name, how many items and bytes it has for given sizes."""

    spec: PackSpec
    name: str
    row_block: int
    group: int

    @property
    def items(self) -> Count:
        """Work items of the routine."""
        spec = self.spec
        return (*((s, 1) for s in spec.batch), (spec.rows, self.row_block), (spec.columns, spec.panel * self.group))

    @property
    def packed_bytes(self) -> Count:
        """Bytes of the packed operand."""
        spec = self.spec
        sizes = (*spec.batch, spec.rows, spec.panel * SCALAR_BYTES[spec.type])
        return (*((s, 1) for s in sizes), (spec.columns, spec.panel))


def plan_pack(spec: PackSpec, target: TargetLike) -> PackPlan:
    """Items that read whole cache lines and pages: a few panels side by side, or long stretches of columns."""
    name = digest("pack", spec, target.vector_bytes, target.has_masked_ops)
    return PackPlan(spec, name, 32, 8) if spec.column_stride == 1 else PackPlan(spec, name, 256, 1)


def emit_pack(module: Module, plan: PackPlan, target: TargetLike) -> Function:
    """Add the packing routine to the module, unless it is there already."""
    if plan.name in module.functions:
        return module.functions[plan.name]
    fn = begin_kernel(module, plan.name, target)
    writer = _Packer(fn, plan, target)
    with fn.loop(fn.params[1], fn.params[2]) as items:
        writer.item(items.index)
    fn.ret()
    return fn


class _Packer:
    """Writes the body of one packing routine."""

    def __init__(self, fn: Function, plan: PackPlan, target: TargetLike) -> None:
        spec, context = plan.spec, Context(fn)
        self.fn, self.spec, self.row_block, self.group = fn, spec, plan.row_block, plan.group
        self.source, self.destination = context.pointer(spec.source), context.pointer(spec.destination)
        self.rows, self.columns = context.size(spec.rows), context.size(spec.columns)
        self.row_stride, self.column_stride = context.size(spec.row_stride), context.size(spec.column_stride)
        self.batch = [context.size(s) for s in spec.batch]
        self.batch_strides = batch_steps(context, spec.batch, spec.batch_strides, fn.mul(self.rows, self.columns))
        self.panels = ceil_div_value(fn, self.columns, spec.panel)
        self.blocks = ceil_div_value(fn, self.rows, plan.row_block)
        self.lanes, self.masked_ops = vector_lanes(target, compute_type(spec.type)), target.has_masked_ops
        self.align = SCALAR_BYTES[spec.type]

    def item(self, item: V) -> None:
        fn = self.fn
        *lead, block, group = unravel(fn, item, [*self.batch, self.blocks, ceil_div_value(fn, self.panels, self.group)])
        first = fn.mul(group, self.group)
        with fn.loop(first, fn.minimum(fn.add(first, self.group), self.panels)) as panels:
            self._panel(lead, block, panels.index)

    def _panel(self, lead: list[V], block: V, panel: V) -> None:
        fn, spec = self.fn, self.spec
        first = fn.mul(panel, spec.panel)
        left = fn.sub(self.columns, first)
        source = fn.gep(self.source, dot_index(fn, lead, self.batch_strides), spec.type)
        source = fn.gep(source, fn.mul(first, self.column_stride), spec.type)
        number = panel
        if self.batch:
            number = fn.add(dot_index(fn, lead, row_major(fn, self.batch, self.panels)), panel)
        start = fn.mul(number, fn.mul(self.rows, spec.panel))
        destination = fn.gep(self.destination, start, spec.type)
        lo = fn.mul(block, self.row_block)
        hi = fn.minimum(fn.add(lo, self.row_block), self.rows)
        if self.column_stride == 1:
            self._copy(source, destination, left, lo, hi)
        elif self.row_stride == 1 and spec.panel % self.lanes == 0:
            self._transpose(source, destination, left, lo, hi)
        else:
            self._scalars(source, destination, left, lo, hi)

    def _copy(self, source: V, destination: V, left: V, lo: Int, hi: Int) -> None:
        fn, spec = self.fn, self.spec
        if not self.masked_ops:
            whole, edge, done = fn.new_block("whole"), fn.new_block("edge"), fn.new_block("done")
            fn.cbr(fn.icmp("sge", left, i64(spec.panel)), whole, edge)
            fn.position(edge)
            self._scalars(source, destination, left, lo, hi)
            fn.br(done)
            fn.position(whole)
            self._copy_rows(source, destination, None, lo, hi)
            fn.br(done)
            fn.position(done)
        else:
            starts = range(0, spec.panel, self.lanes)
            masks = [fn.tail_mask(fn.sub(fn.minimum(left, spec.panel), j), self.lanes) for j in starts]
            self._copy_rows(source, destination, masks, lo, hi)

    def _copy_rows(self, source: V, destination: V, masks: list[V] | None, lo: Int, hi: Int) -> None:
        """Rows of contiguous columns; with masks, columns that do not exist are written as zeros."""
        fn, spec, lanes = self.fn, self.spec, self.lanes
        with fn.loop(lo, hi) as rows:
            at = fn.gep(source, fn.mul(rows.index, self.row_stride), spec.type)
            to = fn.gep(destination, fn.mul(rows.index, spec.panel), spec.type)
            for x, j in enumerate(range(0, spec.panel, lanes)):
                width = min(lanes, spec.panel - j)
                address = fn.gep(to, j, spec.type)
                if masks is not None:
                    value = fn.masked_load(vector(spec.type, lanes), fn.gep(at, j, spec.type), masks[x], self.align)
                    if width == lanes:
                        fn.store(value, address, self.align)
                    else:
                        fn.masked_store(value, address, fn.tail_mask(i64(width), lanes), self.align)
                elif width == lanes:
                    value = fn.load(vector(spec.type, lanes), fn.gep(at, j, spec.type), self.align)
                    fn.store(value, address, self.align)
                else:
                    for lane in range(j, j + width):
                        value = fn.load(spec.type, fn.gep(at, lane, spec.type), self.align)
                        fn.store(value, fn.gep(to, lane, spec.type), self.align)

    def _transpose(self, source: V, destination: V, left: V, lo: Int, hi: Int) -> None:
        """Columns of contiguous rows, in squares; columns that do not exist repeat the last one (nobody reads them)."""
        fn, spec, lanes = self.fn, self.spec, self.lanes
        count = fn.sub(hi, lo)
        squares_end = fn.add(lo, fn.sub(count, fn.srem(count, lanes)))
        last = fn.sub(left, 1)
        with fn.loop(0, spec.panel, lanes) as columns:
            bases = [
                fn.gep(source, fn.mul(fn.minimum(fn.add(columns.index, x), last), self.column_stride), spec.type)
                for x in range(lanes)
            ]
            to = fn.gep(destination, columns.index, spec.type)
            with fn.loop(lo, squares_end, lanes) as rows:
                square = [
                    fn.load(vector(spec.type, lanes), fn.gep(base, rows.index, spec.type), self.align) for base in bases
                ]
                start = fn.gep(to, fn.mul(rows.index, spec.panel), spec.type)
                for x, value in enumerate(transpose_square(fn, square)):
                    fn.store(value, fn.gep(start, x * spec.panel, spec.type), self.align)
        self._scalars(source, destination, left, squares_end, hi)

    def _scalars(self, source: V, destination: V, left: V, lo: Int, hi: Int) -> None:
        fn, spec = self.fn, self.spec
        zero = V(spec.type, "0.0")
        with fn.loop(lo, hi) as rows:
            at = fn.gep(source, fn.mul(rows.index, self.row_stride), spec.type)
            to = fn.gep(destination, fn.mul(rows.index, spec.panel), spec.type)
            present = fn.minimum(left, spec.panel)
            with fn.loop(0, present) as columns:
                value = fn.load(spec.type, fn.gep(at, fn.mul(columns.index, self.column_stride), spec.type), self.align)
                fn.store(value, fn.gep(to, columns.index, spec.type), self.align)
            with fn.loop(present, spec.panel) as columns:
                fn.store(zero, fn.gep(to, columns.index, spec.type), self.align)


def transpose_square(fn: Function, rows: list[V]) -> list[V]:
    """Transpose as many vectors as they have lanes (a power of two): halves exchanged at every distance."""
    rows, distance = list(rows), len(rows) // 2
    while distance:
        for i in range(len(rows)):
            if not i & distance:
                rows[i], rows[i + distance] = _exchange(fn, rows[i], rows[i + distance], distance)
        distance //= 2
    return rows


def sum_square(fn: Function, rows: list[V]) -> V:
    """The vector whose lane i is the sum over the lanes of vector i, of as many vectors as they have lanes."""
    while len(rows) > 1:
        distance = len(rows) // 2
        pairs = [_exchange(fn, rows[i], rows[i + distance], distance) for i in range(distance)]
        rows = [fn.binary("fadd", low, high) for low, high in pairs]
    return rows[0]


def _exchange(fn: Function, a: V, b: V, distance: int) -> tuple[V, V]:
    width = lanes(a.type)[1]
    low = [lane if not lane & distance else width + lane - distance for lane in range(width)]
    high = [lane + distance if not lane & distance else width + lane for lane in range(width)]
    return _shuffle(fn, a, b, low), _shuffle(fn, a, b, high)


def _shuffle(fn: Function, a: V, b: V, picks: list[int]) -> V:
    mask = ", ".join(f"i32 {p}" for p in picks)
    return fn.emit(a.type, f"shufflevector {a}, {b}, <{len(picks)} x i32> <{mask}>")
