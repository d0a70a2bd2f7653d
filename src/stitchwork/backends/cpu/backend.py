"""The CPU backend: the last stages of a compilation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stitchwork.backends.cpu import jit
from stitchwork.backends.cpu.codegen import Code, generate
from stitchwork.backends.cpu.conv_routine import make_conv
from stitchwork.backends.cpu.matmul_routine import make_matmul
from stitchwork.backends.cpu.routines import Maker
from stitchwork.backends.cpu.target import Target
from stitchwork.ir.graph import Module, Operation
from stitchwork.loops.kernel import Program
from stitchwork.loops.memory import Arena, plan
from stitchwork.loops.program import lower


@dataclass
class Planned:
    """A program with its arena."""

    program: Program
    arena: Arena


@dataclass
class Generated:
    """A program with its LLVM text."""

    planned: Planned
    code: Code


@dataclass
class Compiled:
    """A program with its native code; `code.address("main")` is the entry."""

    planned: Planned
    code: Code
    native: jit.LoadedObject

    @property
    def entry(self) -> int:
        return self.native.address("main")


# The routines that ops name as data, by name.
ROUTINES: dict[str, Maker] = {"matmul": make_matmul, "conv": make_conv}


class CpuBackend:
    """Code for one CPU. iteration_limit: rounds after which a loop ends the run."""

    def __init__(self, target: Target | None = None, iteration_limit: int | None = None) -> None:
        self.target = target or Target.host()
        self.iteration_limit = iteration_limit

    def routine(self, operation: Operation) -> Any:
        """The routine that does an operation whole, or None."""
        types = [v.tensor for v in operation.operands]
        for lib in operation.op.library:
            maker = ROUTINES.get(lib.routine) if lib.on == "cpu" else None
            if maker is not None and types[0].dtype.name in lib.dtypes.split() and lib.when(operation.op, *types):
                return maker(operation, self.target)
        return None

    def stitch(self, module: Module) -> Program:
        return lower(module, self.routine)

    def plan_memory(self, program: Program) -> Planned:
        return Planned(program, plan(program))

    def generate(self, planned: Planned) -> Generated:
        return Generated(planned, generate(planned.program, planned.arena, self.target, self.iteration_limit))

    def compile(self, generated: Generated) -> Compiled:
        object_code = jit.cached_object(generated.code.text, self.target)
        return Compiled(generated.planned, generated.code, jit.load_object(object_code, ["main"]))
