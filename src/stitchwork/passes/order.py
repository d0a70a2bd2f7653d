"""Once dead code is gone, the order of effects is the order of operations: tokens are dropped."""

from __future__ import annotations

from stitchwork.ir.graph import Module, Operation, Value
from stitchwork.ir.rewrite import Rewriter
from stitchwork.passes.base import PassResult


class DropOrder:
    """Replaces `after` operations by their tensor and takes tokens out of results. Every assign left is then live, and
    reads and assigns stay in the order in which they stand."""

    name = "drop-order"

    def run(self, module: Module) -> PassResult:
        rewriter = _Order(module)
        result = rewriter.run()
        result.body.results = tuple(v for v in result.body.results if not v.is_token)
        return PassResult(result, rewriter.modified)


class _Order(Rewriter):
    def __init__(self, module: Module) -> None:
        super().__init__(module, _forward)


def _forward(operation: Operation, operands: tuple[Value, ...]) -> tuple[Value, ...] | None:
    return (operands[0],) if operation.op.name == "after" else None


