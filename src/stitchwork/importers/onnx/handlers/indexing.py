"""Reads and writes at indices, sorting and selecting."""

from __future__ import annotations

import numpy as np

from stitchwork.importers.onnx.node import Node
from stitchwork.importers.onnx.registry import F, Results, onnx_op
from stitchwork.ir import dtypes
from stitchwork.ir.graph import Value


@onnx_op("Gather")
def gather(node: Node) -> Results:
    return F.gather(node[0], node[1], axis=node.int("axis", 0))


@onnx_op("GatherElements")
def gather_elements(node: Node) -> Results:
    return F.gather_along_axis(node[0], node[1], axis=node.int("axis", 0))


@onnx_op("GatherND")
def gather_nd(node: Node) -> Results:
    return F.gather_nd(node[0], node[1], batch_dims=node.int("batch_dims", 0))


_MODES = {"none": "set", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def _mode(node: Node) -> str:
    given = node.string("reduction", "none")
    if given not in _MODES:
        raise node.invalid("attribute `reduction` is not valid", expected=", ".join(_MODES), got=given)
    return _MODES[given]


@onnx_op("Scatter", "ScatterElements")
def scatter_elements(node: Node) -> Results:
    return F.scatter_along_axis_with_data(node[0], node[2], node[1], mode=_mode(node), axis=node.int("axis", 0))


@onnx_op("ScatterND")
def scatter_nd(node: Node) -> Results:
    return F.scatter_nd_with_data(node[0], node[2], node[1], mode=_mode(node))


@onnx_op("TensorScatter")
def tensor_scatter(node: Node) -> Results:
    """Writes `update` [b, ..., m, ...] into `past` [b, ..., n, ...] along an axis, from a start per batch element."""
    past, update, starts = node[0], node[1], node.optional(2)
    axis = node.int("axis", -2) % past.rank
    if axis == 0:
        raise node.invalid("attribute `axis` is the batch dim")
    shape = tuple(n if d in (0, axis) else 1 for d, n in enumerate(update.shape))
    position = F.coordinate_along_axis(axis=axis, shape=shape, dtype=dtypes.int64)
    if starts is not None:
        first = F.reshape(F.cast(starts, dtypes.int64), shape=(-1, *(1,) * (past.rank - 1)))
        position = F.addition(position, first)
    if node.string("mode", "linear") == "circular":
        position = F.floor_modulo(position, F.gather(F.shape_of(past, dtype=dtypes.int64), axis))
    indices = F.broadcast(position, shape=update.shape)
    return F.scatter_along_axis_with_data(past, update, indices, mode="set", axis=axis)


@onnx_op("ReverseSequence")
def reverse_sequence(node: Node) -> Results:
    x, lengths = node[0], node[1]
    time, batch = node.int("time_axis", 0), node.int("batch_axis", 1)
    shape = tuple(n if d == time else 1 for d, n in enumerate(x.shape))
    position = F.coordinate_along_axis(axis=time, shape=shape, dtype=dtypes.int64)
    length = F.reshape(F.cast(lengths, dtypes.int64), shape=tuple(-1 if d == batch else 1 for d in range(x.rank)))
    mirrored = F.subtraction(F.subtraction(length, position), _one(node))
    source = F.select(F.less_than(position, length), mirrored, position)
    return F.gather_along_axis(x, F.broadcast(source, shape=x.shape), axis=time)


def _one(node: Node) -> Value:
    return node.importer.constant(np.asarray(1, np.int64))


@onnx_op("TopK")
def top_k(node: Node) -> Results:
    x = node[0]
    axis = node.int("axis", -1)
    k = node.int("k") if node.opset < 10 else node.ints(1, "k")[0]
    if node.int("largest", 1):
        values, indices = F.top_k(x, k=k, axis=axis)
    else:
        values, indices = F.bottom_k(x, k=k, axis=axis)
    return values, F.cast(indices, dtypes.int64)
