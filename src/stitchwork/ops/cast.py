"""Conversion of values, and reading bits as another dtype."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.errors import OpError
from stitchwork.ir import dims, dtypes
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import Content, Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, bitcast, call, cast, complex_of, const, where
from stitchwork.ops import _pointwise
from stitchwork.ops._build import F
from stitchwork.ops._families import Pointwise
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, operand, require_equal, sample


def dtype_attribute(op: str, what: str, spec: Any) -> DType:
    """A dtype from what a user may write for one. Raises OpError."""
    try:
        return dtypes.as_dtype(spec)
    except TypeError:
        raise OpError(op, f"`{what}` is not a dtype", expected="a dtype or its name", got=repr(spec)) from None


class Cast(Pointwise, name="cast", aliases=("astype",)):
    """x converted to `dtype` as NumPy's `astype` does: floats to integers by truncation, integers to narrower ones by
    wrapping, anything to bool by comparison with 0, complex to real by dropping the imaginary part.

    A float that the integer dtype cannot hold (NaN included) gives an unspecified number.
    """

    x: Operand = operand("...", "any")
    dtype: Any

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {**attrs, "dtype": dtype_attribute(cls.name, "dtype", attrs["dtype"])}

    def result_dtype(self, *dtypes_: DType) -> DType:
        return self.dtype

    def simplify(self, x: Value) -> Value | None:
        return x if x.dtype is self.dtype else None

    def numpy(self, x: Array) -> Array:
        wide = _pointwise.widen(x)
        if wide.dtype.kind == "c" and not self.dtype.is_complex and self.dtype.kind != "b":
            wide = np.real(wide)
        if self.dtype.kind == "b":
            return np.asarray(wide != 0)
        if self.dtype.is_integer and wide.dtype.kind == "f":
            wide = wide.astype(np.int64 if self.dtype.bits < 64 else self.dtype.numpy)
        return _pointwise.narrow(wide, self.dtype)

    def scalar(self, *args: Expr) -> Expr:
        (x,) = args
        if x.dtype.is_complex and not self.dtype.is_complex:
            if self.dtype.kind == "b":
                return x.ne(const(0, x.dtype))
            x = call("real", x)
        if not x.dtype.is_complex and self.dtype.is_complex:
            real = cast(x, dtypes.real_of(self.dtype))
            return complex_of(real, const(0, real.dtype), self.dtype)
        return cast(x, self.dtype)

    def vjp(self, ct: Value, x: Value) -> tuple[Value | None]:
        differentiable = x.dtype.kind in "fc" and ct.dtype.kind in "fc"
        return (F.cast(ct, x.dtype) if differentiable else None,)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return _pointwise.combined(types, contents, self.dtype, self._size)

    def _size(self, n: Any) -> Any:
        if self.dtype.kind == "b":
            return n != 0 if isinstance(n, int) else None
        return int(n) if isinstance(n, int) else n

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4), dtype="f64")
        yield sample((), dtype="c128")
        yield sample((0,), dtype="f64")
        yield Sample(((3, 4),), {"dtype": "f64"}, dtype="c64")
        yield Sample(((3, 4),), {"dtype": "c128"}, dtype="c64")
        yield Sample((_pointwise.SPECIAL,), {"dtype": "bool"}, grad=False)
        yield Sample((_pointwise.SPECIAL,), {"dtype": "bf16"}, grad=False)
        names = ("bool", "i4", "u8", "i32", "i64", "f8e4m3", "f16", "bf16", "f32", "f64", "c64")
        pairs = [(source, target) for source in names for target in names]
        others = ("i2", "u2", "u4", "i8", "i16", "u16", "u32", "u64", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "f4e2m1")
        for source, target in (*pairs, *((n, "f32") for n in others), *(("f32", n) for n in others)):
            limit = {"i2": 1.9, "u2": 3.9}
            domain = (0.0, min(limit.get(source, 7.0), limit.get(target, 7.0)))
            yield Sample(((5,),), {"dtype": target}, domain, source, grad=False)
        wide = np.array([-70000, -129, -9, -1, 0, 7, 8, 130, 255, 256, 70001], np.int64)
        for target in ("bool", "i2", "u2", "i4", "u4", "i8", "u8", "i16", "u16", "i32", "u32", "u64", "f32"):
            yield Sample((wide,), {"dtype": target}, grad=False)
        yield Sample((np.array([-7.9, -0.5, 0.5, 6.99], np.float32),), {"dtype": "i8"}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`dtype` is not a dtype", sample((3,), dtype="float31")
        yield "attribute `dtype` is missing", sample((3,))


# --- bits -------------------------------------------------------------------------------------------------------------
class ReinterpretCast(Op, name="reinterpret_cast", aliases=("bitcast",)):
    """The bits of x read as `dtype`: shape [..., n] becomes [..., n * bytes of x's dtype / bytes of `dtype`].

    Parts of an element lie in the order of memory, lowest first, as in NumPy's `view` on little-endian machines. A
    tensor of rank 0 keeps its width. Integers of fewer than 8 bits read as others of their width only; bool cannot be
    read into. No gradient.
    """

    x: Operand = operand("...", "any")
    dtype: Any

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {**attrs, "dtype": dtype_attribute(cls.name, "dtype", attrs["dtype"])}

    def infer(self, x: TensorType) -> TensorType:
        packed = min(x.dtype.bits, self.dtype.bits) < 8 and x.dtype is not self.dtype
        mixed = x.dtype.bits != self.dtype.bits or not (x.dtype.is_integer and self.dtype.is_integer)
        if (packed and mixed) or (self.dtype.kind == "b" and x.dtype.kind != "b"):
            raise self.fail(f"the bits of {x.dtype} cannot be read as {self.dtype}", got=str(x))
        scaled = x.dtype.bits != self.dtype.bits or x.dtype.is_complex != self.dtype.is_complex
        if scaled and not x.rank:
            raise self.fail(
                "`x` has no last dim to scale", expected="rank 1 or more, or a real dtype of the same width", got=str(x)
            )
        if not x.rank:
            return x.with_dtype(self.dtype)
        size: Size = x.shape[-1] * x.dtype.itemsize
        if not require_equal(
            self.name, dims.mod(size, self.dtype.itemsize), 0, f"bytes of a row of x by those of {self.dtype}"
        ):
            raise self.fail(f"the last dim of `x` does not fill whole elements of {self.dtype}", got=str(x))
        return TensorType(self.dtype, (*x.shape[:-1], dims.floordiv(size, self.dtype.itemsize)))

    def numpy(self, x: Array) -> Array:
        target = self.dtype
        if x.ndim == 0:
            return self.numpy(x.reshape(1)).reshape(())
        if target.bits < 8:
            return x if x.dtype == target.numpy else _pointwise.narrow(_pointwise.widen(x), target)
        little = x.astype(x.dtype.newbyteorder("<"), order="C") if sys.byteorder == "big" else np.ascontiguousarray(x)
        last = x.shape[-1] * x.itemsize // target.itemsize
        if not x.size:
            return np.zeros((*x.shape[:-1], last), target.numpy)
        return little.view(target.numpy).reshape(*x.shape[:-1], last)

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        """Elements are made of words: a real number is one, a complex number two, the real part first."""
        if x.dtype is self.dtype:
            return x[out]
        if x.dtype.bits < 8:
            return cast(cast(x[out], dtypes.uint8), self.dtype)
        if not self.dtype.is_complex:
            return bitcast(self._word(out, out[-1] if out else None, x), self.dtype)
        part = dtypes.real_of(self.dtype)
        real, imag = (bitcast(self._word(out, out[-1] * 2 + k, x), part) for k in (0, 1))
        return complex_of(real, imag, self.dtype)

    def _word(self, out: tuple[Axis, ...], k: Expr | None, x: Buffer) -> Expr:
        """Word k of the result's row, as an unsigned integer: a source word, a piece of one, or several joined."""
        width, own = _word_bits(self.dtype), _word_bits(x.dtype)
        target = dtypes.by_name(f"u{width}")
        if k is None:
            return bitcast(x[()], target)
        if width == own:
            return _source_word(x, out, k)
        if width < own:
            ratio = own // width
            word = _source_word(x, out, k // ratio)
            return cast(call("shr", word, cast((k % ratio) * width, word.dtype)), target)
        ratio = width // own
        joined: Expr = const(0, target)
        for j in range(ratio):
            piece = cast(_source_word(x, out, k * ratio + j), target)
            joined = joined | call("shl", piece, const(j * own, target))
        return joined

    def vjp(self, ct: Value, x: Value) -> tuple[None]:
        return (None,)

    def permuted(self, permutation: Ints) -> Op | None:
        return self if permutation and permutation[-1] == len(permutation) - 1 else None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rows = np.arange(32, dtype=np.float32).reshape(2, 16) - 7.5
        for source in ("i8", "bf16", "f32", "i64", "c64", "c128"):
            for target in ("u8", "f16", "i32", "f64", "c64", "c128"):
                made = rows.astype(dtypes.by_name(source).numpy)
                yield Sample((made,), {"dtype": target}, grad=False)
        yield Sample((np.array(1.5, np.float32),), {"dtype": "i32"}, grad=False)
        yield Sample((np.array([True, False]),), {"dtype": "u8"}, grad=False)
        yield Sample(((3, 4),), {"dtype": "u4"}, dtype="i4", grad=False)
        yield Sample(((3, 4),), {"dtype": "i2"}, (0.0, 3.9), dtype="u2", grad=False)
        yield Sample(((0, 4),), {"dtype": "i8"}, grad=False)
        yield Sample(((3, 0),), {"dtype": "f64"}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "does not fill whole elements", sample((3,), dtype="f64")
        yield "no last dim", sample((), dtype="f64")
        yield "cannot be read as i4", sample((3,), dtype="i4")
        yield "cannot be read as bool", sample(np.array([1], np.uint8), dtype="bool")
        yield "`dtype` is not a dtype", sample((3,), dtype="int33")


def _word_bits(dtype: DType) -> int:
    return dtype.bits // 2 if dtype.is_complex else dtype.bits


def _source_word(x: Buffer, out: tuple[Axis, ...], j: Expr) -> Expr:
    """Word j of the source's row, as an unsigned integer."""
    unsigned = dtypes.by_name(f"u{_word_bits(x.dtype)}")
    if x.dtype.is_complex:
        z = x[(*out[:-1], j // 2)]
        return bitcast(where((j % 2).eq(0), call("real", z), call("imag", z)), unsigned)
    element = x[(*out[:-1], j)]
    return cast(element, unsigned) if x.dtype.kind == "b" else bitcast(element, unsigned)
