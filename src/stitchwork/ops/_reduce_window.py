"""Reductions over sliding windows, the positions of extremes in them, and what their gradients need."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import DType, as_dtype, highest, lowest
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, as_index, cast, const, maximum, minimum, reduce, where
from stitchwork.ops import _sliding
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, operand, require_at_least, sample
from stitchwork.ops._windows import (
    Pads,
    Sizes,
    choice,
    dilated,
    padding_of,
    per_dim,
    position,
    positions,
    spread,
    take_windows,
    transposed_padding,
    wide,
    widened,
    window_axes,
    window_counts,
)

KINDS = ("sum", "product", "max", "min")


def identity(kind: str, dtype: DType) -> Any:
    """What leaves a reduction as it is."""
    return (
        {"sum": 0, "product": 1}[kind] if kind in ("sum", "product") else (lowest if kind == "max" else highest)(dtype)
    )


class ReduceWindow(Op, name="reduce_window", internal=True):
    """Combine the elements of each window: y[o] = kind over p of x'[o * stride + p * window_dilation - before].

    Windows have the rank of x; x' is x spread base_dilation apart, with the identity of the reduction between and
    outside. kind: sum, product, max, min (NaN where the window holds one). As StableHLO's reduce_window.
    """

    x: Operand = operand("...", "number")
    kind: str
    window: Any
    strides: Any = 1
    padding: Any = 0
    base_dilation: Any = 1
    window_dilation: Any = 1

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        rank = types[0].rank
        keys = ("window", "strides", "base_dilation", "window_dilation")
        made: dict[str, Any] = {k: per_dim(cls.name, attrs.get(k, 1), rank, k) for k in keys}
        padding = padding_of(cls.name, attrs.get("padding", 0), rank)
        made["padding"] = padding if not isinstance(padding, str) else ((0, 0),) * rank
        return {**attrs, **made, "kind": choice(cls.name, attrs["kind"], KINDS, "kind")}

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype.is_complex and self.kind in ("max", "min"):
            raise self.fail(f"complex numbers have no {self.kind}", got=str(x))
        sizes: list[Size] = []
        for n, d in zip(x.shape, self.base_dilation, strict=True):
            if d != 1 and not isinstance(n, int):
                require_at_least(self.name, n, 1, "size of a dim that is spread apart")
            sizes.append(dilated(n, d))
        return x.with_shape(
            window_counts(self.name, tuple(sizes), self.padding, self.window, self.strides, self.window_dilation)
        )

    def numpy(self, x: Array) -> Array:
        fill = identity(self.kind, as_dtype(x.dtype))
        pads: Any = self.padding
        grown = spread(x, self.base_dilation, 0, fill)
        seen = wide(take_windows(grown, self.window, self.strides, pads, self.window_dilation, fill=fill))
        function: Any = {"sum": np.sum, "product": np.prod, "max": np.max, "min": np.min}[self.kind]
        axes = tuple(range(x.ndim, 2 * x.ndim))
        typed = {"dtype": seen.dtype} if self.kind in ("sum", "product") else {}
        return np.asarray(function(seen, axis=axes, **typed)).astype(x.dtype)

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        p = tuple(
            axis if k != 1 else as_index(0) for axis, k in zip(window_axes(self.window), self.window, strict=True)
        )
        over = [axis for axis in p if isinstance(axis, Axis)]
        index: list[Expr] = []
        hit: Expr | None = None
        for o, s, (lo, _), q, d, r in zip(
            out, self.strides, self.padding, p, self.window_dilation, self.base_dilation, strict=True
        ):
            at = position(o, s, lo, q, d)
            if r != 1:
                fits = (at % r).eq(0)
                hit = fits if hit is None else hit & fits
            index.append(at // r)
        fill = identity(self.kind, x.dtype)
        padless = all(pair == (0, 0) for pair in self.padding) and hit is None
        value = x[tuple(index)] if padless else x.at(*index, boundary="constant", fill=fill)
        value = value if hit is None else where(hit, value, const(fill, x.dtype))
        return cast(reduce(self.kind, widened(value), *over), x.dtype) if over else value

    def permuted(self, permutation: Ints) -> Op:
        keys = ("window", "strides", "padding", "base_dilation", "window_dilation")
        return dataclasses.replace(self, **{k: tuple(getattr(self, k)[d] for d in permutation) for k in keys})

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        if self.kind == "sum":
            return (self.sum_cotangent(ct, x.shape),)
        if any(d != 1 for d in self.base_dilation):
            raise self.fail(f"no gradient of {self.kind} with base_dilation", hint="pad between the elements first")
        geometry = {
            "window": self.window,
            "strides": self.strides,
            "padding": self.padding,
            "dilation": self.window_dilation,
        }
        if self.kind == "product":
            seen = F.extract_windows(x, fill=1, **geometry)
            back = others(seen, x.rank) * F.reshape(ct, (*ct.shape, *(1,) * x.rank))
            return (_sliding.windows_cotangent(back, x.shape, boundary="constant", **geometry),)
        indices = F.window_argument(x, kind=self.kind, **geometry)
        return (F.window_scatter(ct, indices, sizes=x.shape, **geometry),)

    def sum_cotangent(self, ct: Value, shape: Sizes) -> Value:
        """Cotangent of x, of shape `shape`, where the reduction is a sum: itself a sum over windows of ct."""
        geometry = zip(
            shape,
            self.base_dilation,
            ct.shape,
            self.window,
            self.strides,
            self.window_dilation,
            self.padding,
            strict=True,
        )
        pads = tuple(transposed_padding(dilated(n, r), o, k, s, d, pair) for n, r, o, k, s, d, pair in geometry)
        return F.reduce_window(
            ct, kind="sum", window=self.window, strides=self.base_dilation, padding=pads,
            base_dilation=self.strides, window_dilation=self.window_dilation,
        )  # fmt: skip

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for kind in KINDS:
            yield sample((1, 6, 5), kind=kind, window=(1, 3, 2), strides=(1, 2, 1), padding=((0, 0), (1, 2), (0, 1)))
            yield sample((7,), kind=kind, window=3, window_dilation=2)
        yield sample((4, 3), kind="sum", window=(3, 2), base_dilation=(2, 3), padding=((2, 1), (0, 0)), strides=2)
        yield Sample(((4,),), {"kind": "max", "window": 2, "base_dilation": 3, "padding": ((1, 1),)}, grad=False)
        yield sample((3, 1), kind="max", window=(2, 1))
        yield sample((), kind="sum", window=())
        for dtype in ("i32", "u8", "f16"):
            for kind in ("sum", "max"):
                yield Sample(((5, 4),), {"kind": kind, "window": 2, "padding": 1}, dtype=dtype, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "larger than the padded input", sample((2, 3), kind="sum", window=(3, 1))
        yield "unknown kind", sample((2, 3), kind="mean", window=(1, 1))
        yield "`window` has 1 entries", sample((2, 3), kind="sum", window=(1,))


def others(seen: Value, rank: int) -> Value:
    """For each element of a window (the last `rank` dims) the product of the others, without dividing."""
    lead = seen.shape[: seen.rank - rank]
    flat = F.reshape(seen, (*lead, dims.product(seen.shape[seen.rank - rank :])))
    before = F.cumulative_product(flat, axis=-1, exclusive=True)
    after = F.cumulative_product(flat, axis=-1, exclusive=True, reverse=True)
    return F.reshape(before * after, seen.shape)


class DivideByCount(Op, name="divide_by_count", internal=True):
    """y[o] divided by how many elements of window o lie inside `bounds` (at least 1): sums of windows become averages.

    bounds: (first, end) per dim, in positions of the windows' input.
    """

    y: Operand = operand("...", "float")
    bounds: Pads
    window: Ints
    strides: Ints
    padding: Pads
    dilation: Ints

    def infer(self, y: TensorType) -> TensorType:
        return y

    def numpy(self, y: Array) -> Array:
        made = wide(y)
        for d, k in enumerate(self.window):
            lo, first, end = (int(n) for n in (self.padding[d][0], *self.bounds[d]))
            at = positions(y.shape[d])[:, None] * self.strides[d] + positions(k) * self.dilation[d] - lo
            many = np.maximum(((at >= first) & (at < end)).sum(1), 1).astype(made.dtype)
            made = made / many.reshape(-1, *(1,) * (y.ndim - d - 1))
        return made.astype(y.dtype)

    def compute(self, out: tuple[Axis, ...], y: Buffer) -> Expr:
        many = as_index(1)
        for o, (first, end), k, s, pair, d in zip(
            out, self.bounds, self.window, self.strides, self.padding, self.dilation, strict=True
        ):
            if pair == (0, 0):
                many = many * k
                continue
            start = o * s - as_index(pair[0])
            left = maximum((as_index(first) - start + (d - 1)) // d, 0)
            right = minimum((as_index(end) - start + (d - 1)) // d, k)
            many = many * maximum(right - left, 1)
        value = widened(y[out])
        return cast(value / cast(many, value.dtype), y.dtype)

    def vjp(self, ct: Value, y: Value) -> tuple[Value]:
        kept = ("bounds", "window", "strides", "padding", "dilation")
        return (F.divide_by_count(ct, **{k: getattr(self, k) for k in kept}),)

    def permuted(self, permutation: Ints) -> Op:
        keys = ("bounds", "window", "strides", "padding", "dilation")
        return dataclasses.replace(self, **{k: tuple(getattr(self, k)[d] for d in permutation) for k in keys})

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(
            (3, 4), bounds=((0, 5), (-1, 5)), window=(3, 2), strides=(2, 1), padding=((1, 1), (1, 0)), dilation=(1, 1)
        )
        yield sample((2,), bounds=((0, 4),), window=(3,), strides=(1,), padding=((0, 0),), dilation=(1,))
        yield sample((6,), bounds=((0, 4),), window=(3,), strides=(2,), padding=((6, 6),), dilation=(2,))
