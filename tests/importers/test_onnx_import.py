"""What the ONNX importer makes of sizes, conditions, constants and bad files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import stitchwork as sw
from stitchwork.errors import FeedError, OpError, PackageError, UnsupportedError
from stitchwork.importers.onnx import load
from stitchwork.ir.graph import constant_array

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Shape = Sequence[int | str | None]


def tensor(name: str, shape: Shape, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def const(name: str, array: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def run(m: onnx.ModelProto, *feeds: Any, **how: Any) -> list[np.ndarray[Any, Any]]:
    loaded = load(m, **how)
    return [x.numpy() for x in loaded.compile().run(dict(zip(loaded.inputs, feeds, strict=True))).values()]


# --- sizes ------------------------------------------------------------------------------------------------------------
def test_equal_names_are_equal_sizes_and_unknown_ones_are_not() -> None:
    m = model(
        [helper.make_node("Add", ["a", "b"], ["ab"]), helper.make_node("Add", ["ab", "c"], ["y"])],
        [tensor("a", ["N.0"]), tensor("b", ["N.0"]), tensor("c", [None])],
        [tensor("y", [None])],
    )
    loaded = load(m)
    assert loaded.inputs["a"].shape == loaded.inputs["b"].shape
    assert [str(n) for n in loaded.inputs["a"].shape] == ["N_0"]
    assert loaded.inputs["c"].shape != loaded.inputs["a"].shape


@pytest.mark.parametrize("written", [0, -1, None, "?", "-1"])
def test_what_means_unknown(written: Any) -> None:
    m = model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", [written, written])], [tensor("y", [None, None])])
    first, second = load(m).inputs["x"].shape
    assert not isinstance(first, int) and first != second


def test_names_that_would_collide_stay_apart() -> None:
    m = model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", ["a.b", "a_b", "max"])], [tensor("y", [None] * 3)])
    names = [str(n) for n in load(m).inputs["x"].shape]
    assert len(set(names)) == 3 and all(n.isidentifier() for n in names) and "max" not in names


def test_sizes_fixed_by_the_caller() -> None:
    m = model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", ["n", "m"])], [tensor("y", [None, None])])
    assert [str(n) for n in load(m, sizes={"n": 3}).inputs["x"].shape] == ["3", "m"]


def test_shape_arithmetic_becomes_sizes() -> None:
    """Shape -> Gather -> Mul -> Concat -> Reshape, one executable for every size."""
    m = model(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "one"], ["h"]),
            helper.make_node("Mul", ["h", "two"], ["h2"]),
            helper.make_node("Div", ["h2", "two"], ["h3"]),
            helper.make_node("Unsqueeze", ["h3", "axes"], ["h4"]),
            helper.make_node("Concat", ["h4", "rest"], ["shape"], axis=0),
            helper.make_node("Reshape", ["x", "shape"], ["y"]),
        ],
        [tensor("x", ["n", "h", 4])],
        [tensor("y", [None, None])],
        [const("one", 1), const("two", 2), const("axes", [0]), const("rest", [-1])],
    )
    loaded = load(m)
    assert [str(n) for n in loaded.outputs["y"].shape] == ["h", "4*n"]
    executable = loaded.compile()
    for n, h in ((2, 3), (1, 5)):
        x = np.arange(n * h * 4, dtype=np.float32).reshape(n, h, 4)
        np.testing.assert_array_equal(executable.run({"x": x})["y"].numpy(), x.reshape(h, -1))


def test_sizes_followed_through_floats() -> None:
    """Exporters scale sizes as floats: Cast -> Mul -> Floor -> Cast -> Resize."""
    m = model(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Slice", ["s", "a", "b"], ["hw"]),
            helper.make_node("Cast", ["hw"], ["f"], to=FLOAT),
            helper.make_node("Mul", ["f", "scale"], ["g"]),
            helper.make_node("Floor", ["g"], ["fl"]),
            helper.make_node("Cast", ["fl"], ["i"], to=INT64),
            helper.make_node("Slice", ["s", "zero", "a"], ["nc"]),
            helper.make_node("Concat", ["nc", "i"], ["sizes"], axis=0),
            helper.make_node(
                "Resize", ["x", "", "", "sizes"], ["y"], mode="nearest", coordinate_transformation_mode="asymmetric"
            ),
        ],
        [tensor("x", ["n", 1, "h", "w"])],
        [tensor("y", [None] * 4)],
        [const("zero", [0]), const("a", [2]), const("b", [4]), const("scale", np.float32(1.5))],
    )
    executable = load(m).compile()
    for h, w in ((2, 4), (3, 5)):
        assert executable.run({"x": np.zeros((1, 1, h, w), np.float32)})["y"].shape == (1, 1, h * 3 // 2, w * 3 // 2)


def test_expand_with_minus_one_by_where() -> None:
    """PyTorch's expand: Where(shape == -1, 1, shape), decided though a size is not known."""
    m = model(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "zero"], ["n"]),
            helper.make_node("Concat", ["n", "minus"], ["t"], axis=0),
            helper.make_node("Equal", ["t", "m1"], ["e"]),
            helper.make_node("Where", ["e", "ones", "t"], ["shape"]),
            helper.make_node("Expand", ["x", "shape"], ["y"]),
        ],
        [tensor("x", ["n", 3])],
        [tensor("y", [None, None])],
        [const("zero", [0]), const("minus", [-1]), const("m1", -1), const("ones", [1, 1])],
    )
    assert [str(n) for n in load(m).outputs["y"].shape] == ["n", "3"]


