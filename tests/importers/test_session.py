"""Code written for onnxruntime, run with both."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import stitchwork.onnx as ours
from importers.real_models import MODELS, Array, Feeds, RealModel
from stitchwork.errors import FeedError, PackageError, StitchworkError, UnsupportedError

onnxruntime: Any = pytest.importorskip("onnxruntime", reason="the runtime to compare with")
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def infer(ort: Any, path: str, feeds: Sequence[Feeds]) -> tuple[list[list[Array]], list[Any]]:
    """What a program written for onnxruntime does: options, session, names, metadata, runs."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    assert "CPUExecutionProvider" in ort.get_available_providers()
    session = ort.InferenceSession(path, sess_options=options, providers=["CPUExecutionProvider"])
    outputs = [o.name for o in session.get_outputs()]
    about = [[(a.name, a.shape, a.type) for a in args] for args in (session.get_inputs(), session.get_outputs())]
    fields = ("producer_name", "graph_name", "domain", "description", "graph_description", "version")
    meta = session.get_modelmeta()
    about += [[getattr(meta, f) for f in fields], dict(meta.custom_metadata_map), session.get_providers()]
    results = [session.run(None if k % 2 else outputs, f) for k, f in enumerate(feeds)]
    return results, about


def needs_packages(model: RealModel) -> Any:
    reason = "brings the trained model (tests/model-packages.txt)"
    return pytest.param(model, id=model.name, marks=pytest.mark.needs(model.package, reason=reason))


@pytest.mark.parametrize("model", [needs_packages(m) for m in MODELS])
def test_the_same_program_with_both(model: RealModel) -> None:
    feeds = [{**f, **model.constants} for f in model.feeds()]
    got, about = infer(ours, str(model.path), feeds)
    want, about_wanted = infer(onnxruntime, str(model.path), feeds)
    assert about == about_wanted
    for many, wanted in zip(got, want, strict=True):
        for g, w in zip(many, wanted, strict=True):
            assert type(g) is np.ndarray and (g.shape, g.dtype) == (w.shape, w.dtype)
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4 * float(np.abs(w).max()))


@pytest.mark.needs("silero_vad", reason="brings the trained model (tests/model-packages.txt)")
def test_settings_that_change_between_runs() -> None:
    """One session, two sampling rates: `sr` chooses a branch and sizes."""
    by_name = {m.name: m for m in MODELS}
    low, high = by_name["silero-vad-8k"], by_name["silero-vad-16k"]
    session = ours.InferenceSession(low.path)
    for model in (low, high, low):
        feed = {**model.feeds()[0], **model.constants}
        want = onnxruntime.InferenceSession(str(model.path)).run(["output"], feed)
        np.testing.assert_allclose(session.run(["output"], feed)[0], want[0], rtol=1e-4, atol=1e-5)


def made(shape: Sequence[Any] = ("n", 3), dtype: int = FLOAT, **graph: Any) -> bytes:
    """y = x + w, z = -x; `w` is also listed as an input, as old files do."""
    value = helper.make_tensor_value_info
    w = helper.make_tensor("w", dtype, [3], [1, 2, 3])
    nodes = [helper.make_node("Add", ["x", "w"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    outputs = [value("y", dtype, shape), value("z", dtype, shape)]
    g = helper.make_graph(nodes, "g", [value("x", dtype, shape), value("w", dtype, [3])], outputs, [w])
    model = helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], ir_version=9, **graph)
    return model.SerializeToString()


@pytest.mark.parametrize("shape", [("n", 3), (None, 3), (2, 3), (3,)])
@pytest.mark.parametrize("dtype", [FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT32, INT64])
def test_descriptions(shape: Sequence[Any], dtype: int) -> None:
    content = made(shape, dtype, model_version=3, doc_string="adds", producer_name="tests")
    mine, theirs = ours.InferenceSession(content), onnxruntime.InferenceSession(content)
    for ask in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        got, want = getattr(mine, ask)(), getattr(theirs, ask)()
        assert [(a.name, a.type, a.shape) for a in got] == [(a.name, a.type, a.shape) for a in want]
    assert mine.get_modelmeta().version == theirs.get_modelmeta().version == 3
    assert mine.get_modelmeta().description == theirs.get_modelmeta().description == "adds"


@pytest.mark.parametrize("names", [None, [], ["z"], ["z", "y"], ["y", "y"]])
def test_outputs_by_name(names: list[str] | None) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for g, w in zip(*(s.run(names, {"x": x}) for s in both(made())), strict=True):
        np.testing.assert_array_equal(g, w)


def both(content: bytes) -> tuple[Any, Any]:
    return ours.InferenceSession(content), onnxruntime.InferenceSession(content)


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    "names, feed, message",
    [
        (["q"], {"x": X}, "run: the model has no such outputs\n  expected  y, z\n  got       q"),
        (None, {"x": X, "q": X}, "run: the model has no such inputs\n  expected  x\n  got       q"),
        (None, {}, "run: inputs are missing\n  expected  x\n  got       no x"),
        (None, {"x": X.astype(np.float64)}, "run: input `x` has the wrong dtype"),
        (None, {"x": np.ones((2, 4), np.float32)}, "run: "),
    ],
)
def test_feeds_that_both_refuse(names: Any, feed: Any, message: str) -> None:
    mine, theirs = both(made())
    with pytest.raises(FeedError) as e:
        mine.run(names, feed)
    assert str(e.value).startswith(message)
    with pytest.raises(Exception, match=r"[xq]"):  # onnxruntime has a class of its own for each
        theirs.run(names, feed)


