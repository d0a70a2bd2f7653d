"""Which element of each window is meant: positions of extremes, and choosing and scattering by them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stitchwork.ir.dtypes import int32
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, as_index, cast, reduce, total, where
from stitchwork.ops import _sliding
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, operand, require_equal, sample
from stitchwork.ops._windows import (
    Pads,
    Sizes,
    flat_index,
    masked,
    owners,
    position,
    take_windows,
    unflatten,
    wide,
    widened,
    window_axes,
    window_counts,
)


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
