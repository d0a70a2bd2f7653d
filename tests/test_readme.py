"""The programs in README.md run, and print what it says."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_PAGE = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
_FENCED = r"^```{}\n(.*?)^```$"
PROGRAMS = re.findall(_FENCED.format("python"), _PAGE, re.DOTALL | re.MULTILINE)
OUTPUTS = re.findall(_FENCED.format("text"), _PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder_with_model(tmp_path: Path) -> Path:
    """Where the programs run: `model.onnx` there takes `x`, f32 [rows, 4]."""
    onnx: Any = pytest.importorskip("onnx", reason="README shows how to load an ONNX model")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    x, y = (helper.make_tensor_value_info(name, kind, ["rows", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx"
    )
    return tmp_path


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_program(number: int, folder_with_model: Path) -> None:
    names: dict[str, Any] = {"__name__": "readme"}
    printed = io.StringIO()
    back = os.getcwd()
    os.chdir(folder_with_model)
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(PROGRAMS[number], "README.md", "exec"), names)
    finally:
        os.chdir(back)
    assert printed.getvalue() == OUTPUTS[number]
    if "outputs" in names:
        np.testing.assert_array_equal(names["outputs"]["y"].numpy(), np.ones((3, 4), np.float32))


def test_first_program_is_short() -> None:
    assert len(PROGRAMS) == len(OUTPUTS) == 2
    assert len(PROGRAMS[0].splitlines()) <= 20
