"""Positions of elements that are not 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dtypes import int32, int64
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Buffer, cast, const
from stitchwork.ops._op import Array, Op, Operand, Sample, operand


class NonZeroPadded(Op, name="non_zero_padded", internal=True):
    """Indices of the elements that are not 0, in row-major order, int32[elements, rank], and their number, int32.

    Rows beyond that number are -1. NaN is not 0.
    """

    x: Operand = operand("...", "any")

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        return TensorType(int32, (dims.product(x.shape), x.rank)), TensorType(int32, ())

    def numpy(self, x: Array) -> tuple[Array, Array]:
        found = np.argwhere(x != 0)
        made = np.full((x.size, x.ndim), -1, np.int32)
        made[: len(found)] = found
        return made, np.array(len(found), np.int32)

    def loops(self, b: Any, outs: tuple[Buffer, ...], x: Buffer) -> None:
        indices, number = outs
        held = b.variable(0, int64, "held")
        with b.nest(x.shape, "serial") as at:
            here = x[at] if x.dtype.kind == "b" else x[at].ne(const(0, x.dtype))
            with b.when(here):
                for d, i in enumerate(at):
                    b.store(indices, (held, d), cast(i, int32))
                b.assign(held, held + 1)
        b.store(number, (), cast(held, int32))
        with b.loop(indices.shape[0], held) as row:
            for d in range(x.rank):
                b.store(indices, (row, d), const(-1, int32))

    def vjp(self, *args: Value) -> tuple[None]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample((np.array([[1, 0, np.nan], [0, 0, -2]], np.float32),), {}, grad=False)
        yield Sample(((3, 2, 4),), {}, dtype="bool", grad=False)
        yield Sample((np.zeros((3, 2), np.int32),), {}, grad=False)
        yield Sample((np.array(5, np.int32),), {}, grad=False)
        yield Sample((np.zeros((0, 2), np.float32),), {}, grad=False)
