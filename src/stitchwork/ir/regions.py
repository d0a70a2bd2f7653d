"""Regions of operations: what they use from outside, copies of them within a module, and what in them is dead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from stitchwork.ir.graph import Block, Operation, Value
from stitchwork.ir.told import binders, needs

# What takes an operation's place in a copy: values made in the current block, or None to copy it.
Replace = Callable[[Operation], Sequence[Value] | None]


def variable_of(operation: Operation) -> str:
    """The name of the variable that an operation with an effect reads or writes."""
    return getattr(operation.op, "variable")  # noqa: B009  # every op with an effect names its variable


def used(region: Block) -> Iterator[Value | str]:
    """Values that a region uses and does not make, and names of variables that it reads, in order of use."""
    own = set(region.arguments)
    for operation in region.operations:
        yield from (v for v in operation.operands if v not in own)
        if operation.op.effect == "read":
            yield variable_of(operation)
        for inner in operation.regions:
            yield from (k for k in used(inner) if k not in own)
        own.update(operation.results)
    yield from (v for v in region.results if v not in own)


def effects(region: Block, kind: str) -> Iterator[Operation]:
    """Operations of a region, nested ones included, that "read" or "write"."""
    for operation in region.operations:
        if operation.op.effect == kind:
            yield operation
        for inner in operation.regions:
            yield from effects(inner, kind)


def copy_operations(source: Block, target: Block, values: dict[Value, Value], replace: Replace) -> None:
    """Copy operations to the end of a block of the same module; `values` maps old to new values and is extended."""
    for operation in source.operations:
        with target.module.inside(target):
            results = replace(operation)
        if results is None:
            operands = tuple(values.get(v, v) for v in operation.operands)
            regions = tuple(_copy_region(r, target, values, replace) for r in operation.regions)
            types = tuple(r.type for r in operation.results)
            results = target.append(operation.op, operands, types, regions, operation.location).results
        for old, new in zip(operation.results, results, strict=True):
            values[old] = new
            new.name, new.content = old.name, old.content


def _copy_region(source: Block, parent: Block, values: dict[Value, Value], replace: Replace) -> Block:
    target = source.module.new_block(parent)
    for a in source.arguments:
        values[a] = copy = target.add_argument(a.type, a.name)
        copy.content = a.content
    copy_operations(source, target, values, replace)
    target.results = tuple(values.get(v, v) for v in source.results)
    return target


def drop_dead(region: Block) -> None:
    """Drop, in place, operations that the results of a region do not need. For regions without writes."""
    live: set[Value | str] = set(region.results)
    known = binders(region.module, region)
    kept: list[Operation] = []
    for operation in reversed(region.operations):
        if any(r in live for r in operation.results):
            kept.append(operation)
            live.update(needs(operation, known))
            live.update(k for r in operation.regions for k in used(r))
    region.operations = kept[::-1]
