"""The frame of a kernel's function: its arguments, sizes and scratch memory.

`void kernel(ptr ctx, i64 lo, i64 hi, i64 tid)` does the work items [lo, hi). `ctx` holds 8-byte slots: an address for
every storage, the value of every symbol, then the address of the scratch memory and its bytes per thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from stitchwork.backends.cpu.emitter import Place, Sizes
from stitchwork.backends.cpu.llvm import Function, Module, V
from stitchwork.backends.cpu.target import Target
from stitchwork.ir.dims import Size
from stitchwork.loops.affine import row_major
from stitchwork.loops.expr import Buffer
from stitchwork.loops.kernel import Storage


@dataclass(frozen=True)
class KernelInfo:
    """What `main` must know of a kernel's function.

    `slots` are what `ctx` holds; after them come the scratch memory's address and bytes per thread, unless
    `scratch_slot` names the slot for its address (each thread's part then being `scratch_bytes` long).
    """

    name: str
    slots: tuple[Storage | Size, ...]
    items: Size
    work: Size
    grain: int
    scratch_bytes: Size
    scratch_slot: int | None = None


PARAMS = [("ptr noalias nocapture readonly", "ctx"), ("i64", "lo"), ("i64", "hi"), ("i64", "tid")]


class KernelFunction:
    """A kernel's function being written, and what its launch must know."""

    def __init__(self, module: Module, storages: list[Storage], symbols: list[str], target: Target) -> None:
        self.module, self.storages, self.symbols = module, storages, symbols
        self.fn = Function(module, "KERNEL", "void", PARAMS, target.function_attributes, "internal")
        ctx, self.lo, self.hi, self.tid = self.fn.params
        self.ctx = ctx
        self.items: Size = 1
        self.work: Size = 1
        self.grain = 1
        self.scratch_bytes: Size = 0
        self.pointers = {s: self._slot(k, "ptr") for k, s in enumerate(storages)}
        values = {name: self._slot(len(storages) + k, "i64") for k, name in enumerate(symbols)}
        self.sizes = Sizes(self.fn, values)
        self.scratch = self._scratch()

    def _slot(self, number: int, type_: str) -> V:
        with self.fn.in_prologue():
            return self.fn.load(type_, self.fn.gep(self.ctx, number, "i64"), 8)

    def _scratch(self) -> V:
        base = self._slot(len(self.storages) + len(self.symbols), "ptr")
        stride = self._slot(len(self.storages) + len(self.symbols) + 1, "i64")
        with self.fn.in_prologue():
            return self.fn.gep(base, self.fn.mul(self.tid, stride), "i8")

    def size(self, n: Size) -> V:
        """A size as an i64."""
        return self.sizes(n)

    def place(self, buffer: Buffer) -> Place:
        """Where a storage's buffer is."""
        assert isinstance(buffer.key, Storage)
        return Place(self.pointers[buffer.key], row_major(buffer.shape))

    def text(self) -> str:
        return self.fn.text()
