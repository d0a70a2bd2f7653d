"""Drop operations that nothing needs."""

from __future__ import annotations

from stitchwork.ir.graph import Block, Module, Operation, Value
from stitchwork.ir.rewrite import Rewriter
from stitchwork.ir.told import Binders, binders, drop_unbound, needs
from stitchwork.passes.base import PassResult


class DeadCode:
    """Keeps what the results of the body need. `keep_writes`: assigns are needed by themselves (once the order of
    effects is given by their place; before that, an assign that no token leads to is dead)."""

    name = "dead-code"

    def __init__(self, keep_writes: bool) -> None:
        self.keep_writes = keep_writes

    def run(self, module: Module) -> PassResult:
        live: set[Operation] = set()
        self._mark(module.body, live, binders(module))
        total = count_operations(module.body)
        if count_live(module.body, live) == total:
            return PassResult(module, False)
        swept = _Sweep(module, live).run()
        drop_unbound(swept)
        return PassResult(swept, True)

    def _mark(self, block: Block, live: set[Operation], known: Binders) -> None:
        pending: list[Value] = list(block.results)
        for operation in block.operations:
            if self.keep_writes and has_writes(operation):
                self._keep(operation, live, pending, known)
        while pending:
            value = pending.pop()
            if value.op is not None and value.op not in live:
                self._keep(value.op, live, pending, known)

    def _keep(self, operation: Operation, live: set[Operation], pending: list[Value], known: Binders) -> None:
        if operation in live:
            return
        live.add(operation)
        pending.extend(needs(operation, known))
        for region in operation.regions:
            self._mark(region, live, known)
            pending.extend(_captured(region, live))


def _captured(region: Block, live: set[Operation]) -> list[Value]:
    found: list[Value] = list(region.results)
    for operation in region.operations:
        if operation in live:
            found.extend(operation.operands)
            for inner in operation.regions:
                found.extend(_captured(inner, live))
    return found


def has_writes(operation: Operation) -> bool:
    """True where the operation, or one in its regions, writes a variable."""
    return operation.op.effect == "write" or any(has_writes(o) for r in operation.regions for o in r.operations)


def count_operations(block: Block) -> int:
    """Operations of a block, nested ones included."""
    return sum(1 + sum(map(count_operations, o.regions)) for o in block.operations)


def count_live(block: Block, live: set[Operation]) -> int:
    """Live operations of a block, nested ones included."""
    return sum((o in live) + sum(count_live(r, live) for r in o.regions) for o in block.operations)


class _Sweep(Rewriter):
    """Copies live operations only."""

    def __init__(self, module: Module, live: set[Operation]) -> None:
        super().__init__(module, lambda _o, _v: None)
        self.live = live

    def _operation(self, operation: Operation) -> None:
        if operation in self.live:
            super()._operation(operation)
