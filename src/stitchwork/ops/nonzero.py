"""Positions of elements that are not 0: how many there are, only the run tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dims import Dim, Size
from stitchwork.ir.dtypes import int32, int64
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Buffer, cast, const
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Op, Operand, Sample, operand, told_by_run


class _Positions(Op):
    """What both ops declare: the number of rows, a size that the run tells."""

    size: Size | None = None
    binds = "size"

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {"size": told_by_run(cls.name, attrs.get("size"), dims.product(types[0].shape), "non_zero")}

    def indices(self, x: TensorType) -> TensorType:
        """The type of the positions."""
        assert isinstance(self.size, Dim)
        return TensorType(int32, (self.size, x.rank))


class NonZero(_Positions, name="non_zero", internal=True):
    """Positions of the elements that are not 0, in row-major order, int32[size, rank], and their number, int32."""

    x: Operand = operand("...", "any")

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        return self.indices(x), TensorType(int32, ())

    def numpy(self, x: Array) -> tuple[Array, Array]:
        found = np.argwhere(x != 0).astype(np.int32)
        return found, np.array(len(found), np.int32)

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

    def vjp(self, *args: Value) -> tuple[None]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        return _samples()


class NonZeroIndices(_Positions, name="non_zero_indices", aliases=("argwhere",)):
    """Positions of the elements that are not 0, int32[n, rank] in row-major order, as NumPy's argwhere. NaN is not 0.

    How many there are is known when the op has run: the size n is a symbol, which later ops may use like any other. A
    block of control flow cannot return tensors of a size that is found inside of it. `size` is that symbol in the text
    of a module; a caller leaves it out.
    """

    x: Operand = operand("...", "any")

    def infer(self, x: TensorType) -> TensorType:
        return self.indices(x)

    def numpy(self, x: Array) -> Array:
        return np.argwhere(x != 0).astype(np.int32)

    def decompose(self, x: Value) -> Value:
        return F.non_zero(x, size=self.size)[0]

    def vjp(self, *args: Value) -> tuple[None]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        return _samples()

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`size` is not one that the run tells", Sample(((3, 2),), {"size": 4})


def _samples() -> Iterator[Sample]:
    yield Sample((np.array([[1, 0, np.nan], [0, 0, -2]], np.float32),), {}, grad=False)
    yield Sample(((3, 2, 4),), {}, dtype="bool", grad=False)
    yield Sample((np.zeros((3, 2), np.int32),), {}, grad=False)
    yield Sample((np.array(5, np.int32),), {}, grad=False)
    yield Sample((np.zeros((0, 2), np.float32),), {}, grad=False)
    yield Sample((np.array([0, 1j, 2], np.complex64),), {}, grad=False)
