"""Choosing between tensors by a predicate, and limiting to a range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir import dims, dtypes
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import Content, Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, call, cast, where
from stitchwork.ops._build import F
from stitchwork.ops._families import Pointwise
from stitchwork.ops._op import Array, Operand, Sample, operand, sample
from stitchwork.ops._pointwise import SPECIAL, combined, narrow, wide_dtype, widen
from stitchwork.ops.logical import truth


class Select(Pointwise, name="select", aliases=("where",)):
    """`on_true` where the predicate is not 0 (NaN counts as true), else `on_false`; all three broadcast.

    The predicate may have any dtype; the other two are promoted to one, the result's.
    """

    promotes = True
    predicate: Operand = operand("...", "any", "P")
    on_true: Operand = operand("...", "any")
    on_false: Operand = operand("...", "any")

    def result_dtype(self, *dtypes: DType) -> DType:
        return dtypes[1]

    def numpy(self, predicate: Array, on_true: Array, on_false: Array) -> Array:
        return np.where(predicate != 0, on_true, on_false)

    def scalar(self, *args: Expr) -> Expr:
        predicate, on_true, on_false = args
        return where(truth(cast(predicate, wide_dtype(predicate.dtype))), on_true, on_false)

    def vjp(self, ct: Value, predicate: Value, on_true: Value, on_false: Value) -> tuple[None, Value, Value]:
        return None, F.select(predicate, ct, 0), F.select(predicate, 0, ct)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        def choose(p: Any, a: Any, b: Any) -> Any:
            return (a if p else b) if isinstance(p, int) else a if a == b else None

        return combined(types, contents, types[1].dtype, choose)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        mask = np.array([True, False, False, True])
        yield sample(mask, (3, 4), (3, 4))
        yield sample(mask[:, None], (4,), ())
        yield sample(np.array([0, 2, -1], np.int32), (3,), (2, 3))
        yield sample(np.array([0.0, np.nan, -0.0, 0.5], np.float32), (4,), (4,))
        yield sample(np.array(True), (0, 2), (2,))
        for dtype in ("f16", "bf16", "f64", "f8e4m3", "c64", "i4", "u4", "i64", "u8", "bool"):
            yield Sample((mask, (4,), (3, 4)), {}, dtype=dtype, grad=dtype == "c64")

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "shapes do not broadcast", sample(np.array([True, False]), (3,), (3,))


class Clamp(Pointwise, name="clamp", aliases=("clip",)):
    """x limited to [min_value, max_value]: min(max(x, min_value), max_value), all broadcast; NaN stays NaN.

    A limit that is left out does not limit; where min_value > max_value the result is max_value. At a limit the
    gradient goes to x.
    """

    promotes = True
    synonyms = {"min": "min_value", "max": "max_value"}
    x: Operand = operand("...", "real")
    min_value: Operand = operand("...", "real", optional=True)
    max_value: Operand = operand("...", "real", optional=True)

    def infer(self, *types: TensorType | None) -> TensorType:
        return super().infer(*(t for t in types if t is not None))

    def numpy(self, x: Array, low: Array | None, high: Array | None) -> Array:
        made = widen(x)
        if low is not None:
            made = np.maximum(made, widen(low))
        if high is not None:
            made = np.minimum(made, widen(high))
        return narrow(np.array(made), dtypes.as_dtype(x.dtype))

    def compute(self, out: tuple[Axis, ...], *buffers: Buffer | None) -> Expr:
        x, low, high = (None if b is None else cast(b.broadcast(out), wide_dtype(b.dtype)) for b in buffers)
        assert x is not None and buffers[0] is not None
        if low is not None:
            x = call("max", x, low)
        if high is not None:
            x = call("min", x, high)
        return cast(x, buffers[0].dtype)

    def vjp(self, ct: Value, x: Value, low: Value | None, high: Value | None) -> tuple[Value | None, ...]:
        for_x, for_low, for_high = ct, None, None
        limited = x if low is None else F.maximum_nan_propagation(x, low)
        if high is not None:
            above = F.greater_than(limited, high)
            for_high, for_x = F.select(above, ct, 0), F.select(above, 0, ct)
        if low is not None:
            below = F.less_than(x, low)
            for_low, for_x = F.select(below, for_x, 0), F.select(below, 0, for_x)
        return for_x, for_low, for_high

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        made = contents[0]
        for type_, content, pick in zip(types[1:], contents[1:], (dims.maximum, dims.minimum), strict=True):
            if type_ is not None:
                made = (
                    combined((types[0], type_), (made, content), types[0].dtype, pick)
                    if type_.rank <= types[0].rank
                    else None
                )
        return made

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 5), -0.5, 1.0)
        yield sample((3, 4), (4,), (3, 1))
        yield sample((), min_value=0.25)
        yield Sample(((2, 3), None, 0.5), {})
        yield sample((2, 3))
        yield sample((0, 3), -1.0, 1.0)
        yield Sample((SPECIAL, -1.5, 2.0), {}, grad=False)
        yield Sample((SPECIAL[:, None], SPECIAL, 2.0), {}, grad=False)
        for dtype in ("f16", "bf16", "f64", "f8e4m3", "i4", "u4", "i8", "i32", "i64", "u8"):
            yield Sample(((3, 4), 0, 1), {}, dtype=dtype, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "shapes do not broadcast", sample((3, 4), (3, 5), 1.0)
        yield "has dtype c64", Sample((np.array([1j], np.complex64), 0.0, 1.0), {})
