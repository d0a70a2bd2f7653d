"""Elementwise arithmetic, comparison and conversion."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from stitchwork.importers.onnx.node import Node
from stitchwork.importers.onnx.registry import F, Results, onnx_op
from stitchwork.ir.graph import Value

_UNARY = {
    "Abs": "absolute",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "BitwiseNot": "bitwise_not",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "IsNaN": "is_nan",
    "Log": "log",
    "Neg": "negative",
    "Not": "logical_not",
    "Reciprocal": "reciprocal",
    "Round": "rint",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
}
_BINARY = {
    "Add": "addition",
    "And": "logical_and",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Div": "division",
    "Equal": "equal",
    "Greater": "greater_than",
    "GreaterOrEqual": "greater_than_or_equal_to",
    "Less": "less_than",
    "LessOrEqual": "less_than_or_equal_to",
    "Mul": "multiplication",
    "Or": "logical_or",
    "Sub": "subtraction",
    "Xor": "logical_xor",
}


@onnx_op(*_UNARY)
def unary(node: Node) -> Results:
    return getattr(F, _UNARY[node.op_type])(node[0])


@onnx_op(*_BINARY)
def binary(node: Node) -> Results:
    a, b = node[0], node[1]
    if node.opset < 7 and node.int("broadcast", 0):
        b = aligned(b, a.rank, node.int("axis", a.rank - b.rank))
    return getattr(F, _BINARY[node.op_type])(a, b)


def aligned(b: Value, rank: int, axis: int) -> Value:
    """A tensor whose first dim is to meet dim `axis` of one of some rank, as broadcasting before opset 7 has it."""
    trailing = rank - axis % max(rank, 1) - b.rank
    return F.expand_dims(b, axes=tuple(range(b.rank, b.rank + trailing))) if trailing > 0 else b


@onnx_op("Max", "Min", "Sum", "Mean")
def variadic(node: Node) -> Results:
    names = {"Max": "maximum_nan_propagation", "Min": "minimum_nan_propagation", "Sum": "addition", "Mean": "addition"}
    values = node.all()
    total = reduce(getattr(F, names[node.op_type]), values)
    return F.division(total, float(len(values))) if node.op_type == "Mean" else total


@onnx_op("Pow")
def power(node: Node) -> Results:
    base, exponent = node[0], node[1]
    if node.opset < 7 and node.int("broadcast", 0):
        exponent = aligned(exponent, base.rank, node.int("axis", base.rank - exponent.rank))
    known = node.array(1)
    if known is not None and known.size == 1 and exponent.rank <= base.rank and base.dtype.is_float:
        exact = {2.0: F.square, 1.0: F.identity, 0.5: F.sqrt, -1.0: F.reciprocal}.get(float(known.reshape(())))
        if exact is not None:
            return exact(base)
    if base.dtype.is_integer and exponent.dtype.is_float:  # ONNX: the result has the base's dtype
        return F.cast(F.power(F.cast(base, exponent.dtype), exponent), base.dtype)
    return F.power(base, F.cast(exponent, base.dtype))


@onnx_op("Mod")
def modulo(node: Node) -> Results:
    a, b = node[0], node[1]
    if node.int("fmod", 0):
        return F.modulo(a, b)
    made = F.floor_modulo(a, b)
    if not a.dtype.is_float:
        return made
    zero, nan = (node.importer.constant(np.asarray(x).astype(b.dtype.numpy)) for x in (0.0, np.nan))
    return F.select(F.equal(b, zero), nan, made)


@onnx_op("BitShift")
def bit_shift(node: Node) -> Results:
    direction = node.string("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise node.invalid("attribute `direction` is not valid", expected="LEFT or RIGHT", got=direction)
    return (F.bitwise_left_shift if direction == "LEFT" else F.bitwise_right_shift)(node[0], node[1])


@onnx_op("Where")
def where(node: Node) -> Results:
    return F.select(node[0], node[1], node[2])


@onnx_op("Clip")
def clip_by_attributes(node: Node) -> Results:
    low = node.float("min") if node.has("min") else None
    high = node.float("max") if node.has("max") else None
    return _clip(node[0], low, high)


@onnx_op("Clip", since=11)
def clip(node: Node) -> Results:
    return _clip(node[0], node.optional(1), node.optional(2))


def _clip(x: Value, low: Any, high: Any) -> Value:
    if low is None and high is None:
        return x
    return F.clamp(x, low, high)


@onnx_op("IsInf")
def is_inf(node: Node) -> Results:
    x = node[0]
    found = F.is_infinite(x)
    zero = node.importer.constant(np.zeros((), x.dtype.numpy))
    if not node.int("detect_positive", 1):
        found = F.logical_and(found, F.less_than(x, zero))
    if not node.int("detect_negative", 1):
        found = F.logical_and(found, F.greater_than(x, zero))
    return found


@onnx_op("Identity")
def identity(node: Node) -> Results:
    return node[0]


@onnx_op("Dropout")
def dropout(node: Node) -> Results:
    """At inference nothing is dropped."""
    training = node.optional(2)
    if training is not None and node.number(2, "training_mode") and node.number(1, "ratio", 0.5) != 0:
        raise node.unsupported("dropout while training")
    mask = None
    if node.wants(1):
        mask = F.broadcast(np.ones((), np.bool_ if node.opset >= 10 else node[0].dtype.numpy), shape=node[0].shape)
    return node[0], mask
