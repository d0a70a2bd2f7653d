"""Sizes that only a run tells: symbols of `Module.bounds`, each bound by an operation when it has run.

Such a size is known from that operation on, in its block and in the regions after it. What uses the size need not use
the operation's results, so passes ask here what an operation depends on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from stitchwork.ir.dims import Dim, symbols_of
from stitchwork.ir.graph import Block, Module, Operation, Value
from stitchwork.ir.types import TensorType

Binders = Mapping[str, list[Operation]]


def bound_by(operation: Operation) -> str:
    """The symbol that an operation binds; empty for one that binds none."""
    op = operation.op
    return str(getattr(op, op.binds)) if op.binds else ""


def operations_in(block: Block) -> Iterator[Operation]:
    """Operations of a block, those of regions after the operation that has them."""
    for operation in block.operations:
        yield operation
        for region in operation.regions:
            yield from operations_in(region)


def binders(module: Module, block: Block | None = None) -> Binders:
    """The operations in a block (the body by default) that bind each symbol: one, or several in blocks apart."""
    found: dict[str, list[Operation]] = {}
    if module.bounds:
        for operation in operations_in(block or module.body):
            if operation.op.binds:
                found.setdefault(bound_by(operation), []).append(operation)
    return found


def symbols_in(x: Any) -> frozenset[str]:
    """The symbols in sizes, types, and tuples of them."""
    if isinstance(x, Dim):
        return symbols_of(x)
    if isinstance(x, TensorType):
        return symbols_in(x.shape)
    if isinstance(x, tuple):
        return frozenset[str]().union(*map(symbols_in, cast("tuple[Any, ...]", x)))
    return frozenset()


def symbols_used(operation: Operation) -> frozenset[str]:
    """The symbols in an operation's attributes and in the types of its results."""
    op = operation.op
    return symbols_in((*(getattr(op, a) for a in op.attributes()), *(v.type for v in operation.results)))


def needs(operation: Operation, known: Binders) -> list[Value]:
    """What an operation depends on: its operands, and results of those that bind sizes it or its regions use."""
    if not known:
        return list(operation.operands)
    used = symbols_used(operation).union(*(symbols_used(o) for r in operation.regions for o in operations_in(r)))
    return [*operation.operands, *(o.results[0] for s in sorted(used) for o in known.get(s, ()) if o is not operation)]


def drop_unbound(module: Module) -> None:
    """Take out the sizes that no operation binds any more, and the guards about them."""
    known = binders(module)
    gone = set(module.bounds) - set(known)
    if gone:
        module.bounds = {s: n for s, n in module.bounds.items() if s in known}
        module.guards = {k: g for k, g in module.guards.items() if gone.isdisjoint(symbols_in((g.a, g.b)))}


def misplaced(module: Module) -> str:
    """What is wrong with the places where sizes are bound and used; empty where nothing is."""
    return _misplaced(module.body, set(), frozenset(module.bounds)) if module.bounds else ""


def _misplaced(block: Block, known: set[str], told: frozenset[str]) -> str:
    known = set(known)
    for operation in block.operations:
        own = bound_by(operation)
        if own in known:
            return f"{operation.op.name} binds the size `{own}` a second time"
        takes = symbols_in(tuple(a.type for r in operation.regions for a in r.arguments))
        early = ((symbols_used(operation) | takes) & told) - known - {own}
        if early:
            return f"{operation.op.name} uses the size `{min(early)}` where it is not known"
        for region in operation.regions:
            problem = _misplaced(region, known, told)
            if problem:
                return problem
        if own:
            known.add(own)
    return ""
