"""Once dead code is gone, the order of effects is the order of operations: tokens are dropped."""

from __future__ import annotations

from stitchwork.ir.graph import Block, Module, Operation, Value
from stitchwork.ir.rewrite import Rewriter
from stitchwork.passes.base import PassResult


class DropOrder:
    """Replaces `after` operations by their tensor and takes tokens out of results.

    Reads of variables that wait for nothing go to the start of their block: they see what was there before the block's
    assigns, wherever they were written. Every assign left is live, and reads and assigns then stay in the order in
    which they stand.
    """

    name = "drop-order"

    def run(self, module: Module) -> PassResult:
        rewriter = _Order(module)
        result = rewriter.run()
        kept = tuple(v for v in result.body.results if not v.is_token)
        modified = rewriter.modified or len(kept) != len(result.body.results)
        result.body.results = kept
        return PassResult(result, modified)


class _Order(Rewriter):
    def __init__(self, module: Module) -> None:
        super().__init__(module, _forward)

    def copy_into(self, source: Block, target: Block) -> None:
        early = [o for o in source.operations if o.op.effect == "read" and not o.operands]
        late = [o for o in source.operations if o.op.effect != "read" or o.operands]
        self.modified |= source.operations[: len(early)] != early
        with self.target.inside(target):
            for operation in (*early, *late):
                self._operation(operation)
        target.results = tuple(self.values[v] for v in source.results)


def _forward(operation: Operation, operands: tuple[Value, ...]) -> tuple[Value, ...] | None:
    return (operands[0],) if operation.op.name == "after" else None
