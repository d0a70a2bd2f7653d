"""The driver of direct convolutions: items to blocks of pixels, their input copied where padded, tiles, panels."""

from __future__ import annotations

from stitchwork.backends.cpu.conv_plan import ConvPlan
from stitchwork.backends.cpu.driver import Numbers, begin_driver, call_pointer, emit_case
from stitchwork.backends.cpu.finish import Finish, finish_function
from stitchwork.backends.cpu.llvm import Function, Module, V, i64
from stitchwork.backends.cpu.microkernel import SCALAR_BYTES, Tile, cover, storage_bytes, tile_sizes
from stitchwork.backends.cpu.patch import patch_function
from stitchwork.backends.cpu.routine import Epilogue, Size, TargetLike, ceil_div, ceil_div_values, known, unravel
from stitchwork.backends.cpu.tile_sum import Step, TileSum, fill_steps, tile_sum

_NAME = "conv_driver"
_MOST_ROWS = 16

_FIELDS = (
    # sizes: images; rows and columns of the input, of the result; groups; panels that are items, and those that are not
    "n", "h", "w", "rows", "columns", "groups", "item_panels", "own_panels",
    # slots of pointers
    "x", "weights", "out", "scratch",
    # rows and columns of a block and of a tile
    "block_h", "block_w", "tile_h", "tile_w",
    # the filter over the input: strides, first padding, reach
    "stride_h", "stride_w", "pad_h", "pad_w", "span_h", "span_w",
    # elements: channels of a pixel of the image and of what tiles read; a row of a copied block
    "image_channels", "channels", "patch_pitch",
    # bytes: a group's channels in the image; a pixel that tiles read; scratch of a thread (0: inputs are not copied)
    "group", "pixel", "scratch_bytes",
    # bytes in the filter: a panel, a group's panels
    "panel", "group_panels",
    # the result: elements of a pixel; of a group in it; of a panel; bytes of an element
    "out_channels", "out_group", "out_panel", "out_size",
    # the tiles' reduction: see `Step`; distance of the filter's rows; whether a tile's pixels lie below each other
    "size", "step_b", "length", "taps", "tap", "lines", "dilation_h", "upright",
    # bytes to prefetch at: from the filter or the input; per panel, row and column of the block; first
    "ahead_of_filter", "ahead_panel", "ahead_i", "ahead_j", "ahead_first", "ahead_step",
    # sizes of the next tile for 1, 2, ... rows or columns that are left
    *(f"next_h{k}" for k in range(_MOST_ROWS)), *(f"next_w{k}" for k in range(_MOST_ROWS)),
)  # fmt: skip

_FINISH, _PATCH, _TILES = 0, 1, 2
"""Places in the table of functions; tiles: row after row of sizes."""


def emit_direct(module: Module, plan: ConvPlan, target: TargetLike, epilogue: Epilogue | None) -> Function:
    """The routine of a plan."""
    if _NAME not in module.functions:
        fn = begin_driver(module, _NAME, target)
        _Driver(fn, target).write()
    spec, tile = plan.spec, plan.tile
    heights, widths = (
        tile_sizes(known(total), full) for total, full in zip(plan.extent, (plan.tile_h, plan.tile_w), strict=True)
    )
    vectors = tile.vectors if spec.group_filters % plan.panel == 0 else 0
    tails = spec.group_filters % tile.lanes != 0
    finish = Finish(tile.scalar, tile.lanes, spec.result_type, vectors, tails)
    functions: list[str | None] = [finish_function(module, finish, target, epilogue)]
    functions.append(patch_function(module, spec.type, target) if plan.padded else None)
    for h in range(1, plan.tile_h + 1):
        for w in range(1, plan.tile_w + 1):
            wanted = h in heights and w in widths
            functions.append(_tile(module, plan, h, w, target) if wanted else None)
    numbers = _numbers(plan) | {f"next_h{k}": n for k, n in enumerate(heights)}
    numbers |= {f"next_w{k}": n for k, n in enumerate(widths)}
    return emit_case(module, plan.name, target, _NAME, [numbers.get(f, 0) for f in _FIELDS], functions)


def _tile(module: Module, plan: ConvPlan, h: int, w: int, target: TargetLike) -> str:
    tile = Tile(h * w, plan.tile.vectors, plan.tile.lanes, plan.tile.scalar)
    code = TileSum(tile, plan.spec.type, w if w > 1 else 0, ahead=bool(plan.ahead), a_step=1)
    return tile_sum(module, code, target)


