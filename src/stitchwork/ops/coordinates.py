"""Tensors made of positions: coordinates, ranges, one-hot rows and bands of matrices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dims import Dim, Size
from stitchwork.ir.dtypes import DType, as_dtype, float32, int32
from stitchwork.ir.graph import Content, Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Expr, arithmetic, cast, const, extent
from stitchwork.ops._contents import has_symbols, known, size_tuple
from stitchwork.ops._op import Array, Op, Sample, axis_index, require_at_least, sample
from stitchwork.ops._regions import Shape, arange

_CONTENT_LIMIT = 64  # elements that are followed as sizes


class CoordinateAlongAxis(Op, name="coordinate_along_axis", aliases=("iota",)):
    """A tensor of `shape` in which each element is its own position along `axis`, as `dtype` (int32 unless given)."""

    axis: int
    shape: Sequence[Size] | Size
    dtype: DType = int32

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        shape = size_tuple(cls.name, "shape", attrs["shape"])
        axis = axis_index(cls.name, known(cls.name, "axis", attrs["axis"]), len(shape))
        dtype = as_dtype(attrs.get("dtype", int32))
        if not all(require_at_least(cls.name, n, 0, "shape >= 0") for n in shape):
            raise cls(axis=axis, shape=shape).fail(
                "`shape` is not a shape", expected="sizes of 0 or more", got=str(shape)
            )
        if dtype.kind == "b":
            raise cls(axis=axis, shape=shape).fail("`dtype` is not one of numbers", got="bool")
        return {"axis": axis, "shape": shape, "dtype": dtype}

    @property
    def sizes(self) -> Shape:
        """The result's shape."""
        assert isinstance(self.shape, tuple)
        return self.shape

    def infer(self) -> TensorType:
        return TensorType(self.dtype, self.sizes)

    def numpy(self) -> Array:
        shape = [int(n) for n in self.sizes]
        positions = arange(shape[self.axis]).reshape(-1, *(1,) * (len(shape) - self.axis - 1))
        return np.broadcast_to(positions, shape).astype(self.dtype.numpy)

    def compute(self, out: tuple[Axis, ...]) -> Expr:
        return cast(out[self.axis], self.dtype)

    def vjp(self, ct: Value) -> tuple[()]:
        return ()

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        n = self.sizes[0]
        return tuple(range(n)) if len(self.sizes) == 1 and isinstance(n, int) and n <= _CONTENT_LIMIT else None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample((), {"axis": 1, "shape": (2, 3)}, grad=False)
        yield Sample((), {"axis": -2, "shape": (2, 3), "dtype": "f32"}, grad=False)
        yield Sample((), {"axis": 0, "shape": 4, "dtype": np.int64}, grad=False)
        yield Sample((), {"axis": 0, "shape": (0, 2)}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`axis` is out of range", sample(axis=2, shape=(2, 3))
        yield "`shape` is not a shape", sample(axis=0, shape=(-2, 3))
        yield "`dtype` is not one of numbers", sample(axis=0, shape=(2, 3), dtype="bool")


class Range(Op, name="range", aliases=("arange",)):
    """The numbers start, start + step, ... before `stop`, as Python's range and NumPy's arange.

    With one number that is `stop`, and start is 0. Ints and sizes give int32 unless `dtype` says otherwise, floats
    float32. Element i is start + i · step, computed in int64 or `dtype`.
    """

    start: Any
    stop: Any = None
    step: Any = 1
    dtype: Any = None

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        start, stop, step = (
            known(cls.name, k, attrs.get(k, d)) for k, d in (("start", 0), ("stop", None), ("step", 1))
        )
        if stop is None:
            start, stop = 0, start
        op = cls(start=start, stop=stop, step=step)
        if not all(isinstance(x, int | float | Dim) and not isinstance(x, bool) for x in (start, stop, step)):
            raise op.fail(
                "the bounds are not numbers", expected="ints, floats or sizes", got=f"{start}, {stop}, {step}"
            )
        floats = any(isinstance(x, float) for x in (start, stop, step))
        symbolic = has_symbols((start, stop, step))
        if isinstance(step, Dim) or step == 0:
            raise op.fail("`step` is not a number other than 0", got=str(step))
        if (floats and symbolic) or not all(math.isfinite(x) for x in (start, stop, step) if isinstance(x, float)):
            raise op.fail(
                "the number of elements is not an integer expression",
                got=f"{start}, {stop}, {step}",
                expected="finite floats, or ints and sizes",
            )
        dtype = attrs.get("dtype")
        return {
            "start": start,
            "stop": stop,
            "step": step,
            "dtype": (float32 if floats else int32) if dtype is None else as_dtype(dtype),
        }

    @property
    def length(self) -> Size:
        """The number of elements."""
        if isinstance(self.start, float) or isinstance(self.stop, float) or isinstance(self.step, float):
            return max(math.ceil((self.stop - self.start) / self.step), 0)
        span, step = (self.stop - self.start, self.step) if self.step > 0 else (self.start - self.stop, -self.step)
        n = dims.ceildiv(span, step)
        return n if isinstance(n, Dim) and dims.is_nonnegative(n) else dims.maximum(n, 0)

    def infer(self) -> TensorType:
        if self.dtype.kind == "b":
            raise self.fail("`dtype` is not one of numbers", got="bool")
        return TensorType(self.dtype, (self.length,))

    def numpy(self) -> Array:
        length = self.length
        assert isinstance(length, int)
        if isinstance(self.start, float) or isinstance(self.step, float):
            wide = self._wide().numpy
            position = arange(length).astype(wide)
            return (np.asarray(self.start, wide) + position * np.asarray(self.step, wide)).astype(self.dtype.numpy)
        return (self.start + arange(length) * self.step).astype(self.dtype.numpy)

    def _wide(self) -> DType:
        return self.dtype if self.dtype.bits >= 32 and self.dtype.kind in "fc" else float32

    def compute(self, out: tuple[Axis, ...]) -> Expr:
        if isinstance(self.start, float) or isinstance(self.step, float):
            wide = self._wide()
            scaled = arithmetic("mul", cast(out[0], wide), const(self.step, wide))
            return cast(const(self.start, wide) + scaled, self.dtype)
        return cast(extent(self.start) + out[0] * self.step, self.dtype)

    def vjp(self, ct: Value) -> tuple[()]:
        return ()

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        n = self.length
        if (
            not isinstance(n, int)
            or n > _CONTENT_LIMIT
            or isinstance(self.start, float)
            or isinstance(self.step, float)
        ):
            return None
        return tuple(self.start + i * self.step for i in range(n))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for attrs in (
            {"start": 5},
            {"start": 2, "stop": 11, "step": 3},
            {"start": 11, "stop": 2, "step": -3, "dtype": "i64"},
            {"start": 3, "stop": 1},
            {"start": 0.0, "stop": 1.0, "step": 0.25},
            {"start": 0, "stop": 5, "step": 2, "dtype": "f16"},
            {"start": -1.5, "stop": 2, "dtype": "f64"},
        ):
            yield Sample((), attrs, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`step` is not a number other than 0", sample(start=0, stop=5, step=0)
        yield "the bounds are not numbers", sample(start=True)
        yield "not an integer expression", sample(start=float("inf"))
