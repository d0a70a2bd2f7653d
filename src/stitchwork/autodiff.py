"""Reverse-mode differentiation over the IR. Gradients are ordinary operations, so they can be differentiated again.

The operations that lead to the primary tensor are walked backwards; each turns the cotangents of its results into
contributions to those of its operands by its `vjp` rule, or, without one, by the rules of what it decomposes to.

Regions are recomputed where their gradient needs their inner values. The gradient of `if_else` is an `if_else` whose
branches recompute and differentiate the original ones. The gradient of `for_loop` needs the carried values of every
iteration: an augmented copy of the loop saves those that are needed, and a second loop runs over them in reverse.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from stitchwork.errors import GraphError, OpError, StitchworkError, user_location
from stitchwork.ir import dims
from stitchwork.ir.dims import Dim, Size
from stitchwork.ir.dtypes import int64
from stitchwork.ir.graph import Block, Module, Operation, Value, VariableState
from stitchwork.ir.regions import copy_operations, drop_dead, effects, used, variable_of
from stitchwork.ir.types import TOKEN, TensorType, Type
from stitchwork.ops._build import F, constant
from stitchwork.ops._op import building
from stitchwork.ops._values import filled
from stitchwork.ops.control_flow import ForLoop, IfElse, NoEffect, WhileLoop, as_value
from stitchwork.ops.memory import StopGradient

# What a gradient is taken with respect to: a tensor, or the name of a variable, which means all of its reads.
Key = Value | str


def gradients(primary: Value, wrt: Sequence[Any], seed: Any = None) -> list[Value]:
    """Gradients of `primary` with respect to each of `wrt`, as new operations of the same graph.

    primary: a float or complex tensor; one with more than one element needs a `seed`.
    wrt: tensors that `primary` may depend on, or variables: for these the contributions of all reads are added. What
        `primary` does not depend on gets zeros.
    seed: the cotangent of `primary`, of a shape that broadcasts to its shape; 1 by default.

    Returns one tensor for each of `wrt`, of its shape and dtype. The gradient g of a real L pairs with a change as
    dL = sum(Re(g * dx)): for complex tensors it is dL/dRe - i dL/dIm, as in JAX. Reads of variables are where a
    gradient ends: it does not go on into a tensor assigned to the variable before. Raises GraphError for operands that
    do not fit, OpError for an op without a gradient.
    """
    module = primary.module
    with building(module):
        primary = as_value("gradients", "primary", primary, None, module)
        _require_differentiable("primary", primary)
        keys = [_key(k, x, module) for k, x in enumerate(wrt)]
        operations = _visible_operations(module.block)
        first = _seed(primary, seed, module)
        walk = _Backward(module, keys)
        walk.mark(operations)
        cotangents = _Cotangents(walk.active)
        cotangents.add(primary, first)
        walk.run(operations, cotangents)
        return [walk.some(cotangents.sum(k), k) for k in keys]


def _key(position: int, x: Any, module: Module) -> Key:
    label = f"wrt[{position}]"
    state = getattr(x, "state", None)
    if isinstance(state, VariableState):
        if module.variables.get(state.name) is not state:
            raise GraphError("gradients", f"`{label}` is a variable of another graph", got=state.name)
        _require_differentiable(label, state)
        return state.name
    if not isinstance(x, Value):
        raise GraphError(
            "gradients", f"`{label}` is no tensor of the graph", expected="tensors or variables", got=repr(x)
        )
    value = as_value("gradients", label, x, None, module)
    _require_differentiable(label, value)
    return value


def _require_differentiable(label: str, x: Value | VariableState) -> None:
    if not isinstance(x.type, TensorType) or x.type.dtype.kind not in "fc":
        raise GraphError(
            "gradients", f"`{label}` has no gradient", expected="a float or complex tensor", got=str(x.type)
        )


def _seed(primary: Value, seed: Any, module: Module) -> Value:
    if seed is None:
        if primary.dtype.is_complex or any(n != 1 for n in primary.shape):
            raise GraphError(
                "gradients",
                "`primary` is not one real number",
                expected="a real tensor with one element, or a seed",
                got=str(primary.type),
                hint="reduce it with sum or mean, or give `seed`, its cotangent",
            )
        return filled(primary, primary.shape, 1)
    value = as_value("gradients", "seed", seed, primary.dtype, module)
    if value.dtype is not primary.dtype:
        raise GraphError(
            "gradients", "`seed` and `primary` differ in dtype", expected=str(primary.type), got=str(value.type)
        )
    return value if value.shape == primary.shape else F.broadcast(value, shape=primary.shape)


def _visible_operations(block: Block | None) -> list[Operation]:
    """Operations so far of a block and those around it, outermost first: each after all that it depends on."""
    operations: list[Operation] = []
    while block is not None:
        operations[:0] = block.operations
        block = block.parent
    return operations


class _Cotangents:
    """Contributions to gradients, by what they are gradients of. Contributions to what does not matter are dropped."""

    def __init__(self, active: set[Key]) -> None:
        self._active = active
        self._parts: dict[Key, list[Value]] = {}

    def add(self, key: Key, contribution: Value) -> None:
        if key in self._active:
            self._parts.setdefault(key, []).append(contribution)

    def sum(self, key: Key) -> Value | None:
        """The sum of the contributions so far; None where there are none."""
        parts = self._parts.get(key)
        if parts is None:
            return None
        while len(parts) > 1:
            last = parts.pop()
            parts.append(parts.pop() + last)
        return parts[0]


class _Backward:
    """The walk for one call of `gradients`. `active` holds what depends on wrt by differentiable operations."""

    def __init__(self, module: Module, keys: Iterable[Key]) -> None:
        self.module = module
        self.active: set[Key] = set(keys)

    # --- what depends on wrt ------------------------------------------------------------------------------------------
    def mark(self, operations: Iterable[Operation]) -> None:
        """Add to `active` the results of operations, in forward order, that depend on something active."""
        for operation in operations:
            self.active.update(r for r in self._dependent(operation) if not r.is_token and r.dtype.kind in "fc")

    def _dependent(self, operation: Operation) -> Sequence[Value]:
        op, results = operation.op, operation.results
        if isinstance(op, StopGradient) or op.effect == "write":
            return ()
        if op.effect == "read":
            return results if variable_of(operation) in self.active else ()
        if isinstance(op, IfElse):
            for region in operation.regions:
                self.mark(region.operations)
            pairs = zip(results, *(r.results for r in operation.regions), strict=True)
            return [r for r, *inner in pairs if any(v in self.active for v in inner)]
        if isinstance(op, ForLoop):
            return self._dependent_carried(operation)
        needed = [*operation.operands, *(k for r in operation.regions for k in used(r))]
        return results if any(k in self.active for k in needed) else ()

    def _dependent_carried(self, loop: Operation) -> Sequence[Value]:
        (body,) = loop.regions
        carried = body.arguments[1:]
        new = [a for a, v in zip(carried, loop.operands[3:], strict=True) if v in self.active]
        while True:
            self.active.update(a for a in new if a.dtype.kind in "fc")
            self.mark(body.operations)
            new = [a for a, v in zip(carried, body.results, strict=True) if v in self.active and a not in self.active]
            if not new:
                return [r for r, a in zip(loop.results, carried, strict=True) if a in self.active]

    # --- the walk -----------------------------------------------------------------------------------------------------
    def run(self, operations: Sequence[Operation], cotangents: _Cotangents) -> None:
        """Turn the cotangents of what operations (in forward order) give into those of what they use."""
        for operation in reversed(operations):
            given = [cotangents.sum(r) for r in operation.results]
            if any(ct is not None for ct in given):
                self._step(operation, given, cotangents)

    def _step(self, operation: Operation, given: list[Value | None], cotangents: _Cotangents) -> None:
        op = operation.op
        if op.effect == "read":
            assert given[0] is not None
            cotangents.add(variable_of(operation), given[0])
        elif isinstance(op, IfElse):
            self._if_else(operation, given, cotangents)
        elif isinstance(op, ForLoop):
            self._for_loop(operation, given, cotangents)
        elif isinstance(op, WhileLoop):
            raise _failure(
                operation,
                "a while loop has no gradient: how often it runs is not known before it has run",
                hint="use for_loop with a known number of iterations, or stop_gradient",
            )
        elif op.has("vjp"):
            self._rule(operation, given, cotangents)
        elif op.has("decompose"):
            self._decomposed(operation, given, cotangents)
        elif any(v in self.active for v in operation.operands):
            raise _failure(operation, "the op has no gradient", hint="use stop_gradient on what goes in, if 0 is meant")

    def _rule(self, operation: Operation, given: list[Value | None], cotangents: _Cotangents) -> None:
        grouped = _grouped(operation)
        all_given = [self.some(ct, r) for ct, r in zip(given, operation.results, strict=True)]
        found = operation.op.vjp(tuple(all_given) if len(all_given) > 1 else all_given[0], *grouped)
        for operand, ct in zip(grouped, found, strict=True):
            if isinstance(operand, tuple):
                parts = cast("tuple[Value, ...]", operand)
                each = cast("Sequence[Value | None]", (None,) * len(parts) if ct is None else ct)
                pairs = list(zip(parts, each, strict=True))
            else:
                pairs = [(operand, ct)]
            for v, contribution in pairs:
                if v in self.active and contribution is not None:
                    cotangents.add(v, _fitted(contribution, v))

    def _decomposed(self, operation: Operation, given: list[Value | None], cotangents: _Cotangents) -> None:
        """Build what a composite op is made of and differentiate that. Equal forward operations are merged later."""
        with self._recorded() as operations:
            made = operation.op.decompose(*_grouped(operation))
        results = cast("Sequence[Value]", made if isinstance(made, tuple | list) else (made,))
        self.mark(operations)
        for r, ct in zip(results, given, strict=True):
            if ct is not None:
                cotangents.add(r, _fitted(ct, r))
        self.run(operations, cotangents)

    @contextmanager
    def _recorded(self) -> Generator[list[Operation]]:
        """The operations that the `with` block adds to the current block."""
        block = self.module.block
        start = len(block.operations)
        recorded: list[Operation] = []
        yield recorded
        recorded.extend(block.operations[start:])

    def some(self, ct: Value | None, key: Key) -> Value:
        """The cotangent of `key`, zeros where there is none."""
        return self.zeros(key) if ct is None else ct

    def zeros(self, key: Key) -> Value:
        """A zero of the type of a tensor or variable."""
        return F.broadcast(np.zeros((), self._type(key).dtype.numpy), shape=self._type(key).shape)

    def _type(self, key: Key) -> TensorType:
        return self.module.variables[key].type if isinstance(key, str) else key.tensor

    # --- regions ------------------------------------------------------------------------------------------------------
    def _captured(self, regions: Sequence[Block]) -> list[Key]:
        """What regions use from outside and a gradient is wanted for."""
        return [k for k in dict.fromkeys(k for r in regions for k in used(r)) if k in self.active]

    def _copied(self, source: Block, values: dict[Value, Value]) -> list[Operation]:
        """Copy a region's operations into the current block; `values` maps its arguments, then all of its values."""
        with self._recorded() as operations:
            copy_operations(source, self.module.block, values, _without_write)
        self.mark(operations)
        return operations

    def _if_else(self, operation: Operation, given: list[Value | None], cotangents: _Cotangents) -> None:
        keys = self._captured(operation.regions)
        branches: list[Block] = []
        for source in operation.regions:
            branch = self.module.new_block()
            with self.module.inside(branch):
                values: dict[Value, Value] = {}
                copied = self._copied(source, values)
                inner = self._differentiated(copied, [values.get(r, r) for r in source.results], given)
                branch.results = tuple(self.some(inner.sum(k), k) for k in keys)
            drop_dead(branch)
            _refuse_overwritten(operation, branch)
            branches.append(branch)
        types: tuple[Type, ...] = tuple(map(self._type, keys))
        made = self.module.block.append(IfElse(), operation.operands, types, tuple(branches), user_location())
        for key, ct in zip(keys, made.results, strict=True):
            cotangents.add(key, ct)

    def _differentiated(
        self, operations: list[Operation], results: Sequence[Value], given: Sequence[Value | None]
    ) -> _Cotangents:
        cotangents = _Cotangents(self.active)
        for r, ct in zip(results, given, strict=True):
            if ct is not None:
                cotangents.add(r, ct)
        self.run(operations, cotangents)
        return cotangents

    def _for_loop(self, loop: Operation, given: list[Value | None], cotangents: _Cotangents) -> None:
        (body,) = loop.regions
        rounds = _rounds(loop)
        carried = [k for k, a in enumerate(body.arguments[1:]) if a in self.active]
        keys = self._captured(loop.regions)
        slots = _nonempty(rounds)
        saved = [Value(TensorType(a.dtype, (slots, *a.shape)), self.module.block) for a in body.arguments[1:]]
        reverse = self.module.new_block()
        counter = reverse.add_argument(TensorType(int64, ()))
        incoming = [reverse.add_argument(loop.results[k].type) for k in carried]
        sums = [reverse.add_argument(self._type(k)) for k in keys]
        with self.module.inside(reverse):
            position = self._size(rounds) - 1 - counter
            values = self._iteration(loop, position, saved)
            copied = self._copied(body, values)
            results = [values.get(body.results[k], body.results[k]) for k in carried]
            inner = self._differentiated(copied, results, incoming)
            outgoing = [self.some(inner.sum(values[body.arguments[1 + k]]), loop.results[k]) for k in carried]
            found = [(total, inner.sum(k)) for total, k in zip(sums, keys, strict=True)]
            reverse.results = (*outgoing, *(total if ct is None else total + ct for total, ct in found))
        drop_dead(reverse)
        _refuse_overwritten(loop, reverse)
        self._save(loop, [s for s in saved if s in set(used(reverse))], saved)
        last = [self.some(given[k], loop.results[k]) for k in carried]
        start = (*last, *map(self.zeros, keys))
        bounds = (self._size(0), self._size(rounds), self._size(1))
        made = self._append_loop(bounds, start, reverse)
        wanted: list[Key] = [*(loop.operands[3 + k] for k in carried), *keys]
        for key, ct in zip(wanted, made.results, strict=True):
            cotangents.add(key, ct)

    def _iteration(self, loop: Operation, position: Value, saved: Sequence[Value]) -> dict[Value, Value]:
        """What the arguments of a loop's body were in iteration `position`, read from the saved values."""
        (body,) = loop.regions
        lower, _, step = loop.operands[:3]
        index = F.cast(F.cast(lower, int64) + position * F.cast(step, int64), body.arguments[0].dtype)
        values = {body.arguments[0]: index}
        for a, s in zip(body.arguments[1:], saved, strict=True):
            size = (1, *a.shape)
            values[a] = F.slice_start_size(s, _start(position, a.rank), size=size, squeeze_mask=1)
            if a in self.active:
                self.active.add(values[a])
        return values

    def _save(self, loop: Operation, wanted: list[Value], saved: list[Value]) -> None:
        """Append a copy of a loop that also writes the carried values of every iteration to the tensors `wanted`."""
        if not wanted:
            return
        (body,) = loop.regions
        region = self.module.new_block()
        values = {a: region.add_argument(a.type) for a in body.arguments}
        before = [region.add_argument(s.type) for s in wanted]
        with self.module.inside(region):
            self._copied(body, values)
            lower, _, step = (F.cast(v, int64) for v in loop.operands[:3])
            position = (F.cast(values[body.arguments[0]], int64) - lower) // step
            after: list[Value] = []
            for b, s in zip(before, wanted, strict=True):
                now = values[body.arguments[1 + saved.index(s)]]
                update = F.reshape(now, shape=(1, *now.shape))
                after.append(F.dynamic_update_slice(b, update, _start(position, now.rank)))
            region.results = (*(values.get(r, r) for r in body.results), *after)
        start = (*loop.operands[3:], *map(self.zeros, wanted))
        made = self._append_loop(loop.operands[:3], start, region)
        made.results = (*made.results[: len(saved)], *wanted)
        for s in wanted:
            s.op = made

    def _append_loop(self, bounds: Sequence[Value], start: Sequence[Value], region: Block) -> Operation:
        op = ForLoop(segments=(1, 1, 1, len(start)))
        return self.module.block.append(op, (*bounds, *start), tuple(v.type for v in start), (region,), user_location())

    def _size(self, size: Size) -> Value:
        return F.size_value(size=size, dtype=int64) if isinstance(size, Dim) else constant(self.module, np.array(size))


