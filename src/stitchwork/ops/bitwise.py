"""Operations on the bits of integers (two's complement). Not, and, or, xor take bools too, as Python's operators do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir import dtypes
from stitchwork.ir.dtypes import DType
from stitchwork.loops.expr import Expr, call, cast
from stitchwork.ops._op import Array, Operand, Sample, operand, sample
from stitchwork.ops._pointwise import Elementwise, narrow, wide_dtype, widen


class BitwiseUnary(Elementwise):
    """Of one integer tensor."""

    x: Operand = operand("...", "int")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield Sample(((9,),), {}, (0, 15), "u4")
        for dtype in (np.int8, np.uint16, np.int64, np.uint64):
            limits = np.iinfo(dtype)
            yield sample(np.array([limits.min, limits.max, 0, 1, 77], dtype))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "has dtype f32", sample((2,))


class BitwiseNot(BitwiseUnary, name="bitwise_not", aliases=("invert",), operator="invert"):
    """Every bit flipped; on bools, "not"."""

    x: Operand = operand("...", "int bool")

    def wide(self, x: Array) -> Any:
        return np.invert(x)

    def element(self, x: Expr) -> Expr:
        return ~x


class BitwisePopulationCount(BitwiseUnary, name="bitwise_population_count", aliases=("population_count",)):
    """The number of set bits, in x's dtype. Negative numbers count by their two's complement (NumPy's `bitwise_count`
    counts those of |x|)."""

    def numpy(self, *arrays: Array) -> Array:
        (x,) = arrays
        return narrow(np.bitwise_count(_unsigned_array(x)), dtypes.as_dtype(x.dtype))

    def scalar(self, *args: Expr) -> Expr:
        (x,) = args
        return cast(call("popcount", _unsigned(x)), x.dtype)


class CountLeadingZeros(BitwiseUnary, name="count_leading_zeros"):
    """The number of unset bits above the highest set one, in x's dtype; the width for 0."""

    def numpy(self, *arrays: Array) -> Array:
        (x,) = arrays
        dtype = dtypes.as_dtype(x.dtype)
        bits = _unsigned_array(x)
        zeros = np.full(bits.shape, dtype.bits)
        for k in range(dtype.bits):
            zeros = np.where(bits >> bits.dtype.type(k) != 0, dtype.bits - 1 - k, zeros)
        return narrow(zeros, dtype)

    def scalar(self, *args: Expr) -> Expr:
        (x,) = args
        unsigned = _unsigned(x)
        return cast(call("clz", unsigned) - (unsigned.dtype.bits - x.dtype.bits), x.dtype)


def _unsigned_array(x: Array) -> Array:
    """The bits of integers as unsigned numbers; those of fewer than 8 bits in 8."""
    dtype = dtypes.as_dtype(x.dtype)
    wide = widen(x)
    bits = wide.view(_unsigned_of(dtype).numpy)
    return bits & np.uint8((1 << dtype.bits) - 1) if dtype.bits < 8 else bits


def _unsigned(x: Expr) -> Expr:
    bits = cast(cast(x, wide_dtype(x.dtype)), _unsigned_of(x.dtype))
    return bits & ((1 << x.dtype.bits) - 1) if x.dtype.bits < 8 else bits


def _unsigned_of(dtype: DType) -> DType:
    return dtypes.by_name(f"u{max(dtype.bits, 8)}")


# --- two operands -----------------------------------------------------------------------------------------------------
class BitwiseBinary(Elementwise):
    """Of two integer tensors, broadcast; mixed dtypes are promoted."""

    promotes = True
    a: Operand = operand("...", "int")
    b: Operand = operand("...", "int")

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "has dtype f32", sample((2,), (2,))
        yield "shapes do not broadcast", sample(np.array([1, 2], np.int32), np.array([1, 2, 3], np.int32))


class BitwiseLogic(BitwiseBinary):
    """Of two integer or bool tensors, broadcast."""

    a: Operand = operand("...", "int bool")
    b: Operand = operand("...", "int bool")


