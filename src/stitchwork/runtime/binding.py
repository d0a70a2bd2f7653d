"""From the shapes of a run's inputs to everything that depends on them: symbols, guards, output shapes, the arena."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stitchwork.errors import ExecutionError, FeedError
from stitchwork.ir import dims
from stitchwork.ir.dims import Dim, Size, python_source
from stitchwork.ir.graph import Guard
from stitchwork.ir.intervals import product_bound, upper_bound
from stitchwork.ir.told import symbols_in
from stitchwork.ir.types import TensorType
from stitchwork.loops.kernel import Program, Storage

_UNNAMED = re.compile(r"\bd\.\d+")  # see Module.fresh_symbol
Shapes = tuple[tuple[int, ...], ...]
NO_ARENA = 64  # arena bytes of a program without temporaries


@dataclass(frozen=True)
class Bound:
    """What one set of input shapes leads to.

    `outputs` are the shapes to allocate results with: of one whose size only the run tells, a vector that is long
    enough. `initial` are the symbols' values before the run.
    """

    symbols: dict[str, int]
    initial: array[int]
    outputs: tuple[tuple[int, ...], ...]
    plan: array[int]
    plan_address: int
    arena_bytes: int


class Binder:
    """Binds symbols to the sizes of inputs and evaluates every size of a program at once."""

    def __init__(self, program: Program, slots: Sequence[Size], scratch: Size, threads: int) -> None:
        self.inputs, self.symbols, self.guards = program.inputs, program.symbols, program.guards
        self.checks, self.told = program.checks, program.bounds
        self.threads = threads
        self.places = _places(program.inputs)
        types = [s.type for s in program.outputs]
        # Results whose shapes are known when the run is over, by number.
        self.late = {k: t.shape for k, t in enumerate(types) if not symbols_in(t).isdisjoint(self.told)}
        allocated = [(product_bound(t.shape, self.told),) if k in self.late else t.shape for k, t in enumerate(types)]
        self.ranks = [len(shape) for shape in allocated]
        sizes = [*slots, upper_bound(scratch, self.told), *(n for shape in allocated for n in shape)]
        self.evaluate = compile_sizes(sizes, self.symbols)
        self.slots = len(slots)

    def bind(self, shapes: Shapes) -> Bound:
        """Everything for these input shapes. Raises FeedError where they do not fit."""
        symbols = bind_symbols([s.type for s in self.inputs], shapes, [s.name for s in self.inputs])
        for g in self.guards:
            if not _holds(g, symbols):
                raise FeedError(g.op, f"sizes do not fit: {g.what}", **self._details(g, symbols))
        values = array("q", [symbols.get(s, 0) for s in self.symbols])
        sizes = self.evaluate(*values)
        slots, scratch, rest = sizes[: self.slots], sizes[self.slots], sizes[self.slots + 1 :]
        offsets: list[int] = []
        total = 0
        for n in slots:
            offsets.append(total)
            total += max(n, 0)
        scratch = (scratch + 127) // 64 * 64 if scratch else 0
        try:
            plan = array("q", [*values, *offsets, total, scratch])
        except OverflowError:
            raise ExecutionError(
                "run", "the temporaries do not fit into memory", got=f"{total + scratch:,} bytes"
            ) from None
        outputs: list[tuple[int, ...]] = []
        position = 0
        for rank in self.ranks:
            outputs.append(tuple(rest[position : position + rank]))
            position += rank
        arena = total + scratch * self.threads + NO_ARENA
        return Bound(symbols, values, tuple(outputs), plan, plan.buffer_info()[0], arena)

    def late_shape(self, k: int, values: Sequence[int]) -> tuple[int, ...]:
        """The shape of result `k` of a run that is over and has left the symbols with these values."""
        symbols = dict(zip(self.symbols, values, strict=True))
        return tuple(dims.evaluate(n, symbols) for n in self.late[k])

    def failed(self, number: int, values: Sequence[int]) -> ExecutionError:
        """The error of a run that met a check that does not hold."""
        guard = self.checks[number]
        details = self._details(guard, dict(zip(self.symbols, values, strict=True)))
        return ExecutionError(guard.op, f"sizes do not fit: {guard.what}", **details)

    def _details(self, g: Guard, symbols: Mapping[str, int]) -> dict[str, str]:
        """What a message says about a guard that does not hold."""
        a, b = dims.evaluate(g.a, symbols), dims.evaluate(g.b, symbols)
        relation = {"==": "equal sizes", ">=": f"at least {b}", "fits": "equal sizes, or 1 in one of them"}[g.relation]
        got = f"{g.a} = {a}" + ("" if isinstance(g.b, int) else f", {g.b} = {b}")
        return {
            "expected": relation,
            "got": _UNNAMED.sub(lambda m: self.places.get(m.group(), m.group()), got),
            "hint": f"op made at {g.location}" if g.location else "",
        }


def _holds(g: Guard, symbols: Mapping[str, int]) -> bool:
    a, b = dims.evaluate(g.a, symbols), dims.evaluate(g.b, symbols)
    return a == b or (g.relation == ">=" and a >= b) or (g.relation == "fits" and 1 in (a, b))


def _places(inputs: Sequence[Storage]) -> dict[str, str]:
    """Where a size without a name is seen: `d.1` is `x[0]`, dim 0 of input `x`."""
    found: dict[str, str] = {}
    for k, s in enumerate(inputs):
        for d, n in enumerate(s.type.shape):
            found.setdefault(str(n), f"{s.name or f'input {k}'}[{d}]")
    return found


def bind_symbols(types: Sequence[TensorType], shapes: Shapes, names: Sequence[str]) -> dict[str, int]:
    """The sizes of symbols that make the input types these shapes. Raises FeedError where none do."""
    symbols: dict[str, int] = {}
    owners: dict[str, str] = {}
    composite: list[tuple[Dim, int, str]] = []
    for number, (type_, shape) in enumerate(zip(types, shapes, strict=True)):
        label = f"`{names[number]}`" if names[number] else str(number)
        if len(shape) != type_.rank:
            raise _wrong("rank", label, type_, shape)
        for d, (declared, n) in enumerate(zip(type_.shape, shape, strict=True)):
            if isinstance(declared, int):
                if declared != n:
                    raise _wrong("size", label, type_, shape)
                continue
            symbol = str(declared)
            if dims.symbols_of(declared) != frozenset((symbol,)):
                composite.append((declared, n, f"dim {d} of input {label}"))
                continue
            if symbols.setdefault(symbol, n) != n:
                raise FeedError(
                    "run",
                    f"size `{symbol}` differs between inputs",
                    expected=f"{symbols[symbol]}, as in {owners[symbol]}",
                    got=f"{n} in dim {d} of input {label}",
                    hint="dims with one name must have one size",
                )
            owners.setdefault(symbol, f"dim {d} of input {label}")
    for declared, n, where in composite:
        unknown = dims.symbols_of(declared) - set(symbols)
        if unknown:
            raise FeedError(
                "run",
                f"size `{declared}` cannot be solved for {', '.join(sorted(unknown))}",
                got=f"{n} in {where}",
                hint="give an input one of whose dims is that size itself",
            )
        if dims.evaluate(declared, symbols) != n:
            raise FeedError(
                "run",
                f"size `{declared}` does not fit the other inputs",
                got=f"{n} in {where}",
                expected=str(dims.evaluate(declared, symbols)),
            )
    return symbols


def _wrong(what: str, label: str, type_: TensorType, shape: tuple[int, ...]) -> FeedError:
    return FeedError(
        "run", f"input {label} has the wrong {what}", expected=str(type_), got=f"shape [{', '.join(map(str, shape))}]"
    )


def compile_sizes(sizes: Sequence[Size], symbols: Sequence[str]) -> Callable[..., tuple[int, ...]]:
    """A function from symbol values to all the sizes; equal sizes, and functions inside them, are computed once."""
    names = {s: f"s{k}" for k, s in enumerate(symbols)}
    distinct: dict[Size, str] = {}
    functions: dict[dims.Atom, str] = {}
    lines: list[str] = []

    def source_of(a: dims.Atom) -> str:
        if not a.args:
            return names[a.name]
        if a not in functions:
            args = ", ".join(python_source(x, source_of) for x in a.args)
            functions[a] = f"f{len(functions)}"
            lines.append(f"    {functions[a]} = {a.name}({args})")
        return functions[a]

    for n in sizes:
        if isinstance(n, Dim) and n not in distinct:
            distinct[n] = f"d{len(distinct)}"
            written = python_source(n, source_of)
            lines.append(f"    {distinct[n]} = {written}")
    results = "".join(f"{distinct[n] if isinstance(n, Dim) else n}, " for n in sizes)
    source = f"def evaluate({', '.join(names.values())}):\n" + "\n".join([*lines, f"    return ({results})"])
    scope: dict[str, Any] = dict(dims.FUNCTIONS)
    exec(compile(source, "<sizes>", "exec"), scope)
    return scope["evaluate"]
