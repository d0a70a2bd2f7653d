"""Loop kernels in LLVM: tiles, stages, vectors along the innermost axis, borders and tails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from stitchwork.backends.cpu import scalars
from stitchwork.backends.cpu.emitter import UNROLLED, Emitter, Place, scatter, store
from stitchwork.backends.cpu.kernel import KernelFunction
from stitchwork.backends.cpu.llvm import V, i64, lanes
from stitchwork.backends.cpu.target import Target
from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import int64
from stitchwork.loops.affine import Affine, affine, row_major
from stitchwork.loops.expr import Axis, Buffer, Call, Cast, Expr, Load, Reduce, walk
from stitchwork.loops.flatten import flatten
from stitchwork.loops.kernel import LoopKernel, Stage
from stitchwork.loops.math import expand
from stitchwork.loops.tiling import Interval, Tiling, tile_group, tile_single

_SMALL = 24  # nodes of an expression that leaves registers free for twice the lanes
_MAX_LANES = 64


def emit_loop_kernel(fn: KernelFunction, kernel: LoopKernel, target: Target) -> None:
    """Write the kernel's function: items are the tiles of its root."""
    stages = [replace(s, value=expand(s.value)) for s in kernel.stages]
    if len(stages) == 1:
        stages = [flatten(stages[0])]
        tiling = tile_single(stages[0])
    else:
        found = tile_group(stages)
        assert found is not None, f"{kernel.name} does not tile"
        tiling = found
    _Tiles(fn, stages, tiling, target).emit()


class _Tiles:
    def __init__(self, fn: KernelFunction, stages: list[Stage], tiling: Tiling, target: Target) -> None:
        self.fn, self.stages, self.tiling, self.target = fn, stages, tiling, target
        self.scratch = self._scratch_offsets()
        self.places: dict[Buffer, Place] = {}

    def emit(self) -> None:
        fn = self.fn
        counts = [(axis, t, dims.ceildiv(axis.extent, t)) for axis, t in self.tiling.divided]
        fn.items = dims.product(c for _, _, c in counts)
        fn.work = dims.product(a.extent for a in self.stages[-1].axes) * _cost(self.stages)
        sizes = [fn.size(c) for _, _, c in counts]
        with fn.fn.loop(fn.lo, fn.hi) as item:
            origins = self._origins(item.index, [(a, t) for a, t, _ in counts], sizes)
            for stage in self.stages:
                self._stage(stage, origins)
        fn.fn.ret()

    def _scratch_offsets(self) -> dict[Buffer, tuple[Size, tuple[Interval, ...]]]:
        offset: Size = 0
        made: dict[Buffer, tuple[Size, tuple[Interval, ...]]] = {}
        for stage in self.stages[:-1]:
            region = self.tiling.regions[stage]
            made[stage.buffer] = (offset, region)
            elements = dims.product(i.width for i in region)
            offset = offset + dims.ceildiv(elements * stage.buffer.dtype.itemsize, 64) * 64 + 64
        self.fn.scratch_bytes = offset
        return made

    def _origins(self, item: V, divided: list[tuple[Axis, Size]], counts: list[V]) -> dict[Axis, V]:
        """The first position of a tile along every divided axis."""
        fn = self.fn
        origins: dict[Axis, V] = {}
        rest = item
        for k in range(len(divided) - 1, -1, -1):
            axis, t = divided[k]
            number = fn.fn.srem(rest, counts[k]) if k else rest
            rest = fn.fn.sdiv(rest, counts[k]) if k else rest
            origins[axis] = fn.fn.mul(number, fn.size(t))
        return origins

    def _stage(self, stage: Stage, origins: dict[Axis, V]) -> None:
        fn = self.fn
        bounds: list[tuple[V, V]] = []
        lows: list[V] = []
        for axis, interval in zip(stage.axes, self.tiling.regions[stage], strict=True):
            low = fn.size(interval.low.constant)
            for a, c in interval.low.terms.items():
                low = fn.fn.add(low, fn.fn.mul(origins[a], fn.size(c)))
            high = fn.fn.minimum(fn.fn.add(low, fn.size(interval.width)), fn.size(axis.extent))
            if isinstance(axis.extent, int) and interval.width == axis.extent and not interval.low.terms:
                high = i64(axis.extent)
            lows.append(low)
            bounds.append((low if _never_negative(interval) else fn.fn.maximum(low, 0), high))
        if stage.buffer in self.scratch:
            self._place_scratch(stage.buffer, lows)
        StageEmission(fn, stage, self._place, self.target).emit(bounds)

    def _place_scratch(self, buffer: Buffer, lows: list[V]) -> None:
        """A scratch buffer's place, shifted so that the stage's own positions index it."""
        fn = self.fn
        offset, region = self.scratch[buffer]
        strides = _strides(region)
        pointer = fn.fn.gep(fn.scratch, fn.size(offset), "i8")
        shift: V = i64(0)
        for low, stride in zip(lows, strides, strict=True):
            shift = fn.fn.add(shift, fn.fn.mul(low, fn.size(stride)))
        shifted = fn.fn.gep(pointer, fn.fn.sub(0, shift), scalars.memory_type(buffer.dtype))
        self.places[buffer] = Place(shifted, strides)

    def _place(self, buffer: Buffer) -> Place:
        return self.places.get(buffer) or self.fn.place(buffer)


