"""The code in README.md and docs/ runs, and prints what the pages say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, kind: str) -> list[str]:
    """The fenced blocks of one kind on a page."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def run(code: str, folder: Path) -> str:
    """Run a program as a newcomer would; what it printed."""
    made = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return made.stdout


def test_architecture_prints_what_it_shows(tmp_path: Path) -> None:
    page = ROOT / "docs" / "architecture.md"
    (code,), shown = blocks(page, "python"), blocks(page, "text")
    printed = run(code, tmp_path)
    assert len(shown) == 3
    for text in shown:
        assert text in printed, f"docs/architecture.md shows\n{text}\nbut its program prints\n{printed}"


def test_architecture_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name in re.findall(r"`([a-z_/]+\.py)`", text):
        places = (ROOT, ROOT / "src" / "stitchwork", ROOT / "src" / "stitchwork" / "backends" / "cpu")
        assert any((place / name).exists() for place in places), name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_decisions_are_short_and_numbered() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [p.name[:4] for p in pages] == [f"{k:04}" for k in range(1, len(pages) + 1)]
    for page in pages:
        assert len(page.read_text(encoding="utf-8").splitlines()) <= 40, page.name
