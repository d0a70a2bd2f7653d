"""The stitcher: decides which ops are computed together, and turns a module into a program of kernels.

Three decisions, in this order:
1. *inline*: a pointwise value is substituted into its consumers where computing it again costs less than storing it;
2. *epilogue*: what is left over a routine's result (matmul, convolution) is computed as the routine stores it;
3. *absorb*: a value used by one kernel only becomes a stage of it, computed tile by tile in scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from stitchwork.ir import dims
from stitchwork.ir.graph import Block, Operation, Value, constant_array
from stitchwork.loops.affine import affine, view_index
from stitchwork.loops.expr import (
    Axis,
    Buffer,
    Call,
    Const,
    Expr,
    Load,
    Reduce,
    axes_for,
    children,
    loads,
    substitute,
    transform,
    walk,
)
from stitchwork.loops.kernel import Stage
from stitchwork.loops.tiling import tile_group

_RECOMPUTE_LIMIT = 6.0  # scalar operations per element that may be repeated instead of storing a value
_NODE_LIMIT = 3000  # expression nodes of one stage
_STAGE_LIMIT = 12
_DEPTH_LIMIT = 200.0  # levels of one expression, counting what functions expand to: its walkers are recursive
_UNKNOWN = 64  # what an unknown size counts as in estimates

_COSTS = {
    **dict.fromkeys(("exp", "log", "sin", "cos", "tanh", "erf", "expm1", "log1p", "exp2", "log2", "log10"), 12.0),
    **dict.fromkeys(("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc", "cbrt"), 20.0),
    **dict.fromkeys(("pow", "atan2"), 30.0),
    **dict.fromkeys(("div", "sqrt", "rsqrt", "floordiv", "mod", "rem"), 4.0),
}

Routine = Callable[[Operation], Any]


@dataclass(eq=False)
class Root:
    """A value that gets a stage or a routine of its own."""

    value: Value
    operation: Operation
    axes: tuple[Axis, ...] = ()
    expr: Expr | None = None  # None: not an expression (a routine, an op written as loops, control flow)
    users: set[Value] = field(default_factory=set[Value])  # roots whose expressions load it
    external: bool = False  # used by something that is not an expression
    inlined: list[Operation] = field(default_factory=list[Operation])  # whose expressions are inside this one

    @property
    def operations(self) -> list[Operation]:
        return [*self.inlined, self.operation]


@dataclass(eq=False)
class Group:
    """Roots computed together, producers first; a routine may stand first, the rest being its epilogue."""

    roots: list[Root]
    routine: Any = None


class BlockStitcher:
    """Decides for one block. `resolve` follows aliases to the value that owns the memory."""

    def __init__(
        self, block: Block, routine: Routine, resolve: Callable[[Value], Value], notes: list[str], owns_arguments: bool
    ) -> None:
        """owns_arguments: the block's arguments are memory that it may overwrite once it needs them no more."""
        self.block, self.routine, self.resolve, self.notes = block, routine, resolve, notes
        self.owns_arguments = owns_arguments
        self.position = {o: k for k, o in enumerate(block.operations)}
        self.local = {v for o in block.operations for v in o.results}
        self.forms: dict[Value, tuple[tuple[Axis, ...], Expr]] = {}
        self.routines: dict[Value, Any] = {}
        self.roots: dict[Value, Root] = {}
        self.inlined: set[Value] = set()
        self.users: dict[Value, list[Value]] = {}
        self.levels: dict[Value, float] = {}
        self.above: dict[Value, float] = {}  # levels over an inlined value, in the roots that it ends up in
        self.ends: dict[Value, frozenset[Value]] = {}
        self.overwritten: set[Operation] = set()  # updates that may be made in place
        self._memo: dict[Any, Expr] = {}
        self._cost: dict[Value, float] = {}

    def run(self) -> list[Group]:
        """The groups in an order in which they can run."""
        self.overwritten = self._updates_in_place()
        self._forms()
        self._decide_inlining()
        self._build_roots()
        return self._group()

    def _updates_in_place(self) -> set[Operation]:
        """Updates whose operand nothing else needs: they write into its memory."""
        candidates = [o for o in self.block.operations if o.op.overwrites is not None and o.op.has("loops")]
        if not candidates:
            return set()
        uses: dict[Value, list[Operation | None]] = {self.resolve(v): [None] for v in self.block.results}
        for operation in self.block.operations:
            if is_alias(operation):
                continue
            for v in {self.resolve(v) for v in operation.operands}.union(
                *(map(self.resolve, free_values(r)) for r in operation.regions)
            ):
                uses.setdefault(v, []).append(operation)
        return {o for o in candidates if self._may_overwrite(o, uses)}

    def _may_overwrite(self, operation: Operation, uses: dict[Value, list[Operation | None]]) -> bool:
        which = operation.op.overwrites
        assert which is not None
        owner = self.resolve(operation.operands[which])
        if uses.get(owner) != [operation] or owner.block is not self.block:
            return False
        if sum(self.resolve(v) is owner for v in operation.operands) != 1:
            return False
        if owner.op is None:
            return self.owns_arguments
        return not owner.op.op.effect and constant_array(owner) is None and not owner.op.regions

    # --- what can be an expression ---------------------------------------------------------------------------------
    def _forms(self) -> None:
        for operation in self.block.operations:
            op = operation.op
            if operation.regions or op.effect or not operation.operands:
                if not (op.has("compute") and not operation.operands):
                    continue
            if is_alias(operation):
                view = _view(operation)
                if view is not None:
                    self.forms[operation.results[0]] = view
                continue
            if operation in self.overwritten:
                continue
            routine = self.routine(operation) if op.library else None
            if routine is not None:
                self.routines[operation.results[0]] = routine
            elif op.has("compute"):
                self._compute(operation)

    def _compute(self, operation: Operation) -> None:
        buffers = [Buffer(v.dtype, v.shape, v) if not v.is_token else None for v in operation.operands]
        axes = axes_for(operation.results[0].shape)
        made = operation.op.compute(axes, *operation.op.group(buffers))
        many = cast("tuple[Expr, ...]", made) if isinstance(made, tuple) else (made,)
        for value, expr in zip(operation.results, many, strict=True):
            self.forms[value] = (axes, expr)

    # --- 1. inlining --------------------------------------------------------------------------------------------------
    def _decide_inlining(self) -> None:
        external = self._external()
        sites: dict[Value, list[tuple[Value, Load, tuple[Axis, ...]]]] = {}
        for value, (axes, expr) in self.forms.items():
            for load, over in loads_with_axes(expr):
                source = _source(load)
                sites.setdefault(source, []).append((value, load, axes + over))
                self.users.setdefault(source, []).append(value)
        for value in self.forms:  # in order, so that no question about a producer goes deep
            self._cost_of(value)
        for operation in reversed(self.block.operations):
            for value in operation.results:
                if value not in self.forms:
                    continue
                over = max((self.above.get(u, 0.0) + self._levels(u) for u in self.users.get(value, ())), default=0.0)
                fits = value not in external and over + self._levels(value) <= _DEPTH_LIMIT
                own = sites.get(value, [])
                if is_alias(operation):
                    if fits and own and not any(load.boundary for _, load, _ in own):
                        self._take_in(value, over)
                    elif own:
                        external.add(self.resolve(value))  # whose memory these loads go to
                elif fits and self._is_inlinable(value, own):
                    self._take_in(value, over)

    def _take_in(self, value: Value, over: float) -> None:
        self.inlined.add(value)
        self.above[value] = over
        self._root_of(value)

    def _is_inlinable(self, value: Value, sites: list[tuple[Value, Load, tuple[Axis, ...]]]) -> bool:
        if not sites:
            return False
        _, expr = self.forms[value]
        if any(isinstance(e, Reduce) for e in walk(expr)):
            return self._reduction_is_inlinable(value, sites)
        if any(load.boundary for _, load, _ in sites):
            return False
        repeats = sum(_evaluations(load, axes, value) for load, axes in self._distinct(sites)) - 1
        return repeats * self._cost_of(value) <= _RECOMPUTE_LIMIT or repeats <= 0

    def _reduction_is_inlinable(self, value: Value, sites: list[tuple[Value, Load, tuple[Axis, ...]]]) -> bool:
        """A reduction goes into the one consumer that has the same elements (mean = sum / n)."""
        if len({id(s[0]) for s in sites}) != 1:
            return False
        consumer, load, axes = sites[0]
        own = self.forms[consumer][0]
        same = all(_evaluations(load, axes, value) <= 1 for _, load, axes in sites)
        reduces = any(isinstance(e, Reduce) for e in walk(self.forms[consumer][1]))
        return same and len(axes) == len(own) and not reduces and not load.boundary

    def _distinct(self, sites: list[tuple[Value, Load, tuple[Axis, ...]]]) -> list[tuple[Load, tuple[Axis, ...]]]:
        """Sites that are not computed once anyway: loads at one index in consumers that share a root count once."""
        seen: set[Any] = set()
        kept: list[tuple[Load, tuple[Axis, ...]]] = []
        for consumer, load, axes in sites:
            plain = is_identity(load, self.forms[consumer][0])
            key = (self._root_of(consumer), plain) if plain else id(load)
            if key not in seen:
                seen.add(key)
                kept.append((load, axes))
        return kept

    def _root_of(self, value: Value) -> frozenset[Value]:
        """The roots that `value` ends up in (decisions about its users were made before)."""
        if value not in self.inlined:
            return frozenset((value,))
        if value not in self.ends:
            self.ends[value] = frozenset[Value]().union(*map(self._root_of, self.users[value]))
        return self.ends[value]

    def _levels(self, value: Value) -> float:
        """Depth of a value's own expression."""
        found = self.levels.get(value)
        if found is None:
            found = self.levels[value] = expression_depth(self.forms[value][1]) if value in self.forms else 0.0
        return found

    def _cost_of(self, value: Value) -> float:
        """Scalar operations for one element, inlined operands included."""
        if value not in self._cost:
            _, expr = self.forms[value]
            total = 0.0
            for e in walk(expr):
                if isinstance(e, Call):
                    total += _COSTS.get(e.fn, 1.0) if not _is_index(e) else 0.0
                elif isinstance(e, Load):
                    total += 0.5
                    producer = e.buffer.key
                    if producer in self.forms and isinstance(producer, Value) and producer in self.local:
                        if not any(isinstance(x, Reduce) for x in walk(self.forms[producer][1])):
                            total += self._cost_of(producer)
            self._cost[value] = total
        return self._cost[value]

    def _external(self) -> set[Value]:
        """Values that must be in memory: results of the block, and operands of what is not an expression."""
        found = {self.resolve(v) for v in self.block.results} | set(self.block.results)
        for operation in self.block.operations:
            expression = any(v in self.forms for v in operation.results)
            if not expression:
                found |= set(operation.operands)
            for region in operation.regions:
                found |= free_values(region)
        return found | {self.resolve(v) for v in found}

    # --- roots --------------------------------------------------------------------------------------------------------
    def _build_roots(self) -> None:
        external = self._external()
        for operation in self.block.operations:
            for value in operation.results:
                if (
                    value in self.inlined
                    or is_alias(operation)
                    or (value.is_token and not _is_effect(operation, value))
                ):
                    continue
                root = Root(value, operation, external=value in external)
                if value in self.forms:
                    root.axes, expr = self.forms[value]
                    root.expr = self._inline(expr)
                    root.inlined = self._inlined_into(expr)
                self.roots[value] = root
        for root in self.roots.values():
            for e in walk(root.expr) if root.expr is not None else ():
                if isinstance(e, Load) and (producer := self.roots.get(self.resolve(_source(e)))):
                    producer.users.add(root.value)

    def _inlined_into(self, expr: Expr) -> list[Operation]:
        """The operations whose expressions end up in one, in order; those that only move a view are left out."""
        found: dict[Operation, None] = {}
        pending = [expr]
        while pending:
            for load in loads(pending.pop()):
                value = _source(load)
                if value in self.inlined and value.op is not None and value.op not in found:
                    found[value.op] = None
                    pending.append(self.forms[value][1])
        return sorted((o for o in found if not is_alias(o)), key=self.position.__getitem__)

    def _inline(self, expr: Expr) -> Expr:
        """`expr` with every load of an inlined value replaced by that value's expression."""

        def leaf(e: Expr) -> Expr | None:
            if not isinstance(e, Load):
                return None
            source = _source(e)
            if source not in self.inlined:
                return _literal(e)
            index = tuple(transform(i, leaf) for i in e.index)
            key = (source, *map(_index_key, index))
            found = self._memo.get(key)
            if found is None:
                axes, inner = self.forms[source]
                places: dict[Expr, Expr] = dict(zip(axes, index, strict=True))
                placed = substitute(inner, places)
                found = self._memo[key] = self._inline(placed)
            return found

        return transform(expr, leaf)

    # --- 2. epilogues and 3. absorbing --------------------------------------------------------------------------------
    def _group(self) -> list[Group]:
        taken: set[Value] = set()
        groups: list[Group] = []
        for root in reversed(list(self.roots.values())):
            if root.value in taken:
                continue
            taken.add(root.value)
            if root.expr is None:
                if root.operation.results[0] is root.value:
                    groups.append(Group([root], self.routines.get(root.value)))
                continue
            producer = self._routine_for(root, taken)
            if producer is not None:
                taken.add(producer.value)
                groups.append(Group([producer, root], self.routines[producer.value]))
            else:
                groups.append(Group(self._absorb(root, taken)))
        return sorted(groups, key=lambda g: self.position[g.roots[-1].operation])

    def _routine_for(self, root: Root, taken: set[Value]) -> Root | None:
        """The last routine whose result `root` alone uses, at its own position."""
        assert root.expr is not None
        nodes = walk(root.expr)
        if any(isinstance(e, Reduce) for e in nodes):
            return None
        found: Root | None = None
        for e in nodes:
            if not isinstance(e, Load) or _source(e) not in self.routines or _source(e) in taken:
                continue
            producer = self.roots[_source(e)]
            fits = producer.users == {root.value} and not producer.external and producer.value.shape == root.value.shape
            if not fits or not all(
                is_identity(x, root.axes) for x in nodes if isinstance(x, Load) and x.buffer.key is e.buffer.key
            ):
                continue
            if found is None or self.position[producer.operation] > self.position[found.operation]:
                found = producer
        return found

    def _absorb(self, root: Root, taken: set[Value]) -> list[Root]:
        """`root` with the producers that can be stages of its kernel, producers first."""
        members = [root]
        rejected: set[Value] = set()
        while len(members) < _STAGE_LIMIT:
            candidate = self._candidate(members, taken, rejected)
            if candidate is None:
                break
            attempt = sorted([*members, candidate], key=lambda r: self.position[r.operation])
            if self._pays(attempt):
                members = attempt
                taken.add(candidate.value)
            else:
                rejected.add(candidate.value)
                self.notes.append(
                    f"{describe(candidate.operation)} kept apart from {describe(root.operation)}: regions do not tile"
                )
        return members

    def _candidate(self, members: list[Root], taken: set[Value], rejected: set[Value]) -> Root | None:
        inside = {m.value for m in members}
        for member in reversed(members):
            assert member.expr is not None
            for e in walk(member.expr):
                if not isinstance(e, Load) or not isinstance(e.buffer.key, Value):
                    continue
                producer = self.roots.get(e.buffer.key)
                if producer is None or producer.expr is None or producer.value in taken | rejected:
                    continue
                if not producer.external and producer.users <= inside:
                    return producer
        return None

    def _pays(self, members: list[Root]) -> bool:
        if sum(len(walk(m.expr)) for m in members if m.expr is not None) > _NODE_LIMIT:
            return False
        return tile_group(make_stages(members)) is not None


