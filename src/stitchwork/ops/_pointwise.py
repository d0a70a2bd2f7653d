"""What the pointwise ops share: computing narrow types in wide ones, sample calls by dtype, contents as sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from stitchwork.ir import dims, dtypes
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import Content
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Expr, cast
from stitchwork.ops._contents import as_content, as_objects
from stitchwork.ops._families import Pointwise
from stitchwork.ops._op import Array, Op, Operand, Sample, operand

# What IEEE 754 makes special, and numbers on both sides of where exp, tanh and their kin saturate.
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.5, -2.5, 100.0, -100.0], np.float32)


def wide_dtype(dtype: DType) -> DType:
    """What elements of `dtype` are computed in: float32 for narrower floats, 8 bits for narrower integers."""
    if dtype.is_float and dtype.bits < 32:
        return dtypes.float32
    if dtype.is_integer and dtype.bits < 8:
        return dtypes.int8 if dtype.kind == "i" else dtypes.uint8
    return dtype


def widen(x: Array) -> Array:
    """An array in the dtype that its elements are computed in."""
    return x.astype(wide_dtype(dtypes.as_dtype(x.dtype)).numpy, copy=False)


def narrow(x: Any, dtype: DType) -> Array:
    """A result as `dtype`; integers of fewer than 8 bits wrap."""
    array = np.asarray(x)
    if dtype.is_integer and dtype.bits < 8:
        low, sign = array.astype(np.int64) & ((1 << dtype.bits) - 1), 1 << (dtype.bits - 1)
        return (low if dtype.kind == "u" else (low ^ sign) - sign).astype(np.int8).astype(dtype.numpy)
    return array.astype(dtype.numpy, copy=False)


class Elementwise(Pointwise):
    """A pointwise op that computes narrow floats in float32 and smaller integers in 8 bits, then converts back.

    A subclass gives `wide` (NumPy) and `element` (loop expression), both on operands already widened. `domain` is where
    its samples lie; `smooth` False leaves out the comparison of gradients (steps, kinks that a sample could hit).
    """

    domain: ClassVar[tuple[float, float]] = (-2.0, 2.0)
    smooth: ClassVar[bool] = True

    def wide(self, *args: Any, **kwargs: Any) -> Any:
        """The result from arrays of wide dtypes."""
        raise TypeError(f"{self.name} has no `wide` rule")

    def element(self, *args: Any, **kwargs: Any) -> Expr:
        """The result from expressions of wide dtypes."""
        raise TypeError(f"{self.name} has no `element` rule")

    def numpy(self, *arrays: Array) -> Array:
        result = self.result_dtype(*(dtypes.as_dtype(a.dtype) for a in arrays))
        return narrow(self.wide(*map(widen, arrays)), result)

    def scalar(self, *args: Expr) -> Expr:
        made = self.element(*(cast(x, wide_dtype(x.dtype)) for x in args))
        return cast(made, self.result_dtype(*(x.dtype for x in args)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from standard_samples(cls, cls.domain, cls.smooth)


class Unary(Elementwise):
    """An elementwise op of one float tensor."""

    x: Operand = operand("...", "float")


class Binary(Elementwise):
    """An elementwise op of two float tensors, broadcast; mixed dtypes are promoted."""

    promotes = True
    a: Operand = operand("...", "float")
    b: Operand = operand("...", "float")


class ComplexUnary(Elementwise):
    """An elementwise op of one float or complex tensor."""

    x: Operand = operand("...", "float complex")


class NumberUnary(Elementwise):
    """An elementwise op of one tensor of numbers of any kind."""

    x: Operand = operand("...", "number")


class RealUnary(Elementwise):
    """An elementwise op of one float or integer tensor."""

    x: Operand = operand("...", "real")


# --- samples --------------------------------------------------------------------------------------------------------
_SHAPES: dict[int, tuple[tuple[Any, ...], ...]] = {
    1: (((3, 5),), ((),), ((0,),), ((1, 7),)),
    2: (((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2, 3)), ((0, 3), (1, 3))),
    3: (((2, 3), (2, 3), (2, 3)), ((3, 1), (), (4,)), ((0,), (0,), (0,))),
}
_VARIANTS = ("f16", "bf16", "f64", "f8e4m3", "c64", "i4", "i32", "u8", "bool")


def standard_samples(cls: type[Op], domain: tuple[float, float], smooth: bool, **attrs: Any) -> Iterator[Sample]:
    """Equal and broadcast shapes, sizes 0 and 1, every kind of dtype that the first operand takes, special values."""
    count = len(cls.operands)
    accepted = dtypes.group(next(iter(cls.operands.values())).dtypes)
    shapes = _SHAPES[count]
    if dtypes.float32 in accepted:
        for operands in shapes:
            yield Sample(operands, attrs, domain, grad=smooth)
        yield Sample(_special(count), attrs, grad=False)
    for name in _VARIANTS:
        dtype = dtypes.by_name(name)
        if dtype in accepted:
            yield Sample(shapes[0], attrs, domain, name, grad=smooth and dtype.is_complex)


def _special(count: int) -> tuple[Array, ...]:
    if count == 1:
        return (SPECIAL,)
    return (SPECIAL[:, None], SPECIAL, np.float32(1.5) * np.ones((1,), np.float32))[:count]


# --- contents as sizes ------------------------------------------------------------------------------------------------
def combined(
    types: Sequence[TensorType], contents: Sequence[Content], result: DType, fn: Callable[..., Any]
) -> Content:
    """The content of a pointwise result: `fn` on sizes at each broadcast position.

    None where an operand's content is not known, `fn` cannot tell (gives None), or a number does not fit the dtype.
    """
    arrays = [as_objects(c, t) for c, t in zip(contents, types, strict=True)]
    if any(a is None for a in arrays):
        return None
    function: Any = np.frompyfunc(fn, len(arrays), 1)
    made = np.asarray(function(*arrays), dtype=object)
    if all(_fits(x, result) for x in made.flat):
        return as_content(made)
    return None


def _fits(x: Any, dtype: DType) -> bool:
    if x is None:
        return False
    if not isinstance(x, int) or dtype.kind not in "iu":
        return True
    low, high = (-(1 << (dtype.bits - 1)), 1 << (dtype.bits - 1)) if dtype.kind == "i" else (0, 1 << dtype.bits)
    return low <= x < high


def truncated_quotient(a: Size, b: Size) -> Size | None:
    """a / b rounded toward zero; None where signs are not known or b may be 0."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0
    if isinstance(b, int) and b == 0:
        return 0
    return dims.floordiv(a, b) if dims.is_nonnegative(a) and dims.is_nonnegative(b) else None


def truncated_remainder(a: Size, b: Size) -> Size | None:
    """a - b * truncated_quotient(a, b); None where that is not known."""
    if isinstance(b, int) and b == 0:
        return 0
    quotient = truncated_quotient(a, b)
    if quotient is None:
        return None
    return dims.mod(a, b) if not isinstance(a, int) or not isinstance(b, int) else a - quotient * b


def sign_of_difference(a: Size, b: Size) -> int | None:
    """-1, 0 or 1 as a < b, a == b or a > b; None where that depends on sizes."""
    difference = a - b
    if isinstance(difference, int):
        return (difference > 0) - (difference < 0)
    if dims.is_nonnegative(difference - 1):
        return 1
    return -1 if dims.is_nonnegative(-difference - 1) else None
