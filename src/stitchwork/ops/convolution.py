"""Convolutions over 1, 2 and 3 spatial dims, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from stitchwork.ops._build import F
from stitchwork.ops._conv_forms import DataGradient, Forward, WeightsGradient
from stitchwork.ops._op import Sample, sample


class Conv1d(Forward, name="conv1d"):
    """Convolution over one spatial dim: y[n, i, f] = sum over p, c of x[n, i * stride + p * dilation - before, c] *
    w[p, c, f].

    x [n, w, c] ("NWC", or `data_layout` "NCW"), weights [w, c / groups, f] ("WIO", or `weights_layout` "OIW"). All else
    as in `conv2d`.
    """

    spatial: ClassVar[int] = 1
    data_layout: str = "NWC"
    weights_layout: str = "WIO"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 7, 3), (3, 3, 4))
        yield sample((1, 4, 9), (6, 2, 3), strides=2, padding="same", groups=2, data_layout="NCW", weights_layout="OIW")
        yield sample((1, 1, 1), (1, 1, 1))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`x` has rank 4", sample((1, 2, 8, 3), (3, 3, 4))
        yield "larger than the padded input", sample((1, 2, 3), (5, 3, 4))


class Conv2d(Forward, name="conv2d"):
    """Convolution of images (cross-correlation; the kernel is not flipped):

    y[n, i, j, f] = sum over p, q, c of  x[n, i * s + p * d - top, j * t + q * e - left, c] * w[p, q, c, f]

    x [n, h, w, c], weights [h, w, c / groups, f], result [n, h', w', f] with h' = (h + top + bottom - ((kh - 1) * d +
    1)) // s + 1; outside x is 0. Result dtype: that of the operands; sums of floats narrower than 32 bits are formed in
    float32.

    strides, dilation: an int or one per spatial dim. padding: "valid" (none), "same" (ceil(size / stride) results, an
    odd element after; as TensorFlow), "same_lower" (an odd element before), an int, an int per spatial dim, or (before,
    after) pairs. groups: channels and features are split into so many independent convolutions. data_layout: "NHWC",
    "NCHW" or any order of these letters; weights_layout likewise "HWIO", "OIHW", ...
    """

    spatial: ClassVar[int] = 2

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 6, 5, 3), (3, 2, 3, 4))
        yield sample((1, 7, 7, 2), (3, 3, 2, 5), strides=(2, 1), padding="same")
        yield sample((1, 6, 7, 2), (2, 3, 2, 3), strides=2, padding="same_lower", dilation=(1, 2))
        yield sample((1, 4, 6, 5), (6, 2, 3, 3), groups=2, padding=1, data_layout="NCHW", weights_layout="OIHW")
        yield sample((1, 4, 4, 1), (2, 2, 1, 1), padding=((1, 0), (0, 2)))
        yield sample((1, 1, 1, 1), (1, 1, 1, 1))
        yield sample((0, 4, 4, 2), (3, 3, 2, 2))
        yield Sample(((1, 5, 5, 2), (3, 3, 2, 2)), {"padding": "same"}, dtype="f16", grad=False)
        yield Sample(((1, 5, 5, 2), (3, 3, 2, 2)), {}, dtype="i32", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "channels do not fit", sample((1, 8, 8, 3), (3, 3, 4, 16))
        yield "`x` has rank 3", sample((8, 8, 3), (3, 3, 3, 16))
        yield "larger than the padded input", sample((1, 2, 2, 3), (5, 5, 3, 4))
        yield "`data_layout` does not fit", sample((1, 8, 8, 3), (3, 3, 3, 4), data_layout="NHW")
        yield "unknown padding style", sample((1, 8, 8, 3), (3, 3, 3, 4), padding="full")
        yield "`padding` does not fit", sample((1, 8, 8, 3), (3, 3, 3, 4), padding=(1, 2, 3))
        yield "`strides` has 3 entries", sample((1, 8, 8, 3), (3, 3, 3, 4), strides=(1, 2, 3))
        yield "features do not divide into groups", sample((1, 8, 8, 4), (3, 3, 2, 3), groups=2)
        yield "differ in dtype", sample((1, 8, 8, 3), np.zeros((3, 3, 3, 4), np.float16))


class Conv3d(Forward, name="conv3d"):
    """Convolution of volumes. x [n, d, h, w, c] ("NDHWC", or `data_layout` "NCDHW"), weights [d, h, w, c / groups, f]
    ("DHWIO", or `weights_layout` "OIDHW"). All else as in `conv2d`.
    """

    spatial: ClassVar[int] = 3
    data_layout: str = "NDHWC"
    weights_layout: str = "DHWIO"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((1, 4, 3, 5, 2), (2, 2, 3, 2, 3), padding="same", strides=(1, 2, 2))
        yield sample((1, 2, 3, 4, 3), (2, 1, 2, 2, 2), groups=2, data_layout="NCDHW", weights_layout="OIDHW")

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`weights` has rank 4", sample((1, 4, 4, 4, 2), (2, 2, 2, 3))


class Conv2dDataGradient(DataGradient, name="conv2d_data_gradient"):
    """Cotangent of the data of `conv2d`, given that of its result.

    gradient: as the result of the forward convolution; output_shape: the shape of its data (a list of sizes, or an
    integer tensor known at compile time); all else are the attributes of the forward convolution. The result has
    `output_shape`.
    """

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 4, 4, 4), (3, 2, 3, 4), output_shape=(2, 6, 5, 3))
        yield sample((1, 4, 7, 5), (3, 3, 2, 5), output_shape=(1, 7, 7, 2), strides=(2, 1), padding="same")
        yield sample((1, 4, 3, 2), (4, 2, 2, 2), output_shape=(1, 4, 6, 5), strides=2, groups=2,
                     padding=((1, 0), (0, 1)), data_layout="NCHW", weights_layout="OIHW", dilation=(1, 2))  # fmt: skip

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "do not belong to one convolution", sample((2, 4, 4, 4), (3, 2, 3, 4), output_shape=(2, 7, 5, 3))
        yield "`output_shape` has 2 entries", sample((2, 4, 4, 4), (3, 2, 3, 4), output_shape=(6, 5))


class Conv2dWeightsGradient(WeightsGradient, name="conv2d_weights_gradient"):
    """Cotangent of the weights of `conv2d`, given that of its result.

    gradient: as the result of the forward convolution, x: its data; output_shape: the shape of the weights; all else
    are the attributes of the forward convolution. The result has `output_shape`.
    """

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 4, 4, 4), (2, 6, 5, 3), output_shape=(3, 2, 3, 4))
        yield sample((1, 4, 7, 5), (1, 7, 7, 2), output_shape=(3, 3, 2, 5), strides=(2, 1), padding="same")
        yield sample((1, 4, 3, 2), (1, 4, 6, 5), output_shape=(4, 2, 2, 2), strides=2, groups=2,
                     padding=((1, 0), (0, 1)), data_layout="NCHW", weights_layout="OIHW", dilation=(1, 2))  # fmt: skip

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "do not belong to one convolution", sample((2, 4, 4, 4), (2, 6, 5, 3), output_shape=(2, 2, 3, 4))


class Conv3dDataGradient(DataGradient, name="conv3d_data_gradient"):
    """Cotangent of the data of `conv3d`, given that of its result. See `conv2d_data_gradient`."""

    spatial: ClassVar[int] = 3
    data_layout: str = "NDHWC"
    weights_layout: str = "DHWIO"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((1, 2, 2, 3, 3), (2, 2, 1, 2, 3), output_shape=(1, 3, 4, 3, 2), strides=(1, 2, 1))


class Conv3dWeightsGradient(WeightsGradient, name="conv3d_weights_gradient"):
    """Cotangent of the weights of `conv3d`, given that of its result. See `conv2d_weights_gradient`."""

    spatial: ClassVar[int] = 3
    data_layout: str = "NDHWC"
    weights_layout: str = "DHWIO"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((1, 2, 2, 3, 3), (1, 3, 4, 3, 2), output_shape=(2, 2, 1, 2, 3), strides=(1, 2, 1))


conv1d, conv2d, conv3d = F.conv1d, F.conv2d, F.conv3d
conv2d_data_gradient, conv2d_weights_gradient = F.conv2d_data_gradient, F.conv2d_weights_gradient
conv3d_data_gradient, conv3d_weights_gradient = F.conv3d_data_gradient, F.conv3d_weights_gradient
