"""Logic on truth values. An element is true where it is not 0 (NaN is true); the result is bool, NumPy's habit, where
the original gives 0 and 1 in the operands' dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir import dtypes
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import Content
from stitchwork.loops.expr import Expr, const
from stitchwork.ops._op import Array, Operand, Sample, operand, sample
from stitchwork.ops._pointwise import Elementwise, combined


def truth(x: Expr) -> Expr:
    """Whether an expression of any dtype is not 0."""
    return x if x.dtype is dtypes.bool_ else x.ne(const(0, x.dtype))


class Logical(Elementwise):
    """A function of truth values."""

    smooth = False

    def result_dtype(self, *dtypes_: DType) -> DType:
        return dtypes.bool_

    def logic(self, *args: Any, **kwargs: Any) -> Any:
        """The result from bools: expressions or Python's, which share & | ^."""
        raise TypeError(f"{self.name} has no `logic` rule")

    def element(self, *args: Expr) -> Expr:
        return self.logic(*map(truth, args))

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        def decide(*values: Any) -> bool | None:
            known = all(isinstance(v, int) for v in values)
            return bool(self.logic(*(np.bool_(v != 0) for v in values))) if known else None

        return combined(types, contents, dtypes.bool_, decide)


class LogicalNot(Logical, name="logical_not"):
    """Whether x is 0, as bool."""

    x: Operand = operand("...", "any")

    def wide(self, x: Array) -> Any:
        return np.logical_not(x)

    def logic(self, x: Any) -> Any:
        return ~x


class LogicalBinary(Logical):
    """Of two tensors, broadcast; their dtypes may differ."""

    a: Operand = operand("...", "any", "")
    b: Operand = operand("...", "any", "")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        bools = np.array([False, True])
        yield sample(bools[:, None], bools)
        yield sample(np.array([0, 3, -1], np.int32), np.array([0.0, np.nan, 0.5], np.float32))
        yield sample(np.array([0, 256], np.int64), np.array([1], np.uint8))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "shapes do not broadcast", sample((3, 4), (3, 5))


class LogicalAnd(LogicalBinary, name="logical_and"):
    """Whether both are true (not 0), broadcast, as bool."""

    def wide(self, a: Array, b: Array) -> Any:
        return np.logical_and(a, b)

    def logic(self, a: Any, b: Any) -> Any:
        return a & b


class LogicalOr(LogicalBinary, name="logical_or"):
    """Whether one or both are true (not 0), broadcast, as bool."""

    def wide(self, a: Array, b: Array) -> Any:
        return np.logical_or(a, b)

    def logic(self, a: Any, b: Any) -> Any:
        return a | b


class LogicalNand(LogicalBinary, name="logical_nand"):
    """Whether not both are true (not 0), broadcast, as bool."""

    def wide(self, a: Array, b: Array) -> Any:
        return ~np.logical_and(a, b)

    def logic(self, a: Any, b: Any) -> Any:
        return ~(a & b)


class LogicalNor(LogicalBinary, name="logical_nor"):
    """Whether neither is true (not 0), broadcast, as bool."""

    def wide(self, a: Array, b: Array) -> Any:
        return ~np.logical_or(a, b)

    def logic(self, a: Any, b: Any) -> Any:
        return ~(a | b)


class LogicalXor(LogicalBinary, name="logical_xor"):
    """Whether exactly one is true (not 0), broadcast, as bool."""

    def wide(self, a: Array, b: Array) -> Any:
        return np.logical_xor(a, b)

    def logic(self, a: Any, b: Any) -> Any:
        return a ^ b


class LogicalXnor(LogicalBinary, name="logical_xnor"):
    """Whether both or neither are true (not 0), broadcast, as bool."""

    def wide(self, a: Array, b: Array) -> Any:
        return ~np.logical_xor(a, b)

    def logic(self, a: Any, b: Any) -> Any:
        return ~(a ^ b)
