"""Which part of each stage a tile of the root needs: bounds inference over affine accesses, and the choice of tiles.

The root's axes are divided into tiles; every other stage computes, tile by tile, just the region that later stages load
from it. Where neighbouring tiles need overlapping regions (stencil chains), the overlap is computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.loops.affine import Affine, affine
from stitchwork.loops.expr import Axis, Buffer, Expr, Load, Reduce, walk
from stitchwork.loops.kernel import Stage

_ROW = 1  # tile size of an outer axis that no stage overlaps along
_VECTOR_ROW = 256  # tile size of the innermost axis where all stages follow it
_OVERLAPPED = 32  # tile size of an axis along which regions overlap
_OVERLAPPED_OUTER = 8  # the same for a third and fourth overlapped axis
_SQUARE = 128  # tile sides of a stage that transposes
_CHUNK = 16384  # elements per tile of a kernel with a single stage
_SCRATCH_LIMIT = 512 * 1024  # bytes of scratch that stay close to a core
_SERIAL_LIMIT = 65536  # elements that one thread may as well compute alone
_UNKNOWN = 256  # what an unknown size counts as in estimates
_OVERLAP_LIMIT = 1.6  # work repeated by overlapping tiles, at most


@dataclass(frozen=True)
class Interval:
    """Positions [low, low + width) along one dim; `low` is affine in the origins of the root's tiled axes."""

    low: Affine
    width: Size


@dataclass(eq=False)
class Tiling:
    """Tile sizes of the root's axes (None: the axis is not divided), and every stage's region of a tile."""

    sizes: dict[Axis, Size | None]
    regions: dict[Stage, tuple[Interval, ...]]

    @property
    def divided(self) -> list[tuple[Axis, Size]]:
        return [(a, t) for a, t in self.sizes.items() if t is not None]