def test_a_shape_that_is_not_known_is_named() -> None:
    m = model([helper.make_node("Reshape", ["x", "s"], ["y"], name="r7")], [tensor("x", [6]), tensor("s", [2], INT64)],
              [tensor("y", [None, None])])  # fmt: skip
    with pytest.raises(UnsupportedError, match="Reshape node `r7`: `shape` is not known") as e:
        load(m)
    assert "`s`: i64[2]" in str(e.value) and "constants" in str(e.value)
    (y,) = run(m, np.arange(6, dtype=np.float32), constants={"s": np.array([2, 3])})
    assert y.shape == (2, 3)


# --- conditions and loops ---------------------------------------------------------------------------------------------
def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [tensor(nodes[-1].output[0], [None])])


def if_node(then: onnx.NodeProto, otherwise: onnx.NodeProto) -> onnx.NodeProto:
    return helper.make_node("If", ["c"], ["y"], then_branch=branch("t", then), else_branch=branch("e", otherwise))


def test_if_at_run_time() -> None:
    node = if_node(helper.make_node("Exp", ["x"], ["p"]), helper.make_node("Neg", ["x"], ["q"]))
    m = model([node], [tensor("c", [], BOOL), tensor("x", ["n"])], [tensor("y", [None])])
    x = np.array([1.0, 2.0], np.float32)
    executable = load(m).compile()
    np.testing.assert_allclose(executable.run({"c": np.array(True), "x": x})["y"].numpy(), np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(executable.run({"c": np.array(False), "x": x})["y"].numpy(), -x)


def test_if_decided_by_a_constant() -> None:
    node = if_node(helper.make_node("ReduceSum", ["x"], ["p"], keepdims=0), helper.make_node("Neg", ["x"], ["q"]))
    m = model([node], [tensor("c", [], BOOL), tensor("x", ["n"])], [tensor("y", [None])])
    loaded = load(m, constants={"c": np.array(True)})
    assert list(loaded.inputs) == ["x"]
    assert loaded.compile().run({"x": np.ones(3, np.float32)})["y"].shape == ()
    with pytest.raises(UnsupportedError, match="branches give tensors of different types") as e:
        load(m)
    assert "constants" in str(e.value)


def test_squeeze_if_one_is_presumed_and_checked() -> None:
    """PyTorch's squeeze exports as If(shape[1] == 1): the branch for 1 is taken, other sizes are refused when run."""
    m = model(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "one"], ["d"]),
            helper.make_node("Equal", ["d", "one"], ["c"]),
            if_node(helper.make_node("Squeeze", ["x", "axes"], ["p"]), helper.make_node("Identity", ["x"], ["q"])),
        ],
        [tensor("x", ["n", "k"])],
        [tensor("y", None)],
        [const("one", 1), const("axes", [1])],
    )
    executable = load(m).compile()
    assert executable.run({"x": np.ones((4, 1), np.float32)})["y"].shape == (4,)
    with pytest.raises(FeedError, match="If node"):
        executable.run({"x": np.ones((4, 2), np.float32)})


