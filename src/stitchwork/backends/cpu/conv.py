"""Code of convolution routines: `plan_conv` chooses, `emit_conv` writes (see `conv_plan.py` for the choices)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from stitchwork.backends.cpu.conv_plan import ConvPlan, ConvSpec, pack_direct, plan_direct
from stitchwork.backends.cpu.depthwise import (
    DepthwisePlan,
    emit_depthwise,
    is_depthwise,
    pack_depthwise,
    plan_depthwise,
)
from stitchwork.backends.cpu.llvm import Function, Int, Module, V, as_i64, i64
from stitchwork.backends.cpu.microkernel import (
    SCALAR_BYTES,
    Ahead,
    Output,
    Stream,
    Tile,
    accumulate,
    cover,
    epilogue_length,
    finish,
    ladder,
    zeros,
)
from stitchwork.backends.cpu.pack import ALIGNMENT
from stitchwork.backends.cpu.patch import patch_function
from stitchwork.backends.cpu.routine import (
    Context,
    Epilogue,
    TargetLike,
    begin_helper,
    begin_kernel,
    ceil_div,
    ceil_div_value,
    known,
    unravel,
)

__all__ = ["ConvPlan", "ConvSpec", "DepthwisePlan", "emit_conv", "pack_weights", "plan_conv"]

UNROLLED_STORE = 160
"""Instructions up to which a short reduction's store is written out per accumulator."""


def plan_conv(spec: ConvSpec, target: TargetLike) -> ConvPlan | DepthwisePlan:
    """Choose how a case is computed. Both plans have `name`, `items` and `scratch_bytes`."""
    return plan_depthwise(spec, target) if is_depthwise(spec, target) else plan_direct(spec, target)


def pack_weights(plan: ConvPlan | DepthwisePlan, weights: NDArray[Any]) -> NDArray[Any]:
    """A filter [R, S, C / groups, K] in the order the plan's code reads it, aligned to 64 bytes."""
    return pack_direct(plan, weights) if isinstance(plan, ConvPlan) else pack_depthwise(plan, weights)


def emit_conv(
    module: Module, plan: ConvPlan | DepthwisePlan, target: TargetLike, epilogue: Epilogue | None = None
) -> Function:
    """Add the routine of a plan to the module, unless it is there already.

    The epilogue's indices are (n, row, column, channel). Callers must give a filter packed by `pack_weights` and an
    output that overlaps no operand.
    """
    if plan.name in module.functions:
        return module.functions[plan.name]
    if isinstance(plan, DepthwisePlan):
        return emit_depthwise(module, plan, target, epilogue)
    return _Direct(module, plan, target, epilogue).emit()


