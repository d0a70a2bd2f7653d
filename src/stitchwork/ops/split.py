"""Tensors taken apart along an axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._contents import known, size_tuple
from stitchwork.ops._op import (
    Array,
    Op,
    Operand,
    Sample,
    axis_index,
    operand,
    require_at_least,
    require_equal,
    sample,
)
from stitchwork.ops._regions import Shape
from stitchwork.ops._values import filled, result_cotangents


class Splitting(Op):
    """An op that gives consecutive parts of x along `axis`."""

    axis: int = 0

    def lengths(self, shape: Shape) -> Shape:
        """The parts' sizes along the axis."""
        raise TypeError(f"{self.name} has no `lengths`")

    def _parts(self, shape: Shape) -> list[tuple[Shape, Shape]]:
        """Starts and sizes of each part."""
        parts: list[tuple[Shape, Shape]] = []
        start: Size = 0
        for length in self.lengths(shape):
            starts = tuple(start if d == self.axis else 0 for d in range(len(shape)))
            parts.append((starts, tuple(length if d == self.axis else n for d, n in enumerate(shape))))
            start = start + length
        return parts

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return tuple(x.with_shape(sizes) for _, sizes in self._parts(x.shape))

    def numpy(self, x: Array) -> tuple[Array, ...]:
        ends = np.cumsum([int(cast("int", n)) for n in self.lengths(x.shape)])[:-1]
        return tuple(part.copy() for part in np.split(x, ends, axis=self.axis))

    def decompose(self, x: Value) -> tuple[Value, ...]:
        ones = (1,) * x.rank
        return tuple(F.strided_slice(x, starts=a, sizes=n, strides=ones) for a, n in self._parts(x.shape))

    def vjp(self, *args: Any) -> tuple[Value]:
        *given, x = args
        cts = zip(result_cotangents(given), self._parts(x.shape), strict=True)
        return (F.concat([filled(x, sizes) if ct is None else ct for ct, (_, sizes) in cts], axis=self.axis),)


class Split(Splitting, name="split"):
    """Parts of x along `axis`, of sizes `split_sizes`; one of them may be -1 and takes what is left."""

    x: Operand = operand("...", "any")
    split_sizes: Sequence[Size]
    axis: int = 0

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        axis = axis_index(cls.name, known(cls.name, "axis", attrs.get("axis", 0)), types[0].rank)
        sizes = list(size_tuple(cls.name, "split_sizes", attrs["split_sizes"]))
        wild = [k for k, n in enumerate(sizes) if n == -1]
        n = types[0].shape[axis]
        total: Size = sum((s for k, s in enumerate(sizes) if k not in wild), 0)
        op = cls(split_sizes=tuple(sizes))
        if not sizes or len(wild) > 1:
            raise op.fail(
                "`split_sizes` does not say how to split",
                expected="sizes, at most one of them -1",
                got=str(tuple(sizes)),
            )
        for k in wild:
            sizes[k], total = n - total, n
        if not all(require_at_least(cls.name, s, 0, f"split_sizes[{k}] >= 0") for k, s in enumerate(sizes)) or not (
            require_equal(cls.name, n, total, f"x[{axis}] == sum of split_sizes")
        ):
            raise op.fail("`split_sizes` does not add up to the dim", expected=f"a sum of {n}", got=str(op.split_sizes))
        return {"axis": axis, "split_sizes": tuple(sizes)}

    def lengths(self, shape: Shape) -> Shape:
        assert isinstance(self.split_sizes, tuple)
        return self.split_sizes

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((7, 3), split_sizes=(2, 1, 4))
        yield sample((3, 7), split_sizes=[-1, 2, 0], axis=-1)
        yield sample((3,), split_sizes=3)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "does not add up to the dim", sample((7,), split_sizes=(2, 3))
        yield "does not add up to the dim", sample((7,), split_sizes=(9, -1))
        yield "does not say how to split", sample((7,), split_sizes=(-1, -1))
        yield "`axis` is out of range", sample((7,), split_sizes=(7,), axis=1)


class SplitEqual(Splitting, name="split_equal"):
    """`num_splits` parts of x of one size along `axis`, which must be a multiple of it."""

    x: Operand = operand("...", "any")
    num_splits: int
    axis: int = 0

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        axis = axis_index(cls.name, known(cls.name, "axis", attrs.get("axis", 0)), types[0].rank)
        count = known(cls.name, "num_splits", attrs["num_splits"])
        n = types[0].shape[axis]
        op = cls(num_splits=count)
        if not isinstance(count, int) or count < 1:
            raise op.fail("`num_splits` is not a positive int", got=repr(count))
        if not require_equal(cls.name, dims.mod(n, count), 0, f"x[{axis}] is a multiple of {count}"):
            raise op.fail("the dim does not split equally", expected=f"a multiple of {count}", got=str(n))
        return {"axis": axis, "num_splits": count}

    def lengths(self, shape: Shape) -> Shape:
        return (dims.floordiv(shape[self.axis], self.num_splits),) * self.num_splits

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((6, 3), num_splits=3)
        yield sample((3, 4), num_splits=2, axis=-1)
        yield sample((3, 4), num_splits=1)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "does not split equally", sample((7, 3), num_splits=2)
        yield "is not a positive int", sample((7, 3), num_splits=0)
