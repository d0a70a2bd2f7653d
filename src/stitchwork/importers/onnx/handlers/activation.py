"""Activation functions and the softmax family."""

from __future__ import annotations

import numpy as np

from stitchwork.importers.onnx.node import Node
from stitchwork.importers.onnx.registry import F, Results, onnx_op
from stitchwork.ir import dims
from stitchwork.ir.graph import Value

_PLAIN = {
    "HardSwish": "hard_swish",
    "Mish": "mish",
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
    "Softsign": "softsign",
}


@onnx_op(*_PLAIN)
def plain(node: Node) -> Results:
    return getattr(F, _PLAIN[node.op_type])(node[0])


@onnx_op("Elu")
def elu(node: Node) -> Results:
    return F.elu(node[0], node.float("alpha", 1.0))


@onnx_op("Celu")
def celu(node: Node) -> Results:
    return F.celu(node[0], node.float("alpha", 1.0))


@onnx_op("Selu")
def selu(node: Node) -> Results:
    return F.selu(
        node[0], node.float("alpha", 1.67326319217681884765625), node.float("gamma", 1.05070102214813232421875)
    )


@onnx_op("LeakyRelu")
def leaky_relu(node: Node) -> Results:
    return F.leaky_relu(node[0], node.float("alpha", 0.01))


@onnx_op("PRelu")
def prelu(node: Node) -> Results:
    x, slope = node[0], node[1]
    if slope.rank == 1 and x.rank > 2 and node.opset < 7:  # one slope per channel
        slope = F.reshape(slope, shape=(-1, *(1,) * (x.rank - 2)))
    if x.dtype.is_float:
        return F.leaky_relu(x, slope)
    return F.select(F.less_than(x, _number(node, 0, x)), F.multiplication(x, slope), x)


@onnx_op("HardSigmoid")
def hard_sigmoid(node: Node) -> Results:
    return F.hard_sigmoid(node[0], node.float("alpha", 0.2), node.float("beta", 0.5))


@onnx_op("ThresholdedRelu")
def thresholded_relu(node: Node) -> Results:
    x = node[0]
    return F.select(F.greater_than(x, _number(node, node.float("alpha", 1.0), x)), x, _number(node, 0, x))


@onnx_op("Shrink")
def shrink(node: Node) -> Results:
    x, limit = node[0], node.float("lambd", 0.5)
    bias = _number(node, node.float("bias", 0.0), x)
    below = F.less_than(x, _number(node, -limit, x))
    above = F.greater_than(x, _number(node, limit, x))
    return F.select(below, F.addition(x, bias), F.select(above, F.subtraction(x, bias), _number(node, 0, x)))


@onnx_op("Gelu")
def gelu(node: Node) -> Results:
    return F.gelu(node[0], approximate=node.string("approximate", "none"))


@onnx_op("Swish")
def swish(node: Node) -> Results:
    alpha = node.float("alpha", 1.0)
    return F.silu(node[0]) if alpha == 1 else F.multiplication(node[0], F.sigmoid(F.multiplication(node[0], alpha)))


def _number(node: Node, x: float, like: Value) -> Value:
    return node.importer.constant(np.asarray(x, np.float64).astype(like.dtype.numpy))


# --- softmax ----------------------------------------------------------------------------------------------------------
@onnx_op("Softmax", "LogSoftmax", "Hardmax", since=13)
def softmax(node: Node) -> Results:
    return _along(node, node[0], node.int("axis", -1))


@onnx_op("Softmax", "LogSoftmax", "Hardmax")
def softmax_of_matrix(node: Node) -> Results:
    """Before opset 13 the dims from `axis` on counted as one."""
    x = node[0]
    axis = node.int("axis", 1)
    axis = axis + x.rank if axis < 0 else axis
    if axis == x.rank - 1:
        return _along(node, x, axis)
    matrix = F.reshape(x, shape=(dims.product(x.shape[:axis]), dims.product(x.shape[axis:])))
    return F.reshape(_along(node, matrix, 1), shape=x.shape)


def _along(node: Node, x: Value, axis: int) -> Value:
    if node.op_type != "Hardmax":
        return (F.softmax if node.op_type == "Softmax" else F.log_softmax)(x, axis=axis)
    first = F.reduction_arg_maximum(x, axes=axis, keepdims=True)
    here = F.equal(F.coordinate_along_axis(axis=axis, shape=x.shape), first)
    return F.cast(here, x.dtype)
