"""Ops whose results have a size that only the run tells: see stitchwork.ops.nonzero."""

from __future__ import annotations

import numpy as np

from stitchwork.importers.onnx.node import Node
from stitchwork.importers.onnx.registry import F, Results, onnx_op
from stitchwork.importers.onnx.unique import unique_rows
from stitchwork.ir import dims, dtypes
from stitchwork.ir.graph import Value, constant_array
from stitchwork.ops.tensor_shape import Broadcast


@onnx_op("NonZero")
def non_zero(node: Node) -> Results:
    x, known = node[0], node.array(0)
    if known is not None:
        return node.importer.constant(np.ascontiguousarray(np.argwhere(known).T.astype(np.int64)))
    if _is_filled(x):  # how exporters write a range of positions
        places = [F.coordinate_along_axis(axis=d, shape=x.shape, dtype=dtypes.int64) for d in range(x.rank)]
        return F.stack([F.reshape(p, shape=(x.tensor.elements,)) for p in places], axis=0)
    return F.permute(F.cast(F.non_zero_indices(x), dtypes.int64), permutation=(1, 0))


def _is_filled(x: Value) -> bool:
    """True where the tensor is one number, not 0, repeated."""
    if x.op is None or not isinstance(x.op.op, Broadcast) or not x.rank:
        return False
    number = constant_array(x.op.operands[0])
    return number is not None and number.size == 1 and bool(number.reshape(()) != 0)


@onnx_op("Compress")
def compress(node: Node) -> Results:
    x, known = node[0], node.array(1)
    if not node.has("axis"):
        x = F.reshape(x, shape=(x.tensor.elements,))
    if known is not None:
        chosen = node.importer.constant(np.flatnonzero(known))
    else:
        chosen = F.squeeze(F.non_zero_indices(node[1]), axes=1)
    return F.gather(x, chosen, axis=node.int("axis", 0))


@onnx_op("Unique")
def unique(node: Node) -> Results:
    x = node[0]
    axis = node.int("axis", 0) % max(x.rank, 1)
    order = (axis, *(d for d in range(x.rank) if d != axis))
    if node.has("axis"):
        moved = F.permute(x, permutation=order)
        rows = F.reshape(moved, shape=(moved.shape[0], dims.product(moved.shape[1:])))
    else:
        moved = F.reshape(x, shape=(x.tensor.elements,))
        rows = F.expand_dims(moved, axes=1)
    found = unique_rows(rows, by_value=bool(node.int("sorted", 1)))
    kept = F.gather(moved, found.first, axis=0)
    if node.has("axis"):
        kept = F.permute(kept, permutation=tuple(order.index(d) for d in range(x.rank)))
    return kept, *(F.cast(v, dtypes.int64) for v in (found.first, found.inverse, found.counts))
