"""Dimension numbers of general gathers and scatters, as StableHLO and XLA define them.

A gather reads a window of the operand for each index vector, a scatter writes one. Both are said by which dims of the
windowed side (a gather's result, a scatter's updates) are window dims, which operand dims a window leaves out, which
operand dims the index vector's entries are for, and which dims are batch dims of both sides.
Source: the StableHLO specification, ops gather and scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from stitchwork.ir.dims import Size
from stitchwork.loops.expr import Expr, extent, maximum, minimum
from stitchwork.ops._op import Array, Ints, Op, require_at_least, require_equal
from stitchwork.ops._regions import Shape, arange

T = TypeVar("T")


@dataclass(frozen=True)
class Numbers:
    """Dimension numbers; see the head of this file."""

    rank: int  # of the operand
    window_dims: Ints  # of the windowed side
    dropped: Ints  # operand dims that windows leave out
    batching: Ints  # operand dims that are batch dims
    indices_batching: Ints  # the same dims of the indices
    index_map: Ints  # operand dims of the index vector's entries
    vector_dim: int  # the dim of the indices that holds the vectors; their rank where each is a single index

    @property
    def kept(self) -> Ints:
        """Operand dims that windows have."""
        return tuple(d for d in range(self.rank) if d not in self.dropped and d not in self.batching)

    def outer(self, rank: int) -> Ints:
        """Dims of the windowed side, of this rank, that are not window dims: those of the indices without vectors."""
        return tuple(d for d in range(rank) if d not in self.window_dims)

    def index_dims(self, shape: Shape) -> Shape:
        """The indices' shape without the vectors."""
        return tuple(n for d, n in enumerate(shape) if d != self.vector_dim)

    def check(self, op: Op, operand: Shape, indices: Shape, window: Shape, windowed_rank: int, clamp: bool) -> None:
        """Raise OpError unless these numbers, with windows of `window` per operand dim, fit the shapes.

        clamp: windows are moved inside, so there must be room for one. Without it an operand may have no elements: then
        every index is outside.
        """
        rank, outer = self.rank, len(indices) - (self.vector_dim < len(indices))
        lists = {
            "window dims": (self.window_dims, windowed_rank),
            "dims left out and batch dims": (self.dropped + self.batching, rank),
            "index map": (self.index_map, rank),
            "batch dims of the indices": (self.indices_batching, len(indices)),
        }
        for what, (dims, limit) in lists.items():
            if len(set(dims)) != len(dims) or not all(0 <= d < limit for d in dims):
                raise op.fail(f"the {what} are not distinct dims", expected=f"0 to {limit - 1}", got=str(dims))
        if list(self.window_dims) != sorted(self.window_dims):
            raise op.fail("the window dims are not in order", got=str(self.window_dims))
        if not 0 <= self.vector_dim <= len(indices):
            raise op.fail(
                "`index_vector_dim` is out of range", expected=f"0 to {len(indices)}", got=str(self.vector_dim)
            )
        entries = indices[self.vector_dim] if self.vector_dim < len(indices) else 1
        if not require_equal(op.name, entries, len(self.index_map), "entries of the index map"):
            raise op.fail(
                "the index map does not fit the index vectors", expected=str(entries), got=str(self.index_map)
            )
        if len(self.window_dims) != len(self.kept) or windowed_rank != outer + len(self.window_dims):
            raise op.fail(
                "the window dims do not fit the operand",
                expected=f"{len(self.kept)} of {outer} more dims",
                got=f"{len(self.window_dims)} of {windowed_rank}",
            )
        self._check_batching(op, operand, indices)
        for d, (n, w) in enumerate(zip(operand, window, strict=True)):
            alone = d in self.dropped or d in self.batching
            anywhere = d in self.batching or (d in self.dropped and d in self.index_map and not clamp)
            if (alone and w != 1) or not (
                require_at_least(op.name, w, 0, f"window[{d}] >= 0")
                and (anywhere or require_at_least(op.name, n - w, 0, f"window[{d}] fits"))
            ):
                raise op.fail(
                    "a window does not fit the operand",
                    expected=f"{1 if alone else f'at most {n}'} in dim {d}",
                    got=str(w),
                )

    def _check_batching(self, op: Op, operand: Shape, indices: Shape) -> None:
        if len(self.batching) != len(self.indices_batching) or self.vector_dim in self.indices_batching:
            raise op.fail(
                "batch dims of operand and indices do not pair", got=f"{self.batching} {self.indices_batching}"
            )
        if set(self.index_map) & set(self.batching):
            raise op.fail("the index map names a batch dim", got=str(self.index_map))
        for a, b in zip(self.batching, self.indices_batching, strict=True):
            if not require_at_least(op.name, operand[a] - indices[b], 0, f"indices[{b}] <= operand[{a}]"):
                raise op.fail(
                    "the indices have more batches than the operand", expected=str(operand[a]), got=str(indices[b])
                )

    def parts(
        self, at: Sequence[T], read: Callable[[tuple[T, ...], int], T]
    ) -> tuple[dict[int, T], dict[int, T], dict[int, T]]:
        """Of the element `at` of the windowed side, per operand dim: starts read, batch positions, window positions.

        `read` gives an entry of an index vector from the vector's position and its number.
        """
        outer = [at[d] for d in self.outer(len(at))]
        starts = {d: read(tuple(outer), k) for k, d in enumerate(self.index_map)}
        places = [d - (d > self.vector_dim) for d in self.indices_batching]
        batches = {d: outer[p] for d, p in zip(self.batching, places, strict=True)}
        return starts, batches, {d: at[w] for d, w in zip(self.kept, self.window_dims, strict=True)}

    def located(
        self, shape: Ints, indices: Array, operand: Ints, window: Ints, wrap: bool, clamp: bool
    ) -> tuple[list[Array], Array]:
        """NumPy: per operand dim the positions of the elements of the windowed side; and which are to be used."""
        vectors = indices if self.vector_dim < indices.ndim else indices[..., None]
        vectors = np.moveaxis(vectors, self.vector_dim, -1).astype(np.int64)
        at = np.meshgrid(*map(arange, shape), indexing="ij")
        starts, batches, inside = self.parts(at, lambda outer, k: vectors[(*outer, k)])
        ok = np.ones(shape, np.bool_)
        for d, s in starts.items():
            limit = operand[d] - window[d]
            s = np.where(s < 0, s + operand[d], s) if wrap else s
            starts[d] = np.clip(s, 0, limit) if clamp else s
            ok &= clamp | ((s >= 0) & (s <= limit))
        zero = np.zeros(shape, np.int64)
        return [starts.get(d, zero) + batches.get(d, zero) + inside.get(d, zero) for d in range(self.rank)], ok


def window_start(
    s: Expr, size: Size, window: Size, wrap: bool, clamp: bool, wrapped: Callable[[Expr, Size], Expr]
) -> Expr:
    """A window's start along a dim from an entry of an index vector, as an i64."""
    start = wrapped(s, size) if wrap else s
    return maximum(minimum(start, extent(size - window)), 0) if clamp else start
