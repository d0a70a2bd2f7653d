"""Comparing whole error messages: what, expected, got, hint, and the line of the test that made the mistake."""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc
from typing import Any

import pytest

from stitchwork.errors import StitchworkError


def assert_message(kind: type[StitchworkError], text: str, call: Callable[[], Any]) -> None:
    """`call` raises `kind` itself with this text, and then the place: a line of `call`."""
    with pytest.raises(StitchworkError) as raised:
        call()
    assert type(raised.value) is kind
    message, _, place = str(raised.value).rpartition("\n  at        ")
    assert message == cleandoc(text)
    code = call.__code__
    file, _, line = place.rpartition(":")
    lines = [number for _, _, number in code.co_lines() if number]
    assert file == code.co_filename
    assert min(lines) <= int(line) <= max(lines)
