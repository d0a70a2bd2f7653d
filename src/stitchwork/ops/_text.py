"""Reading the text form of a module, as `stitchwork.ir.printer` writes it.

Every operation is built as a person's call is: attributes are normalised, operands checked, types inferred, and guards
on sizes made, whether the text has them or not. So a text cannot describe a module that the checks of ops would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from stitchwork.errors import StitchworkError
from stitchwork.ir import dims
from stitchwork.ir.dims import Dim, Size
from stitchwork.ir.graph import Array, Block, Guard, Module, Operation, Value, VariableState
from stitchwork.ir.scanner import Scanner, TextError
from stitchwork.ir.types import TensorType, Type
from stitchwork.ops._build import build, flatten
from stitchwork.ops._op import REGISTRY, Op, building, check_operands, require_equal
from stitchwork.ops._region_types import check_regions

_DEPTH = 64  # of regions inside regions


def parse_module(text: str, resources: Mapping[str, Array] | None = None, source: str = "text") -> Module:
    """The module that a text describes; blank lines and lines that begin with `#` say nothing.

    resources: the arrays that the text names and does not hold. source: what messages call the text.

    Raises TextError: the text does not follow the format, or an op refuses its operands.
    """
    return _Reader(text, resources or {}, source).module()


class _Module(Module):
    """The module being read. Sizes that only a run tells get a name in `infer` and another one in the text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.made: set[str] = set()

    def fresh_symbol(self, prefix: str = "d") -> str:
        name = f"{super().fresh_symbol(prefix)}?"
        self.made.add(name)
        return name


class _Reader:
    def __init__(self, text: str, resources: Mapping[str, Array], source: str) -> None:
        self.resources, self.source = resources, source
        self.lines = self._scanners(text)
        self.scopes: list[dict[str, Value]] = [{}]
        self.line = Scanner("", f"{source}:1", resources)
        self.next()

    def _scanners(self, text: str) -> Iterator[Scanner]:
        number = 0
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                yield Scanner(line.rstrip(), f"{self.source}:{number}", self.resources)
        while True:  # what is asked for beyond the end
            yield Scanner("", f"{self.source}:{number}", self.resources)

    def next(self) -> None:
        self.line = next(self.lines)

    def end_line(self) -> None:
        self.line.end()
        self.next()

    # --- the module -----------------------------------------------------------------------------------------------------
    def module(self) -> Module:
        self.line.take("module")
        made = _Module(self.line.name())
        self.arguments(made.body)
        self._header(made)
        with building(made), made.inside(made.body):
            self.block(made.body, "return", 0)
        self.line.take("}")
        self.end_line()
        if self.line.rest:
            raise self.line.fail("unexpected text", "the end of the text")
        return self._finished(made)

    def _header(self, module: Module) -> None:
        readers = {"variable ": self._variable, "bound ": self._bound, "guard ": self._guard}
        while (kind := next((k for k in readers if self.line.rest.startswith(k)), None)) is not None:
            self.line.take(kind)
            readers[kind](module)
            self.end_line()

    def _variable(self, module: Module) -> None:
        name = self.line.string()
        self.line.take(":")
        type_ = self.line.tensor_type()
        self.line.take("=")
        initial = self.line.array()
        if name in module.variables:
            raise self.line.fail(f"the variable `{name}` is declared twice", got=name)
        if not type_.is_static or initial.shape != type_.shape or initial.dtype != type_.dtype.numpy:
            raise self.line.fail(f"the variable `{name}` and its initial value differ in type", str(type_), name)
        module.variables[name] = VariableState(name, type_, initial)

    def _bound(self, module: Module) -> None:
        name = self.line.word()
        self.line.take("<=")
        size = self.line.size(self.line.rest)
        self.line.position = len(self.line.line)
        if name in module.bounds or name in _symbols_of_arguments(module):
            raise self.line.fail(f"the size `{name}` is bound twice", got=name)
        module.bounds[name] = size

    def _guard(self, module: Module) -> None:
        op = self.line.name()
        self.line.take(":")
        text, quote, rest = self.line.rest.partition('"')
        relation = next((r for r in ("==", ">=", "fits") if f" {r} " in text), None)
        if relation is None:
            raise self.line.fail("a guard without a relation", "`==`, `>=` or `fits`")
        a, _, b = text.partition(f" {relation} ")
        self.line.position = len(self.line.line) - len(quote + rest)
        what = self.line.string()
        module.add_guard(Guard(op, what, relation, self.line.size(a), self.line.size(b), self.location()))

    def _finished(self, made: _Module) -> Module:
        """The module as an ordinary one, with its own symbols' numbers left behind."""
        module = Module(made.name, made.guards, made.variables, made.bounds)
        module.body = made.body
        for name in {s for t in _types(made.body) for n in t.shape for s in dims.symbols_of(n)} | set(made.bounds):
            number = name.rpartition(".")[2]
            if number.isdigit() and len(number) < 19:
                module._next_symbol = max(module._next_symbol, int(number))
        return module
