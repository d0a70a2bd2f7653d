"""Undoing broadcasting in gradients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, as_index, total
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Op, Operand, Sample, operand, sample


class Unbroadcast(Op, name="unbroadcast", internal=True):
    """The gradient of a broadcast operand: `gradient` summed over the dims that broadcasting `like` added or stretched.

    The result has the dtype of `gradient` and the shape of `like`, whose elements are not read. The shape of `gradient`
    must be one that `like` broadcasts to.
    """

    gradient: Operand = operand("...", "number")
    like: Operand = operand("...", "any", "")

    def infer(self, gradient: TensorType, like: TensorType) -> TensorType:
        if like.rank > gradient.rank:
            raise self.fail("`like` has more dims than `gradient`", got=f"gradient: {gradient}  like: {like}")
        return gradient.with_shape(like.shape)

    def numpy(self, gradient: Array, like: Array) -> Array:
        added = gradient.ndim - like.ndim
        stretched = (added + d for d, n in enumerate(like.shape) if n == 1)
        wide = (
            gradient.astype(np.float32)
            if gradient.dtype.kind not in "iufc" or gradient.dtype == np.float16
            else gradient
        )
        made = np.sum(wide, axis=(*range(added), *stretched), dtype=wide.dtype)
        return made.reshape(like.shape).astype(gradient.dtype)

    def compute(self, out: tuple[Axis, ...], gradient: Buffer, like: Buffer) -> Expr:
        """Position i of `like` was read by positions i + r of the result, r < size of the result / size of `like`: for
        equal sizes r is 0, and for size 1 i is."""
        added = gradient.rank - like.rank
        over = [Axis(n, f"r{d}") for d, n in enumerate(gradient.shape[:added])]
        index: list[Expr] = list(over)
        for d, (i, n) in enumerate(zip(out, like.shape, strict=True)):
            size = gradient.shape[added + d]
            if size == n:
                index.append(i)
                continue
            r = Axis(size if n == 1 else dims.floordiv(size, n) if n != 0 else 0, f"r{added + d}")
            over.append(r)
            index.append(r if n == 1 else as_index(i) + r)
        element = gradient[tuple(index)]
        return total(element, *over) if over else element

    def vjp(self, ct: Value, gradient: Value, like: Value) -> tuple[Value, None]:
        return F.broadcast(ct, gradient.shape), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4), (3, 4))
        yield sample((2, 3, 4), (4,))
        yield sample((2, 3, 4), (3, 1))
        yield sample((3, 4), ())
        yield sample((0, 4), (1, 4))
        yield sample((2, 0), (0,))
        yield Sample(((64, 3), (1, 3)), {}, dtype="f16", grad=False)
        yield Sample(((3, 4), (1,)), {}, dtype="c64")

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "more dims", sample((3,), (2, 3))