def _is_effect(operation: Operation, token: Value) -> bool:
    """True where a token stands for an operation that is done for its effects alone: a write, or a branch of writes."""
    alone = token is operation.results[0] and all(v.is_token for v in operation.results)
    return operation.op.effect == "write" or (bool(operation.regions) and alone)


def make_stages(members: list[Root]) -> list[Stage]:
    """Stages that pass values through buffers keyed by the roots' values."""
    buffers = {m.value: Buffer(m.value.dtype, m.value.shape, m.value) for m in members}

    def leaf(e: Expr) -> Expr | None:
        if isinstance(e, Load) and _source(e) in buffers:
            return Load(buffers[_source(e)], tuple(transform(i, leaf) for i in e.index), e.boundary, e.fill)
        return None

    stages: list[Stage] = []
    for m in members:
        assert m.expr is not None
        stages.append(Stage(buffers[m.value], m.axes, transform(m.expr, leaf), describe(m.operation)))
    return stages


def _source(load: Load) -> Value:
    """The value that a load reads: all buffers of the stitcher's expressions have values as keys."""
    return cast("Value", load.buffer.key)


def describe(operation: Operation) -> str:
    """How reports name an operation."""
    label = next((v.name for v in operation.results if v.name), "")
    return f"{operation.op.name} {label}" if label else operation.op.name


