"""The memory planner: all temporaries of a program share one arena.

Slots are chosen when the program is compiled, from lifetimes alone; how large a slot is, and so where it starts,
follows from the sizes of a run. A temporary may take over a slot whose last user is done.
"""

from __future__ import annotations

from dataclasses import dataclass

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.loops.expr import Load, walk
from stitchwork.loops.kernel import (
    Bind,
    Branch,
    Copy,
    Instruction,
    Kernel,
    Launch,
    Loop,
    LoopKernel,
    NestKernel,
    Program,
    RoutineKernel,
    Storage,
)
from stitchwork.loops.nest import For, If, Let, Statement, Store, While

ALIGNMENT = 64
_UNKNOWN = 256  # what an unknown size counts as when slots are compared


@dataclass
class Arena:
    """Slots of the arena: the size of each, and which temporary is in which."""

    sizes: list[Size]
    slot_of: dict[Storage, int]


def plan(program: Program) -> Arena:
    """Give every temporary a slot."""
    first: dict[Storage, int] = {}
    last: dict[Storage, int] = {}
    _lifetimes(program.instructions, 0, first, last)
    sizes: list[Size] = []
    free_from: list[int] = []
    slot_of: dict[Storage, int] = {}
    for storage in sorted((s for s in first if s.kind == "temporary"), key=lambda s: first[s]):
        wanted = storage.capacity(program.bounds)
        slot = _best_slot(wanted, first[storage], sizes, free_from)
        if slot is None:
            slot = len(sizes)
            sizes.append(0)
            free_from.append(0)
        sizes[slot] = dims.maximum(sizes[slot], wanted)
        free_from[slot] = last[storage] + 1
        slot_of[storage] = slot
    return Arena([dims.ceildiv(n, ALIGNMENT) * ALIGNMENT for n in sizes], slot_of)


def _best_slot(wanted: Size, start: int, sizes: list[Size], free_from: list[int]) -> int | None:
    """The free slot whose size is nearest, as far as sizes can be compared before they are known. A slot is as large as
    the largest of what it holds, so a wrong guess costs memory and nothing else."""
    best: tuple[float, int] | None = None
    for k, size in enumerate(sizes):
        if free_from[k] > start:
            continue
        waste = 0.0 if size == wanted else abs(_estimate(size) - _estimate(wanted)) + 1.0
        if (
            not (isinstance(size, int) and isinstance(wanted, int))
            and waste > (_estimate(size) + _estimate(wanted)) / 2
        ):
            continue
        if best is None or waste < best[0]:
            best = (waste, k)
    return None if best is None else best[1]


def _estimate(size: Size) -> float:
    return dims.estimate(size, _UNKNOWN)


def _lifetimes(instructions: list[Instruction], now: int, first: dict[Storage, int], last: dict[Storage, int]) -> int:
    """Note at which steps storages are first and last touched; returns the next step."""
    for instruction in instructions:
        match instruction:
            case Branch():
                _touch([instruction.predicate], now, first, last)
                middle = _lifetimes(instruction.then, now + 1, first, last)
                now = _lifetimes(instruction.otherwise, middle, first, last)
            case Loop():
                now = _loop_lifetimes(instruction, now, first, last)
            case _:
                _touch(storages_of(instruction), now, first, last)
                now += 1
    return now


def _loop_lifetimes(loop: Loop, start: int, first: dict[Storage, int], last: dict[Storage, int]) -> int:
    """What a loop touches and what was there before it must last until its end."""
    before = set(first)
    middle = _lifetimes(loop.head, start, first, last)
    _touch([loop.predicate], middle, first, last)
    end = _lifetimes(loop.body, middle + 1, first, last)
    touched = set(_all_storages(loop.head)) | set(_all_storages(loop.body)) | {loop.predicate}
    _touch([s for s in touched if s in before], end, first, last)
    return end + 1


def _touch(storages: list[Storage], now: int, first: dict[Storage, int], last: dict[Storage, int]) -> None:
    for s in storages:
        first.setdefault(s, now)
        last[s] = max(last.get(s, now), now)


def _all_storages(instructions: list[Instruction]) -> list[Storage]:
    found: list[Storage] = []
    for i in instructions:
        match i:
            case Branch():
                found += [i.predicate, *_all_storages(i.then), *_all_storages(i.otherwise)]
            case Loop():
                found += [i.predicate, *_all_storages(i.head), *_all_storages(i.body)]
            case _:
                found += storages_of(i)
    return found


def storages_of(instruction: Instruction) -> list[Storage]:
    """Every storage that an instruction without a list of its own touches."""
    match instruction:
        case Launch():
            return kernel_storages(instruction.kernel)
        case Copy():
            return [instruction.source, instruction.target]
        case Bind():
            return [instruction.source]
        case _:  # a check touches none
            return []


def kernel_storages(kernel: Kernel) -> list[Storage]:
    """The storages that a kernel loads or stores, each once, in a fixed order."""
    found: dict[Storage, None] = {}
    match kernel:
        case LoopKernel():
            for stage in kernel.stages:
                _add(found, stage.buffer.key)
                for e in walk(stage.value):
                    if isinstance(e, Load):
                        _add(found, e.buffer.key)
        case NestKernel():
            for s in kernel.statements:
                _statement_storages(s, found)
        case RoutineKernel():
            _add(found, kernel.buffer.key)
            for b in kernel.operands:
                _add(found, b.key)
            for w in kernel.workspaces:
                _add(found, w)
            for e in walk(kernel.epilogue):
                if isinstance(e, Load):
                    _add(found, e.buffer.key)
    return list(found)


def _add(found: dict[Storage, None], key: object) -> None:
    if isinstance(key, Storage):
        found.setdefault(key)


def _statement_storages(s: Statement, found: dict[Storage, None]) -> None:
    match s:
        case For():
            exprs, inner = [s.lo, s.hi], s.body
        case Store():
            _add(found, s.buffer.key)
            exprs, inner = [*s.index, s.value], []
        case Let():
            exprs, inner = [s.value], []
        case If():
            exprs, inner = [s.condition], [*s.then, *s.otherwise]
        case While():
            exprs, inner = [s.condition], s.body
    for expr in exprs:
        for e in walk(expr):
            if isinstance(e, Load):
                _add(found, e.buffer.key)
    for statement in inner:
        _statement_storages(statement, found)
