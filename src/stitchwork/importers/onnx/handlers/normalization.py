"""Normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from stitchwork.importers.onnx.handlers.convolution import folded
from stitchwork.importers.onnx.node import Node
from stitchwork.importers.onnx.registry import F, Results, onnx_op
from stitchwork.ir import dtypes
from stitchwork.ir.graph import Array, Value


@onnx_op("BatchNormalization")
def batch_normalization(node: Node) -> Results:
    """x * a + b with a and b per channel: constants at inference, which fold into a convolution before."""
    if not node.int("spatial", 1):
        raise node.unsupported("statistics per element (spatial = 0)")
    if node.int("training_mode", 0):
        return _training(node)
    x, epsilon = node[0], node.float("epsilon", 1e-5)
    known = [node.array(k) for k in range(1, 5)]
    if any(a is None for a in known):
        return F.batch_norm(x, node[3], node[4], node[1], node[2], epsilon=epsilon, channel_axis=1)
    gamma, beta, mean, variance = (a.astype(np.float64) for a in known if a is not None)
    scale = gamma / np.sqrt(variance + epsilon)
    shift = beta - mean * scale
    merged = folded(node, x, scale, shift)
    if merged is not None:
        return merged
    return F.addition(F.multiplication(x, _channels(node, scale, x)), _channels(node, shift, x))


def _channels(node: Node, vector: Array, x: Value) -> Value:
    shaped = vector.astype(x.dtype.numpy).reshape(-1, *(1,) * (x.rank - 2))
    return node.importer.constant(shaped)


def _training(node: Node) -> Results:
    """With the batch's own statistics, and running ones updated."""
    x, momentum = node[0], node.float("momentum", 0.9)
    axes = tuple(d for d in range(x.rank) if d != 1)
    mean = F.mean(x, axes=axes)
    variance = F.variance(x, axes=axes)
    y = F.batch_norm(x, mean, variance, node[1], node[2], epsilon=node.float("epsilon", 1e-5), channel_axis=1)
    running = [
        F.addition(F.multiplication(node[k], momentum), F.multiplication(now, 1 - momentum))
        for k, now in ((3, mean), (4, variance))
    ]
    return y, running[0], running[1]


@onnx_op("InstanceNormalization")
def instance_normalization(node: Node) -> Results:
    return F.instance_norm(node[0], node[1], node[2], epsilon=node.float("epsilon", 1e-5), channel_axis=1)


@onnx_op("LayerNormalization")
def layer_normalization(node: Node) -> Results:
    x, epsilon = node[0], node.float("epsilon", 1e-5)
    axes = tuple(range(node.int("axis", -1) % x.rank, x.rank))
    y = F.layer_norm(x, node[1], node.optional(2), axes=axes, epsilon=epsilon)
    if not node.wants(1) and not node.wants(2):
        return y
    wide = F.cast(x, dtypes.float32) if x.dtype.bits < 32 else x
    spread = F.variance(wide, axes=axes, keepdims=True)
    return y, F.mean(wide, axes=axes, keepdims=True), F.rsqrt(F.addition(spread, epsilon))


@onnx_op("RMSNormalization")
def rms_normalization(node: Node) -> Results:
    axes = tuple(range(node.int("axis", -1) % node[0].rank, node[0].rank))
    return F.rms_norm(node[0], node[1], axes=axes, epsilon=node.float("epsilon", 1e-5))


@onnx_op("LpNormalization")
def lp_normalization(node: Node) -> Results:
    x, axis, p = node[0], node.int("axis", -1), node.int("p", 2)
    if p not in (1, 2):
        raise node.invalid("attribute `p` is not valid", expected="1 or 2", got=str(p))
    norm = (F.l1_norm if p == 1 else F.l2_norm)(x, axes=axis, keepdims=True)
    return F.division_no_nan(x, norm)


@onnx_op("LRN")
def local_response_normalization(node: Node) -> Results:
    """x / (bias + alpha / size * sum of squares of `size` neighbouring channels)^beta."""
    x, size = node[0], node.int("size")
    alpha, beta = node.float("alpha", 1e-4), node.float("beta", 0.75)
    window: list[Any] = [1] * x.rank
    window[1] = size
    pads: list[Any] = [(0, 0)] * x.rank
    pads[1] = ((size - 1) // 2, size - 1 - (size - 1) // 2)
    squares = F.reduce_window(F.square(x), kind="sum", window=tuple(window), padding=tuple(pads))
    base = F.addition(F.multiplication(squares, alpha / size), node.float("bias", 1.0))
    return F.division(x, F.power(base, beta))
