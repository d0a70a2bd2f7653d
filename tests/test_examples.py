"""Every example runs from start to end, as a person would run it; each checks its own results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
ARGUMENTS = {"train_mlp": ["60"]}
ELSEWHERE = {"showcase"}  # has tests of its own
EXAMPLES = [p.stem for p in sorted(FOLDER.glob("*.py")) if p.stem not in ELSEWHERE]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str) -> None:
    command = [sys.executable, f"{name}.py", *ARGUMENTS.get(name, [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # the package may be found by a relative path
    done = subprocess.run(
        command, cwd=FOLDER, capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and "Traceback" not in done.stderr
