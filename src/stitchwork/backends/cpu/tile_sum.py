"""Functions that sum one register tile, shared by all routines of a module.

`void tile(ptr steps, ptr a, ptr b, ptr buffer, ptr ahead, i64 left)` adds products of rows of A and vectors of B over
the whole reduction and leaves the accumulators in `buffer`, row after row. Only the tile's shape is in the code;
distances and lengths are read from `steps` (see `Step`): equal tiles of all convolutions and matmuls are one function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from stitchwork.backends.cpu.llvm import Function, Int, Module, V, i32, i64, vector
from stitchwork.backends.cpu.microkernel import SCALAR_BYTES, Tile, multiply_add, widen
from stitchwork.backends.cpu.routine import TargetLike, begin_helper, ceil_div


class Step(IntEnum):
    """The i64s of `steps`. Distances count bytes.

    The reduction is `LINES` x `TAPS` stretches of `LENGTH` steps; B goes on from one stretch to the next.
    """

    ROW = 0  # from row to row of A; then three times, five times, seven times that
    ROW_3 = 1
    ROW_5 = 2
    ROW_7 = 3
    GROUP = 4  # from group to group of rows
    A = 5  # from step to step of A
    B = 6
    LENGTH = 7
    TAPS = 8
    TAP = 9  # from the start of a stretch to that of the next in its line
    LINES = 10
    LINE = 11  # from line to line
    AHEAD = 12  # from step to step of what is brought into the second-level cache meanwhile


_MULTIPLES = {1: (Step.ROW, 1), 2: (Step.ROW, 2), 3: (Step.ROW_3, 1), 4: (Step.ROW, 4), 5: (Step.ROW_5, 1),
              6: (Step.ROW_3, 2), 7: (Step.ROW_7, 1), 8: (Step.ROW, 8)}  # fmt: skip
"""Row -> a distance and a factor that addressing modes offer."""

_BASE_ROWS = 8
"""Rows that are addressed from one pointer."""

_UNROLLED = 4
"""Steps in a row where their distances are known. Between them no pointer moves: on CPUs with 512-bit vectors, integer
additions take every tenth slot of the units that multiply."""


@dataclass(frozen=True, slots=True)
class TileSum:
    """What is in the code of a tile's function.

    `type`: storage type of both operands. `group`: rows that are evenly apart before the next group begins; 0: all are.
    `masked`: only `left` columns of B exist. `ahead`: memory is prefetched. `resumes`: `buffer` holds sums to add to.
    `a_step`: elements from step to step of A, and B is packed; 0: both distances are read from `steps`.
    """

    tile: Tile
    type: str
    group: int = 0
    masked: bool = False
    ahead: bool = False
    resumes: bool = False
    a_step: int = 0

    @property
    def name(self) -> str:
        tile, flags = self.tile, "".join("mar"[k] for k, on in enumerate((self.masked, self.ahead, self.resumes)) if on)
        rows = f"{tile.rows // self.group}x{self.group}" if self.group and self.group < tile.rows else str(tile.rows)
        step = f"s{self.a_step}" if self.a_step else ""
        return f"tile_{self.type}_{rows}_{tile.vectors}x{tile.lanes}{flags}{step}"


def tile_sum(module: Module, code: TileSum, target: TargetLike) -> str:
    """The name of a tile's function, which is written if the module lacks it."""
    if code.name not in module.functions:
        params = [("ptr", p) for p in ("steps", "a", "b", "buffer", "ahead")]
        fn = begin_helper(module, code.name, [*params, ("i64", "left")], target)
        _TileSum(fn, code).write()
        fn.ret()
    return code.name


@dataclass(slots=True)
class _Cursor:
    """Where the next step reads: A's pointers, one for each group of rows; B; what to prefetch.

    `passed`: steps of known distances that the pointers of A and B are behind.
    """

    a: list[V]
    b: V
    ahead: list[V]
    passed: int = 0

    @property
    def values(self) -> list[V]:
        return [*self.a, self.b, *self.ahead]

    def like(self, values: Sequence[V]) -> _Cursor:
        n = len(self.a)
        return _Cursor(list(values[:n]), values[n], list(values[n + 1 : n + 1 + len(self.ahead)]))


