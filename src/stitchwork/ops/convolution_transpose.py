"""Transposed convolutions: the data gradient of a convolution, used as a layer of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._conv_forms import DataGradient, WeightsGradient, Windowed, check_forward
from stitchwork.ops._convolution import convolve
from stitchwork.ops._op import Array, Operand, Sample, operand, sample
from stitchwork.ops._windows import Sizes, dilated, per_dim


class Transposed(DataGradient):
    """A transposed convolution; `output_shape` may be left out."""

    x: Operand = operand("...", "number")
    weights: Operand = operand("...", "number")
    output_shape: Any = None
    output_padding: Any = 0

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        made = super().normalize(types, attrs)
        made["output_padding"] = per_dim(cls.name, attrs.get("output_padding", 0), cls.spatial, "output_padding", 0)
        return made

    def shape(self, gradient: Sizes, weights: Sizes) -> Sizes:
        n, *sizes, _ = self.last(gradient)
        kernel = self.kernel(weights)
        given: Any = self.output_shape
        if given is not None and len(given) == self.spatial + 2:
            return given
        if given is not None and len(given) != self.spatial:
            raise self.fail(f"`output_shape` has {len(given)} entries",
                            expected=f"{self.spatial} spatial sizes, or the whole shape", got=str(given))  # fmt: skip
        grown = given or tuple(self._grown(d, size, kernel[d]) for d, size in enumerate(sizes))
        return self.unlast((n, *grown, kernel[-2] * self.groups), gradient)

    def _grown(self, d: int, n: Size, k: Size) -> Size:
        s, extra = self.strides[d], self.output_padding[d]
        if self.padding in ("same", "same_lower"):
            return n * s + extra
        lo, hi = (0, 0) if self.padding == "valid" else self.padding[d]
        return (n - 1) * s + dilated(k, self.dilation[d]) - lo - hi + extra


class ConvTranspose1d(Transposed, name="conv_transpose1d"):
    """Transposed convolution over one spatial dim: x [n, w, f] ("NWC"), weights [w, c / groups, f] ("WIO"). See
    `conv_transpose2d`.
    """

    spatial: ClassVar[int] = 1
    data_layout: str = "NWC"
    weights_layout: str = "WIO"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 4, 3), (3, 2, 3), strides=2)
        yield sample(
            (1, 6, 4),
            (6, 2, 3),
            strides=3,
            groups=2,
            padding=1,
            output_padding=1,
            data_layout="NCW",
            weights_layout="OIW",
        )


class ConvTranspose2d(Transposed, name="conv_transpose2d"):
    """Transposed convolution of images: the gradient of `conv2d` with respect to its data, as a layer.

    x [n, h, w, f] is laid out as the result of the forward convolution, weights [h, w, c / groups, f] as its weights
    ("O" is the channel dim of x, "I" that of the result); the result [n, h', w', c] as its data. strides, padding,
    dilation, groups and layouts are the forward convolution's.

    Several sizes have the same forward size; the result's is h' = (h - 1) * stride + (kh - 1) * dilation + 1 - top -
    bottom + output_padding, for padding "same" and "same_lower" h * stride, or given as output_shape (spatial sizes or
    whole shape; an integer tensor known at compile time is accepted).
    """

    spatial: ClassVar[int] = 2

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 3, 4, 4), (3, 2, 3, 4))
        yield sample((1, 3, 3, 5), (3, 3, 2, 5), strides=2, padding="same")
        yield sample((1, 4, 3, 3), (4, 2, 3, 2), strides=(2, 3), groups=2, padding=1, output_padding=(1, 0),
                     data_layout="NCHW", weights_layout="OIHW")  # fmt: skip
        yield sample((1, 3, 3, 2), (2, 2, 3, 2), strides=2, output_shape=(7, 6))
        yield sample((1, 3, 3, 2), (2, 2, 3, 2), strides=2, output_shape=(1, 7, 6, 3), dilation=1)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "do not belong to one convolution", sample((1, 3, 3, 2), (2, 2, 3, 2), strides=2, output_shape=(9, 6))
        yield "do not belong to one convolution", sample((1, 3, 3, 2), (2, 2, 3, 5))
        yield "`output_shape` has 3 entries", sample((1, 3, 3, 2), (2, 2, 3, 2), output_shape=(7, 6, 3))
        yield "`x` has rank 3", sample((3, 3, 2), (2, 2, 3, 2))


class ConvTranspose3d(Transposed, name="conv_transpose3d"):
    """Transposed convolution of volumes: x [n, d, h, w, f] ("NDHWC"), weights [d, h, w, c / groups, f] ("DHWIO"). See
    `conv_transpose2d`.
    """

    spatial: ClassVar[int] = 3
    data_layout: str = "NDHWC"
    weights_layout: str = "DHWIO"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((1, 2, 2, 3, 3), (2, 2, 1, 2, 3), strides=(1, 2, 1))


class ConvTranspose2dDataGradient(Windowed, name="conv_transpose2d_data_gradient"):
    """Cotangent of the data of `conv_transpose2d`, given that of its result: the forward convolution of it.

    gradient: as the result of the transposed convolution; output_shape: the shape of its data; all else are its
    attributes. The result has `output_shape`.
    """

    gradient: Operand = operand("...", "number")
    weights: Operand = operand("...", "number")
    output_shape: Any

    def infer(self, gradient: TensorType, weights: TensorType) -> TensorType:
        self.check_rank("gradient", gradient)
        self.check_rank("weights", weights)
        shape = self.full_shape(self.output_shape, self.spatial + 2)
        check_forward(self, self.last(gradient.shape), self.kernel(weights.shape), self.last(shape))
        return gradient.with_shape(shape)

    def numpy(self, gradient: Array, weights: Array) -> Array:
        x_last, kernel = self.last(gradient), self.kernel(weights)
        return self.unlast(convolve(self.general(x_last.shape, kernel.shape), x_last, kernel), self.output_shape)

    def decompose(self, gradient: Value, weights: Value) -> Value:
        made = self.unlast(self.built(self.last(gradient), self.kernel(weights)), self.output_shape)
        return made if made.shape == self.output_shape else F.reshape(made, self.output_shape)

    def vjp(self, ct: Value, gradient: Value, weights: Value) -> tuple[Value, Value]:
        x_last, kernel, grown = self.last(gradient), self.kernel(weights), self.last(ct)
        general = self.general(x_last.shape, kernel.shape)
        dx = general.data_gradient(grown, x_last.shape, kernel)
        dw = general.weights_gradient(grown, x_last, kernel.shape)
        return self.unlast(dx, gradient.shape), self.unkernel(dw, weights.shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 5, 5, 3), (3, 2, 3, 4), output_shape=(2, 3, 4, 4))
        yield sample((1, 6, 6, 2), (3, 3, 2, 5), output_shape=(1, 3, 3, 5), strides=2, padding="same")

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "do not belong to one convolution", sample((2, 5, 5, 3), (3, 2, 3, 4), output_shape=(2, 4, 4, 4))


class ConvTranspose2dWeightsGradient(WeightsGradient, name="conv_transpose2d_weights_gradient"):
    """Cotangent of the weights of `conv_transpose2d`, given that of its result.

    gradient: as the result of the transposed convolution, x: its data; output_shape: the shape of the weights; all else
    are its attributes. The result has `output_shape`.
    """

    def infer(self, gradient: TensorType, x: TensorType) -> TensorType:
        return super().infer(x, gradient)

    def numpy(self, gradient: Array, x: Array) -> Array:
        return super().numpy(x, gradient)

    def decompose(self, gradient: Value, x: Value) -> Value:
        return super().decompose(x, gradient)

    def vjp(self, ct: Value, gradient: Value, x: Value) -> tuple[Value, Value]:
        dx, dgradient = super().vjp(ct, x, gradient)
        return dgradient, dx

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 5, 5, 3), (2, 3, 4, 4), output_shape=(3, 2, 3, 4))
        yield sample((1, 6, 6, 2), (1, 3, 3, 5), output_shape=(3, 3, 2, 5), strides=2, padding="same")

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "do not belong to one convolution", sample((2, 5, 5, 3), (2, 4, 4, 4), output_shape=(3, 2, 3, 4))


conv_transpose1d, conv_transpose2d, conv_transpose3d = F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d
conv_transpose2d_data_gradient = F.conv_transpose2d_data_gradient
conv_transpose2d_weights_gradient = F.conv_transpose2d_weights_gradient
