"""What the generators of matmul and convolution kernels share: sizes, the target they ask about, names.

A routine is one LLVM function `void (ptr ctx, i64 lo, i64 hi, i64 tid)`. `ctx` is an array of 8-byte slots holding
pointers and i64 sizes; [lo, hi) is a range of the routine's work items, which may run in any order and at the same
time; `tid` numbers the calling thread from 0 and selects its part of the scratch memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from stitchwork.backends.cpu.llvm import Function, Int, Module, V, i64

KERNEL_PARAMS = (("ptr", "ctx"), ("i64", "lo"), ("i64", "hi"), ("i64", "tid"))

Epilogue = Callable[[Function, V, tuple[V, V], int, V | None], V]
"""(function, accumulator, (row, column) of its first lane, lanes, mask or None) -> value to store.

Rows are counted through all dims of the result but the last; lanes run along the columns. With a mask, only lanes
inside it exist: loads of other buffers must be masked too. The function's first parameter is `ctx`. The value returned
has the output's scalar type and the same lanes.
"""


class TargetLike(Protocol):
    """What the generators ask of a target."""

    @property
    def vector_bytes(self) -> int: ...
    @property
    def vector_registers(self) -> int: ...
    @property
    def l1_bytes(self) -> int: ...
    @property
    def l2_bytes(self) -> int: ...
    @property
    def has_masked_ops(self) -> bool: ...
    @property
    def function_attributes(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Slot:
    """A size known when the kernel runs: the i64 at `ctx[index]`."""

    index: int


Size = int | Slot
Lookup = Callable[[Slot], int]


def known(size: Size) -> int | None:
    """The size where it is static, else None."""
    return size if isinstance(size, int) else None


class Context:
    """Reads `ctx` inside one function; each slot is loaded once, in the block that asks first."""

    def __init__(self, fn: Function) -> None:
        self.fn, self.ctx = fn, fn.params[0]
        self._sizes: dict[int, V] = {}

    def pointer(self, slot: int) -> V:
        return self.fn.load("ptr", self.fn.gep(self.ctx, slot, "i64"), 8)

    def size(self, size: Size) -> Int:
        """A Python int for a static size, else the loaded value; ask in a block that dominates every use."""
        if isinstance(size, int):
            return size
        if size.index not in self._sizes:
            self._sizes[size.index] = self.fn.load("i64", self.fn.gep(self.ctx, size.index, "i64"), 8)
        return self._sizes[size.index]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def ceil_div_values(fn: Function, a: V, b: V) -> V:
    return fn.sdiv(fn.sub(fn.add(a, b), 1), b)


def ceil_div_value(fn: Function, a: Int, b: int) -> V:
    return fn.sdiv(fn.add(a, b - 1), i64(b))


Count = tuple[tuple[Size, int], ...]
"""A number that may depend on run-time sizes: the product of ceil(size / divisor) over its (size, divisor) pairs."""


def count_value(count: Count, lookup: Lookup) -> int:
    """The number for the sizes that `lookup` gives."""
    total = 1
    for size, divisor in count:
        total *= ceil_div(size if isinstance(size, int) else lookup(size), divisor)
    return total


def emit_count(context: Context, count: Count) -> V:
    """The number as code, from the sizes in `ctx`."""
    total = i64(1)
    for size, divisor in count:
        total = context.fn.mul(total, ceil_div_value(context.fn, context.size(size), divisor))
    return total


def even_parts(total: int, most: int) -> int:
    """The part size that covers `total` in as few parts of at most `most` as possible, parts as equal as possible."""
    return ceil_div(total, ceil_div(total, most)) if total > 0 else 1


def unravel(fn: Function, index: V, sizes: list[Int]) -> list[V]:
    """Coordinates of a linear index in a row-major box; the first size is not needed and may be anything."""
    coordinates: list[V] = []
    for size in reversed(sizes[1:]):
        coordinates.append(fn.srem(index, size))
        index = fn.sdiv(index, size)
    return [index, *reversed(coordinates)]


def dot_index(fn: Function, indices: Sequence[V], strides: Sequence[Int]) -> V:
    """sum of index * stride."""
    total = i64(0)
    for index, stride in zip(indices, strides, strict=True):
        total = fn.add(total, fn.mul(index, stride))
    return total


def row_major(fn: Function, sizes: Sequence[Int], inner: Int) -> list[Int]:
    """Strides of a contiguous box of the given sizes whose elements are `inner` apart."""
    strides: list[Int] = []
    for size in reversed(sizes):
        strides.append(inner)
        inner = fn.mul(inner, size)
    return strides[::-1]


def batch_steps(context: Context, batch: Sequence[Size], strides: Sequence[Size] | None, inner: Int) -> list[Int]:
    """Batch strides as values; None: those of contiguous matrices of `inner` elements."""
    if strides is None:
        return row_major(context.fn, [context.size(s) for s in batch], inner)
    return [context.size(s) for s in strides]


def digest(prefix: str, *parts: object) -> str:
    """A function name derived from a description: equal descriptions share code."""
    return f"{prefix}_{hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()}"


def begin_kernel(module: Module, name: str, target: TargetLike) -> Function:
    return module.function(name, "void", KERNEL_PARAMS, target.function_attributes)


def begin_helper(module: Module, name: str, params: list[tuple[str, str]], target: TargetLike) -> Function:
    """A function of this module only, never inlined: the register allocator must see it alone."""
    return module.function(name, "void", params, f"noinline {target.function_attributes}", linkage="internal")
