"""The register tile: rows x vectors accumulators kept in registers over the whole reduction.

out[i, j] += sum_k a[i, k] * b[k, j]: each step broadcasts one scalar per row and loads one vector per column group.
Matmul rows are rows of A; convolution rows are output pixels, whose inputs lie at fixed distances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stitchwork.backends.cpu.llvm import Function, Int, V, as_i64, i64, lanes, vector
from stitchwork.backends.cpu.routine import TargetLike, ceil_div, even_parts
from stitchwork.backends.cpu.scalars import to_memory
from stitchwork.ir.dtypes import bfloat16

SCALAR_BYTES = {"float": 4, "double": 8, "half": 2, "bfloat": 2}


def storage_bytes(type_: str) -> int:
    """Bytes of an element in memory."""
    return SCALAR_BYTES[type_] if type_ in SCALAR_BYTES else max(1, int(type_[1:]) // 8)


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
    """Rows whose accumulators, `vectors` columns and some broadcasts fit the registers.

    LLVM loads columns of the next step early; with one register less for that, three vectors would spill.
    """
    spare = 2 if vectors <= 2 else 4
    return max(1, (target.vector_registers - spare - vectors) // vectors)


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


def widen(fn: Function, x: V, type_: str) -> V:
    """A stored value in the type that sums are kept in."""
    return x if x.type == type_ else fn.convert("fpext", x, type_)


def multiply_add(fn: Function, a: V, b: V, c: V) -> V:
    """a * b + c in one instruction where the CPU has one, else in two (never a call of the C library)."""
    return fn.intrinsic("llvm.fmuladd", a.type, [a, b, c])


def narrow(fn: Function, x: V, scalar: str) -> V:
    """A computed value rounded to a storage type. For `bfloat` this gives its bits: few CPUs have the instruction."""
    if scalar == "bfloat":
        return to_memory(fn, x, bfloat16)
    return fn.convert("fptrunc", x, vector(scalar, lanes(x.type)[1]))


# --- covering a length with tiles --------------------------------------------------------


def tile_sizes(total: int | None, full: int) -> list[int]:
    """How many of 1, 2, ..., `full` rows that are left the next tile takes.

    Where the length is known, its rest is one tile. Else up to half a tile is one, and what is longer two equal ones:
    tiles of half the rows still hide the latency of a multiply-add, and half as many need be written.
    """
    if total is not None:
        return [total % full or full] * (full - 1) + [full]
    half = ceil_div(full, 2)
    return [left if left <= half or left == full else ceil_div(left, 2) for left in range(1, full + 1)]


def cover(fn: Function, length: Int, size_of: Callable[[V], V], body: Callable[[V, V], None]) -> None:
    """Write `body(size, start)` for tiles that cover [0, length); `size_of` gives the next size for what is left."""
    before, head, inside, done = fn.block, fn.new_block("head"), fn.new_block("tile"), fn.new_block("done")
    fn.br(head)
    fn.position(head)
    at = fn.phi("i64")
    at.incoming.append((i64(0), before))
    fn.cbr(fn.icmp("slt", at.value, as_i64(length)), inside, done)
    fn.position(inside)
    size = size_of(fn.sub(length, at.value))
    body(size, at.value)
    at.incoming.append((fn.add(at.value, size), fn.block))
    fn.br(head)
    fn.position(done)
