"""Merge operations that compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stitchwork.ir.graph import Block, Module, Operation, Value, constant_array
from stitchwork.ir.rewrite import Rewriter
from stitchwork.passes.base import PassResult

_SMALL = 64  # elements of constants that are compared by content


class CommonSubexpressions:
    """Equal ops on the same operands, in one block or an enclosing one, become one. Writes and regions stay."""

    name = "cse"

    def run(self, module: Module) -> PassResult:
        rewriter = _Merge(module)
        result = rewriter.run()
        return PassResult(result, True) if rewriter.modified else PassResult(module, False)


class _Merge(Rewriter):
    def __init__(self, module: Module) -> None:
        super().__init__(module, self._known)
        self.tables: dict[Block, dict[Any, tuple[Value, ...]]] = {}

    def _known(self, operation: Operation, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        if operation.op.effect or operation.regions:
            return None
        key = (_op_key(operation), operands)
        block: Block | None = self.target.block
        while block is not None:
            found = self.tables.get(block, {}).get(key)
            if found is not None:
                return found
            block = block.parent
        return None

    def copy_operation(self, operation: Operation, operands: tuple[Value, ...]) -> tuple[Value, ...]:
        made = super().copy_operation(operation, operands)
        if not operation.op.effect and not operation.regions:
            self.tables.setdefault(self.target.block, {})[(_op_key(operation), operands)] = made
        return made


def _op_key(operation: Operation) -> Any:
    array = constant_array(operation.results[0]) if len(operation.results) == 1 else None
    if array is not None and array.size <= _SMALL:
        return ("constant", array.dtype.name, array.shape, array.tobytes())
    return operation.op.key()
