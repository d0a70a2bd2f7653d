"""Functions that compute a depthwise tile, shared by all routines of a module whose filters are equally wide.

`void taps(ptr steps, ptr x, ptr w, ptr y, i64 r_lo, i64 r_hi, i64 iw, i64 count, i64 pixels, i64 pixel, i64 channel)`
sums the filter rows [r_lo, r_hi) of some pixels beside each other, for `count` channels. Each vector of channels goes
to `y` by a function of `finish.py` as soon as it is summed: that hides the time of its stores. `x` is where filter row
0 meets the first pixel, which lies on input column `iw`. Only `pixels` of the tile exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from stitchwork.backends.cpu.driver import call_pointer
from stitchwork.backends.cpu.llvm import Function, Module, V, i64, vector
from stitchwork.backends.cpu.microkernel import SCALAR_BYTES, multiply_add, widen
from stitchwork.backends.cpu.pack import ALIGNMENT
from stitchwork.backends.cpu.routine import TargetLike, begin_helper


class TapStep(IntEnum):
    """The 8-byte slots of `steps`. Distances count bytes."""

    PIXEL = 0  # from column to column of the input
    LINE = 1  # from where one filter row reads to the next
    WIDTH = 2  # columns of the input
    PANEL = 3  # from vector to vector of channels of the filter
    FILTERS = 4  # elements from pixel to pixel of the result
    OUT_SIZE = 5  # of an element of the result
    CONTEXT = 6  # the routine's `ctx`
    FINISH = 7  # the function that sums go through


@dataclass(frozen=True, slots=True)
class TapSum:
    """What is in the code.

    `multiplier`: results of each channel. `edge`: columns of the input may not exist. `tails`: the last vector of
    channels may not be whole.
    """

    type: str
    scalar: str
    lanes: int
    pixels: int
    taps: int
    stride: int
    dilation: int
    multiplier: int
    edge: bool
    tails: bool

    @property
    def name(self) -> str:
        flags = "e" * self.edge + "t" * self.tails
        window = f"{self.taps}s{self.stride}d{self.dilation}m{self.multiplier}"
        return f"taps_{self.type}_{window}_{self.pixels}x{self.lanes}{flags}"

    @property
    def columns(self) -> list[int]:
        """Input columns that the pixels read, counted from the first."""
        taps = range(self.taps)
        return sorted({p * self.stride + s * self.dilation for p in range(self.pixels) for s in taps})


def tap_sum(module: Module, code: TapSum, target: TargetLike) -> str:
    """The name of the function, which is written if the module lacks it."""
    if code.name not in module.functions:
        params = [("ptr", p) for p in ("steps", "x", "w", "y")]
        params += [("i64", p) for p in ("r_lo", "r_hi", "iw", "count", "pixels", "pixel", "channel")]
        fn = begin_helper(module, code.name, params, target)
        _TapSum(fn, code, target).write()
        fn.ret()
    return code.name


class _TapSum:
    def __init__(self, fn: Function, code: TapSum, target: TargetLike) -> None:
        self.fn, self.code, self.masked_ops = fn, code, target.has_masked_ops
        self.size = SCALAR_BYTES[code.type]
        pointers = (TapStep.CONTEXT, TapStep.FINISH)
        self.step = {
            s: fn.load("ptr" if s in pointers else "i64", fn.gep(fn.params[0], int(s), "i64"), 8) for s in TapStep
        }
        self.buffer = fn.alloca(code.scalar, code.pixels * code.lanes)
        self.zeros = V("ptr", "@tap_zeros")
        fn.module.globals["tap_zeros"] = (
            f"@tap_zeros = internal constant [{target.vector_bytes} x i8] zeroinitializer, align {ALIGNMENT}"
        )
        width, iw = self.step[TapStep.WIDTH], fn.params[6]
        self.present = {c: fn.icmp("ult", fn.add(iw, c), width) for c in code.columns} if code.edge else None

    def write(self) -> None:
        fn, code = self.fn, self.code
        count = fn.params[7]
        if not code.tails or self.masked_ops:
            with fn.loop(0, count, code.lanes) as vectors:
                self._vector(vectors.index, code.lanes, code.tails)
            return
        whole = fn.sub(count, fn.srem(count, code.lanes))
        with fn.loop(0, whole, code.lanes) as vectors:
            self._vector(vectors.index, code.lanes, False)
        with fn.loop(whole, count) as scalars:
            self._vector(scalars.index, 1, False)

    def _vector(self, at: V, lanes: int, masked: bool) -> None:
        """One vector of channels, beginning with channel `at`, for all pixels."""
        fn, code = self.fn, self.code
        _, x, w, _, r_lo, r_hi, _, count, *_ = fn.params
        panel = fn.gep(w, fn.mul(fn.sdiv(at, code.lanes), self.step[TapStep.PANEL]), "i8")
        panel = fn.gep(panel, fn.srem(at, code.lanes), code.type) if lanes == 1 else panel
        x_at = fn.gep(x, fn.sdiv(at, code.multiplier), code.type)
        mask = None
        if masked and lanes // code.multiplier > 1:
            mask = fn.tail_mask(fn.sdiv(fn.sub(count, at), code.multiplier), lanes // code.multiplier)
        start = [V(vector(code.scalar, lanes), "zeroinitializer" if lanes > 1 else "0.0")] * code.pixels
        with fn.loop(r_lo, r_hi, carry=start) as rows:
            row = fn.gep(x_at, fn.mul(rows.index, self.step[TapStep.LINE]), "i8")
            line = fn.gep(panel, fn.mul(rows.index, code.taps * code.lanes), code.type)
            inputs = self._inputs(row, lanes, mask)
            acc = list(rows.carried)
            for s in range(code.taps):
                weight = fn.load(vector(code.type, lanes), fn.gep(line, s * code.lanes, code.type), self.size)
                weight = widen(fn, weight, vector(code.scalar, lanes))
                for p in range(code.pixels):
                    acc[p] = multiply_add(fn, inputs[p * code.stride + s * code.dilation], weight, acc[p])
            rows.following = acc
        left = fn.minimum(fn.sub(count, at), lanes) if masked else i64(lanes)
        self._finish(rows.results, at, lanes, left)

    def _finish(self, sums: list[V], at: V, lanes: int, left: V) -> None:
        """`left` of the lanes go to the result."""
        fn, code, step = self.fn, self.code, self.step
        for p, value in enumerate(sums):
            fn.store(value, fn.gep(self.buffer, p * lanes, code.scalar), SCALAR_BYTES[code.scalar])
        y, (pixels, pixel, channel) = fn.params[3], fn.params[8:]
        to = fn.gep(y, fn.mul(at, step[TapStep.OUT_SIZE]), "i8")
        args = [step[TapStep.CONTEXT], self.buffer, to, pixels, left, pixel, fn.add(channel, at), i64(lanes)]
        call_pointer(fn, step[TapStep.FINISH], [*args, step[TapStep.FILTERS]])

    def _inputs(self, row: V, lanes: int, mask: V | None) -> dict[int, V]:
        """The channels of every column, zeros where it lies outside."""
        fn, inputs = self.fn, dict[int, V]()
        before = 0
        for c in self.code.columns:
            row = fn.gep(row, fn.mul(self.step[TapStep.PIXEL], c - before), "i8")
            before = c
            address = row if self.present is None else fn.select(self.present[c], row, self.zeros)
            inputs[c] = self._input(address, lanes, mask)
        return inputs

    def _input(self, address: V, lanes: int, mask: V | None) -> V:
        """Channels at an address, each as often as it has results."""
        fn, code = self.fn, self.code
        repeat = min(code.multiplier, lanes)
        type_ = vector(code.type, lanes // repeat)
        if mask is not None:
            value = fn.masked_load(type_, address, mask, self.size)
        else:
            value = fn.load(type_, address, self.size)
        if repeat > 1 and lanes == repeat:
            value = fn.splat(value, lanes)
        elif repeat > 1:
            picks = ", ".join(f"i32 {lane // repeat}" for lane in range(lanes))
            text = f"shufflevector {value}, {type_} poison, <{lanes} x i32> <{picks}>"
            value = fn.emit(vector(code.type, lanes), text)
        return widen(fn, value, vector(code.scalar, lanes))