def loop_body(*nodes: onnx.NodeProto, outputs: Sequence[onnx.ValueInfoProto]) -> onnx.GraphProto:
    inputs = [tensor("i", [], INT64), tensor("go", [], BOOL), tensor("v", ["n"])]
    return helper.make_graph(list(nodes), "body", inputs, list(outputs))


def test_loop_with_a_count_from_a_tensor_and_with_a_condition() -> None:
    double = helper.make_node("Add", ["v", "v"], ["w"])
    counted = loop_body(
        double, helper.make_node("Identity", ["go"], ["go2"]), outputs=[tensor("go2", [], BOOL), tensor("w", ["n"])]
    )
    looped = helper.make_node("Loop", ["m", "", "x"], ["y"], body=counted)
    m = model([looped], [tensor("m", [], INT64), tensor("x", ["n"])], [tensor("y", ["n"])])
    np.testing.assert_allclose(run(m, np.array(5), np.ones(2, np.float32))[0], [32, 32])
    while_small = loop_body(
        double,
        helper.make_node("ReduceMax", ["w"], ["top"], keepdims=0),
        helper.make_node("Less", ["top", "limit"], ["go2"]),
        outputs=[tensor("go2", [], BOOL), tensor("w", ["n"])],
    )
    looped = helper.make_node("Loop", ["", "yes", "x"], ["y"], body=while_small)
    settings = [const("yes", True), const("limit", np.float32(100))]
    m = model([looped], [tensor("x", ["n"])], [tensor("y", ["n"])], settings)
    np.testing.assert_allclose(run(m, np.array([1, 3], np.float32))[0], [64, 192])


def test_loop_that_stacks_over_a_symbolic_number_of_rounds() -> None:
    body = loop_body(
        helper.make_node("Gather", ["x", "i"], ["row"]),
        helper.make_node("Add", ["v", "row"], ["w"]),
        helper.make_node("Identity", ["w"], ["out"]),
        helper.make_node("Identity", ["go"], ["go2"]),
        outputs=[tensor("go2", [], BOOL), tensor("w", ["n"]), tensor("out", ["n"])],
    )
    m = model(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "zero"], ["t"]),
            helper.make_node("Loop", ["t", "", "start"], ["last", "rows"], body=body),
        ],
        [tensor("x", ["t", 2])],
        [tensor("last", [2]), tensor("rows", [None, 2])],
        [const("zero", 0), const("start", np.zeros(2, np.float32))],
    )
    executable = load(m).compile()
    for t in (1, 4, 7):
        x = np.random.default_rng(t).normal(size=(t, 2)).astype(np.float32)
        made = executable.run({"x": x})
        np.testing.assert_allclose(made["rows"].numpy(), np.cumsum(x, axis=0), rtol=1e-5, atol=1e-6)


