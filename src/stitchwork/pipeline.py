"""The path of a program, from the graph to native code, as one list of stages.

A stage takes what the one before gave. Compilation can stop after any of them (`stitchwork compile --stop-after NAME`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stitchwork.backends.cpu.backend import CpuBackend
from stitchwork.ir.graph import Module
from stitchwork.ir.verify import verify
from stitchwork.passes.base import Pass
from stitchwork.passes.cse import CommonSubexpressions
from stitchwork.passes.dead_code import DeadCode
from stitchwork.passes.decompose import Decompose
from stitchwork.passes.fold import Fold
from stitchwork.passes.layout import Layout
from stitchwork.passes.order import DropOrder
from stitchwork.passes.simplify import Simplify

# Module -> Module. Each is followed by a check that its result is a valid module.
PASSES: tuple[Pass, ...] = (
    DeadCode(keep_writes=False),  # an assign that nothing depends on is dropped here
    DropOrder(),
    Decompose(),
    Simplify(),
    Layout(),
    Fold(),
    CommonSubexpressions(),
    DeadCode(keep_writes=True),
)


@dataclass(frozen=True)
class Stage:
    """A named step of compilation."""

    name: str
    gives: str
    run: Callable[[Any], Any]


def stages(backend: CpuBackend) -> list[Stage]:
    """Every stage of a compilation for a backend, in order."""
    passes = [Stage(p.name, "module", _checked(p)) for p in PASSES]
    return [
        Stage("verify", "module", _verified),
        *passes,
        Stage("stitch", "program of kernels", backend.stitch),
        Stage("plan-memory", "program with an arena", backend.plan_memory),
        Stage("generate", "LLVM text", backend.generate),
        Stage("compile", "native code", backend.compile),
    ]


def run(module: Module, backend: CpuBackend, stop_after: str = "") -> Any:
    """Run the stages on a module; returns what the last, or the one named, gives. Raises KeyError for other names."""
    state: Any = module
    steps = stages(backend)
    if stop_after and stop_after not in {s.name for s in steps}:
        raise KeyError(stop_after)
    for stage in steps:
        state = stage.run(state)
        if stage.name == stop_after:
            break
    return state


def _checked(p: Pass) -> Callable[[Module], Module]:
    def apply(module: Module) -> Module:
        result = p.run(module)
        if result.modified:
            verify(result.module, p.name)
        return result.module

    return apply


def _verified(module: Module) -> Module:
    verify(module, "the graph")
    return module
