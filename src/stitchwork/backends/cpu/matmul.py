"""Code of matmul routines: `plan_matmul` chooses, `emit_matmul` writes (see `matmul_plan.py` for the choices)."""

from __future__ import annotations

from stitchwork.backends.cpu.dot import emit_dot
from stitchwork.backends.cpu.driver import call_pointer, constant
from stitchwork.backends.cpu.finish import Finish, finish_function
from stitchwork.backends.cpu.llvm import Function, Int, Module, V, as_i64, i64
from stitchwork.backends.cpu.matmul_plan import (
    MatmulPlan,
    MatmulSpec,
    pack_operand,
    plan_matmul,
)
from stitchwork.backends.cpu.microkernel import SCALAR_BYTES, Tile, cover, tile_sizes
from stitchwork.backends.cpu.routine import (
    Context,
    Epilogue,
    TargetLike,
    batch_steps,
    begin_kernel,
    ceil_div_value,
    digest,
    dot_index,
    known,
    row_major,
    unravel,
)
from stitchwork.backends.cpu.tile_sum import Step, TileSum, fill_steps, tile_sum

__all__ = ["MatmulPlan", "MatmulSpec", "emit_matmul", "pack_operand", "plan_matmul"]


def emit_matmul(module: Module, plan: MatmulPlan, target: TargetLike, epilogue: Epilogue | None = None) -> Function:
    """Add the routine of a plan to the module, unless it is there already.

    Callers must give pointers to as many elements as the spec's sizes and strides reach, packed buffers aligned to
    64 bytes, and an output that overlaps no operand. The epilogue's rows are counted through all matrices.
    """
    if plan.name in module.functions:
        return module.functions[plan.name]
    if plan.form == "columns":
        return emit_dot(module, plan, target, epilogue)
    fn = begin_kernel(module, plan.name, target)
    _OuterProduct(fn, plan, target, epilogue).write()
    return fn


