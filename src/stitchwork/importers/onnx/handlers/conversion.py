"""Conversion between element types."""

from __future__ import annotations

import numpy as np

from stitchwork.importers.onnx.node import Node
from stitchwork.importers.onnx.proto import limits_of
from stitchwork.importers.onnx.registry import F, Results, onnx_op
from stitchwork.ir import dtypes
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import Value

# 8-bit floats whose range conversions keep to unless the attribute `saturate` says otherwise.
_SATURATING = (dtypes.float8_e4m3, dtypes.float8_e5m2, dtypes.float8_e4m3fnuz, dtypes.float8_e5m2fnuz)
_EXPONENT_RANGE = (2.0**-127, 2.0**127)  # of float8_e8m0
_MANTISSA = (1 << 52) - 1  # of float64


@onnx_op("Cast")
def cast(node: Node) -> Results:
    return convert(node, node[0], node.dtype("to"))


@onnx_op("CastLike")
def cast_like(node: Node) -> Results:
    return convert(node, node[0], node[1].dtype)


def convert(node: Node, x: Value, target: DType) -> Value:
    """x as `target`, by the table of ONNX's Cast. What that leaves open is as in ONNX's reference implementation: a
    float that an integer of fewer than 8 bits cannot hold becomes 0."""
    if x.dtype is target or not x.dtype.is_float:
        return F.cast(x, target)
    if target in _SATURATING and node.int("saturate", 1):
        x = F.clamp(x, *limits_of(target))
    elif target is dtypes.float8_e8m0:
        x = _power_of_two(node, x)
    elif target.is_integer and target.bits < 8:
        low, high = limits_of(target)
        whole = F.truncate(x)
        fits = F.logical_and(
            F.greater_than_or_equal_to(whole, _like(node, low, x)), F.less_than_or_equal_to(whole, _like(node, high, x))
        )
        x = F.select(fits, whole, _like(node, 0.0, x))
    return F.cast(x, target)


def _like(node: Node, number: float, x: Value) -> Value:
    return node.importer.constant(np.asarray(number, x.dtype.numpy))


def _power_of_two(node: Node, x: Value) -> Value:
    """x rounded to a power of two by the attribute `round_mode`, as float64, where all those of float32 are normal."""
    mode = node.string("round_mode", "up")
    if mode not in ("up", "down", "nearest"):
        raise node.invalid("attribute `round_mode` is not valid", expected="up, down or nearest", got=mode)
    wide = F.cast(x, dtypes.float64)
    if node.int("saturate", 1):
        wide = F.clamp(wide, *_EXPONENT_RANGE)
    if mode == "nearest":  # as the conversion itself
        return wide
    bits = F.reinterpret_cast(wide, dtypes.int64)
    if mode == "up":
        bits = F.addition(bits, node.importer.constant(np.asarray(_MANTISSA, np.int64)))
    cleared = F.bitwise_and(bits, node.importer.constant(np.asarray(~_MANTISSA, np.int64)))
    return F.select(F.is_finite(wide), F.reinterpret_cast(cleared, dtypes.float64), wide)


@onnx_op("BitCast")
def bit_cast(node: Node) -> Results:
    target = node.dtype("to")
    if target.bits != node[0].dtype.bits:
        raise node.invalid("the dtypes differ in width", expected=f"{node[0].dtype.bits} bits", got=str(target))
    if target is dtypes.bool_ and node[0].dtype is not target:
        raise node.unsupported("bits read as bool")
    return F.reinterpret_cast(node[0], target)
