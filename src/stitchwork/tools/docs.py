"""What the declarations of ops say to people: signatures, docstrings, dtypes."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from stitchwork.ir import dtypes
from stitchwork.ops import REGISTRY
from stitchwork.ops._build import signature
from stitchwork.ops._op import Op, Operand


def public_ops() -> list[type[Op]]:
    """The ops that a person can call, in the order of their definition."""
    return [cls for cls in REGISTRY.values() if not cls.internal]


def docstring(cls: type[Op]) -> str:
    """The op's docstring without indentation."""
    return inspect.cleandoc(cls.__doc__ or "")


def summary(cls: type[Op]) -> str:
    """The first paragraph of the docstring, on one line."""
    return " ".join(docstring(cls).split("\n\n")[0].split())


def call_text(cls: type[Op]) -> str:
    """The call as one line, with default values."""
    return f"{cls.name}{signature(cls)}"


def dtypes_text(spec: Operand) -> str:
    """The dtypes that an operand accepts: the names of groups where the declaration uses them."""
    words = spec.dtypes.split()
    return ", ".join(f"any {w}" if w in dtypes.GROUPS and w != "any" else w for w in words)


def operands_table(cls: type[Op]) -> list[tuple[str, str, str]]:
    """Name, dims and accepted dtypes of each operand."""
    rows: list[tuple[str, str, str]] = []
    for name, spec in cls.operands.items():
        if not spec.token:
            label = f"{name} (list)" if spec.variadic else f"{name} (optional)" if spec.optional else name
            rows.append((label, spec.dims or "scalar", dtypes_text(spec)))
    return rows


def attributes_table(cls: type[Op]) -> list[tuple[str, str]]:
    """Name and default of each attribute; no default is an empty text."""
    found: list[tuple[str, str]] = []
    for f in dataclasses.fields(cls):
        if f.name != "segments":
            default: Any = f.default
            found.append((f.name, "" if default is dataclasses.MISSING else repr(default)))
    return found


def spellings_of(cls: type[Op]) -> dict[str, str]:
    """Other spellings of the op's arguments, and the arguments they stand for."""
    return {spelling: name for spelling, name in cls.synonyms.items() if name in signature(cls).parameters}


def describe(cls: type[Op]) -> str:
    """An op for a terminal."""
    lines = [call_text(cls), "", docstring(cls), ""]
    lines += [f"  {name}: [{dims}] of {accepted}" for name, dims, accepted in operands_table(cls)]
    lines += [f"  {name}{f' = {default}' if default else ''}" for name, default in attributes_table(cls)]
    lines += [f"  {spelling}= is accepted for {name}=" for spelling, name in spellings_of(cls).items()]
    if cls.aliases:
        lines.append(f"  also called {', '.join(cls.aliases)}")
    return "\n".join(lines)
