"""Matrix products: `matmul` as NumPy has it, `dot_general` as StableHLO has it, both by way of `batch_matmul`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, broadcast_index, cast, total
from stitchwork.ops._build import F
from stitchwork.ops._op import (
    Array,
    Ints,
    Lib,
    Op,
    Operand,
    Sample,
    axis_index,
    broadcast_shapes,
    operand,
    require_equal,
    sample,
)
from stitchwork.ops._windows import wide, widened

Sizes = tuple[Size, ...]


def _swapped(x: Array, transpose: bool) -> Array:
    return np.swapaxes(x, -1, -2) if transpose else x


class BatchMatmul(Op, name="batch_matmul", internal=True):
    """Matrix products of two stacks: y[..., i, j] = sum over k of a[..., i, k] * b[..., k, j].

    a [..., m, k] ([..., k, m] with transpose_a), b [..., k, n] ([..., n, k] with transpose_b); the leading dims
    broadcast. Sums of floats narrower than 32 bits are formed in float32.
    """

    a: Operand = operand("... p q", "number")
    b: Operand = operand("... r s", "number")
    transpose_a: bool = False
    transpose_b: bool = False

    library = (Lib("matmul", on="cpu", dtypes="f32 f64"),)

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        m, k = a.shape[-2:][::-1] if self.transpose_a else a.shape[-2:]
        k_b, n = b.shape[-2:][::-1] if self.transpose_b else b.shape[-2:]
        if not require_equal(self.name, k, k_b, "inner sizes agree"):
            raise self.fail("inner sizes differ", expected="as many columns of a as rows of b", got=f"a: {a}  b: {b}")
        return a.with_shape((*broadcast_shapes(self.name, a.shape[:-2], b.shape[:-2]), m, n))

    def numpy(self, a: Array, b: Array) -> Array:
        made = np.matmul(wide(_swapped(a, self.transpose_a)), wide(_swapped(b, self.transpose_b)))
        return made.astype(a.dtype)

    def compute(self, out: tuple[Axis, ...], a: Buffer, b: Buffer) -> Expr:
        *batch, i, j = out
        k = Axis(a.shape[-2 if self.transpose_a else -1], "k")
        left = _element(a, batch, (k, i) if self.transpose_a else (i, k))
        right = _element(b, batch, (j, k) if self.transpose_b else (k, j))
        return cast(total(widened(left) * widened(right), k), a.dtype)

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, Value]:
        ta, tb = self.transpose_a, self.transpose_b
        da = product(b, ct, tb, True) if ta else product(ct, b, False, not tb)
        db = product(ct, a, True, ta) if tb else product(a, ct, not ta, False)
        return da, db

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4), (4, 5))
        yield sample((2, 4, 3), (2, 4, 5), transpose_a=True)
        yield sample((2, 1, 3, 4), (3, 5, 4), transpose_b=True)
        yield sample((4, 1), (7, 4), transpose_a=True, transpose_b=True)
        yield sample((2, 0), (0, 3))
        yield sample((0, 3), (3, 2))
        yield sample((33, 65), (65, 17))
        yield Sample(((3, 4), (4, 5)), {}, dtype="i32", grad=False)
        yield Sample(((3, 4), (4, 2)), {}, dtype="c64", grad=False)
        yield Sample(((3, 4), (4, 2)), {}, dtype="bf16", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "inner sizes differ", sample((3, 4), (5, 6))
        yield "shapes do not broadcast", sample((2, 3, 4), (3, 4, 5))


def _element(x: Buffer, batch: Sequence[Axis], last: tuple[Axis, Axis]) -> Expr:
    skip = len(batch) - x.rank + 2
    lead = [broadcast_index(a, a.extent, n) for a, n in zip(batch[skip:], x.shape[:-2], strict=True)]
    return x[(*lead, *last)]


def product(a: Value, b: Value, transpose_a: bool = False, transpose_b: bool = False) -> Value:
    """Matrix product of stacks, see BatchMatmul. A single matrix on the right takes the whole stack as one product."""
    if b.rank == 2 and a.rank > 2 and not transpose_a:
        *lead, k = a.shape
        flat = F.batch_matmul(F.reshape(a, (dims.product(lead), k)), b, transpose_b=transpose_b)
        return F.reshape(flat, (*lead, flat.shape[1]))
    return F.batch_matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)


class Matmul(Op, name="matmul", operator="matmul", aliases=("matrix_multiplication",)):
    """Matrix product as NumPy's `matmul` has it: y[..., i, j] = sum over k of a[..., i, k] * b[..., k, j].

    a [..., m, k], b [..., k, n] give [..., m, n]; the leading dims broadcast. A rank-1 `a` counts as one row, a rank-1
    `b` as one column, and that dim is left out of the result. Result dtype: that of the operands (promoted to a common
    one); sums of floats narrower than 32 bits are formed in float32.
    """

    a: Operand = operand("... k", "number")
    b: Operand = operand("...", "number")
    promotes = True

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        if b.rank == 0:
            raise self.fail(
                "`b` is a scalar", expected="rank 1 or more", got=f"a: {a}  b: {b}", hint="multiply with `*`"
            )
        k = b.shape[0] if b.rank == 1 else b.shape[-2]
        if not require_equal(self.name, a.shape[-1], k, "inner sizes agree"):
            raise self.fail("inner sizes differ", expected="as many columns of a as rows of b", got=f"a: {a}  b: {b}")
        lead = broadcast_shapes(self.name, a.shape[:-2], b.shape[:-2])
        return a.with_shape((*lead, *a.shape[-2:-1], *(b.shape[-1:] if b.rank > 1 else ())))

    def numpy(self, a: Array, b: Array) -> Array:
        return np.asarray(np.matmul(wide(a), wide(b))).astype(a.dtype)

    def decompose(self, a: Value, b: Value) -> Value:
        made = product(_as_rows(a), _as_columns(b))
        if a.rank > 1 and b.rank > 1:
            return made
        rows = () if a.rank == 1 else made.shape[-2:-1]
        columns = () if b.rank == 1 else made.shape[-1:]
        return F.reshape(made, (*made.shape[:-2], *rows, *columns))

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, Value]:
        left, right = _as_rows(a), _as_columns(b)
        lead = ct.shape[: ct.rank - (a.rank > 1) - (b.rank > 1)]
        grown = ct
        if a.rank == 1 or b.rank == 1:
            grown = F.reshape(ct, (*lead, left.shape[-2], right.shape[-1]))
        da = product(grown, right, False, True)
        if b.rank > 2 or a.rank <= 2:
            db = product(left, grown, True, False)
        else:  # one product over all leading dims, instead of a stack of them to be added up
            db = product(_flat(left), _flat(grown), True, False)
        if a.rank == 1:
            da = F.reshape(da, (*da.shape[:-2], da.shape[-1]))
        if b.rank == 1:
            db = F.reshape(db, (*db.shape[:-2], db.shape[-2]))
        return da, db

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4), (4, 5))
        yield sample((4,), (4,))
        yield sample((3, 4), (4,))
        yield sample((4,), (4, 5))
        yield sample((2, 3, 4), (4, 5))
        yield sample((3, 4), (2, 4, 5))
        yield sample((4,), (2, 4, 5))
        yield sample((2, 3, 4), (4,))
        yield sample((2, 1, 3, 4), (6, 4, 1))
        yield sample((1, 1), (1, 1))
        yield sample((0, 3), (3, 2))
        yield sample((2, 0), (0, 3))
        yield Sample(((3, 4), (4, 5)), {}, dtype="i64", grad=False)
        yield Sample(((3, 4), (4, 5)), {}, dtype="f16", grad=False)
        yield Sample(((2, 2, 3), (3, 2)), {}, dtype="c64", grad=False)
        yield Sample((np.ones((2, 3), np.int32), np.ones((3, 2), np.float32)), {}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "inner sizes differ", sample((3, 4), (5, 6))
        yield "inner sizes differ", sample((3,), (4,))
        yield "`a` has rank 0", sample((), (4,))
        yield "`b` is a scalar", sample((4,), ())
        yield "shapes do not broadcast", sample((2, 3, 4), (3, 4, 5))
        yield "has dtype bool", sample(np.ones((2, 2), np.bool_), np.ones((2, 2), np.bool_))


def _as_rows(a: Value) -> Value:
    return F.reshape(a, (1, *a.shape)) if a.rank == 1 else a


def _as_columns(b: Value) -> Value:
    return F.reshape(b, (*b.shape, 1)) if b.rank == 1 else b


def _flat(x: Value) -> Value:
    return F.reshape(x, (dims.product(x.shape[:-1]), x.shape[-1]))


class DotGeneral(Op, name="dot_general", internal=True):
    """Products summed over contracted dims, as StableHLO's dot_general.

    Dims of a and b are paired by position in `batch_a`/`batch_b` and `contract_a`/`contract_b`. The result has the
    batch dims, then a's other dims, then b's.
    """

    a: Operand = operand("...", "number")
    b: Operand = operand("...", "number")
    contract_a: Ints
    contract_b: Ints
    batch_a: Ints = ()
    batch_b: Ints = ()

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        made = dict(attrs)
        for key in ("contract_a", "contract_b", "batch_a", "batch_b"):
            rank = types[0 if key.endswith("a") else 1].rank
            made[key] = tuple(axis_index(cls.name, axis, rank, key) for axis in attrs.get(key, ()))
        return made

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        for mine, yours, used in (
            (self.contract_a, self.contract_b, "contract"),
            (self.batch_a, self.batch_b, "batch"),
        ):
            if len(mine) != len(yours):
                raise self.fail(
                    f"`{used}` dims do not pair", expected="as many of a as of b", got=f"{mine} and {yours}"
                )
            for i, j in zip(mine, yours, strict=True):
                if not require_equal(self.name, a.shape[i], b.shape[j], f"a[{i}] == b[{j}]"):
                    raise self.fail(
                        f"`{used}` dims differ in size", expected=f"a[{i}] == b[{j}]", got=f"a: {a}  b: {b}"
                    )
        for of in ("a", "b"):
            named = getattr(self, f"contract_{of}") + getattr(self, f"batch_{of}")
            if len(set(named)) != len(named):
                raise self.fail(f"a dim of `{of}` is named twice", got=str(named))
        batch = tuple(a.shape[i] for i in self.batch_a)
        return a.with_shape((*batch, *_pick(a.shape, self._free_a(a.rank)), *_pick(b.shape, self._free_b(b.rank))))

    def _free_a(self, rank: int) -> Ints:
        return tuple(d for d in range(rank) if d not in self.contract_a + self.batch_a)

    def _free_b(self, rank: int) -> Ints:
        return tuple(d for d in range(rank) if d not in self.contract_b + self.batch_b)

    def numpy(self, a: Array, b: Array) -> Array:
        names = iter(range(a.ndim + b.ndim))
        of_a = [next(names) for _ in range(a.ndim)]
        of_b = [next(names) for _ in range(b.ndim)]
        for i, j in zip(self.contract_a + self.batch_a, self.contract_b + self.batch_b, strict=True):
            of_b[j] = of_a[i]
        out = [of_a[d] for d in self.batch_a + self._free_a(a.ndim)] + [of_b[d] for d in self._free_b(b.ndim)]
        return np.asarray(np.einsum(wide(a), of_a, wide(b), of_b, out)).astype(a.dtype)

    def decompose(self, a: Value, b: Value) -> Value:
        free_a, free_b = self._free_a(a.rank), self._free_b(b.rank)
        batch = _pick(a.shape, self.batch_a)
        k = dims.product(_pick(a.shape, self.contract_a))
        left = F.permute(a, self.batch_a + free_a + self.contract_a)
        right = F.permute(b, self.batch_b + self.contract_b + free_b)
        made = F.batch_matmul(
            F.reshape(left, (*batch, dims.product(_pick(a.shape, free_a)), k)),
            F.reshape(right, (*batch, k, dims.product(_pick(b.shape, free_b)))),
        )
        return F.reshape(made, (*batch, *_pick(a.shape, free_a), *_pick(b.shape, free_b)))

    def vjp(self, ct: Value, a: Value, b: Value) -> tuple[Value, Value]:
        free_a, free_b = self._free_a(a.rank), self._free_b(b.rank)
        batch = tuple(range(len(self.batch_a)))
        at_a = tuple(range(len(batch), len(batch) + len(free_a)))
        at_b = tuple(range(len(batch) + len(free_a), ct.rank))
        da = F.dot_general(ct, b, contract_a=at_b, contract_b=free_b, batch_a=batch, batch_b=self.batch_b)
        db = F.dot_general(ct, a, contract_a=at_a, contract_b=free_a, batch_a=batch, batch_b=self.batch_a)
        return (
            _restore(da, self.batch_a + free_a + _paired(self.contract_b, self.contract_a)),
            _restore(db, self.batch_b + free_b + _paired(self.contract_a, self.contract_b)),
        )

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4), (4, 5), contract_a=(1,), contract_b=(0,))
        yield sample((2, 3, 4, 5), (5, 2, 3), contract_a=(-1, 1), contract_b=(0, -1))
        yield sample((2, 3, 4), (4, 5, 2), contract_a=(2,), contract_b=(0,), batch_a=(0,), batch_b=(2,))
        yield sample((2, 3), (4,), contract_a=(), contract_b=())
        yield sample((3,), (3,), contract_a=(0,), contract_b=(0,))
        yield sample((2, 3, 0), (0, 2, 4), contract_a=(2,), contract_b=(0,), batch_a=(0,), batch_b=(1,))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "differ in size", sample((3, 4), (5, 4), contract_a=(1,), contract_b=(0,))
        yield "do not pair", sample((3, 4), (4, 4), contract_a=(1,), contract_b=(0, 1))
        yield "out of range", sample((3, 4), (4, 4), contract_a=(2,), contract_b=(0,))
        yield "named twice", sample((4, 4), (4, 4), contract_a=(1, 1), contract_b=(0, 1))


def _pick(shape: Sizes, axes: Ints) -> Sizes:
    return tuple(shape[d] for d in axes)


def _paired(kept: Ints, partner: Ints) -> Ints:
    """The contracted dims of one operand in the order in which the other's appear in a result: ascending."""
    return tuple(partner[kept.index(d)] for d in sorted(kept))


def _restore(x: Value, order: Ints) -> Value:
    """Undo: dim i of `x` belongs at position order[i]."""
    return F.permute(x, tuple(order.index(d) for d in range(len(order))))


matmul, batch_matmul, dot_general = F.matmul, F.batch_matmul, F.dot_general