def _strides(region: tuple[Interval, ...]) -> tuple[Size, ...]:
    return row_major(tuple(i.width for i in region))


def _never_negative(interval: Interval) -> bool:
    constant = interval.low.constant
    return isinstance(constant, int) and constant >= 0


def _cost(stages: list[Stage]) -> int:
    """Rough work per element of the root, in vector-friendly operations."""
    total = 0
    for stage in stages:
        factor = 1
        for e in walk(stage.value):
            if isinstance(e, Reduce):
                n = dims.product(a.extent for a in e.axes)
                factor = max(factor, n if isinstance(n, int) else 64)
        total += factor * max(1, len(walk(stage.value)) // 4)
    return total


@dataclass(eq=False)
class StageEmission:
    """Loops over one stage's region."""

    fn: KernelFunction
    stage: Stage
    place: Callable[[Buffer], Place]
    target: Target

    def __post_init__(self) -> None:
        self.em = Emitter(self.fn.fn, self.fn.sizes, self.place)

    def emit(self, bounds: list[tuple[V, V]]) -> None:
        """Compute and store the region given by (low, high) along every axis."""
        axis, width = self._vector()
        if axis is None:
            self.em.reduce_lanes = width
            self.em.masks = self.target.has_masked_ops
        self._nest(list(self.stage.axes), bounds, axis, width)

    def _nest(self, axes: list[Axis], bounds: list[tuple[V, V]], vector: Axis | None, width: int) -> None:
        if not axes:
            with self.em.scope():
                self._store(self.em.emit(self.stage.value), None)
            return
        axis, (low, high) = axes[0], bounds[0]
        self.em.hoist(self.stage.value, frozenset(axes))
        if axis is vector:
            self._along(axis, low, high, width)
            return
        with self.fn.fn.loop(low, high) as loop, self.em.scope(axis):
            self.em.axes[axis] = loop.index
            self._nest(axes[1:], bounds[1:], vector, width)

    # --- the vector axis --------------------------------------------------------------------------------------------
    def _vector(self) -> tuple[Axis | None, int]:
        """The axis to run lanes along and how many; None where lanes run along a reduction instead (or not at all)."""
        stage = self.stage
        nodes = walk(stage.value)
        reductions = [e for e in nodes if isinstance(e, Reduce) and not _is_unrolled(e)]
        width = self._lanes(nodes)
        axis = stage.axes[-1] if stage.axes else None
        if reductions:
            inner = [e for e in nodes if isinstance(e, Load) and any(_follows(e, r.axes[-1]) for r in reductions)]
            along = sum(1 for e in inner if axis is not None and _follows(e, axis))
            if axis is None or len(inner) > along or (isinstance(axis.extent, int) and axis.extent < 4):
                return None, self._limit(4 * width, max((r.axes[-1].extent for r in reductions), key=_rank))
            return axis, self._limit(4 * width, axis.extent)
        if axis is None:
            return None, 1
        return axis, self._limit(2 * width if len(nodes) <= _SMALL else width, axis.extent)

    def _lanes(self, nodes: list[Expr]) -> int:
        sizes = [self.stage.buffer.dtype.itemsize]
        for e in nodes:
            if isinstance(e, Load | Call | Cast) and (e.dtype is not int64 or isinstance(e, Load)):
                register = lanes(scalars.register_type(e.dtype))[0]
                sizes.append({"double": 8, "float": 4, "i64": 8, "i32": 4, "i16": 2}.get(register, 1))
        return max(1, self.target.vector_bytes // max(sizes))

    def _limit(self, width: int, n: Size) -> int:
        width = min(width, _MAX_LANES)
        while isinstance(n, int) and width > 1 and width // 2 >= n:
            width //= 2
        return width

    def _along(self, axis: Axis, low: V, high: V, width: int) -> None:
        """Borders one element at a time, the rest in vectors."""
        first, last = self._interior(axis, low, high)
        if first is not None and last is not None:
            self._scalars(axis, low, first)
            self._vectors(axis, first, last, width)
            self._scalars(axis, last, high)
        else:
            self._vectors(axis, low, high, width)

    def _scalars(self, axis: Axis, low: V, high: V) -> None:
        with self.fn.fn.loop(low, high) as loop:
            self.em.axes[axis] = loop.index
            with self.em.lanes(axis, 1):
                self._store(self.em.emit(self.stage.value), None)

    def _vectors(self, axis: Axis, low: V, high: V, width: int) -> None:
        fn = self.fn.fn
        if width == 1:
            self._scalars(axis, low, high)
            return
        count = fn.sub(high, low)
        whole = fn.add(low, fn.sub(count, fn.srem(count, width)))
        if not (isinstance(count.literal, int) and count.literal < width):
            with fn.loop(low, whole, width) as loop:
                self.em.axes[axis] = loop.index
                with self.em.lanes(axis, width, None, True):
                    self._store(self.em.full(self.stage.value), None)
        if count.literal is not None and count.literal % width == 0:
            return
        if not self.target.has_masked_ops:
            self._scalars(axis, whole, high)
            return
        with fn.loop(whole, high, width) as loop:
            self.em.axes[axis] = loop.index
            mask = fn.tail_mask(fn.sub(high, loop.index), width)
            with self.em.lanes(axis, width, mask, True):
                self._store(self.em.full(self.stage.value), mask)

    def _interior(self, axis: Axis, low: V, high: V) -> tuple[V | None, V | None]:
        """The part of [low, high) where no index that follows `axis` leaves its buffer; None where it is everything."""
        fn = self.fn.fn
        first: V | None = None
        last: V | None = None
        for e in walk(self.stage.value):
            if not isinstance(e, Load) or not e.boundary:
                continue
            for index, n in zip(e.index, e.buffer.shape, strict=True):
                form = affine(index)
                c = form.coefficient(axis) if form is not None else 0
                if form is None or not isinstance(c, int) or c == 0:
                    continue
                start, stop = self._inside_range(form.without(axis), c, n)
                first = start if first is None else fn.maximum(first, start)
                last = stop if last is None else fn.minimum(last, stop)
        if first is None or last is None:
            return None, None
        first = fn.minimum(fn.maximum(first, low), high)
        return first, fn.maximum(fn.minimum(last, high), first)

    def _inside_range(self, rest: Affine, c: int, n: Size) -> tuple[V, V]:
        """Where 0 <= c * x + rest < n for every value of the reduction axes in `rest`: x in [start, stop)."""
        fn = self.fn.fn
        smallest = self.fn.size(rest.constant)
        largest = smallest
        for a, k in rest.terms.items():
            if a in self.em.axes and a in self.stage.axes:
                step = fn.mul(self.em.axes[a], self.fn.size(k))
                smallest, largest = fn.add(smallest, step), fn.add(largest, step)
            else:
                span = self.fn.size((a.extent - 1) * k)
                smallest, largest = fn.add(smallest, fn.minimum(span, 0)), fn.add(largest, fn.maximum(span, 0))
        top = fn.sub(self.fn.size(n), 1)
        if c > 0:
            start = self._ceil(fn.sub(0, smallest), c)
            stop = fn.add(self._floor(fn.sub(top, largest), c), 1)
        else:
            start = self._ceil(fn.sub(largest, top), -c)
            stop = fn.add(self._floor(smallest, -c), 1)
        return start, stop

    def _floor(self, x: V, c: int) -> V:
        return x if c == 1 else scalars.call(self.fn.fn, "floordiv", int64, [x, i64(c)])

    def _ceil(self, x: V, c: int) -> V:
        return x if c == 1 else self._floor(self.fn.fn.add(x, c - 1), c)

    # --- stores -----------------------------------------------------------------------------------------------------
    def _store(self, value: V, mask: V | None) -> None:
        em, fn, stage = self.em, self.fn.fn, self.stage
        place = self.place(stage.buffer)
        form = Affine({})
        for index, stride in zip(stage.index or stage.axes, place.strides, strict=True):
            own = affine(index)
            assert own is not None, "stores are at affine positions"
            form = form + own.scaled(stride)
        raw = scalars.to_memory(fn, value, stage.buffer.dtype)
        element = scalars.memory_type(stage.buffer.dtype)
        first = em.scalar_affine(form)
        align = stage.buffer.dtype.itemsize
        step = form.coefficient(em.vector) if em.vector is not None else 0
        if raw.type[0] != "<" or (isinstance(step, int) and step == 1):
            store(fn, raw, fn.gep(place.pointer, first, element), mask, align)
            return
        offsets = fn.splat(first, em.width)
        stride = fn.splat(em.sizes(step), em.width)
        offsets = fn.binary("add", offsets, fn.binary("mul", fn.iota(em.width), stride))
        scatter(fn, raw, place.pointer, offsets, mask, align)


def _is_unrolled(e: Reduce) -> bool:
    n = dims.product(a.extent for a in e.axes)
    return isinstance(n, int) and 0 < n <= UNROLLED


def _follows(load: Load, axis: Axis) -> bool:
    """True where neighbouring positions of the axis are neighbours in memory."""
    last = affine(load.index[-1]) if load.index else None
    return last is not None and last.coefficient(axis) == 1


def _rank(n: Size) -> float:
    return float(n) if isinstance(n, int) else 1e18
