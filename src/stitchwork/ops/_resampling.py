"""Where each result of a resize reads, and with which weights: written once, for arrays and for loop expressions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple, cast

import numpy as np

from stitchwork.errors import OpError
from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import float64, int64
from stitchwork.loops.expr import Axis, Buffer, Expr, call, const, extent, where
from stitchwork.loops.expr import cast as convert
from stitchwork.ops._contents import int_tuple, known
from stitchwork.ops._op import Array, Ints, Op, axis_index
from stitchwork.ops._windows import Sizes, choice, positions, sizes_of, widened

MODES = {"nearest": "nearest", "bilinear": "bilinear", "linear": "bilinear", "cubic": "cubic", "bicubic": "cubic"}
ROUNDINGS = ("round_prefer_ceil", "round_prefer_floor", "ceil", "floor", "round_to_even", "round_to_odd")
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
    "scale_offset",
)
LAYOUTS = {"NHWC": (1, 2), "NCHW": (2, 3), "HWC": (0, 1), "CHW": (1, 2), "HW": (0, 1)}
_BY_RANK = {2: "HW", 3: "HWC", 4: "NHWC"}
Number = Any  # an f64 expression, an array of f64, or a float: what the formulas below are written for


def function(name: str, x: Number) -> Number:
    """A rounding function of an expression or array."""
    if isinstance(x, Expr):
        return call(name, x)
    return {"floor": np.floor, "ceil": np.ceil, "rint": np.rint}[name](x)


def choose(condition: Number, a: Number, b: Number) -> Number:
    """`a` where the condition holds, else `b`."""
    if isinstance(condition, bool):
        return a if condition else b
    if isinstance(condition, Expr):
        first = a if isinstance(a, Expr) or isinstance(b, Expr) else const(cast("float", a), float64)
        return where(condition, first, b)
    return cast("Array", np.where(cast("Array", condition), a, b))


def _same(a: Number, b: Number) -> Number:
    return a.eq(b) if isinstance(a, Expr) else a == b


def rounded(x: Number, rounding: str) -> Number:
    """`x` rounded to an integer."""
    if rounding in ("floor", "ceil"):
        return function(rounding, x)
    if rounding == "round_prefer_ceil":
        return function("floor", x + 0.5)
    if rounding == "round_prefer_floor":
        return function("ceil", x - 0.5)
    even = function("rint", x)
    if rounding == "round_to_even":
        return even
    below = function("floor", x)  # of two equally near integers, the odd one
    odd = below * 2.0 + 1.0 - even  # the other of below and below + 1
    return choose(_same(x - below, 0.5), odd, even)


def cubic_weights(t: Number, a: float) -> list[Number]:
    """Weights of the elements at -1, 0, 1, 2 (R. Keys, Cubic convolution interpolation, 1981)."""

    def near(d: Number) -> Number:
        return (d * (a + 2.0) - (a + 3.0)) * d * d + 1.0

    def far(d: Number) -> Number:
        return ((d * a - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a

    return [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]


def cubic_slopes(t: Number, a: float) -> list[Number]:
    """Derivatives of `cubic_weights` with respect to t."""

    def near(d: Number) -> Number:
        return (d * (3.0 * a + 6.0) - (2.0 * a + 6.0)) * d

    def far(d: Number) -> Number:
        return (d * (3.0 * a) - 10.0 * a) * d + 8.0 * a

    return [far(t + 1.0), near(t), -near(1.0 - t), -far(2.0 - t)]


class Taps(NamedTuple):
    """What one result reads along a dim: positions (whole numbers inside the dim), weights (None: 1), and whether it
    lies outside the input (None: never).
    """

    positions: list[Number]
    weights: list[Number] | None
    outside: Number


class Resampling(Op):
    """A resize: attributes, and its formulas."""

    size: Any = None
    scales: Any = None
    axes: Any = None
    layout: str = ""
    mode: str = "nearest"
    rounding: str = "round_prefer_ceil"
    center_result: bool = False
    align_corners: bool = False
    coordinates: str = ""
    cubic_coefficient: float = -0.75
    exclude_outside: bool = False
    extrapolation: float | None = None
    roi: Any = None
    synonyms = {"nearest_rounding_mode": "rounding", "sizes": "size"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        name, rank = cls.name, types[0].rank
        made = {**attrs, "layout": ""}
        if attrs.get("size") is not None:
            made["size"] = sizes_of(name, attrs["size"], "size")
        if attrs.get("scales") is not None:
            made["scales"] = _floats(name, "scales", attrs["scales"])
            if any(s <= 0 or not math.isfinite(s) for s in made["scales"]):
                raise OpError(name, "a scale is not positive", expected="finite numbers > 0", got=str(made["scales"]))
        if attrs.get("roi") is not None:
            made["roi"] = _floats(name, "roi", attrs["roi"])
        made["mode"] = MODES[choice(name, attrs.get("mode", cls.mode), tuple(MODES), "mode")]
        choice(name, attrs.get("rounding", "floor"), ROUNDINGS, "rounding")
        if attrs.get("coordinates"):
            choice(name, attrs["coordinates"], COORDINATES, "coordinates")
        given = made.get("size") or made.get("scales")
        made["axes"] = cls._axes(attrs, rank, None if given is None else len(given))
        for key, length in (("size", 1), ("scales", 1), ("roi", 2)):
            value = made.get(key)
            if value is not None and len(value) != length * len(made["axes"]):
                expected = f"{length * len(made['axes'])}, for axes {made['axes']}"
                raise OpError(name, f"`{key}` has {len(value)} entries", expected=expected, got=str(value))
        return made

    @classmethod
    def _axes(cls, attrs: dict[str, Any], rank: int, given: int | None) -> Ints:
        if attrs.get("axes") is not None:
            made = tuple(axis_index(cls.name, a, rank, "axes") for a in int_tuple(cls.name, "axes", attrs["axes"]))
            if len(set(made)) != len(made):
                raise OpError(cls.name, "`axes` names an axis twice", got=str(made))
            return made
        layout = attrs.get("layout") or ""
        if not layout and given == rank:
            return tuple(range(rank))
        layout = layout or _BY_RANK.get(rank, "")
        if layout not in LAYOUTS or len(layout) != rank:
            raise OpError(
                cls.name,
                "`layout` does not fit",
                expected=f"one of {', '.join(LAYOUTS)} with rank {rank}, or `axes`",
                got=layout,
            )
        return LAYOUTS[layout]

    @property
    def over(self) -> Ints:
        """The resized axes."""
        return self.axes

    @property
    def coordinate(self) -> str:
        """How a result's index becomes a position in the input."""
        if self.coordinates:
            return self.coordinates
        return "align_corners" if self.align_corners else "half_pixel" if self.center_result else "asymmetric"

    def resized(self, shape: Sizes) -> Sizes:
        """The shape of the result."""
        if self.size is None and self.scales is None:
            raise self.fail("neither `size` nor `scales`", expected="one of them")
        made = list(shape)
        for k, a in enumerate(self.over):
            made[a] = self.size[k] if self.size is not None else _scaled(shape[a], self.scales[k])
        return tuple(made)

    def origin(self, k: int, i: Number, n: Number, out: Number, scale: Number, offset: Number) -> Number:
        """Position in an input of size n that result i of `out` reads along axis k. Without a scale, out / n is it."""
        kind = self.coordinate

        def unscaled(x: Number) -> Number:
            return x * n / out if scale is None else x / scale

        if kind == "scale_offset":
            return (i - offset) / scale
        if kind == "asymmetric":
            return unscaled(i)
        if kind == "tf_half_pixel_for_nn":
            return unscaled(i + 0.5)
        if kind == "align_corners":
            return i * (n - 1.0) / choose(out > 1.0, out - 1.0, 1.0)
        if kind == "tf_crop_and_resize":
            start, end = (0.0, 1.0) if self.roi is None else (self.roi[k], self.roi[k + len(self.over)])
            many = i * ((end - start) * (n - 1.0)) / choose(out > 1.0, out - 1.0, 1.0) + start * (n - 1.0)
            return choose(out > 1.0, many, i * 0.0 + 0.5 * (start + end) * (n - 1.0))
        centre = unscaled(i + 0.5) - 0.5
        if kind == "pytorch_half_pixel":
            return choose(out > 1.0, centre, i * 0.0)
        if kind == "half_pixel_symmetric" and scale is not None:
            return centre + n / 2.0 * (1.0 - out / (n * scale))
        return centre

    def taps(self, x: Number, n: Number) -> Taps:
        """What position `x` of an input of size n reads."""
        outside = None
        if self.extrapolation is not None:
            outside = (x < 0.0) | (x > n - 1.0)
        if self.mode == "nearest":
            return Taps([_inside(rounded(x, self.rounding), n)], None, outside)
        below = function("floor", x)
        t = x - below
        first, weights = (
            (0, [1.0 - t, t]) if self.mode == "bilinear" else (-1, cubic_weights(t, self.cubic_coefficient))
        )
        positions = [below + float(d + first) for d in range(len(weights))]
        if self.exclude_outside:
            weights = [choose((p >= 0.0) & (p <= n - 1.0), w, w * 0.0) for p, w in zip(positions, weights, strict=True)]
            whole = sum(weights[1:], weights[0])
            weights = [w / whole for w in weights]
        return Taps([_inside(p, n) for p in positions], weights, outside)

    # --- arrays -----------------------------------------------------------------------------------------------------
    def array_taps(self, k: int, n: int, out: int, scale: float | None, offset: float | None) -> Taps:
        """What all results along axis k read."""
        i = positions(out, np.float64)
        return self.taps(self.origin(k, i, float(n), float(out), scale, offset), float(n))

    def matrix(self, k: int, n: int, out: int, scale: float | None, offset: float | None) -> Array:
        """The resize along axis k as a matrix [out, n]; rows of results outside are 0."""
        taps = self.array_taps(k, n, out, scale, offset)
        made = np.zeros((out, n))
        for d, at in enumerate(taps.positions):
            weight = np.ones(out) if taps.weights is None else taps.weights[d]
            weight = weight if taps.outside is None else np.where(taps.outside, 0.0, weight)
            np.add.at(made, (positions(out), np.asarray(at, np.int64)), weight)
        return made

    def scale_of(self, k: int) -> float | None:
        """The scale given for axis k."""
        return None if self.scales is None else self.scales[k]

    # --- expressions ------------------------------------------------------------------------------------------------
    def expression_taps(
        self, out: Sequence[Expr], sizes: Sizes, shape: Sizes, scale: Buffer | None, offset: Buffer | None
    ) -> list[Taps]:
        """For each axis what the result at position `out` reads. `sizes`: of the input, `shape`: of the result."""
        made: list[Taps] = []
        for k, a in enumerate(self.over):
            n, many = _number(sizes[a]), _number(shape[a])
            own: Number = self.scale_of(k) if scale is None else convert(scale[k], float64)
            shift: Number = None if offset is None else convert(offset[k], float64)
            made.append(self.taps(self.origin(k, convert(out[a], float64), n, many, own, shift), n))
        return made

    def interpolated(self, out: Sequence[Expr], x: Buffer, taps: Sequence[Taps]) -> Expr:
        """The result at position `out`."""
        index: list[Expr] = list(out)

        def along(k: int) -> Expr:
            if k == len(self.over):
                return x[tuple(index)] if self.mode == "nearest" else widened(x[tuple(index)])
            made: Expr | None = None
            for d, at in enumerate(taps[k].positions):
                index[self.over[k]] = convert(at, int64)
                value = along(k + 1)
                weights = taps[k].weights
                if weights is not None:
                    value = value * convert(weights[d], value.dtype)
                made = value if made is None else made + value
            assert made is not None
            return made

        made = along(0)
        for t in taps:
            if t.outside is not None:
                made = where(t.outside, const(self.extrapolation or 0, made.dtype), made)
        return convert(made, x.dtype)

    def scatter(self, b: Any, made: Buffer, gradient: Buffer, scale: Buffer | None, offset: Buffer | None) -> None:
        """The adjoint: every result is added to what it reads. Dims before the first resized one run in parallel."""
        first, last = min(self.over), max(self.over)
        with b.nest(made.shape[:first]) as lead:
            with (
                b.nest(made.shape[first : last + 1], kind="serial") as at,
                b.nest(made.shape[last + 1 :], kind="vector") as rest,
            ):
                b.store(made, (*lead, *at, *rest), 0)
            with (
                b.nest(gradient.shape[first : last + 1], kind="serial") as at,
                b.nest(gradient.shape[last + 1 :], kind="vector") as rest,
            ):
                out: tuple[Axis, ...] = (*lead, *at, *rest)
                taps = self.expression_taps(out, made.shape, gradient.shape, scale, offset)
                for chosen in product(*(range(len(t.positions)) for t in taps)):
                    index: list[Expr] = list(out)
                    value = gradient[out]
                    for a, t, d in zip(self.over, taps, chosen, strict=True):
                        index[a] = convert(t.positions[d], int64)
                        if t.weights is not None:
                            value = convert(widened(value) * convert(t.weights[d], widened(value).dtype), value.dtype)
                        if t.outside is not None:
                            value = where(t.outside, const(0, value.dtype), value)
                    b.store(made, index, value, "add")


def _floats(op: str, what: str, value: Any) -> tuple[float, ...]:
    value = known(op, what, value)
    got = str(value)
    many: list[Any] = list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else [value]
    if not all(isinstance(v, int | float) for v in many):
        raise OpError(op, f"`{what}` is not a list of numbers", got=got)
    return tuple(float(v) for v in many)


def _scaled(n: Size, scale: float) -> Size:
    """floor(n * scale), exact for scales that are ratios of small integers."""
    exact = Fraction(scale)
    near = exact.limit_denominator(1 << 16)
    ratio = near if abs(near - exact) * (1 << 23) < exact else exact.limit_denominator(1 << 30)
    return dims.floordiv(n * ratio.numerator, ratio.denominator)


def _number(size: Size) -> Number:
    return float(size) if isinstance(size, int) else convert(extent(size), float64)


def _inside(x: Number, n: Number) -> Number:
    """A position moved inside [0, n); NaN to 0."""
    if isinstance(x, Expr):
        return call("fmin", call("fmax", x, 0.0), n - 1.0)
    return np.fmin(np.fmax(x, 0.0), n - 1.0)
