"""The register tile: rows x vectors accumulators kept in registers over the whole reduction.

out[i, j] += sum_k a[i, k] * b[k, j]: each step broadcasts one scalar per row and loads one vector per column group.
Matmul rows are rows of A; convolution rows are output pixels, whose inputs lie at fixed distances.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stitchwork.backends.cpu.llvm import Function, Int, Module, V, as_i64, i32, i64, lanes, vector
from stitchwork.backends.cpu.routine import Epilogue, TargetLike, ceil_div, even_parts
from stitchwork.backends.cpu.scalars import to_memory
from stitchwork.ir.dtypes import bfloat16

SCALAR_BYTES = {"float": 4, "double": 8, "half": 2, "bfloat": 2}


def compute_type(scalar: str) -> str:
    """The type that sums of products of a storage type are kept in."""
    return "float" if scalar in ("half", "bfloat") else scalar


@dataclass(frozen=True, slots=True)
class Tile:
    """`rows` x `vectors` accumulators of `lanes` scalars."""

    rows: int
    vectors: int
    lanes: int
    scalar: str

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def vector_type(self) -> str:
        return vector(self.scalar, self.lanes)

    @property
    def vector_align(self) -> int:
        return self.lanes * SCALAR_BYTES[self.scalar]


def vector_lanes(target: TargetLike, scalar: str) -> int:
    return target.vector_bytes // SCALAR_BYTES[scalar]


def most_rows(target: TargetLike, vectors: int) -> int:
    """Rows whose accumulators, `vectors` columns and one broadcast fit the registers."""
    return max(1, (target.vector_registers - 1 - vectors) // vectors)


def tile_cost(rows: int, vectors: int) -> float:
    """Estimated cycles of one reduction step: two multiply-adds or two loads a cycle, and the vectors' own traffic."""
    return max(rows * vectors / 2, (rows + vectors) / 2) + 0.25 * vectors


def choose_tile(target: TargetLike, scalar: str, m: int | None, n: int | None) -> Tile:
    """The tile that covers an m x n result (None: unknown, taken as large) at the least estimated cost."""
    lanes = vector_lanes(target, scalar)
    best: tuple[float, Tile] | None = None
    for vectors in (1, 2, 3, 4, 6, 8):
        most = min(most_rows(target, vectors), 16)
        rows = most if m is None else even_parts(m, most)
        tiles = 1.0 / rows if m is None else ceil_div(m, rows)
        panels = 1.0 / vectors if n is None else max(1, ceil_div(n, vectors * lanes))
        # One vector per row only where no second is needed. For one row alone, narrow panels balance threads.
        if (vectors == 1 and (n is None or n > lanes)) or (vectors > 4 and rows == 1):
            continue
        cost = tiles * panels * tile_cost(rows, vectors)
        if best is None or cost < best[0]:
            best = (cost, Tile(rows, vectors, lanes, scalar))
    assert best is not None
    return best[1]


@dataclass(frozen=True, slots=True)
class Stream:
    """An operand along the reduction: scalar or vector type as stored, elements between steps, known alignment."""

    type: str
    step: Int
    align: int


@dataclass(frozen=True, slots=True)
class Ahead:
    """Memory to bring into the second-level cache meanwhile: every step asks for the line `step` elements further."""

    base: V
    step: int
    type: str

    def after(self, fn: Function, steps: Int) -> Ahead:
        return Ahead(fn.gep(self.base, fn.mul(steps, self.step), self.type), self.step, self.type)

    def touch(self, fn: Function, k: Int) -> None:
        address = fn.gep(self.base, fn.mul(k, self.step), self.type)
        fn.call("llvm.prefetch.p0", "void", [address, i32(0), i32(2), i32(1)])


def _widen(fn: Function, x: V, type_: str) -> V:
    return x if x.type == type_ else fn.convert("fpext", x, type_)


def multiply_add(fn: Function, a: V, b: V, c: V) -> V:
    """a * b + c in one instruction where the CPU has one, else in two (never a call of the C library)."""
    return fn.intrinsic("llvm.fmuladd", a.type, [a, b, c])


def narrow(fn: Function, x: V, scalar: str) -> V:
    """A computed value rounded to a storage type. For `bfloat` this gives its bits: few CPUs have the instruction."""
    if scalar == "bfloat":
        return to_memory(fn, x, bfloat16)
    return fn.convert("fptrunc", x, vector(scalar, lanes(x.type)[1]))


