"""Code of matmul routines: `plan_matmul` chooses, `emit_matmul` writes (see `matmul_plan.py` for the choices)."""

from __future__ import annotations

from stitchwork.backends.cpu.dot import emit_dot
from stitchwork.backends.cpu.llvm import Function, Int, Module, V, as_i64, i64
from stitchwork.backends.cpu.matmul_plan import (
    MatmulPlan,
    MatmulSpec,
    pack_operand,
    plan_matmul,
)
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
    load_tile,
    spill_tile,
    zeros,
)
from stitchwork.backends.cpu.pack import ALIGNMENT
from stitchwork.backends.cpu.routine import (
    Context,
    Epilogue,
    TargetLike,
    batch_steps,
    begin_helper,
    begin_kernel,
    ceil_div_value,
    dot_index,
    known,
    row_major,
    unravel,
)

__all__ = ["MatmulPlan", "MatmulSpec", "emit_matmul", "pack_operand", "plan_matmul"]

UNROLLED_STORE = 160
"""Instructions up to which a short reduction's store is written out per accumulator."""


def emit_matmul(module: Module, plan: MatmulPlan, target: TargetLike, epilogue: Epilogue | None = None) -> Function:
    """Add the routine of a plan to the module, unless it is there already.

    Callers must give pointers to as many elements as the spec's sizes and strides reach, packed buffers aligned to
    64 bytes, and an output that overlaps no operand.
    """
    if plan.name in module.functions:
        return module.functions[plan.name]
    if plan.form == "columns":
        return emit_dot(module, plan, target, epilogue)
    return _OuterProduct(module, plan, target, epilogue).emit()


class _OuterProduct:
    """Writes one routine of the `panels` or `strided` form: a driver and a function per height of tile."""

    def __init__(self, module: Module, plan: MatmulPlan, target: TargetLike, epilogue: Epilogue | None) -> None:
        self.module, self.plan, self.spec, self.target, self.epilogue = module, plan, plan.spec, target, epilogue
        self.tile, self.panel = plan.tile, plan.panel
        self.in_place = plan.form == "strided"
        n = known(plan.spec.n)
        self.whole: bool | None = None
        if n is not None:
            self.whole = True if n % self.panel == 0 else False if n < self.panel else None

    def emit(self) -> Function:
        fn = begin_kernel(self.module, self.plan.name, self.target)
        _Driver(self, fn).write()
        return fn

    # --- a tile's function ---------------------------------------------------------------
    def tile_name(self, rows: int, edge: bool) -> str:
        return f"{self.plan.name}_{rows}{'e' if edge else ''}"

    def tile_function(self, rows: int, edge: bool) -> str:
        """The function of a tile: reads its operands' tiles at a and b, k steps, and ends in `finish`.

        Blocked reductions keep accumulators in `buffer` between blocks; only the last block stores.
        """
        name = self.tile_name(rows, edge)
        if name in self.module.functions:
            return name
        blocked = self.plan.k_block is not None
        params = [("ptr", p) for p in ("ctx", "a", "b", "c", *(["buffer"] if blocked else []))]
        params += [("ptr", "ahead")] if self.plan.ahead else []
        params += [("i64", p) for p in ("k", *(["last"] if blocked else []), "left", "row", "col")]
        params += [("i64", f"i{x}") for x in range(len(self.spec.batch))]
        fn = begin_helper(self.module, name, params, self.target)
        given = dict(zip((p for _, p in params), fn.params, strict=True))
        lead = fn.params[len(params) - len(self.spec.batch) :]
        self._tile_body(fn, Tile(rows, self.tile.vectors, self.tile.lanes, self.tile.scalar), edge, given, lead)
        fn.ret()
        return name

    def _tile_body(self, fn: Function, tile: Tile, edge: bool, given: dict[str, V], lead: list[V]) -> None:
        spec, context = self.spec, Context(fn)
        size = SCALAR_BYTES[spec.type]
        a_row, a_step = (1, self.tile.rows) if self.plan.pack_a else map(context.size, spec.a_steps)
        rows = _row_addresses(fn, given["a"], a_row, tile.rows, spec.type)
        b_step = context.size(spec.b_steps[0]) if self.in_place else self.panel
        b_align = size if self.in_place else min(ALIGNMENT, tile.lanes * size)
        masks = None
        if edge:
            masks = [fn.tail_mask(fn.sub(given["left"], j * tile.lanes), tile.lanes) for j in range(tile.vectors)]
        buffer = given.get("buffer")
        acc = zeros(tile) if buffer is None else load_tile(fn, tile, buffer)
        a, b = Stream(spec.type, a_step, size), Stream(spec.type, b_step, b_align)
        length = given["k"] if known(spec.k) is None or buffer is not None else i64(known(spec.k) or 0)
        ahead = Ahead(given["ahead"], self.plan.ahead, spec.type) if self.plan.ahead else None
        acc = accumulate(fn, tile, rows, a, given["b"], b, length, acc, masks, ahead)
        out_step = context.size(spec.row_step)

        def place(row: Int) -> tuple[V, tuple[V, ...]]:
            address = fn.gep(given["c"], fn.mul(row, out_step), spec.result_type)
            return address, (*lead, fn.add(given["row"], row))

        whole = (not edge) if self.in_place else self.whole
        out = Output(place, given["col"], given["left"], whole, spec.result_type, self.epilogue)
        if buffer is None:
            finish(fn, tile, acc, out, self.target.has_masked_ops, self._unrolled(tile))
            return
        spill_tile(fn, tile, acc, buffer)
        with fn.when(fn.icmp("ne", given["last"], i64(0))):
            finish(fn, tile, acc, out, self.target.has_masked_ops, False, buffer)

    def _unrolled(self, tile: Tile) -> bool:
        k = known(self.spec.k)
        per_vector = 2 + epilogue_length(self.epilogue, tile, len(self.spec.batch) + 2)
        return k is not None and k <= 256 and tile.rows * tile.vectors * per_vector <= UNROLLED_STORE


