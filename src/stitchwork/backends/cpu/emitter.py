"""Emission of loop expressions, one scalar at a time or many lanes along one axis."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stitchwork.backends.cpu import scalars
from stitchwork.backends.cpu.llvm import Function, V, i64, lanes, mangle, vector
from stitchwork.ir import dims
from stitchwork.ir.dims import Atom, Dim, Size
from stitchwork.ir.dtypes import bool_, int64
from stitchwork.loops.affine import Affine, affine
from stitchwork.loops.expr import (
    Axis,
    Bitcast,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Extent,
    Load,
    RareSelect,
    Reduce,
    children,
)
from stitchwork.loops.nest import Local

UNROLLED = 32  # a reduction over this many static positions is written out
_BLOCK = 1024  # rounds after which a sum of floats starts anew: its rounding error grows with rounds in a row


@dataclass(frozen=True)
class Place:
    """Where a buffer's elements are: an address and element strides, which may be sizes known at run time."""

    pointer: V
    strides: tuple[Size, ...]


class Sizes:
    """Symbolic sizes as i64 values of one function, computed in its entry block."""

    def __init__(self, fn: Function, symbols: dict[str, V]) -> None:
        self.fn, self.symbols = fn, symbols
        self.known: dict[Size, V] = {}
        self.atoms: dict[Atom, V] = {}  # values of functions: many sizes share them

    def __call__(self, size: Size) -> V:
        if isinstance(size, int):
            return i64(size)
        found = self.known.get(size)
        if found is None:
            with self.fn.in_prologue():
                found = self.known[size] = self._compute(size)
        return found

    def _compute(self, size: Dim) -> V:
        fn = self.fn
        total: V = i64(0)
        for monomial, coefficient in size.terms.items():
            term: V = i64(coefficient)
            for atom in monomial:
                term = fn.mul(term, self._factor(atom))
            total = fn.add(total, term)
        return total

    def _factor(self, atom: Atom) -> V:
        if not atom.args:
            return self.symbols[atom.name]
        if atom not in self.atoms:
            self.atoms[atom] = self._function(atom.name, *(self(a) for a in atom.args))
        return self.atoms[atom]

    def _function(self, name: str, a: V, b: V) -> V:
        fn, divisor = self.fn, b.literal or 0
        if name == "floordiv" and divisor > 0 and divisor & (divisor - 1) == 0:
            return fn.binary("ashr", a, i64(divisor.bit_length() - 1))
        if name in ("min", "max"):
            return fn.minimum(a, b) if name == "min" else fn.maximum(a, b)
        if name == "broadcast":
            return fn.select(fn.icmp("eq", b, i64(1)), a, b)
        return scalars.call(fn, name, int64, [a, b])