def _step(
    fn: Function,
    tile: Tile,
    rows: Sequence[tuple[V, int]],
    a: Stream,
    b_base: V,
    b: Stream,
    k: Int,
    acc: list[V],
    masks: Sequence[V] | None,
    ahead: Ahead | None,
) -> list[V]:
    """One reduction step at position k: the accumulators after it."""
    if ahead is not None:
        ahead.touch(fn, k)
    at = fn.gep(b_base, fn.mul(k, b.step), b.type)
    columns: list[V] = []
    for j in range(tile.vectors):
        address = fn.gep(at, j * tile.lanes, b.type)
        type_ = vector(b.type, tile.lanes)
        loaded = fn.masked_load(type_, address, masks[j], b.align) if masks else fn.load(type_, address, b.align)
        columns.append(_widen(fn, loaded, tile.vector_type))
    offset = fn.mul(k, a.step)
    bases: dict[str, V] = {}
    out: list[V] = []
    for i, (base, displacement) in enumerate(rows):
        if base.ref not in bases:
            bases[base.ref] = fn.gep(base, offset, a.type)
        scalar = fn.load(a.type, fn.gep(bases[base.ref], displacement, a.type), a.align)
        broadcast = fn.splat(_widen(fn, scalar, tile.scalar), tile.lanes)
        for j, column in enumerate(columns):
            out.append(multiply_add(fn, broadcast, column, acc[i * tile.vectors + j]))
    return out


def accumulate(
    fn: Function,
    tile: Tile,
    rows: Sequence[tuple[V, int]],
    a: Stream,
    b_base: V,
    b: Stream,
    length: Int,
    acc: list[V],
    masks: Sequence[V] | None = None,
    ahead: Ahead | None = None,
) -> list[V]:
    """Add `length` steps to the accumulators; row i reads at `rows[i]`: (base pointer, elements beyond it).

    Tiles too small to hide the latency of a multiply-add keep several sets of accumulators and sum them at the end.
    """
    sets = min(4, ceil_div(8, len(acc)))
    if sets == 1 or as_i64(length).literal in (0, 1, 2, 3):
        return _reduce(fn, tile, rows, a, b_base, b, 0, length, acc, masks, ahead)
    start = acc + zeros(tile) * (sets - 1)
    whole = fn.sub(length, fn.srem(length, sets))
    with fn.loop(0, whole, sets, carry=start) as loop:
        for s in range(sets):
            part = loop.carried[s * len(acc) : (s + 1) * len(acc)]
            loop.following += _step(
                fn, tile, rows, a, b_base, b, fn.add(loop.index, s), part, masks, ahead if s == 0 else None
            )
    total = loop.results[: len(acc)]
    for s in range(1, sets):
        part = loop.results[s * len(acc) : (s + 1) * len(acc)]
        total = [fn.binary("fadd", x, y) for x, y in zip(total, part, strict=True)]
    if whole.literal is not None and whole.literal == as_i64(length).literal:
        return total
    return _reduce(fn, tile, rows, a, b_base, b, whole, length, total, masks, ahead)


def _reduce(
    fn: Function,
    tile: Tile,
    rows: Sequence[tuple[V, int]],
    a: Stream,
    b_base: V,
    b: Stream,
    first: Int,
    last: Int,
    acc: list[V],
    masks: Sequence[V] | None,
    ahead: Ahead | None,
) -> list[V]:
    with fn.loop(first, last, carry=acc) as loop:
        loop.following = _step(fn, tile, rows, a, b_base, b, loop.index, loop.carried, masks, ahead)
    return loop.results


def zeros(tile: Tile) -> list[V]:
    """Accumulators before the first step."""
    return [V(tile.vector_type, "zeroinitializer" if tile.lanes > 1 else "0.0")] * (tile.rows * tile.vectors)


def load_tile(fn: Function, tile: Tile, buffer: V) -> list[V]:
    """Accumulators kept by `spill_tile`."""
    return [
        fn.load(tile.vector_type, fn.gep(buffer, x * tile.lanes, tile.scalar), tile.vector_align)
        for x in range(tile.rows * tile.vectors)
    ]


def spill_tile(fn: Function, tile: Tile, acc: Sequence[V], buffer: V) -> None:
    """Write the accumulators to a vector-aligned buffer of rows x columns scalars."""
    for x, value in enumerate(acc):
        fn.store(value, fn.gep(buffer, x * tile.lanes, tile.scalar), tile.vector_align)


# --- covering a length with tiles --------------------------------------------------------


def ladder(total: int | None, size: int) -> list[int]:
    """Tile sizes that cover a length: the size wanted, then those for the rest (one where the length is known)."""
    if total is not None:
        return [size, total % size] if total % size else [size]
    powers = [1 << x for x in range(size.bit_length() - 1, -1, -1)]
    return [size, *(p for p in powers if p < size)]


def cover(fn: Function, length: V, sizes: list[int], known_rest: bool, body: Callable[[int, V], None]) -> None:
    """Write `body(size, start)` for tiles that cover [0, length): the first size as often as it fits, then the rest.

    `known_rest`: what is left over the first size is nothing or exactly the second one.
    """
    whole = fn.sub(length, fn.srem(length, sizes[0]))
    if whole.literal != 0:
        with fn.loop(0, whole, sizes[0]) as tiles:
            body(sizes[0], tiles.index)
    if known_rest:
        for size in sizes[1:]:
            if whole.literal is not None and length.literal is not None:
                if whole.literal < length.literal:
                    body(size, whole)
                continue
            with fn.when(fn.icmp("slt", whole, length)):
                body(size, whole)
        return
    at = whole
    for size in sizes[1:]:
        before, then, done = fn.block, fn.new_block("then"), fn.new_block("rest")
        fn.cbr(fn.icmp("sge", fn.sub(length, at), i64(size)), then, done)
        fn.position(then)
        body(size, at)
        advanced, last = fn.add(at, size), fn.block
        fn.br(done)
        fn.position(done)
        phi = fn.phi("i64")
        phi.incoming += [(at, before), (advanced, last)]
        at = phi.value


