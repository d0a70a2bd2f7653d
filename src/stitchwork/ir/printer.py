"""The text form of a module: one line per operation, regions indented below theirs.

    module main(%x: f32[n, 4], %0 "in/1": f32[4]) {
      variable "w": f32[2] = dense<f32[2]: 1.0, 2.0>
      guard addition: n fits m "broadcast of dim -1" @"model.py:12"
      %1 = addition(%x, %0) : f32[n, 4] @"model.py:12"
      return %1
    }

A value is called by its name where that is a word not used before, else by a number with the name, if any, in quotes
after it. Arrays of more than a few elements are *resources*: the text holds their name and type, a table their content.
`stitchwork.ops._text.parse_module` is the inverse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from stitchwork.ir.dims import Dim
from stitchwork.ir.dtypes import DType, as_dtype
from stitchwork.ir.graph import Array, Block, Guard, Module, Operation, Value
from stitchwork.ir.types import TensorType, TokenType

DENSE_LIMIT = 16  # elements of an array that is written out
SPLAT_LIMIT = 1 << 16  # elements of an array of equal elements that is written as one of them
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def print_module(module: Module, resources: dict[str, Array] | None = None, *, locations: bool = True) -> str:
    """The module as text. Larger arrays are put into `resources`, under names not used there yet.

    locations: say where in the user's code each operation was made.
    """
    return _Printer({} if resources is None else resources, locations).module(module)


class _Printer:
    def __init__(self, resources: dict[str, Array], locations: bool) -> None:
        self.resources, self.locations = resources, locations
        self.resource_of: dict[int, str] = {}
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.lines: list[str] = []

    def module(self, module: Module) -> str:
        self.lines.append(f"module {quoted_name(module.name)}({self.arguments(module.body)}) {{")
        for state in module.variables.values():
            self.lines.append(f"  variable {quoted(state.name)}: {state.type} = {self.array(state.initial)}")
        for name, bound in module.bounds.items():
            self.lines.append(f"  bound {name} <= {bound}")
        self.lines += [f"  {self.guard(g)}" for g in module.guards.values()]
        self.block(module.body, "return", "  ")
        return "\n".join([*self.lines, "}", ""])

    def guard(self, guard: Guard) -> str:
        text = f"guard {quoted_name(guard.op)}: {guard.a} {guard.relation} {guard.b} {quoted(guard.what)}"
        return text + self.location(guard.location)

    def block(self, block: Block, end: str, indent: str) -> None:
        for operation in block.operations:
            self.lines.append(indent + self.operation(operation))
            for region in operation.regions:
                self.lines.append(f"{indent}  region ({self.arguments(region)}) {{")
                self.block(region, "yield", indent + "    ")
                self.lines.append(f"{indent}  }}")
        self.lines.append(f"{indent}{end} {', '.join(map(self.use, block.results))}".rstrip())

    def arguments(self, block: Block) -> str:
        return ", ".join(f"{self.define(v)}: {v.type}" for v in block.arguments)

    def operation(self, operation: Operation) -> str:
        op = operation.op
        parts = op.group(operation.operands)
        operands = ", ".join(map(self.operand, parts))
        attributes = ", ".join(f"{a}={self.attribute(getattr(op, a))}" for a in op.attributes())
        text = f"{op.name}({operands})" + (f" {{{attributes}}}" if attributes else "")
        if operation.results:
            made = ", ".join(map(self.define, operation.results))
            text = f"{made} = {text} : {', '.join(str(v.type) for v in operation.results)}"
        return text + self.location(operation.location)

    def operand(self, part: Any) -> str:
        if part is None:
            return "none"
        if isinstance(part, tuple):
            return f"[{', '.join(map(self.use, cast('tuple[Value, ...]', part)))}]"
        return self.use(part)

    def location(self, where: str) -> str:
        return f" @{quoted(where)}" if where and self.locations else ""

    # --- values ----------------------------------------------------------------------------------------------
    def define(self, value: Value) -> str:
        """The name of a value, where it is made: with its own name in quotes if that cannot be the name in the text."""
        if WORD.fullmatch(value.name) and value.name not in self.taken:
            self.taken.add(value.name)
            self.names[value] = value.name
            return f"%{value.name}"
        number = self.names[value] = str(len(self.names))
        return f"%{number} {quoted(value.name)}" if value.name else f"%{number}"

    def use(self, value: Value) -> str:
        return f"%{self.names[value]}"

    # --- attributes ------------------------------------------------------------------------------------------
    def attribute(self, x: Any) -> str:
        """An attribute's text; equal texts mean equal types and values."""
        match x:
            case None:
                return "none"
            case bool():
                return "true" if x else "false"
            case int():
                return repr(int(x))
            case float():
                return repr(float(x))
            case np.generic():
                return self.attribute(x.item())
            case complex():
                return f"complex({x.real!r}, {x.imag!r})"
            case str():
                return quoted(x)
            case Dim():
                return f"<{x}>"
            case DType() | TensorType() | TokenType():
                return str(x)
            case tuple():
                many = [self.attribute(e) for e in cast("tuple[Any, ...]", x)]
                return f"({', '.join(many)}{',' if len(many) == 1 else ''})"
            case np.ndarray():
                return self.array(cast("Array", x))
            case _:
                raise TypeError(f"an attribute of type {type(x).__name__} has no text form")

    def array(self, x: Array) -> str:
        type_ = TensorType(as_dtype(x.dtype), x.shape)
        if 4 < x.size <= SPLAT_LIMIT and _is_splat(x):
            return f"dense<{type_}: splat {self.elements(x.reshape(-1)[:1])}>"
        if x.size <= DENSE_LIMIT:
            elements = self.elements(x.reshape(-1))
            return f"dense<{type_}{': ' if elements else ''}{elements}>"
        return f"resource<{self.resource(x)}: {type_}>"

    def elements(self, x: Array) -> str:
        """Elements as numbers, or as the hexadecimal digits of their bytes where numbers would not give these back."""
        kind = as_dtype(x.dtype).kind
        if kind in "biu":
            return ", ".join(self.attribute(bool(e) if kind == "b" else int(e)) for e in x)
        for convert in _CONVERSIONS[kind]:
            numbers = [convert(e) for e in x]
            if np.array(numbers).astype(x.dtype).tobytes() == x.tobytes():
                return ", ".join(map(self.attribute, numbers))
        return f"0x{x.tobytes().hex()}"

    def resource(self, x: Array) -> str:
        name = self.resource_of.get(id(x))
        if name is None:
            name = f"c{len(self.resources)}"
            while name in self.resources:
                name += "_"
            self.resource_of[id(x)] = name
            self.resources[name] = x
        return name


def _reread(x: float) -> float:
    """The number as its text gives it back: a NaN without sign and payload."""
    return float(repr(float(x)))


# By kind of dtype: how an element becomes a Python number. The shortest float that the dtype rounds back comes first.
_CONVERSIONS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "f": (lambda e: float(str(e)), _reread),
    "c": (lambda e: complex(_reread(e.real), _reread(e.imag)),),
}


def _is_splat(x: Array) -> bool:
    flat = x.reshape(-1)
    first: bytes = flat[:1].tobytes()
    return flat.tobytes() == first * flat.size


def quoted(text: str) -> str:
    """A string in quotes, on one line."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def quoted_name(name: str) -> str:
    """A name, in quotes only where it is no word."""
    return name if WORD.fullmatch(name) else quoted(name)