def test_providers() -> None:
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        session = ours.InferenceSession(made(), providers=[("CUDAExecutionProvider", {}), "CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"] and ours.get_device() == "CPU"
    assert session.get_provider_options() == {"CPUExecutionProvider": {}}
    with pytest.raises(UnsupportedError) as e:
        ours.InferenceSession(made(), providers=["CUDAExecutionProvider"])
    assert str(e.value).startswith(
        "InferenceSession: none of the providers is here\n  expected  CPUExecutionProvider\n"
        "  got       CUDAExecutionProvider"
    )


def test_options_that_have_effect() -> None:
    options = ours.SessionOptions()
    options.add_free_dimension_override_by_name("n", 2)
    session = ours.InferenceSession(made(), options)
    assert session.run(["z"], {"x": X})[0].shape == (2, 3)
    with pytest.raises(FeedError):
        session.run(["z"], {"x": np.ones((3, 3), np.float32)})
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"
    assert session.get_session_options() is options


def test_options_that_are_refused() -> None:
    options = ours.SessionOptions()
    with pytest.raises(AttributeError):
        options.inter_op_threads = 3  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match="InferenceSession: libraries of custom ops cannot be had"):
        options.register_custom_ops_library("ops.so")
    with pytest.raises(UnsupportedError, match="InferenceSession: sizes by denotation cannot be had"):
        options.add_free_dimension_override_by_denotation("BATCH", 1)
    with pytest.raises(UnsupportedError, match="InferenceSession: initializers from outside the model cannot be had"):
        options.add_initializer("w", X)
    for name, value in (("enable_profiling", True), ("optimized_model_filepath", "o.onnx")):
        asked = ours.SessionOptions()
        setattr(asked, name, value)
        with pytest.raises(UnsupportedError, match=f"InferenceSession: `{name}` cannot be had"):
            ours.InferenceSession(made(), asked)
    with pytest.raises(FeedError, match="InferenceSession: unknown arguments"):
        ours.InferenceSession(made(), colour="red")


def test_what_both_offer() -> None:
    """Every public name of ours is one of onnxruntime's, apart from what `load` gives."""
    facade: ModuleType = importlib.import_module("stitchwork.onnx")
    own = {n for n in vars(facade) if not n.startswith("_")} - {"load", "OnnxModel", "OnnxExecutable"}
    assert own <= set(dir(onnxruntime))
    for name in ("InferenceSession", "SessionOptions", "RunOptions"):
        theirs = (
            {a for a in dir(getattr(onnxruntime, name)()) if a[0] != "_"}
            if name != "InferenceSession"
            else set(dir(onnxruntime.InferenceSession))
        )
        extra = {a for a in dir(getattr(ours, name)) if a[0] != "_"} - theirs
        assert extra <= {"sizes", "entries", "compile_options"}


def test_what_is_no_model() -> None:
    for wrong in (b"", b"garbage", "/nowhere.onnx", 3):
        with pytest.raises(PackageError):
            ours.InferenceSession(wrong)  # type: ignore[arg-type]


def test_unknown_ops_are_refused_when_the_session_is_made() -> None:
    model = onnx.ModelProto.FromString(made())
    model.graph.node[0].domain = "odd"
    with pytest.raises(UnsupportedError, match=r"odd\.Add"):
        ours.InferenceSession(model.SerializeToString())
    assert issubclass(UnsupportedError, StitchworkError)
