"""Copying a module while changing it: the one way in which passes work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stitchwork.ir.graph import Block, Module, Operation, Value

# What to put in place of an operation: its new results, or None to copy the operation as it is.
Rewrite = Callable[[Operation, tuple[Value, ...]], Sequence[Value] | None]


class Rewriter:
    """Copies a module, offering each operation with its new operands to `rewrite`.

    The rewrite may build new operations with the ops' functions: they go where the copied one would have gone.
    """

    def __init__(self, source: Module, rewrite: Rewrite) -> None:
        self.source, self.rewrite = source, rewrite
        self.target = source.clone_frame()
        self.values: dict[Value, Value] = {}
        self.modified = False

    def run(self) -> Module:
        body = self.source.body
        for argument in body.arguments:
            self._argument(argument, self.target.body)
        self.copy_into(body, self.target.body)
        return self.target

    def copy_into(self, source: Block, target: Block) -> None:
        """Copy operations and results of a block whose arguments are mapped already."""
        with self.target.inside(target):
            for operation in source.operations:
                self._operation(operation)
        target.results = tuple(self.values[v] for v in source.results)

    def copy_region(self, source: Block, parent: Block) -> Block:
        """A copy of a region, to be owned by an operation of `parent`."""
        target = self.target.new_block(parent)
        for argument in source.arguments:
            self._argument(argument, target)
        self.copy_into(source, target)
        return target

    def _argument(self, argument: Value, target: Block) -> None:
        self.values[argument] = copy = target.add_argument(argument.type, argument.name)
        copy.content = argument.content

    def _operation(self, operation: Operation) -> None:
        operands = tuple(self.values[v] for v in operation.operands)
        results = self.rewrite(operation, operands)
        if results is None:
            results = self.copy_operation(operation, operands)
        else:
            self.modified = True
        for old, new in zip(operation.results, results, strict=True):
            self.values[old] = new
            new.name = new.name or old.name

    def copy_operation(self, operation: Operation, operands: tuple[Value, ...]) -> tuple[Value, ...]:
        block = self.target.block
        regions = tuple(self.copy_region(r, block) for r in operation.regions)
        types = tuple(v.type for v in operation.results)
        copy = block.append(operation.op, operands, types, regions, operation.location)
        copy.guards = operation.guards
        for old, new in zip(operation.results, copy.results, strict=True):
            new.name, new.content = old.name, old.content
        return copy.results
