"""Compute at compile time what depends on constants only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.graph import Array, Module, Operation, Value, constant_array
from stitchwork.ir.rewrite import Rewriter
from stitchwork.ops._build import constant
from stitchwork.ops._op import building
from stitchwork.passes.base import PassResult

_GROWTH = 1024  # elements that a folded constant may have whatever its operands'; beyond, no more than they have


class Fold:
    """Replaces pure operations on constants by constants, unless that makes the program larger."""

    name = "fold"

    def run(self, module: Module) -> PassResult:
        rewriter = Rewriter(module, _fold)
        with building(rewriter.target):
            result = rewriter.run()
        return PassResult(result, True) if rewriter.modified else PassResult(module, False)


def _fold(operation: Operation, operands: tuple[Value, ...]) -> Sequence[Value] | None:
    op = operation.op
    if op.effect or op.library or operation.regions or not op.has("numpy") or op.name == "constant":
        return None
    if any(v.is_token for v in operation.results) or not all(v.tensor.is_static for v in operation.results):
        return None
    arrays = [constant_array(v) for v in operands]
    if any(a is None for a in arrays):
        return None
    known = [a for a in arrays if a is not None]
    size = sum(_elements(v) for v in operation.results)
    sizes = [a.size for a in known]
    if size > max(_GROWTH, 2 * max(sizes, default=0), sum(sizes)) or any(_symbolic(op, a) for a in op.attributes()):
        return None
    with np.errstate(all="ignore"):
        made = op.numpy(*op.group(known))
    many = list(cast("Sequence[Array]", made)) if isinstance(made, tuple | list) else [made]
    module = operands[0].module if operands else None
    if module is None:
        return None
    return [constant(module, np.asarray(a)) for a in many]


def _elements(value: Value) -> int:
    n = dims.product(value.shape)
    return n if isinstance(n, int) else 0


def _symbolic(op: object, attribute: str) -> bool:
    value = getattr(op, attribute)
    parts = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
    return any(isinstance(p, dims.Dim) for p in parts)
