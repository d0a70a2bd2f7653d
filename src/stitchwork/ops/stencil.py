"""Stencils: weighted window reductions over the last dims, with every way to treat the border."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import int32
from stitchwork.ir.graph import Value, constant_array
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, as_index, cast, const, maximum, minimum, reduce, where
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, operand, sample
from stitchwork.ops._reduce_window import others
from stitchwork.ops._sliding import check_not_empty, fold_boundaries, windows_cotangent
from stitchwork.ops._values import convert, coordinates
from stitchwork.ops._window_positions import first_extreme
from stitchwork.ops._windows import (
    Pads,
    Sizes,
    choice,
    dilated,
    padding_of,
    per_dim,
    position,
    resolve_padding,
    take_windows,
    wide,
    widened,
    window_axes,
    window_counts,
)

REDUCTIONS = ("sum", "product", "min", "max", "argmin", "argmax")
BOUNDARIES = ("zero", "constant", "reflect", "symmetric", "clamp_to_edge", "periodic", "antiperiodic")
_LOAD_BOUNDARY = {"zero": "constant", "clamp_to_edge": "clamp"}
_UNROLLED = 128  # larger windows become loops


class Stencil(Op, name="stencil"):
    """Weighted window reduction over the last r dims of x, r = rank of weights (1 to 4); leading dims are batch:

    y[..., i] = reduction over j in the window of  x[..., i * strides + j * dilation - before] * weights[j]

    The window is not flipped (as SciPy's `correlate`). x [..., sizes], weights of rank r, result [..., counts]. Weights
    that are known at compile time (lists, arrays) are built into the kernel: of a sum, terms with weight 0 are left
    out.

    reduction: "sum", "product", "min", "max"; or "argmin", "argmax", which give the i32 row-major position of the first
    extreme inside the window (NaN is never chosen; -1 where nothing is left). In all but sums, zero weights take part:
    an element counts as x * 0. For SciPy's minimum_filter and the like give weights of 1.

    Outside x, `boundary` decides: "zero"; "constant" (the value `constant`); "reflect" (d c b | a b c d | c b a,
    NumPy's reflect, SciPy's mirror); "symmetric" (b a | a b c d | d c, NumPy's symmetric, SciPy's reflect);
    "clamp_to_edge" or "clamp" (SciPy's nearest); "periodic" (period n, NumPy's and SciPy's wrap); "antiperiodic"
    (periodic, the sign flipped at every wrap).

    padding: an int, an int per dim or (before, after) pairs, 0 by default; "valid" (none); "same" (ceil(n / stride)
    results, an odd element after, so that windows of odd size are centred); "same_lower" (an odd element before).
    offsets, instead of padding: where the first window starts in x, one int per dim; then there are ceil(n / stride)
    results. strides, dilation: an int or one per dim. Result dtype: that of x; narrow floats are reduced in float32.
    """

    x: Operand = operand("...", "real")
    weights: Operand = operand("...", "real", "")
    padding: Any = 0
    boundary: str = "zero"
    reduction: str = "sum"
    strides: Any = 1
    dilation: Any = 1
    offsets: Any = None
    constant: float = 0.0

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        rank = types[1].rank
        made: dict[str, Any] = {k: per_dim(cls.name, attrs.get(k, 1), rank, k) for k in ("strides", "dilation")}
        made["padding"] = padding_of(cls.name, attrs.get("padding", 0), rank)
        boundary = attrs.get("boundary", "zero")
        made["boundary"] = choice(
            cls.name, "clamp_to_edge" if boundary == "clamp" else boundary, BOUNDARIES, "boundary"
        )
        made["reduction"] = choice(cls.name, attrs.get("reduction", "sum"), REDUCTIONS, "reduction")
        if attrs.get("offsets") is not None:
            made["offsets"] = per_dim(cls.name, attrs["offsets"], rank, "offsets", -(2**31))
        return {**attrs, **made}

    def infer(self, x: TensorType, weights: TensorType) -> TensorType:
        r = weights.rank
        if not 1 <= r <= 4:
            raise self.fail(f"`weights` has rank {r}", expected="rank 1 to 4", got=str(weights))
        if x.rank < r:
            raise self.fail(f"`x` has rank {x.rank}", expected=f"at least the rank of weights, {r}", got=str(x))
        if self.offsets is not None and self.padding != ((0, 0),) * r:
            raise self.fail("both `padding` and `offsets`", expected="one of them")
        if weights.dtype.is_float and not x.dtype.is_float:
            got = f"x: {x}  weights: {weights}"
            expected = "weights that x's dtype can hold"
            raise self.fail(
                "`weights` are floats, `x` integers", expected=expected, got=got, hint="convert x with cast"
            )
        if x.dtype.kind == "u" and self.boundary == "antiperiodic":
            raise self.fail("unsigned numbers have no other sign", expected="a signed dtype", got=str(x))
        sizes = x.shape[x.rank - r :]
        if self.boundary not in ("zero", "constant"):
            check_not_empty(self, sizes)
        counts = window_counts(
            self.name, sizes, self.pads(sizes, weights.shape), weights.shape, self.strides, self.dilation
        )
        return TensorType(int32 if self.reduction.startswith("arg") else x.dtype, (*x.shape[: x.rank - r], *counts))

    def pads(self, sizes: Sizes, window: Sizes) -> Pads:
        """Padding as pairs; an offset is padding before, and whatever must follow."""
        if self.offsets is None:
            return resolve_padding(self.padding, sizes, window, self.strides, self.dilation)
        pairs: list[tuple[Size, Size]] = []
        for n, k, s, d, start in zip(sizes, window, self.strides, self.dilation, self.offsets, strict=True):
            reach = (dims.ceildiv(n, s) - 1) * s + dilated(k, d)
            pairs.append((-start, reach + start - n))
        return tuple(pairs)

    def geometry(self, x: Sizes, window: Sizes) -> dict[str, Any]:
        """What the ops underneath take."""
        return {
            "strides": self.strides,
            "padding": self.pads(x[len(x) - len(window) :], window),
            "dilation": self.dilation,
            "boundary": _LOAD_BOUNDARY.get(self.boundary, self.boundary),
            "fill": self.constant if self.boundary == "constant" else 0,
        }

    def numpy(self, x: Array, weights: Array) -> Array:
        window: Any = weights.shape
        g = self.geometry(x.shape, window)
        seen = take_windows(x, window, g["strides"], g["padding"], g["dilation"], g["boundary"], g["fill"])
        return reduce_terms(wide(seen) * wide(weights.astype(x.dtype)), self.reduction, len(window)).astype(
            _result(self.reduction, x)
        )

    def decompose(self, x: Value, weights: Value) -> Value:
        g = self.geometry(x.shape, weights.shape)
        known = constant_array(weights)
        g["fill"] = int(g["fill"]) if x.dtype.is_integer else g["fill"]
        if known is not None and known.size <= _UNROLLED:
            values = tuple(known.astype(x.dtype.numpy).ravel().tolist())
            return F.stencil_unrolled(x, weights=values, window=known.shape, reduction=self.reduction, **g)
        return F.stencil_loop(x, convert(weights, x.dtype), reduction=self.reduction, **g)

    def vjp(self, ct: Value, x: Value, weights: Value) -> tuple[Value | None, Value | None]:
        if self.reduction.startswith("arg"):
            return None, None
        g = self.geometry(x.shape, weights.shape)
        w = convert(weights, x.dtype)
        grown = F.reshape(ct, (*ct.shape, *(1,) * weights.rank))
        seen = F.extract_windows(x, window=weights.shape, **g)
        if self.reduction == "sum":
            each = grown
        elif self.reduction == "product":
            each = grown * others(seen * w, weights.rank)
        else:
            found = F.stencil_loop(x, w, reduction=f"arg{self.reduction}", **g)
            positions = coordinates(x, 0, (dims.product(weights.shape),), int32)
            chosen = F.equal(F.reshape(found, grown.shape), F.reshape(positions, weights.shape))
            each = F.select(chosen, F.broadcast(grown, seen.shape), 0.0)
        dw = F.reduction_sum(each * seen, axes=tuple(range(seen.rank - weights.rank)))
        if self.reduction == "sum" and all(s == 1 for s in self.strides):
            return self._sum_cotangent(ct, x.shape, weights, g), convert(dw, weights.dtype)
        kept = {k: g[k] for k in ("strides", "padding", "dilation", "boundary")}
        return windows_cotangent(each * w, x.shape, w.shape, **kept), convert(dw, weights.dtype)

    def _sum_cotangent(self, ct: Value, shape: Sizes, weights: Value, g: dict[str, Any]) -> Value:
        """Cotangent of x where the reduction is a sum and strides are 1: a stencil over ct, its window flipped."""
        known = constant_array(weights)
        rank = weights.rank
        flipped = np.flip(known) if known is not None else F.reverse(weights, axes=tuple(range(rank)))
        reach = [dilated(k, d) - 1 for k, d in zip(weights.shape, self.dilation, strict=True)]
        if g["boundary"] == "constant":
            pads = tuple((n - lo, n - hi) for n, (lo, hi) in zip(reach, g["padding"], strict=True))
            return F.stencil(ct, flipped, padding=pads, dilation=self.dilation)
        made = F.stencil(ct, flipped, padding=tuple((n, n) for n in reach), dilation=self.dilation)
        return fold_boundaries(made, shape, g["padding"], g["boundary"])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        laplace = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]], np.float32)
        for boundary in BOUNDARIES:
            yield sample((2, 5, 4), laplace, padding="same", boundary=boundary, constant=1.5)
        for reduction in REDUCTIONS:
            yield sample((6, 5), (2, 3), reduction=reduction, padding=((1, 2), (0, 1)), boundary="reflect")
            yield sample((5,), (3,), reduction=reduction, padding="same", strides=2)
        yield sample((2, 4, 4, 3), (2, 1, 3, 2), padding="same_lower", boundary="periodic")
        yield sample((3, 7), (3,), offsets=-1, strides=2, boundary="clamp")
        yield sample((7,), (3,), offsets=(2,), dilation=2, boundary="antiperiodic")
        yield sample((7, 6), (2, 2), dilation=(2, 3), strides=(1, 2))
        yield sample((1, 1), (1, 1))
        yield sample((1, 1), (3, 3), padding="same", boundary="reflect")
        yield sample((0, 4), (3,))
        yield Sample(((6, 5), (3, 3)), {"padding": 1}, dtype="f16", grad=False)
        yield Sample(
            (np.arange(12, dtype=np.int32).reshape(3, 4), np.ones((2, 2), np.int32)), {"reduction": "max"}, grad=False
        )

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`weights` has rank 0", sample((4,), ())
        yield "`weights` has rank 5", sample((2, 2, 2, 2, 2), (1, 1, 1, 1, 1))
        yield "`x` has rank 1", sample((4,), (2, 2))
        yield "larger than the padded input", sample((2,), (3,))
        yield "unknown boundary", sample((4,), (3,), boundary="mirror")
        yield "unknown reduction", sample((4,), (3,), reduction="mean")
        yield "both `padding` and `offsets`", sample((4,), (3,), offsets=1, padding=1)
        yield "`weights` are floats", sample(np.ones(4, np.int32), (2,))
        yield "has no elements", sample((0,), (1,), boundary="reflect", padding=1)


def _result(reduction: str, x: Array) -> Any:
    return np.int32 if reduction.startswith("arg") else x.dtype


def reduce_terms(terms: Array, reduction: str, rank: int) -> Array:
    """Reduce the last `rank` dims."""
    flat = terms.reshape(*terms.shape[: terms.ndim - rank], int(np.prod(terms.shape[terms.ndim - rank :])))
    if reduction.startswith("arg"):
        return first_extreme(flat, reduction[3:])
    if reduction in ("sum", "product"):
        return (np.sum if reduction == "sum" else np.prod)(flat, axis=-1, dtype=flat.dtype)
    return (np.min if reduction == "min" else np.max)(flat, axis=-1)


# --- kernels --------------------------------------------------------------------------------------------------------
class Kernel(Op):
    """What both kernels share."""

    reduction: str
    strides: Ints
    padding: Pads
    dilation: Ints
    boundary: str = "constant"
    fill: Any = 0

    def shape(self, x: TensorType, window: Sizes) -> TensorType:
        """Type of the result."""
        lead = x.rank - len(window)
        counts = window_counts(self.name, x.shape[lead:], self.padding, window, self.strides, self.dilation)
        return TensorType(int32 if self.reduction.startswith("arg") else x.dtype, (*x.shape[:lead], *counts))

    def terms(self, x: Array, weights: Array) -> Array:
        """The definition."""
        window: Any = weights.shape
        pads: Any = self.padding
        seen = take_windows(x, window, self.strides, pads, self.dilation, self.boundary, self.fill)
        made = reduce_terms(wide(seen) * wide(weights), self.reduction, len(window))
        return made.astype(_result(self.reduction, x))

    def element(self, out: tuple[Axis, ...], x: Buffer, inside: Sequence[Expr]) -> Expr:
        """The element of x that window element `inside` of the window at `out` reads."""
        lead = len(out) - len(inside)
        geometry = zip(out[lead:], self.strides, self.padding, inside, self.dilation, strict=True)
        index = (*out[:lead], *(position(o, s, lo, p, d) for o, s, (lo, _), p, d in geometry))
        if all(pair == (0, 0) for pair in self.padding):
            return widened(x[index])
        return widened(x.at(*index, boundary=self.boundary, fill=self.fill))


class StencilLoop(Kernel, name="stencil_loop", internal=True):
    """`stencil` with weights that are not known at compile time, or many."""

    x: Operand = operand("...", "real")
    weights: Operand = operand("...", "real")

    def infer(self, x: TensorType, weights: TensorType) -> TensorType:
        return self.shape(x, weights.shape)

    def numpy(self, x: Array, weights: Array) -> Array:
        return self.terms(x, weights)

    def compute(self, out: tuple[Axis, ...], x: Buffer, weights: Buffer) -> Expr:
        p = window_axes(weights.shape)
        term = self.element(out, x, p) * widened(weights[p])
        return cast(reduce(self.reduction, term, *p), int32 if self.reduction.startswith("arg") else x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for reduction in REDUCTIONS:
            yield sample(
                (2, 5, 4), (2, 3), reduction=reduction, strides=(1, 2), padding=((1, 0), (2, 2)), dilation=(2, 1)
            )
        for boundary in ("reflect", "symmetric", "clamp", "periodic", "antiperiodic"):
            yield sample((5,), (3,), reduction="sum", strides=(1,), padding=((7, 6),), dilation=(1,), boundary=boundary)
        yield Sample(
            ((9,), (3,)), {"reduction": "sum", "strides": (1,), "padding": ((0, 0),), "dilation": (1,)}, dtype="bf16"
        )


class StencilUnrolled(Kernel, name="stencil_unrolled", internal=True):
    """`stencil` with its weights, row-major, built in: zeros of a sum are left out, and ones not multiplied by."""

    x: Operand = operand("...", "real")
    weights: tuple[Any, ...]
    window: Ints

    def infer(self, x: TensorType) -> TensorType:
        return self.shape(x, self.window)

    def numpy(self, x: Array) -> Array:
        return self.terms(x, np.asarray(self.weights).astype(x.dtype).reshape(self.window))

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        terms: list[Expr] = []
        for p, w in zip(np.ndindex(self.window), self.weights, strict=True):
            if self.reduction == "sum" and w == 0:
                continue
            element = self.element(out, x, [as_index(q) for q in p])
            terms.append(element if w == 1 else -element if w == -1 else element * const(w, element.dtype))
        if self.reduction.startswith("arg"):
            return _first(terms, self.reduction[3:])
        if not terms:
            return const(0, x.dtype)
        combine = _COMBINE[self.reduction]
        made = terms[0]
        for term in terms[1:]:
            made = combine(made, term)
        return cast(made, x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        base: dict[str, Any] = {"strides": (1, 2), "padding": ((1, 0), (2, 2)), "dilation": (2, 1)}
        for reduction in REDUCTIONS:
            yield sample((2, 5, 4), reduction=reduction, weights=(0, 1, -1, 2.5, 0, 1), window=(2, 3), **base)
        yield sample((2, 5, 4), reduction="sum", weights=(0, 0), window=(2, 1), **base)
        nans = np.array([np.nan, np.nan, 2, 1, np.nan], np.float32)
        row: dict[str, Any] = {"strides": (1,), "dilation": (1,), "padding": ((0, 1),), "boundary": "clamp"}
        for reduction in REDUCTIONS:
            yield Sample((nans,), {"reduction": reduction, "weights": (1, 1), "window": (2,), **row}, grad=False)


def _multiply(a: Expr, b: Expr) -> Expr:
    return a * b


def _add(a: Expr, b: Expr) -> Expr:
    return a + b


_COMBINE: dict[str, Callable[[Expr, Expr], Expr]] = {"sum": _add, "product": _multiply, "max": maximum, "min": minimum}


def _first(terms: Sequence[Expr], kind: str) -> Expr:
    """Position of the first extreme term as i32; NaN is never chosen, -1 where nothing is left."""
    best, found = terms[0], where(terms[0].eq(terms[0]), const(0, int32), const(-1, int32))
    for k, term in enumerate(terms[1:], 1):
        better = term > best if kind == "max" else term < best
        if term.dtype.is_float:
            better = better | (found.eq(const(-1, int32)) & term.eq(term))
        best = where(better, term, best)
        found = where(better, const(k, int32), found)
    return found


stencil = F.stencil
