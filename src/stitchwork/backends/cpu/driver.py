"""Routines as data: one driver does all convolutions of a kind, each described by a constant table.

A routine's function only calls the driver with its table of numbers and its table of functions. Sizes known at run time
are in the table as -1 - slot. So a program with fifty convolutions holds one driver, and each costs a few lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stitchwork.backends.cpu.llvm import Function, Module, V, i64
from stitchwork.backends.cpu.routine import KERNEL_PARAMS, Size, Slot, TargetLike, begin_helper, begin_kernel

DRIVER_PARAMS = [*KERNEL_PARAMS, ("ptr", "numbers"), ("ptr", "functions")]


def begin_driver(module: Module, name: str, target: TargetLike) -> Function:
    return begin_helper(module, name, DRIVER_PARAMS, target)


def emit_case(
    module: Module, name: str, target: TargetLike, driver: str, numbers: Sequence[Size], functions: Sequence[str | None]
) -> Function:
    """The routine `name`: a call of `driver` with its tables."""
    encoded = [-1 - n.index if isinstance(n, Slot) else n for n in numbers]
    constant(module, f"{name}_numbers", "i64", [str(n) for n in encoded])
    constant(module, f"{name}_functions", "ptr", ["null" if f is None else f"@{f}" for f in functions])
    fn = begin_kernel(module, name, target)
    fn.call(driver, "void", [*fn.params, V("ptr", f"@{name}_numbers"), V("ptr", f"@{name}_functions")])
    fn.ret()
    return fn


def constant(module: Module, name: str, type_: str, values: Sequence[str]) -> V:
    """A constant array of the module."""
    text = ", ".join(f"{type_} {v}" for v in values)
    module.globals[name] = f"@{name} = internal constant [{len(values)} x {type_}] [{text}], align 8"
    return V("ptr", f"@{name}")


class Numbers:
    """Reads a routine's tables inside a driver; all of it in the entry block."""

    def __init__(self, fn: Function, fields: Sequence[str]) -> None:
        self.fn, self.ctx, self.table, self.functions = fn, fn.params[0], *fn.params[4:6]
        self.places: Mapping[str, int] = {field: k for k, field in enumerate(fields)}

    def __getitem__(self, field: str) -> V:
        return self._number(i64(self.places[field]))

    def _number(self, place: V) -> V:
        return self.fn.load("i64", self.fn.gep(self.table, place, "i64"), 8)

    def size(self, field: str) -> V:
        """A size that may be in `ctx`."""
        fn, given = self.fn, self[field]
        elsewhere = fn.icmp("slt", given, i64(0))
        slot = fn.select(elsewhere, fn.sub(-1, given), i64(0))
        return fn.select(elsewhere, fn.load("i64", fn.gep(self.ctx, slot, "i64"), 8), given)

    def pointer(self, field: str) -> V:
        """The pointer in the slot of `ctx` that a field names."""
        return self.fn.load("ptr", self.fn.gep(self.ctx, self[field], "i64"), 8)

    def entry(self, first: str, index: V) -> V:
        """Number `index` of a list that begins at a field."""
        return self._number(self.fn.add(self.places[first], index))

    def function(self, index: V | int) -> V:
        """A function of the table, to be called with `call_pointer`."""
        return self.fn.load("ptr", self.fn.gep(self.functions, index, "ptr"), 8)


def call_pointer(fn: Function, callee: V, args: Sequence[V]) -> None:
    fn.do(f"call void {callee.ref}({', '.join(map(str, args))})")
