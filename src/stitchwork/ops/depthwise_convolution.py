"""Depthwise convolutions: every channel is convolved alone. `conv_general` with as many groups as channels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from stitchwork.errors import OpError
from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._conv_forms import DataGradient, Forward, WeightsGradient, Windowed, permuted, reshaped
from stitchwork.ops._op import Sample, axis_index, sample
from stitchwork.ops._windows import Sizes


class Depthwise2d(Windowed):
    """Layout of depthwise weights: "I" is the channel, "O" the multiplier; feature i * multiplier + o comes from
    channel i.
    """

    spatial: ClassVar[int] = 2

    def kernel(self, w: Any) -> Any:
        w = super().kernel(w)
        shape: Sizes = getattr(w, "shape", w)
        return reshaped(w, (*shape[:-2], 1, shape[-2] * shape[-1]))

    def unkernel(self, w: Any, shape: Sizes) -> Any:
        return super().unkernel(reshaped(w, super().kernel(shape)), shape)

    def parts(self, x_last: Sizes) -> Size:
        return x_last[-1]

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs.get("groups", 1) != 1:
            raise OpError(
                cls.name, "`groups` given", expected="no groups: every channel is its own", got=str(attrs["groups"])
            )
        return super().normalize(types, attrs)


class DepthwiseConv2d(Depthwise2d, Forward, name="depthwise_conv2d"):
    """Convolution of each channel alone: y[n, i, j, c * m + o] = sum over p, q of x[n, i * s + p * d - top, ..., c] *
    w[p, q, c, o].

    x [n, h, w, c], weights [h, w, c, m] with m the channel multiplier ("HWIO"; "OIHW" is [m, c, h, w]), result
    [n, h', w', c * m]. All else as in `conv2d`.
    """

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 6, 5, 3), (3, 2, 3, 2))
        yield sample((1, 3, 7, 7), (1, 3, 3, 3), strides=2, padding="same", data_layout="NCHW", weights_layout="OIHW")
        yield sample((1, 5, 5, 1), (2, 2, 1, 1), padding=((1, 0), (0, 2)), dilation=2)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "features do not divide", sample((1, 8, 8, 3), (3, 3, 4, 1))
        yield "`groups` given", sample((1, 8, 8, 4), (3, 3, 4, 1), groups=2)


class DepthwiseConv2dDataGradient(Depthwise2d, DataGradient, name="depthwise_conv2d_data_gradient"):
    """Cotangent of the data of `depthwise_conv2d`, given that of its result. See `conv2d_data_gradient`."""

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 4, 4, 6), (3, 2, 3, 2), output_shape=(2, 6, 5, 3))
        yield sample((1, 3, 4, 4), (1, 3, 3, 3), output_shape=(1, 3, 7, 7), strides=2, padding="same",
                     data_layout="NCHW", weights_layout="OIHW")  # fmt: skip


class DepthwiseConv2dWeightsGradient(Depthwise2d, WeightsGradient, name="depthwise_conv2d_weights_gradient"):
    """Cotangent of the weights of `depthwise_conv2d`, given that of its result. See `conv2d_weights_gradient`."""

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 4, 4, 6), (2, 6, 5, 3), output_shape=(3, 2, 3, 2))
        yield sample((1, 3, 4, 4), (1, 3, 7, 7), output_shape=(1, 3, 3, 3), strides=2, padding="same",
                     data_layout="NCHW", weights_layout="OIHW")  # fmt: skip


class Depthwise3d(Windowed):
    """Layout of depthwise volumes: the last 4 dims of the data and the 4 dims of the weights, channels at
    `channel_axis`.
    """

    spatial: ClassVar[int] = 3
    channel_axis: int = -4
    data_layout: str = ""
    weights_layout: str = ""

    @classmethod
    def normalize_layouts(cls, attrs: dict[str, Any]) -> dict[str, Any]:
        for key in ("data_layout", "weights_layout"):
            if attrs.get(key):
                raise OpError(
                    cls.name, f"`{key}` given", expected="channel_axis, for data and weights alike", got=attrs[key]
                )
        if attrs.get("groups", 1) != 1:
            raise OpError(
                cls.name, "`groups` given", expected="no groups: every channel is its own", got=str(attrs["groups"])
            )
        return {"channel_axis": axis_index(cls.name, attrs.get("channel_axis", -4), 4, "channel_axis") - 4}

    def check_rank(self, what: str, x: TensorType) -> None:
        if x.rank < 4 or (what == "weights" and x.rank != 4):
            raise self.fail(
                f"`{what}` has rank {x.rank}", expected="rank 4" + (" or more" if what != "weights" else ""), got=str(x)
            )

    def full_shape(self, shape: Any, rank: int) -> Sizes:
        if len(shape) < 4:
            raise self.fail(f"`output_shape` has {len(shape)} entries", expected="4 sizes or more", got=str(shape))
        return shape

    def parts(self, x_last: Sizes) -> Size:
        return x_last[-1]

    def last(self, x: Any) -> Any:
        shape: Sizes = getattr(x, "shape", x)
        x = reshaped(x, (dims.product(shape[:-4]), *shape[-4:]))
        channel = 5 + self.channel_axis
        return permuted(x, (0, *(d for d in range(1, 5) if d != channel), channel))

    def unlast(self, y: Any, like: Sizes) -> Any:
        order = [0, 1, 2, 3]
        order.insert(5 + self.channel_axis, 4)
        y = permuted(y, tuple(order))
        shape: Sizes = getattr(y, "shape", y)
        return reshaped(y, (*like[:-4], *shape[1:]))

    def kernel(self, w: Any) -> Any:
        channel = 4 + self.channel_axis
        w = permuted(w, (*(d for d in range(4) if d != channel), channel))
        shape: Sizes = getattr(w, "shape", w)
        return reshaped(w, (*shape[:-1], 1, shape[-1]))

    def unkernel(self, w: Any, shape: Sizes) -> Any:
        inner: Sizes = getattr(w, "shape", w)
        order = [0, 1, 2]
        order.insert(4 + self.channel_axis, 3)
        return permuted(reshaped(w, (*inner[:3], inner[-1])), tuple(order))


class DepthwiseConv3d(Depthwise3d, Forward, name="depthwise_conv3d"):
    """Convolution of each channel of volumes alone, with one kernel per channel.

    x [..., c, d, h, w], weights [c, d, h, w], result [..., c, d', h', w']; channel_axis says where c is among the last
    four dims of data and weights alike: -4 (as here) to -1. All else as in `conv2d`.
    """

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 3, 4, 3, 5), (3, 2, 2, 3))
        yield sample((4, 5, 4, 2), (3, 3, 1, 2), channel_axis=-1, strides=2, padding="same")
        yield sample(
            (2, 1, 4, 3, 4, 2), (2, 2, 2, 2), channel_axis=-1, padding=((1, 0), (0, 0), (0, 1)), dilation=(2, 1, 1)
        )

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`x` has rank 3", sample((3, 4, 4), (3, 2, 2, 2))
        yield "`weights` has rank 5", sample((1, 3, 4, 4, 4), (1, 3, 2, 2, 2))
        yield "`data_layout` given", sample((3, 4, 4, 4), (3, 2, 2, 2), data_layout="NDHWC")
        yield "`channel_axis` is out of range", sample((3, 4, 4, 4), (3, 2, 2, 2), channel_axis=4)


class DepthwiseConv3dDataGradient(Depthwise3d, DataGradient, name="depthwise_conv3d_data_gradient"):
    """Cotangent of the data of `depthwise_conv3d`, given that of its result.

    output_shape may be left out: then it is the smallest that gives this result (no input beyond the last window).
    All else as in `conv2d_data_gradient`.
    """

    output_shape: Any = None

    def shape(self, gradient: Sizes, weights: Sizes) -> Sizes:
        if self.output_shape is not None:
            return self.full_shape(self.output_shape, 4)
        if isinstance(self.padding, str) and self.padding != "valid":
            raise self.fail(
                "`output_shape` is missing", expected="output_shape where padding is not explicit", got=self.padding
            )
        n, *counts, c = self.last(gradient)
        pads = ((0, 0),) * 3 if isinstance(self.padding, str) else self.padding
        sizes = [
            (o - 1) * s + (k - 1) * d + 1 - lo - hi
            for o, s, k, d, (lo, hi) in zip(
                counts, self.strides, self.kernel(weights)[:3], self.dilation, pads, strict=True
            )
        ]
        return self.unlast((n, *sizes, c), gradient)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 3, 3, 2, 3), (3, 2, 2, 3), output_shape=(2, 3, 4, 3, 5))
        yield sample((2, 3, 2, 2), (3, 3, 1, 2), output_shape=(4, 5, 4, 2), channel_axis=-1, strides=2, padding="same")
        yield sample((3, 3, 2, 3), (3, 2, 2, 3), strides=(1, 2, 1), padding=1)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`output_shape` is missing", sample((3, 3, 2, 3), (3, 2, 2, 3), padding="same")


class DepthwiseConv3dWeightsGradient(Depthwise3d, WeightsGradient, name="depthwise_conv3d_weights_gradient"):
    """Cotangent of the weights of `depthwise_conv3d`, given that of its result. See `conv2d_weights_gradient`."""

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 3, 3, 2, 3), (2, 3, 4, 3, 5), output_shape=(3, 2, 2, 3))
        yield sample((2, 3, 2, 2), (4, 5, 4, 2), output_shape=(3, 3, 1, 2), channel_axis=-1, strides=2, padding="same")


depthwise_conv2d, depthwise_conv3d = F.depthwise_conv2d, F.depthwise_conv3d
depthwise_conv2d_data_gradient = F.depthwise_conv2d_data_gradient
depthwise_conv2d_weights_gradient = F.depthwise_conv2d_weights_gradient
depthwise_conv3d_data_gradient = F.depthwise_conv3d_data_gradient
depthwise_conv3d_weights_gradient = F.depthwise_conv3d_weights_gradient
