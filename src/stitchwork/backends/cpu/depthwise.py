"""The driver of depthwise convolutions: items to rows of pixels, tiles, channels (see `depthwise_plan.py`)."""

from __future__ import annotations

from stitchwork.backends.cpu.depthwise_plan import DepthwisePlan
from stitchwork.backends.cpu.driver import Numbers, begin_driver, call_pointer, emit_case
from stitchwork.backends.cpu.finish import Finish, finish_function
from stitchwork.backends.cpu.llvm import Function, Module, V, i64
from stitchwork.backends.cpu.microkernel import SCALAR_BYTES, cover, storage_bytes
from stitchwork.backends.cpu.routine import Epilogue, Size, TargetLike, ceil_div, ceil_div_values, unravel
from stitchwork.backends.cpu.tap_sum import TapStep, TapSum, tap_sum

_NAME = "depthwise_driver"
_FIELDS = (
    # sizes: images; rows and columns of the input and of the result; channels of both
    "n", "h", "w", "rows", "columns", "channels", "filters", "multiplier",
    # slots of pointers
    "x", "weights", "out",
    # rows and channels of a block; pixels of the two tiles; columns that a whole tile reads
    "block_h", "chunk", "tile_w", "half_w", "reach",
    # the filter over the input
    "stride_h", "stride_w", "pad_h", "pad_w", "taps_h", "dilation_h",
    # bytes of an element of the input and of the result; elements of the filter per channel; lanes
    "size", "out_size", "window", "lanes",
)  # fmt: skip

_FINISH, _INNER, _EDGE, _HALF = range(4)
"""Places in the table of functions."""


def emit_depthwise(module: Module, plan: DepthwisePlan, target: TargetLike, epilogue: Epilogue | None) -> Function:
    """The routine of a plan."""
    if _NAME not in module.functions:
        fn = begin_driver(module, _NAME, target)
        _Driver(fn).write()
    spec, tails = plan.spec, plan.spec.filters % plan.lanes != 0
    half = ceil_div(plan.tile_w, 2)

    def code(pixels: int, edge: bool) -> str:
        window = (spec.kernel[1], spec.strides[1], spec.dilation[1], plan.multiplier)
        return tap_sum(module, TapSum(spec.type, plan.scalar, plan.lanes, pixels, *window, edge, tails), target)

    finish = Finish(plan.scalar, plan.lanes, spec.result_type, 0 if tails else 1, tails)
    functions = [finish_function(module, finish, target, epilogue)]
    functions += [code(plan.tile_w, False), code(plan.tile_w, True), code(half, True)]
    size = SCALAR_BYTES[spec.type]
    numbers: dict[str, Size] = {
        "n": spec.n, "h": spec.h, "w": spec.w, "rows": spec.rows, "columns": spec.columns,
        "channels": spec.channels, "filters": spec.filters, "multiplier": plan.multiplier,
        "x": spec.x, "weights": spec.weights, "out": spec.out,
        "block_h": plan.block_h, "chunk": plan.chunk * plan.lanes,
        "tile_w": plan.tile_w, "half_w": half, "reach": (plan.tile_w - 1) * spec.strides[1] + spec.span(1),
        "stride_h": spec.strides[0], "stride_w": spec.strides[1], "pad_h": spec.padding[0], "pad_w": spec.padding[2],
        "taps_h": spec.kernel[0], "dilation_h": spec.dilation[0],
        "size": size, "out_size": storage_bytes(spec.result_type),
        "window": spec.kernel[0] * spec.kernel[1], "lanes": plan.lanes,
    }  # fmt: skip
    return emit_case(module, plan.name, target, _NAME, [numbers[f] for f in _FIELDS], functions)


