"""Runs generated routines on buffers that end at memory no one may touch."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import mmap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stitchwork.backends.cpu.jit import LoadedObject, compile_object, load_object
from stitchwork.backends.cpu.llvm import Function, Module, V, vector
from stitchwork.backends.cpu.microkernel import SCALAR_BYTES
from stitchwork.backends.cpu.routine import Epilogue
from stitchwork.backends.cpu.target import Target

_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_GUARD = 0xA5
Routine = Callable[[int, int, int, int], None]


def targets() -> dict[str, Target]:
    """The host, and narrower machines whose code the host can run."""
    host = Target.host()
    found = {"host": host}
    if host.is_x86 and "avx2" in host.flags:
        found["v3"] = Target.named("x86-64-v3")
    if host.vector_bytes > 32:
        found["masked32"] = dataclasses.replace(host, vector_bytes=32)
    found["plain16"] = dataclasses.replace(host, vector_bytes=16, has_masked_ops=False)
    return found


class Guarded:
    """An array whose last byte is the last of a page, with an unreadable page behind it and marked bytes before."""

    def __init__(self, shape: Sequence[int], dtype: Any, align: int = 1) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        size = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        room = -(-(size + align + 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = mmap.mmap(-1, room + mmap.PAGESIZE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(base + room), ctypes.c_size_t(mmap.PAGESIZE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
        start = (room - size) // align * align
        self.address = base + start
        all_bytes = np.frombuffer(self._memory, np.uint8, room)
        all_bytes[:] = _GUARD
        self._before, self._after = all_bytes[:start], all_bytes[start + size :]
        self.array: NDArray[Any] = all_bytes[start : start + size].view(self.dtype).reshape(self.shape)

    @staticmethod
    def of(values: NDArray[Any], align: int = 1) -> Guarded:
        guarded = Guarded(values.shape, values.dtype, align)
        guarded.array[...] = values
        return guarded

    def check(self) -> None:
        """No byte around the array was written."""
        assert (self._before == _GUARD).all(), "written before the buffer"
        assert (self._after == _GUARD).all(), "written behind the buffer"


class Library:
    """Compiled routines of one module."""

    def __init__(self, module: Module, names: Iterable[str], target: Target) -> None:
        self._loaded: LoadedObject = load_object(compile_object(module.text(), target), names)

    def routine(self, name: str) -> Routine:
        native, loaded = _SIGNATURE(self._loaded.address(name)), self._loaded

        def call(ctx: int, lo: int, hi: int, thread: int, keep: LoadedObject = loaded) -> None:
            native(ctx, lo, hi, thread)

        return call


def context(slots: dict[int, Guarded | int]) -> NDArray[np.int64]:
    ctx = np.zeros(max(slots) + 1, np.int64)
    for index, value in slots.items():
        ctx[index] = value.address if isinstance(value, Guarded) else value
    return ctx


def run_in_pieces(routine: Routine, ctx: NDArray[np.int64], items: int, rng: np.random.Generator) -> None:
    """Call the routine on [0, items) cut into up to four ranges, in random order."""
    cuts: list[int] = sorted({0, items, *(int(x) for x in rng.integers(0, items + 1, 3))})
    pieces = list(itertools.pairwise(cuts))
    order: list[int] = rng.permutation(len(pieces)).tolist()
    for lo, hi in (pieces[i] for i in order):
        routine(ctx.ctypes.data, lo, hi, 0)


def add_bias_and_residual(bias: int, residual: int, columns: int, type_: str) -> Epilogue:
    """An epilogue: max(acc + bias[column] + residual[row, column], 0), buffers from two slots of `ctx`."""

    def load(fn: Function, slot: int, at: V | int, lanes: int, mask: V | None) -> V:
        base = fn.load("ptr", fn.gep(fn.params[0], slot, "i64"), 8)
        address, align = fn.gep(base, at, type_), SCALAR_BYTES[type_]
        if mask is not None:
            return fn.masked_load(vector(type_, lanes), address, mask, align)
        return fn.load(vector(type_, lanes), address, align)

    def epilogue(fn: Function, acc: V, indices: tuple[V, V], lanes: int, mask: V | None) -> V:
        at = fn.add(fn.mul(indices[0], columns), indices[1])
        total = fn.binary("fadd", acc, load(fn, bias, indices[-1], lanes, mask))
        total = fn.binary("fadd", total, load(fn, residual, at, lanes, mask))
        zero = V(total.type, "zeroinitializer" if lanes > 1 else "0.0")
        return fn.intrinsic("llvm.maxnum", total.type, [total, zero])

    return epilogue