class _Direct:
    """Writes one routine: a driver over blocks of pixels and a function per size of tile."""

    def __init__(self, module: Module, plan: ConvPlan, target: TargetLike, epilogue: Epilogue | None) -> None:
        self.module, self.plan, self.spec, self.target, self.epilogue = module, plan, plan.spec, target, epilogue
        filters = plan.spec.group_filters
        self.whole = True if filters % plan.panel == 0 else False if filters < plan.panel else None
        # Elements from pixel to pixel: a copied input holds one group's channels only.
        self.pixel = plan.spec.group_channels if plan.padded else plan.spec.channels

    def emit(self) -> Function:
        fn = begin_kernel(self.module, self.plan.name, self.target)
        _Driver(self, fn).write()
        return fn

    def pitch(self, context: Context) -> Int:
        """Elements from row to row of what the tiles read."""
        if self.plan.padded:
            return self.plan.patch[1] * self.pixel
        return context.fn.mul(context.size(self.spec.w), self.pixel)

    # --- a tile's function ---------------------------------------------------------------
    def tile_function(self, tile_h: int, tile_w: int) -> str:
        """The function of a tile whose first pixel reads at `x` and is written at `y`, for one panel `w`."""
        name = f"{self.plan.name}_{tile_h}x{tile_w}"
        if name in self.module.functions:
            return name
        params = [("ptr", p) for p in ("ctx", "x", "w", "y")]
        params += [("i64", p) for p in ("left", "n", "oh", "ow", "channel")]
        params += [("ptr", "ahead")] if self.plan.ahead else []
        fn = begin_helper(self.module, name, params, self.target)
        plan_tile, spec = self.plan.tile, self.spec
        tile = Tile(tile_h * tile_w, plan_tile.vectors, plan_tile.lanes, plan_tile.scalar)
        context = Context(fn)
        acc = self._reduce(context, tile, tile_h, tile_w)
        out = Output(
            self._place(context, tile_w), fn.params[8], fn.params[4], self.whole, spec.result_type, self.epilogue
        )
        per_vector = 2 + epilogue_length(self.epilogue, tile, 4)
        unroll = spec.depth <= 256 and tile.rows * tile.vectors * per_vector <= UNROLLED_STORE
        finish(fn, tile, acc, out, self.target.has_masked_ops, unroll)
        fn.ret()
        return name

    def _reduce(self, context: Context, tile: Tile, tile_h: int, tile_w: int) -> list[V]:
        """Sum over the filter: one loop over stretches of contiguous input, one along each."""
        fn, spec = context.fn, self.spec
        _, x, w, *_, last = fn.params
        ahead = Ahead(last, self.plan.ahead, spec.type) if self.plan.ahead else None
        pitch = self.pitch(context)
        rows_r, taps = spec.kernel
        merged = spec.dilation[1] == 1 and self.pixel == spec.group_channels
        length = spec.group_channels * (taps if merged else 1)
        stretches = rows_r if merged else rows_r * taps
        size = SCALAR_BYTES[spec.type]
        a, b = Stream(spec.type, 1, size), Stream(spec.type, tile.columns, min(ALIGNMENT, tile.lanes * size))

        def stretch(index: Int, acc: list[V]) -> list[V]:
            r, s = (index, 0) if merged else (fn.sdiv(index, taps), fn.srem(index, taps))
            offset = fn.add(fn.mul(fn.mul(r, spec.dilation[0]), pitch), fn.mul(s, spec.dilation[1] * self.pixel))
            start = fn.gep(x, offset, spec.type)
            rows = self._pixels(fn, start, pitch, tile_h, tile_w)
            weights = fn.gep(w, fn.mul(index, length * tile.columns), spec.type)
            part = ahead.after(fn, fn.mul(index, length)) if ahead else None
            return accumulate(fn, tile, rows, a, weights, b, length, acc, ahead=part)

        if stretches == 1:
            return stretch(0, zeros(tile))
        with fn.loop(0, stretches, carry=zeros(tile)) as loop:
            loop.following = stretch(loop.index, loop.carried)
        return loop.results

    def _pixels(self, fn: Function, start: V, pitch: Int, tile_h: int, tile_w: int) -> list[tuple[V, int]]:
        """Where each pixel of a tile reads: a base and a known distance."""
        step = self.spec.strides[1] * self.pixel
        rows: list[tuple[V, int]] = []
        for i in range(tile_h):
            down = as_i64(fn.mul(i * self.spec.strides[0], pitch))
            base, known_part = (
                (start, down.literal) if down.literal is not None else (fn.gep(start, down, self.spec.type), 0)
            )
            rows += [(base, known_part + j * step) for j in range(tile_w)]
        return rows

    def _place(self, context: Context, tile_w: int) -> Callable[[Int], tuple[V, tuple[V, ...]]]:
        fn, spec, plan = context.fn, self.spec, self.plan
        _, _, _, y, _, n, oh, ow, *_ = fn.params
        columns = context.size(plan.extent[1])

        def place(row: Int) -> tuple[V, tuple[V, ...]]:
            i, j = fn.sdiv(row, tile_w), fn.srem(row, tile_w)
            pixel = fn.add(fn.mul(i, columns), j)
            address = fn.gep(y, fn.mul(pixel, spec.filters), spec.result_type)
            across = fn.add(ow, j)
            if plan.flat:
                width = known(spec.columns) or 1
                return address, (n, fn.sdiv(across, width), fn.srem(across, width))
            return address, (n, fn.add(oh, i), across)

        return place


