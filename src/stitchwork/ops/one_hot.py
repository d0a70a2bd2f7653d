"""One-hot rows from class indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import DType, as_dtype, float32
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, Scalar, as_index, const, where
from stitchwork.ops._contents import known, one_size
from stitchwork.ops._op import Array, Op, Operand, Sample, axis_index, operand, require_at_least, sample
from stitchwork.ops._regions import arange
from stitchwork.ops.slicing import fill_of


class OneHot(Op, name="one_hot"):
    """`on_value` where the position along a new dim of size `depth` at `axis` is the index, `off_value` elsewhere.

    The result is float32 unless `dtype` is given. An index outside [0, depth), negative ones included, gives
    `off_value` throughout, as in TensorFlow and JAX.
    """

    indices: Operand = operand("...", "int")
    depth: Size
    axis: int = -1
    dtype: DType = float32
    on_value: Scalar = 1
    off_value: Scalar = 0
    synonyms = {"data_type": "dtype"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        depth = one_size(cls.name, "depth", attrs["depth"])
        if not require_at_least(cls.name, depth, 0, "depth >= 0"):
            raise cls(depth=depth).fail("`depth` is negative", expected="0 or more", got=str(depth))
        dtype = as_dtype(attrs.get("dtype", float32))
        axis = axis_index(cls.name, known(cls.name, "axis", attrs.get("axis", -1)), types[0].rank + 1)
        return {**attrs, "depth": depth, "axis": axis, "dtype": dtype}

    def _values(self) -> tuple[Scalar, Scalar]:
        return fill_of(self.dtype, self.on_value), fill_of(self.dtype, self.off_value)

    def infer(self, indices: TensorType) -> TensorType:
        return TensorType(self.dtype, (*indices.shape[: self.axis], self.depth, *indices.shape[self.axis :]))

    def numpy(self, indices: Array) -> Array:
        on, off = self._values()
        positions = arange(self.depth).reshape(-1, *(1,) * (indices.ndim - self.axis))
        return np.where(np.expand_dims(indices.astype(np.int64), self.axis) == positions, on, off).astype(
            self.dtype.numpy
        )

    def compute(self, out: tuple[Axis, ...], indices: Buffer) -> Expr:
        on, off = self._values()
        index = as_index(indices[(*out[: self.axis], *out[self.axis + 1 :])])
        return where(index.eq(out[self.axis]), const(on, self.dtype), const(off, self.dtype))

    def vjp(self, ct: Value, indices: Value) -> tuple[None]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample((np.array([0, 2, 1, -1, 5], np.int32),), {"depth": 3}, grad=False)
        yield Sample((np.array([[0, 2], [1, 3]]),), {"depth": 4, "axis": 0, "on_value": 5, "off_value": -1}, grad=False)
        yield Sample((np.array([[0, 2], [1, 3]]),), {"depth": 4, "axis": 1, "dtype": "bool"}, grad=False)
        yield Sample((np.array(1, np.uint8),), {"depth": 3, "dtype": "i32"}, grad=False)
        yield Sample((np.array([1]),), {"depth": 0}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`depth` is negative", sample(np.array([0]), depth=-1)
        yield "`axis` is out of range", sample(np.array([0]), depth=3, axis=2)
        yield "has dtype f32", sample((3,), depth=3)
