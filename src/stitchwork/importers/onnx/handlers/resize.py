"""Resizing and sampling of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stitchwork.importers.onnx import numbers
from stitchwork.importers.onnx.handlers.shape import scaled
from stitchwork.importers.onnx.node import Node
from stitchwork.importers.onnx.registry import F, Results, onnx_op
from stitchwork.ir.dims import Dim, Size
from stitchwork.ir.graph import Value

_MODES = {"nearest": "nearest", "linear": "bilinear", "bilinear": "bilinear", "cubic": "cubic"}


def _mode(node: Node) -> str:
    mode = node.string("mode", "nearest")
    if mode not in _MODES:
        raise node.invalid("attribute `mode` is not valid", expected="nearest, linear or cubic", got=mode)
    return _MODES[mode]


@onnx_op("Upsample")
def upsample(node: Node) -> Results:
    scales: Sequence[Any] = node.float_list("scales") if node.has("scales") else _scales(node, 1)
    return _by_scales(
        node, node[0], range(node[0].rank), scales, mode=_mode(node), coordinates="asymmetric", rounding="floor"
    )


@onnx_op("Resize", since=10)
def resize_by_scales(node: Node) -> Results:
    return _by_scales(
        node,
        node[0],
        range(node[0].rank),
        _scales(node, 1),
        mode=_mode(node),
        coordinates="asymmetric",
        rounding="floor",
    )


@onnx_op("Resize", since=11)
def resize(node: Node) -> Results:
    x = node[0]
    axes = [a % x.rank for a in node.int_list("axes", tuple(range(x.rank)))]
    how: dict[str, Any] = {
        "mode": _mode(node),
        "coordinates": node.string("coordinate_transformation_mode", "half_pixel"),
        "rounding": node.string("nearest_mode", "round_prefer_floor"),
        "cubic_coefficient": node.float("cubic_coeff_a", -0.75),
        "exclude_outside": bool(node.int("exclude_outside", 0)),
    }
    if node.int("antialias", 0):
        raise node.unsupported("antialiasing")
    crop = how["coordinates"] == "tf_crop_and_resize"
    if crop:
        how["extrapolation"] = node.float("extrapolation_value", 0.0)
        how["roi"] = tuple(float(r) for r in _floats(node, 1, "roi"))
    if _given(node, 2):
        return _by_scales(node, x, axes, _scales(node, 2), keep=crop, **how)
    if not _given(node, 3):
        raise node.invalid("neither `scales` nor `sizes` is given")
    sizes = node.sizes(3, "sizes")
    policy = node.string("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        return _by_ratio(node, x, axes, sizes, policy, how)
    return _by_sizes(x, axes, sizes, keep=crop, **how)


def _given(node: Node, k: int) -> bool:
    """Whether an operand is there and not empty, which older files write for "left out"."""
    value = node.optional(k)
    return value is not None and value.shape != (0,)


def _scales(node: Node, k: int) -> Sequence[Any]:
    found = node.elements(k)
    if found is None:
        raise node.unknown(k, "scales")
    return list(found.reshape(-1))


def _floats(node: Node, k: int, what: str) -> Sequence[Any]:
    found = node.array(k)
    if found is None:
        raise node.unknown(k, what)
    return list(found.reshape(-1))


def _by_scales(
    node: Node, x: Value, axes: Sequence[int], scales: Sequence[Any], keep: bool = False, **how: Any
) -> Value:
    if len(scales) != len(axes):
        raise node.invalid("`scales` does not have one entry per axis", expected=str(len(axes)), got=str(len(scales)))
    if all(numbers.is_number(s) for s in scales):
        chosen = [(a, float(s)) for a, s in zip(axes, scales, strict=True) if keep or s != 1]
        if not chosen:
            return x
        return F.resize(x, axes=tuple(a for a, _ in chosen), scales=tuple(s for _, s in chosen), **how)
    sizes: list[Size] = []
    for a, s in zip(axes, scales, strict=True):
        n = x.shape[a]
        product, floored = numbers.multiply(n, s), scaled(n, s)
        if floored is None or product != floored:  # the scale of positions would not be the ratio of sizes
            raise node.unsupported("a scale that depends on sizes and gives no whole number of pixels", got=str(s))
        sizes.append(floored)
    return _by_sizes(x, axes, sizes, keep, **how)


def _by_sizes(x: Value, axes: Sequence[int], sizes: Sequence[Size], keep: bool = False, **how: Any) -> Value:
    chosen = [(a, n) for a, n in zip(axes, sizes, strict=True) if keep or n != x.shape[a]]
    if not chosen:
        return x
    return F.resize(x, axes=tuple(a for a, _ in chosen), size=tuple(n for _, n in chosen), **how)


def _by_ratio(
    node: Node, x: Value, axes: Sequence[int], sizes: Sequence[Size], policy: str, how: dict[str, Any]
) -> Value:
    """Sizes that keep the ratio of the axes: no larger, or no smaller, than those wanted."""
    if any(isinstance(n, Dim) for n in (*sizes, *(x.shape[a] for a in axes))):
        raise node.unsupported(
            f"keep_aspect_ratio_policy `{policy}` with sizes that are not known when the model is compiled"
        )
    ratios = [int(n) / int(x.shape[a]) for a, n in zip(axes, sizes, strict=True)]
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return _by_sizes(x, axes, [math.floor(int(x.shape[a]) * ratio + 0.5) for a in axes], **how)


@onnx_op("GridSample")
def grid_sample(node: Node) -> Results:
    x, grid = node[0], node[1]
    if x.rank != 4:
        raise node.unsupported(f"{x.rank - 2} spatial dims", hint="2 can be imported")
    mode = node.string("mode", "linear")
    align = bool(node.int("align_corners", 0))
    padding = node.string("padding_mode", "zeros")
    boundaries = {"zeros": "constant", "border": "clamp_to_edge", "reflection": "reflect" if align else "symmetric"}
    if mode not in _MODES or padding not in boundaries:
        raise node.invalid("mode or padding_mode is not valid", got=f"{mode}, {padding}")
    return F.sample_grid(
        x, grid, layout="NCHW", mode=_MODES[mode], padding_mode=boundaries[padding],
        align_corners=align, rounding="round_to_even",
    )  # fmt: skip