class _Driver:
    """Writes the driver."""

    def __init__(self, fn: Function) -> None:
        self.fn = fn
        numbers = self.numbers = Numbers(fn, _FIELDS)
        sized = ("n", "h", "w", "rows", "columns")
        self.known = {field: numbers.size(field) if field in sized else numbers[field] for field in _FIELDS}
        self.x, self.weights, self.out = (numbers.pointer(field) for field in ("x", "weights", "out"))
        self.functions = [numbers.function(k) for k in range(4)]
        self.steps = fn.alloca("i64", len(TapStep), 64)
        self.pixel = fn.mul(self["channels"], self["size"])
        self.pitch = fn.mul(self["w"], self.pixel)
        panel = fn.mul(fn.mul(self["window"], self["lanes"]), self["size"])
        steps = {TapStep.PIXEL: self.pixel, TapStep.LINE: fn.mul(self.pitch, self["dilation_h"]), TapStep.PANEL: panel,
                 TapStep.WIDTH: self["w"], TapStep.FILTERS: self["filters"], TapStep.OUT_SIZE: self["out_size"],
                 TapStep.CONTEXT: fn.params[0], TapStep.FINISH: self.functions[_FINISH]}  # fmt: skip
        for step, value in steps.items():
            fn.store(value, fn.gep(self.steps, int(step), "i64"), 8)

    def __getitem__(self, field: str) -> V:
        return self.known[field]

    def write(self) -> None:
        fn = self.fn
        counts = [ceil_div_values(fn, self[a], self[b]) for a, b in (("rows", "block_h"), ("filters", "chunk"))]
        with fn.loop(fn.params[1], fn.params[2]) as items:
            n, block, chunk = unravel(fn, items.index, [self["n"], *counts])
            first, channel = fn.mul(block, self["block_h"]), fn.mul(chunk, self["chunk"])
            left = fn.minimum(self["chunk"], fn.sub(self["filters"], channel))
            image = fn.gep(self.x, fn.mul(fn.mul(n, self["h"]), self.pitch), "i8")
            with fn.loop(first, fn.minimum(fn.add(first, self["block_h"]), self["rows"])) as lines:
                self._line(image, n, lines.index, channel, left)
        fn.ret()

    def _line(self, image: V, n: V, oh: V, channel: V, left: V) -> None:
        """One row of the result."""
        fn = self.fn
        ih = fn.sub(fn.mul(oh, self["stride_h"]), self["pad_h"])
        bounds = self._filter_rows(ih)
        row = fn.gep(image, fn.mul(ih, self.pitch), "i8")
        first = fn.mul(fn.add(fn.mul(n, self["rows"]), oh), self["columns"])

        def size_of(rest: V) -> V:
            half = fn.minimum(rest, self["half_w"])
            return fn.select(fn.icmp("sgt", rest, self["half_w"]), fn.minimum(rest, self["tile_w"]), half)

        def tile(pixels: V, ow: V) -> None:
            iw = fn.sub(fn.mul(ow, self["stride_w"]), self["pad_w"])
            inside = fn.icmp("sle", fn.add(iw, self["reach"]), self["w"])
            inside = fn.binary("and", inside, fn.icmp("sge", iw, i64(0)))
            inside = fn.binary("and", inside, fn.icmp("eq", pixels, self["tile_w"]))
            _, inner, edge, half = self.functions
            code = fn.select(fn.icmp("sgt", pixels, self["half_w"]), edge, half)
            code = fn.select(inside, inner, code)
            x = fn.gep(row, fn.mul(iw, self.pixel), "i8")
            pixel = fn.add(first, ow)
            x_at = fn.gep(x, fn.mul(fn.sdiv(channel, self["multiplier"]), self["size"]), "i8")
            w = fn.gep(self.weights, fn.mul(fn.mul(channel, self["window"]), self["size"]), "i8")
            y = fn.mul(fn.add(fn.mul(pixel, self["filters"]), channel), self["out_size"])
            args = [self.steps, x_at, w, fn.gep(self.out, y, "i8"), *bounds, iw, left, pixels, pixel, channel]
            call_pointer(fn, code, args)

        cover(fn, self["columns"], size_of, tile)

    def _filter_rows(self, ih: V) -> tuple[V, V]:
        """The range of filter rows that meet the image where the first one lies on input row `ih`."""
        fn, step, taps = self.fn, self["dilation_h"], self["taps_h"]

        def before(row: V) -> V:
            rows = fn.maximum(fn.sub(row, ih), 0)
            return fn.minimum(fn.sdiv(fn.sub(fn.add(rows, step), 1), step), taps)

        return before(i64(0)), before(self["h"])
