"""Depthwise convolution: every channel has filters of its own, so vectors run over channels.

A tile is a few pixels of one output row x one vector of channels; inputs that several pixels share are loaded once.
Filter rows outside the image are left out; columns outside it read a vector of zeros. An item is a block of output
rows with all their channels, which reads memory strictly forwards; few rows are divided by channels too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from stitchwork.backends.cpu.conv_plan import ENOUGH_ITEMS, ConvSpec
from stitchwork.backends.cpu.llvm import Function, Int, Module, V, as_i64, i64, vector
from stitchwork.backends.cpu.microkernel import (
    SCALAR_BYTES,
    Output,
    Tile,
    compute_type,
    cover,
    epilogue_length,
    finish,
    ladder,
    multiply_add,
    vector_lanes,
    zeros,
)
from stitchwork.backends.cpu.pack import ALIGNMENT, pack_matrix
from stitchwork.backends.cpu.routine import (
    Context,
    Count,
    Epilogue,
    TargetLike,
    begin_helper,
    begin_kernel,
    ceil_div,
    ceil_div_value,
    digest,
    even_parts,
    known,
    unravel,
)


@dataclass(frozen=True, slots=True)
class DepthwisePlan:
    """How a depthwise case is computed: tiles of `tile_w` pixels, items of `block_h` rows x `chunk` vectors."""

    spec: ConvSpec
    name: str
    scalar: str
    lanes: int
    tile_w: int
    block_h: int
    chunk: int
    scratch_bytes: int = 0

    @property
    def items(self) -> Count:
        """Work items of the routine."""
        spec = self.spec
        return ((spec.n, 1), (spec.rows, self.block_h), (spec.filters, self.chunk * self.lanes))

    @property
    def multiplier(self) -> int:
        """Results of each input channel, side by side in the output."""
        return self.spec.group_filters


def is_depthwise(spec: ConvSpec, target: TargetLike) -> bool:
    """Whether vectors over channels do a case: one input channel per group, its results a whole part of a vector."""
    lanes = vector_lanes(target, compute_type(spec.type))
    return spec.groups > 1 and spec.group_channels == 1 and lanes % spec.group_filters == 0


def plan_depthwise(spec: ConvSpec, target: TargetLike) -> DepthwisePlan:
    scalar = compute_type(spec.type)
    lanes = vector_lanes(target, scalar)
    rows, columns = known(spec.rows), known(spec.columns)
    most = 8 if target.vector_registers >= 32 else 4
    tile_w = most if columns is None else even_parts(columns, most)
    vectors = ceil_div(spec.filters, lanes)
    images = spec.n if isinstance(spec.n, int) and spec.n > 0 else 1
    block_h = 4 if rows is None else even_parts(rows, max(1, images * rows // ENOUGH_ITEMS))
    lines = images * ceil_div(rows or ENOUGH_ITEMS, block_h)
    chunk = even_parts(vectors, ceil_div(vectors, ceil_div(ENOUGH_ITEMS, max(1, lines))))
    name = digest("depthwise", spec, target.vector_bytes, target.vector_registers, target.has_masked_ops)
    return DepthwisePlan(spec, name, scalar, lanes, tile_w, block_h, chunk)


def pack_depthwise(plan: DepthwisePlan, weights: NDArray[Any]) -> NDArray[Any]:
    """A filter [R, S, 1, K] as [ceil(K / lanes), R * S, lanes], zero-padded, aligned to 64 bytes."""
    return pack_matrix(weights.reshape(-1, plan.spec.filters), plan.lanes)


def emit_depthwise(module: Module, plan: DepthwisePlan, target: TargetLike, epilogue: Epilogue | None) -> Function:
    """The routine of a plan."""
    return _Depthwise(module, plan, target, epilogue).emit()


class _Depthwise:
    def __init__(self, module: Module, plan: DepthwisePlan, target: TargetLike, epilogue: Epilogue | None) -> None:
        self.module, self.plan, self.spec, self.target, self.epilogue = module, plan, plan.spec, target, epilogue
        self.size = SCALAR_BYTES[plan.spec.type]
        self.zero_name = f"{plan.name}_zero"
        module.globals[self.zero_name] = (
            f"@{self.zero_name} = internal constant [{target.vector_bytes} x i8] zeroinitializer, align {ALIGNMENT}"
        )

    # --- the routine ---------------------------------------------------------------------
    def emit(self) -> Function:
        fn, plan, spec = begin_kernel(self.module, self.plan.name, self.target), self.plan, self.spec
        context = Context(fn)
        x, w, y = context.pointer(spec.x), context.pointer(spec.weights), context.pointer(spec.out)
        height, width, n_size = context.size(spec.h), context.size(spec.w), context.size(spec.n)
        rows, columns = context.size(spec.rows), context.size(spec.columns)
        span = plan.chunk * plan.lanes
        counts: list[Int] = [n_size, ceil_div_value(fn, rows, plan.block_h), ceil_div(spec.filters, span)]
        with fn.loop(fn.params[1], fn.params[2]) as items:
            n, block, chunk = unravel(fn, items.index, counts)
            first, channel = fn.mul(block, plan.block_h), fn.mul(chunk, span)
            image = fn.add(fn.mul(n, fn.mul(fn.mul(height, width), spec.channels)), fn.sdiv(channel, plan.multiplier))
            x_at = fn.gep(x, image, spec.type)
            w_at = fn.gep(w, fn.mul(channel, spec.kernel[0] * spec.kernel[1]), spec.type)
            left = fn.minimum(span, fn.sub(spec.filters, channel))
            with fn.loop(first, fn.minimum(fn.add(first, plan.block_h), rows)) as lines:
                oh = lines.index
                ih = fn.sub(fn.mul(oh, spec.strides[0]), spec.padding[0])
                r_lo, r_hi = self._filter_rows(fn, ih, height)
                x_row = fn.gep(x_at, fn.mul(fn.mul(ih, width), spec.channels), spec.type)
                y_row = fn.mul(fn.mul(fn.add(fn.mul(n, rows), oh), columns), spec.filters)
                y_row = fn.gep(y, fn.add(y_row, channel), spec.result_type)

                def tile(tile_w: int, ow: V) -> None:
                    iw = fn.sub(fn.mul(ow, spec.strides[1]), spec.padding[2])
                    x_tile = fn.gep(x_row, fn.mul(iw, spec.channels), spec.type)
                    y_tile = fn.gep(y_row, fn.mul(ow, spec.filters), spec.result_type)
                    args = [fn.params[0], x_tile, w_at, y_tile, r_lo, r_hi, iw, left, n, oh, ow, channel]
                    self._call(fn, tile_w, args, iw, as_i64(width))

                sizes = ladder(known(spec.columns), plan.tile_w)
                cover(fn, as_i64(columns), sizes, known(spec.columns) is not None, tile)
        fn.ret()
        return fn

    def _filter_rows(self, fn: Function, ih: V, height: Int) -> tuple[V, V]:
        """The range of filter rows that meet the image where the first one lies on input row `ih`."""
        taps, step = self.spec.kernel[0], self.spec.dilation[0]
        if not any(self.spec.padding[:2]):
            return i64(0), i64(taps)
        above = fn.sdiv(fn.add(fn.maximum(fn.sub(0, ih), 0), step - 1), step)
        below = fn.sdiv(fn.add(fn.maximum(fn.sub(height, ih), 0), step - 1), step)
        return fn.minimum(above, taps), fn.minimum(below, taps)

    def _call(self, fn: Function, tile_w: int, args: list[V], iw: V, width: V) -> None:
        spec = self.spec
        if not any(spec.padding[2:]):
            fn.call(self._tile_function(tile_w, False), "void", args)
            return
        reach = (tile_w - 1) * spec.strides[1] + spec.span(1)
        starts = fn.icmp("sge", iw, i64(0))
        ends = fn.icmp("sle", fn.add(iw, reach), width)
        inner, edge, done = fn.new_block("inner"), fn.new_block("edge"), fn.new_block("done")
        fn.cbr(fn.binary("and", starts, ends), inner, edge)
        for label, is_edge in ((inner, False), (edge, True)):
            fn.position(label)
            fn.call(self._tile_function(tile_w, is_edge), "void", args)
            fn.br(done)
        fn.position(done)

    # --- a tile's function ---------------------------------------------------------------
    def _tile_function(self, tile_w: int, edge: bool) -> str:
        """The function of a tile whose first input pixel is at `x`; `edge`: columns of its input may not exist."""
        name = f"{self.plan.name}_{tile_w}{'e' if edge else ''}"
        if name in self.module.functions:
            return name
        params = [("ptr", p) for p in ("ctx", "x", "w", "y")]
        params += [("i64", p) for p in ("r_lo", "r_hi", "iw", "left", "n", "oh", "ow", "channel")]
        fn = begin_helper(self.module, name, params, self.target)
        plan, context = self.plan, Context(fn)
        left, pitch = fn.params[7], fn.mul(context.size(self.spec.w), self.spec.channels)
        present = self._present(fn, context, tile_w) if edge else None
        tile = Tile(tile_w, 1, plan.lanes, plan.scalar)
        whole = fn.sub(left, fn.srem(left, plan.lanes))
        with fn.loop(0, whole, plan.lanes) as vectors:
            self._tile(fn, tile, vectors.index, None, pitch, present)
        if self.spec.filters % plan.lanes:
            if self.target.has_masked_ops:
                with fn.when(fn.icmp("slt", whole, left)):
                    self._tile(fn, tile, whole, fn.sub(left, whole), pitch, present)
            else:
                with fn.loop(whole, left) as scalars:
                    self._tile(fn, Tile(tile_w, 1, 1, plan.scalar), scalars.index, None, pitch, present)
        fn.ret()
        return name

    def _offsets(self, tile_w: int) -> list[int]:
        """Input columns a tile reads, counted from its first."""
        across, step = self.spec.strides[1], self.spec.dilation[1]
        return sorted({p * across + s * step for p in range(tile_w) for s in range(self.spec.kernel[1])})

    def _present(self, fn: Function, context: Context, tile_w: int) -> dict[int, V]:
        width = as_i64(context.size(self.spec.w))
        return {c: fn.icmp("ult", fn.add(fn.params[6], c), width) for c in self._offsets(tile_w)}

    def _tile(self, fn: Function, tile: Tile, at: V, left: V | None, pitch: Int, present: dict[int, V] | None) -> None:
        """One vector of channels, beginning `at` channels into the chunk; `left` of its lanes exist (None: all)."""
        plan, spec = self.plan, self.spec
        _, x, w, y, r_lo, r_hi, _, _, n, oh, ow, channel = fn.params
        taps_w = spec.kernel[1]
        panel = fn.sdiv(at, plan.lanes)
        w_panel = fn.gep(w, fn.mul(panel, spec.kernel[0] * taps_w * plan.lanes), spec.type)
        w_panel = fn.gep(w_panel, fn.srem(at, plan.lanes), spec.type) if tile.lanes == 1 else w_panel
        x_at = fn.gep(x, fn.sdiv(at, plan.multiplier), spec.type)
        mask = None
        if left is not None:
            mask = fn.tail_mask(fn.sdiv(left, plan.multiplier), max(1, tile.lanes // plan.multiplier))
        with fn.loop(r_lo, r_hi, carry=zeros(tile)) as rows:
            row = fn.gep(x_at, fn.mul(fn.mul(rows.index, spec.dilation[0]), pitch), spec.type)
            line = fn.gep(w_panel, fn.mul(rows.index, taps_w * plan.lanes), spec.type)
            inputs = {c: self._input(fn, tile, row, c, mask, present) for c in self._offsets(tile.rows)}
            acc = list(rows.carried)
            for s in range(taps_w):
                align = min(ALIGNMENT, tile.lanes * self.size)
                weight = fn.load(vector(spec.type, tile.lanes), fn.gep(line, s * plan.lanes, spec.type), align)
                weight = self._widen(fn, weight, tile)
                for p in range(tile.rows):
                    value = inputs[p * spec.strides[1] + s * spec.dilation[1]]
                    acc[p] = multiply_add(fn, value, weight, acc[p])
            rows.following = acc
        y_at = fn.gep(y, at, spec.result_type)

        def place(pixel: Int) -> tuple[V, tuple[V, ...]]:
            return fn.gep(y_at, fn.mul(pixel, spec.filters), spec.result_type), (n, oh, fn.add(ow, pixel))

        out = Output(place, fn.add(channel, at), left or tile.lanes, left is None, spec.result_type, self.epilogue)
        unroll = epilogue_length(self.epilogue, tile, 4) <= 8
        finish(fn, tile, rows.results, out, self.target.has_masked_ops, unroll)

    def _input(self, fn: Function, tile: Tile, row: V, column: int, mask: V | None, present: dict[int, V] | None) -> V:
        """The channels of one input pixel, zeros where it lies outside; each channel as often as it has results."""
        spec, repeat = self.spec, min(self.plan.multiplier, tile.lanes)
        address = fn.gep(row, column * spec.channels, spec.type)
        if present is not None:
            address = fn.select(present[column], address, V("ptr", f"@{self.zero_name}"))
        type_ = vector(spec.type, tile.lanes // repeat)
        if mask is not None and tile.lanes // repeat > 1:
            value = fn.masked_load(type_, address, mask, self.size)
        else:
            value = fn.load(type_, address, self.size)
        if repeat > 1 and tile.lanes == repeat:
            value = fn.splat(value, tile.lanes)
        elif repeat > 1:
            picks = ", ".join(f"i32 {lane // repeat}" for lane in range(tile.lanes))
            text = f"shufflevector {value}, {type_} poison, <{tile.lanes} x i32> <{picks}>"
            value = fn.emit(vector(spec.type, tile.lanes), text)
        return self._widen(fn, value, tile)

    def _widen(self, fn: Function, value: V, tile: Tile) -> V:
        return value if value.type == tile.vector_type else fn.convert("fpext", value, tile.vector_type)
