"""Slices whose position is a tensor. Starts are clamped so that the slice lies inside, as in StableHLO and JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, as_index, extent, maximum, minimum, where
from stitchwork.ops._build import F
from stitchwork.ops._contents import one_int, size_tuple
from stitchwork.ops._op import Array, Op, Operand, Sample, operand, require_at_least, require_equal, sample
from stitchwork.ops._regions import Shape, inside
from stitchwork.ops._values import filled
from stitchwork.ops.slicing import fill_of


def check_start(op: Op, x: TensorType, start: TensorType, size: Shape) -> None:
    """Raise OpError unless a slice of `size` fits x and `start` has one entry per dim."""
    if not require_equal(op.name, start.shape[0], x.rank, "one start per dim"):
        raise op.fail("`start` does not have one entry per dim", expected=str(x.rank), got=str(start.shape[0]))
    if len(size) != x.rank:
        raise op.fail("`size` does not have one entry per dim", expected=str(x.rank), got=str(len(size)))
    for d, (n, s) in enumerate(zip(x.shape, size, strict=True)):
        if not require_at_least(op.name, s, 0, f"size[{d}] >= 0") or not require_at_least(
            op.name, n - s, 0, f"size[{d}] <= x[{d}]"
        ):
            raise op.fail("the slice does not fit the tensor", expected=f"0 <= size[{d}] <= {n}", got=str(s))


def start_position(x: Buffer, start: Buffer, size: Shape, d: int) -> Expr:
    """The clamped start along dim `d`."""
    return maximum(minimum(as_index(start[d]), extent(x.shape[d] - size[d])), 0)


def _clamped(x: Array, start: Array, size: Sequence[Any]) -> list[int]:
    return [min(max(int(s), 0), n - int(m)) for s, n, m in zip(start, x.shape, size, strict=True)]


def write_region(b: Any, out: Buffer, update: Buffer, place: Callable[[tuple[Axis, ...]], tuple[Expr, ...]]) -> None:
    """Write every element of `update` to its place in `out`, along rows in vectors."""
    with b.nest(update.shape[:-1], "serial") as outer, b.nest(update.shape[-1:], "vector") as inner:
        at = (*outer, *inner)
        b.store(out, place(at), update[at])


class SliceStartSize(Op, name="slice_start_size", aliases=("dynamic_slice",)):
    """`size` elements per dim from `start`, a vector of ints clamped so that the slice lies inside x.

    Dims with a bit in `squeeze_mask` must be of size 1 and vanish from the result.
    """

    x: Operand = operand("...", "any")
    start: Operand = operand("rank", "int", same="I")
    size: Sequence[Size]
    squeeze_mask: int = 0

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        mask = one_int(cls.name, "squeeze_mask", attrs.get("squeeze_mask", 0))
        return {"size": size_tuple(cls.name, "size", attrs["size"]), "squeeze_mask": mask}

    @property
    def sizes(self) -> Shape:
        """The slice's size per dim."""
        assert isinstance(self.size, tuple)
        return self.size

    def infer(self, x: TensorType, start: TensorType) -> TensorType:
        check_start(self, x, start, self.sizes)
        for d, n in enumerate(self.sizes):
            if self.squeeze_mask >> d & 1 and not require_equal(self.name, n, 1, f"size[{d}] == 1"):
                raise self.fail("a squeezed dim is not of size 1", expected=f"size[{d}] == 1", got=str(n))
        return x.with_shape(tuple(n for d, n in enumerate(self.sizes) if not self.squeeze_mask >> d & 1))

    def numpy(self, x: Array, start: Array) -> Array:
        first = _clamped(x, start, self.sizes)
        whole = x[tuple(slice(s, s + int(n)) for s, n in zip(first, self.sizes, strict=True))]
        return whole.reshape([int(n) for d, n in enumerate(self.sizes) if not self.squeeze_mask >> d & 1]).copy()

    def compute(self, out: tuple[Axis, ...], x: Buffer, start: Buffer) -> Expr:
        kept = iter(out)
        index: list[Expr] = []
        for d in range(x.rank):
            first = start_position(x, start, self.sizes, d)
            index.append(first if self.squeeze_mask >> d & 1 else first + next(kept))
        return x[tuple(index)]

    def vjp(self, ct: Value, x: Value, start: Value) -> tuple[Value, None]:
        whole = F.reshape(ct, shape=self.sizes)
        return F.dynamic_update_slice(filled(ct, x.shape), whole, start), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((7, 5), np.array([2, 1], np.int32), size=(3, 2))
        yield sample((7, 5), np.array([100, -3], np.int64), size=(3, 2))
        yield sample((7, 5), np.array([4, 0], np.int32), size=(1, 5), squeeze_mask=1)
        yield sample((7,), np.array([250], np.uint8), size=(2,))
        yield sample((), np.zeros(0, np.int32), size=())

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "the slice does not fit the tensor", sample((7,), np.array([0]), size=(8,))
        yield "`start` does not have one entry per dim", sample((7,), np.array([0, 0]), size=(3,))
        yield "`size` does not have one entry per dim", sample((7,), np.array([0]), size=(3, 1))
        yield "a squeezed dim is not of size 1", sample((7,), np.array([0]), size=(3,), squeeze_mask=1)


