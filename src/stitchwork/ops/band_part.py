"""Bands of matrices: triangles and diagonals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir.dims import Dim, Size
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, const, extent, where
from stitchwork.ops._build import F
from stitchwork.ops._contents import one_size
from stitchwork.ops._op import Array, Op, Operand, Sample, operand, sample
from stitchwork.ops._regions import arange
from stitchwork.ops.slicing import fill_of


class BandPart(Op, name="band_part"):
    """The elements x[..., i, j] with i - j <= num_lower and j - i <= num_upper, 0 elsewhere; negative numbers keep all.

    (-1, 0) is the lower triangle, (0, -1) the upper one, (0, 0) the diagonal.
    """

    x: Operand = operand("... m n", "any")
    num_lower: Size
    num_upper: Size

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {k: one_size(cls.name, k, attrs[k]) for k in ("num_lower", "num_upper")}

    def infer(self, x: TensorType) -> TensorType:
        return x

    def numpy(self, x: Array) -> Array:
        below = arange(x.shape[-2])[:, None] - arange(x.shape[-1])
        kept = np.ones(below.shape, np.bool_)
        kept &= (below <= self.num_lower) if not _open(self.num_lower) else True
        kept &= (-below <= self.num_upper) if not _open(self.num_upper) else True
        return np.where(kept, x, np.zeros((), x.dtype))

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        i, j = out[-2:]
        kept = x[out]
        zero = const(fill_of(x.dtype, 0), x.dtype)
        if not _open(self.num_lower):
            kept = where(i - j <= extent(self.num_lower), kept, zero)
        if not _open(self.num_upper):
            kept = where(j - i <= extent(self.num_upper), kept, zero)
        return kept

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.band_part(ct, num_lower=self.num_lower, num_upper=self.num_upper),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for lower, upper in ((-1, 0), (0, -1), (0, 0), (1, 2), (-1, -1)):
            yield sample((4, 5), num_lower=lower, num_upper=upper)
        yield sample((2, 5, 3), num_lower=1, num_upper=0)
        yield Sample(((4, 4),), {"num_lower": -1, "num_upper": 0}, dtype="bool", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`x` has rank 1", sample((4,), num_lower=0, num_upper=0)
        yield "`num_lower` is not an integer", sample((4, 4), num_lower=0.5, num_upper=0)


def _open(number: Size) -> bool:
    return not isinstance(number, Dim) and number < 0
