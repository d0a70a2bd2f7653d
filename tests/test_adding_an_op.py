"""docs/adding-an-op.md is true: its file, put where the page says, is an op with all that the page promises."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "adding-an-op.md"

SCRIPT = """
import inspect
import numpy as np
import stitchwork as sw
from stitchwork.backends.reference.interpreter import Interpreter
from stitchwork.errors import OpError
from stitchwork.ir.printer import print_module
from stitchwork.ops._text import parse_module

assert list(inspect.signature(sw.smoothstep).parameters) == ["x", "low", "high"]
assert "ramp without corners" in sw.smooth_step.__doc__

g = sw.Graph()
x = g.placeholder(("n", 3), name="x")
y = g.smoothstep(x, low=-1.0, high=2.0)
assert y.type == x.type

for wrong, words in ((dict(low=2), "smoothstep: `low` is not below `high`"), (dict(lo=2), "unknown argument `lo`")):
    try:
        g.smoothstep(x, **wrong)
    except OpError as e:
        assert words in str(e) and "<string>" in str(e), str(e)
    else:
        raise AssertionError(wrong)

a = np.random.default_rng(0).normal(0, 2, (50, 3)).astype("f")
exe = g.compile([g.exp(y)])
report = exe.report()
assert report.splitlines() == ["1 kernels", "  0  smoothstep + exp"], report
t = np.clip((a + 1) / 3, 0, 1)
np.testing.assert_allclose(exe.run([a])[0], np.exp(t * t * (3 - 2 * t)), rtol=1e-5)

(dx,) = g.gradients(g.sum(y), [x])
np.testing.assert_allclose(g.run({x: a}, [dx])[0], 6 * t * (1 - t) / 3, rtol=1e-4, atol=1e-6)

g.module.body.results = (y,)
text = print_module(g.module, locations=False)
assert "smoothstep(%x) {low=-1.0, high=2.0} : f32[n, 3]" in text, text
again = parse_module(text, {}, "text")
assert print_module(again, locations=False) == text
np.testing.assert_allclose(Interpreter(again, {"n": 50}).run(a)[0], t * t * (3 - 2 * t), rtol=1e-5)
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the page's file in it."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 1
    folder = tmp_path_factory.mktemp("src")
    shutil.copytree(ROOT / "src" / "stitchwork", folder / "stitchwork", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "stitchwork" / "ops" / "smoothstep.py").write_text(blocks[0], encoding="utf-8")
    return folder


def run(sources: Path, *arguments: str) -> str:
    """Run Python with the copy as its `stitchwork`; what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    command = [sys.executable, *arguments]
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


def test_function_method_checks_code_gradient_and_text(sources: Path) -> None:
    run(sources, "-c", SCRIPT)


def test_command_line_describes_it(sources: Path) -> None:
    told = run(sources, "-c", "from stitchwork.tools.cli import main; main()", "ops", "smoothstep")
    assert "A ramp without corners" in told


def test_derived_tests_cover_it(sources: Path) -> None:
    files = [f"tests/ops/{name}.py" for name in ("test_every_op", "test_native", "test_gradients")]
    options = ["-v", "-p", "no:cacheprovider", "-k", "smoothstep", "-o", f"pythonpath={sources} tests"]
    told = run(sources, "-m", "pytest", *options, *files)
    for file in files:
        assert re.search(rf"{file}::.*smoothstep.* PASSED", told), told


def test_page_is_linted(sources: Path) -> None:
    pytest.importorskip("ruff", reason="the linter")
    run(
        sources,
        "-m",
        "ruff",
        "check",
        "--config",
        str(ROOT / "pyproject.toml"),
        str(sources / "stitchwork/ops/smoothstep.py"),
    )