class SliceStartSizeGradient(Op, name="slice_start_size_gradient"):
    """The gradient of `slice_start_size`: zeros of `shape` with `gradient` at the slice of `size` from `start`."""

    gradient: Operand = operand("...", "any")
    start: Operand = operand("rank", "int", same="I")
    shape: Sequence[Size]
    size: Sequence[Size]
    squeeze_mask: int = 0

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        mask = one_int(cls.name, "squeeze_mask", attrs.get("squeeze_mask", 0))
        return {**{k: size_tuple(cls.name, k, attrs[k]) for k in ("shape", "size")}, "squeeze_mask": mask}

    def infer(self, gradient: TensorType, start: TensorType) -> TensorType:
        assert isinstance(self.shape, tuple) and isinstance(self.size, tuple)
        whole = gradient.with_shape(self.shape)
        slice_ = SliceStartSize(size=self.size, squeeze_mask=self.squeeze_mask)
        wanted = slice_.infer(whole, start)
        if len(wanted.shape) != gradient.rank or not all(
            require_equal(self.name, a, b, "gradient has the slice's shape")
            for a, b in zip(gradient.shape, wanted.shape, strict=True)
        ):
            raise self.fail("`gradient` does not have the slice's shape", expected=str(wanted), got=str(gradient))
        return whole

    def numpy(self, gradient: Array, start: Array) -> Array:
        made = np.zeros([int(n) for n in self.shape], gradient.dtype)
        first = _clamped(made, start, self.size)
        size = [int(n) for n in self.size]
        made[tuple(slice(s, s + n) for s, n in zip(first, size, strict=True))] = gradient.reshape(size)
        return made

    def decompose(self, gradient: Value, start: Value) -> Value:
        whole = F.reshape(gradient, shape=self.size)
        return F.dynamic_update_slice(filled(gradient, self.shape), whole, start)

    def vjp(self, ct: Value, gradient: Value, start: Value) -> tuple[Value, None]:
        return F.slice_start_size(ct, start, size=self.size, squeeze_mask=self.squeeze_mask), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 2), np.array([2, 1], np.int32), shape=(7, 5), size=(3, 2))
        yield sample((5,), np.array([9, 0], np.int32), shape=(7, 5), size=(1, 5), squeeze_mask=1)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`gradient` does not have the slice's shape", sample((3,), np.array([2]), shape=(7,), size=(2,))


class DynamicUpdateSlice(Op, name="dynamic_update_slice"):
    """x with `update` written over the slice that begins at `start`, a vector of ints clamped so that it fits."""

    x: Operand = operand("...", "any")
    update: Operand = operand("...", "any")
    start: Operand = operand("rank", "int", same="I")
    promotes = True
    overwrites = 0

    def infer(self, x: TensorType, update: TensorType, start: TensorType) -> TensorType:
        if update.rank != x.rank:
            raise self.fail("`update` and `x` differ in rank", expected=f"rank {x.rank}", got=str(update))
        check_start(self, x, start, update.shape)
        return x

    def numpy(self, x: Array, update: Array, start: Array) -> Array:
        made = np.array(x)
        first = _clamped(x, start, update.shape)
        made[tuple(slice(s, s + n) for s, n in zip(first, update.shape, strict=True))] = update
        return made

    def compute(self, out: tuple[Axis, ...], x: Buffer, update: Buffer, start: Buffer) -> Expr:
        index = tuple(i - start_position(x, start, update.shape, d) for d, i in enumerate(out))
        here = inside(index, update.shape)
        new = update.at(*index, boundary="constant", fill=fill_of(x.dtype, 0))
        return new if here is None else where(here, new, x[out])

    def loops(self, b: Any, outs: tuple[Buffer, ...], x: Buffer, update: Buffer, start: Buffer) -> None:
        first = [b.let(start_position(x, start, update.shape, d), "start") for d in range(x.rank)]
        write_region(b, outs[0], update, lambda at: tuple(f + i for f, i in zip(first, at, strict=True)))

    def vjp(self, ct: Value, x: Value, update: Value, start: Value) -> tuple[Value, Value, None]:
        kept = F.dynamic_update_slice(ct, filled(ct, update.shape), start)
        return kept, F.slice_start_size(ct, start, size=update.shape), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((7, 5), (3, 2), np.array([2, 1], np.int32))
        yield sample((7, 5), (3, 2), np.array([100, -3], np.int64))
        yield sample((7, 5), (7, 5), np.array([1, 1], np.int32))
        yield sample((), (), np.zeros(0, np.int32))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "differ in rank", sample((7,), (2, 2), np.array([0]))
        yield "the slice does not fit the tensor", sample((7,), (8,), np.array([0]))
