"""Loops that read slices of tensors and stack their results, the form of recurrent layers, Scan and Loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stitchwork.importers.onnx.registry import F
from stitchwork.ir import dtypes
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.ops.control_flow import for_loop

UNROLLED = 2  # steps up to which a loop is written out: too few for a loop to pay

# (index, carried values, slices) -> (next carried values, results to stack)
Body = Callable[[Value, Sequence[Value], Sequence[Value]], tuple[list[Value], list[Value]]]


def scan(
    steps: Size, carried: list[Value], inputs: Sequence[Value], body: Body, reverse: bool = False
) -> tuple[list[Value], list[Value]]:
    """Run a body for each step on slices (along dim 0) of the inputs, last first where `reverse`.

    Returns the last carried values and the results stacked along dim 0, in the order of the slices.
    """
    if isinstance(steps, int) and 0 < steps <= UNROLLED:
        return _unrolled(steps, carried, inputs, body, reverse)
    module = (*carried, *inputs)[0].module
    types = _result_types(module, carried, inputs, body)
    buffers = [F.broadcast(np.zeros((), t.dtype.numpy), shape=(steps, *t.shape)) for t in types]

    def step(i: Value, *values: Value) -> list[Value]:
        t = F.subtraction(_size(steps - 1), i) if reverse else i
        made, results = body(t, values[: len(carried)], [F.gather(x, t, axis=0) for x in inputs])
        kept = [write(b, r, t) for b, r in zip(values[len(carried) :], results, strict=True)]
        return [*made, *kept]

    found: list[Value] = for_loop(_size(steps), [*carried, *buffers], step)
    return found[: len(carried)], found[len(carried) :]


def _size(n: Size) -> Value:
    return F.size_value(size=n, dtype=dtypes.int64)


def write(buffer: Value, row: Value, i: Value) -> Value:
    """`buffer` with `row` in place of its slice i along dim 0."""
    start = (
        F.concat([F.reshape(i, shape=(1,)), np.zeros(row.rank, np.int64)], axis=0)
        if row.rank
        else F.reshape(i, shape=(1,))
    )
    return F.dynamic_update_slice(buffer, F.expand_dims(row, axes=0), start)


def _result_types(module: Any, carried: Sequence[Value], inputs: Sequence[Value], body: Body) -> list[TensorType]:
    """Types of the results to stack, from building the body once in a block that is thrown away."""
    guards = dict(module.guards)
    with module.inside(module.new_block()) as block:
        index = block.add_argument(TensorType(dtypes.int64, ()))
        values = [block.add_argument(v.type) for v in carried]
        slices = [block.add_argument(TensorType(v.dtype, v.shape[1:])) for v in inputs]
        _, results = body(index, values, slices)
        types = [v.tensor for v in results]
    module.guards = guards
    return types


def _unrolled(
    steps: int, carried: list[Value], inputs: Sequence[Value], body: Body, reverse: bool
) -> tuple[list[Value], list[Value]]:
    rows: dict[int, list[Value]] = {}
    for t in reversed(range(steps)) if reverse else range(steps):
        slices = [F.slice(x, (t,), (t + 1,), squeeze_mask=1) for x in inputs]
        carried, rows[t] = body(_size(t), carried, slices)
    return carried, [F.stack([rows[t][k] for t in range(steps)], axis=0) for k in range(len(rows[0]))]
