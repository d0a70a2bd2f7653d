"""Convolutions, channels first as ONNX has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stitchwork.importers.onnx.node import Node
from stitchwork.importers.onnx.registry import F, Results, onnx_op
from stitchwork.ir import dtypes
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Value

_LAYOUTS = {1: ("NCW", "OIW"), 2: ("NCHW", "OIHW"), 3: ("NCDHW", "OIDHW")}
Pads = str | tuple[tuple[Any, Any], ...]


def padding_of(node: Node, spatial: int) -> Pads:
    """Padding per spatial dim, or the name of a rule, from `auto_pad` and `pads`."""
    auto = node.string("auto_pad", "NOTSET")
    rules: dict[str, Pads] = {"SAME_UPPER": "same", "SAME_LOWER": "same_lower", "VALID": ((0, 0),) * spatial}
    if auto in rules:
        return rules[auto]
    if auto != "NOTSET":
        raise node.invalid("attribute `auto_pad` is not valid", expected=f"NOTSET, {', '.join(rules)}", got=auto)
    pads = node.int_list("pads", (0,) * (2 * spatial))
    if len(pads) != 2 * spatial:
        raise node.invalid(
            "attribute `pads` does not have two entries per spatial dim", expected=str(2 * spatial), got=str(len(pads))
        )
    return tuple(zip(pads[:spatial], pads[spatial:], strict=True))


def per_dim(node: Node, name: str, spatial: int) -> tuple[int, ...]:
    """An attribute with an entry per spatial dim, 1 unless given."""
    found = node.int_list(name, (1,) * spatial)
    if len(found) != spatial:
        raise node.invalid(
            f"attribute `{name}` does not have one entry per spatial dim", expected=str(spatial), got=str(len(found))
        )
    return found


def convolution(node: Node, x: Value, weights: Value) -> Value:
    """The convolution that the node's attributes describe, without bias."""
    spatial = x.rank - 2
    if spatial not in _LAYOUTS:
        raise node.unsupported(f"{spatial} spatial dims", hint="1 to 3 can be imported")
    if node.has("kernel_shape") and node.int_list("kernel_shape") != weights.shape[2:]:
        raise node.invalid(
            "attribute `kernel_shape` is not that of the weights",
            expected=str(weights.shape[2:]),
            got=str(node.int_list("kernel_shape")),
        )
    data, kernel = _LAYOUTS[spatial]
    how: dict[str, Any] = {
        "strides": per_dim(node, "strides", spatial),
        "padding": padding_of(node, spatial),
        "dilation": per_dim(node, "dilations", spatial),
        "groups": node.int("group", 1),
        "data_layout": data,
        "weights_layout": kernel,
    }
    return getattr(F, f"conv{spatial}d")(x, weights, **how)


def add_channels(y: Value, bias: Value) -> Value:
    """A vector added along the channel dim, dim 1."""
    return F.addition(y, F.reshape(bias, shape=(-1, *(1,) * (y.rank - 2))))


@onnx_op("Conv")
def conv(node: Node) -> Results:
    y = convolution(node, node[0], node[1])
    bias = node.optional(2)
    made = y if bias is None else add_channels(y, bias)
    weights, shift = node.array(1), node.array(2)
    if weights is not None and (bias is None or shift is not None):
        node.importer.convolutions[made] = (node, weights, shift)
    return made


def folded(node: Node, x: Value, scale: np.ndarray[Any, Any], shift: np.ndarray[Any, Any]) -> Value | None:
    """x * scale + shift (per channel) as another convolution where x is one with constant weights, used only here."""
    found = node.importer.convolutions.get(x)
    if found is None or node.scope.uses[node.proto.input[0]] != 1 or x.dtype is not dtypes.float32:
        return None
    source, weights, bias = found
    made = weights * scale.astype(weights.dtype).reshape(-1, *(1,) * (weights.ndim - 1))
    moved = shift if bias is None else bias * scale + shift
    y = convolution(source, source[0], node.importer.constant(made))
    return add_channels(y, node.importer.constant(moved.astype(weights.dtype)))


