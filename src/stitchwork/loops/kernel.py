"""What the stitcher makes of a program: kernels, and the instructions that launch them.

A *storage* is a piece of memory: an input, output, constant, variable or temporary. Loads and stores name storages as
the `key` of their buffers. An instruction list is the whole program; loops and branches hold lists of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Array, Guard, Operation
from stitchwork.ir.intervals import product_bound
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr
from stitchwork.loops.nest import Statement


@dataclass(eq=False)
class Storage:
    """Memory of one tensor. kind: input, output, constant, variable or temporary."""

    type: TensorType
    kind: str
    name: str = ""
    array: Array | None = None  # constants
    number: int = -1  # position among the storages of its kind

    @property
    def bytes(self) -> Size:
        return dims.product(self.type.shape) * self.type.dtype.itemsize

    def capacity(self, bounds: Mapping[str, Size]) -> Size:
        """Bytes that are enough, whatever the sizes that the run binds turn out to be."""
        return product_bound(self.type.shape, bounds) * self.type.dtype.itemsize if bounds else self.bytes

    def __repr__(self) -> str:
        return f"{self.kind} {self.name or self.number}: {self.type}"


@dataclass(eq=False)
class Stage:
    """One tensor computed inside a kernel: buffer[axes] = value. Its buffer is a storage, or scratch for one tile."""

    buffer: Buffer
    axes: tuple[Axis, ...]
    value: Expr
    name: str = ""
    index: tuple[Expr, ...] | None = None  # where it is stored, if not at its axes


@dataclass(eq=False)
class LoopKernel:
    """Stages computed tile by tile; the last is the root, whose axes the tiles divide."""

    stages: list[Stage]
    name: str = ""
    ops: list[Operation] = field(default_factory=list[Operation])

    @property
    def root(self) -> Stage:
        return self.stages[-1]


@dataclass(eq=False)
class NestKernel:
    """An op written as loops with stores."""

    statements: list[Statement]
    scratch: list[Buffer]
    name: str = ""
    ops: list[Operation] = field(default_factory=list[Operation])


@dataclass(eq=False)
class RoutineKernel:
    """A routine of the backend (matmul, convolution) with a fused epilogue.

    `epilogue` is the value stored at `axes` of `buffer`; in it, a load of `accumulator` stands for the routine's own
    result at the same position.
    """

    routine: Any
    operation: Operation
    operands: list[Buffer]
    buffer: Buffer
    axes: tuple[Axis, ...]
    accumulator: Buffer
    epilogue: Expr
    workspaces: list[Storage]
    name: str = ""
    ops: list[Operation] = field(default_factory=list[Operation])


Kernel = LoopKernel | NestKernel | RoutineKernel


@dataclass(eq=False)
class Launch:
    """Run a kernel."""

    kernel: Kernel


@dataclass(eq=False)
class Copy:
    """Copy one storage onto another of the same size."""

    source: Storage
    target: Storage


@dataclass(eq=False)
class Branch:
    """Run `then` where the predicate's element is not 0, else `otherwise`."""

    predicate: Storage
    then: list[Instruction]
    otherwise: list[Instruction]


@dataclass(eq=False)
class Loop:
    """Run `head`; while the predicate is then not 0, run `body` and start again."""

    head: list[Instruction]
    predicate: Storage
    body: list[Instruction]


@dataclass(eq=False)
class Bind:
    """Give a symbol the value of an integer element: a size that only the run itself tells."""

    symbol: str
    source: Storage


@dataclass(eq=False)
class Check:
    """End the run where a guard does not hold: number `number` of the program's checks."""

    guard: Guard
    number: int


Instruction = Launch | Copy | Branch | Loop | Bind | Check


@dataclass(eq=False)
class Program:
    """A compiled module before code generation."""

    instructions: list[Instruction]
    inputs: list[Storage]
    outputs: list[Storage]
    constants: list[Storage]
    variables: list[Storage]
    temporaries: list[Storage]
    symbols: list[str]
    guards: list[Guard]
    checks: list[Guard]  # about sizes that the run itself binds, checked once they are known
    bounds: dict[str, Size]  # symbols that the run itself binds, and what they cannot exceed
    notes: list[str] = field(default_factory=list[str])  # what was stitched into what, and why not


def launches(instructions: list[Instruction]) -> list[Launch]:
    """Every launch, nested ones included, in order."""
    found: list[Launch] = []
    for i in instructions:
        match i:
            case Launch():
                found.append(i)
            case Branch():
                found += launches(i.then) + launches(i.otherwise)
            case Loop():
                found += launches(i.head) + launches(i.body)
            case _:
                pass
    return found
