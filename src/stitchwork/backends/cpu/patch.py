"""The input under a block of convolution outputs, copied with zeros where it reaches beyond the image."""

from __future__ import annotations

from stitchwork.backends.cpu.llvm import Function, Module, V, i64, vector
from stitchwork.backends.cpu.microkernel import SCALAR_BYTES
from stitchwork.backends.cpu.routine import TargetLike, begin_helper


def patch_function(module: Module, type_: str, target: TargetLike) -> str:
    """The copying function for a type: (image, to, first row, first column, rows, columns, height, width, channels of a
    pixel of the image, channels to copy, elements from row to row of the copy).

    First row and column may lie outside the image of `height` x `width` pixels. `image` points at the first channel to
    copy.
    """
    name = f"patch_{type_}"
    if name not in module.functions:
        params = [("ptr", p) for p in ("image", "to")]
        params += [("i64", p) for p in ("ih", "iw", "rows", "columns", "height", "width", "all", "channels", "pitch")]
        fn = begin_helper(module, name, params, target)
        _Patch(fn, type_, target).write()
        fn.ret()
    return name


class _Patch:
    def __init__(self, fn: Function, type_: str, target: TargetLike) -> None:
        self.fn, self.type, self.masked_ops = fn, type_, target.has_masked_ops
        self.size = SCALAR_BYTES[type_]
        self.lanes = target.vector_bytes // self.size

    def write(self) -> None:
        fn, type_ = self.fn, self.type
        image, to, ih, iw, rows, columns, height, width, all_channels, channels, pitch = fn.params
        left = fn.minimum(fn.maximum(fn.sub(0, iw), 0), columns)
        right = fn.maximum(fn.minimum(fn.sub(width, iw), columns), left)
        # Where pixels are copied whole, a row is one piece.
        whole = fn.icmp("eq", channels, all_channels)
        with fn.loop(0, rows) as loop:
            row = fn.add(ih, loop.index)
            inside = fn.icmp("ult", row, height)  # negative rows are huge when read as unsigned
            first, last = fn.select(inside, left, columns), fn.select(inside, right, columns)
            target = fn.gep(to, fn.mul(loop.index, pitch), type_)
            self._clear(target, i64(0), fn.mul(first, channels))
            start = fn.add(fn.mul(row, width), fn.add(iw, first))
            source = fn.gep(image, fn.mul(start, all_channels), type_)
            copied = fn.gep(target, fn.mul(first, channels), type_)
            count = fn.sub(last, first)
            some = fn.icmp("sgt", count, i64(0))
            pieces = fn.select(whole, fn.convert("zext", some, "i64"), count)
            length = fn.select(whole, fn.mul(count, channels), channels)
            with fn.loop(0, pieces) as loop_pieces:
                at = fn.gep(source, fn.mul(loop_pieces.index, all_channels), type_)
                piece = fn.gep(copied, fn.mul(loop_pieces.index, channels), type_)
                self._copy(at, piece, length)
            self._clear(target, fn.mul(last, channels), fn.mul(columns, channels))

    def _clear(self, target: V, lo: V, hi: V) -> None:
        """Zeros, whole vectors: what is written too far is overwritten by what comes next, or behind the patch."""
        fn, type_ = self.fn, vector(self.type, self.lanes)
        with fn.loop(lo, hi, self.lanes) as loop:
            fn.store(V(type_, "zeroinitializer"), fn.gep(target, loop.index, self.type), self.size)

    def _copy(self, source: V, target: V, count: V) -> None:
        """So many elements: reads stay inside, writes may go up to a vector too far."""
        fn, type_ = self.fn, vector(self.type, self.lanes)
        end = fn.sub(count, fn.srem(count, self.lanes))
        with fn.loop(0, end, self.lanes) as loop:
            value = fn.load(type_, fn.gep(source, loop.index, self.type), self.size)
            fn.store(value, fn.gep(target, loop.index, self.type), self.size)
        if self.masked_ops:
            with fn.when(fn.icmp("slt", end, count)):
                mask = fn.tail_mask(fn.sub(count, end), self.lanes)
                value = fn.masked_load(type_, fn.gep(source, end, self.type), mask, self.size)
                fn.store(value, fn.gep(target, end, self.type), self.size)
        else:
            with fn.loop(end, count) as loop:
                value = fn.load(self.type, fn.gep(source, loop.index, self.type), self.size)
                fn.store(value, fn.gep(target, loop.index, self.type), self.size)
