"""Pooling."""

from __future__ import annotations

from typing import Any

from stitchwork.importers.onnx.handlers.convolution import padding_of, per_dim
from stitchwork.importers.onnx.node import Node
from stitchwork.importers.onnx.registry import F, Results, onnx_op
from stitchwork.ir import dims, dtypes
from stitchwork.ir.graph import Value

_LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


def _window(node: Node) -> dict[str, Any]:
    """Attributes of our pooling ops from the node's."""
    spatial = node[0].rank - 2
    if spatial not in _LAYOUTS:
        raise node.unsupported(f"{spatial} spatial dims", hint="1 to 3 can be imported")
    return {
        "kernel_size": per_dim(node, "kernel_shape", spatial),
        "strides": per_dim(node, "strides", spatial),
        "dilation": per_dim(node, "dilations", spatial),
        "padding": padding_of(node, spatial),
        "ceil_mode": bool(node.int("ceil_mode", 0)),
        "data_layout": _LAYOUTS[spatial],
    }


@onnx_op("MaxPool")
def max_pool(node: Node) -> Results:
    x, how = node[0], _window(node)
    spatial = x.rank - 2
    if not node.wants(1):
        return getattr(F, f"max_pooling{spatial}d")(x, **how)
    if spatial != 2:
        raise node.unsupported(f"indices for {spatial} spatial dims", hint="2 can be imported")
    made, indices = F.max_pooling2d_return_indices(x, **how, return_indices_mode="global_flatten_4d")
    indices = F.cast(indices, dtypes.int64)
    return made, _column_major(indices, x) if node.int("storage_order", 0) else indices


def _column_major(indices: Value, x: Value) -> Value:
    """Flat positions in [n, c, h, w] as positions in [n, c, w, h]."""
    h, w = (F.size_value(size=n, dtype=dtypes.int64) for n in x.shape[2:])
    pixel = F.floor_modulo(indices, F.multiplication(h, w))
    row, column = F.floor_divide(pixel, w), F.floor_modulo(pixel, w)
    return F.addition(F.subtraction(indices, pixel), F.addition(F.multiplication(column, h), row))


@onnx_op("AveragePool")
def average_pool(node: Node) -> Results:
    how = {**_window(node), "include_zero_pad": bool(node.int("count_include_pad", 0))}
    return getattr(F, f"avg_pooling{node[0].rank - 2}d")(node[0], **how)


@onnx_op("LpPool")
def lp_pool(node: Node) -> Results:
    """(sum of |x|^p over the window)^(1/p): the average over the window, padding included, times its size."""
    x, how, p = node[0], _window(node), node.int("p", 2)
    spatial = x.rank - 2
    if how["ceil_mode"]:
        raise node.unsupported("ceil_mode")
    how["include_zero_pad"] = True
    mean = getattr(F, f"avg_pooling{spatial}d")(F.power(F.absolute(x), float(p)), **how)
    count = 1.0
    for n in how["kernel_size"]:
        count *= n
    return F.power(F.multiplication(mean, count), 1.0 / p)


def _spatial(x: Value) -> tuple[int, ...]:
    return tuple(range(2, x.rank))


@onnx_op("GlobalAveragePool")
def global_average_pool(node: Node) -> Results:
    return F.mean(node[0], axes=_spatial(node[0]), keepdims=True)


@onnx_op("GlobalMaxPool")
def global_max_pool(node: Node) -> Results:
    return F.reduction_maximum_propagate_nan(node[0], axes=_spatial(node[0]), keepdims=True)


@onnx_op("GlobalLpPool")
def global_lp_pool(node: Node) -> Results:
    p = node.int("p", 2)
    total = F.reduction_sum(F.power(F.absolute(node[0]), float(p)), axes=_spatial(node[0]), keepdims=True)
    return F.power(total, 1.0 / p)


@onnx_op("MaxUnpool")
def max_unpool(node: Node) -> Results:
    """Elements put back where a max pooling found them, zeros elsewhere."""
    x, indices = node[0], node[1]
    spatial = x.rank - 2
    window, strides = node.int_list("kernel_shape"), per_dim(node, "strides", spatial)
    pads = node.int_list("pads", (0,) * (2 * spatial))
    sizes = [
        (n - 1) * s + k - pads[d] - pads[d + spatial]
        for d, (n, s, k) in enumerate(zip(x.shape[2:], strides, window, strict=True))
    ]
    shape = (*x.shape[:2], *sizes)
    flat = F.scatter_along_axis(
        F.reshape(x, shape=(-1,)), F.reshape(indices, shape=(-1,)), shape=(dims.product(shape),), mode="set", axis=0
    )
    made = F.reshape(flat, shape=shape)
    if node.optional(2) is None:
        return made
    after = [wanted - n for wanted, n in zip(node.sizes(2, "output_shape"), shape, strict=True)]
    return F.pad(made, (0,) * x.rank, tuple(after))
