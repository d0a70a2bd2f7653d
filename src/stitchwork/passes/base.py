"""What a pass is: a valid module in, a valid module out, and whether anything changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from stitchwork.ir.graph import Module


@dataclass(frozen=True)
class PassResult:
    """The module after a pass; the same object where nothing was modified."""

    module: Module
    modified: bool


class Pass(Protocol):
    """A pure function on modules. `name` is what reports and `--stop-after` call it."""

    name: str

    def run(self, module: Module) -> PassResult: ...
