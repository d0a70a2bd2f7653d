"""Replace operations by cheaper equal ones, as the ops themselves say."""

from __future__ import annotations

from collections.abc import Sequence

from stitchwork.ir.graph import Module, Operation, Value
from stitchwork.ir.rewrite import Rewriter
from stitchwork.ops._op import building
from stitchwork.passes.base import PassResult


class Simplify:
    """Applies every op's `simplify` rule once, operands first."""

    name = "simplify"

    def run(self, module: Module) -> PassResult:
        rewriter = Rewriter(module, _simplified)
        with building(rewriter.target):
            result = rewriter.run()
        return PassResult(result, True) if rewriter.modified else PassResult(module, False)


def _simplified(operation: Operation, operands: tuple[Value, ...]) -> Sequence[Value] | None:
    op = operation.op
    if op.effect or operation.regions or len(operation.results) != 1 or not op.has("simplify"):
        return None
    given = [v for v, s in zip(op.group(operands), op.operands.values(), strict=True) if not s.token]
    made = op.simplify(*given)
    if made is None:
        return None
    assert made.type == operation.results[0].type, (
        f"{op.name} simplifies to {made.type}, not {operation.results[0].type}"
    )
    return [made]
