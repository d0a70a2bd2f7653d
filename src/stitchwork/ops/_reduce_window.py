"""Reductions over sliding windows, the positions of extremes in them, and what their gradients need."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import DType, as_dtype, highest, int32, lowest
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, as_index, cast, const, maximum, minimum, reduce, total, where
from stitchwork.ops import _sliding
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, operand, require_at_least, require_equal, sample
from stitchwork.ops._windows import (
    Pads,
    Sizes,
    choice,
    dilated,
    flat_index,
    masked,
    owners,
    padding_of,
    per_dim,
    position,
    positions,
    spread,
    take_windows,
    transposed_padding,
    unflatten,
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


# --- positions ------------------------------------------------------------------------------------------------------
class Positions(Op):
    """Ops that know which element of each window is meant, by an index.

    frame "local": the row-major position inside the window; "global": inside x. Either counts the innermost `flatten`
    dims only (0: all). -1 means none.
    """

    window: Ints
    strides: Ints
    padding: Pads
    dilation: Ints
    frame: str = "local"
    flatten: int = 0

    def encode(self, out: Sequence[Expr], inside: Sequence[Expr], sizes: Sizes) -> Expr:
        """The index that means element `inside` of window `out`."""
        index = list(inside)
        if self.frame == "global":
            index = [
                position(o, s, lo, q, d)
                for o, s, (lo, _), q, d in zip(out, self.strides, self.padding, inside, self.dilation, strict=True)
            ]
        shape = sizes if self.frame == "global" else self.window
        first = len(index) - (self.flatten or len(index))
        return flat_index(index[first:], shape[first:])

    def encoded(self, counts: Ints, sizes: Sizes) -> Array:
        """`encode` for all windows and elements: [counts..., window...]."""
        rank = len(self.window)
        grid = np.indices((*counts, *self.window))
        index: list[Any] = list(grid[rank:])
        if self.frame == "global":
            index = [
                grid[d] * self.strides[d] + index[d] * self.dilation[d] - np.asarray(self.padding[d][0])
                for d in range(rank)
            ]
        shape: Any = sizes if self.frame == "global" else self.window
        flat = np.zeros(grid.shape[1:], np.int64)
        for d in range(rank - (self.flatten or rank), rank):
            flat = flat * shape[d] + index[d]
        return flat

    def geometry(self) -> dict[str, Any]:
        """The attributes shared with other ops of this kind."""
        return {k: getattr(self, k) for k in ("window", "strides", "padding", "dilation", "frame", "flatten")}

    def counts(self, sizes: Sizes) -> Sizes:
        """How many windows x of these sizes has."""
        return window_counts(self.name, sizes, self.padding, self.window, self.strides, self.dilation)


class WindowArgument(Positions, name="window_argument", internal=True):
    """Which element of each window is the first largest or smallest, as i32. NaN and what lies outside are never
    chosen.
    """

    x: Operand = operand("...", "float")
    kind: str = "max"

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(int32, self.counts(x.shape))

    def numpy(self, x: Array) -> Array:
        pads: Any = self.padding
        seen = wide(take_windows(x, self.window, self.strides, pads, self.dilation, fill=np.nan))
        counts = seen.shape[: x.ndim]
        flat = seen.reshape(*counts, int(np.prod(self.window)))
        best = first_extreme(flat, self.kind)
        codes = np.broadcast_to(self.encoded(counts, x.shape), seen.shape).reshape(flat.shape)
        chosen = np.take_along_axis(codes, np.maximum(best, 0)[..., None], -1)[..., 0]
        return np.where(best < 0, -1, chosen).astype(np.int32)

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        p = window_axes(self.window)
        geometry = zip(out, self.strides, self.padding, p, self.dilation, strict=True)
        index = [position(o, s, lo, q, d) for o, s, (lo, _), q, d in geometry]
        best = reduce(f"arg{self.kind}", x.at(*index, boundary="constant", fill=float("nan")), *p)
        code = self.encode(out, unflatten(best, self.window), x.shape)
        return cast(where(best < 0, -1, code), int32)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        base: dict[str, Any] = {
            "window": (1, 2, 3),
            "strides": (1, 2, 1),
            "padding": ((0, 0), (1, 0), (1, 2)),
            "dilation": (1, 1, 2),
        }
        yield Sample(((2, 5, 6),), base, grad=False)
        yield Sample(((2, 5, 6),), {**base, "kind": "min", "frame": "global", "flatten": 2}, grad=False)
        yield Sample(((2, 5, 6),), {**base, "frame": "global"}, grad=False)
        yield Sample(((2, 5, 6),), {**base, "flatten": 1}, grad=False)
        nans = np.array([np.nan, np.nan, 1, 1, 0, np.nan], np.float32)
        yield Sample((nans,), {"window": (2,), "strides": (1,), "padding": ((1, 1),), "dilation": (1,)}, grad=False)


def first_extreme(flat: Array, kind: str) -> Array:
    """Position of the first extreme along the last axis; NaN is never chosen, -1 where there is nothing to choose."""
    valid = ~np.isnan(flat) if flat.dtype.kind == "f" else np.ones(flat.shape, np.bool_)
    order = flat if kind == "max" else -flat.astype(np.float64)
    worst = np.where(valid, order, -np.inf)
    chosen = valid & (worst == worst.max(-1, keepdims=True, initial=-np.inf))
    return np.where(chosen.any(-1), chosen.argmax(-1), -1)


class WindowScatter(Positions, name="window_scatter", internal=True):
    """Adjoint of choosing one element of each window: y[o] is added to the element that indices[o] means."""

    y: Operand = operand("...", "float")
    indices: Operand = operand("...", "i32", "")
    sizes: Sizes = ()

    def infer(self, y: TensorType, indices: TensorType) -> TensorType:
        for made, of_y, of_index in zip(self.counts(self.sizes), y.shape, indices.shape, strict=True):
            for given in (of_y, of_index):
                if not require_equal(self.name, made, given, "number of windows"):
                    raise self.fail(
                        "the number of windows does not fit", expected=str(made), got=f"y: {y}  indices: {indices}"
                    )
        return y.with_shape(self.sizes)

    def numpy(self, y: Array, indices: Array) -> Array:
        rank = y.ndim
        hit = self.encoded(y.shape, self.sizes) == indices.reshape(*y.shape, *(1,) * rank)
        seen = np.where(hit, wide(y).reshape(*y.shape, *(1,) * rank), 0).astype(wide(y).dtype)
        fold = _sliding.FoldWindows(
            sizes=self.sizes, strides=self.strides, padding=self.padding, dilation=self.dilation
        )
        return fold.numpy(seen).astype(y.dtype)

    def compute(self, out: tuple[Axis, ...], y: Buffer, indices: Buffer) -> Expr:
        p = window_axes(self.window)
        index, whole = owners(out, p, self.strides, self.padding, self.dilation)
        hit = as_index(indices.at(*index, boundary="constant", fill=-1)).eq(self.encode(index, p, self.sizes))
        hit = hit if whole is None else hit & whole
        return cast(total(masked(hit, widened(y.at(*index, boundary="constant"))), *p), y.dtype)

    def vjp(self, ct: Value, y: Value, indices: Value) -> tuple[Value, None]:
        return F.window_gather(ct, indices, **self.geometry()), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        base: dict[str, Any] = {"window": (2, 3), "strides": (2, 1), "padding": ((1, 0), (1, 1)), "dilation": (1, 1)}
        where_ = np.array([[2, 0, 1], [5, 4, 3]], np.int32)
        yield sample((2, 3), where_, sizes=(4, 3), **base)
        at = np.array([[0, 0, 1], [3, 5, 8]], np.int32)
        yield sample((2, 3), at, sizes=(4, 3), frame="global", **base)


class WindowGather(Positions, name="window_gather", internal=True):
    """The element of each window that `indices` means; 0 where it means none."""

    x: Operand = operand("...", "float")
    indices: Operand = operand("...", "i32", "")

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        for made, given in zip(self.counts(x.shape), indices.shape, strict=True):
            if not require_equal(self.name, made, given, "number of windows"):
                raise self.fail("the number of windows does not fit", expected=str(made), got=str(indices))
        return x.with_shape(indices.shape)

    def numpy(self, x: Array, indices: Array) -> Array:
        pads: Any = self.padding
        seen = wide(take_windows(x, self.window, self.strides, pads, self.dilation))
        hit = self.encoded(indices.shape, x.shape) == indices.reshape(*indices.shape, *(1,) * x.ndim)
        return np.where(hit, seen, 0).sum(tuple(range(x.ndim, 2 * x.ndim))).astype(x.dtype)

    def compute(self, out: tuple[Axis, ...], x: Buffer, indices: Buffer) -> Expr:
        p = window_axes(self.window)
        geometry = zip(out, self.strides, self.padding, p, self.dilation, strict=True)
        index = [position(o, s, lo, q, d) for o, s, (lo, _), q, d in geometry]
        hit = as_index(indices[out]).eq(self.encode(out, p, x.shape))
        return cast(total(masked(hit, widened(x.at(*index, boundary="constant"))), *p), x.dtype)

    def vjp(self, ct: Value, x: Value, indices: Value) -> tuple[Value, None]:
        return F.window_scatter(ct, indices, sizes=x.shape, **self.geometry()), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        where_ = np.array([[2, 0, 1], [5, 4, 3]], np.int32)
        yield sample((4, 3), where_, window=(2, 3), strides=(2, 1), padding=((1, 0), (1, 1)), dilation=(1, 1))


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
