"""Building an operation whose result types are given: what reading a module's text needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from stitchwork.errors import OpError
from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Block, Module, Operation, Value
from stitchwork.ir.types import TensorType, Type
from stitchwork.ops._build import build, constant, flatten
from stitchwork.ops._op import Op, check_operands, require_equal

Types = tuple[Type, ...]


def rebuild(
    cls: type[Op],
    grouped: Sequence[Any],
    attributes: dict[str, Any],
    declared: Types,
    regions: tuple[Block, ...],
    module: Module,
) -> Operation:
    """The operation, at the end of the module's current block, with results of the declared types, checked as a
    person's call is. Raises OpError."""
    operation = _make(cls, grouped, attributes, declared, regions, module)
    _check_variable(operation)
    inferred = tuple(v.type for v in operation.results)
    if len(inferred) != len(declared) or not all(map(_agree, inferred, declared, [operation] * len(declared))):
        raise OpError(cls.name, "the results have other types", expected=_show(inferred), got=_show(declared))
    for value, type_ in zip(operation.results, declared, strict=True):
        value.type = type_
    return operation


def _make(
    cls: type[Op],
    grouped: Sequence[Any],
    attributes: dict[str, Any],
    declared: Types,
    regions: tuple[Block, ...],
    module: Module,
) -> Operation:
    if cls.name == "constant":
        return cast("Operation", constant(module, attributes["value"]).op)
    if cls.has("infer"):
        if regions:
            raise OpError(cls.name, "the op has no regions", got=f"{len(regions)} regions")
        build(cls, grouped, attributes, module)
        return module.block.operations[-1]
    types = [_types(part) for part in grouped]
    check_operands(cls, types, module)
    listed = any(s.variadic or s.optional for s in cls.operands.values())
    counts = tuple(len(cast("tuple[Any, ...]", p)) if isinstance(p, tuple) else int(p is not None) for p in grouped)
    op = cls(segments=counts if listed else None, **attributes)
    check_regions(cls.name, types, declared, regions)
    return module.block.append(op, flatten(grouped), declared, regions)


def _types(part: Any) -> Any:
    if isinstance(part, tuple):
        return tuple(v.type for v in cast("tuple[Value, ...]", part))
    return None if part is None else part.type


def _check_variable(operation: Operation) -> None:
    if not operation.op.effect:
        return
    name, type_ = getattr(operation.op, "variable", ""), getattr(operation.op, "type", None)
    state = operation.block.module.variables.get(name)
    if state is None or state.type != type_:
        raise OpError(
            operation.op.name,
            f"there is no such variable `{name}`",
            expected=str(state.type) if state else "",
            got=str(type_),
        )


def _agree(inferred: Type, declared: Type, operation: Operation) -> bool:
    """True where the types are equal, or a guard can make sure of it: equal sizes need not have one form."""
    if inferred == declared:
        return True
    if not isinstance(inferred, TensorType) or not isinstance(declared, TensorType):
        return False
    if inferred.dtype is not declared.dtype or inferred.rank != declared.rank:
        return False
    module = operation.block.module
    for a, b in zip(inferred.shape, declared.shape, strict=True):
        if a != b and (_is_told_by_run(a, module) or _is_told_by_run(b, module)):
            return False  # such a size has one name, which its operation gives it
        if not require_equal(operation.op.name, a, b, f"size {b} of a result", module):
            return False
    return True


def _is_told_by_run(n: Size, module: Module) -> bool:
    return not dims.symbols_of(n).isdisjoint(module.bounds)


def _show(types: Types) -> str:
    return ", ".join(map(str, types)) or "none"


# --- regions ------------------------------------------------------------------------------------------------
def check_regions(op: str, operands: Sequence[Any], results: Types, regions: tuple[Block, ...]) -> None:
    """Check that the regions of a control flow operation take and give what its operands and results say."""
    arguments = [tuple(v.type for v in r.arguments) for r in regions]
    given = [tuple(v.type for v in r.results) for r in regions]
    if op == "if_else":
        wanted = [((), results)] * 2
    elif op == "while_loop":
        predicate = given[0][:1] if given else ()
        if not _is_scalar(predicate):
            raise OpError(
                op,
                "the first region does not begin with a predicate",
                expected="a tensor of rank 0",
                got=_show(predicate),
            )
        wanted = [(operands[0], predicate + results), (results, operands[0])]
    else:
        wanted = [((operands[0], *operands[3]), results)]
        if operands[3] != results:
            raise OpError(op, "the carried values change their types", expected=_show(operands[3]), got=_show(results))
    if len(regions) != len(wanted):
        raise OpError(op, "wrong number of regions", expected=str(len(wanted)), got=str(len(regions)))
    for k, (takes, gives) in enumerate(wanted):
        for what, want, got in (("arguments", takes, arguments[k]), ("results", gives, given[k])):
            if want != got:
                raise OpError(op, f"the {what} of region {k} have other types", expected=_show(want), got=_show(got))


def _is_scalar(types: Types) -> bool:
    return len(types) == 1 and isinstance(types[0], TensorType) and types[0].rank == 0
