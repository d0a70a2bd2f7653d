"""Each pass on small programs: what it was given and what it made, side by side in files of this folder.

A file says what it shows in a comment, then `--- before: PASS` and `--- after`, each followed by a module's text. A
pass that the pipeline runs twice has `#2` after its name the second time. To write what the passes make now into the
files: `UPDATE_GOLDEN=1 pytest tests/passes`, and read the difference before you keep it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from stitchwork import pipeline
from stitchwork.ir.printer import print_module
from stitchwork.ir.verify import verify
from stitchwork.ops._text import parse_module
from stitchwork.passes.base import Pass

FILES = sorted(Path(__file__).parent.glob("*.txt"))
_FORM = re.compile(
    r"(?P<comment>(?:#.*\n)+)--- before: (?P<name>\S+)\n(?P<before>.*?\n)(?:--- after\n(?P<after>.*))?", re.S
)


def passes() -> dict[str, Pass]:
    """The passes of the pipeline by the names that the files use."""
    found: dict[str, Pass] = {}
    for step in pipeline.PASSES:
        number = 1 + sum(name.partition("#")[0] == step.name for name in found)
        found[step.name if number == 1 else f"{step.name}#{number}"] = step
    return found


def read(path: Path) -> re.Match[str]:
    match = _FORM.fullmatch(path.read_text())
    assert match, f"{path.name}: not a comment, `--- before: PASS`, a module, `--- after`, a module"
    return match


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_golden(path: Path) -> None:
    parts = read(path)
    step = passes()[parts["name"]]
    result = step.run(parse_module(parts["before"], source=path.name))
    assert result.modified
    verify(result.module, step.name)
    made = print_module(result.module, locations=False)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(f"{parts['comment']}--- before: {parts['name']}\n{parts['before']}--- after\n{made}")
        parts = read(path)
    assert made == parts["after"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_second_run_has_nothing_left_to_do(path: Path) -> None:
    parts = read(path)
    module = parse_module(parts["after"], source=path.name)
    result = passes()[parts["name"]].run(module)
    assert not result.modified
    assert print_module(result.module, locations=False) == parts["after"]


def test_every_pass_is_shown() -> None:
    assert set(passes()) == {read(path)["name"] for path in FILES}