def is_alias(operation: Operation) -> bool:
    """True where the result is the first operand's memory, seen with another shape."""
    return bool(getattr(operation.op, "alias", False))


def free_values(region: Block) -> set[Value]:
    """Values that a region uses and does not make."""
    own = set(region.arguments)
    used: set[Value] = set()
    for operation in region.operations:
        used |= set(operation.operands)
        for inner in operation.regions:
            used |= free_values(inner)
        own |= set(operation.results)
    return (used | set(region.results)) - own


def expression_depth(expr: Expr) -> float:
    """Levels of an expression, a transcendental function counting as what it expands to."""
    depth: dict[Expr, float] = {}
    for e in walk(expr):
        own = 2.5 * _COSTS.get(e.fn, 0.4) if isinstance(e, Call) else 1.0
        depth[e] = own + max((depth[c] for c in children(e)), default=0.0)
    return depth[expr]


def is_identity(load: Load, axes: tuple[Axis, ...]) -> bool:
    """True where the load reads the element at the axes' own position (dims of size 1 have but one)."""
    if len(load.index) != len(axes) or load.boundary:
        return False
    for index, axis, n in zip(load.index, axes, load.buffer.shape, strict=True):
        if index is not axis and not (isinstance(n, int) and n == 1 and axis.extent == 1):
            return False
    return True