def _row_addresses(fn: Function, base: V, stride: Int, rows: int, type_: str) -> list[tuple[V, int]]:
    """Where a tile's rows start: one base and known distances, or one pointer each."""
    literal = as_i64(stride).literal
    if literal is not None:
        return [(base, i * literal) for i in range(rows)]
    return [(fn.gep(base, fn.mul(i, stride), type_), 0) for i in range(rows)]


class _Driver:
    """Writes the routine itself: items to blocks, blocks of the reduction, tiles."""

    def __init__(self, owner: _OuterProduct, fn: Function) -> None:
        self.owner, self.fn, plan, spec = owner, fn, owner.plan, owner.spec
        self.plan, self.spec, self.context = plan, spec, Context(fn)
        size = self.context.size
        self.a = self.context.pointer(spec.packed_a if plan.pack_a else spec.a)
        self.b = self.context.pointer(spec.packed_b if plan.pack_b else spec.b)
        self.c = self.context.pointer(spec.out)
        self.m, self.n, self.k = size(spec.m), size(spec.n), size(spec.k)
        self.batch = [size(s) for s in spec.batch]
        self.a_steps, self.b_steps = [size(s) for s in spec.a_steps], [size(s) for s in spec.b_steps]
        self.row_step = size(spec.row_step)
        self.panels = ceil_div_value(fn, self.n, owner.panel)
        self.blocks = ceil_div_value(fn, self.m, plan.row_block)
        self.a_batch, self.b_batch, self.c_batch = self._batch_strides()
        self.buffer = None
        if plan.k_block is not None:
            self.buffer = fn.alloca(owner.tile.scalar, plan.row_block * owner.panel)

    def _batch_strides(self) -> tuple[list[Int], list[Int], list[Int]]:
        fn, spec, context = self.fn, self.spec, self.context
        a = batch_steps(context, spec.batch, spec.a_batch_strides, fn.mul(self.m, self.k))
        b = batch_steps(context, spec.batch, spec.b_batch_strides, fn.mul(self.k, self.n))
        c = batch_steps(context, spec.batch, spec.out_batch_strides, fn.mul(self.m, self.n))
        if self.plan.pack_a:
            tiles = ceil_div_value(fn, self.m, self.owner.tile.rows)
            a = self._packed(spec.a_batch_strides, fn.mul(fn.mul(tiles, self.k), self.owner.tile.rows))
        if not self.owner.in_place:
            b = self._packed(spec.b_batch_strides, fn.mul(fn.mul(self.panels, self.k), self.owner.panel))
        return a, b, c

    def _packed(self, strides: tuple[int | object, ...] | None, matrix: Int) -> list[Int]:
        """Batch strides of a packed operand: matrices one after another, none for broadcast dimensions."""
        kept = [strides is None or strides[i] != 0 for i in range(len(self.batch))]
        packed = row_major(self.fn, [s for s, keep in zip(self.batch, kept, strict=True) if keep], matrix)
        return [packed.pop(0) if keep else 0 for keep in kept]

    def write(self) -> None:
        fn, owner = self.fn, self.owner
        with fn.loop(fn.params[1], fn.params[2]) as items:
            *lead, block, panel = unravel(fn, items.index, [*self.batch, self.blocks, self.panels])
            if owner.in_place and owner.whole is None:
                left = fn.sub(self.n, fn.mul(panel, owner.panel))
                edge, done = fn.new_block("edge"), fn.new_block("next")
                whole = fn.new_block("whole")
                fn.cbr(fn.icmp("sge", left, i64(owner.panel)), whole, edge)
                for label, is_edge in ((whole, False), (edge, True)):
                    fn.position(label)
                    self._item(lead, block, panel, is_edge)
                    fn.br(done)
                fn.position(done)
            else:
                self._item(lead, block, panel, owner.in_place and owner.whole is False)
        fn.ret()

    def _item(self, lead: list[V], block: V, panel: V, edge: bool) -> None:
        fn, owner, spec = self.fn, self.owner, self.spec
        row, col = fn.mul(block, self.plan.row_block), fn.mul(panel, owner.panel)
        a = fn.gep(self.a, dot_index(fn, lead, self.a_batch), spec.type)
        a_row = self.k if self.plan.pack_a else self.a_steps[0]  # packed: each row adds k elements over whole panels
        a = fn.gep(a, fn.mul(row, a_row), spec.type)
        b = fn.gep(self.b, dot_index(fn, lead, self.b_batch), spec.type)
        b = fn.gep(b, col if owner.in_place else fn.mul(col, self.k), spec.type)
        c = fn.gep(self.c, dot_index(fn, lead, self.c_batch), spec.result_type)
        c = fn.gep(c, fn.add(fn.mul(row, self.row_step), col), spec.result_type)
        rows = fn.minimum(self.plan.row_block, fn.sub(self.m, row))
        if known(spec.m) == self.plan.row_block:
            rows = i64(self.plan.row_block)
        left = fn.sub(self.n, col)
        tail = [left, row, col, *lead]
        if self.buffer is None:
            self._tiles(rows, edge, a, b, c, [as_i64(self.k)], tail, None)
            return
        self._clear(rows)
        k_block = self.plan.k_block or 1
        steps = ceil_div_value(fn, self.k, k_block)
        with fn.loop(0, fn.maximum(steps, 1)) as blocks:  # also without any k: the epilogue must run
            first = fn.mul(blocks.index, k_block)
            count = fn.minimum(k_block, fn.sub(self.k, first))
            last = fn.convert("zext", fn.icmp("sge", fn.add(first, k_block), as_i64(self.k)), "i64")
            a_k = owner.tile.rows if self.plan.pack_a else self.a_steps[1]
            b_k = self.b_steps[0] if owner.in_place else owner.panel
            a_part = fn.gep(a, fn.mul(first, a_k), spec.type)
            b_part = fn.gep(b, fn.mul(first, b_k), spec.type)
            self._tiles(rows, edge, a_part, b_part, c, [count, last], tail, self.buffer)

    def _clear(self, rows: V) -> None:
        fn, tile = self.fn, self.owner.tile
        assert self.buffer is not None
        with fn.loop(0, fn.mul(rows, tile.columns), tile.lanes) as loop:
            address = fn.gep(self.buffer, loop.index, tile.scalar)
            fn.store(V(tile.vector_type, "zeroinitializer"), address, tile.vector_align)

    def _tiles(self, rows: V, edge: bool, a: V, b: V, c: V, steps: list[V], tail: list[V], buffer: V | None) -> None:
        """All tiles of a block of rows: the tile's own height as often as it fits, then the rest of the ladder."""
        m, height = known(self.spec.m), self.owner.tile.rows

        def call(height: int, at: V) -> None:
            self._call(height, at, edge, a, b, c, steps, tail, buffer)

        cover(self.fn, rows, ladder(m, height), m is not None, call)

    def _call(
        self, height: int, at: V, edge: bool, a: V, b: V, c: V, steps: list[V], tail: list[V], buffer: V | None
    ) -> None:
        fn, owner, spec = self.fn, self.owner, self.spec
        name = owner.tile_function(height, edge)
        if self.plan.pack_a:
            rest = fn.srem(at, owner.tile.rows)  # inside a panel, rows lie side by side
            a_at = fn.gep(a, fn.add(fn.mul(fn.sub(at, rest), self.k), rest), spec.type)
        else:
            a_at = fn.gep(a, fn.mul(at, self.a_steps[0]), spec.type)
        c_at = fn.gep(c, fn.mul(at, self.row_step), spec.result_type)
        args = [fn.params[0], a_at, b, c_at]
        if buffer is not None:
            args.append(fn.gep(buffer, fn.mul(at, owner.panel), owner.tile.scalar))
        if self.plan.ahead:  # what this tile's panel is followed by, and there this tile's share
            before = fn.add(owner.panel, fn.mul(fn.sdiv(at, owner.tile.rows), self.plan.ahead))
            args.append(fn.gep(b, fn.mul(steps[0], before), spec.type))
        left, row, *others = tail
        fn.call(name, "void", [*args, *steps, left, fn.add(row, at), *others])
