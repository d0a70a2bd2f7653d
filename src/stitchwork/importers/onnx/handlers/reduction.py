"""Reductions, and where extremes are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stitchwork.importers.onnx.node import Node
from stitchwork.importers.onnx.registry import F, Results, onnx_op
from stitchwork.ir import dtypes
from stitchwork.ir.graph import Value

Reduction = Callable[..., Value]


def _plain(name: str) -> Reduction:
    return _of(lambda x: x, name)


def _of(prepare: Callable[[Value], Value], name: str, finish: Callable[[Value], Value] | None = None) -> Reduction:
    """A reduction of what `prepare` gives, and `finish` of its result."""

    def apply(x: Value, **how: Any) -> Value:
        made = getattr(F, name)(prepare(x), **how)
        return made if finish is None else finish(made)

    return apply


def _mean(x: Value, **how: Any) -> Value:
    if x.dtype.is_float:
        return F.mean(x, **how)
    total = F.reduction_sum(x, **how)
    ones = F.reduction_sum(F.broadcast(np.ones((), x.dtype.numpy), shape=x.shape), **how)
    return F.division(total, ones)


def _extreme(name: str) -> Reduction:
    def apply(x: Value, **how: Any) -> Value:
        if x.dtype is dtypes.bool_:
            return F.cast(getattr(F, name)(F.cast(x, dtypes.uint8), **how), dtypes.bool_)
        return getattr(F, name)(x, **how)

    return apply


_REDUCTIONS: dict[str, Reduction] = {
    "ReduceSum": _plain("reduction_sum"),
    "ReduceProd": _plain("reduction_product"),
    "ReduceMean": _mean,
    "ReduceMax": _extreme("reduction_maximum_propagate_nan"),
    "ReduceMin": _extreme("reduction_minimum_propagate_nan"),
    "ReduceL1": _of(F.absolute, "reduction_sum"),
    "ReduceL2": _of(F.square, "reduction_sum", F.sqrt),
    "ReduceSumSquare": _of(F.square, "reduction_sum"),
    "ReduceLogSum": _of(F.identity, "reduction_sum", F.log),
    "ReduceLogSumExp": _plain("log_sum_exp"),
}


@onnx_op(*_REDUCTIONS)
def reduce(node: Node) -> Results:
    axes = node.axes(1)
    if axes is not None and len(axes) == 0:
        axes = None
    if axes is None and node.int("noop_with_empty_axes", 0):
        axes = ()
    if axes == () and node.op_type in ("ReduceSum", "ReduceProd", "ReduceMean", "ReduceMax", "ReduceMin"):
        return node[0]
    return _REDUCTIONS[node.op_type](node[0], axes=axes, keepdims=bool(node.int("keepdims", 1)))


@onnx_op("ArgMax", "ArgMin")
def arg_extreme(node: Node) -> Results:
    x, axis, keep = node[0], node.int("axis", 0), bool(node.int("keepdims", 1))
    find = F.reduction_arg_maximum if node.op_type == "ArgMax" else F.reduction_arg_minimum
    if not node.int("select_last_index", 0):
        return F.cast(find(x, axes=axis, keepdims=keep), dtypes.int64)
    found = F.cast(find(F.reverse(x, axes=axis), axes=axis, keepdims=keep), dtypes.int64)
    last = F.gather(F.shape_of(x, dtype=dtypes.int64), axis % x.rank) - 1
    return F.subtraction(last, found)


@onnx_op("CumSum", "CumProd")
def cumulative(node: Node) -> Results:
    run = F.cumulative_sum if node.op_type == "CumSum" else F.cumulative_product
    axis = int(node.number(1, "axis"))
    return run(node[0], axis=axis, exclusive=bool(node.int("exclusive", 0)), reverse=bool(node.int("reverse", 0)))