@onnx_op("ConvTranspose")
def conv_transpose(node: Node) -> Results:
    x, weights = node[0], node[1]
    spatial = x.rank - 2
    if spatial not in _LAYOUTS:
        raise node.unsupported(f"{spatial} spatial dims", hint="1 to 3 can be imported")
    strides, dilation = per_dim(node, "strides", spatial), per_dim(node, "dilations", spatial)
    extra = node.int_list("output_padding", (0,) * spatial)
    padding = padding_of(node, spatial)
    if node.has("output_shape") or isinstance(padding, str):
        padding = _transposed_padding(node, x, weights, strides, dilation, extra)
    data, kernel = _LAYOUTS[spatial]
    y = getattr(F, f"conv_transpose{spatial}d")(
        x, weights, strides=strides, padding=padding, dilation=dilation, groups=node.int("group", 1),
        data_layout=data, weights_layout=kernel, output_padding=extra,
    )  # fmt: skip
    bias = node.optional(2)
    return y if bias is None else add_channels(y, bias)


def _transposed_padding(
    node: Node, x: Value, weights: Value, strides: Sequence[int], dilation: Sequence[int], extra: Sequence[int]
) -> Pads:
    """Padding that leads to the wanted size: `output_shape`, or size * stride."""
    spatial = x.rank - 2
    wanted: Sequence[Size] = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    if node.has("output_shape"):
        wanted = node.int_list("output_shape")[-spatial:]
    pads: list[tuple[int, int]] = []
    for d in range(spatial):
        window = (weights.shape[2 + d] - 1) * dilation[d] + 1
        total = (x.shape[2 + d] - 1) * strides[d] + extra[d] + window - wanted[d]
        if not isinstance(total, int):
            raise node.unsupported("padding that depends on sizes", got=str(total))
        small, large = total // 2, total - total // 2
        # ONNX: the extra row is at the end for SAME_UPPER, else at the start.
        pads.append((small, large) if node.string("auto_pad", "NOTSET") == "SAME_UPPER" else (large, small))
    return tuple(pads)


@onnx_op("ConvInteger")
def conv_integer(node: Node) -> Results:
    x, weights = F.cast(node[0], dtypes.int32), F.cast(node[1], dtypes.int32)
    zero, weights_zero = node.optional(2), node.optional(3)
    if zero is not None:
        x = F.subtraction(x, F.cast(F.reshape(zero, shape=()), dtypes.int32))
    if weights_zero is not None:
        shape = (-1, *(1,) * (weights.rank - 1)) if weights_zero.rank else ()
        weights = F.subtraction(weights, F.reshape(F.cast(weights_zero, dtypes.int32), shape=shape))
    return convolution(node, x, weights)


@onnx_op("Col2Im")
def column_to_image(node: Node) -> Results:
    """Columns [n, c * window, blocks] added up to an image, for any number of spatial dims."""
    image, block = node.ints(1, "image_shape"), node.ints(2, "block_shape")
    spatial = len(image)
    strides, dilation = per_dim(node, "strides", spatial), per_dim(node, "dilations", spatial)
    pads = padding_of(node, spatial)
    assert not isinstance(pads, str)
    counts = [
        (n + low + high - (k - 1) * d - 1) // s + 1
        for n, k, s, d, (low, high) in zip(image, block, strides, dilation, pads, strict=True)
    ]
    n = node[0].shape[0]
    y = F.reshape(node[0], shape=(n, -1, *block, *counts))
    order = (0, 1, *range(2 + spatial, 2 + 2 * spatial), *range(2, 2 + spatial))
    return F.fold_windows(
        F.permute(y, permutation=order), sizes=image, strides=strides, padding=pads, dilation=dilation
    )