def test_lstm_of_any_length_and_batch() -> None:
    rng = np.random.default_rng(3)
    w, r, b = (rng.normal(0, 0.3, s).astype(np.float32) for s in ((1, 20, 3), (1, 20, 5), (1, 40)))
    layer = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], hidden_size=5)
    results = [tensor(n, [None] * k) for n, k in (("y", 4), ("h", 3), ("c", 3))]
    m = model([layer], [tensor("x", ["t", "n", 3])], results, [const("w", w), const("r", r), const("b", b)])
    executable = load(m).compile()
    reference: Any = pytest.importorskip("onnx.reference", reason="the definition to compare with")
    session = reference.ReferenceEvaluator(m)
    for t, n in ((4, 2), (9, 1)):
        x = rng.normal(size=(t, n, 3)).astype(np.float32)
        for got, want in zip(executable.run({"x": x}).values(), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


# --- constants --------------------------------------------------------------------------------------------------------
def test_batch_normalization_folds_into_the_convolution() -> None:
    rng = np.random.default_rng(0)
    shapes = {"w": (4, 3, 3, 3), "b": (4,), "gamma": (4,), "beta": (4,), "mean": (4,), "var": (4,)}
    arrays = {k: rng.uniform(0.5, 1.5, s).astype(np.float32) for k, s in shapes.items()}
    m = model(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["y"]),
        ],
        [tensor("x", ["n", 3, "h", "w"])],
        [tensor("y", [None] * 4)],
        [const(k, a) for k, a in arrays.items()],
    )
    loaded = load(m)
    output = loaded.outputs["y"]
    assert output.op is not None and output.op.op.name == "addition"  # the bias
    assert output.op.operands[0].op is not None and output.op.operands[0].op.op.name == "conv2d"
    x = rng.normal(size=(2, 3, 5, 6)).astype(np.float32)
    want = onnx.reference.ReferenceEvaluator(m).run(None, {"x": x})[0]
    np.testing.assert_allclose(loaded.compile().run({"x": x})["y"].numpy(), want, rtol=1e-4, atol=1e-4)


def test_constants_are_shared_and_folded() -> None:
    big = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    m = model(
        [
            helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("MatMul", ["a", "wt"], ["b"]),
            helper.make_node("MatMul", ["b", "w"], ["y"]),
        ],
        [tensor("x", ["n", 64])],
        [tensor("y", [None, None])],
        [const("w", big)],
    )
    loaded = load(m)
    used = {o for op in loaded.graph.module.body.operations if op.op.name == "matmul" for o in op.operands}
    weights = [a for v in used if (a := constant_array(v)) is not None]
    assert sorted(a.shape for a in weights) == [(32, 64), (64, 32)]


def test_functions_of_a_model_are_inlined() -> None:
    body = [helper.make_node("Mul", ["a", "a"], ["s"]), helper.make_node("LeakyRelu", ["s"], ["r"])]
    body[1].attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope"))
    function = helper.make_function("mine", "SquareRelu", ["a"], ["r"], body, [helper.make_opsetid("", 17)], ["slope"])
    m = model(
        [helper.make_node("SquareRelu", ["x"], ["y"], domain="mine", slope=0.5)],
        [tensor("x", ["n"])],
        [tensor("y", ["n"])],
    )
    m.functions.append(function)
    m.opset_import.append(helper.make_opsetid("mine", 1))
    np.testing.assert_allclose(run(m, np.array([-2.0, 3.0], np.float32))[0], [4, 9])


