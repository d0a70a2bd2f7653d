"""Move transposes towards the end of the program, where they meet and cancel.

Convolutions compute channels last; a program written channels first has a permute before and after each. Pushing a
permute through the ops that follow (which then work on the other layout) brings it to the next one's inverse.
"""

from __future__ import annotations

from collections.abc import Sequence

from stitchwork.ir.graph import Module, Operation, Value, constant_array
from stitchwork.ir.rewrite import Rewriter
from stitchwork.ops._build import F
from stitchwork.ops._op import Ints, Op, building
from stitchwork.passes.base import PassResult


class Layout:
    """Sinks permutes, merges those that meet, and turns those that only move dims of size 1 into reshapes."""

    name = "layout"

    def run(self, module: Module) -> PassResult:
        rewriter = Rewriter(module, _rewrite)
        with building(rewriter.target):
            result = rewriter.run()
        return PassResult(result, True) if rewriter.modified else PassResult(module, False)


def _rewrite(operation: Operation, operands: tuple[Value, ...]) -> Sequence[Value] | None:
    op = operation.op
    if op.name == "permute":
        return _merged(_order(op), operands[0])
    if op.effect or operation.regions or len(operation.results) != 1 or not operands:
        return None
    return _sunk(operation, operands)


def _order(op: Op) -> Ints:
    return getattr(op, "order")  # noqa: B009


def _permuted_source(value: Value) -> tuple[Value, Ints] | None:
    """(x, order) where the value is permute(x, order)."""
    if value.op is None or value.op.op.name != "permute":
        return None
    return value.op.operands[0], _order(value.op.op)


def _merged(order: Ints, x: Value) -> Sequence[Value] | None:
    """permute(x, order) in a simpler form, or None."""
    inner = _permuted_source(x)
    if inner is not None:
        source, first = inner
        return [permute(source, tuple(first[d] for d in order))]
    if order == tuple(range(len(order))):
        return [x]
    kept = [d for d in order if x.shape[d] != 1]
    if kept == sorted(kept):
        return [F.reshape(x, tuple(x.shape[d] for d in order))]
    return None


def permute(x: Value, order: Ints) -> Value:
    """permute(x, order), in its simplest form."""
    found = _merged(order, x)
    return found[0] if found is not None else F.permute(x, order)


def _sunk(operation: Operation, operands: tuple[Value, ...]) -> Sequence[Value] | None:
    """The op on unpermuted operands, with the permute after it."""
    sources = [_permuted_source(v) for v in operands]
    orders = {s[1] for s in sources if s is not None}
    rank = operation.results[0].rank if not operation.results[0].is_token else -1
    if len(orders) != 1 or len(next(iter(orders))) != rank:
        return None
    order = next(iter(orders))
    back = tuple(order.index(d) for d in range(rank))
    moved = operation.op.permuted(back)
    if moved is None:
        return None
    new: list[Value] = []
    for value, source in zip(operands, sources, strict=True):
        own = source[0] if source is not None else _cheaply_moved(value, back, rank)
        if own is None:
            return None
        new.append(own)
    shape = tuple(operation.results[0].shape[d] for d in back)
    type_ = operation.results[0].tensor.with_shape(shape)
    block = new[0].module.block
    made = block.append(moved, tuple(new), (type_,), (), operation.location).results[0]
    return [permute(made, order)]


def _cheaply_moved(value: Value, back: Ints, rank: int) -> Value | None:
    """An operand in the new layout where that costs nothing at run time: constants, and tensors with at most one dim
    that is not 1."""
    if value.rank == 0:
        return value
    if value.rank > rank:
        return None
    wide = (1,) * (rank - value.rank) + value.shape
    if constant_array(value) is None and sum(n != 1 for n in wide) > 1:
        return None
    full = value if value.rank == rank else F.reshape(value, wide)
    return permute(full, back)
