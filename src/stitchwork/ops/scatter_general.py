"""The general scatter: windows of updates combined into a tensor at index vectors. Every scatter is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from stitchwork.ir.dtypes import as_dtype, int32
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Buffer, Expr, extent
from stitchwork.ops._build import F
from stitchwork.ops._contents import int_tuple
from stitchwork.ops._dimension_numbers import Numbers, window_start
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, operand, require_equal, sample
from stitchwork.ops._regions import Shape
from stitchwork.ops._values import coordinates, filled, indicator
from stitchwork.ops.gather import wrapped
from stitchwork.ops.gather_general import ints, read_index

MODES = ("add", "sub", "mul", "div", "min", "max", "set")


class ScatterGeneral(Op, name="scatter_general", internal=True):
    """x with a window of `updates` combined into it for each index vector, by StableHLO's dimension numbers.

    Updates are combined in row-major order, so the last one of "set" stays; "min" and "max" keep NaN. A window that is
    not inside x is left out where `outside` is "drop", moved inside where it is "clamp". `wrap` makes negative indices
    count from the end. `unique` promises that no element is written twice, which makes gradients cheaper.
    """

    x: Operand = operand("...", "any")
    indices: Operand = operand("...", "int", same="I")
    updates: Operand = operand("...", "any")
    update_window_dims: Ints
    inserted_window_dims: Ints
    scatter_dims_to_operand_dims: Ints
    index_vector_dim: int
    input_batching_dims: Ints = ()
    scatter_indices_batching_dims: Ints = ()
    mode: str = "add"
    outside: str = "drop"
    wrap: bool = False
    unique: bool = False

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        names = ("update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims", "input_batching_dims",
                 "scatter_indices_batching_dims")  # fmt: skip
        return {**attrs, **{k: int_tuple(cls.name, k, attrs.get(k, ())) for k in names}}

    def numbers(self, rank: int) -> Numbers:
        """The dimension numbers for a tensor of `rank`."""
        return Numbers(rank, self.update_window_dims, self.inserted_window_dims, self.input_batching_dims,
                       self.scatter_indices_batching_dims, self.scatter_dims_to_operand_dims,
                       self.index_vector_dim)  # fmt: skip

    def window(self, rank: int, updates: Shape) -> Shape:
        """The size of a window along each dim of x."""
        kept = iter(self.update_window_dims)
        alone = self.inserted_window_dims + self.input_batching_dims
        return tuple(1 if d in alone else updates[next(kept)] for d in range(rank))

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        check_scatter(self, self, x, indices, updates)
        return x

    def numpy(self, x: Array, indices: Array, updates: Array) -> Array:
        window = ints(self.window(x.ndim, updates.shape))
        at, ok = self.numbers(x.ndim).located(
            updates.shape, indices, x.shape, window, self.wrap, self.outside == "clamp"
        )
        made = np.array(x)
        combine(made, tuple(p[ok] for p in at), updates[ok], self.mode)
        return made

    overwrites = 0

    def loops(self, b: Any, outs: tuple[Buffer, ...], x: Buffer, indices: Buffer, updates: Buffer) -> None:
        (out,) = outs
        numbers = self.numbers(x.rank)
        if out.key is not x.key:
            with b.nest(x.shape, "parallel") as at:
                b.store(out, at, x[at])
        # Batches write to elements of their own; windows of different index vectors may meet, elements of one do not.
        outer = numbers.outer(updates.rank)
        places = [d - (d > self.index_vector_dim) for d in self.scatter_indices_batching_dims]
        batches = [outer[p] for p in places]
        serial = [d for d in outer if d not in batches]
        with ExitStack() as stack:
            at_update: dict[int, Expr] = {}
            for dims, kind in ((batches, "parallel"), (serial, "serial")):
                axes = stack.enter_context(b.nest([updates.shape[d] for d in dims], kind))
                at_update.update(zip(dims, axes, strict=True))
            position = tuple(at_update.get(d, extent(0)) for d in range(updates.rank))
            starts = self._starts(b, numbers, position, x, indices, updates)
            if self.outside == "drop":
                window = self.window(x.rank, updates.shape)
                for d, start in starts.items():
                    stack.enter_context(b.when((start >= 0) & (start <= extent(x.shape[d] - window[d]))))
            kind = "vector" if len(self.update_window_dims) == 1 else "serial"
            inner = stack.enter_context(b.nest([updates.shape[d] for d in self.update_window_dims], kind))
            at_update.update(zip(self.update_window_dims, inner, strict=True))
            self._store(b, out, numbers, tuple(at_update[d] for d in range(updates.rank)), starts, updates)

    def _starts(
        self, b: Any, numbers: Numbers, at: tuple[Expr, ...], x: Buffer, indices: Buffer, updates: Buffer
    ) -> dict[int, Expr]:
        """Locals with the start of the window at an update, along each dim that indices are for."""
        window = self.window(x.rank, updates.shape)
        starts, _, _ = numbers.parts(at, lambda outer, k: read_index(numbers, indices, outer, k))
        clamp = self.outside == "clamp"
        return {
            d: b.let(window_start(b.let(s, "index"), x.shape[d], window[d], self.wrap, clamp, wrapped), "start")
            for d, s in starts.items()
        }

    def _store(
        self, b: Any, out: Buffer, numbers: Numbers, at: tuple[Expr, ...], starts: dict[int, Expr], updates: Buffer
    ) -> None:
        _, batches, within = numbers.parts(at, lambda outer, k: extent(0))
        index = [batches.get(d, within.get(d, extent(0))) for d in range(out.rank)]
        for d, start in starts.items():
            index[d] = start + index[d] if d in within else start
        b.store(out, index, updates[at], combine="" if self.mode == "set" else self.mode)

    # --- gradients ---
    def _again(self, x: Value, indices: Value, updates: Value, mode: str) -> Value:
        """Another scatter at the same places."""
        attrs = {a: getattr(self, a) for a in self.attributes()}
        return F.scatter_general(x, indices, updates, **{**attrs, "mode": mode})

    def _read(self, x: Value, indices: Value, updates: Value) -> Value:
        """The elements of x where the updates go; 0 for those left out."""
        return F.gather_general(
            x, indices,
            slice_sizes=self.window(x.rank, updates.shape),
            offset_dims=self.update_window_dims,
            collapsed_slice_dims=self.inserted_window_dims,
            start_index_map=self.scatter_dims_to_operand_dims,
            index_vector_dim=self.index_vector_dim,
            operand_batching_dims=self.input_batching_dims,
            start_indices_batching_dims=self.scatter_indices_batching_dims,
            outside="clamp" if self.outside == "clamp" else "zero",
            wrap=self.wrap,
        )  # fmt: skip

    def vjp(self, ct: Value, x: Value, indices: Value, updates: Value) -> tuple[Value, None, Value]:
        rule = {"set": self._set_vjp, "mul": self._mul_vjp, "div": self._div_vjp}
        rule.update(dict.fromkeys(("add", "sub"), self._add_vjp))
        rule.update(dict.fromkeys(("min", "max"), self._extreme_vjp))
        of_x, of_updates = rule[self.mode](ct, x, indices, updates)
        return of_x, None, of_updates

    def _add_vjp(self, ct: Value, x: Value, indices: Value, updates: Value) -> tuple[Value, Value]:
        pulled = self._read(ct, indices, updates)
        return ct, pulled if self.mode == "add" else -pulled

    def _set_vjp(self, ct: Value, x: Value, indices: Value, updates: Value) -> tuple[Value, Value]:
        kept = self._again(ct, indices, filled(ct, updates.shape), "set")
        pulled = self._read(ct, indices, updates)
        if self.unique or not updates.rank:
            return kept, pulled
        # Where several updates meet, only the last one counts: number them, scatter the numbers, see which stayed.
        flat = F.reshape(coordinates(ct, 0, (updates.tensor.elements,), int32), shape=updates.shape)
        number = flat + 1
        stayed = self._read(self._again(filled(ct, x.shape, dtype=int32), indices, number, "set"), indices, updates)
        return kept, pulled * indicator(F.equal(stayed, number), ct.dtype)

    def _mul_vjp(self, ct: Value, x: Value, indices: Value, updates: Value) -> tuple[Value, Value]:
        of_x = self._again(ct, indices, updates, "mul")
        if self.unique:
            return of_x, self._read(ct * x, indices, updates)
        # The product of the others: divide by the factor, or where factors are 0, count them.
        zero = F.equal(updates, filled(ct, ()))
        factor = F.select(zero, filled(ct, ()) + 1.0, updates)
        nonzero = self._again(x, indices, factor, "mul")
        zeros = self._again(filled(ct, x.shape), indices, indicator(zero, ct.dtype), "add")
        own = indicator(zero, ct.dtype)
        others = indicator(F.equal(self._read(zeros, indices, updates), own), ct.dtype)
        return of_x, self._read(ct * nonzero, indices, updates) * others / factor

    def _div_vjp(self, ct: Value, x: Value, indices: Value, updates: Value) -> tuple[Value, Value]:
        quotient = self._again(x, indices, updates, "div")
        return self._again(ct, indices, updates, "div"), -self._read(ct * quotient, indices, updates) / updates

    def _extreme_vjp(self, ct: Value, x: Value, indices: Value, updates: Value) -> tuple[Value, Value]:
        best = self._again(x, indices, updates, self.mode)
        x_wins = indicator(F.equal(x, best), ct.dtype)
        update_wins = indicator(F.equal(updates, self._read(best, indices, updates)), ct.dtype)
        number = self._again(x_wins, indices, update_wins, "add")
        share = ct / F.select(F.equal(number, filled(ct, ())), filled(ct, ()) + 1.0, number)
        return share * x_wins, self._read(share, indices, updates) * update_wins

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rows = {"update_window_dims": (1,), "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,),
                "index_vector_dim": 1}  # fmt: skip
        index = np.array([0, 3, 3, 7, -1], np.int32)
        for mode in MODES:
            s = sample((4, 3), index, (5, 3), mode=mode, **rows)
            yield Sample(s.operands, s.attrs, domain=(0.5, 2.0))
        for outside in ("clamp", "drop"):
            yield sample((4, 5), np.array([[2, 1], [3, 3], [-1, 0]]), (2, 3, 3), update_window_dims=(0, 2), mode="add",
                         inserted_window_dims=(), scatter_dims_to_operand_dims=(1, 0), index_vector_dim=1,
                         outside=outside)  # fmt: skip
        yield sample((4, 3), np.array([0, -1, -4], np.int32), (3, 3), mode="set", wrap=True, **rows)
        yield sample((2, 4, 3), np.array([[1, 0], [3, 3]], np.int32), (2, 2, 3), update_window_dims=(2,),
                     inserted_window_dims=(1,), input_batching_dims=(0,), scatter_indices_batching_dims=(0,),
                     scatter_dims_to_operand_dims=(1,), index_vector_dim=2)  # fmt: skip
        yield Sample((np.array([[7, -7], [5, 0]], np.int32), np.array([0, 0, 1], np.int32),
                      np.array([[2, -2], [0, 3], [-3, 0]], np.int32)), {**rows, "mode": "div"}, grad=False)  # fmt: skip
        yield Sample((np.array([True, False]), np.array([0]), np.array([False])),
                     {"update_window_dims": (), "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,),
                      "index_vector_dim": 1, "mode": "set"}, grad=False)  # fmt: skip

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        rows = {"update_window_dims": (1,), "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,),
                "index_vector_dim": 1}  # fmt: skip
        index = np.array([0, 1], np.int32)
        yield "a window does not fit", sample((4, 5), index, (2, 6), **rows)
        yield "updates and indices differ", sample((4, 5), index, (3, 5), **rows)
        yield "unknown `mode`", sample((4, 5), index, (2, 5), mode="pow", **rows)
        yield "not distinct dims", sample((4, 5), index, (2, 5), **{**rows, "scatter_dims_to_operand_dims": (2,)})
        yield "do not fit the operand", sample((4, 5), index, (2, 5), **{**rows, "update_window_dims": (2,)})


def check_scatter(op: Op, general: ScatterGeneral, x: TensorType, indices: TensorType, updates: TensorType) -> None:
    """Raise an OpError of `op` unless a general scatter fits the types."""
    check_mode(op, general.mode, x)
    if general.outside not in ("clamp", "drop"):
        raise op.fail("unknown `outside`", expected="clamp or drop", got=general.outside)
    numbers = general.numbers(x.rank)
    inside = all(0 <= d < updates.rank for d in general.update_window_dims)
    if len(general.update_window_dims) != len(numbers.kept) or not inside:
        raise op.fail(
            "the window dims do not fit the operand",
            expected=f"{len(numbers.kept)} dims of {updates}",
            got=str(general.update_window_dims),
        )
    numbers.check(op, x.shape, indices.shape, general.window(x.rank, updates.shape), updates.rank,
                  general.outside == "clamp")  # fmt: skip
    outer = [updates.shape[d] for d in numbers.outer(updates.rank)]
    for d, (a, b) in enumerate(zip(outer, numbers.index_dims(indices.shape), strict=True)):
        if not require_equal(op.name, a, b, f"updates and indices agree in dim {d}"):
            raise op.fail("updates and indices differ in a dim", expected=str(indices), got=str(updates))


def check_mode(op: Op, mode: str, data: TensorType) -> None:
    """Raise OpError unless `mode` is one that works on the dtype of `data`."""
    if mode not in MODES:
        raise op.fail("unknown `mode`", expected=", ".join(MODES), got=repr(mode))
    if (data.dtype.kind == "b" and mode != "set") or (data.dtype.is_complex and mode in ("min", "max")):
        raise op.fail(
            f"mode {mode!r} does not work on {data.dtype}", expected="set" if data.dtype.kind == "b" else "add"
        )


def combine(made: Array, at: tuple[Array, ...], updates: Array, mode: str) -> None:
    """NumPy: combine updates into `made` in order."""
    if mode == "set":
        made[at] = updates
    elif mode == "div" and as_dtype(made.dtype).is_integer:
        for k, update in enumerate(updates.reshape(-1)):
            place = tuple(p.reshape(-1)[k] for p in at)
            a, b = int(made[place]), int(update)
            made[place] = 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    else:
        ufunc = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum,
                 "max": np.maximum}[mode]  # fmt: skip
        ufunc.at(made, at if at else (), updates if at else updates.reshape(()))
