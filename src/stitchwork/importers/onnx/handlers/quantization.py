"""Quantised numbers."""

from __future__ import annotations

import numpy as np

from stitchwork.importers.onnx.handlers.convolution import convolution
from stitchwork.importers.onnx.handlers.matmul import integer_product
from stitchwork.importers.onnx.node import Node
from stitchwork.importers.onnx.proto import limits_of
from stitchwork.importers.onnx.registry import F, Results, onnx_op
from stitchwork.ir import dims, dtypes
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import Value


def _along(node: Node, parameter: Value, x: Value) -> Value:
    """A scale or zero point shaped to broadcast against x: one, one per slice of `axis`, or one per block of it."""
    axis, block = node.int("axis", 1), node.int("block_size", 0)
    axis = axis + x.rank if axis < 0 else axis
    if parameter.rank == 0 or (parameter.rank == 1 and parameter.shape[0] == 1 and not block):
        return F.reshape(parameter, shape=())
    if parameter.rank == 1 and not block:
        return F.reshape(parameter, shape=tuple(-1 if d == axis else 1 for d in range(x.rank)))
    if not block:
        block_size = dims.floordiv(x.shape[axis], parameter.shape[axis])
    else:
        block_size = block
    if parameter.rank != x.rank:
        raise node.invalid("scale does not fit its tensor", expected=f"rank 0, 1 or {x.rank}", got=str(parameter.type))
    spread = F.broadcast(
        F.expand_dims(parameter, axes=axis + 1),
        shape=(*parameter.shape[: axis + 1], block_size, *parameter.shape[axis + 1 :]),
    )
    joined = (*parameter.shape[:axis], parameter.shape[axis] * block_size, *parameter.shape[axis + 1 :])
    made = F.reshape(spread, shape=joined)
    if joined[axis] != x.shape[axis]:  # the last block may be shorter
        made = F.slice_dim(made, axis=axis, start=0, length=x.shape[axis])
    return made


@onnx_op("QuantizeLinear")
def quantize_linear(node: Node) -> Results:
    zero = node.optional(2)
    target = zero.dtype if zero is not None else node.dtype("output_dtype", dtypes.uint8)
    return quantize(node, node[0], node[1], zero, target)


def quantize(node: Node, x: Value, scale: Value, zero: Value | None, target: DType) -> Value:
    """x / scale + zero, rounded where `target` is an integer dtype, limited to what it holds."""
    wide = F.cast(x, dtypes.float32) if x.dtype is not dtypes.float32 else x
    scale = _along(node, F.cast(scale, dtypes.float32), x)
    q = F.division(wide, scale)
    q = F.rint(q) if target.is_integer else q
    if zero is not None:
        q = F.addition(q, F.cast(_along(node, zero, x), dtypes.float32))
    return F.cast(F.clamp(q, *limits_of(target)), target)


@onnx_op("DequantizeLinear")
def dequantize_linear(node: Node) -> Results:
    x, scale, zero = node[0], node[1], node.optional(2)
    result = node.dtype("output_dtype", scale.dtype)
    value = F.cast(x, dtypes.int32 if x.dtype.is_integer else dtypes.float32)
    if zero is not None:
        value = F.subtraction(value, F.cast(_along(node, zero, x), value.dtype))
    product = F.multiplication(F.cast(value, dtypes.float32), _along(node, F.cast(scale, dtypes.float32), x))
    return F.cast(product, result)


@onnx_op("DynamicQuantizeLinear")
def dynamic_quantize_linear(node: Node) -> Results:
    """To uint8 with a range that covers the tensor and 0."""
    x = node[0]
    zero = node.importer.constant(np.zeros((), np.float32))
    high = F.maximum_nan_propagation(F.reduction_maximum(x), zero)
    low = F.minimum_nan_propagation(F.reduction_minimum(x), zero)
    scale = F.division(F.subtraction(high, low), 255.0)
    point = F.cast(F.clamp(F.rint(F.division(F.negative(low), scale)), 0.0, 255.0), dtypes.uint8)
    return quantize(node, x, scale, point, dtypes.uint8), scale, point


@onnx_op("QLinearMatMul")
def quantized_matmul(node: Node) -> Results:
    product = integer_product(node[0], node[3], node[2], node[5])
    b_scale = node[4]
    a_scale = node[1]
    a_scale = F.expand_dims(a_scale, axes=-1) if a_scale.rank == 1 and a_scale.shape[0] != 1 else a_scale
    value = F.multiplication(
        F.cast(product, dtypes.float32),
        F.multiplication(F.cast(a_scale, dtypes.float32), F.cast(b_scale, dtypes.float32)),
    )
    return quantize(node, value, node[6], node[7], node[7].dtype)


@onnx_op("QLinearConv")
def quantized_convolution(node: Node) -> Results:
    x = F.subtraction(F.cast(node[0], dtypes.int32), F.cast(F.reshape(node[2], shape=()), dtypes.int32))
    per_channel = (-1, *(1,) * (x.rank - 1))
    weights, zero = F.cast(node[3], dtypes.int32), F.cast(node[5], dtypes.int32)
    weights = F.subtraction(weights, F.reshape(zero, shape=per_channel if zero.rank else ()))
    y = convolution(node, x, weights)
    channels = (-1, *(1,) * (x.rank - 2))
    bias = node.optional(8)
    if bias is not None:
        y = F.addition(y, F.reshape(bias, shape=channels))
    scale = F.reshape(node[4], shape=channels if node[4].rank else ())
    value = F.multiplication(F.cast(y, dtypes.float32), F.multiplication(F.reshape(node[1], shape=()), scale))
    return quantize(node, value, node[6], node[7], node[7].dtype)
