"""Geometry of sliding windows: what convolution, pooling and stencils share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from stitchwork.errors import OpError
from stitchwork.ir import dims, dtypes
from stitchwork.ir.dims import Dim, Size
from stitchwork.ir.dtypes import DType
from stitchwork.loops.expr import Axis, Expr, as_index, extent, maximum, minimum, where
from stitchwork.loops.expr import cast as convert
from stitchwork.ops._contents import int_tuple, known, size_tuple
from stitchwork.ops._op import Array, Ints, require_at_least

Sizes = tuple[Size, ...]
Pads = tuple[tuple[Size, Size], ...]  # (before, after) per dim
PADDING_STYLES = ("valid", "same", "same_lower")


# --- attributes -----------------------------------------------------------------------------------------------------
def per_dim(op: str, value: Any, rank: int, what: str, least: int = 1) -> Ints:
    """One int per dim from an int or a sequence of them. Raises OpError."""
    value = known(op, what, value)
    got = str(value)
    many = int_tuple(op, what, value)
    many = many if isinstance(value, tuple) else many * rank
    if len(many) != rank:
        raise OpError(op, f"`{what}` has {len(many)} entries", expected=f"an int or {rank} ints", got=got)
    if any(n < least for n in many):
        raise OpError(op, f"`{what}` is out of range", expected=f"ints >= {least}", got=got)
    return many


def padding_of(op: str, padding: Any, rank: int) -> str | Pads:
    """Padding in canonical form: a style, or a pair per dim.

    Accepts "valid", "same", "same_lower", an int, an int per dim, a pair per dim, or 2 * rank ints (pairs in a row).
    """
    if isinstance(padding, str):
        if padding not in PADDING_STYLES:
            raise OpError(
                op, "unknown padding style", expected=f"one of {', '.join(PADDING_STYLES)}, ints or pairs", got=padding
            )
        return padding
    padding = known(op, "padding", padding)
    got = str(padding)
    many: tuple[Any, ...] = cast("tuple[Any, ...]", padding) if isinstance(padding, tuple) else (padding,) * rank
    if len(many) == 2 * rank and not any(isinstance(p, tuple) for p in many):
        many = tuple(zip(many[::2], many[1::2], strict=True))
    pairs: list[tuple[Size, Size]] = []
    for p in many:
        pair: Any = cast("Any", p) if isinstance(p, tuple) else (p, p)
        if len(pair) == 2 and all(isinstance(n, int | Dim) for n in pair):
            pairs.append((pair[0], pair[1]))
    if len(pairs) != rank or len(many) != rank:
        expected = f"an int, {rank} ints or {rank} (before, after) pairs"
        raise OpError(op, "`padding` does not fit", expected=expected, got=got)
    return tuple(pairs)


def choice(op: str, value: Any, accepted: Sequence[str], what: str) -> str:
    """`value`, checked to be one of `accepted`."""
    if value not in accepted:
        raise OpError(op, f"unknown {what}", expected=f"one of {', '.join(accepted)}", got=str(value))
    return value


def sizes_of(op: str, value: Any, what: str) -> Sizes:
    """Sizes given as ints, Dims, an array, or a tensor whose content is known at compile time. Raises OpError."""
    many = size_tuple(op, what, value)
    if any(isinstance(n, int) and n < 0 for n in many):
        raise OpError(op, f"`{what}` has a negative size", expected="sizes >= 0", got=str(many))
    return many


# --- sizes ----------------------------------------------------------------------------------------------------------
def dilated(n: Size, dilation: int) -> Size:
    """What `n` elements span when spread `dilation` apart."""
    if isinstance(n, int):
        return max((n - 1) * dilation + 1, 0)
    return n if dilation == 1 else (n - 1) * dilation + 1


def resolve_padding(padding: str | Pads, sizes: Sizes, window: Sizes, strides: Ints, dilation: Ints) -> Pads:
    """Padding as pairs. "same" gives ceil(size / stride) windows, the odd element after ("same_lower": before)."""
    if not isinstance(padding, str):
        return padding
    if padding == "valid":
        return tuple((0, 0) for _ in sizes)
    pairs: list[tuple[Size, Size]] = []
    for n, k, s, d in zip(sizes, window, strides, dilation, strict=True):
        whole = dims.maximum((dims.ceildiv(n, s) - 1) * s + dilated(k, d) - n, 0)
        half = dims.floordiv(whole, 2)
        pairs.append((half, whole - half) if padding == "same" else (whole - half, half))
    return tuple(pairs)


def window_counts(op: str, sizes: Sizes, pads: Pads, window: Sizes, strides: Ints, dilation: Ints) -> Sizes:
    """How many windows fit along each dim. Raises OpError where none does; unknown sizes get guards."""
    counts: list[Size] = []
    for d, (n, (lo, hi), k, s, r) in enumerate(zip(sizes, pads, window, strides, dilation, strict=True)):
        room = n + lo + hi - dilated(k, r)
        if not require_at_least(op, k, 1, f"window size along spatial dim {d} >= 1"):
            raise OpError(op, f"the window is empty along spatial dim {d}", expected="a window size >= 1", got=str(k))
        spans_one = dilated(k, r) == 1 and all(
            isinstance(p, int) and p >= 0 for p in (lo, hi)
        )  # fits into nothing, too
        if not spans_one and not require_at_least(
            op, room, 0, f"window fits into the padded input along spatial dim {d}"
        ):
            raise OpError(
                op,
                "the window is larger than the padded input",
                expected=f"window <= {n + lo + hi} along spatial dim {d}",
                got=f"{dilated(k, r)} (dilation included)",
                hint="raise `padding`, or use a smaller window",
            )
        counts.append(dims.floordiv(room, s) + 1)
    return tuple(counts)


def transposed_padding(
    n: Size, out: Size, k: Size, stride: int, dilation: int, pair: tuple[Size, Size]
) -> tuple[Size, Size]:
    """Padding of the window walk that maps `out` results, spread `stride` apart, back onto `n` inputs.

    It is the adjoint's: a window of the same span over the spread results covers every input that forward windows read.
    """
    span = dilated(k, dilation)
    before = span - 1 - pair[0]
    return before, n + span - 1 - dilated(out, stride) - before


# --- expressions ----------------------------------------------------------------------------------------------------
def position(out: Expr, step: int, before: Size, inside: Expr, dilation: int) -> Expr:
    """Input index that window element `inside` of window `out` reads."""
    return out * step + inside * dilation - extent(before)


def window_axes(window: Sizes) -> tuple[Axis, ...]:
    """A loop axis per window dim."""
    return tuple(Axis(k, f"p{d}") for d, k in enumerate(window))


def owners(
    at: Sequence[Expr], inside: Sequence[Expr], strides: Ints, pads: Pads, dilation: Ints
) -> tuple[list[Expr], Expr | None]:
    """Which window has input position `at` as its element `inside`: the window's index, and whether it is whole.

    The index may lie outside; the condition is None where it always holds.
    """
    index: list[Expr] = []
    whole: Expr | None = None
    for i, p, s, (lo, _), d in zip(at, inside, strides, pads, dilation, strict=True):
        start = i + extent(lo) - p * d
        index.append(start // s)
        if s != 1:
            fits = (start % s).eq(0)
            whole = fits if whole is None else whole & fits
    return index, whole


def map_inside(i: Expr, n: Size, boundary: str) -> tuple[Expr, Expr | None]:
    """Index inside [0, n) that `boundary` reads for `i`, and where its sign flips (None: nowhere). See expr.Load."""
    size = extent(n)
    if boundary == "clamp":
        return maximum(minimum(i, size - 1), 0), None
    if boundary == "reflect":
        period = maximum(size * 2 - 2, 1)
        inside = i % period
        return minimum(inside, period - inside) if n != 1 else as_index(0), None
    if boundary == "symmetric":
        inside = i % (size * 2)
        return minimum(inside, size * 2 - 1 - inside), None
    flip = ((i // size) % 2).eq(1) if boundary == "antiperiodic" else None
    return i % size, flip


def flat_index(index: Sequence[Expr], shape: Sizes) -> Expr:
    """Row-major position of `index` in `shape`."""
    flat: Expr = as_index(0)
    for i, n in zip(index, shape, strict=True):
        flat = flat * extent(n) + i
    return flat


def unflatten(flat: Expr, shape: Sizes) -> list[Expr]:
    """Inverse of `flat_index`."""
    index: list[Expr] = []
    for n in reversed(shape):
        index.append(flat % extent(n))
        flat = flat // extent(n)
    return index[::-1]


def widened(x: Expr) -> Expr:
    """A narrow float as f32, so that products are not rounded before they are added up."""
    return convert(x, dtypes.float32) if is_narrow(x.dtype) else x


def masked(condition: Expr | None, x: Expr) -> Expr:
    """`x` where the condition holds, else 0."""
    return x if condition is None else where(condition, x, 0)


def is_narrow(dtype: DType) -> bool:
    """True for floats of fewer than 32 bits."""
    return dtype.is_float and dtype.bits < 32


# --- NumPy ----------------------------------------------------------------------------------------------------------
def wide(x: Array) -> Array:
    """Narrow floats as float32 and integers of fewer than 8 bits as int32; anything else as it is."""
    dtype = dtypes.as_dtype(x.dtype)
    return x.astype(np.float32) if is_narrow(dtype) else x.astype(np.int32) if dtype.bits < 8 else x


def spread(x: Array, dilation: Sequence[int], first: int, fill: Any = 0) -> Array:
    """`x` with its dims from `first` on spread apart, `fill` between."""
    shape = list(x.shape)
    where_: list[Any] = [slice(None)] * x.ndim
    for d, step in enumerate(dilation, first):
        shape[d] = max((shape[d] - 1) * step + 1, 0)
        where_[d] = slice(None, None, step)
    made = np.full(shape, fill, x.dtype)
    made[tuple(where_)] = x
    return made


def inside_positions(i: Array, n: int, boundary: str) -> tuple[Array, Array, Array]:
    """(index inside [0, n), whether it exists, whether the sign flips) for positions `i`: what boundaries mean."""
    exists = np.ones(i.shape, np.bool_)
    flip = np.zeros(i.shape, np.bool_)
    if boundary == "constant" or n == 0:
        exists = (i >= 0) & (i < n)
        return np.clip(i, 0, max(n - 1, 0)), exists, flip
    if boundary == "clamp":
        return np.clip(i, 0, n - 1), exists, flip
    if boundary == "reflect":
        period = max(2 * n - 2, 1)
        return (np.minimum(i % period, period - i % period) if n > 1 else i * 0), exists, flip
    if boundary == "symmetric":
        return np.minimum(i % (2 * n), 2 * n - 1 - i % (2 * n)), exists, flip
    return i % n, exists, (i // n % 2 == 1) if boundary == "antiperiodic" else flip


def positions(n: int, dtype: Any = np.int64) -> Array:
    """0 to n - 1."""
    made: Any = np.arange(n, dtype=dtype)
    return made


def window_positions(count: int, stride: int, before: int, k: int, dilation: int) -> Array:
    """Input positions read by each window: [count, k]."""
    return positions(count)[:, None] * stride + positions(k)[None, :] * dilation - before


def take_windows(
    x: Array,
    window: Ints,
    strides: Ints,
    pads: Sequence[tuple[int, int]],
    dilation: Ints,
    boundary: str = "constant",
    fill: Any = 0,
) -> Array:
    """All windows over the last dims of `x`: [leading..., counts..., window...]."""
    rank = len(window)
    lead = x.shape[: x.ndim - rank]
    counts: list[int] = []
    for d, (k, s, (lo, hi), r) in enumerate(zip(window, strides, pads, dilation, strict=True)):
        axis = len(lead) + 2 * d
        n = x.shape[axis]
        count = (n + lo + hi - ((k - 1) * r + 1)) // s + 1
        counts.append(count)
        index, exists, flip = inside_positions(window_positions(count, s, lo, k, r), n, boundary)
        shape = (1,) * axis + index.shape + (1,) * (x.ndim - axis - 1)
        if n == 0:
            x = np.full((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), fill, x.dtype)
        else:
            x = np.take(x, index, axis)
        x = np.where(exists.reshape(shape), x, np.asarray(fill).astype(x.dtype))
        x = np.where(flip.reshape(shape), -x, x) if boundary == "antiperiodic" else x
    order = [
        *range(len(lead)),
        *(len(lead) + 2 * d for d in range(rank)),
        *(len(lead) + 2 * d + 1 for d in range(rank)),
    ]
    return x.transpose(order)
