"""Loops that sort: merge sort and selection on records of int64 numbers.

A record says where an element belongs: its keys as numbers, in order of importance, and last its position, so no two
records are equal and every sort is stable. A key of 32 bits or fewer shares one number with the position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import float32, float64, int32, int64
from stitchwork.loops.expr import Buffer, Expr, bitcast, call, cast, const, extent, maximum, minimum, where

Record = tuple[Expr, ...]
_RUN = 8  # elements sorted by a network before merging
_LARGEST = (1 << 63) - 1
_SMALLEST = -(1 << 63)


def records(keys: Sequence[Buffer], index: tuple[Expr, ...], position: Expr, descending: bool) -> Record:
    """The record of the element at `index`, whose place among those to be sorted is `position`."""
    numbers = [_number(k[index], descending) for k in keys]
    if keys[-1].dtype.bits > 32:
        return (*numbers, position)
    return (*numbers[:-1], call("shl", numbers[-1], 32) | position)


def _number(x: Expr, descending: bool) -> Expr:
    """An int64 that orders as x does, NaN last either way; within 32 bits if x is."""
    dtype = x.dtype
    if not dtype.is_float:
        wide = cast(x, int64)
        if dtype.kind == "u" and dtype.bits >= 32:  # as many numbers below 0 as above
            wide = wide ^ _SMALLEST if dtype.bits == 64 else wide - (1 << 31)
        return ~wide if descending else wide
    bits = 64 if dtype is float64 else 32
    wide = x if bits == 64 else cast(x, float32)
    whole = int64 if bits == 64 else int32
    # The bits of floats order as integers do, backwards below 0. The two zeros become one.
    pattern = bitcast(where(wide.eq(0.0), const(0.0, wide.dtype), wide), whole)
    ordered = pattern ^ (call("shr", pattern, bits - 1) & ((1 << (bits - 1)) - 1))
    ordered = ~ordered if descending else ordered
    return cast(where(call("isnan", wide), const((1 << (bits - 1)) - 1, whole), ordered), int64)


def less(a: Record, b: Record) -> Expr:
    """Whether record a belongs before b."""
    *first, last = zip(a, b, strict=True)
    return reduce(lambda rest, xy: (xy[0] < xy[1]) | (xy[0].eq(xy[1]) & rest), reversed(first), last[0] < last[1])


def choose(condition: Expr, a: Record, b: Record) -> Record:
    """Record a where the condition holds, else b."""
    return tuple(where(condition, x, y) for x, y in zip(a, b, strict=True))


def network(n: int) -> Iterator[tuple[int, int]]:
    """Pairs of places to put in order, one after the other, that sort n elements: Batcher's odd-even merge sort."""
    p = 1
    while p < n:
        k = p
        while k:
            for j in range(k % p, n - k, 2 * k):
                for i in range(j, j + min(k, n - j - k)):
                    if i // (2 * p) == (i + k) // (2 * p):
                        yield i, i + k
            k //= 2
        p *= 2


class RecordSorter:
    """Writes the loops that sort n records into scratch arrays; `record` gives the record of a position."""

    def __init__(self, b: Any, n: Size, record: Callable[[Expr], Record]) -> None:
        self.b, self.n, self.record = b, n, record
        self.width = len(record(extent(0)))
        self.arrays: list[Buffer] = []

    def _allocate(self, size: Size) -> None:
        self.arrays = [self.b.array(int64, (size,), f"record{k}") for k in range(self.width)]

    def _load(self, i: Expr) -> Record:
        return tuple(self.b.let(a[i]) for a in self.arrays)

    def _store(self, i: Expr, record: Record) -> None:
        for a, x in zip(self.arrays, record, strict=True):
            self.b.store(a, (i,), x)

    def _constant(self, number: int) -> Record:
        return (const(number, int64),) * self.width

    def select(self, count: int) -> tuple[Buffer, Expr]:
        """The last numbers of the first `count` records in order: a buffer, and where in it they start."""
        b = self.b
        self._allocate(count + 1)
        self._store(extent(0), self._constant(_SMALLEST))  # stops each insertion
        with b.loop(count + 1, 1) as i:
            self._store(i, self._constant(_LARGEST))
        with b.loop(self.n) as i:
            new = tuple(b.let(x) for x in self.record(i))
            with b.when(less(new, self._at(extent(count)))):
                place = b.variable(count, int64, "place")
                with b.while_(less(new, self._at(place - 1))):
                    self._store(place, self._at(place - 1))
                    b.assign(place, place - 1)
                self._store(place, new)
        return self.arrays[-1], extent(1)

    def _at(self, i: Expr) -> Record:
        return tuple(a[i] for a in self.arrays)

    def sort(self) -> tuple[Buffer, Expr]:
        """The last numbers of all records in order: a buffer, and where in it they start."""
        b = self.b
        padded = dims.ceildiv(self.n, _RUN) * _RUN
        alone = isinstance(padded, int) and padded <= _RUN
        self._allocate(padded if alone else padded * 2)
        with b.loop(dims.floordiv(padded, _RUN)) as run:
            self._sort_run(run * _RUN)
        if alone:
            return self.arrays[-1], extent(0)
        # Merge runs of doubling width from one half of the arrays into the other, and swap the halves.
        size = extent(padded)
        source = b.variable(0, int64, "source")
        width = b.variable(_RUN, int64, "width")
        with b.while_(width < size):
            target = b.let(size - source, "target")
            with b.loop(b.let((size + width * 2 - 1) // (width * 2), "pairs")) as pair:
                self._merge(source, target, b.let(pair * width * 2, "low"), width, size)
            b.assign(source, target)
            b.assign(width, width * 2)
        return self.arrays[-1], source

    def _sort_run(self, low: Expr) -> None:
        b = self.b
        held: list[Record] = []
        for k in range(_RUN):
            i = b.let(low + k)
            inside = i < extent(self.n)
            here = self.record(minimum(i, extent(self.n - 1)))
            held.append(tuple(b.let(x) for x in choose(inside, here, self._constant(_LARGEST))))
        for i, j in network(_RUN):
            x, y = held[i], held[j]
            if self.width == 1:
                held[i], held[j] = (b.let(minimum(x[0], y[0])),), (b.let(maximum(x[0], y[0])),)
            else:
                swap = b.let(less(y, x))
                held[i], held[j] = tuple(map(b.let, choose(swap, y, x))), tuple(map(b.let, choose(swap, x, y)))
        for k, record in enumerate(held):
            self._store(low + k, record)

    def _merge(self, source: Expr, target: Expr, low: Expr, width: Expr, size: Expr) -> None:
        """Merge two neighbouring runs, without branches: what is taken next cannot be predicted."""
        b = self.b
        middle = b.let(minimum(low + width, size), "middle")
        high = b.let(minimum(middle + width, size), "high")
        left = b.variable(low, int64, "left")
        right = b.variable(middle, int64, "right")
        with b.loop(high, low) as k:
            x = self._load(source + minimum(left, middle - 1))
            y = self._load(source + minimum(right, high - 1))
            take_right = b.let((left >= middle) | ((right < high) & less(y, x)))
            self._store(target + k, choose(take_right, y, x))
            step = b.let(cast(take_right, int64))
            b.assign(right, right + step)
            b.assign(left, left + 1 - step)
