"""Models whose tensors have sizes that only the run tells, against ONNX Runtime; one executable for all sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from stitchwork.errors import UnsupportedError
from stitchwork.importers.onnx import load

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Array = np.ndarray[Any, Any]


def model(
    nodes: Sequence[onnx.NodeProto], inputs: dict[str, tuple[int, int]], outputs: dict[str, tuple[int, int]]
) -> onnx.ModelProto:
    """Inputs and outputs by name: dtype and rank."""

    def info(named: dict[str, tuple[int, int]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(n, d, [f"{n}_{k}" for k in range(r)]) for n, (d, r) in named.items()]

    graph = helper.make_graph(nodes, "g", info(inputs), info(outputs))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def check(m: onnx.ModelProto, *feeds: dict[str, Array]) -> None:
    theirs = onnxruntime.InferenceSession(m.SerializeToString())
    ours = load(m).compile()
    for feed in feeds:
        made = ours.run(feed)
        for want, (name, got) in zip(theirs.run(None, feed), made.items(), strict=True):
            assert got.numpy().dtype == want.dtype, name
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=name)


def test_values_at_the_positions_that_are_not_zero(rng: np.random.Generator) -> None:
    m = model(
        [
            helper.make_node("Greater", ["x", "limit"], ["mask"]),
            helper.make_node("NonZero", ["mask"], ["places"]),
            helper.make_node("Transpose", ["places"], ["rows"], perm=[1, 0]),
            helper.make_node("GatherND", ["x", "rows"], ["values"]),
            helper.make_node("ReduceSum", ["values"], ["sum"], keepdims=0),
            helper.make_node("Shape", ["rows"], ["shape"]),
            helper.make_node("ScatterND", ["x", "rows", "values"], ["back"]),
        ],
        {"x": (FLOAT, 3), "limit": (FLOAT, 0)},
        {"places": (INT64, 2), "values": (FLOAT, 1), "sum": (FLOAT, 0), "shape": (INT64, 1), "back": (FLOAT, 3)},
    )
    feeds = [
        {"x": rng.normal(size=shape).astype(np.float32), "limit": np.array(limit, np.float32)}
        for shape in ((2, 3, 4), (5, 1, 7))
        for limit in (-9, 0, 0.5, 9)
    ]
    check(m, *feeds)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(axis: int | None, rng: np.random.Generator) -> None:
    attributes = {} if axis is None else {"axis": axis}
    m = model(
        [helper.make_node("Compress", ["x", "keep"], ["y"], **attributes)],
        {"x": (FLOAT, 3), "keep": (BOOL, 1)},
        {"y": (FLOAT, 1 if axis is None else 3)},
    )
    feeds = []
    for shape in ((3, 4, 5), (1, 6, 2)):
        length = int(np.prod(shape)) if axis is None else shape[axis]
        for n in (length, max(length - 1, 1)):
            feeds.append({"x": rng.normal(size=shape).astype(np.float32), "keep": rng.random(n) < 0.5})
    check(m, *feeds)


@pytest.mark.parametrize("by_value", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_unique(axis: int | None, by_value: int, rng: np.random.Generator) -> None:
    attributes = {} if axis is None else {"axis": axis}
    names = ["y", "first", "inverse", "counts"]
    m = model(
        [helper.make_node("Unique", ["x"], names, sorted=by_value, **attributes)],
        {"x": (FLOAT, 3)},
        {"y": (FLOAT, 1 if axis is None else 3), **dict.fromkeys(names[1:], (INT64, 1))},
    )
    shapes = ((4, 3, 2), (1, 5, 1), (20, 2, 1), (1, 1, 1))
    check(m, *({"x": rng.integers(0, 2, s).astype(np.float32)} for s in shapes))


def test_positions_of_a_tensor_of_ones_are_sizes_that_are_known() -> None:
    """How PyTorch used to write a range of positions: nothing in it depends on data."""
    m = model(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("ConstantOfShape", ["s"], ["ones"], value=helper.make_tensor("v", INT64, [1], [1])),
            helper.make_node("NonZero", ["ones"], ["y"]),
        ],
        {"x": (FLOAT, 2)},
        {"y": (INT64, 2)},
    )
    assert not load(m).graph.module.bounds
    check(m, {"x": np.ones((3, 4), np.float32)}, {"x": np.ones((0, 4), np.float32)})


def _branch(name: str, nodes: Sequence[onnx.NodeProto], output: str, rank: int, dtype: int) -> onnx.GraphProto:
    result = helper.make_tensor_value_info(output, dtype, [None] * rank)
    return helper.make_graph(nodes, name, [], [result])


def test_inside_if(rng: np.random.Generator) -> None:
    def sum_of(name: str) -> list[onnx.NodeProto]:
        return [
            helper.make_node("NonZero", [name], [f"{name}_places"]),
            helper.make_node("ReduceSum", [f"{name}_places"], [f"{name}_sum"], keepdims=0),
        ]

    branches = {
        "then_branch": _branch("a", sum_of("x"), "x_sum", 0, INT64),
        "else_branch": _branch("b", sum_of("z"), "z_sum", 0, INT64),
    }
    m = model(
        [helper.make_node("If", ["which"], ["y"], **branches)],
        {"x": (FLOAT, 2), "z": (FLOAT, 2), "which": (BOOL, 0)},
        {"y": (INT64, 0)},
    )
    arrays = {n: (rng.random((4, 5)) < 0.5).astype(np.float32) for n in ("x", "z")}
    check(m, *({**arrays, "which": np.array(w)} for w in (True, False)))


def test_a_size_that_would_leave_its_branch_is_refused() -> None:
    branches = {
        f"{which}_branch": _branch(which, [helper.make_node("NonZero", ["x"], [f"{which}_y"])], f"{which}_y", 2, INT64)
        for which in ("then", "else")
    }
    m = model(
        [helper.make_node("If", ["which"], ["y"], **branches)],
        {"x": (FLOAT, 1), "which": (BOOL, 0)},
        {"y": (INT64, 2)},
    )
    with pytest.raises((UnsupportedError, ValueError), match="known only when the block has run"):
        load(m)