# --- operations and regions -------------------------------------------------------------------------------------------
def _grouped(operation: Operation) -> list[Any]:
    """The operands as the op declares them, without tokens."""
    op = operation.op
    return [v for v, s in zip(op.group(operation.operands), op.operands.values(), strict=True) if not s.token]


def _fitted(ct: Value, like: Value) -> Value:
    """A contribution with the dtype and the shape of what it is for: broadcasting is undone."""
    if ct.dtype is not like.dtype:
        ct = F.cast(ct, like.dtype)
    return ct if ct.shape == like.shape else F.unbroadcast(ct, like)


def _without_write(operation: Operation) -> Sequence[Value] | None:
    """In the copy of a region that is only recomputed, nothing is written again."""
    if operation.op.effect != "write":
        return None
    return operation.block.module.block.append(NoEffect(), (), (TOKEN,), (), operation.location).results


def _refuse_overwritten(operation: Operation, gradient: Block) -> None:
    """A region cannot be recomputed from a variable that it has overwritten."""
    written = {variable_of(o) for r in operation.regions for o in effects(r, "write")}
    for name in written & {variable_of(o) for o in effects(gradient, "read")}:
        raise GraphError(
            operation.op.name,
            f"the block assigns to `{name}`, on which its own gradient depends",
            hint="carry the value through the block instead, or assign it after the block",
            at=operation.location,
        )


