"""One shape for every message a user can see: what, expected, got, hint, where."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

_PACKAGE = str(Path(__file__).parent)


_FIXED: ContextVar[str] = ContextVar("location", default="")


def user_location() -> str:
    """`file:line` of the innermost frame outside this package; empty where there is none."""
    fixed = _FIXED.get()
    if fixed:
        return fixed
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # traceback.extract_stack reads files: far slower
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith(_PACKAGE) and not _is_generated(frame.f_globals):
            return f"{filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _is_generated(scope: dict[str, Any]) -> bool:
    """True for code that has no file but belongs to this package, as the `__init__` of a dataclass."""
    return str(scope.get("__name__")).startswith("stitchwork.")


@contextmanager
def located(at: str) -> Generator[None]:
    """Errors raised inside the `with` block name this place: that of a call whose work another thread does."""
    token = _FIXED.set(at)
    try:
        yield
    finally:
        _FIXED.reset(token)


class StitchworkError(Exception):
    """Base of every error raised on purpose by this package.

    The message has one shape: `op: problem`, then the lines expected, got, hint and at (file:line of the user's own
    code), those without content left out.
    """

    def __init__(
        self, op: str, problem: str, *, expected: str = "", got: str = "", hint: str = "", at: str | None = None
    ) -> None:
        self.op, self.problem, self.expected, self.got, self.hint = op, problem, expected, got, hint
        self.at = user_location() if at is None else at
        parts = (("expected", expected), ("got", got), ("hint", hint), ("at", self.at))
        super().__init__("\n".join([f"{op}: {problem}", *(f"  {k:<9} {v}" for k, v in parts if v)]))


class OpError(StitchworkError, ValueError):
    """An op was given operands or attributes it does not accept."""


class GraphError(StitchworkError, ValueError):
    """A graph was put together wrongly: a tensor of another graph, a block with the wrong number of results, ..."""


class FeedError(StitchworkError, ValueError):
    """An executable was given inputs it does not accept: number, name, rank, dtype or size."""


class CompileError(StitchworkError):
    """A graph cannot be compiled for the device."""


class UnsupportedError(CompileError):
    """A foreign model uses something this package cannot express yet; the message names every case at once."""


class ExecutionError(StitchworkError, RuntimeError):
    """A run was started and could not finish; variables keep the values they had before it."""


class PackageError(StitchworkError, ValueError):
    """A saved package is damaged, hostile or made by an incompatible version."""


class VerifyError(AssertionError):
    """The compiler's own output breaks a rule of the IR: a fault of this package, not of its user."""