def calling(name: str, *callees: str) -> onnx.FunctionProto:
    """A function of one tensor that calls others one after the other."""
    body = [helper.make_node(c, [f"t{k}"], [f"t{k + 1}"], domain="mine") for k, c in enumerate(callees)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    return helper.make_function("mine", name, ["t0"], [f"t{len(callees)}"], body, opsets)


@pytest.mark.parametrize(
    "functions, message",
    [
        ([calling("F0", "F0")], "too deeply"),
        ([calling(f"F{k}", *[f"F{k + 1}"] * 10) for k in range(7)] + [calling("F7")], "too many nodes"),
    ],
)
def test_functions_without_end(
    functions: list[onnx.FunctionProto], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stitchwork.importers.onnx.importer._NODES", 10_000)
    m = model([helper.make_node("F0", ["x"], ["y"], domain="mine")], [tensor("x", ["n"])], [tensor("y", ["n"])])
    m.functions.extend(functions)
    m.opset_import.append(helper.make_opsetid("mine", 1))
    with pytest.raises((OpError, UnsupportedError), match=message):
        load(m)


def test_more_ops_on_an_imported_model() -> None:
    loaded = load(model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", ["n"])], [tensor("y", ["n"])]))
    g: Any = loaded.graph
    total = g.sum(loaded.outputs["y"] * 2.0)
    (made,) = g.compile([total]).run([np.array([-1.0, 2.0, 3.0], np.float32)])
    assert made.item() == 10


# --- bad files --------------------------------------------------------------------------------------------------------
def test_all_unknown_ops_are_named_at_once() -> None:
    m = model(
        [
            helper.make_node("Frobnicate", ["x"], ["a"], name="f1", domain="odd"),
            helper.make_node("Frobnicate", ["a"], ["b"], name="f2", domain="odd"),
            helper.make_node("Relu", ["b"], ["c"]),
            helper.make_node("TfIdfVectorizer", ["c"], ["y"], name="tf"),
        ],
        [tensor("x", ["n"])],
        [tensor("y", [None, None], INT64)],
    )
    m.opset_import.append(helper.make_opsetid("odd", 1))
    with pytest.raises(UnsupportedError, match="2 ops of the model cannot be imported") as e:
        load(m)
    assert "odd.Frobnicate (opset 1): 2 nodes (f1, f2)" in str(
        e.value
    ) and "TfIdfVectorizer (opset 17): 1 node (tf)" in str(e.value)


@pytest.mark.parametrize("content", [b"", b"\x00\x01garbage", b"\x08" * 100, b"PK\x03\x04 a zip"])
def test_what_is_no_model_is_refused(content: bytes) -> None:
    with pytest.raises(PackageError):
        load(content)


def test_a_model_cut_off_is_refused() -> None:
    whole = model(
        [helper.make_node("Relu", ["x"], ["y"])], [tensor("x", ["n"])], [tensor("y", ["n"])]
    ).SerializeToString()
    for end in range(0, len(whole), 7):
        try:
            load(whole[:end])
        except (PackageError, OpError, UnsupportedError):
            continue


def test_bytes_changed_at_random_never_crash() -> None:
    """A damaged model loads, or is refused by an error of ours."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Split", ["c"], ["p", "q"], axis=1),
        helper.make_node("Concat", ["p", "q"], ["r"], axis=0),
        helper.make_node("ReduceMean", ["r"], ["s"], axes=[2, 3]),
        helper.make_node("Flatten", ["s"], ["y"], axis=1),
    ]
    made = model(nodes, [tensor("x", ["n", 3, "h", "w"])], [tensor("y", [None, None])], [const("w", weights)])
    whole = np.frombuffer(made.SerializeToString(), np.uint8)
    for _ in range(200):
        damaged = whole.copy()
        for place in rng.integers(0, len(damaged), 3):
            damaged[place] = rng.integers(0, 256)
        try:
            load(damaged.tobytes())
        except sw.errors.StitchworkError:
            continue


def test_without_the_package_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stitchwork.importers.onnx.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError) as e:
        load(b"")
    assert 'pip install "stitchwork[onnx]"' in str(e.value)


def test_a_missing_file_and_a_wrong_source() -> None:
    with pytest.raises(PackageError, match="cannot be read"):
        load("/nowhere/model.onnx")
    with pytest.raises(PackageError, match="not a model"):
        load(17)


def test_data_that_does_not_fit_its_shape() -> None:
    w = const("w", np.ones((2, 2), np.float32))
    w.dims[0] = 10**12
    m = model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor("x", [2, 2])], [tensor("y", [2, 2])], [w])
    with pytest.raises(PackageError, match="tensor `w`"):
        load(m)


def external(tmp_path: Path, location: str, **entries: str) -> onnx.ModelProto:
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "model" / "w.bin").write_bytes(np.arange(8, dtype=np.float32).tobytes())
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    w = TensorProto(name="w", data_type=FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        w.external_data.add(key=key, value=value)
    return model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor("x", [4])], [tensor("y", [4])], [w])


def load_saved(tmp_path: Path, m: onnx.ModelProto) -> Any:
    path = tmp_path / "model" / "m.onnx"
    path.write_bytes(m.SerializeToString())
    return load(path)


def test_external_data(tmp_path: Path) -> None:
    loaded = load_saved(tmp_path, external(tmp_path, "w.bin", offset="8", length="16"))
    np.testing.assert_array_equal(loaded.compile().run({"x": np.zeros(4, np.float32)})["y"].numpy(), [2, 3, 4, 5])


@pytest.mark.parametrize(
    "location, entries, message",
    [
        ("../secret.bin", {}, "outside the model's folder"),
        ("/etc/passwd", {}, "outside the model's folder"),
        ("", {}, "outside the model's folder"),
        ("absent.bin", {}, "is missing"),
        ("w.bin", {"offset": "24"}, "does not lie inside its file"),
        ("w.bin", {"offset": "-4"}, "does not lie inside its file"),
        ("w.bin", {"length": "8"}, "does not lie inside its file"),
        ("w.bin", {"offset": "x"}, "is not a number"),
    ],
)
def test_external_data_that_is_wrong(tmp_path: Path, location: str, entries: dict[str, str], message: str) -> None:
    with pytest.raises(PackageError, match=message):
        load_saved(tmp_path, external(tmp_path, location, **entries))


def test_external_data_through_a_link_out_of_the_folder(tmp_path: Path) -> None:
    m = external(tmp_path, "link.bin")
    (tmp_path / "model" / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(PackageError, match="outside the model's folder"):
        load_saved(tmp_path, m)


def test_external_data_of_a_model_without_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="its data is in another file"):
        load(external(tmp_path, "w.bin"))


@pytest.mark.parametrize(
    "node, message",
    [
        (helper.make_node("Relu", ["nothing"], ["y"]), "`nothing` is used before it is made"),
        (helper.make_node("Add", ["x"], ["y"], name="a"), "Add node `a`: operand 1 is missing"),
        (helper.make_node("Concat", ["x", "x"], ["y"], name="c"), "Concat node `c`: attribute `axis` is missing"),
        (helper.make_node("Concat", ["x", "x"], ["y"], axis="one"), "attribute `axis` is of the wrong kind"),
        (
            helper.make_node("Concat", ["x", "x"], ["y"], axis=7, name="c"),
            "Concat node `c`: concat: `axis` is out of range",
        ),
        (helper.make_node("Transpose", ["x"], ["y"], perm=[0, 0], name="t"), "Transpose node `t`: permute: "),
        (helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING), "an element type that there is no dtype for"),
    ],
)
def test_nodes_that_are_wrong(node: onnx.NodeProto, message: str) -> None:
    with pytest.raises((OpError, UnsupportedError)) as e:
        load(model([node], [tensor("x", [2, 3])], [tensor("y", [None, None])]))
    assert message in str(e.value)


def test_inputs_and_outputs_by_wrong_names() -> None:
    m = model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", ["n"])], [tensor("y", ["n"])])
    with pytest.raises(FeedError, match="`constants` names something that is no input"):
        load(m, constants={"z": 1})
    loaded = load(m)
    with pytest.raises(FeedError, match="`outputs` names"):
        loaded.compile(outputs=["z"])
    with pytest.raises(FeedError, match="no x, also z"):
        loaded.compile().run({"z": np.ones(1, np.float32)})


def test_compiling_for_some_outputs() -> None:
    m = model([helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])], [tensor("x", ["n"])],
              [tensor("y", ["n"]), tensor("z", ["n"])])  # fmt: skip
    made = load(m).compile(sw.CompileOptions(threads=1), outputs=["z"]).run({"x": np.ones(2, np.float32)})
    assert list(made) == ["z"]
