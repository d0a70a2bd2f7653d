"""The rules of the IR, checked at the borders of every pass."""

from __future__ import annotations

from stitchwork.errors import VerifyError
from stitchwork.ir.graph import Block, Module, Value
from stitchwork.ir.told import misplaced


def verify(module: Module, after: str) -> None:
    """Check that every value is defined before it is used, in a block that encloses its use, that arguments, results
    and regions belong where they stand, and that sizes told by the run are known where they are used. Raises
    VerifyError, naming the step `after` which a rule was broken."""
    _block(module.body, set(), after)
    problem = misplaced(module)
    if problem:
        raise VerifyError(f"after {after}: {problem}")


def _block(block: Block, outer: set[Value], after: str) -> None:
    defined = set(outer) | set(block.arguments)
    for operation in block.operations:
        for v in operation.operands:
            if v not in defined:
                raise VerifyError(f"after {after}: {operation.op.name} uses {v!r}, which is not defined before it")
        for region in operation.regions:
            if region.parent is not block:
                raise VerifyError(f"after {after}: a region of {operation.op.name} does not know its block")
            _block(region, defined, after)
        for v in operation.results:
            if v.block is not block or v.op is not operation:
                raise VerifyError(f"after {after}: {v!r} is not where it was made")
        defined.update(operation.results)
    for v in block.results:
        if v not in defined:
            raise VerifyError(f"after {after}: the result {v!r} is not defined")
