"""The forms of convolution: forward and its two gradients, in any layout, all of them `conv_general` underneath."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import numpy as np

from stitchwork.errors import OpError
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._convolution import ConvGeneral, convolve, convolve_data_gradient, convolve_weights_gradient
from stitchwork.ops._op import Array, Ints, Op, Operand, operand, require_equal
from stitchwork.ops._windows import Pads, Sizes, padding_of, per_dim, resolve_padding, sizes_of

_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


class Windowed(Op):
    """What all convolutions share: attributes, and the way from the user's layouts to channels last and back.

    The methods that change layouts take a tensor, an array or a shape, and give the same kind of thing.
    """

    spatial: ClassVar[int] = 2
    strides: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1
    data_layout: str = "NHWC"
    weights_layout: str = "HWIO"

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        rank = cls.spatial
        made: dict[str, Any] = {k: per_dim(cls.name, attrs.get(k, 1), rank, k) for k in ("strides", "dilation")}
        made["padding"] = padding_of(cls.name, attrs.get("padding", 0), rank)
        if attrs.get("output_shape") is not None:
            made["output_shape"] = sizes_of(cls.name, attrs["output_shape"], "output_shape")
        return {**attrs, **made, **cls.normalize_layouts(attrs)}

    @classmethod
    def normalize_layouts(cls, attrs: dict[str, Any]) -> dict[str, Any]:
        """The attributes that say how tensors are laid out, checked."""
        data = attrs.get("data_layout", cls.data_layout)
        weights = attrs.get("weights_layout", cls.weights_layout)
        for key, layout, letters in (("data_layout", data, "NC"), ("weights_layout", weights, "IO")):
            if sorted(layout) != sorted(letters + _SPATIAL[cls.spatial]):
                example = cls.data_layout if key == "data_layout" else cls.weights_layout
                raise OpError(
                    cls.name,
                    f"`{key}` does not fit",
                    expected=f"the letters of {example} in any order",
                    got=repr(layout),
                )
        return {"data_layout": data, "weights_layout": weights}

    def check_rank(self, what: str, x: TensorType) -> None:
        """Raises OpError where `x` does not have the rank of this convolution."""
        if x.rank != self.spatial + 2:
            layout = self.weights_layout if what == "weights" else self.data_layout
            raise self.fail(f"`{what}` has rank {x.rank}", expected=f"rank {self.spatial + 2} ({layout})", got=str(x))

    def last(self, x: Any) -> Any:
        """Data as [n, spatial..., c]."""
        return permuted(x, _order(self.data_layout, "N" + _SPATIAL[self.spatial] + "C"))

    def unlast(self, y: Any, like: Sizes) -> Any:
        """Inverse of `last`, for data whose leading dims are those of shape `like`."""
        return permuted(y, _order("N" + _SPATIAL[self.spatial] + "C", self.data_layout))

    def kernel(self, w: Any) -> Any:
        """Weights as [window..., c / groups, f]."""
        return permuted(w, _order(self.weights_layout, _SPATIAL[self.spatial] + "IO"))

    def unkernel(self, w: Any, shape: Sizes) -> Any:
        """Inverse of `kernel`, for weights of this shape."""
        return permuted(w, _order(_SPATIAL[self.spatial] + "IO", self.weights_layout))

    def parts(self, x_last: Sizes) -> Size:
        """The number of groups."""
        return self.groups

    def general(self, x_last: Sizes, kernel: Sizes) -> ConvGeneral:
        """The forward convolution, for data and weights of these (channels last) shapes."""
        sizes, window = x_last[1:-1], kernel[:-2]
        pads = resolve_padding(self.padding, sizes, window, self.strides, self.dilation)
        return ConvGeneral(
            strides=self.strides, padding=pads, input_dilation=(1,) * self.spatial,
            kernel_dilation=self.dilation, groups=self.parts(x_last),
        )  # fmt: skip

    def built(self, x: Value, w: Value) -> Value:
        """The forward convolution of channels-last values."""
        g = self.general(x.shape, w.shape)
        padding: Pads = g.padding
        if any(not isinstance(p, int) for pair in padding for p in pair):  # routines take numbers only
            x = F.pad(x, (0, *(lo for lo, _ in padding), 0), (0, *(hi for _, hi in padding), 0))
            padding = ((0, 0),) * self.spatial
        return F.conv_general(
            x, w, strides=g.strides, padding=padding, kernel_dilation=g.kernel_dilation, groups=g.groups
        )  # fmt: skip

    def full_shape(self, shape: Any, rank: int) -> Sizes:
        """A shape given as attribute, its number of dims checked."""
        if len(shape) != rank:
            raise self.fail(f"`output_shape` has {len(shape)} entries", expected=f"{rank} sizes", got=str(shape))
        return shape


def _order(source: str, target: str) -> Ints:
    return tuple(source.index(letter) for letter in target)


def permuted(x: Any, order: Ints) -> Any:
    """Dims of a tensor, array or shape in another order."""
    if order == tuple(range(len(order))):
        return x
    if isinstance(x, Value):
        return F.permute(x, order)
    return np.transpose(cast("Array", x), order) if isinstance(x, np.ndarray) else tuple(x[d] for d in order)


def reshaped(x: Any, shape: Sequence[Size]) -> Any:
    """A tensor, array or shape with another shape."""
    if isinstance(x, Value):
        return F.reshape(x, tuple(shape))
    return cast("Array", x).reshape(cast("Ints", tuple(shape))) if isinstance(x, np.ndarray) else tuple(shape)


# --- the four forms -------------------------------------------------------------------------------------------------
class Forward(Windowed):
    """A convolution of data with weights."""

    x: Operand = operand("...", "number")
    weights: Operand = operand("...", "number")

    def infer(self, x: TensorType, weights: TensorType) -> TensorType:
        self.check_rank("x", x)
        self.check_rank("weights", weights)
        x_last, kernel = self.last(x.shape), self.kernel(weights.shape)
        made = self.general(x_last, kernel).result_shape(self.name, x_last, kernel)
        return x.with_shape(self.unlast(made, x.shape))

    def numpy(self, x: Array, weights: Array) -> Array:
        x_last, kernel = self.last(x), self.kernel(weights)
        return self.unlast(convolve(self.general(x_last.shape, kernel.shape), x_last, kernel), x.shape)

    def decompose(self, x: Value, weights: Value) -> Value:
        return self.unlast(self.built(self.last(x), self.kernel(weights)), x.shape)

    def vjp(self, ct: Value, x: Value, weights: Value) -> tuple[Value, Value]:
        x_last, kernel, grown = self.last(x), self.kernel(weights), self.last(ct)
        general = self.general(x_last.shape, kernel.shape)
        dx = general.data_gradient(grown, x_last.shape, kernel)
        dw = general.weights_gradient(grown, x_last, kernel.shape)
        return self.unlast(dx, x.shape), self.unkernel(dw, weights.shape)


class DataGradient(Windowed):
    """The cotangent of a convolution's data."""

    gradient: Operand = operand("...", "number")
    weights: Operand = operand("...", "number")
    output_shape: Any

    def infer(self, gradient: TensorType, weights: TensorType) -> TensorType:
        self.check_rank(next(iter(self.operands)), gradient)
        self.check_rank("weights", weights)
        shape = self.shape(gradient.shape, weights.shape)
        check_forward(self, self.last(shape), self.kernel(weights.shape), self.last(gradient.shape))
        return gradient.with_shape(shape)

    def shape(self, gradient: Sizes, weights: Sizes) -> Sizes:
        """The shape of the data."""
        return self.full_shape(self.output_shape, len(gradient))

    def numpy(self, gradient: Array, weights: Array) -> Array:
        shape = self.shape(gradient.shape, weights.shape)
        x_last, kernel = self.last(shape), self.kernel(weights)
        general = self.general(x_last, kernel.shape)
        return self.unlast(convolve_data_gradient(general, self.last(gradient), cast("Ints", x_last), kernel), shape)

    def decompose(self, gradient: Value, weights: Value) -> Value:
        shape = self.shape(gradient.shape, weights.shape)
        x_last, kernel = self.last(shape), self.kernel(weights)
        return self.unlast(self.general(x_last, kernel.shape).data_gradient(self.last(gradient), x_last, kernel), shape)

    def vjp(self, ct: Value, gradient: Value, weights: Value) -> tuple[Value, Value]:
        grown, kernel = self.last(ct), self.kernel(weights)
        dw = self.general(grown.shape, kernel.shape).weights_gradient(self.last(gradient), grown, kernel.shape)
        return self.unlast(self.built(grown, kernel), gradient.shape), self.unkernel(dw, weights.shape)


