"""Programs of kernels as text to read: a stage of a kernel is one line.

    y[i0, i1] = (x[i0, i1] - max(r0 < n: x[i0, r0]))  for i0 < 8, i1 < n

A load outside its buffer says what it reads there: `x[i0 - 1 | clamp]`, `x[i0 - 1 | 0.0]`. A subexpression used several
times gets a name before the line that needs it, or inside the reduction whose axes it depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stitchwork.ir.dtypes import int64
from stitchwork.loops.expr import (
    Axis,
    Bitcast,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Extent,
    Load,
    Reduce,
    children,
    walk,
)
from stitchwork.loops.kernel import (
    Bind,
    Branch,
    Check,
    Copy,
    Instruction,
    Kernel,
    Launch,
    Loop,
    LoopKernel,
    NestKernel,
    Program,
    RoutineKernel,
    Stage,
    Storage,
)
from stitchwork.loops.memory import Arena
from stitchwork.loops.nest import For, If, Let, Local, Scratch, Statement, Store, While

_INFIX = {
    **{"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%"},
    **{"and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>"},
    **{"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="},
}
_SHORT = 32  # characters of an index expression that needs no name
_LETTERS = {"input": "in", "output": "out", "constant": "c", "variable": "v", "temporary": "t"}


def print_program(program: Program, arena: Arena | None = None) -> str:
    """The storages and instructions of a program; with the arena, also the slot of each temporary."""
    return _Program(arena).program(program)


def print_kernel(kernel: Kernel) -> str:
    """The stages, or statements, of one kernel."""
    return "\n".join(_Program().kernel(kernel))


def print_stage(stage: Stage) -> str:
    """A stage: names for what it needs several times, and then the line that stores it."""
    return "\n".join(_Program().stage(stage))


class _Names:
    """One name for each thing, no name for two."""

    def __init__(self) -> None:
        self.given: dict[object, str] = {}
        self.taken: set[str] = set()

    def of(self, key: object, wanted: str) -> str:
        found = self.given.get(key)
        if found is None:
            found, number = wanted, 1
            while found in self.taken:
                number += 1
                found = f"{wanted}_{number}"
            self.given[key] = found
            self.taken.add(found)
        return found

    def storage(self, storage: Storage) -> str:
        return self.of(storage, storage.name or f"{_LETTERS.get(storage.kind, storage.kind)}{storage.number}")

    def buffer(self, buffer: Buffer) -> str:
        key = buffer.key
        if isinstance(key, Storage):
            return self.storage(key)
        if isinstance(key, Scratch):
            return self.of(key, key.name)
        return self.of(buffer if key is None else key, "s")


@dataclass
class _Scope:
    """Where a name for a subexpression can stand: before a line, or inside a reduction over `axes`."""

    axes: frozenset[Axis]
    names: dict[Expr, str] = field(default_factory=dict[Expr, str])
    lines: list[str] = field(default_factory=list[str])


class _Text:
    """Writes expressions. `uses` says how often each node is needed; nodes needed once, or small, get no name."""

    def __init__(self, names: _Names, scopes: list[_Scope], uses: dict[Expr, int]) -> None:
        self.names, self.scopes, self.uses = names, scopes, uses
        self.locals: dict[Axis, str] = {}
        self.free: dict[Expr, frozenset[Axis]] = {}

    def text(self, e: Expr) -> str:
        if self.uses.get(e, 0) < 2 or not isinstance(e, Call | Reduce | Cast):
            return self.plain(e)
        depth = self.depth_of(e)
        scope = self.scopes[depth]
        if e not in scope.names:
            inner, self.scopes = self.scopes, self.scopes[: depth + 1]
            text = self.plain(e)
            self.scopes = inner
            if e.dtype is int64 and len(text) < _SHORT:
                return text
            scope.names[e] = name = self.names.of(e, "v")
            scope.lines.append(f"{name} = {text}")
        return scope.names[e]

    def depth_of(self, e: Expr) -> int:
        """The outermost scope in which all axes of `e` have values."""
        free = self.axes_of(e)
        depth = len(self.scopes) - 1
        while depth and free.isdisjoint(self.scopes[depth].axes):
            depth -= 1
        return depth

    def axes_of(self, e: Expr) -> frozenset[Axis]:
        """The axes that `e` depends on."""
        found = self.free.get(e)
        if found is None:
            found = frozenset((e,)) if isinstance(e, Axis) else frozenset[Axis]().union(*map(self.axes_of, children(e)))
            found -= frozenset(e.axes) if isinstance(e, Reduce) else frozenset()
            self.free[e] = found
        return found

    def plain(self, e: Expr) -> str:
        match e:
            case Const():
                return repr(e.value) if not isinstance(e.value, bool) else str(e.value).lower()
            case Extent():
                text = str(e.size)
                return text if text.replace(".", "").replace("_", "").isalnum() else f"({text})"
            case Axis():
                return self.axis(e)
            case Local():
                return self.names.of(e, e.name or "local")
            case Call():
                return self.call(e)
            case Cast():
                return f"{e.dtype}({self.text(e.x)})"
            case Bitcast():
                return f"bits_{e.dtype}({self.text(e.x)})"
            case Load():
                return self.load(e)
            case Reduce():
                return self.reduce(e)
            case _:
                return f"<{type(e).__name__}>"

    def axis(self, axis: Axis) -> str:
        return self.locals.get(axis) or self.names.of(axis, axis.name or "i")

    def call(self, e: Call) -> str:
        args = [self.text(a) for a in e.args]
        if e.fn in _INFIX and len(args) == 2:
            return f"({args[0]} {_INFIX[e.fn]} {args[1]})"
        return f"-{args[0]}" if e.fn == "neg" else f"{e.fn}({', '.join(args)})"

    def load(self, e: Load) -> str:
        fill = repr(e.fill) if e.boundary == "constant" else e.boundary
        return f"{self.names.buffer(e.buffer)}[{self.index(e.index)}{f' | {fill}' if e.boundary else ''}]"

    def index(self, index: Sequence[Expr]) -> str:
        many = [self.text(i) for i in index]
        return ", ".join(m[1:-1] if _is_wrapped(m) else m for m in many)

    def reduce(self, e: Reduce) -> str:
        outer = dict(self.locals)
        depth = sum(len(s.axes) for s in self.scopes)
        self.locals.update({a: f"r{depth + k}" for k, a in enumerate(e.axes)})
        scope = _Scope(frozenset(e.axes))
        self.scopes.append(scope)
        body = self.text(e.body)
        self.scopes.pop()
        over = ", ".join(f"{self.axis(a)} < {a.extent}" for a in e.axes)
        self.locals = outer
        return f"{e.kind}({over}: {'; '.join([*scope.lines, body])})"


def _is_wrapped(text: str) -> bool:
    """True where the first bracket closes at the end."""
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return k == len(text) - 1 and text.startswith("(")
    return False


def _count(roots: Sequence[Expr]) -> dict[Expr, int]:
    """How many nodes, or roots, have each node as a child."""
    uses: dict[Expr, int] = {}
    seen: set[Expr] = set()
    for root in roots:
        uses[root] = uses.get(root, 0) + 1
        for e in walk(root):
            if e not in seen:
                seen.add(e)
                for c in children(e):
                    uses[c] = uses.get(c, 0) + 1
    return uses


class _Program:
    def __init__(self, arena: Arena | None = None) -> None:
        self.names, self.arena = _Names(), arena

    def program(self, program: Program) -> str:
        lines = ["program" + (f" of {', '.join(program.symbols)}" if program.symbols else "")]
        for many in (program.inputs, program.outputs, program.variables, program.constants, program.temporaries):
            lines += [f"  {s.kind} {self.names.storage(s)}: {s.type}{self.slot(s)}" for s in many]
        lines += [f"  slot {k}: {n} bytes" for k, n in enumerate(self.arena.sizes if self.arena else ())]
        lines += self.instructions(program.instructions, "  ")
        lines += [f"  note: {n}" for n in program.notes]
        return "\n".join([*lines, ""])

    def slot(self, storage: Storage) -> str:
        slot = self.arena.slot_of.get(storage) if self.arena else None
        return "" if slot is None else f" in slot {slot}"

    def instructions(self, instructions: Sequence[Instruction], indent: str) -> list[str]:
        lines: list[str] = []
        for instruction in instructions:
            lines += [indent + line for line in self.instruction(instruction)]
        return lines

    def instruction(self, instruction: Instruction) -> list[str]:
        match instruction:
            case Launch(kernel):
                return [f"launch {kernel.name}", *(f"  {line}" for line in self.kernel(kernel))]
            case Copy(source, target):
                return [f"copy {self.names.storage(target)} = {self.names.storage(source)}"]
            case Bind(symbol, source):
                return [f"bind {symbol} = {self.names.storage(source)}"]
            case Check(guard):
                return [f"check {guard.a} {guard.relation} {guard.b}"]
            case Branch(predicate, then, otherwise):
                head = f"if {self.names.storage(predicate)}"
                return [head, *self.instructions(then, "  "), "else", *self.instructions(otherwise, "  ")]
            case Loop(head, predicate, body):
                first = ["loop", *self.instructions(head, "  ")]
                return [*first, f"while {self.names.storage(predicate)}", *self.instructions(body, "  ")]

    # --- kernels ------------------------------------------------------------------------------------------------
    def kernel(self, kernel: Kernel) -> list[str]:
        match kernel:
            case LoopKernel():
                return [line for stage in kernel.stages for line in self.stage(stage)]
            case NestKernel():
                scratch = [f"scratch {self.names.buffer(b)}: {b.dtype}[{_sizes(b)}]" for b in kernel.scratch]
                return scratch + self.statements(kernel.statements)
            case RoutineKernel():
                return self.routine(kernel)

    def stage(self, stage: Stage) -> list[str]:
        index = stage.axes if stage.index is None else stage.index
        return self.element(stage.buffer, index, stage.value, stage.axes)

    def element(self, buffer: Buffer, index: Sequence[Expr], value: Expr, axes: Sequence[Axis]) -> list[str]:
        scope = _Scope(frozenset())
        text = _Text(self.names, [scope], _count([value]))
        text.locals = {a: f"i{k}" for k, a in enumerate(axes)}
        target = f"{self.names.buffer(buffer)}[{text.index(index)}]"
        over = ", ".join(f"i{k} < {a.extent}" for k, a in enumerate(axes))
        made = text.text(value)
        return [*scope.lines, f"{target} = {made}" + (f"  for {over}" if over else "")]

    def routine(self, kernel: RoutineKernel) -> list[str]:
        operands = ", ".join(map(self.names.buffer, kernel.operands))
        name = getattr(kernel.routine, "name", "") or type(kernel.routine).__name__
        target = self.names.buffer(kernel.accumulator)
        return [
            f"{target} = {name}({operands})",
            *self.element(kernel.buffer, kernel.axes, kernel.epilogue, kernel.axes),
        ]

    # --- nests --------------------------------------------------------------------------------------------------
    def statements(self, statements: Sequence[Statement]) -> list[str]:
        return [line for s in statements for line in self.statement(s)]

    def inside(self, statements: Sequence[Statement]) -> list[str]:
        return [f"  {line}" for line in self.statements(statements)]

    def statement(self, statement: Statement) -> list[str]:
        match statement:
            case For(axis, lo, hi, body, kind):
                prefix = "" if kind == "serial" else f"{kind} "
                lines, (low, high) = self.values(lo, hi)
                head = f"{prefix}for {_Text(self.names, [], {}).axis(axis)} in {low}..{high}"
                return [*lines, head, *self.inside(body)]
            case Store(buffer, index, value, combine, boundary):
                lines, (*position, made) = self.values(*index, value)
                where = f"{', '.join(position)}{f' | {boundary}' if boundary else ''}"
                return [*lines, f"{self.names.buffer(buffer)}[{where}] {combine}= {made}"]
            case Let(local, value):
                lines, (made,) = self.values(value)
                return [*lines, f"{self.names.of(local, local.name or 'local')} = {made}"]
            case If(condition, then, otherwise):
                lines, (test,) = self.values(condition)
                rest = ["else", *self.inside(otherwise)] if otherwise else []
                return [*lines, f"if {test}", *self.inside(then), *rest]
            case While(condition, body):
                return [f"while {_Text(self.names, [], {}).text(condition)}", *self.inside(body)]

    def values(self, *many: Expr) -> tuple[list[str], list[str]]:
        """Lines that name what the expressions share, and the expressions."""
        scope = _Scope(frozenset())
        text = _Text(self.names, [scope], _count(many))
        made = [text.text(e) for e in many]
        return scope.lines, [m[1:-1] if _is_wrapped(m) else m for m in made]


def _sizes(buffer: Buffer) -> str:
    return ", ".join(map(str, buffer.shape))
