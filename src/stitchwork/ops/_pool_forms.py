"""What all pooling ops share: attributes, geometry, and the maximum, average and L2 forms with their gradients."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import float32, float64, int32
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Ints, Op, Operand, operand, require_equal
from stitchwork.ops._reduce_window import DivideByCount, ReduceWindow
from stitchwork.ops._sliding import FoldWindows
from stitchwork.ops._values import convert, result_cotangents, wide
from stitchwork.ops._window_positions import WindowArgument, WindowScatter
from stitchwork.ops._windows import (
    Pads,
    Sizes,
    choice,
    dilated,
    padding_of,
    per_dim,
    resolve_padding,
    sizes_of,
    window_counts,
)

_LAYOUTS = {1: ("NWC", "NCW"), 2: ("NHWC", "NCHW"), 3: ("NDHWC", "NCDHW")}
INDEX_MODES = tuple(f"{frame}_flatten_{n}d" for frame in ("global", "local") for n in (1, 2, 3, 4))


class Pooling(Op):
    """Attributes of a pooling op, and the windows of full rank that they mean. `spatial` 4 means the last four dims."""

    spatial: ClassVar[int] = 2
    kernel_size: Any
    strides: Any = 1
    dilation: Any = 1
    padding: Any = 0
    ceil_mode: bool = False
    data_layout: str = "NHWC"

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        rank = cls.spatial
        made: dict[str, Any] = {
            k: per_dim(cls.name, attrs.get(k, 1), rank, k) for k in ("kernel_size", "strides", "dilation")
        }
        made["padding"] = padding_of(cls.name, attrs.get("padding", 0), rank)
        layout = attrs.get("data_layout", cls.data_layout)
        made["data_layout"] = choice(cls.name, layout, _LAYOUTS.get(rank, ("",)), "data_layout")
        if "output_shape" in attrs:
            made["output_shape"] = sizes_of(cls.name, attrs["output_shape"], "output_shape")
        return {**attrs, **made}

    def axes(self, rank: int) -> Ints:
        """The pooled dims of a tensor of this rank."""
        if self.spatial == 4:
            return tuple(range(rank - 4, rank))
        first = 2 if self.data_layout.startswith("NC") else 1
        return tuple(range(first, first + self.spatial))

    def check_rank(self, what: str, x: TensorType) -> None:
        """Raises OpError where the rank does not fit."""
        if self.spatial == 4 and x.rank < 4:
            raise self.fail(f"`{what}` has rank {x.rank}", expected="rank 4 or more", got=str(x))
        if self.spatial < 4 and x.rank != self.spatial + 2:
            raise self.fail(
                f"`{what}` has rank {x.rank}", expected=f"rank {self.spatial + 2} ({self.data_layout})", got=str(x)
            )

    def pads(self, sizes: Sizes) -> Pads:
        """Padding of the pooled dims as the user means it, without what `ceil_mode` adds."""
        return resolve_padding(self.padding, sizes, self.kernel_size, self.strides, self.dilation)

    def geometry(self, shape: Sizes) -> dict[str, Any]:
        """Windows, strides, padding and dilation of full rank."""
        axes = self.axes(len(shape))
        sizes = tuple(shape[a] for a in axes)
        pads = list(self.pads(sizes))
        if self.ceil_mode:
            for d, (n, (lo, hi)) in enumerate(zip(sizes, pads, strict=True)):
                pads[d] = (lo, _grown(n, lo, hi, dilated(self.kernel_size[d], self.dilation[d]), self.strides[d]))
        made: dict[str, Any] = {}
        for key, values, default in (
            ("window", self.kernel_size, 1),
            ("strides", self.strides, 1),
            ("padding", tuple(pads), (0, 0)),
            ("dilation", self.dilation, 1),
        ):
            full: list[Any] = [default] * len(shape)
            for a, v in zip(axes, values, strict=True):
                full[a] = v
            made[key] = tuple(full)
        return made

    def pooled(self, shape: Sizes) -> Sizes:
        """Shape of the result for x of this shape."""
        g = self.geometry(shape)
        return window_counts(self.name, shape, g["padding"], g["window"], g["strides"], g["dilation"])

    def check_pooled(self, what: str, given: TensorType, shape: Sizes) -> None:
        """Raises OpError where `given` does not have the shape of what pooling `shape` gives."""
        made = self.pooled(shape)
        for a, b in zip(made, given.shape, strict=True) if len(made) == given.rank else [(0, 1)]:
            if not require_equal(self.name, a, b, "result of the pooling"):
                raise self.fail(
                    f"`{what}` does not fit",
                    expected=f"[{', '.join(map(str, made))}], the result of the pooling",
                    got=str(given),
                )

    def reduction(self, kind: str, shape: Sizes) -> ReduceWindow:
        """The reduction over windows of x of this shape."""
        g = self.geometry(shape)
        return ReduceWindow(
            kind=kind, window=g["window"], strides=g["strides"], padding=g["padding"],
            base_dilation=(1,) * len(shape), window_dilation=g["dilation"],
        )  # fmt: skip

    def reduced(self, kind: str, x: Value) -> Value:
        """The reduction over windows of x, built."""
        g = self.geometry(x.shape)
        g["window_dilation"] = g.pop("dilation")
        return F.reduce_window(x, kind=kind, **g)


def _grown(n: Size, lo: Size, hi: Size, span: Size, stride: int) -> Size:
    """Padding after, such that the last window is whole: windows start inside the input or before it (as PyTorch)."""
    last = dims.minimum(dims.ceildiv(n + lo + hi - span, stride), dims.floordiv(n + lo - 1, stride))
    return last * stride + span - n - lo


# --- maximum --------------------------------------------------------------------------------------------------------
class MaxPooling(Pooling):
    """The largest element of each window."""

    x: Operand = operand("...", "real")

    def infer(self, x: TensorType) -> TensorType:
        self.check_rank("x", x)
        return x.with_shape(self.pooled(x.shape))

    def numpy(self, x: Array) -> Array:
        return self.reduction("max", x.shape).numpy(x)

    def decompose(self, x: Value) -> Value:
        return self.reduced("max", x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        g = self.geometry(x.shape)
        return (F.window_scatter(ct, F.window_argument(x, **g), sizes=x.shape, **g),)


class Indexed(Pooling):
    """Pooling that speaks of indices."""

    return_indices_mode: str = ""

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        made = super().normalize(types, attrs)
        default = "global_flatten_4d" if cls.spatial == 4 else f"global_flatten_{cls.spatial}d"
        if made["data_layout"].endswith("C"):
            default = f"global_flatten_{cls.spatial + 1}d"
        mode = attrs.get("return_indices_mode") or default
        made["return_indices_mode"] = choice(cls.name, mode, INDEX_MODES, "return_indices_mode")
        return made

    def frame(self, shape: Sizes) -> dict[str, Any]:
        """Geometry with what indices mean."""
        frame, _, n = self.return_indices_mode.split("_")
        return {**self.geometry(shape), "frame": frame, "flatten": min(int(n[0]), len(shape))}


class MaxPoolingReturnIndices(Indexed):
    """The largest element of each window, and where it is."""

    x: Operand = operand("...", "real")

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        self.check_rank("x", x)
        shape = self.pooled(x.shape)
        return x.with_shape(shape), TensorType(int32, shape)

    def numpy(self, x: Array) -> tuple[Array, Array]:
        indices = WindowArgument(kind="max", **self.frame(x.shape)).numpy(_floating(x))
        return self.reduction("max", x.shape).numpy(x), indices

    def decompose(self, x: Value) -> tuple[Value, Value]:
        floating = x if x.dtype.is_float else F.cast(x, float32 if x.dtype.bits <= 16 else float64)
        return self.reduced("max", x), F.window_argument(floating, **self.frame(x.shape))

    def vjp(self, *args: Any) -> tuple[Value | None]:
        *given, x = args
        ct = result_cotangents(given)[0]
        if ct is None:
            return (None,)
        g = self.geometry(x.shape)
        return (F.window_scatter(ct, F.window_argument(x, **g), sizes=x.shape, **g),)


def _floating(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind in "iu" else x


class MaxPoolingGradient(Pooling):
    """Cotangent of x of a maximum pooling; positions are found anew."""

    gradient: Operand = operand("...", "float")
    source: Operand = operand("...", "float")

    def infer(self, gradient: TensorType, source: TensorType) -> TensorType:
        self.check_rank("source", source)
        self.check_pooled("gradient", gradient, source.shape)
        return source

    def numpy(self, gradient: Array, source: Array) -> Array:
        g = self.geometry(source.shape)
        indices = WindowArgument(kind="max", **g).numpy(source)
        return WindowScatter(sizes=source.shape, **g).numpy(gradient, indices)

    def decompose(self, gradient: Value, source: Value) -> Value:
        g = self.geometry(source.shape)
        return F.window_scatter(gradient, F.window_argument(source, **g), sizes=source.shape, **g)

    def vjp(self, ct: Value, gradient: Value, source: Value) -> tuple[Value, None]:
        g = self.geometry(source.shape)
        return F.window_gather(ct, F.window_argument(source, **g), **g), None


class MaxPoolingGradientWithIndices(Indexed):
    """Cotangent of x of a maximum pooling whose positions are known."""

    gradient: Operand = operand("...", "float")
    indices: Operand = operand("...", "i32", "")
    output_shape: Any

    def infer(self, gradient: TensorType, indices: TensorType) -> TensorType:
        self.check_rank("gradient", gradient)
        if len(self.output_shape) != gradient.rank:
            raise self.fail(f"`output_shape` has {len(self.output_shape)} entries", expected=f"{gradient.rank} sizes")
        self.check_pooled("gradient", gradient, self.output_shape)
        self.check_pooled("indices", indices, self.output_shape)
        g = self.frame(self.output_shape)
        if any(k != 1 for k in g["window"][: gradient.rank - g["flatten"]]):
            raise self.fail("indices of this mode do not tell the elements of a window apart",
                            expected="a mode that counts every pooled dim", got=self.return_indices_mode)  # fmt: skip
        return gradient.with_shape(self.output_shape)

    def numpy(self, gradient: Array, indices: Array) -> Array:
        shape = self.output_shape
        return WindowScatter(sizes=shape, **self.frame(shape)).numpy(gradient, indices)

    def decompose(self, gradient: Value, indices: Value) -> Value:
        return F.window_scatter(gradient, indices, sizes=self.output_shape, **self.frame(self.output_shape))

    def vjp(self, ct: Value, gradient: Value, indices: Value) -> tuple[Value, None]:
        return F.window_gather(ct, indices, **self.frame(self.output_shape)), None


# --- average --------------------------------------------------------------------------------------------------------
class Averaging(Pooling):
    """What averages and their gradients share."""

    include_zero_pad: bool = False
    synonyms = {"count_include_pad": "include_zero_pad"}

    def divisor(self, shape: Sizes) -> DivideByCount:
        """What turns sums over windows of x of this shape into averages."""
        bounds: list[tuple[Size, Size]] = [(0, n) for n in shape]
        if self.include_zero_pad:
            axes = self.axes(len(shape))
            for a, (lo, hi) in zip(axes, self.pads(tuple(shape[a] for a in axes)), strict=True):
                bounds[a] = (-lo, shape[a] + hi)
        return DivideByCount(bounds=tuple(bounds), **self.geometry(shape))

    def divided(self, y: Value, shape: Sizes) -> Value:
        """`divisor` applied."""
        op = self.divisor(shape)
        return F.divide_by_count(y, **{a: getattr(op, a) for a in op.attributes()})

    def cotangent(self, ct: Value, shape: Sizes) -> Value:
        """The cotangent of x of this shape."""
        return self.reduction("sum", shape).sum_cotangent(self.divided(ct, shape), shape)


class AvgPooling(Averaging):
    """The average of each window."""

    x: Operand = operand("...", "float")

    def infer(self, x: TensorType) -> TensorType:
        self.check_rank("x", x)
        return x.with_shape(self.pooled(x.shape))

    def numpy(self, x: Array) -> Array:
        sums = self.reduction("sum", x.shape).numpy(x.astype(np.float32) if x.dtype.itemsize < 4 else x)
        return self.divisor(x.shape).numpy(sums).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        return convert(self.divided(self.reduced("sum", wide(x)), x.shape), x.dtype)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (self.cotangent(ct, x.shape),)


class AvgPoolingGradient(Averaging):
    """Cotangent of x of an average pooling."""

    gradient: Operand = operand("...", "float")
    source: Operand = operand("...", "float")

    def infer(self, gradient: TensorType, source: TensorType) -> TensorType:
        self.check_rank("source", source)
        self.check_pooled("gradient", gradient, source.shape)
        return source

    def numpy(self, gradient: Array, source: Array) -> Array:
        rank, g = source.ndim, self.geometry(source.shape)
        each = self.divisor(source.shape).numpy(gradient).reshape(*gradient.shape, *(1,) * rank)
        seen = np.broadcast_to(each, (*gradient.shape, *g["window"]))
        return _fold(source.shape, g, seen).astype(source.dtype)

    def decompose(self, gradient: Value, source: Value) -> Value:
        return self.cotangent(gradient, source.shape)

    def vjp(self, ct: Value, gradient: Value, source: Value) -> tuple[Value, None]:
        return self.divided(self.reduced("sum", ct), source.shape), None


def _fold(shape: Ints, geometry: dict[str, Any], seen: Array) -> Array:
    rest = {k: geometry[k] for k in ("strides", "padding", "dilation")}
    return FoldWindows(sizes=shape, **rest).numpy(seen)


# --- L2 norm --------------------------------------------------------------------------------------------------------
class L2NormPooling(Pooling):
    """The square root of the sum of squares of each window."""

    x: Operand = operand("...", "float")

    def infer(self, x: TensorType) -> TensorType:
        self.check_rank("x", x)
        return x.with_shape(self.pooled(x.shape))

    def numpy(self, x: Array) -> Array:
        grown = x.astype(np.float32) if x.dtype.itemsize < 4 else x
        return np.sqrt(self.reduction("sum", x.shape).numpy(grown * grown)).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        return _norm(self, x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (_norm_cotangent(self, ct, x),)


def _norm(op: Pooling, x: Value) -> Value:
    grown = wide(x)
    return convert(F.sqrt(op.reduced("sum", grown * grown)), x.dtype)


def _norm_cotangent(op: Pooling, ct: Value, x: Value) -> Value:
    norm = _norm(op, x)
    each = F.select(F.equal(norm, 0.0), 0.0, ct / norm)
    return x * op.reduction("sum", x.shape).sum_cotangent(each, x.shape)


class L2NormPoolingGradient(Pooling):
    """Cotangent of x of an L2-norm pooling; 0 where the norm is 0."""

    gradient: Operand = operand("...", "float")
    source: Operand = operand("...", "float")

    def infer(self, gradient: TensorType, source: TensorType) -> TensorType:
        self.check_rank("source", source)
        self.check_pooled("gradient", gradient, source.shape)
        return source

    def numpy(self, gradient: Array, source: Array) -> Array:
        rank, g = source.ndim, self.geometry(source.shape)
        norm = np.sqrt(self.reduction("sum", source.shape).numpy(source * source))
        each = np.divide(gradient, norm, out=np.zeros_like(gradient), where=norm != 0)
        seen = np.broadcast_to(each.reshape(*gradient.shape, *(1,) * rank), (*gradient.shape, *g["window"]))
        return source * _fold(source.shape, g, seen)

    def decompose(self, gradient: Value, source: Value) -> Value:
        return _norm_cotangent(self, gradient, source)
