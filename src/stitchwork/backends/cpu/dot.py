"""Matmul by dot products along k, for few rows or few columns: both operands are read along contiguous k.

One side has few vectors (rows of A, or columns of B where those are fewer); each is multiplied with as many vectors of
the other side at a time as a register has lanes, and a tree of additions turns the sums into one vector of results.
"""

from __future__ import annotations

from stitchwork.backends.cpu.finish import Finish, finish_function
from stitchwork.backends.cpu.llvm import Function, Int, Module, V, as_i64, i64, vector
from stitchwork.backends.cpu.matmul_plan import FEW, MatmulPlan
from stitchwork.backends.cpu.microkernel import SCALAR_BYTES, multiply_add
from stitchwork.backends.cpu.pack import sum_square
from stitchwork.backends.cpu.routine import (
    Context,
    Epilogue,
    TargetLike,
    batch_steps,
    begin_kernel,
    ceil_div,
    dot_index,
    row_major,
    unravel,
)


def emit_dot(module: Module, plan: MatmulPlan, target: TargetLike, epilogue: Epilogue | None) -> Function:
    """The routine of a plan of the `columns` form."""
    fn = begin_kernel(module, plan.name, target)
    _Dot(fn, plan, target, epilogue).write()
    fn.ret()
    return fn