def _numbers(plan: ConvPlan) -> dict[str, Size]:
    """What the driver must know of a plan, without the lists."""
    spec = plan.spec
    size, out_size = SCALAR_BYTES[spec.type], storage_bytes(spec.result_type)
    rows, columns = plan.extent
    channels = spec.group_channels if plan.padded else spec.channels
    merged = spec.dilation[1] == 1 and channels == spec.group_channels
    panel, depth = spec.depth * plan.panel * size, spec.depth * plan.ahead * size
    numbers: dict[str, Size] = {
        "n": spec.n, "h": 1 if plan.flat else spec.h, "w": columns if plan.flat else spec.w,
        "rows": rows, "columns": columns, "groups": spec.groups,
        "item_panels": 1 if plan.all_panels else plan.panels, "own_panels": plan.panels if plan.all_panels else 1,
        "x": spec.x, "weights": spec.weights, "out": spec.out, "scratch": spec.scratch,
        "block_h": plan.block_h, "block_w": plan.block_w, "tile_h": plan.tile_h, "tile_w": plan.tile_w,
        "stride_h": spec.strides[0], "stride_w": spec.strides[1], "pad_h": spec.padding[0], "pad_w": spec.padding[2],
        "span_h": spec.span(0), "span_w": spec.span(1),
        "image_channels": spec.channels, "channels": channels,
        "patch_pitch": plan.patch[1] * channels if plan.padded else 0,
        "group": spec.group_channels * size, "pixel": channels * size, "scratch_bytes": plan.scratch_bytes,
        "panel": panel, "group_panels": plan.panels * panel,
        "out_channels": spec.filters, "out_group": spec.group_filters, "out_panel": plan.panel, "out_size": out_size,
        "size": size, "step_b": plan.panel * size,
        "length": spec.group_channels * (spec.kernel[1] if merged else 1), "taps": 1 if merged else spec.kernel[1],
        "tap": 0 if merged else spec.dilation[1] * channels * size, "lines": spec.kernel[0],
        "dilation_h": spec.dilation[0], "upright": int(plan.tile_w == 1), "ahead_step": plan.ahead * size,
    }  # fmt: skip
    if plan.all_panels:
        share = {"ahead_panel": depth, "ahead_first": plan.tile_w * channels * size}
    else:
        across = ceil_div(plan.block_w, plan.tile_w)
        share = {"ahead_of_filter": 1, "ahead_panel": panel, "ahead_first": panel}
        share |= {"ahead_i": across * depth // plan.tile_h, "ahead_j": depth // plan.tile_w}
    return numbers | share


class _Driver:
    """Writes the driver."""

    def __init__(self, fn: Function, target: TargetLike) -> None:
        self.fn = fn
        numbers = self.numbers = Numbers(fn, _FIELDS)
        self.sizes = {field: numbers.size(field) for field in ("n", "h", "w", "rows", "columns")}
        self.x, self.weights, self.out = (numbers.pointer(field) for field in ("x", "weights", "out"))
        lists = {f"next_{axis}{k}" for axis in "hw" for k in range(_MOST_ROWS)}
        self.known = {field: numbers[field] for field in _FIELDS if field not in self.sizes and field not in lists}
        self.copies = fn.icmp("ne", self["scratch_bytes"], i64(0))
        self.pitch = self._pitch()
        self.buffer = fn.alloca("i8", target.vector_registers * target.vector_bytes, 64)
        self.steps = fn.alloca("i64", len(Step), 64)
        self._fill_steps()
        share = fn.mul(fn.params[3], self["scratch_bytes"])
        self.scratch = fn.gep(numbers.pointer("scratch"), share, "i8")

    def __getitem__(self, field: str) -> V:
        return self.sizes[field] if field in self.sizes else self.known[field]

    def _pitch(self) -> V:
        """Bytes from row to row of what tiles read."""
        fn = self.fn
        copied = fn.mul(self["patch_pitch"], self["size"])
        return fn.select(self.copies, copied, fn.mul(self["w"], self["pixel"]))

    def _fill_steps(self) -> None:
        fn = self.fn
        down, across = fn.mul(self.pitch, self["stride_h"]), fn.mul(self["pixel"], self["stride_w"])
        upright = fn.icmp("ne", self["upright"], i64(0))
        fill_steps(fn, self.steps, {
            Step.ROW: fn.select(upright, down, across), Step.GROUP: down, Step.A: self["size"], Step.B: self["step_b"],
            Step.LENGTH: self["length"], Step.TAPS: self["taps"], Step.TAP: self["tap"], Step.LINES: self["lines"],
            Step.LINE: fn.mul(self.pitch, self["dilation_h"]), Step.AHEAD: self["ahead_step"],
        })  # fmt: skip

    def write(self) -> None:
        fn = self.fn
        blocks = [ceil_div_values(fn, self[a], self[b]) for a, b in (("rows", "block_h"), ("columns", "block_w"))]
        with fn.loop(fn.params[1], fn.params[2], carry=[i64(-1)]) as items:
            counts = [self["n"], *blocks, self["groups"], self["item_panels"]]
            n, block_i, block_j, group, panel = unravel(fn, items.index, [*counts])
            oh, ow = fn.mul(block_i, self["block_h"]), fn.mul(block_j, self["block_w"])
            rows = fn.minimum(self["block_h"], fn.sub(self["rows"], oh))
            columns = fn.minimum(self["block_w"], fn.sub(self["columns"], ow))
            image = fn.mul(fn.mul(n, fn.mul(self["h"], self["w"])), fn.mul(self["image_channels"], self["size"]))
            image = fn.gep(self.x, fn.add(image, fn.mul(group, self["group"])), "i8")
            held = fn.sdiv(items.index, self["item_panels"])
            items.following = [held]
            with fn.when(fn.binary("and", self.copies, fn.icmp("ne", held, items.carried[0]))):
                self._copy(image, oh, ow, rows, columns)
            x = fn.select(self.copies, self.scratch, self._input(image, oh, ow))
            self._block(x, (n, oh, ow), rows, columns, group, panel)
        fn.ret()

    def _input(self, start: V, i: V, j: V) -> V:
        """Where the input of a pixel of the result begins, counted from pixel (0, 0) of it."""
        fn = self.fn
        down, across = fn.mul(i, self["stride_h"]), fn.mul(j, self["stride_w"])
        return fn.gep(start, fn.add(fn.mul(down, self.pitch), fn.mul(across, self["pixel"])), "i8")

    def _copy(self, image: V, oh: V, ow: V, rows: V, columns: V) -> None:
        """Bring the input under a block into scratch memory."""
        fn = self.fn
        starts = [fn.sub(fn.mul(at, self[f"stride_{a}"]), self[f"pad_{a}"]) for a, at in (("h", oh), ("w", ow))]
        counts = [
            fn.add(fn.mul(fn.sub(count, 1), self[f"stride_{a}"]), self[f"span_{a}"])
            for a, count in (("h", rows), ("w", columns))
        ]
        rest = [self[field] for field in ("h", "w", "image_channels", "channels", "patch_pitch")]
        call_pointer(fn, self.numbers.function(_PATCH), [image, self.scratch, *starts, *counts, *rest])

    def _block(self, x: V, at: tuple[V, V, V], rows: V, columns: V, group: V, panel: V) -> None:
        fn = self.fn
        n, oh, ow = at
        first_row = fn.add(fn.mul(n, self["rows"]), oh)
        w = fn.gep(self.weights, fn.mul(group, self["group_panels"]), "i8")
        channel = fn.mul(group, self["out_group"])

        def line(tile_h: V, i: V) -> None:
            def tile(tile_w: V, j: V) -> None:
                pixel = fn.add(fn.mul(fn.add(first_row, i), self["columns"]), fn.add(ow, j))
                index = fn.add(fn.mul(fn.sub(tile_h, 1), self["tile_w"]), fn.sub(tile_w, 1))
                code = self.numbers.function(fn.add(index, _TILES))
                self._panels(code, self._input(x, i, j), w, (i, j), fn.mul(tile_h, tile_w), pixel, channel, panel)

            cover(fn, columns, lambda left: self._next("w", left), tile)

        cover(fn, rows, lambda left: self._next("h", left), line)

    def _next(self, axis: str, left: V) -> V:
        fn = self.fn
        return self.numbers.entry(f"next_{axis}0", fn.sub(fn.minimum(left, self[f"tile_{axis}"]), 1))

    def _panels(self, code: V, x: V, w: V, place: tuple[V, V], rows: V, pixel: V, channel: V, first: V) -> None:
        """One tile of pixels, for every panel of channels that the item has."""
        fn = self.fn
        i, j = place
        finish = self.numbers.function(_FINISH)
        size = self["out_size"]
        y = fn.gep(self.out, fn.mul(fn.add(fn.mul(pixel, self["out_channels"]), channel), size), "i8")
        ahead = fn.select(fn.icmp("ne", self["ahead_of_filter"], i64(0)), w, x)
        share = fn.add(fn.mul(i, self["ahead_i"]), fn.mul(j, self["ahead_j"]))
        ahead = fn.gep(ahead, fn.add(share, self["ahead_first"]), "i8")
        with fn.loop(first, fn.add(first, self["own_panels"])) as panels:
            number = panels.index
            column = fn.mul(number, self["out_panel"])
            left = fn.minimum(fn.sub(self["out_group"], column), self["out_panel"])
            w_at = fn.gep(w, fn.mul(number, self["panel"]), "i8")
            touched = fn.gep(ahead, fn.mul(number, self["ahead_panel"]), "i8")
            call_pointer(fn, code, [self.steps, x, w_at, self.buffer, touched, left])
            y_at = fn.gep(y, fn.mul(column, size), "i8")
            args = [fn.params[0], self.buffer, y_at, rows, left, pixel, fn.add(channel, column)]
            call_pointer(fn, finish, [*args, self["out_panel"], self["out_channels"]])