def tile_single(stage: Stage) -> Tiling:
    """The tiling of a kernel with one stage: chunks of about _CHUNK elements of work, innermost axes first."""
    budget = _CHUNK
    for e in walk(stage.value):
        if isinstance(e, Reduce):
            work = dims.product(a.extent for a in e.axes)
            budget = min(budget, max(1, _CHUNK // work) if isinstance(work, int) and work else 64)
    sizes: dict[Axis, Size | None] = {}
    across = _transposed(stage)
    for axis in reversed(stage.axes):
        n = axis.extent
        if across is not None:
            sizes[axis] = _SQUARE if axis is across or axis is stage.axes[-1] else 1
            continue
        wanted = max(budget, _VECTOR_ROW) if axis is stage.axes[-1] else budget
        sizes[axis] = max(1, min(n, wanted)) if isinstance(n, int) else wanted
        used = n if isinstance(n, int) else wanted
        budget = max(1, budget // max(1, used))
    ordered = {a: sizes[a] for a in stage.axes}
    return Tiling(ordered, {stage: _root_region(stage, ordered)})


def _transposed(stage: Stage) -> Axis | None:
    """The axis along which a load's elements are neighbours in memory, where the result's are along another: tiles that
    are short both ways keep the lines that they touch in cache."""
    for e in walk(stage.value):
        if not isinstance(e, Load) or not e.index or not stage.axes:
            continue
        form = affine(e.index[-1])
        if form is not None and form.coefficient(stage.axes[-1]) not in (0, 1):
            for axis in stage.axes[:-1]:
                if form.coefficient(axis) == 1:
                    return axis
    return None


def tile_group(stages: list[Stage]) -> Tiling | None:
    """The tiling of several stages (the last is the root), or None where computing them together does not pay."""
    root = stages[-1]
    if any(s.buffer.dtype.is_complex for s in stages):
        return None
    followed = [a for a in root.axes if _all_follow(stages, a)]
    overlapped = [a for a in followed if _overlaps(stages, a)]
    sizes: dict[Axis, Size | None] = dict.fromkeys(root.axes)
    for axis in followed:
        sizes[axis] = _tile_size(axis, root, overlapped)
    tiling = Tiling(sizes, _regions(stages, sizes))
    while not _fits(tiling, stages) and any(_shrink(sizes, a) for a in overlapped):
        tiling = Tiling(sizes, _regions(stages, sizes))
    if not _fits(tiling, stages):
        return None
    if not followed and not _is_small(stages):
        return None
    return tiling if _overlap_factor(tiling, stages) <= _OVERLAP_LIMIT else None


def _tile_size(axis: Axis, root: Stage, overlapped: list[Axis]) -> Size:
    n = axis.extent
    if axis in overlapped:
        from_inside = len(overlapped) - 1 - overlapped.index(axis)
        wanted = _VECTOR_ROW if axis is root.axes[-1] else _OVERLAPPED if from_inside <= 1 else _OVERLAPPED_OUTER
    else:
        wanted = _VECTOR_ROW if axis is root.axes[-1] else _ROW
    return max(1, min(n, wanted)) if isinstance(n, int) else wanted


def _shrink(sizes: dict[Axis, Size | None], axis: Axis) -> bool:
    t = sizes[axis]
    if not isinstance(t, int) or t <= 8:
        return False
    sizes[axis] = t // 2
    return True


def _all_follow(stages: list[Stage], axis: Axis) -> bool:
    """True where every stage's region moves with the origin of `axis`: dividing it repeats no stage as a whole."""
    if isinstance(axis.extent, int) and axis.extent <= 1:
        return False
    sizes: dict[Axis, Size | None] = dict.fromkeys(stages[-1].axes)
    sizes[axis] = 1
    regions = _regions(stages, sizes)
    return all(any(axis in i.low.terms for i in regions[s]) for s in stages)


def _overlaps(stages: list[Stage], axis: Axis) -> bool:
    sizes: dict[Axis, Size | None] = dict.fromkeys(stages[-1].axes)
    sizes[axis] = 1
    regions = _regions(stages, sizes)
    return any(axis in i.low.terms and i.width != 1 for s in stages for i in regions[s])


def _root_region(root: Stage, sizes: dict[Axis, Size | None]) -> tuple[Interval, ...]:
    region: list[Interval] = []
    for axis in root.axes:
        t = sizes[axis]
        region.append(Interval(Affine({}), axis.extent) if t is None else Interval(Affine({axis: 1}), t))
    return tuple(region)


def _regions(stages: list[Stage], sizes: dict[Axis, Size | None]) -> dict[Stage, tuple[Interval, ...]]:
    """Regions of all stages, consumers before producers."""
    root = stages[-1]
    regions = {root: _root_region(root, sizes)}
    needed: dict[Buffer, list[tuple[Interval, ...]]] = {}
    for stage in reversed(stages):
        if stage is not root:
            regions[stage] = _hull(stage, needed[stage.buffer])
        bounds = dict(zip(stage.axes, regions[stage], strict=True))
        for load in _stage_loads(stage):
            needed.setdefault(load.buffer, []).append(_loaded(load, bounds))
    return regions


def _stage_loads(stage: Stage) -> list[Load]:
    return [e for e in walk(stage.value) if isinstance(e, Load)]


def _loaded(load: Load, bounds: dict[Axis, Interval]) -> tuple[Interval, ...]:
    return tuple(
        _full(n) if load.boundary in ("periodic", "antiperiodic") else _interval(index, n, bounds)
        for index, n in zip(load.index, load.buffer.shape, strict=True)
    )


def _full(n: Size) -> Interval:
    return Interval(Affine({}), n)


def _interval(index: Expr, n: Size, bounds: dict[Axis, Interval]) -> Interval:
    """The positions that an index takes while its axes run over their bounds; the whole dim where that is not known."""
    form = affine(index)
    if form is None:
        return _full(n)
    low, width = Affine({}, form.constant), 1
    for axis, c in form.terms.items():
        own = bounds.get(axis, _full(axis.extent))
        if not isinstance(c, int):
            return _full(n)
        if own.width == n and not own.low.terms and c == 1 and len(form.terms) == 1:
            return Interval(own.low + Affine({}, form.constant), n)
        if not isinstance(own.width, int):
            return _full(n)
        span = abs(c) * (own.width - 1)
        low = low + own.low.scaled(c) + Affine({}, -span if c < 0 else 0)
        width += span
    return Interval(low, width)


def _hull(stage: Stage, many: list[tuple[Interval, ...]]) -> tuple[Interval, ...]:
    return tuple(_join([region[d] for region in many], a.extent) for d, a in enumerate(stage.axes))


def _join(intervals: list[Interval], n: Size) -> Interval:
    first = intervals[0]
    low: Size = first.low.constant
    high: Size = low + first.width
    for i in intervals[1:]:
        if i.low.terms != first.low.terms:
            return _full(n)
        low, high = dims.minimum(low, i.low.constant), dims.maximum(high, i.low.constant + i.width)
    width = high - low
    if isinstance(width, int) and isinstance(n, int) and width >= n and not first.low.terms:
        return _full(n)
    return Interval(Affine(first.low.terms, low), width)


def scratch_bytes(region: tuple[Interval, ...], buffer: Buffer) -> Size:
    """Memory that one tile of a stage takes."""
    return dims.product(i.width for i in region) * buffer.dtype.itemsize


def _fits(tiling: Tiling, stages: list[Stage]) -> bool:
    """True where a tile's scratch memory stays close to a core: rows of unknown length do, unknown images not."""
    sizes = (scratch_bytes(tiling.regions[s], s.buffer) for s in stages[:-1])
    return sum(dims.estimate(n, _UNKNOWN) for n in sizes) <= _SCRATCH_LIMIT


def _is_small(stages: list[Stage]) -> bool:
    return all(isinstance(n := dims.product(a.extent for a in s.axes), int) and n <= _SERIAL_LIMIT for s in stages)


def _overlap_factor(tiling: Tiling, stages: list[Stage]) -> float:
    worst = 1.0
    for stage in stages[:-1]:
        factor = 1.0
        for interval in tiling.regions[stage]:
            for axis, c in interval.low.terms.items():
                t = tiling.sizes[axis]
                if isinstance(t, int) and isinstance(interval.width, int) and isinstance(c, int):
                    factor *= interval.width / (t * max(abs(c), 1))
        worst = max(worst, factor)
    return worst