class _Dot:
    def __init__(self, fn: Function, plan: MatmulPlan, target: TargetLike, epilogue: Epilogue | None) -> None:
        spec, context = plan.spec, Context(fn)
        size = context.size
        self.fn, self.plan, self.spec, self.target, self.epilogue = fn, plan, spec, target, epilogue
        self.tile = plan.tile
        self.buffer = fn.alloca(plan.tile.scalar, 2 * plan.tile.lanes)  # a vector may be read from the last lane on
        self.a, self.b, self.c = context.pointer(spec.a), context.pointer(spec.b), context.pointer(spec.out)
        self.m, self.n, self.k = size(spec.m), size(spec.n), size(spec.k)
        self.batch = [size(s) for s in spec.batch]
        self.a_row = size(spec.a_steps[0])
        self.b_column = self.k if spec.b_constant else size(spec.b_steps[1])
        self.row_step = size(spec.row_step)
        self.a_batch = batch_steps(context, spec.batch, spec.a_batch_strides, fn.mul(self.m, self.k))
        self.b_batch = self._b_batch(context)
        self.c_batch = batch_steps(context, spec.batch, spec.out_batch_strides, fn.mul(self.m, self.n))

    def _b_batch(self, context: Context) -> list[Int]:
        spec, matrix = self.spec, self.fn.mul(self.k, self.n)
        strides = spec.b_batch_strides
        if not spec.b_constant or strides is None:
            return batch_steps(context, spec.batch, strides, matrix)
        kept = row_major(self.fn, [s for s, t in zip(self.batch, strides, strict=True) if t != 0], matrix)
        return [kept.pop(0) if stride != 0 else 0 for stride in strides]

    def write(self) -> None:
        fn, spec, lanes = self.fn, self.spec, self.tile.lanes
        few_columns = self.plan.few_columns
        rows, columns = (lanes, FEW) if few_columns else (1, lanes)
        counts = [fn.sdiv(fn.add(s, b - 1), b) for s, b in ((self.m, rows), (self.n, columns))]
        with fn.loop(fn.params[1], fn.params[2]) as items:
            *lead, block, panel = unravel(fn, items.index, [*self.batch, *counts])
            a = fn.gep(self.a, dot_index(fn, lead, self.a_batch), spec.type)
            b = fn.gep(self.b, dot_index(fn, lead, self.b_batch), spec.type)
            c = fn.gep(self.c, dot_index(fn, lead, self.c_batch), spec.result_type)
            row, col = fn.mul(block, rows), fn.mul(panel, columns)
            a = fn.gep(a, fn.mul(row, self.a_row), spec.type)
            b = fn.gep(b, fn.mul(col, self.b_column), spec.type)
            c = fn.gep(c, fn.add(fn.mul(row, self.row_step), col), spec.result_type)
            first = fn.add(fn.mul(dot_index(fn, lead, row_major(fn, self.batch, 1)), self.m), row)
            if few_columns:
                left = fn.sub(self.m, row)
                streams = self._streams(a, self.a_row, left)
                with fn.loop(0, fn.minimum(columns, fn.sub(self.n, col))) as loop:
                    x = fn.gep(b, fn.mul(loop.index, self.b_column), spec.type)
                    sums = self._dots(x, streams)
                    at = fn.gep(c, loop.index, spec.result_type)
                    self._finish(sums, at, fn.minimum(lanes, left), i64(1), first, fn.add(col, loop.index))
            else:
                left = fn.sub(self.n, col)
                sums = self._dots(a, self._streams(b, self.b_column, left))
                self._finish(sums, c, i64(1), fn.minimum(lanes, left), first, col)

    def _streams(self, base: V, stride: Int, left: V) -> list[V]:
        """Start of each lane's vector; lanes that do not exist repeat the last one and are not stored."""
        fn, last = self.fn, self.fn.sub(left, 1)
        return [
            fn.gep(base, fn.mul(fn.minimum(lane, last) if lane else i64(0), stride), self.spec.type)
            for lane in range(self.tile.lanes)
        ]

    def _dots(self, x: V, streams: list[V]) -> V:
        """One vector holding the dot product of `x` with each stream."""
        fn, lanes = self.fn, self.tile.lanes
        sets = ceil_div(8, lanes)
        chunk = sets * lanes
        zero = V(self.tile.vector_type, "zeroinitializer")
        whole = fn.sub(self.k, fn.srem(as_i64(self.k), chunk))
        with fn.loop(0, whole, chunk, carry=[zero] * chunk) as loop:
            for s in range(sets):
                at = fn.add(loop.index, s * lanes)
                part = loop.carried[s * lanes : (s + 1) * lanes]
                loop.following += self._products(x, streams, at, part, None)
        acc = loop.results
        for s in range(1, sets):
            for lane in range(lanes):
                acc[lane] = fn.binary("fadd", acc[lane], acc[s * lanes + lane])
        acc = acc[:lanes]
        exact = whole.literal is not None and whole.literal == as_i64(self.k).literal
        if self.target.has_masked_ops and not exact:
            with fn.loop(whole, self.k, lanes, carry=acc) as tail:
                mask = fn.tail_mask(fn.sub(self.k, tail.index), lanes)
                tail.following = self._products(x, streams, tail.index, tail.carried, mask)
            acc = tail.results
        sums = sum_square(fn, acc)
        if self.target.has_masked_ops or exact:
            return sums
        return self._scalar_tail(x, streams, whole, sums)

    def _products(self, x: V, streams: list[V], at: V, acc: list[V], mask: V | None) -> list[V]:
        left = self._load(x, at, mask)
        return [multiply_add(self.fn, left, self._load(s, at, mask), c) for s, c in zip(streams, acc, strict=True)]

    def _load(self, base: V, at: V, mask: V | None) -> V:
        fn, type_ = self.fn, vector(self.spec.type, self.tile.lanes)
        address, align = fn.gep(base, at, self.spec.type), SCALAR_BYTES[self.spec.type]
        value = fn.load(type_, address, align) if mask is None else fn.masked_load(type_, address, mask, align)
        return value if type_ == self.tile.vector_type else fn.convert("fpext", value, self.tile.vector_type)

    def _scalar_tail(self, x: V, streams: list[V], first: V, acc: V) -> V:
        """What no whole vector of k covers, on targets that have no masks."""
        fn, tile = self.fn, self.tile
        with fn.loop(first, self.k, carry=[acc]) as loop:
            gathered = V(tile.vector_type, "poison")
            for lane, stream in enumerate(streams):
                gathered = fn.insert(gathered, lane, self._scalar(stream, loop.index))
            loop.following = [
                multiply_add(fn, fn.splat(self._scalar(x, loop.index), tile.lanes), gathered, loop.carried[0])
            ]
        return loop.results[0]

    def _scalar(self, base: V, at: V) -> V:
        fn, type_ = self.fn, self.spec.type
        value = fn.load(type_, fn.gep(base, at, type_), SCALAR_BYTES[type_])
        return value if type_ == self.tile.scalar else fn.convert("fpext", value, self.tile.scalar)

    def _finish(self, sums: V, address: V, rows: V, count: V, row: V, col: V) -> None:
        """The sums go to `rows` x `count` results: lanes are columns, or rows where columns are few."""
        fn, tile = self.fn, self.tile
        width = i64(1 if self.plan.few_columns else tile.lanes)
        fn.store(sums, self.buffer, tile.vector_align)
        code = Finish(tile.scalar, tile.lanes, self.spec.result_type, 0, True)
        name = finish_function(fn.module, code, self.target, self.epilogue)
        args = [fn.params[0], self.buffer, address, rows, count, row, col, width, as_i64(self.row_step)]
        fn.call(name, "void", args)
