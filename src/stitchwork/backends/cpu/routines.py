"""Routines as the stitcher and the code generator see them: which operations they take, and how they are launched."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol

import numpy as np

from stitchwork.backends.cpu import scalars
from stitchwork.backends.cpu.emitter import Emitter, Place, Sizes
from stitchwork.backends.cpu.kernel import KernelInfo
from stitchwork.backends.cpu.llvm import Function, Module, V, i64
from stitchwork.backends.cpu.routine import Count, Epilogue, Slot
from stitchwork.backends.cpu.routine import Size as RoutineSize
from stitchwork.backends.cpu.target import Target
from stitchwork.ir import dims
from stitchwork.ir.dims import Size, symbols_of
from stitchwork.ir.dtypes import as_dtype
from stitchwork.ir.graph import Array, Operation
from stitchwork.ir.types import TensorType
from stitchwork.loops.affine import row_major
from stitchwork.loops.expr import Axis, Buffer, Extent, Load, walk
from stitchwork.loops.flatten import flatten
from stitchwork.loops.kernel import RoutineKernel, Stage, Storage
from stitchwork.loops.math import expand


class Routine(Protocol):
    """A routine chosen for one operation."""

    @property
    def workspaces(self) -> list[TensorType]:
        """Temporaries it needs while it runs."""
        ...

    def emit(self, module: Module, kernel: RoutineKernel) -> list[KernelInfo]:
        """Write its functions, to be launched one after the other."""
        ...


Maker = Callable[[Operation, Target], "Routine | None"]


class SlotTable:
    """The slots of a routine's `ctx`: storages at fixed places, then sizes, each once."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.sizes: list[Size] = []

    def slot(self, size: Size) -> RoutineSize:
        """A static size as it is, another one as the slot that will hold it."""
        if isinstance(size, int):
            return size
        if size not in self.sizes:
            self.sizes.append(size)
        return Slot(self.first + self.sizes.index(size))

    def count(self, count: Count) -> Size:
        """A number of items as a size."""
        total: Size = 1
        for size, share in count:
            total = total * dims.ceildiv(self.size(size), share)
        return total

    def size(self, size: RoutineSize) -> Size:
        return size if isinstance(size, int) else self.sizes[size.index - self.first]


class FusedEpilogue:
    """The epilogue of a kernel as the generators of routines want it: a callback, a key, and the slots it reads."""

    def __init__(self, kernel: RoutineKernel, first: int) -> None:
        """first: the slot after the routine's own."""
        self.kernel, self.first = kernel, first
        last = kernel.axes[-1]
        stage = Stage(kernel.buffer, kernel.axes, kernel.epilogue)
        self.stage = flatten(stage, keep=last)
        self.stage = Stage(self.stage.buffer, self.stage.axes, expand(self.stage.value), "", self.stage.index)
        self.last = last
        self.rows = [a for a in self.stage.axes if a is not last]
        self.used = {e for e in walk(self.stage.value) if isinstance(e, Axis)}
        self.storages = self._storages()
        self.symbols = sorted(self._symbols())
        self.is_plain = isinstance(kernel.epilogue, Load) and kernel.epilogue.buffer is kernel.accumulator

    @property
    def slots(self) -> list[Storage | Size]:
        return [*self.storages, *map(dims.symbol, self.symbols)]

    def _storages(self) -> list[Storage]:
        found: dict[Storage, None] = {}
        for e in walk(self.stage.value):
            if isinstance(e, Load) and isinstance(e.buffer.key, Storage):
                found.setdefault(e.buffer.key)
        return list(found)

    def _symbols(self) -> set[str]:
        sizes: list[Size] = [a.extent for a in self.rows[1:]] if self.used & set(self.rows) else []
        for e in walk(self.stage.value):
            if isinstance(e, Load) and e.buffer.key is not self.kernel.accumulator.key:
                sizes += row_major(e.buffer.shape)
            elif isinstance(e, Extent):
                sizes.append(e.size)
        return set[str]().union(*map(symbols_of, sizes))

    def callback(self) -> Epilogue | None:
        """None where the routine's own result is stored as it is."""
        return None if self.is_plain else self._emit

    def _emit(self, fn: Function, acc: V, indices: tuple[V, V], width: int, mask: V | None) -> V:
        ctx = fn.params[0]
        position = self.first + len(self.storages)
        symbols = {n: fn.load("i64", fn.gep(ctx, position + k, "i64"), 8) for k, n in enumerate(self.symbols)}
        sizes = _InlineSizes(fn, symbols)
        pointers = {s: fn.load("ptr", fn.gep(ctx, self.first + k, "i64"), 8) for k, s in enumerate(self.storages)}

        def place(buffer: Buffer) -> Place:
            assert isinstance(buffer.key, Storage)
            return Place(pointers[buffer.key], row_major(buffer.shape))

        em = Emitter(fn, sizes, place)
        self._bind(em, sizes, *indices)
        for e in walk(self.stage.value):
            if isinstance(e, Load) and e.buffer.key is self.kernel.accumulator.key:
                em.registers[e.buffer] = acc
        with em.lanes(self.last, width, mask, True):
            value = em.widen(em.emit(self.stage.value))
        return scalars.to_memory(fn, value, self.kernel.buffer.dtype)

    def _bind(self, em: Emitter, sizes: Sizes, row: V, column: V) -> None:
        """Give the axes that the epilogue uses their values, from the position among all rows of the result."""
        fn = em.fn
        em.axes[self.last] = column
        rows, used = self.rows, self.used
        for k in range(len(rows) - 1, -1, -1):
            if not used & set(rows[: k + 1]):
                return
            if k == 0:
                em.axes[rows[0]] = row
                return
            n = sizes(rows[k].extent)
            if rows[k] in used:
                em.axes[rows[k]] = fn.srem(row, n)
            row = fn.sdiv(row, n)

    def key(self) -> str:
        """Equal for epilogues that read the same code."""
        if self.is_plain:
            return ""
        own = Module()
        fn = own.function("e", "void", [("ptr", "ctx")])
        type_ = scalars.register_type(self.kernel.accumulator.dtype)
        self._emit(fn, V(type_, "%acc"), (V("i64", "%row"), V("i64", "%column")), 1, None)
        return hashlib.sha256(fn.text().encode()).hexdigest()[:16]


class _InlineSizes(Sizes):
    """Sizes computed where they are asked for: the function's entry block is not ours to write to."""

    def __call__(self, size: Size) -> V:
        if isinstance(size, int):
            return i64(size)
        found = self.known.get(size)
        if found is None:
            found = self.known[size] = self._compute(size)
        return found


def constant_storage(array: Array) -> Storage:
    """A constant that a routine made (packed weights)."""
    return Storage(TensorType(as_dtype(array.dtype), array.shape), "constant", "packed", np.ascontiguousarray(array))


def storage_of(buffer: Buffer) -> Storage:
    """The storage that a buffer shows."""
    assert isinstance(buffer.key, Storage)
    return buffer.key