class _TileSum:
    def __init__(self, fn: Function, code: TileSum) -> None:
        self.fn, self.code, self.tile = fn, code, code.tile
        self.size = SCALAR_BYTES[code.type]
        inner = (Step.ROW, Step.ROW_3, Step.ROW_5, Step.ROW_7, Step.A, Step.B, Step.AHEAD)
        self.step = {s: self._read(s) for s in inner}
        rows, group = self.tile.rows, code.group
        if group == 0 or group >= rows:
            group = rows if rows <= _BASE_ROWS else ceil_div(rows, 2)
            self.distance = fn.mul(self.step[Step.ROW], group)
        else:
            self.distance = self._read(Step.GROUP)
        self.group = group
        self.masks: list[V] | None = None
        if code.masked:
            lanes = self.tile.lanes
            self.masks = [fn.tail_mask(fn.sub(fn.params[5], j * lanes), lanes) for j in range(self.tile.vectors)]

    def _read(self, step: Step) -> V:
        return self.fn.load("i64", self.fn.gep(self.fn.params[0], int(step), "i64"), 8)

    def write(self) -> None:
        """The stretches, one after the other. What only this loop needs is read inside it: registers are few."""
        fn = self.fn
        _, a, b, buffer, ahead, _ = fn.params
        acc = self._load(buffer) if self.code.resumes else self._zeros()
        more = [ahead] if self.code.ahead else []
        stretches = fn.mul(self._read(Step.LINES), self._read(Step.TAPS))
        with fn.loop(0, stretches, carry=[a, a, i64(1), b, *more, *acc]) as loop:
            line, start, tap, b, *rest = loop.carried
            groups = ceil_div(self.tile.rows, self.group)
            bases = [fn.gep(start, fn.mul(self.distance, q), "i8") for q in range(groups)]
            cursor, acc = self._stretch(_Cursor(bases, b, rest[: len(more)]), rest[len(more) :])
            ends = fn.icmp("sge", tap, self._read(Step.TAPS))
            below, beside = fn.gep(line, self._read(Step.LINE), "i8"), fn.gep(start, self._read(Step.TAP), "i8")
            following = [fn.select(ends, below, line), fn.select(ends, below, beside)]
            following.append(fn.select(ends, i64(1), fn.add(tap, 1)))
            loop.following = [*following, cursor.b, *cursor.ahead, *acc]
        acc = loop.results[4 + len(more) :]
        for x, value in enumerate(acc):
            fn.store(value, fn.gep(buffer, x * self.tile.lanes, self.tile.scalar), self._align)

    @property
    def _align(self) -> int:
        return SCALAR_BYTES[self.tile.scalar]

    def _zeros(self) -> list[V]:
        tile = self.tile
        return [V(tile.vector_type, "zeroinitializer" if tile.lanes > 1 else "0.0")] * (tile.rows * tile.vectors)

    def _load(self, buffer: V) -> list[V]:
        fn, tile = self.fn, self.tile
        return [
            fn.load(tile.vector_type, fn.gep(buffer, x * tile.lanes, tile.scalar), self._align)
            for x in range(tile.rows * tile.vectors)
        ]

    def _stretch(self, cursor: _Cursor, acc: list[V]) -> tuple[_Cursor, list[V]]:
        """`LENGTH` steps. Tiles too small to hide the latency of a multiply-add keep several sets of accumulators."""
        fn, length = self.fn, self._read(Step.LENGTH)
        sets = min(4, ceil_div(8, len(acc)))
        steps = max(sets, _UNROLLED) if self.code.a_step else sets
        if steps == 1:
            return self._loop(0, length, 1, 1, cursor, acc)
        whole = fn.sub(length, fn.srem(length, steps))
        cursor, all_sets = self._loop(0, whole, steps, sets, cursor, acc + self._zeros() * (sets - 1))
        total = all_sets[: len(acc)]
        for s in range(1, sets):
            part = all_sets[s * len(acc) : (s + 1) * len(acc)]
            total = [fn.binary("fadd", x, y) for x, y in zip(total, part, strict=True)]
        return self._loop(whole, length, 1, 1, cursor, total)

    def _loop(self, lo: Int, hi: V, steps: int, sets: int, cursor: _Cursor, acc: list[V]) -> tuple[_Cursor, list[V]]:
        """`steps` steps a round; step after step goes to the next of `sets` sets of accumulators."""
        count, held = len(cursor.values), len(acc) // sets
        with self.fn.loop(lo, hi, steps, carry=[*cursor.values, *acc]) as loop:
            at, sums = cursor.like(loop.carried), loop.carried[count:]
            for s in range(steps):
                first = s % sets * held
                sums[first : first + held] = self._multiply(at, sums[first : first + held], s)
                at = self._advance(at, s, s == steps - 1)
            loop.following = [*at.values, *sums]
        return cursor.like(loop.results), loop.results[count:]

    def _multiply(self, at: _Cursor, acc: Sequence[V], number: int) -> list[V]:
        """One step of the reduction: the accumulators after it."""
        fn, tile, code = self.fn, self.tile, self.code
        if at.ahead and self._asks_ahead(number):
            fn.call("llvm.prefetch.p0", "void", [at.ahead[0], i32(0), i32(2), i32(1)])
        columns: list[V] = []
        for j in range(tile.vectors):
            column = (at.passed * tile.vectors + j) * tile.lanes
            address, type_ = fn.gep(at.b, column, code.type), vector(code.type, tile.lanes)
            if self.masks:
                loaded = fn.masked_load(type_, address, self.masks[j], self.size)
            else:
                loaded = fn.load(type_, address, self.size)
            columns.append(widen(fn, loaded, tile.vector_type))
        out: list[V] = []
        for i in range(tile.rows):
            address = fn.gep(self._row(at, i), at.passed * code.a_step, code.type)
            scalar = fn.load(code.type, address, self.size)
            broadcast = fn.splat(widen(fn, scalar, tile.scalar), tile.lanes)
            for j, column in enumerate(columns):
                out.append(multiply_add(fn, broadcast, column, acc[i * tile.vectors + j]))
        return out

    def _row(self, at: _Cursor, row: int) -> V:
        fn = self.fn
        group, row = divmod(row, self.group)
        if row == 0:
            return at.a[group]
        step, factor = _MULTIPLES[row]
        return fn.gep(at.a[group], fn.mul(self.step[step], factor), "i8")

    def _asks_ahead(self, number: int) -> bool:
        return bool(self.code.a_step) or number == 0

    def _advance(self, at: _Cursor, number: int, last: bool) -> _Cursor:
        fn, code = self.fn, self.code
        ahead = [fn.gep(p, self.step[Step.AHEAD], "i8") if self._asks_ahead(number) else p for p in at.ahead]
        if code.a_step and not last:
            return _Cursor(at.a, at.b, ahead, at.passed + 1)
        steps = at.passed + 1
        if code.a_step:
            moved = [fn.gep(p, steps * code.a_step, code.type) for p in at.a]
            b = fn.gep(at.b, steps * self.tile.columns, code.type)
        else:
            moved = [fn.gep(p, self.step[Step.A], "i8") for p in at.a]
            b = fn.gep(at.b, self.step[Step.B], "i8")
        # An empty statement hides where A's pointers come from: seeing that, LLVM walks from row to row by additions
        # that wait for each other, and a tile of one vector takes twice the time.
        hidden = [fn.emit("ptr", f'call ptr asm "", "=r,0"({p})') for p in moved]
        return _Cursor(hidden, b, ahead)


def fill_steps(fn: Function, steps: V, values: dict[Step, Int]) -> None:
    """Write the numbers that tiles' functions read; those not given are 1 for counts and 0 for distances."""
    row = values.get(Step.ROW, 0)
    given = {Step.LINES: 1, Step.TAPS: 1, **values}
    given |= {Step.ROW_3: fn.mul(row, 3), Step.ROW_5: fn.mul(row, 5), Step.ROW_7: fn.mul(row, 7)}
    for s in Step:
        value = given.get(s, 0)
        fn.store(i64(value) if isinstance(value, int) else value, fn.gep(steps, int(s), "i64"), 8)
