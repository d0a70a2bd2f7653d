"""Shapes: reshaping, broadcasting, joining, splitting, padding, and sizes as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stitchwork.importers.onnx import numbers
from stitchwork.importers.onnx.node import Node
from stitchwork.importers.onnx.registry import F, Results, onnx_op
from stitchwork.ir import dims, dtypes
from stitchwork.ir.dims import Dim, Size
from stitchwork.ir.graph import Value
from stitchwork.ops._op import broadcast_shapes

_FAR = 10**9  # ends from here on mean "to the end": exporters write one of several large numbers


@onnx_op("Shape")
def shape(node: Node) -> Results:
    made = F.shape_of(node[0], dtype=dtypes.int64)
    if node.has("start") or node.has("end"):
        return F.slice(made, starts=(node.int("start", 0),), ends=(node.int("end") if node.has("end") else None,))
    return made


@onnx_op("Size")
def size(node: Node) -> Results:
    return F.reduction_product(F.shape_of(node[0], dtype=dtypes.int64))


@onnx_op("Reshape")
def reshape(node: Node) -> Results:
    x = node[0]
    wanted: list[Any] = list(node.int_list("shape")) if node.opset < 5 else _reshape_sizes(node)
    if not node.int("allowzero", 0):
        for d, n in enumerate(wanted):
            if isinstance(n, int) and n == 0:
                if d >= x.rank:
                    raise node.invalid(
                        "a size of 0 in `shape` has no dim to copy", expected=f"{x.rank} dims", got=str(wanted)
                    )
                wanted[d] = x.shape[d]
    return F.reshape(x, shape=tuple(wanted))


def _reshape_sizes(node: Node) -> list[Any]:
    """The new shape; one size that is not known counts as -1, which leaves only one possibility."""
    value = node[1]
    found = node.importer.follower.content(value)
    if found is None and value.tensor.is_static and value.tensor.elements == 1:
        return [-1]
    if found is None:
        raise node.unknown(1, "shape")
    wanted = [x if isinstance(x, int | Dim) else None for x in found.reshape(-1)]
    if wanted.count(None) == 1 and -1 not in [n for n in wanted if isinstance(n, int)]:
        wanted[wanted.index(None)] = -1
    if None in wanted:
        raise node.unknown(1, "shape")
    return list(wanted)


@onnx_op("Flatten")
def flatten(node: Node) -> Results:
    return F.flatten2d(node[0], axis=node.int("axis", 1))


@onnx_op("Squeeze")
def squeeze(node: Node) -> Results:
    return F.squeeze(node[0], axes=node.axes(1))


@onnx_op("Unsqueeze")
def unsqueeze(node: Node) -> Results:
    axes = node.axes(1)
    if axes is None:
        raise node.invalid("axes are missing")
    return F.expand_dims(node[0], axes=axes)


@onnx_op("Transpose")
def transpose(node: Node) -> Results:
    return F.permute(node[0], permutation=node.int_list("perm") if node.has("perm") else None)


@onnx_op("Expand")
def expand(node: Node) -> Results:
    x = node[0]
    target = broadcast_shapes(node.label, x.shape, node.sizes(1, "shape"))
    return x if target == x.shape else F.broadcast(x, shape=target)


@onnx_op("Tile")
def tile(node: Node) -> Results:
    if node.opset < 6:
        repeats: list[Size] = [1] * node[0].rank
        repeats[node.ints(2, "axis")[0]] = node.sizes(1, "tiles")[0]
        return F.tile(node[0], multiplier=tuple(repeats))
    return F.tile(node[0], multiplier=node.sizes(1, "repeats"))


@onnx_op("Concat")
def concat(node: Node) -> Results:
    values = node.all()
    axis = node.int("axis", 1 if node.opset < 4 else None)
    return values[0] if len(values) == 1 else F.concat(values, axis=axis)


@onnx_op("Split")
def split(node: Node) -> Results:
    x, axis = node[0], node.int("axis", 0)
    count = len(node.outputs)
    if node.has("split"):
        parts: Sequence[Size] = node.int_list("split")
    elif node.optional(1) is not None:
        parts = node.sizes(1, "split")
    elif node.has("num_outputs") or not isinstance(x.shape[axis], int):
        n = x.shape[axis]
        part = dims.ceildiv(n, count)
        parts = [part] * (count - 1) + [n - part * (count - 1)]
    else:
        return _as_list(F.split_equal(x, num_splits=count, axis=axis))
    if len(parts) != count:
        raise node.invalid("`split` does not have one size per result", expected=str(count), got=str(tuple(parts)))
    return _as_list(F.split(x, split_sizes=tuple(parts), axis=axis))


def _as_list(made: Any) -> Sequence[Value]:
    return [made] if isinstance(made, Value) else made


@onnx_op("Slice")
def slice_by_attributes(node: Node) -> Results:
    starts = node.int_list("starts")
    axes = node.int_list("axes", tuple(range(len(starts))))
    return _slice(node, starts, node.int_list("ends"), axes, (1,) * len(starts))


@onnx_op("Slice", since=10)
def slice_(node: Node) -> Results:
    starts, ends = node.sizes(1, "starts"), node.sizes(2, "ends")
    axes = node.ints(3, "axes") if node.optional(3) is not None else tuple(range(len(starts)))
    steps = node.ints(4, "steps") if node.optional(4) is not None else (1,) * len(starts)
    return _slice(node, starts, ends, axes, steps)


def _slice(
    node: Node, starts: Sequence[Size], ends: Sequence[Size], axes: Sequence[int], steps: Sequence[int]
) -> Value:
    x = node[0]
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise node.invalid("starts, ends, axes and steps differ in number")
    table = node.array(0) is not None
    first: list[Size | None] = [None] * x.rank
    last: list[Size | None] = [None] * x.rank
    stride = [1] * x.rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not -x.rank <= axis < x.rank:
            raise node.invalid("an axis is out of range", expected=f"{-x.rank} to {x.rank - 1}", got=str(axis))
        if table and step == 1 and isinstance(end, Dim) and (isinstance(start, Dim) or start >= 0):
            # As many rows of a table (of positions, a mask) as there are tokens: a run with more is refused, so that
            # the size is the number of tokens, not the smaller of the two.
            x = F.slice_dim(x, axis=axis, start=start, length=end - start)
            continue
        first[axis], last[axis], stride[axis] = _start(start, step, x.shape[axis]), _end(end, step, x.shape[axis]), step
    if all(n is None for n in (*first, *last)) and set(stride) <= {1}:
        return x
    return F.slice(x, starts=tuple(first), ends=tuple(last), strides=tuple(stride))


def _start(start: Size, step: int, n: Size) -> Size | None:
    far = isinstance(start, int) and (start >= _FAR if step < 0 else start == 0 or start <= -_FAR)
    return None if far else _from_end(start, n)


def _end(end: Size, step: int, n: Size) -> Size | None:
    if isinstance(end, int):
        return None if (end >= _FAR if step > 0 else end <= -_FAR) else end
    return None if end == n and step > 0 else _from_end(end, n)


def _from_end(x: Size, n: Size) -> Size:
    """A position that is evidently negative, though not a number, counts from the end as numbers do."""
    return n + x if isinstance(x, Dim) and dims.is_nonnegative(-x) else x


@onnx_op("Pad", since=11)
def pad(node: Node) -> Results:
    x, amounts = node[0], node.sizes(1, "pads")
    axes = range(x.rank) if node.optional(3) is None else [a % x.rank for a in node.ints(3, "axes")]
    if len(amounts) != 2 * len(axes):
        raise node.invalid(
            "`pads` does not have two entries per axis", expected=str(2 * len(axes)), got=str(len(amounts))
        )
    before: list[Size] = [0] * x.rank
    after: list[Size] = [0] * x.rank
    for k, a in enumerate(axes):
        before[a], after[a] = amounts[k], amounts[k + len(axes)]
    return _pad(node, before, after, node.number(2, "constant_value", 0.0))


@onnx_op("Pad")
def pad_by_attributes(node: Node) -> Results:
    amounts = node.int_list("pads" if node.has("pads") else "paddings")
    rank = node[0].rank
    return _pad(node, amounts[:rank], amounts[rank:], node.float("value", 0.0))


def _pad(node: Node, before: Sequence[Size], after: Sequence[Size], value: Any) -> Value:
    mode = node.string("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise node.invalid("attribute `mode` is not valid", expected="constant, reflect, edge or wrap", got=mode)
    if mode == "constant":
        return F.pad(node[0], tuple(before), tuple(after), constant_value=value)
    return F.pad(node[0], tuple(before), tuple(after), mode=mode)


@onnx_op("DepthToSpace")
def depth_to_space(node: Node) -> Results:
    n, c, h, w = node[0].shape
    b = node.int("blocksize")
    crd = node.string("mode", "DCR") == "CRD"
    parts = (n, dims.floordiv(c, b * b), b, b, h, w) if crd else (n, b, b, dims.floordiv(c, b * b), h, w)
    order = (0, 1, 4, 2, 5, 3) if crd else (0, 3, 4, 1, 5, 2)
    moved = F.permute(F.reshape(node[0], shape=parts), permutation=order)
    return F.reshape(moved, shape=(n, dims.floordiv(c, b * b), h * b, w * b))


@onnx_op("SpaceToDepth")
def space_to_depth(node: Node) -> Results:
    n, c, h, w = node[0].shape
    b = node.int("blocksize")
    parts = (n, c, dims.floordiv(h, b), b, dims.floordiv(w, b), b)
    crd = node.string("mode", "DCR") == "CRD"
    moved = F.permute(F.reshape(node[0], shape=parts), permutation=(0, 1, 3, 5, 2, 4) if crd else (0, 3, 5, 1, 2, 4))
    return F.reshape(moved, shape=(n, c * (b * b), dims.floordiv(h, b), dims.floordiv(w, b)))


@onnx_op("CenterCropPad")
def center_crop_pad(node: Node) -> Results:
    x = node[0]
    axes = [a % x.rank for a in node.int_list("axes", tuple(range(x.rank)))]
    wanted = node.sizes(1, "shape")
    if len(wanted) != len(axes):
        raise node.invalid("`shape` does not have one size per axis", expected=str(len(axes)), got=str(len(wanted)))
    before: list[Size] = [0] * x.rank
    after: list[Size] = [0] * x.rank
    for a, n in zip(axes, wanted, strict=True):
        missing = n - x.shape[a]
        if not isinstance(missing, int):
            raise node.unsupported("a size that is not known when the model is compiled", got=f"{x.shape[a]} to {n}")
        before[a] = -(-missing // 2) if missing < 0 else missing // 2
        after[a] = missing - before[a]
    return F.pad(x, tuple(before), tuple(after))


def scaled(n: Size, scale: Any) -> Size | None:
    """floor(n * scale) for a scale that may depend on sizes; None where it is not known."""
    product = numbers.multiply(n, scale)
    return None if product is None else numbers.floor(product)