class _OuterProduct:
    """Writes one routine of the `panels` or `strided` form: items to blocks, blocks of the reduction, tiles."""

    def __init__(self, fn: Function, plan: MatmulPlan, target: TargetLike, epilogue: Epilogue | None) -> None:
        self.fn, self.plan, self.spec, self.target, self.epilogue = fn, plan, plan.spec, target, epilogue
        self.module, self.tile, self.panel, self.in_place = fn.module, plan.tile, plan.panel, plan.form == "strided"
        spec, context = plan.spec, Context(fn)
        size, n = context.size, known(plan.spec.n)
        self.whole = None if n is None or (n > self.panel and n % self.panel) else n % self.panel == 0
        self.a = context.pointer(spec.packed_a if plan.pack_a else spec.a)
        self.b = context.pointer(spec.packed_b if plan.pack_b else spec.b)
        self.c = context.pointer(spec.out)
        self.m, self.n, self.k = size(spec.m), size(spec.n), size(spec.k)
        self.batch = [size(s) for s in spec.batch]
        self.a_steps, self.b_steps = [size(s) for s in spec.a_steps], [size(s) for s in spec.b_steps]
        self.row_step = size(spec.row_step)
        self.context = context
        self.panels = ceil_div_value(fn, self.n, self.panel)
        self.blocks = ceil_div_value(fn, self.m, plan.row_block)
        self.a_batch, self.b_batch, self.c_batch = self._batch_strides()
        rows = self.tile.rows if plan.k_block is None else plan.row_block
        self.buffer = fn.alloca(self.tile.scalar, rows * self.panel)
        self.steps = fn.alloca("i64", len(Step), 64)
        self.sizes = tile_sizes(known(spec.m), self.tile.rows)
        self.finish = self._finish()
        self._fill_steps()

    def _finish(self) -> str:
        tile, tails = self.tile, self.whole is not True
        n = known(self.spec.n)
        if n is not None and n % tile.lanes == 0:
            tails = False
        code = Finish(tile.scalar, tile.lanes, self.spec.result_type, tile.vectors if self.whole else 0, tails)
        return finish_function(self.module, code, self.target, self.epilogue)

    def _fill_steps(self) -> None:
        fn, spec, size = self.fn, self.spec, SCALAR_BYTES[self.spec.type]
        a_row, a_k = (1, self.tile.rows) if self.plan.pack_a else self.a_steps
        b_k = self.b_steps[0] if self.in_place else self.panel
        fill_steps(fn, self.steps, {
            Step.ROW: fn.mul(a_row, size), Step.A: fn.mul(a_k, size), Step.B: fn.mul(b_k, size),
            Step.LENGTH: self.k, Step.AHEAD: self.plan.ahead * SCALAR_BYTES[spec.type],
        })  # fmt: skip

    def _batch_strides(self) -> tuple[list[Int], list[Int], list[Int]]:
        fn, spec, context = self.fn, self.spec, self.context
        a = batch_steps(context, spec.batch, spec.a_batch_strides, fn.mul(self.m, self.k))
        b = batch_steps(context, spec.batch, spec.b_batch_strides, fn.mul(self.k, self.n))
        c = batch_steps(context, spec.batch, spec.out_batch_strides, fn.mul(self.m, self.n))
        if self.plan.pack_a:
            tiles = ceil_div_value(fn, self.m, self.tile.rows)
            a = self._packed(spec.a_batch_strides, fn.mul(fn.mul(tiles, self.k), self.tile.rows))
        if not self.in_place:
            b = self._packed(spec.b_batch_strides, fn.mul(fn.mul(self.panels, self.k), self.panel))
        return a, b, c

    def _packed(self, strides: tuple[int | object, ...] | None, matrix: Int) -> list[Int]:
        """Batch strides of a packed operand: matrices one after another, none for broadcast dimensions."""
        kept = [strides is None or strides[i] != 0 for i in range(len(self.batch))]
        packed = row_major(self.fn, [s for s, keep in zip(self.batch, kept, strict=True) if keep], matrix)
        return [packed.pop(0) if keep else 0 for keep in kept]

    def write(self) -> None:
        fn = self.fn
        with fn.loop(fn.params[1], fn.params[2]) as items:
            *lead, block, panel = unravel(fn, items.index, [*self.batch, self.blocks, self.panels])
            self._item(lead, block, panel)
        fn.ret()

    def _item(self, lead: list[V], block: V, panel: V) -> None:
        fn, spec = self.fn, self.spec
        row, col = fn.mul(block, self.plan.row_block), fn.mul(panel, self.panel)
        a = fn.gep(self.a, dot_index(fn, lead, self.a_batch), spec.type)
        a_row = self.k if self.plan.pack_a else self.a_steps[0]  # packed: each row adds k elements over whole panels
        a = fn.gep(a, fn.mul(row, a_row), spec.type)
        b = fn.gep(self.b, dot_index(fn, lead, self.b_batch), spec.type)
        b = fn.gep(b, col if self.in_place else fn.mul(col, self.k), spec.type)
        c = fn.gep(self.c, dot_index(fn, lead, self.c_batch), spec.result_type)
        c = fn.gep(c, fn.add(fn.mul(row, self.row_step), col), spec.result_type)
        rows = fn.minimum(self.plan.row_block, fn.sub(self.m, row))
        left = fn.minimum(fn.sub(self.n, col), self.panel)
        table = self._table(left)
        first = fn.add(fn.mul(dot_index(fn, lead, row_major(fn, self.batch, 1)), self.m), row)

        def store(count: V, at: V, buffer: V) -> None:
            to = fn.gep(c, fn.mul(at, self.row_step), spec.result_type)
            args = [fn.params[0], buffer, to, count, left, fn.add(first, at), col, i64(self.panel)]
            fn.call(self.finish, "void", [*args, as_i64(self.row_step)])

        def tile(count: V, at: V) -> None:
            self._tile(table, count, at, a, b, self.buffer, as_i64(self.k), left)
            store(count, at, self.buffer)

        if self.plan.k_block is None:
            cover(fn, rows, self._next, tile)
        else:
            self._blocks(rows, table, a, b, left)
            store(rows, i64(0), self.buffer)

    def _blocks(self, rows: V, table: V, a: V, b: V, left: V) -> None:
        """The reduction in blocks; between them, sums wait in the buffer."""
        fn, spec, tile = self.fn, self.spec, self.tile
        with fn.loop(0, fn.mul(rows, tile.columns), tile.lanes) as loop:
            address = fn.gep(self.buffer, loop.index, tile.scalar)
            fn.store(V(tile.vector_type, "zeroinitializer"), address, tile.vector_align)
        k_block = self.plan.k_block or 1
        a_k = tile.rows if self.plan.pack_a else self.a_steps[1]
        b_k = self.b_steps[0] if self.in_place else self.panel
        with fn.loop(0, self.k, k_block) as blocks:
            first = blocks.index
            count = fn.minimum(k_block, fn.sub(self.k, first))
            fn.store(count, fn.gep(self.steps, int(Step.LENGTH), "i64"), 8)
            a_part = fn.gep(a, fn.mul(first, a_k), spec.type)
            b_part = fn.gep(b, fn.mul(first, b_k), spec.type)

            def one(size: V, at: V) -> None:
                buffer = fn.gep(self.buffer, fn.mul(at, self.panel), tile.scalar)
                self._tile(table, size, at, a_part, b_part, buffer, count, left)

            cover(fn, rows, self._next, one)

    def _next(self, left: V) -> V:
        """Rows of the next tile."""
        fn, rows = self.fn, self.tile.rows
        if known(self.spec.m) is not None:
            return fn.minimum(left, rows)
        name = digest("rows", *self.sizes)
        sizes = constant(self.module, name, "i64", [str(size) for size in self.sizes])
        return fn.load("i64", fn.gep(sizes, fn.sub(fn.minimum(left, rows), 1), "i64"), 8)

    def _table(self, left: V) -> V:
        """The functions for tiles of 1, 2, ... rows; where B is read in place, its last columns have others."""
        fn = self.fn
        if not self.in_place or self.whole is True:
            return self._functions(False)
        if self.whole is False:
            return self._functions(True)
        return fn.select(fn.icmp("sge", left, i64(self.panel)), self._functions(False), self._functions(True))

    def _functions(self, masked: bool) -> V:
        tile, plan = self.tile, self.plan
        names: list[str] = []
        for rows in range(1, tile.rows + 1):
            part = Tile(rows, tile.vectors, tile.lanes, tile.scalar)
            code = TileSum(part, self.spec.type, 0, masked, bool(plan.ahead), plan.k_block is not None, self._a_step)
            used = rows in self.sizes
            names.append(f"@{tile_sum(self.module, code, self.target)}" if used else "null")
        return constant(self.module, digest("tiles", *names), "ptr", names)

    @property
    def _a_step(self) -> int:
        """Elements from step to step of A, where that is known and B is packed."""
        if self.in_place:
            return 0
        if self.plan.pack_a:
            return self.tile.rows
        step = self.spec.a_steps[1]
        return step if isinstance(step, int) else 0

    def _tile(self, table: V, count: V, at: V, a: V, b: V, buffer: V, k: V, left: V) -> None:
        fn, spec = self.fn, self.spec
        if self.plan.pack_a:
            rest = fn.srem(at, self.tile.rows)  # inside a panel, rows lie side by side
            a_at = fn.gep(a, fn.add(fn.mul(fn.sub(at, rest), self.k), rest), spec.type)
        else:
            a_at = fn.gep(a, fn.mul(at, self.a_steps[0]), spec.type)
        ahead = b
        if self.plan.ahead:  # what this tile's panel is followed by, and there this tile's share
            before = fn.add(self.panel, fn.mul(fn.sdiv(at, self.tile.rows), self.plan.ahead))
            ahead = fn.gep(b, fn.mul(k, before), spec.type)
        code = fn.load("ptr", fn.gep(table, fn.sub(count, 1), "ptr"), 8)
        call_pointer(fn, code, [self.steps, a_at, b, buffer, ahead, left])
