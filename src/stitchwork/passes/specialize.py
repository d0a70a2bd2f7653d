"""Give symbolic sizes their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Guard, Module, Operation, Value
from stitchwork.ir.rewrite import Rewriter
from stitchwork.ir.types import TensorType, Type


def specialize(module: Module, sizes: Mapping[str, int]) -> Module:
    """The module with symbols replaced by numbers, in types, attributes, guards and what integer tensors hold."""
    return _Specializer(module, sizes).run()


class _Specializer(Rewriter):
    def __init__(self, module: Module, sizes: Mapping[str, Size]) -> None:
        super().__init__(module, lambda _o, _v: None)
        self.sizes = sizes
        guards = [_guard(g, sizes) for g in module.guards.values()]
        self.target.guards = {(g.op, g.relation, g.a, g.b): g for g in guards}
        self.target.bounds = {n: dims.substitute(b, sizes) for n, b in module.bounds.items()}

    def _type(self, type_: Type) -> Type:
        if not isinstance(type_, TensorType) or type_.is_static:
            return type_
        return type_.with_shape(tuple(dims.substitute(n, self.sizes) for n in type_.shape))

    def _argument(self, argument: Value, target: object) -> None:
        super()._argument(argument, target)  # type: ignore[arg-type]
        copy = self.values[argument]
        copy.type = self._type(argument.type)

    def copy_operation(self, operation: Operation, operands: tuple[Value, ...]) -> tuple[Value, ...]:
        block = self.target.block
        regions = tuple(self.copy_region(r, block) for r in operation.regions)
        types = tuple(self._type(v.type) for v in operation.results)
        op = operation.op.substituted(self.sizes)
        copy = block.append(op, operands, types, regions, operation.location)
        for old, new in zip(operation.results, copy.results, strict=True):
            new.name, new.content = old.name, _content(old.content, self.sizes)
        return copy.results


def _content(content: object, sizes: Mapping[str, Size]) -> object:
    if isinstance(content, tuple):
        return tuple(_content(c, sizes) for c in cast("tuple[object, ...]", content))
    return dims.substitute(content, sizes) if isinstance(content, dims.Dim) else content


def _guard(g: Guard, sizes: Mapping[str, Size]) -> Guard:
    return Guard(g.op, g.what, g.relation, dims.substitute(g.a, sizes), dims.substitute(g.b, sizes), g.location)
