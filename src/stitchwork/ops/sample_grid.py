"""Images sampled at given positions, with its gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import int64
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, call, cast, const, extent, total, where
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Op, Operand, Sample, operand, require_at_least, require_equal, sample
from stitchwork.ops._resampling import MODES, ROUNDINGS, Number, cubic_slopes, cubic_weights, function, rounded
from stitchwork.ops._windows import Sizes, choice, inside_positions, map_inside, positions, wide, widened

_BOUNDARIES = {
    "constant": "constant",
    "reflect": "reflect",
    "symmetric": "symmetric",
    "clamp_to_edge": "clamp",
    "clamp": "clamp",
}
_CUBIC = -0.75
_FAR = float(1 << 30)  # positions further away are moved here, so that they fit an integer


class Taps(NamedTuple):
    """What a position reads along one dim: whole-numbered positions, weights, and the weights' derivatives."""

    positions: list[Number]
    weights: list[Number]
    slopes: list[Number]


class Sampling(Op):
    """Attributes and formulas of sampling at positions."""

    layout: str = "NHWC"
    normalize_coordinates: bool = True
    relative_coordinates: bool = False
    align_corners: bool = False
    padding_mode: str = "constant"
    constant: float = 0.0
    mode: str = "bilinear"
    rounding: str = "round_prefer_ceil"
    synonyms = {"nearest_rounding_mode": "rounding", "sampling_mode": "mode", "constant_value": "constant"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        made = dict(attrs)
        made["layout"] = choice(cls.name, attrs.get("layout", "NHWC"), ("NHWC", "NCHW"), "layout")
        made["padding_mode"] = choice(
            cls.name, attrs.get("padding_mode", "constant"), tuple(_BOUNDARIES), "padding_mode"
        )
        made["mode"] = MODES[choice(cls.name, attrs.get("mode", cls.mode), tuple(MODES), "mode")]
        made["rounding"] = choice(cls.name, attrs.get("rounding", cls.rounding), ROUNDINGS, "rounding")
        return made

    @property
    def boundary(self) -> str:
        """As Load names it."""
        return _BOUNDARIES[self.padding_mode]

    def split(self, shape: Sizes) -> tuple[Sizes, Size]:
        """Height and width, and channels, of images of this shape."""
        return ((shape[2], shape[3]), shape[1]) if self.layout == "NCHW" else ((shape[1], shape[2]), shape[3])

    def joined(self, n: Any, place: Sequence[Any], c: Any) -> tuple[Any, ...]:
        """Batch, two spatial entries and channel in the order of the layout."""
        return (n, c, *place) if self.layout == "NCHW" else (n, *place, c)

    def check(self, x: TensorType, coordinates: TensorType) -> Sizes:
        """The shape of the result. Raises OpError where x and coordinates do not fit."""
        if x.rank != 4:
            raise self.fail(f"x has rank {x.rank}", expected=f"rank 4 ({self.layout})", got=str(x))
        if not require_equal(self.name, coordinates.shape[3], 2, "coordinates are pairs"):
            raise self.fail("coordinates are not pairs", expected="[n, h, w, 2]", got=str(coordinates))
        if not require_equal(self.name, coordinates.shape[0], x.shape[0], "batch of coordinates and x"):
            raise self.fail("batch sizes differ", expected=f"[{x.shape[0]}, h, w, 2]", got=str(coordinates))
        sizes, c = self.split(x.shape)
        for n in sizes:
            if not require_at_least(self.name, n, 1, "image has pixels"):
                raise self.fail("x has no pixels", expected="height and width >= 1", got=str(x))
        return self.joined(x.shape[0], coordinates.shape[1:3], c)

    def slope(self, n: Number) -> Number:
        """How far a position moves, in pixels, when its coordinate does."""
        if not self.normalize_coordinates:
            return 1.0
        return (n - 1.0) * 0.5 if self.align_corners else n * 0.5

    def position(self, c: Number, i: Number, n: Number, out: Number) -> Number:
        """Position in pixels that coordinate `c`, for result index `i` of `out`, means along a dim of n pixels."""
        if self.relative_coordinates:
            apart = call("fmax", out - 1.0, 1.0) if isinstance(out, Expr) else max(out - 1.0, 1.0)
            base = i * (n - 1.0) / apart if self.align_corners else (i + 0.5) * n / out - 0.5
            return base + c * self.slope(n)
        if not self.normalize_coordinates:
            return c
        return (c + 1.0) * (n - 1.0) * 0.5 if self.align_corners else ((c + 1.0) * n - 1.0) * 0.5

    def taps(self, position: Number) -> Taps:
        """What a position reads."""
        x = _near(position)
        if self.mode == "nearest":
            return Taps([rounded(x, self.rounding)], [x * 0.0 + 1.0], [x * 0.0])
        below = function("floor", x)
        t = x - below + (position - position)  # not a number where the position is not
        if self.mode == "bilinear":
            return Taps([below, below + 1.0], [1.0 - t, t], [t * 0.0 - 1.0, t * 0.0 + 1.0])
        return Taps([below + float(d) for d in (-1, 0, 1, 2)], cubic_weights(t, _CUBIC), cubic_slopes(t, _CUBIC))

    # --- arrays -----------------------------------------------------------------------------------------------------
    def array_taps(self, sizes: tuple[int, int], coordinates: Array) -> tuple[Taps, Taps]:
        """Taps along height and width for all positions, arrays [n, i, j]."""
        grid = wide(coordinates)
        out = grid.shape[1:3]
        rows = positions(out[0], grid.dtype)[:, None]
        columns = positions(out[1], grid.dtype)[None, :]
        down = self.position(grid[..., 1], rows, float(sizes[0]), float(out[0]))
        across = self.position(grid[..., 0], columns, float(sizes[1]), float(out[1]))
        return self.taps(down), self.taps(across)

    def gathered(self, image: Array, y: Array, x: Array) -> Array:
        """Elements of image [n, h, w, c] at whole positions [n, i, j], the border treated: [n, i, j, c]."""
        rows, has_row, _ = inside_positions(y.astype(np.int64), image.shape[1], self.boundary)
        columns, has_column, _ = inside_positions(x.astype(np.int64), image.shape[2], self.boundary)
        batch = positions(image.shape[0])[:, None, None]
        found = image[batch, rows, columns]
        return np.where((has_row & has_column)[..., None], found, np.asarray(self.constant).astype(image.dtype))

    # --- expressions ------------------------------------------------------------------------------------------------
    def expression_taps(self, sizes: Sizes, place: Sequence[Expr], n: Expr, grid: Buffer) -> tuple[Taps, Taps]:
        """Taps along height and width for the result at `place` of batch element n."""
        made: list[Taps] = []
        for d, i in enumerate(place):
            c = widened(grid[n, place[0], place[1], 1 - d])
            size, out = (_number(m, c) for m in (sizes[d], grid.shape[1 + d]))
            made.append(self.taps(self.position(c, cast(i, c.dtype), size, out)))
        return made[0], made[1]

    def loaded(self, x: Buffer, n: Expr, y: Number, across: Number, c: Expr) -> Expr:
        """The element of x at a whole position, the border treated."""
        index = self.joined(n, (cast(y, int64), cast(across, int64)), c)
        return widened(x.at(*index, boundary=self.boundary, fill=self.constant))


def _near(x: Number) -> Number:
    if isinstance(x, Expr):
        return call("fmin", call("fmax", x, -_FAR), _FAR)
    return np.fmin(np.fmax(x, np.asarray(-_FAR, x.dtype)), np.asarray(_FAR, x.dtype))


def _number(size: Size, like: Expr) -> Number:
    return float(size) if isinstance(size, int) else cast(extent(size), like.dtype)


class SampleGrid(Sampling, name="sample_grid"):
    """Sample images at positions: result [n, i, j, c] is image n at coordinates[n, i, j].

    x [n, h, w, c] (or `layout` "NCHW"), coordinates [n, i, j, 2] as (x, y): first across, then down, as PyTorch's
    grid_sample and ONNX's GridSample have it (the original does not say). Result laid out as x.

    normalize_coordinates: -1 to 1 span the image, with align_corners from centre to centre of the edge pixels, else
    from edge to edge; without it coordinates are pixels, 0 the centre of the first. relative_coordinates: they are
    added to the place where result (i, j) would lie if the results were spread evenly over the image. mode: "bilinear",
    "nearest" (with `rounding` as in `resize`), "cubic" (Keys' kernel, -0.75). Outside the image, padding_mode decides:
    "constant", "reflect" (edge not repeated), "symmetric" (repeated), "clamp_to_edge". A coordinate that is not a
    number gives not a number. Result dtype: that of x; coordinates of the same dtype.
    """

    x: Operand = operand("...", "float")
    coordinates: Operand = operand("n i j two", "float")

    def infer(self, x: TensorType, coordinates: TensorType) -> TensorType:
        return x.with_shape(self.check(x, coordinates))

    def numpy(self, x: Array, coordinates: Array) -> Array:
        image = np.moveaxis(wide(x), 1, 3) if self.layout == "NCHW" else wide(x)
        down, across = self.array_taps((image.shape[1], image.shape[2]), coordinates)
        made = np.zeros((*coordinates.shape[:3], image.shape[3]), image.dtype)
        for a, b in product(range(len(down.positions)), range(len(across.positions))):
            weight = (down.weights[a] * across.weights[b])[..., None]
            made += self.gathered(image, down.positions[a], across.positions[b]) * weight
        made = made.astype(x.dtype)
        return np.moveaxis(made, 3, 1).copy() if self.layout == "NCHW" else made

    def compute(self, out: tuple[Axis, ...], x: Buffer, coordinates: Buffer) -> Expr:
        n, place, c = _parts(self, out)
        down, across = self.expression_taps(self.split(x.shape)[0], place, n, coordinates)
        made: Expr | None = None
        for y, wy in zip(down.positions, down.weights, strict=True):
            for at, wx in zip(across.positions, across.weights, strict=True):
                value = self.loaded(x, n, y, at, c)
                value = value if self.mode == "nearest" else value * (wy * wx)
                made = value if made is None else made + value
        assert made is not None
        return cast(made, x.dtype)

    def vjp(self, ct: Value, x: Value, coordinates: Value) -> tuple[Value, Value | None]:
        attrs = {a: getattr(self, a) for a in self.attributes()}
        dx = F.sample_grid_data_gradient(ct, coordinates, output_shape=x.shape, **attrs)
        if self.mode == "nearest":
            return dx, None
        return dx, F.sample_grid_coordinates_gradient(ct, x, coordinates, **attrs)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        places = np.random.default_rng(3).uniform(-1.6, 1.6, (2, 3, 4, 2)).astype(np.float32)
        for padding in ("constant", "reflect", "symmetric", "clamp_to_edge"):
            for aligned in (False, True):
                yield sample((2, 4, 5, 3), places, padding_mode=padding, align_corners=aligned, constant=0.5)
        yield sample((2, 3, 4, 5), places, layout="NCHW", mode="cubic")
        yield sample((2, 4, 5, 1), places, mode="nearest")
        yield sample((2, 4, 5, 1), places * 3, normalize_coordinates=False, mode="cubic", padding_mode="reflect")
        for aligned in (False, True):
            yield sample((2, 4, 5, 2), places * 0.3, relative_coordinates=True, align_corners=aligned)
        odd = np.array([np.inf, -np.inf, 1e30, 3], np.float32).reshape(1, 1, 2, 2)
        yield Sample(((1, 2, 2, 1), odd), {"padding_mode": "symmetric"}, grad=False)
        yield Sample(((1, 2, 2, 1), np.full((1, 1, 1, 2), np.nan, np.float32)), {}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "x has rank 3", sample((4, 5, 3), (1, 2, 2, 2))
        yield "coordinates are not pairs", sample((1, 4, 5, 3), (1, 2, 2, 3))
        yield "batch sizes differ", sample((2, 4, 5, 3), (1, 2, 2, 2))
        yield "unknown padding_mode", sample((1, 4, 5, 3), (1, 2, 2, 2), padding_mode="border")
        yield "x has no pixels", sample((1, 0, 5, 3), (1, 2, 2, 2))


def _parts(op: Sampling, out: Sequence[Axis]) -> tuple[Axis, tuple[Axis, Axis], Axis]:
    if op.layout == "NCHW":
        return out[0], (out[2], out[3]), out[1]
    return out[0], (out[1], out[2]), out[3]


class SampleGridNearest(SampleGrid, name="sample_grid_nearest"):
    """As `sample_grid` with mode "nearest"."""

    mode: str = "nearest"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        places = np.random.default_rng(4).uniform(-1.6, 1.6, (2, 3, 4, 2)).astype(np.float32)
        for rounding in ROUNDINGS:
            yield sample((2, 4, 5, 3), places, rounding=rounding, padding_mode="clamp_to_edge")

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "unknown rounding", sample((1, 4, 5, 3), (1, 2, 2, 2), rounding="nearest")


class SampleGridDataGradient(Sampling, name="sample_grid_data_gradient", internal=True):
    """Cotangent of x of `sample_grid`: each gradient is added to what its result read, times the weight it had."""

    gradient: Operand = operand("...", "float")
    coordinates: Operand = operand("n i j two", "float")
    output_shape: Sizes

    def infer(self, gradient: TensorType, coordinates: TensorType) -> TensorType:
        made = gradient.with_shape(self.output_shape)
        self.check(made, coordinates)
        return made

    def numpy(self, gradient: Array, coordinates: Array) -> Array:
        g = np.moveaxis(wide(gradient), 1, 3) if self.layout == "NCHW" else wide(gradient)
        sizes, c = self.split(self.output_shape)
        h, w = (int(n) for n in sizes)
        down, across = self.array_taps((h, w), coordinates)
        made = np.zeros((g.shape[0], h, w, int(c)), g.dtype)
        batch = np.broadcast_to(positions(g.shape[0])[:, None, None], coordinates.shape[:3])
        for a, b in product(range(len(down.positions)), range(len(across.positions))):
            rows, has_row, _ = inside_positions(down.positions[a].astype(np.int64), h, self.boundary)
            columns, has_column, _ = inside_positions(across.positions[b].astype(np.int64), w, self.boundary)
            weight = np.where(has_row & has_column, down.weights[a] * across.weights[b], 0)
            np.add.at(made, (batch, rows, columns), g * weight[..., None])
        made = made.astype(gradient.dtype)
        return np.moveaxis(made, 3, 1).copy() if self.layout == "NCHW" else made

    def loops(self, b: Any, outs: tuple[Buffer, ...], gradient: Buffer, coordinates: Buffer) -> None:
        """Batch elements in parallel, channels as lanes."""
        made = outs[0]
        sizes, channels = self.split(made.shape)
        with b.loop(made.shape[0], kind="parallel") as n:
            with b.nest(sizes, kind="serial") as (i, j), b.loop(channels, kind="vector") as c:
                b.store(made, self.joined(n, (i, j), c), 0)
            with b.nest(coordinates.shape[1:3], kind="serial") as (i, j):
                down, across = self.expression_taps(sizes, (i, j), n, coordinates)
                for p, q in product(range(len(down.positions)), range(len(across.positions))):
                    y, x = cast(down.positions[p], int64), cast(across.positions[q], int64)
                    weight = b.let(down.weights[p] * across.weights[q])
                    if self.boundary != "constant":
                        y, x = map_inside(y, sizes[0], self.boundary)[0], map_inside(x, sizes[1], self.boundary)[0]
                    y, x = b.let(y), b.let(x)
                    with b.loop(channels, kind="vector") as c:
                        value = widened(gradient[self.joined(n, (i, j), c)]) * weight
                        index = self.joined(n, (y, x), c)
                        b.store(
                            made, index, cast(value, made.dtype), "add", "drop" if self.boundary == "constant" else ""
                        )

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        places = np.random.default_rng(3).uniform(-1.6, 1.6, (2, 2, 3, 2)).astype(np.float32)
        for padding in ("constant", "reflect", "symmetric", "clamp_to_edge"):
            yield sample((2, 2, 3, 2), places, padding_mode=padding, output_shape=(2, 3, 4, 2))
        yield sample((2, 1, 2, 3), places, layout="NCHW", mode="cubic", output_shape=(2, 1, 3, 4))
        yield sample((2, 2, 3, 1), places, mode="nearest", align_corners=True, output_shape=(2, 3, 4, 1))


class SampleGridCoordinatesGradient(Sampling, name="sample_grid_coordinates_gradient", internal=True):
    """Cotangent of the coordinates of `sample_grid`."""

    gradient: Operand = operand("...", "float")
    x: Operand = operand("...", "float")
    coordinates: Operand = operand("n i j two", "float")

    def infer(self, gradient: TensorType, x: TensorType, coordinates: TensorType) -> TensorType:
        self.check(x, coordinates)
        return coordinates

    def numpy(self, gradient: Array, x: Array, coordinates: Array) -> Array:
        first = self.layout == "NCHW"
        g, image = (np.moveaxis(wide(a), 1, 3) if first else wide(a) for a in (gradient, x))
        down, across = self.array_taps((image.shape[1], image.shape[2]), coordinates)
        made = np.zeros(coordinates.shape, g.dtype)
        for a, b in product(range(len(down.positions)), range(len(across.positions))):
            each = (self.gathered(image, down.positions[a], across.positions[b]) * g).sum(-1)
            made[..., 0] += each * down.weights[a] * across.slopes[b] * self.slope(image.shape[2])
            made[..., 1] += each * down.slopes[a] * across.weights[b] * self.slope(image.shape[1])
        return made.astype(coordinates.dtype)

    def compute(self, out: tuple[Axis, ...], gradient: Buffer, x: Buffer, coordinates: Buffer) -> Expr:
        n, i, j, which = out
        sizes, channels = self.split(x.shape)
        down, across = self.expression_taps(sizes, (i, j), n, coordinates)
        c = Axis(channels, "c")
        along_x = which.eq(0)
        made: Expr | None = None
        for p, q in product(range(len(down.positions)), range(len(across.positions))):
            weight = where(along_x, down.weights[p] * across.slopes[q], down.slopes[p] * across.weights[q])
            value = self.loaded(x, n, down.positions[p], across.positions[q], c) * weight
            made = value if made is None else made + value
        assert made is not None
        step = [self.slope(_number(size, made)) for size in sizes]
        scale = [s if isinstance(s, Expr) else const(s, made.dtype) for s in step]
        whole = total(made * widened(gradient[self.joined(n, (i, j), c)]), c)
        return cast(whole * where(along_x, scale[1], scale[0]), coordinates.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        places = np.random.default_rng(3).uniform(-1.6, 1.6, (2, 2, 3, 2)).astype(np.float32)
        for mode in ("bilinear", "cubic"):
            yield sample((2, 2, 3, 2), (2, 3, 4, 2), places, mode=mode)
        yield sample((2, 1, 2, 3), (2, 1, 3, 4), places, layout="NCHW", normalize_coordinates=False)


sample_grid, sample_grid_nearest = F.sample_grid, F.sample_grid_nearest
