"""Resizing of images and other tensors, and its gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, operand, require_at_least, require_equal, sample
from stitchwork.ops._resampling import Resampling
from stitchwork.ops._windows import wide


class Forward(Resampling):
    """A resize of x."""

    x: Operand = operand("...", "any")

    def infer(self, x: TensorType, *scale_offset: TensorType) -> TensorType:
        check_sizes(self, x, *scale_offset)
        return x.with_shape(self.resized(x.shape))

    def numpy(self, x: Array, *scale_offset: Array) -> Array:
        made = x if self.mode == "nearest" else wide(x)
        outside = np.zeros((), np.bool_)
        shape = self.resized(x.shape)
        for k, a in enumerate(self.over):
            n, out = x.shape[a], int(shape[a])
            scale, offset = own_scale(self, k, scale_offset)
            taps = self.array_taps(k, n, out, scale, offset)
            if self.mode == "nearest":
                made = np.take(made, np.asarray(taps.positions[0], np.int64), a)
            else:
                made = np.moveaxis(np.tensordot(self.matrix(k, n, out, scale, offset), made, (1, a)), 0, a)
            if taps.outside is not None:
                outside = outside | taps.outside.reshape(-1, *(1,) * (x.ndim - a - 1))
        if self.extrapolation is not None:
            made = np.where(outside, np.asarray(self.extrapolation).astype(made.dtype), made)
        return made.astype(x.dtype)

    def compute(self, out: tuple[Axis, ...], x: Buffer, *scale_offset: Buffer) -> Expr:
        scale, offset = scale_offset or (None, None)
        shape = self.resized(x.shape)
        return self.interpolated(out, x, self.expression_taps(out, x.shape, shape, scale, offset))

    def permuted(self, permutation: Ints) -> Op:
        return dataclasses.replace(self, axes=tuple(permutation.index(a) for a in self.over))

    def shared(self) -> dict[str, Any]:
        """Attributes of the gradient."""
        return {a: getattr(self, a) for a in self.attributes() if a != "size"}


def check_sizes(op: Resampling, x: TensorType, *scale_offset: TensorType) -> None:
    """Raises OpError where x cannot be resized; unknown sizes get guards."""
    if op.mode != "nearest" and not x.dtype.is_float:
        raise op.fail(
            f"x has dtype {x.dtype}", expected="a float dtype, or mode nearest", got=str(x), hint="convert x with cast"
        )
    for a in op.over:
        if not require_at_least(op.name, x.shape[a], 1, f"dim {a} has elements"):
            raise op.fail(f"dim {a} has no elements", expected="size >= 1", got=str(x))
    for t in scale_offset:
        if not require_equal(op.name, t.shape[0], len(op.over), "one scale and offset per axis"):
            raise op.fail("scale and offset do not fit the axes", expected=f"{len(op.over)} elements each", got=str(t))


def own_scale(op: Resampling, k: int, scale_offset: tuple[Array, ...]) -> tuple[float | None, float | None]:
    """Scale and offset of axis k."""
    if not scale_offset:
        return op.scale_of(k), None
    return float(scale_offset[0][k]), float(scale_offset[1][k])


class Backward(Resampling):
    """Cotangent of x of a resize."""

    gradient: Operand = operand("...", "float")
    source: Operand = operand("...", "float")

    def infer(self, gradient: TensorType, source: TensorType, *scale_offset: TensorType) -> TensorType:
        check_sizes(self, source, *scale_offset)
        fits = gradient.rank == source.rank
        for d in range(source.rank) if fits else ():
            wanted = gradient.shape[d] if d in self.over else source.shape[d]
            fits = fits and require_equal(self.name, gradient.shape[d], wanted, f"dim {d} of gradient and source")
        if not fits:
            raise self.fail(
                "`gradient` does not fit `source`", expected=f"{source} but for axes {self.axes}", got=str(gradient)
            )
        return source

    def numpy(self, gradient: Array, source: Array, *scale_offset: Array) -> Array:
        made = wide(gradient)
        for k, a in enumerate(self.over):
            scale, offset = own_scale(self, k, scale_offset)
            matrix = self.matrix(k, source.shape[a], gradient.shape[a], scale, offset)
            made = np.moveaxis(np.tensordot(matrix.T, made, (1, a)), 0, a)
        return made.astype(source.dtype)

    def loops(self, b: Any, outs: tuple[Buffer, ...], gradient: Buffer, source: Buffer, *scale_offset: Buffer) -> None:
        scale, offset = scale_offset or (None, None)
        self.scatter(b, outs[0], gradient, scale, offset)

    def forward(self, gradient: tuple[Size, ...]) -> dict[str, Any]:
        """Attributes of the forward op."""
        size = tuple(gradient[a] for a in self.over)
        return {**{a: getattr(self, a) for a in self.attributes()}, "size": size}


# --- by size or scales ----------------------------------------------------------------------------------------------
class Resize(Forward, name="resize"):
    """Resize along some axes.

    size: the new sizes (ints, or an integer tensor known at compile time); or scales: factors, the new size is floor(n
    * scale). axes: which dims these are for. Without axes, `layout` ("NHWC", "NCHW", "HWC", "CHW", "HW") names height
    and width; without both, as many entries as x has dims mean all of them, and two mean height and width of [n, h, w,
    c], [h, w, c] or [h, w].

    mode: "nearest" (any dtype), "bilinear" (between neighbours along every axis), "cubic" (Keys' kernel with
    cubic_coefficient). Floats narrower than 32 bits are interpolated in float32.

    Result i reads position x of n (scale: the given one, else new size / n). By default x = i / scale; center_result: x
    = (i + 0.5) / scale - 0.5 (OpenCV, TensorFlow 2); align_corners: x = i * (n - 1) / (size - 1). `coordinates` names
    one of ONNX instead: half_pixel, half_pixel_symmetric, pytorch_half_pixel, align_corners, asymmetric,
    tf_half_pixel_for_nn, tf_crop_and_resize (with roi: starts, then ends, as fractions). Positions are moved inside;
    with `extrapolation`, results whose position lies outside have that value instead. exclude_outside: neighbours
    outside get no weight, the others more.

    rounding of nearest: "round_prefer_ceil" (default; of two equally near, the upper), "round_prefer_floor", "ceil",
    "floor", "round_to_even", "round_to_odd".
    """

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.resize_gradient(ct, x, **self.shared()),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 3, 4, 3), size=(6, 7))
        for mode in ("nearest", "bilinear", "cubic"):
            yield sample((1, 2, 5, 4), size=(7, 3), mode=mode, layout="NCHW", center_result=True)
            yield sample((5, 4), scales=(0.6, 2.3), mode=mode)
            yield sample((5, 4), size=(7, 1), mode=mode, align_corners=True)
        for kind in ("half_pixel_symmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn", "asymmetric"):
            yield sample((5, 1, 4), scales=(1.7, 0.3), axes=(0, -1), mode="linear", coordinates=kind)
        yield sample(
            (5, 6),
            size=(4, 3),
            mode="linear",
            coordinates="tf_crop_and_resize",
            roi=(0.2, -0.3, 0.9, 1.4),
            extrapolation=1.5,
        )
        yield sample(
            (4, 4), size=(8, 7), mode="cubic", center_result=True, exclude_outside=True, cubic_coefficient=-0.5
        )
        for rounding in ("round_prefer_floor", "ceil", "floor", "round_to_even", "round_to_odd"):
            yield sample((6,), size=(12,), rounding=rounding)
        yield Sample(((2, 3),), {"size": (4, 3)}, dtype="i32", grad=False)
        yield Sample(((2, 3),), {"size": (4, 5), "mode": "bilinear"}, dtype="f16", grad=False)
        yield Sample(((2, 3),), {"size": (0, 5)}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "neither `size` nor `scales`", sample((1, 2, 2, 3))
        yield "`layout` does not fit", sample((1, 2, 2, 3), size=(4, 4), layout="HWC")
        yield "`size` has 3 entries", sample((1, 2, 2, 3), size=(4, 4, 4), axes=(1, 2))
        yield "unknown mode", sample((1, 2, 2, 3), size=(4, 4), mode="area")
        yield "unknown coordinates", sample((1, 2, 2, 3), size=(4, 4), coordinates="corner")
        yield "a scale is not positive", sample((1, 2, 2, 3), scales=(0.0, 1.0))
        yield "has no elements", sample((1, 0, 2, 3), size=(4, 4))
        yield "x has dtype i32", sample(np.ones((2, 2), np.int32), size=(4, 4), mode="bilinear")


class ResizeNearest(Forward, name="resize_nearest"):
    """As `resize` with mode "nearest"."""

    mode: str = "nearest"

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.resize_gradient(ct, x, **self.shared()),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 3, 4, 3), size=(6, 7), rounding="floor", center_result=True)


class ResizeBilinear(Forward, name="resize_bilinear"):
    """As `resize` with mode "bilinear"."""

    mode: str = "bilinear"

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.resize_gradient(ct, x, **self.shared()),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 3, 4, 3), size=(6, 7), center_result=True)


class ResizeGradient(Backward, name="resize_gradient"):
    """Cotangent of x of `resize`: each gradient is added to what its result read, times the weight it had.

    gradient: as the result of the resize; source: its x (only its shape matters); the other attributes are those of the
    resize, size left out. The result has the shape of source.
    """

    def vjp(self, ct: Value, gradient: Value, source: Value) -> tuple[Value, None]:
        return F.resize(
            ct, **{**self.forward(gradient.shape), "extrapolation": None if self.extrapolation is None else 0.0}
        ), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for mode in ("nearest", "bilinear", "cubic"):
            yield sample((1, 4, 5, 2), (1, 3, 4, 2), mode=mode, center_result=True)
            yield sample((1, 2, 3, 2), (1, 2, 4, 3), mode=mode, layout="NCHW", align_corners=True)
        yield sample(
            (4, 3),
            (5, 6),
            mode="linear",
            coordinates="tf_crop_and_resize",
            roi=(0.2, -0.3, 0.9, 1.4),
            extrapolation=1.5,
        )

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`gradient` does not fit `source`", sample((2, 6, 7, 4), (2, 3, 4, 3))


class ResizeNearestGradient(Backward, name="resize_nearest_gradient"):
    """As `resize_gradient` with mode "nearest"."""

    mode: str = "nearest"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((1, 4, 5, 2), (1, 3, 4, 2), rounding="ceil")


class ResizeBilinearGradient(Backward, name="resize_bilinear_gradient"):
    """As `resize_gradient` with mode "bilinear"."""

    mode: str = "bilinear"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((1, 4, 5, 2), (1, 3, 4, 2))


# --- by scale and offset --------------------------------------------------------------------------------------------
class ForwardScaleOffset(Forward):
    """A resize whose scale and offset are tensors."""

    x: Operand = operand("...", "any")
    scale: Operand = operand("k", "float", "S")
    offset: Operand = operand("k", "float", "S")
    coordinates: str = "scale_offset"

    def vjp(self, ct: Value, x: Value, scale: Value, offset: Value) -> tuple[Value, None, None]:
        return F.resize_scale_offset_gradient(ct, x, scale, offset, **self.shared()), None, None


class ResizeScaleOffset(ForwardScaleOffset, name="resize_scale_offset"):
    """Resize where result and source positions are related by result = source * scale + offset.

    scale, offset: [number of resized axes], in the order of the axes. No gradient goes to them. size, axes, layout,
    mode and rounding as in `resize`; positions outside x are moved to its border.
    """

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        scale, offset = np.array([1.5, 2.0], np.float32), np.array([0.25, -1.0], np.float32)
        for mode in ("nearest", "bilinear"):
            yield sample((2, 3, 4, 3), scale, offset, size=(6, 7), mode=mode)
            yield sample((4, 3), scale, offset, size=(6, 2), mode=mode)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "scale and offset do not fit the axes", sample((1, 2, 2, 3), (3,), (3,), size=(4, 4))
        yield "dimension `k` differs", sample((1, 2, 2, 3), (2,), (3,), size=(4, 4))


class ResizeNearestScaleOffset(ForwardScaleOffset, name="resize_nearest_scale_offset"):
    """As `resize_scale_offset` with mode "nearest"."""

    mode: str = "nearest"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(
            (2, 3, 4, 3), np.array([1.5, 2.0], np.float32), np.zeros(2, np.float32), size=(6, 7), rounding="floor"
        )


class ResizeBilinearScaleOffset(ForwardScaleOffset, name="resize_bilinear_scale_offset"):
    """As `resize_scale_offset` with mode "bilinear"."""

    mode: str = "bilinear"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 3, 4, 3), np.array([1.5, 2.0], np.float32), np.zeros(2, np.float32), size=(6, 7))


class BackwardScaleOffset(Backward):
    """Cotangent of x of a resize whose scale and offset are tensors."""

    gradient: Operand = operand("...", "float")
    source: Operand = operand("...", "float")
    scale: Operand = operand("k", "float", "S")
    offset: Operand = operand("k", "float", "S")
    coordinates: str = "scale_offset"

    def vjp(
        self, ct: Value, gradient: Value, source: Value, scale: Value, offset: Value
    ) -> tuple[Value, None, None, None]:
        return F.resize_scale_offset(ct, scale, offset, **self.forward(gradient.shape)), None, None, None


class ResizeScaleOffsetGradient(BackwardScaleOffset, name="resize_scale_offset_gradient"):
    """Cotangent of x of `resize_scale_offset`. See `resize_gradient`."""

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        scale, offset = np.array([1.5, 2.0], np.float32), np.array([0.25, -1.0], np.float32)
        for mode in ("nearest", "bilinear"):
            yield sample((1, 4, 5, 2), (1, 3, 4, 2), scale, offset, mode=mode)


class ResizeNearestScaleOffsetGradient(BackwardScaleOffset, name="resize_nearest_scale_offset_gradient"):
    """As `resize_scale_offset_gradient` with mode "nearest"."""

    mode: str = "nearest"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((1, 4, 5, 2), (1, 3, 4, 2), np.array([1.5, 2.0], np.float32), np.zeros(2, np.float32))


class ResizeBilinearScaleOffsetGradient(BackwardScaleOffset, name="resize_bilinear_scale_offset_gradient"):
    """As `resize_scale_offset_gradient` with mode "bilinear"."""

    mode: str = "bilinear"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((1, 4, 5, 2), (1, 3, 4, 2), np.array([1.5, 2.0], np.float32), np.zeros(2, np.float32))


resize, resize_nearest, resize_bilinear = F.resize, F.resize_nearest, F.resize_bilinear
resize_gradient = F.resize_gradient
resize_nearest_gradient, resize_bilinear_gradient = F.resize_nearest_gradient, F.resize_bilinear_gradient
resize_scale_offset, resize_scale_offset_gradient = F.resize_scale_offset, F.resize_scale_offset_gradient
resize_nearest_scale_offset, resize_bilinear_scale_offset = (
    F.resize_nearest_scale_offset,
    F.resize_bilinear_scale_offset,
)
resize_nearest_scale_offset_gradient = F.resize_nearest_scale_offset_gradient
resize_bilinear_scale_offset_gradient = F.resize_bilinear_scale_offset_gradient
