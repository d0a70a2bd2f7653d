"""What is generated from the declarations of ops is up to date, and says what the functions take."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import stitchwork as sw
from stitchwork.ops import FUNCTIONS
from stitchwork.tools.docs import call_text, describe, public_ops, summary

ROOT = Path(__file__).parents[2]
API = ROOT / "src" / "stitchwork" / "api"


def test_generated_files_are_up_to_date() -> None:
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "make_docs.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, f"run `python scripts/make_docs.py`:\n{made.stdout}{made.stderr}"


@pytest.mark.parametrize("file", ["op_methods.pyi", "op_functions.pyi"])
def test_types_have_the_parameters_of_the_functions(file: str) -> None:
    tree = ast.parse((API / file).read_text())
    declared = {node.name: node.args for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for name, function in FUNCTIONS.items():
        if file == "op_methods.pyi" and name in vars(sw.Graph):
            continue
        args = declared[name]
        names = [a.arg for a in (*args.args, *args.kwonlyargs) if a.arg != "self"]
        parameters = list(inspect.signature(function).parameters)
        assert [n for n in names if n in parameters] == parameters, name


def test_every_op_is_a_method_and_a_function() -> None:
    for name, function in FUNCTIONS.items():
        assert getattr(sw, name) is function
        assert callable(getattr(sw.Graph, name))


def test_descriptions() -> None:
    for cls in public_ops():
        assert describe(cls).startswith(call_text(cls))
        assert "\n" not in summary(cls)