def _failure(operation: Operation, problem: str, *, hint: str) -> StitchworkError:
    used = ", ".join(str(v.type) for v in operation.operands)
    return OpError(
        operation.op.name,
        problem,
        got=f"a gradient through {operation.op.name}({used})",
        hint=hint,
        at=operation.location,
    )


# --- counted loops ----------------------------------------------------------------------------------------------------
def _rounds(loop: Operation) -> Size:
    """How often a counted loop runs. Raises OpError where the bounds do not tell as sizes."""
    lower, upper, step = (v.content for v in loop.operands[:3])
    if lower is None or upper is None or step is None:
        raise _failure(
            loop,
            "the number of iterations is not known as a size, which the gradient needs",
            hint="give bounds as ints, or as tensors computed from shapes and constants",
        )
    if isinstance(step, int) and step <= 0:
        return 0
    rounds = dims.ceildiv(upper - lower, step)
    evident = isinstance(rounds, Dim) and dims.is_nonnegative(rounds)
    return rounds if evident else dims.maximum(rounds, 0)


def _nonempty(rounds: Size) -> Size:
    """At least one slot: slices of one slot must fit even where the loop, which has them, never runs."""
    return dims.maximum(rounds, 1)


def _start(position: Value, rank: int) -> Value:
    """Where the slot for an iteration begins in a tensor of saved values."""
    first = F.reshape(position, shape=(1,))
    return F.concat([first, np.zeros(rank, np.int64)], axis=0) if rank else first
