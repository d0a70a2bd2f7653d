"""Complex numbers and their parts. Real input is accepted where a part or conjugate of it means something.

Cotangents of complex values are those of the pairing Re(ct * dx): for a holomorphic f, ct * f'(x), no conjugate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir import dims, dtypes
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, call, complex_of, const, extent, where
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, operand, require_equal, sample
from stitchwork.ops._pointwise import Elementwise, NumberUnary


class Conjugate(NumberUnary, name="conjugate", aliases=("conj",)):
    """re - i im; real input unchanged."""

    def wide(self, x: Array) -> Any:
        return np.conj(x)

    def element(self, x: Expr) -> Expr:
        return call("conj", x) if x.dtype.is_complex else x

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.conjugate(ct),)


class RealPart(NumberUnary, name="real_part", aliases=("real",)):
    """The real part, as a real tensor; real input unchanged."""

    def result_dtype(self, *dtypes_: DType) -> DType:
        return dtypes.real_of(dtypes_[0])

    def wide(self, x: Array) -> Any:
        return np.real(x)

    def element(self, x: Expr) -> Expr:
        return call("real", x) if x.dtype.is_complex else x

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.cast(ct, x.dtype) if x.dtype.is_complex else ct,)


class ImaginaryPart(NumberUnary, name="imaginary_part", aliases=("imag",)):
    """The imaginary part, as a real tensor; 0 for real input."""

    def result_dtype(self, *dtypes_: DType) -> DType:
        return dtypes.real_of(dtypes_[0])

    def wide(self, x: Array) -> Any:
        return np.imag(x)

    def element(self, x: Expr) -> Expr:
        return call("imag", x) if x.dtype.is_complex else const(0, x.dtype)

    def vjp(self, ct: Value, x: Value) -> tuple[Value | None]:
        return (F.complex_tensor(F.cast(0, ct.dtype), -ct) if x.dtype.is_complex else None,)


class ComplexTensor(Elementwise, name="complex_tensor"):
    """real + i imaginary from two real tensors of one dtype, broadcast: complex64 of float32, complex128 of float64."""

    real: Operand = operand("...", "f32 f64")
    imaginary: Operand = operand("...", "f32 f64")

    def result_dtype(self, *dtypes_: DType) -> DType:
        return dtypes.complex_of(dtypes_[0])

    def wide(self, real: Array, imaginary: Array) -> Any:
        real, imaginary = np.broadcast_arrays(real, imaginary)
        made = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
        made.real, made.imag = real, imaginary
        return made

    def element(self, real: Expr, imaginary: Expr) -> Expr:
        return complex_of(real, imaginary, dtypes.complex_of(real.dtype))

    def vjp(self, ct: Value, real: Value, imaginary: Value) -> tuple[Value, Value]:
        return F.real_part(ct), -F.imaginary_part(ct)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "has dtype i32", sample(np.array([1], np.int32), np.array([1], np.int32))
        yield "differ in dtype", sample(np.array([1], np.float32), np.array([1], np.float64))


class PlanarTensor(Op, name="planar_tensor"):
    """Complex [..., n] to real [..., 2n]: the real parts, then the imaginary parts, along the last dim.

    Real input is returned unchanged.
    """

    x: Operand = operand("... n", "any")

    def infer(self, x: TensorType) -> TensorType:
        if not x.dtype.is_complex:
            return x
        return TensorType(dtypes.real_of(x.dtype), (*x.shape[:-1], x.shape[-1] * 2))

    def numpy(self, x: Array) -> Array:
        return np.concatenate([np.real(x), np.imag(x)], -1) if np.iscomplexobj(x) else x

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        if not x.dtype.is_complex:
            return x[out]
        n = extent(x.shape[-1])
        z = x[(*out[:-1], out[-1] % n)]
        return where(out[-1] < n, call("real", z), call("imag", z))

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.conjugate(F.from_planar(ct)) if x.dtype.is_complex else ct,)

    def permuted(self, permutation: Ints) -> Op | None:
        return self if permutation and permutation[-1] == len(permutation) - 1 else None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(((3, 4),), {}, dtype="c64")
        yield Sample(((1,),), {}, dtype="c128")
        yield Sample(((2, 0),), {}, dtype="c64")
        yield Sample(((0, 3),), {}, dtype="c64")
        yield sample((2, 3))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "has rank 0", sample(())


class FromPlanar(Op, name="from_planar"):
    """Real [..., 2n] to complex [..., n]: real parts, then imaginary ones, along the last dim, as `planar_tensor`."""

    x: Operand = operand("... n", "f32 f64")

    def infer(self, x: TensorType) -> TensorType:
        size = x.shape[-1]
        if not require_equal(self.name, dims.mod(size, 2), 0, "remainder of x[-1] by 2"):
            raise self.fail("the last dim of `x` is odd", expected="an even size", got=str(x))
        return TensorType(dtypes.complex_of(x.dtype), (*x.shape[:-1], self.half(size)))

    def half(self, size: Size) -> Size:
        """The size of the result's last dim."""
        return dims.floordiv(size, 2)

    def numpy(self, x: Array) -> Array:
        n = x.shape[-1] // 2
        made = np.empty((*x.shape[:-1], n), np.result_type(x.dtype, np.complex64))
        made.real, made.imag = x[..., :n], x[..., n:]
        return made

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        other = out[-1] + extent(self.half(x.shape[-1]))
        return complex_of(x[out], x[(*out[:-1], other)], dtypes.complex_of(x.dtype))

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.planar_tensor(F.conjugate(ct)),)

    def permuted(self, permutation: Ints) -> Op | None:
        return self if permutation and permutation[-1] == len(permutation) - 1 else None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4))
        yield sample((2,))
        yield sample((2, 0))
        yield Sample(((3, 6),), {}, dtype="f64")

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "the last dim of `x` is odd", sample((3, 5))
