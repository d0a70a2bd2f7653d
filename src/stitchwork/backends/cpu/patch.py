"""The input under a block of convolution outputs, copied with zeros where it reaches beyond the image."""

from __future__ import annotations

from stitchwork.backends.cpu.conv_plan import ConvPlan
from stitchwork.backends.cpu.llvm import Function, Module, V, as_i64, i64, vector
from stitchwork.backends.cpu.microkernel import SCALAR_BYTES
from stitchwork.backends.cpu.routine import TargetLike, begin_helper


def patch_function(module: Module, plan: ConvPlan, target: TargetLike) -> str:
    """The plan's copying function: (ctx, image, to, first row, first column, rows, columns, height, width).

    First row and column may lie outside the image of `height` x `width` pixels. `image` points at one group's first
    channel; only that group's channels are copied.
    """
    name = f"{plan.name}_patch"
    if name not in module.functions:
        params = [("ptr", p) for p in ("ctx", "image", "to")]
        params += [("i64", p) for p in ("ih", "iw", "rows", "columns", "height", "width")]
        fn = begin_helper(module, name, params, target)
        _Patch(fn, plan, target).write()
        fn.ret()
    return name


class _Patch:
    def __init__(self, fn: Function, plan: ConvPlan, target: TargetLike) -> None:
        self.fn, self.plan, self.spec, self.masked_ops = fn, plan, plan.spec, target.has_masked_ops
        self.size = SCALAR_BYTES[self.spec.type]
        self.lanes = target.vector_bytes // self.size

    def write(self) -> None:
        fn, spec, channels = self.fn, self.spec, self.spec.group_channels
        _, image, to, ih, iw, rows, columns, height, width = fn.params
        pitch = self.plan.patch[1] * channels
        left = fn.minimum(fn.maximum(fn.sub(0, iw), 0), columns)
        right = fn.maximum(fn.minimum(fn.sub(width, iw), columns), left)
        with fn.loop(0, rows) as loop:
            row = fn.add(ih, loop.index)
            inside = fn.icmp("ult", row, height)  # negative rows are huge when read as unsigned
            first, last = fn.select(inside, left, columns), fn.select(inside, right, columns)
            target = fn.gep(to, fn.mul(loop.index, pitch), spec.type)
            self._clear(target, i64(0), fn.mul(first, channels))
            start = fn.add(fn.mul(row, width), iw)
            source = fn.gep(image, fn.mul(start, spec.channels), spec.type)
            if spec.groups == 1:
                self._copy(source, target, fn.mul(first, channels), fn.mul(last, channels))
            else:
                with fn.loop(first, last) as pixels:
                    at = fn.gep(source, fn.mul(pixels.index, spec.channels), spec.type)
                    pixel = fn.gep(target, fn.mul(pixels.index, channels), spec.type)
                    self._copy(at, pixel, i64(0), i64(channels))
            self._clear(target, fn.mul(last, channels), fn.mul(columns, channels))

    def _clear(self, target: V, lo: V, hi: V) -> None:
        """Zeros, whole vectors: what is written too far is overwritten by what comes next, or behind the patch."""
        fn, type_ = self.fn, vector(self.spec.type, self.lanes)
        with fn.loop(lo, hi, self.lanes) as loop:
            fn.store(V(type_, "zeroinitializer"), fn.gep(target, loop.index, self.spec.type), self.size)

    def _copy(self, source: V, target: V, lo: V, hi: V) -> None:
        """Elements [lo, hi): reads stay inside, writes may go up to a vector too far."""
        fn, type_ = self.fn, vector(self.spec.type, self.lanes)
        count = fn.sub(hi, lo)
        end = fn.add(lo, fn.sub(count, fn.srem(count, self.lanes)))
        with fn.loop(lo, end, self.lanes) as loop:
            value = fn.load(type_, fn.gep(source, loop.index, self.spec.type), self.size)
            fn.store(value, fn.gep(target, loop.index, self.spec.type), self.size)
        if as_i64(end).literal is not None and end.literal == hi.literal:
            return
        if self.masked_ops:
            with fn.when(fn.icmp("slt", end, hi)):
                mask = fn.tail_mask(fn.sub(hi, end), self.lanes)
                value = fn.masked_load(type_, fn.gep(source, end, self.spec.type), mask, self.size)
                fn.store(value, fn.gep(target, end, self.spec.type), self.size)
        else:
            with fn.loop(end, hi) as loop:
                value = fn.load(self.spec.type, fn.gep(source, loop.index, self.spec.type), self.size)
                fn.store(value, fn.gep(target, loop.index, self.spec.type), self.size)