# --- from accumulators to the result ---------------------------------------------------

Place = Callable[[Int], tuple[V, tuple[V, ...]]]
"""Row of a tile -> (address of its first column in the result, logical indices before the column)."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where a tile goes: its rows' places, first column, valid columns from there, element type, epilogue.

    `whole`: True where every tile has all its columns, False where none has, None where that shows at run time.
    """

    place: Place
    column: V
    left: Int
    whole: bool | None
    type: str
    epilogue: Epilogue | None

    def store(self, fn: Function, value: V, address: V, indices: tuple[V, ...], lanes: int, mask: V | None) -> None:
        if self.epilogue is not None:
            value = self.epilogue(fn, value, indices, lanes, mask)
        elif value.type != vector(self.type, lanes):
            value = narrow(fn, value, self.type)
        align = SCALAR_BYTES[self.type] if self.type in SCALAR_BYTES else int(self.type[1:]) // 8
        if mask is None:
            fn.store(value, address, align)
        else:
            fn.masked_store(value, address, mask, align)


def epilogue_length(epilogue: Epilogue | None, tile: Tile, rank: int) -> int:
    """Instructions an epilogue writes per vector, found by calling it on a function that is thrown away."""
    if epilogue is None:
        return 0
    fn = Function(Module(), "trial", "void", [("ptr", "ctx")])
    indices = tuple(V("i64", f"%i{x}") for x in range(rank))
    epilogue(fn, V(tile.vector_type, "%acc"), indices, tile.lanes, None)
    return len(fn.lines)


def finish(
    fn: Function, tile: Tile, acc: Sequence[V], out: Output, masked_ops: bool, unroll: bool, buffer: V | None = None
) -> None:
    """Send the accumulators through the epilogue to the result.

    `unroll` writes the code of whole tiles once per accumulator, else once per column group inside a loop over rows
    (longer reductions do not feel the difference, compile time does). `buffer` may name memory for that loop.
    """
    buffer = fn.alloca(tile.scalar, tile.rows * tile.columns, 64) if buffer is None else buffer
    if out.whole is True or out.whole is None:
        done, edge = fn.new_block("stored"), fn.new_block("edge")
        if out.whole is None:
            whole = fn.new_block("whole")
            fn.cbr(fn.icmp("sge", as_i64(out.left), i64(tile.columns)), whole, edge)
            fn.position(whole)
        if unroll:
            for i in range(tile.rows):
                _whole_row(fn, tile, i, acc[i * tile.vectors : (i + 1) * tile.vectors], out)
        else:
            spill_tile(fn, tile, acc, buffer)
            _whole_rows(fn, tile, buffer, out)
        if out.whole is True:
            return
        fn.br(done)
        fn.position(edge)
        spill_tile(fn, tile, acc, buffer)
        _edge_rows(fn, tile, buffer, out, masked_ops)
        fn.br(done)
        fn.position(done)
    else:
        spill_tile(fn, tile, acc, buffer)
        _edge_rows(fn, tile, buffer, out, masked_ops)


def _whole_row(fn: Function, tile: Tile, row: Int, values: Sequence[V], out: Output) -> None:
    address, lead = out.place(row)
    for j, value in enumerate(values):
        indices = (*lead, fn.add(out.column, j * tile.lanes))
        out.store(fn, value, fn.gep(address, j * tile.lanes, out.type), indices, tile.lanes, None)


def _whole_rows(fn: Function, tile: Tile, buffer: V, out: Output) -> None:
    with fn.loop(0, tile.rows) as rows:
        at = fn.gep(buffer, fn.mul(rows.index, tile.columns), tile.scalar)
        values = [
            fn.load(tile.vector_type, fn.gep(at, j * tile.lanes, tile.scalar), tile.vector_align)
            for j in range(tile.vectors)
        ]
        _whole_row(fn, tile, rows.index, values, out)


def _edge_rows(fn: Function, tile: Tile, buffer: V, out: Output, masked_ops: bool) -> None:
    """A tile cut by the last column: masked vectors, or one lane at a time on targets that have no masks."""
    width = tile.lanes if masked_ops else 1
    type_, align = vector(tile.scalar, width), width * SCALAR_BYTES[tile.scalar]
    with fn.loop(0, tile.rows) as rows:
        address, lead = out.place(rows.index)
        at = fn.gep(buffer, fn.mul(rows.index, tile.columns), tile.scalar)
        with fn.loop(0, fn.minimum(out.left, tile.columns), width) as columns:
            j = columns.index
            mask = fn.tail_mask(fn.sub(out.left, j), width) if masked_ops else None
            value = fn.load(type_, fn.gep(at, j, tile.scalar), align)
            out.store(fn, value, fn.gep(address, j, out.type), (*lead, fn.add(out.column, j)), width, mask)