class WeightsGradient(Windowed):
    """The cotangent of a convolution's weights."""

    gradient: Operand = operand("...", "number")
    x: Operand = operand("...", "number")
    output_shape: Any

    def infer(self, gradient: TensorType, x: TensorType) -> TensorType:
        self.check_rank("gradient", gradient)
        self.check_rank("x", x)
        shape = self.full_shape(self.output_shape, self.spatial + 2)
        check_forward(self, self.last(x.shape), self.kernel(shape), self.last(gradient.shape))
        return x.with_shape(shape)

    def numpy(self, gradient: Array, x: Array) -> Array:
        shape = self.full_shape(self.output_shape, self.spatial + 2)
        x_last, kernel = self.last(x), self.kernel(shape)
        made = convolve_weights_gradient(self.general(x_last.shape, kernel), self.last(gradient), x_last, kernel)
        return self.unkernel(made, shape)

    def decompose(self, gradient: Value, x: Value) -> Value:
        shape = self.full_shape(self.output_shape, self.spatial + 2)
        x_last, kernel = self.last(x), self.kernel(shape)
        return self.unkernel(
            self.general(x_last.shape, kernel).weights_gradient(self.last(gradient), x_last, kernel), shape
        )

    def vjp(self, ct: Value, gradient: Value, x: Value) -> tuple[Value, Value]:
        x_last, kernel, grown = self.last(x), self.kernel(ct), self.last(gradient)
        dx = self.general(x_last.shape, kernel.shape).data_gradient(grown, x_last.shape, kernel)
        return self.unlast(self.built(x_last, kernel), gradient.shape), self.unlast(dx, x.shape)


def check_forward(op: Windowed, x_last: Sizes, kernel: Sizes, y_last: Sizes) -> None:
    """Raises OpError where the forward convolution of these shapes does not give `y_last`; unknown sizes get guards."""
    forward = op.general(x_last, kernel).result_shape(op.name, x_last, kernel)
    fits = len(forward) == len(y_last) and all(
        require_equal(op.name, made, given, "result of the forward convolution")
        for made, given in zip(forward, y_last, strict=True)
    )
    if not fits:
        expected = f"{_text(forward)} as the forward result (channels last)"
        raise op.fail("shapes do not belong to one convolution", expected=expected, got=_text(y_last))


def _text(shape: Sizes) -> str:
    return f"[{', '.join(map(str, shape))}]"
