"""The one convolution that all others are written with, and its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.errors import OpError
from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, as_index, cast, extent, total
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Ints, Lib, Op, Operand, Sample, operand, require_at_least, require_equal, sample
from stitchwork.ops._subpixel import by_phases
from stitchwork.ops._windows import (
    Sizes,
    dilated,
    masked,
    padding_of,
    per_dim,
    positions,
    spread,
    take_windows,
    transposed_padding,
    wide,
    widened,
    window_axes,
    window_counts,
)


def _plain(op: ConvGeneral, x: TensorType, w: TensorType) -> bool:
    known = all(isinstance(p, int) for pair in op.padding for p in pair)
    return known and all(d == 1 for d in op.input_dilation) and op.batch_groups == 1


class ConvGeneral(Op, name="conv_general", internal=True):
    """Slide `w` over `x`, both with channels last (cross-correlation; the window is not flipped):

    y[n, o..., f] = sum over p..., c of  x'[n, o * stride + p * kernel_dilation - before, g * (C / groups) + c] *
    w[p..., c, f]

    x [n, spatial..., C], w [window..., C / groups, F], result [n, counts..., F]; x' is x with its spatial dims spread
    input_dilation apart and zero outside; g = f // (F / groups) is the group of f. Groups split the channels;
    batch_groups split the batch instead: group g of f reads the g-th part of the batch (what gradients of grouped
    convolutions need). Padding may be negative. As StableHLO's convolution without window reversal.
    """

    x: Operand = operand("...", "number")
    w: Operand = operand("...", "number")
    strides: Any = 1
    padding: Any = 0
    input_dilation: Any = 1
    kernel_dilation: Any = 1
    groups: Size = 1
    batch_groups: Size = 1

    library = (Lib("conv", on="cpu", dtypes="f32 f64", when=_plain),)

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        rank = types[0].rank - 2
        made = {
            k: per_dim(cls.name, attrs.get(k, 1), rank, k) for k in ("strides", "input_dilation", "kernel_dilation")
        }
        padding = padding_of(cls.name, attrs.get("padding", 0), rank)
        return {**attrs, **made, "padding": padding if not isinstance(padding, str) else ((0, 0),) * rank}

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        return x.with_shape(self.result_shape(self.name, x.shape, w.shape))

    def result_shape(self, name: str, x: Sizes, w: Sizes) -> Sizes:
        """Shape of the result for operands of these shapes. Raises OpError in the name of the op called `name`."""
        got = f"x: [{', '.join(map(str, x))}]  w: [{', '.join(map(str, w))}]"
        if len(x) < 3 or len(w) != len(x):
            raise OpError(
                name, "ranks do not fit", expected="one rank for x (n, spatial..., c) and w (window..., c, f)", got=got
            )
        n, *sizes, c = x
        *window, c_group, f = w
        if not require_equal(name, c, c_group * self.groups, "channels of x == channels of w * groups"):
            raise OpError(
                name, "channels do not fit", expected=f"{c_group} * {self.groups} groups channels in x", got=got
            )
        if self.groups != 1 and self.batch_groups != 1:
            raise OpError(name, "both `groups` and `batch_groups`", expected="one of them 1")
        _check_divides(name, f, self.groups, "features", "groups")
        _check_divides(name, f, self.batch_groups, "features", "batch groups")
        _check_divides(name, n, self.batch_groups, "batch", "batch groups")
        spread_sizes: list[Size] = []
        for size, d in zip(sizes, self.input_dilation, strict=True):
            if d != 1 and not isinstance(size, int):
                require_at_least(name, size, 1, "size of a dim that is spread apart")
            spread_sizes.append(dilated(size, d))
        counts = window_counts(
            name, tuple(spread_sizes), self.padding, tuple(window), self.strides, self.kernel_dilation
        )
        return (dims.floordiv(n, self.batch_groups), *counts, f)

    def numpy(self, x: Array, w: Array) -> Array:
        return convolve(self, x, w)

    def compute(self, out: tuple[Axis, ...], x: Buffer, w: Buffer) -> Expr:
        n, *place, f = out
        *window, c_group, features = w.shape
        p = window_axes(tuple(window))
        c = Axis(c_group, "c")
        batch: Expr = n
        channel: Expr = c
        if self.groups != 1:
            channel = f // extent(dims.floordiv(features, self.groups)) * extent(c_group) + c
        if self.batch_groups != 1:
            part = dims.floordiv(x.shape[0], self.batch_groups)
            batch = f // extent(dims.floordiv(features, self.batch_groups)) * extent(part) + n
        index: list[Expr] = []
        hit: Expr | None = None
        for o, q, s, (lo, _), d, r in zip(
            place, p, self.strides, self.padding, self.kernel_dilation, self.input_dilation, strict=True
        ):
            at = o * s + q * d - as_index(lo)
            if r != 1:
                fits = (at % r).eq(0)
                hit = fits if hit is None else hit & fits
            index.append(at // r)
        inside = self._padless()
        value = x[(batch, *index, channel)] if inside else x.at(batch, *index, channel, boundary="constant")
        return cast(total(masked(hit, widened(value) * widened(w[(*p, c, f)])), *p, c), x.dtype)

    def _padless(self) -> bool:
        return all(pair == (0, 0) for pair in self.padding) and all(r == 1 for r in self.input_dilation)

    def simplify(self, x: Value, w: Value) -> Value | None:
        return by_phases(self, x, w, self.result_shape(self.name, x.shape, w.shape))

    def vjp(self, ct: Value, x: Value, w: Value) -> tuple[Value, Value]:
        return self.data_gradient(ct, x.shape, w), self.weights_gradient(ct, x, w.shape)

    def data_gradient(self, ct: Value, x_shape: Sizes, w: Value) -> Value:
        """The cotangent of x: windows of `ct`, spread `strides` apart, with the kernel flipped and its channels
        swapped.
        """
        rank = ct.rank - 2
        spatial = tuple(range(rank))
        c_group, features = w.shape[-2:]
        groups = self.groups if self.groups != 1 else self.batch_groups
        w = F.reverse(w, axes=spatial)
        if groups == 1:
            w = F.permute(w, (*spatial, rank + 1, rank))
        else:  # [window, c, f] -> [window, f / groups, groups * c]
            parts = dims.floordiv(features, groups)
            w = F.permute(F.reshape(w, (*w.shape[:rank], c_group, groups, parts)), (*spatial, rank + 2, rank + 1, rank))
            w = F.reshape(w, (*w.shape[:rank], parts, groups * c_group))
        pads = tuple(
            transposed_padding(dilated(n, r), o, k, s, d, pair)
            for n, r, o, k, s, d, pair in zip(
                x_shape[1:-1], self.input_dilation, ct.shape[1:-1], w.shape[:rank],
                self.strides, self.kernel_dilation, self.padding, strict=True,
            )
        )  # fmt: skip
        made = F.conv_general(
            ct, w, strides=self.input_dilation, padding=pads, input_dilation=self.strides,
            kernel_dilation=self.kernel_dilation, groups=groups,
        )  # fmt: skip
        if self.batch_groups != 1:  # [n / groups, spatial, groups * c] -> [n, spatial, c]
            made = F.reshape(made, (*made.shape[:-1], self.batch_groups, x_shape[-1]))
            made = F.permute(made, (rank + 1, 0, *range(1, rank + 1), rank + 2))
        return made if made.shape == x_shape else F.reshape(made, x_shape)

    def weights_gradient(self, ct: Value, x: Value, w_shape: Sizes) -> Value:
        """The cotangent of w: `ct` slides over `x`, the batch being summed over in the place of channels."""
        rank = ct.rank - 2
        pads: list[tuple[Size, Size]] = []
        for n, r, o, k, s, d, (lo, _) in zip(
            x.shape[1:-1], self.input_dilation, ct.shape[1:-1], w_shape[:rank],
            self.strides, self.kernel_dilation, self.padding, strict=True,
        ):  # fmt: skip
            needed = dilated(o, s) + dilated(k, d) - 1
            pads.append((lo, needed - dilated(n, r) - lo))
        made = F.conv_general(
            F.permute(x, (rank + 1, *range(1, rank + 1), 0)),
            F.permute(ct, (*range(1, rank + 1), 0, rank + 1)),
            strides=self.kernel_dilation, padding=tuple(pads), input_dilation=self.input_dilation,
            kernel_dilation=self.strides, groups=self.batch_groups, batch_groups=self.groups,
        )  # fmt: skip
        made = F.permute(made, (*range(1, rank + 1), 0, rank + 1))
        return made if made.shape == w_shape else F.reshape(made, w_shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 6, 5, 3), (3, 2, 3, 4))
        yield sample((1, 7, 7, 2), (3, 3, 2, 5), strides=(2, 1), padding=((1, 0), (2, 1)))
        yield sample((2, 9, 4), (3, 2, 6), strides=2, groups=2, kernel_dilation=2)
        yield sample((2, 5, 4), (3, 4, 2), input_dilation=3, padding=((2, 3),), strides=2)
        yield sample((4, 6, 3), (2, 3, 4), batch_groups=2)
        yield sample((1, 4, 3, 5, 2), (2, 2, 3, 2, 3), padding=1, strides=(1, 2, 2))
        yield sample((1, 6, 6, 2), (3, 3, 2, 2), strides=3)  # the stride does not divide
        yield sample((1, 6, 6, 2), (3, 3, 2, 2), padding=((-1, 1), (0, -2)))
        yield sample((1, 1, 1, 1), (1, 1, 1, 1))
        yield sample((0, 4, 4, 2), (3, 3, 2, 2))
        yield Sample(((1, 5, 2), (2, 2, 3)), {}, dtype="i32", grad=False)
        yield Sample(((1, 5, 2), (2, 2, 3)), {}, dtype="f16", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "channels do not fit", sample((1, 8, 8, 3), (3, 3, 4, 16))
        yield "ranks do not fit", sample((8, 8, 3), (3, 3, 3, 16))
        yield "larger than the padded input", sample((1, 2, 2, 3), (5, 5, 3, 4))
        yield "do not divide into groups", sample((1, 4, 4, 4), (1, 1, 2, 3), groups=2)
        yield "`strides` is out of range", sample((1, 4, 4, 4), (1, 1, 4, 3), strides=0)


def _check_divides(name: str, n: Size, parts: Size, what: str, of: str) -> None:
    if isinstance(parts, int) and parts < 1:
        raise OpError(name, f"`{of}` is out of range", expected=">= 1", got=str(parts))
    if not require_equal(name, dims.mod(n, parts), 0, f"{what} divide into {of}"):
        raise OpError(name, f"{what} do not divide into {of}", expected=f"a multiple of {parts}", got=str(n))


# --- on arrays ------------------------------------------------------------------------------------------------------
def convolve(op: ConvGeneral, x: Array, w: Array) -> Array:
    """The definition of `conv_general`."""
    rank, features = x.ndim - 2, w.shape[-1]
    seen = _seen(op, wide(x), w.shape[:rank])
    kernel = wide(w)
    parts = int(op.groups) * int(op.batch_groups)
    each = features // parts
    over = ([1, *range(2 + rank, 2 + 2 * rank)], [rank, *range(rank)])
    made = [np.tensordot(_part(op, seen, g), kernel[..., g * each : (g + 1) * each], over) for g in range(parts)]
    return np.concatenate(made, -1).astype(x.dtype)


def _seen(op: ConvGeneral, x: Array, window: Ints) -> Array:
    """What each window reads: [n, c, counts..., window...]."""
    pads: Any = op.padding
    return take_windows(
        spread(np.moveaxis(x, -1, 1), op.input_dilation, 2), window, op.strides, pads, op.kernel_dilation
    )


def _part(op: ConvGeneral, seen: Array, g: int) -> Array:
    n, c = seen.shape[0] // int(op.batch_groups), seen.shape[1] // int(op.groups)
    return seen[:, g * c : (g + 1) * c] if op.groups != 1 else seen[g * n : (g + 1) * n]


def convolve_data_gradient(op: ConvGeneral, ct: Array, x_shape: Ints, w: Array) -> Array:
    """The cotangent of the data of a convolution without spreading and batch groups: every product goes back."""
    made = np.zeros(x_shape, wide(ct).dtype)
    ct_wide, kernel, groups = wide(ct), wide(w), int(op.groups)
    c, f = w.shape[-2], w.shape[-1] // groups
    for p in np.ndindex(w.shape[:-2]):
        taken: list[Any] = [slice(None)]
        put: list[Any] = [positions(x_shape[0])]
        for d, q in enumerate(p):
            at = positions(ct.shape[1 + d]) * op.strides[d] + q * op.kernel_dilation[d] - int(op.padding[d][0])
            valid = (at >= 0) & (at < x_shape[1 + d])
            taken.append(np.flatnonzero(valid))
            put.append(at[valid])
        here = ct_wide
        for d, chosen in enumerate(taken[1:], 1):
            here = np.take(here, chosen, d)
        for g in range(groups):
            back = here[..., g * f : (g + 1) * f] @ kernel[p][:, g * f : (g + 1) * f].T
            made[np.ix_(*put, positions(c) + g * c)] += back
    return made.astype(ct.dtype)


def convolve_weights_gradient(op: ConvGeneral, ct: Array, x: Array, w_shape: Ints) -> Array:
    """The cotangent of the weights of a convolution without batch groups."""
    rank, groups = x.ndim - 2, int(op.groups)
    seen, ct_wide = _seen(op, wide(x), w_shape[:rank]), wide(ct)
    f = ct.shape[-1] // groups
    over = ([0, *range(2, 2 + rank)], [*range(rank + 1)])
    made = [np.tensordot(_part(op, seen, g), ct_wide[..., g * f : (g + 1) * f], over) for g in range(groups)]
    return np.moveaxis(np.concatenate(made, -1), 0, rank).astype(x.dtype)


conv_general = F.conv_general