class BitwiseAnd(BitwiseLogic, name="bitwise_and", operator="and"):
    """The bits set in both, broadcast; on bools, "and"."""

    def wide(self, a: Array, b: Array) -> Any:
        return a & b

    def element(self, a: Expr, b: Expr) -> Expr:
        return a & b


class BitwiseOr(BitwiseLogic, name="bitwise_or", operator="or"):
    """The bits set in one or both, broadcast; on bools, "or"."""

    def wide(self, a: Array, b: Array) -> Any:
        return a | b

    def element(self, a: Expr, b: Expr) -> Expr:
        return a | b


class BitwiseXor(BitwiseLogic, name="bitwise_xor", operator="xor"):
    """The bits set in exactly one, broadcast; on bools, "exclusive or"."""

    def wide(self, a: Array, b: Array) -> Any:
        return a ^ b

    def element(self, a: Expr, b: Expr) -> Expr:
        return a ^ b


class Shift(BitwiseBinary):
    """A shift of a by b bits; an amount that is negative or at least the width shifts every bit out."""

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield Sample(((9, 1), (5,)), {}, (0, 15), "u4")
        for dtype in (np.int8, np.uint16, np.int32, np.uint64, np.int64):
            limits, width = np.iinfo(dtype), np.dtype(dtype).itemsize * 8
            numbers = np.array([limits.min, limits.max, 0, 1, 77], dtype)
            amounts = [0, 1, 3, width - 1, width, width + 1, limits.max, *([-1, limits.min] if limits.min else [])]
            yield sample(numbers[:, None], np.array(amounts, dtype))


class BitwiseLeftShift(Shift, name="bitwise_left_shift", aliases=("left_shift",), operator="lshift"):
    """a shifted left by b bits, broadcast, zeros coming in; 0 where b is negative or at least the width."""

    def wide(self, a: Array, b: Array) -> Any:
        inside = (b >= 0) & (b < a.dtype.itemsize * 8)
        return np.where(inside, np.left_shift(a, np.where(inside, b, 0)), np.zeros((), a.dtype))

    def element(self, a: Expr, b: Expr) -> Expr:
        return call("shl", a, b)


class BitwiseRightShift(Shift, name="bitwise_right_shift", aliases=("right_shift",), operator="rshift"):
    """a shifted right by b bits, broadcast. Signed integers keep their sign (-1 or 0 where b is negative or at least
    the width), unsigned ones take in zeros."""

    def wide(self, a: Array, b: Array) -> Any:
        last = a.dtype.itemsize * 8 - 1
        inside = (b >= 0) & (b <= last)
        shifted = np.right_shift(a, np.where(inside, b, np.asarray(last, b.dtype)))
        return shifted if a.dtype.kind == "i" else np.where(inside, shifted, np.zeros((), a.dtype))

    def element(self, a: Expr, b: Expr) -> Expr:
        return call("shr", a, b)


class BitwiseRightShiftLogical(Shift, name="bitwise_right_shift_logical"):
    """a shifted right by b bits, broadcast, zeros coming in for signed integers too; 0 where b is negative or at least
    the width."""

    def numpy(self, *arrays: Array) -> Array:
        a, b = arrays
        dtype = dtypes.as_dtype(a.dtype)
        bits, wide = _unsigned_array(a), widen(b)
        inside = (wide >= 0) & (wide < dtype.bits)
        amount = np.where(inside, wide, 0).astype(bits.dtype)
        shifted = np.where(inside, bits >> amount, np.zeros((), bits.dtype))
        return narrow(shifted if dtype.bits < 8 else shifted.view(dtype.numpy), dtype)

    def scalar(self, *args: Expr) -> Expr:
        a, b = args
        bits = _unsigned(a)
        amount = cast(cast(b, wide_dtype(b.dtype)), bits.dtype)  # negative ones become larger than any width
        return cast(cast(call("shr", bits, amount), wide_dtype(a.dtype)), a.dtype)
