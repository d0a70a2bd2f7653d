"""The command line: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from stitchwork import pipeline
from stitchwork.backends.cpu.backend import CpuBackend
from stitchwork.ops._text import parse_module
from stitchwork.tools.cli import app

TEXT = """# y = 2 x + row, where row is a resource
module main(%x: f32[n, 20]) {
  %row = constant() {value=resource<c0: f32[20]>} : f32[20]
  %double = addition(%x, %x) : f32[n, 20]
  %y = addition(%double, %row) : f32[n, 20]
  return %y
}
"""
ROW = np.arange(20, dtype=np.float32)
X = np.linspace(-1, 1, 60, dtype=np.float32).reshape(3, 20)


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.txt"
    path.write_text(TEXT)
    np.savez(tmp_path / "model.npz", c0=ROW)
    np.save(tmp_path / "x.npy", X)
    return path


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    onnx = pytest.importorskip("onnx", reason="the package onnx makes the model")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    row = onnx.numpy_helper.from_array(ROW, "row")
    nodes = [helper.make_node("Add", ["x", "row"], ["sum"]), helper.make_node("Relu", ["sum"], ["../out"])]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", kind, ["n", 20])], [value("../out", kind, ["n", 20])], [row])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "model.onnx"
    )
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "model.onnx"


def call(*args: Any, code: int = 0) -> Any:
    """The result of a command, which must end with this exit code, without a traceback."""
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def refused(*args: Any) -> str:
    """The message of a command that must fail: the house's shape, on the error output alone."""
    result = call(*args, code=2)
    assert result.stdout == ""
    return result.stderr


# --- compile --------------------------------------------------------------------------------------------------
def test_compile_lists_the_stages(text_file: Path) -> None:
    out = call("compile", text_file, "--report").stdout
    for stage in pipeline.stages(CpuBackend()):
        assert stage.name in out
    assert "1 kernels" in out and "addition" in out


@pytest.mark.parametrize(
    "stage, found",
    [
        ("decompose", "%y = addition(%double, %row) : f32[n, 20]"),
        ("stitch", "((x[i0, i1] + x[i0, i1]) + c0[i1])  for i0 < n, i1 < 20"),
        ("plan-memory", "launch"),
        ("generate", "define"),
        ("compile", "native code"),
    ],
)
def test_compile_stops_after_a_stage(text_file: Path, stage: str, found: str) -> None:
    assert found in call("compile", text_file, "--stop-after", stage).stdout


def test_a_module_that_was_written_can_be_read(text_file: Path, tmp_path: Path) -> None:
    written = tmp_path / "later.txt"
    assert call("compile", text_file, "--stop-after", "fold", "-o", written).stdout == ""
    module = parse_module(written.read_text(), dict(np.load(tmp_path / "later.npz")))
    assert [o.op.name for o in module.body.operations] == ["constant", "addition", "addition"]
    first, second = (call("compile", f, "--stop-after", "stitch").stdout for f in (text_file, written))
    assert first == second
    call("compile", text_file, "--stop-after", "generate", "-o", tmp_path / "code.ll")
    assert "define" in (tmp_path / "code.ll").read_text()


# --- run ------------------------------------------------------------------------------------------------------
def test_run_writes_outputs(text_file: Path, tmp_path: Path) -> None:
    out = call("run", text_file, "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "out").stdout
    assert "y: f32[3, 20]" in out
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "y.npy"), X + X + ROW)


def test_run_prints_outputs(text_file: Path, tmp_path: Path) -> None:
    assert str(X + X + ROW) in call("run", text_file, "--input", tmp_path / "x.npy").stdout


def test_run_onnx(onnx_file: Path, tmp_path: Path) -> None:
    call("run", onnx_file, "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "out")
    # The name of an output does not say where it is written.
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["_out.npy"]
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "_out.npy"), np.maximum(X + ROW, 0))


# --- inspect, ops, devices ------------------------------------------------------------------------------------
def test_inspect(onnx_file: Path, text_file: Path) -> None:
    out = call("inspect", onnx_file).stdout
    for part in ("x ", "f32[n, 20]", "../out", "relu", "addition", "20 numbers"):
        assert part in out
    assert "2 operations" in call("inspect", text_file).stdout


def test_ops() -> None:
    listing = call("ops").stdout
    assert "softmax" in listing and "reduction_sum" in listing
    described = call("ops", "sum").stdout
    assert described.startswith("reduction_sum(x, axes=None, keepdims=False)")
    assert "axis= is accepted for axes=" in described
    message = refused("ops", "softmx")
    assert message.startswith("ops: there is no op `softmx`")


def test_devices() -> None:
    assert "cpu" in call("devices").stdout


# --- refusals -------------------------------------------------------------------------------------------------
def test_missing_and_unknown_files(tmp_path: Path) -> None:
    assert refused("compile", tmp_path / "no.onnx").startswith("load: there is no such file")
    (tmp_path / "a.bin").write_bytes(b"")
    assert refused("inspect", tmp_path / "a.bin").startswith("load: the kind of file is not known")
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    assert refused("inspect", tmp_path / "a.txt").startswith("load: the file is not text")
    (tmp_path / "d.txt").mkdir()
    assert refused("inspect", tmp_path / "d.txt").startswith("file: ")


def test_damaged_models(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"no model at all")
    assert ": " in refused("compile", tmp_path / "a.onnx").split("\n")[0]
    (tmp_path / "a.txt").write_text("module main() {\n  %x = nonsense()\n}\n")
    message = refused("compile", tmp_path / "a.txt")
    assert message.startswith("text: there is no op `nonsense`")
    assert message.rstrip().endswith(f"{tmp_path / 'a.txt'}:2")


def test_wrong_stage(text_file: Path) -> None:
    message = refused("compile", text_file, "--stop-after", "nothing")
    assert message.startswith("compile: there is no stage `nothing`\n  expected  verify, dead-code")


def test_wrong_inputs(text_file: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", X.astype(np.float64))
    np.save(tmp_path / "short.npy", X[:, :3])
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("no array")
    assert "inputs are missing" in refused("run", text_file)
    assert "there is no input `z`" in refused("run", text_file, "--input", f"z={tmp_path / 'x.npy'}")
    assert "wrong dtype" in refused("run", text_file, "--input", f"x={tmp_path / 'wide.npy'}")
    assert "wrong size" in refused("run", text_file, "--input", f"x={tmp_path / 'short.npy'}")
    for name in ("text.npy", "objects.npy", "none.npy"):
        message = refused("run", text_file, "--input", f"x={tmp_path / name}")
        assert "cannot read the array" in message and "pickle" not in message
    assert "an input is not one array" in refused("run", text_file, "--input", f"x={tmp_path / 'model.npz'}")
    (tmp_path / "model.npz").unlink()
    assert "the resource `c0` is missing" in refused("run", text_file, "--input", f"x={tmp_path / 'x.npy'}")


def test_the_command_itself(text_file: Path) -> None:
    code = "from stitchwork.tools.cli import main; main()"
    made = subprocess.run(
        [sys.executable, "-c", code, "inspect", str(text_file)], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0 and "f32[n, 20]" in made.stdout, made.stderr
    made = subprocess.run([sys.executable, "-c", code, "inspect", "x.txt"], capture_output=True, text=True, check=False)
    assert made.returncode == 2 and made.stderr == "load: there is no such file\n  got       x.txt\n"