class _Driver:
    """Writes the routine itself: items to blocks of pixels, their input copied where it is padded, tiles, panels."""

    def __init__(self, owner: _Direct, fn: Function) -> None:
        plan, spec, context = owner.plan, owner.spec, Context(fn)
        self.owner, self.fn, self.plan, self.spec = owner, fn, plan, spec
        self.x, self.w, self.y = context.pointer(spec.x), context.pointer(spec.weights), context.pointer(spec.out)
        self.n, self.height, self.width = context.size(spec.n), context.size(spec.h), context.size(spec.w)
        self.rows, self.columns = map(context.size, plan.extent)
        if plan.flat:
            self.height, self.width = 1, self.columns
        self.pitch = owner.pitch(context)
        self.scratch = V("ptr", "null")
        if plan.padded:
            share = fn.mul(fn.params[3], plan.scratch_bytes)
            self.scratch = fn.gep(context.pointer(spec.scratch), share, "i8")

    def write(self) -> None:
        fn, plan = self.fn, self.plan
        panels = 1 if plan.all_panels else plan.panels
        blocks = [ceil_div_value(fn, self.rows, plan.block_h), ceil_div_value(fn, self.columns, plan.block_w)]
        with fn.loop(fn.params[1], fn.params[2], carry=[i64(-1)]) as items:
            n, block_i, block_j, group, panel = unravel(fn, items.index, [self.n, *blocks, self.spec.groups, panels])
            oh, ow = fn.mul(block_i, plan.block_h), fn.mul(block_j, plan.block_w)
            rows = fn.minimum(plan.block_h, fn.sub(self.rows, oh))
            columns = fn.minimum(plan.block_w, fn.sub(self.columns, ow))
            if known(plan.extent[0]) == plan.block_h:
                rows = i64(plan.block_h)
            if known(plan.extent[1]) == plan.block_w:
                columns = i64(plan.block_w)
            image = fn.mul(n, fn.mul(fn.mul(self.height, self.width), self.spec.channels))
            x = fn.gep(self.x, fn.add(image, fn.mul(group, self.spec.group_channels)), self.spec.type)
            held = fn.sdiv(items.index, panels)
            items.following = [held]
            if plan.padded:
                with fn.when(fn.icmp("ne", held, items.carried[0])):
                    self._copy(x, oh, ow, rows, columns)
                x = self.scratch
            else:
                down, across = fn.mul(oh, self.spec.strides[0]), fn.mul(ow, self.spec.strides[1])
                x = fn.gep(x, fn.add(fn.mul(down, self.pitch), fn.mul(across, self.owner.pixel)), self.spec.type)
            self._block(x, (n, oh, ow), rows, columns, group, panel)
        fn.ret()

    def _copy(self, x: V, oh: V, ow: V, rows: V, columns: V) -> None:
        """Bring the input under a block into scratch memory."""
        fn, spec = self.fn, self.spec
        name = patch_function(self.owner.module, self.plan, self.owner.target)
        starts = [fn.sub(fn.mul(at, spec.strides[axis]), spec.padding[2 * axis]) for axis, at in ((0, oh), (1, ow))]
        counts = [
            fn.add(fn.mul(fn.sub(count, 1), spec.strides[axis]), spec.span(axis))
            for axis, count in ((0, rows), (1, columns))
        ]
        sizes = [as_i64(self.height), as_i64(self.width)]
        fn.call(name, "void", [fn.params[0], x, self.scratch, *starts, *counts, *sizes])

    def _block(self, x: V, at: tuple[V, V, V], rows: V, columns: V, group: V, panel: V) -> None:
        fn, plan, spec = self.fn, self.plan, self.spec
        extent = known(plan.extent[0]), known(plan.extent[1])
        n, oh, ow = at
        row0 = fn.add(fn.mul(n, self.rows), oh)
        pixel0 = fn.add(fn.mul(row0, self.columns), ow)
        y = fn.gep(self.y, fn.add(fn.mul(pixel0, spec.filters), fn.mul(group, spec.group_filters)), spec.result_type)
        panel_size = spec.depth * plan.panel
        w = fn.gep(self.w, fn.mul(group, plan.panels * panel_size), spec.type)
        channel0 = fn.mul(group, spec.group_filters)

        def tile(tile_h: int, i: V, tile_w: int, j: V) -> None:
            down, across = fn.mul(i, spec.strides[0]), fn.mul(j, spec.strides[1])
            x_at = fn.gep(x, fn.add(fn.mul(down, self.pitch), fn.mul(across, self.owner.pixel)), spec.type)
            y_at = fn.gep(y, fn.mul(fn.add(fn.mul(i, self.columns), j), spec.filters), spec.result_type)
            name = self.owner.tile_function(tile_h, tile_w)
            first, last = (i64(0), i64(plan.panels)) if plan.all_panels else (panel, fn.add(panel, 1))

            def call(number: V) -> None:
                column = fn.mul(number, plan.panel)
                args = [fn.params[0], x_at, fn.gep(w, fn.mul(number, panel_size), spec.type)]
                args += [fn.gep(y_at, column, spec.result_type), fn.sub(spec.group_filters, column)]
                args += [n, fn.add(oh, i), fn.add(ow, j), fn.add(channel0, column)]
                if plan.ahead:
                    args.append(self._ahead(x_at, w, number, i, j))
                fn.call(name, "void", args)

            if plan.all_panels and plan.panels > 1:
                with fn.loop(first, last) as numbers:
                    call(numbers.index)
            else:
                call(first)

        def line(tile_h: int, i: V) -> None:
            sizes = ladder(extent[1], plan.tile_w)
            cover(fn, columns, sizes, extent[1] is not None, lambda tile_w, j: tile(tile_h, i, tile_w, j))

        cover(fn, rows, ladder(extent[0], plan.tile_h), extent[0] is not None, line)

    def _ahead(self, x: V, w: V, panel: V, i: V, j: V) -> V:
        """Where a tile begins to ask for what is needed next (see `ConvPlan.ahead`)."""
        fn, plan, spec = self.fn, self.plan, self.spec
        if plan.all_panels:
            share = fn.mul(panel, spec.depth * plan.ahead)
            return fn.gep(x, fn.add(share, plan.tile_w * spec.channels), spec.type)
        across = ceil_div(plan.block_w, plan.tile_w)
        number = fn.add(fn.mul(fn.sdiv(i, plan.tile_h), across), fn.sdiv(j, plan.tile_w))
        start = fn.mul(fn.add(panel, 1), spec.depth * plan.panel)
        return fn.gep(w, fn.add(start, fn.mul(number, spec.depth * plan.ahead)), spec.type)
