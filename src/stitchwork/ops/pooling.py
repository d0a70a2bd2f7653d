"""Pooling over 1, 2, 3 spatial dims, or the last 4 dims. Global pooling is a reduction over the spatial axes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from stitchwork.ops._build import F
from stitchwork.ops._op import Sample, sample
from stitchwork.ops._pool_forms import (
    AvgPooling,
    AvgPoolingGradient,
    L2NormPooling,
    L2NormPoolingGradient,
    MaxPooling,
    MaxPoolingGradient,
    MaxPoolingGradientWithIndices,
    MaxPoolingReturnIndices,
)


class MaxPooling2d(MaxPooling, name="max_pooling2d"):
    """Largest element of each window of images; NaN where the window holds one.

    x [n, h, w, c] ("NHWC", or `data_layout` "NCHW"), result alike with h' = (h + top + bottom - ((kh - 1) * dilation +
    1)) // stride + 1. kernel_size, strides (default 1), dilation: an int or two. padding: "valid", "same",
    "same_lower", ints or (before, after) pairs; what lies outside is never chosen. ceil_mode rounds the number of
    windows up; a window must still start inside the input or the padding before it, as in PyTorch and ONNX.
    """

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 6, 5, 3), kernel_size=(3, 2), strides=2)
        yield sample((1, 2, 7, 6), kernel_size=2, strides=(2, 3), padding=1, ceil_mode=True, data_layout="NCHW")
        yield sample((1, 5, 5, 1), kernel_size=2, dilation=2, padding="same")
        yield sample((1, 1, 1, 1), kernel_size=1)
        yield sample((0, 4, 4, 2), kernel_size=2)
        yield Sample(((1, 4, 5, 2),), {"kernel_size": 2, "padding": "same_lower"}, dtype="u8", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "larger than the padded input", sample((1, 2, 2, 3), kernel_size=3)
        yield "`x` has rank 3", sample((2, 2, 3), kernel_size=1)
        yield "unknown data_layout", sample((1, 2, 2, 3), kernel_size=1, data_layout="HWC")
        yield "`kernel_size` is out of range", sample((1, 2, 2, 3), kernel_size=0)
        yield "attribute `kernel_size` is missing", sample((1, 2, 2, 3))


class MaxPooling1d(MaxPooling, name="max_pooling1d"):
    """Largest element of each window of x [n, w, c] ("NWC", or `data_layout` "NCW"). See `max_pooling2d`."""

    spatial: ClassVar[int] = 1
    data_layout: str = "NWC"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 7, 3), kernel_size=3, strides=2)
        yield sample((2, 3, 7), kernel_size=2, padding=((1, 0),), data_layout="NCW")


class MaxPooling3d(MaxPooling, name="max_pooling3d"):
    """Largest element of each window of x [n, d, h, w, c] ("NDHWC", or `data_layout` "NCDHW"). See `max_pooling2d`."""

    spatial: ClassVar[int] = 3
    data_layout: str = "NDHWC"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((1, 3, 4, 5, 2), kernel_size=2, strides=(1, 2, 2))


class MaxPooling4d(MaxPooling, name="max_pooling4d"):
    """Largest element of each window over the last four dims of x. See `max_pooling2d`."""

    spatial: ClassVar[int] = 4
    data_layout: str = ""

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(
            (2, 3, 4, 5), kernel_size=(1, 2, 2, 3), strides=(1, 1, 2, 2), padding=((0, 0), (0, 1), (1, 0), (1, 1))
        )
        yield sample((2, 1, 3, 4, 2), kernel_size=(1, 1, 2, 1))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`x` has rank 3", sample((2, 2, 3), kernel_size=1)


class MaxPooling2dReturnIndices(MaxPoolingReturnIndices, name="max_pooling2d_return_indices"):
    """As `max_pooling2d`, with a second result: where each element was found, i32.

    return_indices_mode: "global_flatten_Nd" counts row-major over the innermost N dims of x, "local_flatten_Nd" over
    those of the window (N from 1 to 4). Default: the spatial dims and what is inside them, which for "NCHW" is h * W +
    w (PyTorch), for "NHWC" (h * W + w) * C + c (TensorFlow). The first of equal elements wins; NaN and padding are
    never chosen, -1 where nothing is left.
    """

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 6, 5, 3), kernel_size=(3, 2), strides=2)
        yield sample((1, 2, 7, 6), kernel_size=2, strides=(2, 3), padding=1, ceil_mode=True, data_layout="NCHW")
        for mode in ("local_flatten_3d", "global_flatten_4d", "local_flatten_1d", "global_flatten_1d"):
            yield Sample(((2, 4, 5, 3),), {"kernel_size": 2, "padding": 1, "return_indices_mode": mode}, grad=False)
        yield Sample(((1, 4, 4, 2),), {"kernel_size": 3, "padding": "same"}, dtype="u8", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "unknown return_indices_mode", sample((1, 2, 2, 3), kernel_size=1, return_indices_mode="flat")


class MaxPooling4dReturnIndices(MaxPoolingReturnIndices, name="max_pooling4d_return_indices"):
    """As `max_pooling4d`, with a second result: where each element was found. See `max_pooling2d_return_indices`; the
    default mode is "global_flatten_4d".
    """

    spatial: ClassVar[int] = 4
    data_layout: str = ""

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(
            (2, 3, 4, 5), kernel_size=(1, 2, 2, 3), strides=(1, 1, 2, 2), padding=((0, 0), (0, 1), (1, 0), (1, 1))
        )


class MaxPooling2dGradient(MaxPoolingGradient, name="max_pooling2d_gradient"):
    """Cotangent of x of `max_pooling2d`: each gradient goes to the first largest element of its window.

    gradient: as the result of the pooling; source: its x. All else are its attributes. The result has the shape of
    source.
    """

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 2, 2, 3), (2, 6, 5, 3), kernel_size=(3, 2), strides=2)
        yield sample(
            (1, 2, 4, 3), (1, 2, 7, 6), kernel_size=2, strides=(2, 3), padding=1, ceil_mode=True, data_layout="NCHW"
        )

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`gradient` does not fit", sample((2, 3, 2, 3), (2, 6, 5, 3), kernel_size=(3, 2), strides=2)


class MaxPooling4dGradient(MaxPoolingGradient, name="max_pooling4d_gradient"):
    """Cotangent of x of `max_pooling4d`. See `max_pooling2d_gradient`."""

    spatial: ClassVar[int] = 4
    data_layout: str = ""

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 3, 2, 2), (2, 3, 4, 5), kernel_size=(1, 1, 2, 3), strides=(1, 1, 2, 2))


class MaxPooling2dGradientWithIndices(MaxPoolingGradientWithIndices, name="max_pooling2d_gradient_with_indices"):
    """Cotangent of x of `max_pooling2d`, given the indices of `max_pooling2d_return_indices`.

    gradient, indices: as the results of that op; output_shape: the shape of its x (sizes, or an integer tensor known at
    compile time). All else, return_indices_mode too, as there. An index that means no element of its window adds
    nothing.
    """

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        at = np.array([[0, 6], [13, 19]], np.int32).reshape(1, 1, 2, 2)
        yield sample((1, 1, 2, 2), at, kernel_size=2, strides=(2, 3), output_shape=(1, 1, 4, 5), data_layout="NCHW")
        inside = np.array([[0, 3], [-1, 2]], np.int32).reshape(1, 2, 2, 1)
        yield sample(
            (1, 2, 2, 1),
            inside,
            kernel_size=2,
            strides=2,
            output_shape=(1, 4, 5, 1),
            return_indices_mode="local_flatten_4d",
        )

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        at = np.zeros((1, 2, 2, 1), np.int32)
        yield (
            "do not tell the elements of a window apart",
            sample(
                (1, 2, 2, 1),
                at,
                kernel_size=2,
                strides=2,
                output_shape=(1, 4, 4, 1),
                return_indices_mode="global_flatten_2d",
            ),
        )
        yield "`output_shape` has 2 entries", sample((1, 2, 2, 1), at, kernel_size=2, strides=2, output_shape=(4, 4))
        yield "`gradient` does not fit", sample((1, 2, 2, 1), at, kernel_size=2, strides=2, output_shape=(1, 6, 4, 1))


class MaxPooling4dGradientWithIndices(MaxPoolingGradientWithIndices, name="max_pooling4d_gradient_with_indices"):
    """Cotangent of x of `max_pooling4d`, given the indices of `max_pooling4d_return_indices`. See
    `max_pooling2d_gradient_with_indices`.
    """

    spatial: ClassVar[int] = 4
    data_layout: str = ""

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        at = np.array([[0, 6], [13, 19]], np.int32).reshape(1, 1, 2, 2)
        yield sample((1, 1, 2, 2), at, kernel_size=(1, 1, 2, 2), strides=(1, 1, 2, 3), output_shape=(1, 1, 4, 5))


class AvgPooling2d(AvgPooling, name="avg_pooling2d"):
    """Average of each window of images.

    Divides by the number of elements inside x, or with include_zero_pad (also spelt count_include_pad) inside x and its
    padding; what `ceil_mode` adds never counts. A window wholly outside gives 0. All else as in `max_pooling2d`.
    """

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 6, 5, 3), kernel_size=(3, 2), strides=2)
        yield sample((1, 2, 7, 6), kernel_size=3, strides=(2, 3), padding=1, ceil_mode=True, data_layout="NCHW")
        yield sample((1, 7, 6, 2), kernel_size=3, strides=2, padding=(1, 2), ceil_mode=True, include_zero_pad=True)
        yield sample((1, 5, 5, 1), kernel_size=2, dilation=2, padding="same", count_include_pad=True)
        yield sample((1, 2, 2, 1), kernel_size=2, padding=3)
        yield Sample(((1, 9, 9, 1),), {"kernel_size": 5}, dtype="f16", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "has dtype i32", sample(np.ones((1, 2, 2, 1), np.int32), kernel_size=2)


class AvgPooling1d(AvgPooling, name="avg_pooling1d"):
    """Average of each window of x [n, w, c] ("NWC", or `data_layout` "NCW"). See `avg_pooling2d`."""

    spatial: ClassVar[int] = 1
    data_layout: str = "NWC"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 7, 3), kernel_size=3, strides=2, padding="same")
        yield sample((2, 3, 7), kernel_size=2, padding=((1, 0),), data_layout="NCW")


class AvgPooling3d(AvgPooling, name="avg_pooling3d"):
    """Average of each window of x [n, d, h, w, c] ("NDHWC", or `data_layout` "NCDHW"). See `avg_pooling2d`."""

    spatial: ClassVar[int] = 3
    data_layout: str = "NDHWC"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((1, 3, 4, 5, 2), kernel_size=2, strides=(1, 2, 2), padding=(0, 1, 0))


class AvgPooling4d(AvgPooling, name="avg_pooling4d"):
    """Average of each window over the last four dims of x. See `avg_pooling2d`."""

    spatial: ClassVar[int] = 4
    data_layout: str = ""

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(
            (2, 3, 4, 5), kernel_size=(1, 2, 2, 3), strides=(1, 1, 2, 2), padding=((0, 0), (0, 1), (1, 0), (1, 1))
        )


class AvgPooling2dGradient(AvgPoolingGradient, name="avg_pooling2d_gradient"):
    """Cotangent of x of `avg_pooling2d`.

    gradient: as the result of the pooling; source: its x (only its shape matters). All else are its attributes.
    """

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 2, 2, 3), (2, 6, 5, 3), kernel_size=(3, 2), strides=2)
        yield sample(
            (1, 2, 4, 3), (1, 2, 7, 6), kernel_size=3, strides=(2, 3), padding=1, ceil_mode=True, data_layout="NCHW"
        )

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`gradient` does not fit", sample((2, 3, 2, 3), (2, 6, 5, 3), kernel_size=(3, 2), strides=2)


class AvgPooling4dGradient(AvgPoolingGradient, name="avg_pooling4d_gradient"):
    """Cotangent of x of `avg_pooling4d`. See `avg_pooling2d_gradient`."""

    spatial: ClassVar[int] = 4
    data_layout: str = ""

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 3, 2, 2), (2, 3, 4, 5), kernel_size=(1, 1, 2, 3), strides=(1, 1, 2, 2))


class L2NormPooling4d(L2NormPooling, name="l2_norm_pooling4d"):
    """Square root of the sum of squares of each window over the last four dims of x. See `max_pooling2d`."""

    spatial: ClassVar[int] = 4
    data_layout: str = ""

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(
            (2, 3, 4, 5), kernel_size=(1, 2, 2, 3), strides=(1, 1, 2, 2), padding=((0, 0), (0, 1), (1, 0), (1, 1))
        )


class L2NormPooling4dGradient(L2NormPoolingGradient, name="l2_norm_pooling4d_gradient"):
    """Cotangent of x of `l2_norm_pooling4d`: x times the sum over its windows of gradient / norm; 0 where the norm is
    0.

    gradient: as the result of the pooling; source: its x. All else are its attributes.
    """

    spatial: ClassVar[int] = 4
    data_layout: str = ""

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(((2, 3, 2, 2), (2, 3, 4, 5)), {"kernel_size": (1, 1, 2, 3), "strides": (1, 1, 2, 2)}, grad=False)


max_pooling1d, max_pooling2d, max_pooling3d, max_pooling4d = (
    F.max_pooling1d,
    F.max_pooling2d,
    F.max_pooling3d,
    F.max_pooling4d,
)
avg_pooling1d, avg_pooling2d, avg_pooling3d, avg_pooling4d = (
    F.avg_pooling1d,
    F.avg_pooling2d,
    F.avg_pooling3d,
    F.avg_pooling4d,
)
max_pooling2d_return_indices, max_pooling4d_return_indices = (
    F.max_pooling2d_return_indices,
    F.max_pooling4d_return_indices,
)
max_pooling2d_gradient, max_pooling4d_gradient = F.max_pooling2d_gradient, F.max_pooling4d_gradient
max_pooling2d_gradient_with_indices = F.max_pooling2d_gradient_with_indices
max_pooling4d_gradient_with_indices = F.max_pooling4d_gradient_with_indices
avg_pooling2d_gradient, avg_pooling4d_gradient = F.avg_pooling2d_gradient, F.avg_pooling4d_gradient
l2_norm_pooling4d, l2_norm_pooling4d_gradient = F.l2_norm_pooling4d, F.l2_norm_pooling4d_gradient
