"""Programs in files: ONNX models, and modules in text form with their larger arrays beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from stitchwork.errors import FeedError, StitchworkError
from stitchwork.ir.graph import Array, Module, Value
from stitchwork.ir.printer import print_module
from stitchwork.ops._text import parse_module


@dataclass
class Program:
    """A module with names for what goes in and comes out, in the order of its arguments and results."""

    path: Path
    module: Module
    inputs: dict[str, Value]
    outputs: dict[str, Value]


def load_program(path: Path) -> Program:
    """The program in a file: an ONNX model (`.onnx`) or a module's text (`.txt`), its resources in `.npz` beside it.

    Raises StitchworkError, OSError.
    """
    if not path.exists():
        raise StitchworkError("load", "there is no such file", got=str(path), at="")
    kind = path.suffix.lower()
    if kind == ".onnx":
        return _onnx(path)
    if kind == ".txt":
        return _text(path)
    raise StitchworkError(
        "load", "the kind of file is not known", expected="a .onnx or .txt file", got=str(path), at=""
    )


def _onnx(path: Path) -> Program:
    try:
        from stitchwork.importers.onnx import load  # only those who bring a model need the onnx package
    except ImportError as e:
        hint = 'pip install "stitchwork[onnx]"'
        raise StitchworkError(
            "load", "reading ONNX models needs a package that is missing", got=str(e), hint=hint
        ) from None
    model = load(path)
    module = model.graph.module
    module.body.results = tuple(model.outputs.values())
    for name, value in model.outputs.items():
        value.name = value.name or name
    return Program(path, module, _named(module.body.arguments, "input"), dict(model.outputs))


def _text(path: Path) -> Program:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise StitchworkError("load", "the file is not text", expected="UTF-8", got=str(e), at=str(path)) from None
    beside = path.with_suffix(".npz")
    resources = load_arrays(beside) if beside.exists() else {}
    module = parse_module(text, resources, str(path))
    return Program(path, module, _named(module.body.arguments, "input"), _named(module.body.results, "output"))


def _named(values: list[Value] | tuple[Value, ...], prefix: str) -> dict[str, Value]:
    """Values by their names; those without one, or with that of another, by number."""
    found: dict[str, Value] = {}
    for k, v in enumerate(values):
        name = v.name if v.name and v.name not in found else f"{prefix}{k}"
        while name in found:
            name += "_"
        found[name] = v
    return found


def save_module(module: Module, path: Path) -> None:
    """Write a module's text, and its resources as `.npz` beside it."""
    resources: dict[str, Array] = {}
    path.write_text(print_module(module, resources), encoding="utf-8")
    if resources:
        np.savez(path.with_suffix(".npz"), allow_pickle=False, **cast("dict[str, Any]", resources))


def load_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an `.npz` file, or the one of an `.npy` file under the name "". Raises FeedError."""
    try:
        found: Any = np.load(path, allow_pickle=False)
        return dict(cast("Mapping[str, Array]", found)) if isinstance(found, Mapping) else {"": found}
    except (OSError, ValueError, EOFError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is damaged, or no such file"
        raise FeedError(
            "load", "cannot read the array", expected="an .npy file", got=f"{path}: {reason}", at=""
        ) from None


def load_feeds(program: Program, given: list[str]) -> list[Array]:
    """Arrays for all inputs from texts NAME=FILE.npy (or FILE.npy, where there is one input). Raises FeedError."""
    names = list(program.inputs)
    feeds: dict[str, Array] = {}
    for text in given:
        name, separator, file = text.rpartition("=")
        if not separator and len(names) == 1:
            name = names[0]
        if name not in names:
            raise FeedError("run", f"there is no input `{name}`", expected=_list(program), got=text, at="")
        arrays = load_arrays(Path(file))
        if list(arrays) != [""]:
            raise FeedError("run", "an input is not one array", expected="an .npy file", got=file, at="")
        feeds[name] = arrays[""]
    missing = [n for n in names if n not in feeds]
    if missing:
        hint = " ".join(f"--input {n}=FILE.npy" for n in missing)
        raise FeedError(
            "run", "inputs are missing", expected=_list(program), got=f"no {', '.join(missing)}", hint=hint, at=""
        )
    return [feeds[n] for n in names]


def _list(program: Program) -> str:
    return ", ".join(f"{n}: {v.type}" for n, v in program.inputs.items()) or "no inputs"


def save_outputs(names: list[str], arrays: list[Array], folder: Path) -> list[Path]:
    """Write each array as NAME.npy into a folder, which is made where it is not there; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for name, array in zip(names, arrays, strict=True):
        # A name may be anything, "../../x" too: it must not say where to write.
        stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip(".") or "output"
        while folder / f"{stem}.npy" in files:
            stem += "_"
        files.append(folder / f"{stem}.npy")
        np.save(files[-1], array, allow_pickle=False)
    return files