class Emitter:
    """Emits expressions at the current position of a function.

    `axes` gives loop variables their i64 values. With `vector` set, expressions that depend on that axis become vectors
    of `width` lanes, the first at the axis' value; others stay scalar until they meet a vector. `mask` marks the lanes
    that exist (None: all). `inside` promises that indices that follow the vector axis are within their buffers.
    """

    def __init__(self, fn: Function, sizes: Sizes, place: Callable[[Buffer], Place]) -> None:
        self.fn, self.sizes, self.place = fn, sizes, place
        self.axes: dict[Axis, V] = {}
        self.locals: dict[Local, V] = {}
        self.vector: Axis | None = None
        self.width = 1
        self.mask: V | None = None
        self.inside = False
        self.reduce_lanes = 1  # lanes along the last axis of reductions, where there is no vector axis
        self.masks = False  # whether tails use masks
        self.registers: dict[Buffer, V] = {}  # buffers that stand for a value in a register, whatever the index
        self._layers: list[tuple[frozenset[Axis], dict[Any, Any]]] = [(frozenset(), {})]
        self._depends: dict[Expr, frozenset[Axis]] = {}

    # --- scopes -------------------------------------------------------------------------------------------------------
    @contextmanager
    def lanes(self, axis: Axis | None, width: int, mask: V | None = None, inside: bool = False) -> Generator[None]:
        """Emit along `axis` with this many lanes."""
        before = self.vector, self.width, self.mask, self.inside
        self.vector, self.width, self.mask, self.inside = (axis if width > 1 else None), width, mask, inside
        with self.scope(*([axis] if axis is not None else [])):
            yield
        self.vector, self.width, self.mask, self.inside = before

    @contextmanager
    def scope(self, *axes: Axis) -> Generator[None]:
        """A region of code in which `axes` take values of their own. What was emitted before is reused inside where it
        does not vary with them; what is emitted inside is forgotten at the end."""
        self._layers.append((frozenset(axes), {}))
        yield
        self._layers.pop()

    def depends(self, e: Expr) -> frozenset[Axis]:
        """The axes an expression's value varies with."""
        found = self._depends.get(e)
        if found is None:
            found = frozenset((e,)) if isinstance(e, Axis) else frozenset[Axis]().union(*map(self.depends, children(e)))
            if isinstance(e, Reduce):
                found -= frozenset(e.axes)
            self._depends[e] = found
        return found

    def _known(self, key: Any, needs: frozenset[Axis]) -> Any:
        """What was emitted for a key and still holds here, or None."""
        for axes, memo in reversed(self._layers):
            if key in memo:
                return memo[key]
            if axes & needs:
                return None
        return None

    def hoist(self, body: Expr, axes: frozenset[Axis]) -> None:
        """Emit, here, every part of `body` that does not vary with `axes`: before the loops over them, that is."""
        seen: set[Expr] = set()

        def go(x: Expr, axes: frozenset[Axis]) -> None:
            if x in seen or isinstance(x, Const | Axis | Local | Extent):
                return
            seen.add(x)
            if not self.depends(x) & axes:
                self.emit(x)
                return
            if isinstance(x, Load) and x.boundary and x.buffer not in self.registers:
                for index, n in zip(x.index, x.buffer.shape, strict=True):
                    if not self.depends(index) & axes:
                        form = affine(index)
                        if form is None or self._may_leave(x, form, n):
                            self._mapped(x.boundary, index, n)
            inner = axes | frozenset(x.axes) if isinstance(x, Reduce) else axes
            for c in children(x):
                go(c, inner)

        go(body, axes)

    # --- expressions --------------------------------------------------------------------------------------------------
    def emit(self, e: Expr) -> V:
        """The value of an expression in register form: a scalar, or a vector where it varies along the vector axis."""
        if isinstance(e, Local):
            return self._emit(e)
        found = self._known(e, self.depends(e))
        if found is None:
            found = self._layers[-1][1][e] = self._emit(e)
        return found

    def _emit(self, e: Expr) -> V:
        match e:
            case Const():
                return scalars.literal(e.value, e.dtype)
            case Extent():
                return self.sizes(e.size)
            case Axis():
                return self._axis(e)
            case Local():
                return self.fn.load(scalars.register_type(e.dtype), self.locals[e], 8)
            case RareSelect():
                return self._rare(e)
            case Call():
                args = self.level([self.emit(a) for a in e.args])
                dtype = e.dtype if e.fn == "select" else e.args[0].dtype
                return scalars.call(self.fn, e.fn, dtype, args)
            case Cast():
                return scalars.cast(self.fn, self.emit(e.x), e.x.dtype, e.dtype)
            case Bitcast():
                return scalars.bitcast(self.fn, self.emit(e.x), e.x.dtype, e.dtype)
            case Load():
                return self._load(e)
            case Reduce():
                return self._reduce(e)
            case _:
                raise AssertionError(f"cannot emit {type(e).__name__}")

    def _rare(self, e: RareSelect) -> V:
        """The usual value, and code for the other that runs only where a lane needs it."""
        fn = self.fn
        common, usual = self.level([self.emit(e.args[0]), self.emit(e.args[1])])
        before = fn.block
        rare, done = fn.new_block("rare"), fn.new_block("usual")
        all_common = common
        if common.type != "i1":
            wanted = common if self.mask is None else fn.binary("or", common, self._inverted(self.mask))
            all_common = fn.call(f"llvm.vector.reduce.and.v{self.width}i1", "i1", [wanted])
        fn.cbr(all_common, done, rare)
        fn.position(rare)
        with self.scope():
            other = fn.select(*self.level([common, usual, self.emit(e.args[2])]))
        after = fn.block
        fn.br(done)
        fn.position(done)
        phi = fn.phi(usual.type)
        phi.incoming += [(usual, before), (other, after)]
        return phi.value

    def _inverted(self, mask: V) -> V:
        return scalars.call(self.fn, "not", bool_, [mask])

    def full(self, e: Expr) -> V:
        """As `emit`, widened to all lanes."""
        return self.widen(self.emit(e))

    def widen(self, x: V) -> V:
        return x if self.width == 1 or x.type[0] == "<" else self.fn.splat(x, self.width)

    def level(self, args: list[V]) -> list[V]:
        """Arguments widened where one of them is a vector."""
        return [self.widen(a) for a in args] if any(a.type[0] == "<" for a in args) else args

    def _axis(self, axis: Axis) -> V:
        base = self.axes[axis]
        if axis is not self.vector:
            return base
        fn = self.fn
        return fn.add(fn.splat(base, self.width), fn.iota(self.width))

    def scalar_affine(self, form: Affine) -> V:
        """The value of an affine form at the first lane."""
        total = self.sizes(form.constant)
        for axis, c in form.terms.items():
            total = self.fn.add(total, self.fn.mul(self.axes[axis], self.sizes(c)))
        return total

    # --- loads --------------------------------------------------------------------------------------------------------
    def _load(self, e: Load) -> V:
        if e.buffer in self.registers:
            return self.registers[e.buffer]
        place = self.place(e.buffer)
        known = Affine({})
        other: V | None = None
        condition: V | None = None
        flip: V | None = None
        for index, n, stride in zip(e.index, e.buffer.shape, place.strides, strict=True):
            form = affine(index)
            if form is not None and not self._may_leave(e, form, n):
                known = known + form.scaled(stride)
                continue
            if not e.boundary:
                position = self.emit(index)
            else:
                position, own, odd = self._mapped(e.boundary, index, n)
                condition = own if condition is None else self._both(condition, own) if own is not None else condition
                flip = odd if flip is None else self._xor(flip, odd) if odd is not None else flip
            step = self.level([position, self.sizes(stride)])
            scaled = self._times(*step)
            other = scaled if other is None else self._plus(*self.level([other, scaled]))
        value = scalars.from_memory(self.fn, self._fetch(e, place, known, other), e.dtype)
        if flip is not None:
            negated = scalars.call(self.fn, "neg", e.dtype, [value])
            value = self.fn.select(*self.level([flip, negated, value]))
        if condition is None:
            return value
        fill = scalars.literal(e.fill, e.dtype)
        return self.fn.select(*self.level([condition, value, fill]))

    def _may_leave(self, e: Load, form: Affine, n: Size) -> bool:
        """True where the index may lie outside and has to be looked at."""
        if not e.boundary:
            return False
        if self.inside and self.vector is not None and isinstance(c := form.coefficient(self.vector), int) and c:
            return False
        return not within(form, n)

    def _times(self, a: V, b: V) -> V:
        return self.fn.mul(a, b) if a.type == "i64" else self.fn.binary("mul", a, b)

    def _plus(self, a: V, b: V) -> V:
        return self.fn.add(a, b) if a.type == "i64" else self.fn.binary("add", a, b)

    def _both(self, a: V, b: V) -> V:
        return self.fn.binary("and", *self.level([a, b]))

    def _xor(self, a: V, b: V) -> V:
        return self.fn.binary("xor", *self.level([a, b]))

    def _mapped(self, mode: str, index: Expr, n: Size) -> tuple[V, V | None, V | None]:
        """An index mapped into [0, n) by a boundary mode; whether it was inside (constant); whether to negate."""
        key = (mode, index, n)
        found = self._known(key, self.depends(index))
        if found is None:
            i, size = self.level([self.emit(index), self.sizes(n)])
            found = self._layers[-1][1][key] = self._bring_inside(mode, i, size)
        return found

    def _bring_inside(self, mode: str, i: V, n: V) -> tuple[V, V | None, V | None]:
        fn = self.fn
        zero, one = self._like(i, 0), self._like(i, 1)
        if mode == "constant":
            inside = fn.icmp("ult", i, n)
            return fn.select(inside, i, zero), inside, None
        last = self._index("max", self._index("sub", n, one), zero)
        if mode == "clamp":
            return self._index("max", self._index("min", i, last), zero), None, None
        if mode in ("reflect", "symmetric"):
            extra = 0 if mode == "reflect" else 2
            period = self._index("add", self._index("add", last, last), self._like(i, extra))
            period = self._index("max", period, one)
            position = scalars.call(fn, "mod", int64, [i, period])
            mirrored = self._index("sub", self._index("sub", period, position), self._like(i, extra // 2))
            return self._index("min", position, mirrored), None, None
        size = self._index("max", n, one)
        position = scalars.call(fn, "mod", int64, [i, size])
        if mode == "periodic":
            return position, None, None
        wraps = scalars.call(fn, "floordiv", int64, [i, size])
        odd = fn.icmp("ne", fn.binary("and", wraps, one), zero)
        return position, None, odd

    def _index(self, name: str, a: V, b: V) -> V:
        """Index arithmetic, folded on literals."""
        fn = self.fn
        if a.type == "i64":
            return {"add": fn.add, "sub": fn.sub, "min": fn.minimum, "max": fn.maximum}[name](a, b)
        return scalars.call(fn, name, int64, [a, b])

    def _like(self, x: V, value: int) -> V:
        return scalars.literal(value, int64, lanes(x.type)[1])

    def _fetch(self, e: Load, place: Place, known: Affine, other: V | None) -> V:
        """The element(s) at offset `known` + `other`, as memory holds them."""
        fn = self.fn
        element = scalars.memory_type(e.dtype)
        step: Size = known.coefficient(self.vector) if self.vector is not None else 0
        first = self.scalar_affine(known)
        align = max(1, e.dtype.itemsize)
        if other is not None and other.type == "i64":
            first, other = fn.add(first, other), None
        if other is None:
            address = fn.gep(place.pointer, first, element)
            if isinstance(step, int) and step == 0:
                return fn.load(element, address, align)
            if isinstance(step, int) and step == 1:
                type_ = vector(element, self.width)
                if self.mask is not None:
                    return fn.masked_load(type_, address, self.mask, align)
                return fn.load(type_, address, align)
        offsets = fn.splat(first, self.width)
        if not (isinstance(step, int) and step == 0):
            stride = fn.splat(self.sizes(step), self.width)
            offsets = fn.binary("add", offsets, fn.binary("mul", fn.iota(self.width), stride))
        if other is not None:
            offsets = fn.binary("add", offsets, other)
        return gather(fn, element, place.pointer, offsets, self.mask, align)

    # --- reductions ---------------------------------------------------------------------------------------------------
    def _reduce(self, e: Reduce) -> V:
        count = dims.product(a.extent for a in e.axes)
        if isinstance(count, int) and 0 < count <= UNROLLED:
            return self._unrolled(e)
        if self.vector is None and self.reduce_lanes > 1:
            return self._lane_reduce(e)
        state = [self.widen(v) for v in self._start(e)]
        self.hoist(e.body, frozenset(e.axes))
        with self.scope(*e.axes):
            done = self._loops(e, list(e.axes), state, None)
        return self._finish(e, done)

    def _lane_reduce(self, e: Reduce) -> V:
        """A reduction with lanes along its last axis; the lanes are merged at the end."""
        width = self.reduce_lanes
        start = [self.fn.splat(v, width) for v in self._start(e)] + ([] if self.masks else self._start(e))
        self.hoist(e.body, frozenset(e.axes))
        with self.scope(*e.axes):
            done = self._lane_loops(e, list(e.axes), start, None)
        count = len(self._start(e))
        merged = self._merge_lanes(e, done[:count], width)
        if not self.masks:
            merged = self._merge_states(e, merged, done[count:])
        return self._finish(e, merged)

    def _lane_loops(self, e: Reduce, axes: list[Axis], state: list[V], position: V | None) -> list[V]:
        axis, rest = axes[0], axes[1:]
        outer = None
        if e.kind.startswith("arg"):
            outer = i64(0) if position is None else self.fn.mul(position, self.sizes(axis.extent))
        if not rest:
            return self._lane_axis(e, axis, state, outer)

        def round_(index: V, carried: list[V]) -> list[V]:
            self.axes[axis] = index
            inner = None if outer is None else self.fn.add(outer, index)
            self.hoist(e.body, frozenset(rest))
            with self.scope(*rest):
                return self._lane_loops(e, rest, carried, inner)

        return self._rounds(e, self.sizes(axis.extent), 1, state, round_)

    def _lane_axis(self, e: Reduce, axis: Axis, state: list[V], outer: V | None) -> list[V]:
        fn, width = self.fn, self.reduce_lanes
        n = self.sizes(axis.extent)
        whole = fn.sub(n, fn.srem(n, width))
        count = len(self._start(e))
        vectors, single = state[:count], state[count:]
        vectors = self._rounds(
            e, whole, width, vectors, lambda index, carried: self._lane_step(e, axis, index, carried, outer, None)
        )
        if n.literal is not None and n.literal % width == 0:
            return vectors + single
        if self.masks:
            with fn.loop(whole, n, width, carry=vectors) as loop:
                mask = fn.tail_mask(fn.sub(n, loop.index), width)
                stepped = self._lane_step(e, axis, loop.index, loop.carried, outer, mask)
                loop.following = [fn.select(mask, a, b) for a, b in zip(stepped, loop.carried, strict=True)]
            return loop.results
        with fn.loop(whole, n, carry=single) as loop:
            self.axes[axis] = loop.index
            with self.scope(axis):
                loop.following = self.step(e, loop.carried, None if outer is None else fn.add(outer, loop.index))
        return vectors + loop.results

    def _lane_step(self, e: Reduce, axis: Axis, index: V, state: list[V], outer: V | None, mask: V | None) -> list[V]:
        fn = self.fn
        self.axes[axis] = index
        self.vector, self.width, self.mask = axis, self.reduce_lanes, mask
        position = None
        if outer is not None:
            position = fn.add(fn.splat(fn.add(outer, index), self.width), fn.iota(self.width))
        with self.scope(axis):
            following = self.step(e, state, position)
        self.vector, self.width, self.mask = None, 1, None
        return following

    def _merge_lanes(self, e: Reduce, state: list[V], width: int) -> list[V]:
        """One state from a vector of states."""
        fn = self.fn
        if e.kind.startswith("arg"):
            merged = [fn.extract(s, 0) for s in state]
            for lane in range(1, width):
                merged = self._merge_states(e, merged, [fn.extract(s, lane) for s in state])
            return merged
        (value,) = state
        while width > 1:
            half = width // 2
            low, high = (_half(fn, value, width, k) for k in (0, 1))
            value = scalars.call(fn, scalars.COMBINE[e.kind], e.dtype, [low, high])
            width = half
        return [value]

    def _merge_states(self, e: Reduce, a: list[V], b: list[V]) -> list[V]:
        """Two partial results as one; of equal extremes the one at the smaller position."""
        fn = self.fn
        if not e.kind.startswith("arg"):
            return [scalars.call(fn, scalars.COMBINE[e.kind], e.dtype, [a[0], b[0]])]
        dtype = e.body.dtype
        better = scalars.call(fn, "gt" if e.kind == "argmax" else "lt", dtype, [b[0], a[0]])
        equal = scalars.call(fn, "eq", dtype, [a[0], b[0]])
        earlier = fn.binary("and", equal, fn.icmp("slt", b[1], a[1]))
        there = fn.icmp("sge", b[1], i64(0))
        missing = fn.icmp("slt", a[1], i64(0))
        take = fn.binary("and", there, fn.binary("or", missing, fn.binary("or", better, earlier)))
        return [fn.select(take, b[0], a[0]), fn.select(take, b[1], a[1])]

    def _start(self, e: Reduce) -> list[V]:
        """Initial state: the value so far; for arg reductions also its position."""
        if not e.kind.startswith("arg"):
            return [scalars.literal(scalars.identity_of(e.kind, e.dtype), e.dtype)]
        kind = "max" if e.kind == "argmax" else "min"
        return [scalars.literal(scalars.identity_of(kind, e.body.dtype), e.body.dtype), i64(-1)]

    def _finish(self, e: Reduce, state: list[V]) -> V:
        return state[-1] if e.kind.startswith("arg") else state[0]

    def _loops(self, e: Reduce, axes: list[Axis], state: list[V], position: V | None) -> list[V]:
        if not axes:
            return self.step(e, state, position)
        axis, rest = axes[0], axes[1:]
        self.hoist(e.body, frozenset(axes))

        def round_(index: V, carried: list[V]) -> list[V]:
            self.axes[axis] = index
            inner = None
            if e.kind.startswith("arg"):
                outer = i64(0) if position is None else self.fn.mul(position, self.sizes(axis.extent))
                inner = self.fn.add(outer, index)
            with self.scope(axis, *rest):
                return self._loops(e, rest, carried, inner)

        return self._rounds(e, self.sizes(axis.extent), 1, state, round_)

    def _rounds(self, e: Reduce, n: V, step: int, state: list[V], round_: Callable[[V, list[V]], list[V]]) -> list[V]:
        """The state after `round_(index, state)` for every index in range(0, n, step); sums of floats in blocks."""
        fn, block = self.fn, _BLOCK * step
        short = n.literal is not None and n.literal <= block
        if e.kind != "sum" or not e.dtype.is_float or short:
            with fn.loop(0, n, step, carry=state) as loop:
                loop.following = round_(loop.index, loop.carried)
            return loop.results
        zeros = [scalars.literal(0.0, e.dtype, lanes(v.type)[1]) for v in state]
        with fn.loop(0, n, block, carry=state) as blocks:
            with fn.loop(blocks.index, fn.minimum(fn.add(blocks.index, block), n), step, carry=zeros) as loop:
                loop.following = round_(loop.index, loop.carried)
            pairs = zip(blocks.carried, loop.results, strict=True)
            blocks.following = [scalars.call(fn, "add", e.dtype, [a, b]) for a, b in pairs]
        return blocks.results

    def step(self, e: Reduce, state: list[V], position: V | None) -> list[V]:
        """The state after one more element (or one more per lane)."""
        fn = self.fn
        body = self.widen(self.emit(e.body)) if state[0].type[0] == "<" else self.emit(e.body)
        if not e.kind.startswith("arg"):
            return [scalars.call(fn, scalars.COMBINE[e.kind], e.dtype, [state[0], body])]
        best, where = state
        assert position is not None
        dtype = e.body.dtype
        better = scalars.call(fn, "gt" if e.kind == "argmax" else "lt", dtype, [body, best])
        none_yet = fn.icmp("slt", where, self._like(where, 0))
        valid = scalars.call(fn, "eq", dtype, [body, body])
        chosen = fn.binary("or", better, fn.binary("and", none_yet, valid))
        spread = self.widen(position)
        return [fn.select(chosen, body, best), fn.select(chosen, spread, where)]

    def _unrolled(self, e: Reduce) -> V:
        """All positions written out; adding starts from the first element rather than from zero."""
        self.hoist(e.body, frozenset(e.axes))
        state = [self.widen(v) if e.kind.startswith("arg") else v for v in self._start(e)]
        first = True
        for number, position in enumerate(positions([a.extent for a in e.axes])):
            with self.scope(*e.axes):
                for axis, p in zip(e.axes, position, strict=True):
                    self.axes[axis] = i64(p)
                if first and e.kind not in (
                    "argmax",
                    "argmin",
                    "fmax",
                    "fmin",
                ):  # these treat NaN unlike a first element
                    state = [self.emit(e.body)]
                else:
                    state = self._merge(e, state, i64(number))
                first = False
        return self._finish(e, state)

    def _merge(self, e: Reduce, state: list[V], position: V) -> list[V]:
        if e.kind.startswith("arg"):
            return self.step(e, state, position)
        pair = self.level([state[0], self.emit(e.body)])
        return [scalars.call(self.fn, scalars.COMBINE[e.kind], e.dtype, pair)]


def _half(fn: Function, x: V, width: int, part: int) -> V:
    """The lower or upper half of a vector's lanes; a scalar once one lane is left."""
    half = width // 2
    if half == 1:
        return fn.extract(x, part)
    indices = ", ".join(f"i32 {k + part * half}" for k in range(half))
    scalar = lanes(x.type)[0]
    return fn.emit(vector(scalar, half), f"shufflevector {x}, {x.type} poison, <{half} x i32> <{indices}>")


def positions(sizes: list[Size]) -> Iterator[tuple[int, ...]]:
    """All index tuples of a static shape, in row-major order."""
    if not sizes:
        yield ()
        return
    first = sizes[0]
    assert isinstance(first, int)
    for i in range(first):
        for rest in positions(sizes[1:]):
            yield (i, *rest)


def within(form: Affine, n: Size) -> bool:
    """True where an affine index is provably in [0, n) for all values of its axes."""
    low: Size = form.constant
    high: Size = form.constant
    for axis, c in form.terms.items():
        if not isinstance(c, int):
            return False
        span = (axis.extent - 1) * c
        if c > 0:
            high = high + span
        else:
            low = low + span
    room = n - high - 1
    low_fits = low >= 0 if isinstance(low, int) else dims.is_nonnegative(low)
    return low_fits and (room >= 0 if isinstance(room, int) else dims.is_nonnegative(room))


def gather(fn: Function, element: str, base: V, offsets: V, mask: V | None, align: int) -> V:
    """Elements at a vector of offsets."""
    width = lanes(offsets.type)[1]
    pointers = fn.emit(vector("ptr", width), f"getelementptr {element}, {base}, {offsets}")
    all_lanes = mask or V(vector("i1", width), "<" + ", ".join(["i1 true"] * width) + ">")
    type_ = vector(element, width)
    name = f"llvm.masked.gather.v{width}{mangle(element)}.v{width}p0"
    return fn.call(
        name, type_, [V(pointers.type, f"align {align} {pointers.ref}"), all_lanes, V(type_, "zeroinitializer")]
    )


def scatter(fn: Function, value: V, base: V, offsets: V, mask: V | None, align: int) -> None:
    """Store lanes at a vector of offsets."""
    element, width = lanes(value.type)
    pointers = fn.emit(vector("ptr", width), f"getelementptr {element}, {base}, {offsets}")
    all_lanes = mask or V(vector("i1", width), "<" + ", ".join(["i1 true"] * width) + ">")
    name = f"llvm.masked.scatter.v{width}{mangle(element)}.v{width}p0"
    fn.call(name, "void", [value, V(pointers.type, f"align {align} {pointers.ref}"), all_lanes])


def store(fn: Function, value: V, address: V, mask: V | None, align: int) -> None:
    """Store a scalar, a vector, or the lanes of one that a mask names."""
    if mask is not None and value.type[0] == "<":
        fn.masked_store(value, address, mask, align)
    else:
        fn.store(value, address, align)
