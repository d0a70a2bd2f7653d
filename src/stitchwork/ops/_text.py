"""Reading the text form of a module, as `stitchwork.ir.printer` writes it.

Every operation is built as a person's call is: attributes are normalised, operands checked, types inferred, and guards
on sizes made, whether the text has them or not. So a text cannot describe a module that the checks of ops would refuse.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stitchwork.errors import StitchworkError
from stitchwork.ir import dims
from stitchwork.ir.graph import Array, Block, Guard, Module, Value, VariableState
from stitchwork.ir.scanner import Scanner, TextError
from stitchwork.ir.told import misplaced, symbols_in
from stitchwork.ir.types import TensorType, Type
from stitchwork.ops._op import REGISTRY, Op, building
from stitchwork.ops._rebuild import rebuild

_DEPTH = 64  # of regions inside regions
_NUMBERED = re.compile(r"\w\.(\d{1,18})\b")  # the number in the name of a symbol that no user gave


def parse_module(text: str, resources: Mapping[str, Array] | None = None, source: str = "text") -> Module:
    """The module that a text describes; blank lines and lines that begin with `#` say nothing.

    resources: the arrays that the text names and does not hold. source: what messages call the text.

    Raises TextError: the text does not follow the format, or an op refuses its operands.
    """
    return _Reader(text, resources or {}, source).module()


class _Reader:
    """Reads line after line. `line` comes next; `scopes` holds the values of open blocks by their names."""

    def __init__(self, text: str, resources: Mapping[str, Array], source: str) -> None:
        self.resources, self.source = resources, source
        self.lines = self._scanners(text)
        self.scopes: list[dict[str, Value]] = [{}]
        self.symbols: set[str] = set()
        self.last_symbol = max((int(n) for n in _NUMBERED.findall(text)), default=0)
        self.line = next(self.lines)

    def _scanners(self, text: str) -> Iterator[Scanner]:
        number = 1
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                yield Scanner(line.rstrip(), f"{self.source}:{number}", self.resources)
        while True:  # what is asked for beyond the end
            yield Scanner("", f"{self.source}:{number}", self.resources)

    def end_line(self) -> None:
        self.line.end()
        self.line = next(self.lines)

    # --- the module ------------------------------------------------------------------------------------------
    def module(self) -> Module:
        self.line.take("module")
        made = Module(self.line.name())
        self._arguments(made.body)
        self.line.take("{")
        self.end_line()
        self._header(made)
        self.symbols = _bound_by(made.body.arguments) | set(made.bounds)
        # Symbols made later, for sizes that only a run tells, must not have names of the text.
        made._next_symbol = self.last_symbol  # pyright: ignore[reportPrivateUsage]
        for guard in made.guards.values():
            self._check_symbols((guard.a, guard.b))
        self._check_symbols(tuple(v.type for v in made.body.arguments))
        with building(made):
            self._block(made.body, "return", 0)
        if self.line.rest:
            raise self.line.fail("unexpected text", "the end of the text")
        problem = misplaced(made)
        if problem:
            raise TextError("text", problem, at=self.source)
        return made

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
        if initial.shape != type_.shape or initial.dtype != type_.dtype.numpy:
            raise self.line.fail(f"the variable `{name}` and its initial value differ in type", str(type_), name)
        module.variables[name] = VariableState(name, type_, initial)

    def _bound(self, module: Module) -> None:
        name = self.line.word()
        self.line.take("<=")
        known = _bound_by(module.body.arguments)
        if name in module.bounds or name in known:
            raise self.line.fail(f"the size `{name}` is bound twice", got=name)
        size = self.line.size(self.line.until(""))
        self.symbols = known | set(module.bounds)  # earlier ones
        self._check_symbols(size)
        module.bounds[name] = size

    def _guard(self, module: Module) -> None:
        op = self.line.name()
        self.line.take(":")
        text = self.line.until('"')
        relation = next((r for r in ("==", ">=", "fits") if f" {r} " in text), None)
        if relation is None:
            raise self.line.fail("a guard without a relation", "`==`, `>=` or `fits`", text)
        a, _, b = text.partition(f" {relation} ")
        module.add_guard(
            Guard(op, self.line.string(), relation, self.line.size(a), self.line.size(b), self._location())
        )

    # --- blocks ----------------------------------------------------------------------------------------------
    def _arguments(self, block: Block) -> None:
        self.line.take("(")
        while not self.line.found(")"):
            key, name = self._new_name()
            self.line.take(":")
            self._define(self.line, key, block.add_argument(self.line.type(), name))
            if not self.line.found(","):
                self.line.take(")")
                break

    def _block(self, block: Block, end: str, depth: int) -> None:
        """The lines of a block up to its closing brace."""
        if depth > _DEPTH:
            raise self.line.fail("regions are nested too deeply")
        while not self.line.found(end):
            if not self.line.rest or self.line.rest == "}":
                raise self.line.fail(f"a block without its `{end}`", f"`{end}`")
            self._operation(block, depth)
        results = [] if not self.line.rest else [self._value()]
        while self.line.found(","):
            results.append(self._value())
        block.results = tuple(results)
        self.end_line()
        self.line.take("}")
        self.end_line()

    def _regions(self, block: Block, depth: int) -> tuple[Block, ...]:
        made: list[Block] = []
        while self.line.found("region"):
            region = block.module.new_block(block)
            self.scopes.append({})
            self._arguments(region)
            self._check_symbols(tuple(v.type for v in region.arguments))
            self.line.take("{")
            self.end_line()
            with block.module.inside(region):
                self._block(region, "yield", depth + 1)
            self.scopes.pop()
            made.append(region)
        return tuple(made)

    # --- values ----------------------------------------------------------------------------------------------
    def _new_name(self) -> tuple[str, str]:
        """How a value is called in the text, and its own name."""
        key = self.line.value_name()
        if self.line.rest.startswith('"'):
            return key, self.line.string()
        return key, "" if key.isdigit() else key

    def _define(self, line: Scanner, key: str, value: Value) -> None:
        if any(key in scope for scope in self.scopes):
            raise line.fail(f"the value `%{key}` is defined twice", got=f"%{key}")
        self.scopes[-1][key] = value

    def _value(self) -> Value:
        key = self.line.value_name()
        for scope in self.scopes:
            if key in scope:
                return scope[key]
        raise self.line.fail(f"the value `%{key}` is not defined here", got=f"%{key}")

    def _location(self) -> str:
        return self.line.string() if self.line.found("@") else ""

    def _check_symbols(self, x: Any) -> None:
        """Every size that occurs must be one that inputs give, or that an operation binds."""
        unknown = symbols_in(x) - self.symbols
        if unknown:
            raise self.line.fail(
                "a size is not known", "sizes that are a dim of an input, or bound", ", ".join(sorted(unknown))
            )

    # --- operations ------------------------------------------------------------------------------------------
    def _operation(self, block: Block, depth: int) -> None:
        line = self.line
        names = self._result_names()
        name = line.word("an operation")
        cls = REGISTRY.get(name)
        if cls is None:
            raise line.fail(f"there is no op `{name}`", got=name)
        grouped = self._operands(cls)
        attributes = self._attributes(cls)
        declared = self._result_types(len(names))
        location = self._location()
        self._check_symbols((declared, tuple(attributes.values())))
        self.end_line()
        regions = self._regions(block, depth)
        with _refusals(cls, line):
            operation = rebuild(cls, grouped, attributes, declared, regions, block.module)
        operation.location = location
        for (key, own), value in zip(names, operation.results, strict=True):
            value.name = own
            self._define(line, key, value)

    def _result_names(self) -> list[tuple[str, str]]:
        names: list[tuple[str, str]] = []
        while self.line.rest.startswith("%"):
            names.append(self._new_name())
            if not self.line.found(","):
                self.line.take("=")
        return names

    def _operands(self, cls: type[Op]) -> list[Any]:
        self.line.take("(")
        grouped: list[Any] = []
        for name, spec in cls.operands.items():
            if grouped:
                self.line.take(",")
            if self.line.found("none"):
                part = None
            elif self.line.found("["):
                part = self._list()
            else:
                part = self._value()
            fits = isinstance(part, tuple) == spec.variadic and (part is not None or spec.optional)
            if not fits:
                expected = "a list of values" if spec.variadic else "a value or none" if spec.optional else "a value"
                raise self.line.fail(f"the operand `{name}` of {cls.name} has the wrong form", expected)
            grouped.append(part)
        self.line.take(")")
        return grouped

    def _list(self) -> tuple[Value, ...]:
        many: list[Value] = []
        while not self.line.found("]"):
            many.append(self._value())
            if not self.line.found(","):
                self.line.take("]")
                break
        return tuple(many)

    def _attributes(self, cls: type[Op]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if not self.line.found("{"):
            return found
        while not self.line.found("}"):
            name = self.line.word("an attribute")
            if name not in cls.attributes() or name in found:
                problem = "is given twice" if name in found else f"is none of {cls.name}'s"
                raise self.line.fail(f"the attribute `{name}` {problem}", ", ".join(cls.attributes()), name)
            self.line.take("=")
            found[name] = self.line.attribute()
            if not self.line.found(","):
                self.line.take("}")
                break
        return found

    def _result_types(self, count: int) -> tuple[Type, ...]:
        types: list[Type] = []
        while len(types) < count:
            self.line.take("," if types else ":")
            types.append(self.line.type())
        return tuple(types)


@contextmanager
def _refusals(cls: type[Op], line: Scanner) -> Generator[None]:
    """What an op says against its operands and attributes, as an error at a line."""
    try:
        yield
    except StitchworkError as e:
        raise TextError("text", f"{cls.name}: {e.problem}", expected=e.expected, got=e.got, at=line.where) from None
    except Exception as e:  # the attributes may be of types that no rule of an op expects
        got = f"{type(e).__name__}: {e}"[:200]
        raise TextError("text", f"{cls.name} refuses its operands or attributes", got=got, at=line.where) from None


def _bound_by(arguments: list[Value]) -> set[str]:
    """The symbols that inputs of these types give: those which are a dim by themselves."""
    sizes = [n for v in arguments if isinstance(v.type, TensorType) for n in v.type.shape]
    return {str(n) for n in sizes if str(n) in dims.symbols_of(n)}
