"""Images as columns of patches, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.ops import _sliding  # defines the ops that these are made of
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, operand, require_equal, sample
from stitchwork.ops._windows import Pads, Sizes, choice, padding_of, per_dim, sizes_of, take_windows, window_counts


class Patches(Op):
    """What both directions share."""

    kernel_size: Any
    strides: Any = 1
    dilation: Any = 1
    padding: Any = 0
    data_layout: str = "NHWC"

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {
            k: per_dim(cls.name, attrs.get(k, 1), 2, k) for k in ("kernel_size", "strides", "dilation")
        }
        padding = padding_of(cls.name, attrs.get("padding", 0), 2)
        made["padding"] = ((0, 0), (0, 0)) if isinstance(padding, str) else padding
        made["data_layout"] = choice(cls.name, attrs.get("data_layout", "NHWC"), ("NHWC", "NCHW"), "data_layout")
        if "output_shape" in attrs:
            made["output_shape"] = sizes_of(cls.name, attrs["output_shape"], "output_shape")
        return {**attrs, **made}

    @property
    def first(self) -> bool:
        """Whether channels come first."""
        return self.data_layout == "NCHW"

    def geometry(self) -> dict[str, Any]:
        """Attributes of the window ops."""
        return {"strides": self.strides, "padding": self.padding, "dilation": self.dilation}

    def counts(self, image: Sizes) -> Sizes:
        """Rows and columns of patches of an image of this shape."""
        sizes = image[2:] if self.first else image[1:3]
        window: Ints = self.kernel_size
        pads: Pads = self.padding
        return window_counts(self.name, sizes, pads, window, self.strides, self.dilation)

    def result(self, image: Sizes) -> Sizes:
        """Shape of the columns of an image of this shape."""
        many = dims.product(self.counts(image))
        area = dims.product(self.kernel_size)
        return (image[0], image[1] * area, many) if self.first else (image[0], many, area * image[3])


class ImToCol(Patches, name="im_to_col"):
    """All kernel_size patches of images, each as one column.

    x [n, c, h, w] ("NCHW") gives [n, c * kh * kw, patches] as PyTorch's `unfold` does; x [n, h, w, c] ("NHWC") gives
    [n, patches, kh * kw * c], one row per patch. Patches are in row-major order, elements of a patch too (channel first
    or last as in the data). Outside x is 0. strides, dilation: an int or two; padding: ints or (before, after) pairs.

    The original does not say how its result is laid out; this is what makes it one matrix product with the weights.
    """

    x: Operand = operand("...", "number")

    def infer(self, x: TensorType) -> TensorType:
        if x.rank != 4:
            raise self.fail(f"`x` has rank {x.rank}", expected=f"rank 4 ({self.data_layout})", got=str(x))
        return x.with_shape(self.result(x.shape))

    def numpy(self, x: Array) -> Array:
        x = x if self.first else np.moveaxis(x, 3, 1)
        seen = take_windows(x, self.kernel_size, self.strides, self.padding, self.dilation)  # [n, c, h, w, p, q]
        n, c = x.shape[:2]
        many, area = seen.shape[2] * seen.shape[3], seen.shape[4] * seen.shape[5]
        if self.first:
            return seen.transpose(0, 1, 4, 5, 2, 3).reshape(n, c * area, many)
        return seen.transpose(0, 2, 3, 4, 5, 1).reshape(n, many, area * c)

    def decompose(self, x: Value) -> Value:
        shape = self.result(x.shape)
        x = x if self.first else F.permute(x, (0, 3, 1, 2))
        seen = F.extract_windows(x, window=self.kernel_size, **self.geometry())
        return F.reshape(F.permute(seen, (0, 1, 4, 5, 2, 3) if self.first else (0, 2, 3, 4, 5, 1)), shape)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (
            F.col_to_im(
                ct, output_shape=x.shape, kernel_size=self.kernel_size, data_layout=self.data_layout, **self.geometry()
            ),
        )

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 4, 5, 3), kernel_size=(2, 3))
        yield sample((1, 2, 5, 4), kernel_size=3, strides=(2, 1), padding=1, data_layout="NCHW")
        yield sample((1, 5, 5, 1), kernel_size=2, dilation=2, padding=((1, 0), (0, 2)))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`x` has rank 3", sample((4, 5, 3), kernel_size=2)
        yield "larger than the padded input", sample((1, 2, 2, 3), kernel_size=3)
        yield "unknown data_layout", sample((1, 4, 4, 3), kernel_size=2, data_layout="HWC")


class ColToIm(Patches, name="col_to_im"):
    """Adjoint of `im_to_col`: every patch element is added to the pixel it came from (PyTorch's `fold`).

    columns: as `im_to_col` gives them for images of shape output_shape ([n, c, h, w] or [n, h, w, c]); the result has
    that shape. kernel_size, strides, dilation, padding and data_layout as there.
    """

    columns: Operand = operand("n k l", "number")
    output_shape: Any

    def infer(self, columns: TensorType) -> TensorType:
        if len(self.output_shape) != 4:
            raise self.fail(
                f"`output_shape` has {len(self.output_shape)} entries", expected=f"4 sizes ({self.data_layout})"
            )
        for made, given in zip(self.result(self.output_shape), columns.shape, strict=True):
            if not require_equal(self.name, made, given, "columns of the image"):
                raise self.fail(
                    "columns do not fit the image", expected=str(self.result(self.output_shape)), got=str(columns)
                )
        return columns.with_shape(self.output_shape)

    def _apart(self) -> Sizes:
        """Shape of the columns taken apart."""
        rows = self.counts(self.output_shape)
        n = self.output_shape[0]
        if self.first:
            return (n, self.output_shape[1], *self.kernel_size, *rows)
        return (n, *rows, *self.kernel_size, self.output_shape[3])

    def numpy(self, columns: Array) -> Array:
        apart = columns.reshape(cast("Ints", self._apart()))
        apart = apart.transpose((0, 1, 4, 5, 2, 3) if self.first else (0, 5, 1, 2, 3, 4))
        sizes = self.output_shape[2:] if self.first else self.output_shape[1:3]
        made = _sliding.FoldWindows(sizes=sizes, **self.geometry()).numpy(apart)
        return made if self.first else np.moveaxis(made, 1, 3).copy()

    def decompose(self, columns: Value) -> Value:
        apart = F.reshape(columns, self._apart())
        apart = F.permute(apart, (0, 1, 4, 5, 2, 3) if self.first else (0, 5, 1, 2, 3, 4))
        sizes = self.output_shape[2:] if self.first else self.output_shape[1:3]
        made = F.fold_windows(apart, sizes=sizes, **self.geometry())
        return made if self.first else F.permute(made, (0, 2, 3, 1))

    def vjp(self, ct: Value, columns: Value) -> tuple[Value]:
        return (F.im_to_col(ct, kernel_size=self.kernel_size, data_layout=self.data_layout, **self.geometry()),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 9, 18), kernel_size=(2, 3), output_shape=(2, 4, 5, 3))
        yield sample(
            (1, 18, 12), kernel_size=3, strides=(2, 1), padding=1, data_layout="NCHW", output_shape=(1, 2, 5, 4)
        )

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "columns do not fit", sample((2, 8, 18), kernel_size=(2, 3), output_shape=(2, 4, 5, 3))
        yield "`output_shape` has 2 entries", sample((2, 9, 18), kernel_size=(2, 3), output_shape=(4, 5))


im_to_col, col_to_im = F.im_to_col, F.col_to_im