def loads_with_axes(expr: Expr) -> list[tuple[Load, tuple[Axis, ...]]]:
    """Every load, with the reduction axes around it."""
    found: list[tuple[Load, tuple[Axis, ...]]] = []
    seen: set[tuple[int, tuple[Axis, ...]]] = set()

    def go(e: Expr, over: tuple[Axis, ...]) -> None:
        if (id(e), over) in seen:
            return
        seen.add((id(e), over))
        if isinstance(e, Load):
            found.append((e, over))
        inner = over + e.axes if isinstance(e, Reduce) else over
        for c in children(e):
            go(c, inner)

    go(expr, ())
    return found


def _evaluations(load: Load, axes: tuple[Axis, ...], value: Value) -> float:
    """How often, per element of `value`, the load happens (unknown sizes count as _UNKNOWN)."""
    del load
    total = _estimate(dims.product(a.extent for a in axes))
    return total / max(1.0, _estimate(dims.product(value.shape)))


def _estimate(size: dims.Size) -> float:
    return dims.estimate(size, _UNKNOWN)


def _is_index(e: Call) -> bool:
    return e.dtype.name == "i64" and affine(e) is not None


def _index_key(e: Expr) -> Any:
    form = affine(e)
    if form is None:
        return id(e)
    return (str(form.constant), tuple(sorted((id(a), str(c)) for a, c in form.terms.items())))


def _literal(load: Load) -> Expr | None:
    """A load from a constant with one element, as a literal."""
    array = constant_array(load.buffer.key) if isinstance(load.buffer.key, Value) else None
    if array is None or array.size != 1 or load.boundary or load.dtype.is_complex:
        return None
    return Const(array.item() if load.dtype.kind in "biu" else float(array.reshape(())), load.dtype)


def _view(operation: Operation) -> tuple[tuple[Axis, ...], Expr] | None:
    """A reshape as a load at an affine index, where it is one."""
    source, result = operation.operands[0], operation.results[0]
    axes = axes_for(result.shape)
    if source.shape == result.shape:
        return axes, Load(Buffer(source.dtype, source.shape, source), axes)
    index = view_index(result.shape, source.shape, axes)
    return None if index is None else (axes, Load(Buffer(source.dtype, source.shape, source), index))
