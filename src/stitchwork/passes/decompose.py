"""Replace composite ops by what they are made of, and counted loops by while loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from stitchwork.ir.dtypes import bool_, int64, uint64
from stitchwork.ir.graph import Module, Operation, Value, constant_array
from stitchwork.ir.rewrite import Rewriter
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F, constant
from stitchwork.ops._op import building, require_equal
from stitchwork.ops.control_flow import ForLoop, WhileLoop
from stitchwork.passes.base import PassResult

_ROUNDS = 32


class Decompose:
    """Afterwards every operation has `compute`, `loops` or an alias' meaning, or is an if, a while or an effect."""

    name = "decompose"

    def run(self, module: Module) -> PassResult:
        modified = False
        for _ in range(_ROUNDS):
            rewriter = _Decomposer(module)
            with building(rewriter.target):
                result = rewriter.run()
            if not rewriter.modified:
                return PassResult(module, modified)
            module, modified = result, True
        raise AssertionError("decomposition does not end")


class _Decomposer(Rewriter):
    def __init__(self, module: Module) -> None:
        super().__init__(module, self._replace)

    def _replace(self, operation: Operation, operands: tuple[Value, ...]) -> Sequence[Value] | None:
        op = operation.op
        if isinstance(op, ForLoop):
            return self._as_while(operation, operands)
        if not op.has("decompose"):
            return None
        given = [v for v, s in zip(op.group(operands), op.operands.values(), strict=True) if not s.token]
        made = op.decompose(*given)
        results = tuple(cast("Sequence[Value]", made)) if isinstance(made, tuple | list) else (made,)
        return tuple(_as_declared(operation, old, new) for old, new in zip(operation.results, results, strict=True))

    def _as_while(self, operation: Operation, operands: tuple[Value, ...]) -> Sequence[Value]:
        """Count k from 0 in i64, so that no index can overflow; the index is lower + k * step."""
        lower, upper, step = (F.cast(v, int64) for v in operands[:3])
        carried = operands[3:]
        total = _count(lower, upper, step, operation.regions[0].arguments[0].dtype is int64)
        known = constant_array(operands[2])
        if known is None or known <= 0:
            total = F.select(step > 0, total, 0)
        block = self.target.block
        start = constant(self.target, np.zeros((), np.int64))
        types = (TensorType(int64, ()), *(v.type for v in carried))
        head = self.target.new_block(block)
        arguments = [head.add_argument(t) for t in types]
        with self.target.inside(head):
            head.results = (F.cast(arguments[0] < total, bool_), *arguments)
        body = self.target.new_block(block)
        counter, *values = (body.add_argument(t) for t in types)
        region = operation.regions[0]
        with self.target.inside(body):
            index = F.cast(lower + counter * step, region.arguments[0].dtype)
            following = counter + 1
        self.values.update(zip(region.arguments, (index, *values), strict=True))
        self.copy_into(region, body)
        body.results = (following, *body.results)
        op = WhileLoop(segments=(1 + len(carried),))
        loop = block.append(op, (start, *carried), types, (head, body), operation.location)
        return loop.results[1:]


def _count(lower: Value, upper: Value, step: Value, wide: bool) -> Value:
    """How many numbers range(lower, upper, step) holds, where step > 0; `wide` bounds may be 2**63 and more apart."""
    positive = F.maximum(step, 1)
    if not wide:
        return (upper - lower + step - 1) // positive
    apart = F.cast(upper - lower, uint64) - 1  # exact, even where the subtraction wraps
    return F.select(lower < upper, F.cast(apart // F.cast(positive, uint64), int64) + 1, 0)


def _as_declared(operation: Operation, old: Value, new: Value) -> Value:
    """The decomposition's result with the type that the op declared; sizes agreeing only at run time become guards."""
    if old.type == new.type:
        return new
    name = operation.op.name
    assert old.dtype is new.dtype and old.rank == new.rank, f"{name} decomposes to {new.type}, not {old.type}"
    for d, (declared, made) in enumerate(zip(old.shape, new.shape, strict=True)):
        fits = require_equal(name, declared, made, f"size of result dim {d}", new.module)
        assert fits, f"{name} decomposes to {new.type}, not {old.type}"
    return F.reshape(new, old.shape)
