"""Tensors made from nothing but attributes and sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from stitchwork.importers.onnx import numbers
from stitchwork.importers.onnx.node import Node
from stitchwork.importers.onnx.registry import F, Results, onnx_op
from stitchwork.ir import dtypes
from stitchwork.ir.dims import Dim, Size
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import Value


@onnx_op("Constant")
def constant(node: Node) -> Results:
    if node.has("value"):
        return node.importer.constant(node.tensor("value"))
    for name, dtype in (("value_float", np.float32), ("value_int", np.int64)):
        if node.has(name):
            number = node.float(name) if dtype is np.float32 else node.int(name)
            return node.importer.constant(np.asarray(number, dtype))
    if node.has("value_floats"):
        return node.importer.constant(np.asarray(node.float_list("value_floats"), np.float32))
    if node.has("value_ints"):
        return node.importer.constant(np.asarray(node.int_list("value_ints"), np.int64))
    raise node.unsupported("a constant that is no tensor of numbers", got=", ".join(node.attributes))


@onnx_op("ConstantOfShape")
def constant_of_shape(node: Node) -> Results:
    value = node.tensor("value") if node.has("value") else np.zeros(1, np.float32)
    if value.size != 1:
        raise node.invalid("attribute `value` does not have one element", got=str(value.shape))
    shape = node.sizes(0, "shape")
    if any(isinstance(n, int) and n < 0 for n in shape):
        raise node.invalid("a size is negative", got=str(shape))
    scalar = node.importer.constant(value.reshape(()))
    return F.broadcast(scalar, shape=shape) if shape else scalar


@onnx_op("Range")
def range_(node: Node) -> Results:
    dtype = node[0].dtype
    limits = [node.elements(k) for k in range(3)]
    if any(e is None for e in limits):
        k = next(k for k, e in enumerate(limits) if e is None)
        raise node.unknown(k, ("start", "limit", "delta")[k])
    start, limit, delta = (e.reshape(-1)[0] for e in limits if e is not None)
    if not isinstance(delta, int | float) or delta == 0:
        raise node.unsupported("a step that is 0 or not known when the model is compiled", got=str(delta))
    count = numbers.ceil(numbers.divide(numbers.subtract(limit, start), delta))
    if count is None and all(isinstance(x, int | float) for x in (start, limit)):
        count = int(np.ceil((limit - start) / delta))
    if count is None or not isinstance(start, int | float | Dim):
        raise node.unsupported("limits that are not sizes", got=f"{start} to {limit}")
    return _arange(node, start, delta, numbers.maximum(count, 0), dtype)


def _arange(node: Node, start: Any, delta: Any, count: Size, dtype: DType) -> Value:
    if isinstance(start, Dim):
        begin = F.cast(F.size_value(size=start), dtype)
    else:
        begin = node.importer.constant(np.asarray(start).astype(dtype.numpy))
    position = F.coordinate_along_axis(axis=0, shape=(count,), dtype=dtypes.int64)
    step = node.importer.constant(np.asarray(delta).astype(dtype.numpy))
    made = F.cast(position, dtype)
    made = made if delta == 1 else F.multiplication(made, step)
    return made if isinstance(start, int | float) and start == 0 else F.addition(made, begin)


@onnx_op("OneHot")
def one_hot(node: Node) -> Results:
    indices, values = node[0], node[2]
    depth = node.sizes(1, "depth")[0]
    axis = node.int("axis", -1)
    axis = axis + indices.rank + 1 if axis < 0 else axis
    indices = F.cast(indices, dtypes.int64)
    size = F.size_value(size=depth) if isinstance(depth, Dim) else node.importer.constant(np.asarray(depth, np.int64))
    zero = node.importer.constant(np.asarray(0, np.int64))
    indices = F.select(F.less_than(indices, zero), F.addition(indices, size), indices)
    shape = tuple(depth if d == axis else 1 for d in range(indices.rank + 1))
    positions = F.coordinate_along_axis(axis=axis, shape=shape, dtype=dtypes.int64)
    here = F.equal(F.expand_dims(indices, axes=axis), positions)
    return F.select(here, F.slice(values, (1,), (2,), squeeze_mask=1), F.slice(values, (0,), (1,), squeeze_mask=1))


@onnx_op("EyeLike")
def eye_like(node: Node) -> Results:
    shape = node[0].shape
    dtype = node.dtype("dtype", node[0].dtype)
    rows, columns = _positions(shape)
    offset = node.importer.constant(np.asarray(node.int("k", 0), np.int64))
    return F.cast(F.equal(F.addition(rows, offset), columns), dtype)


@onnx_op("Trilu")
def triangle(node: Node) -> Results:
    x = node[0]
    k = node.optional(1)
    offset = F.reshape(k, shape=()) if k is not None else node.importer.constant(np.asarray(0, np.int64))
    rows, columns = _positions(x.shape[-2:])
    difference = F.subtraction(columns, rows)
    kept = (F.greater_than_or_equal_to if node.int("upper", 1) else F.less_than_or_equal_to)(difference, offset)
    return F.select(kept, x, node.importer.constant(np.zeros((), x.dtype.numpy)))


def _positions(shape: tuple[Size, ...]) -> tuple[Value, Value]:
    rows = F.coordinate_along_axis(axis=0, shape=(shape[0], 1), dtype=dtypes.int64)
    return rows, F.coordinate_along_axis(axis=1, shape=(1, shape[1]), dtype=dtypes.int64)


@onnx_op("MelWeightMatrix")
def mel_weight_matrix(node: Node) -> Results:
    """Triangles that gather a spectrum [dft_length // 2 + 1] into bins equally far apart on the mel scale (Stevens)."""
    names = ("num_mel_bins", "dft_length", "sample_rate")
    bins, length, rate = (int(node.number(k, what)) for k, what in enumerate(names))
    limits = np.array([node.number(3, "lower_edge_hertz"), node.number(4, "upper_edge_hertz")], np.float64)
    low, high = 2595 * np.log10(1 + limits / 700)
    centres = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
    hertz = 700 * (10 ** (centres / 2595) - 1)
    places = np.floor((length + 1) * hertz / rate).astype(np.int64)
    matrix = np.zeros((length // 2 + 1, bins))
    for b in range(bins):
        start, top, end = (int(p) for p in places[b : b + 3])
        if start == top:
            matrix[top, b] = 1
        for j in range(start, min(top + 1, len(matrix))):
            matrix[j, b] = matrix[j, b] if start == top else (j - start) / (top - start)
        for j in range(top, min(end, len(matrix))):
            matrix[j, b] = (end - j) / (end - top)
    return node.importer.constant(matrix.astype(node.dtype("output_datatype", dtypes.float32).numpy))
