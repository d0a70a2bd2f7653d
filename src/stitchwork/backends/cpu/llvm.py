"""A small writer of LLVM IR text.

Building text directly is several times faster than building an object tree first, and compile time is part
of the product. Values are (type, reference) pairs; 64-bit integer arithmetic on literals folds here.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class V:
    """An SSA value or literal: its LLVM type and how the text refers to it."""

    type: str
    ref: str

    def __str__(self) -> str:
        return f"{self.type} {self.ref}"

    @property
    def literal(self) -> int | None:
        """The value of an `i64` literal, else None."""
        digits = self.ref[1:] if self.ref[:1] == "-" else self.ref
        return int(self.ref) if self.type == "i64" and digits.isdigit() else None


def i64(value: int) -> V:
    return V("i64", str(value))


def i32(value: int) -> V:
    return V("i32", str(value))


def vector(scalar: str, width: int) -> str:
    """The vector type of `width` lanes; the scalar type itself for one lane."""
    return scalar if width == 1 else f"<{width} x {scalar}>"


def lanes(type_: str) -> tuple[str, int]:
    """(scalar type, lane count) of a scalar or vector type."""
    if type_[0] != "<":
        return type_, 1
    count, _, scalar = type_[1:-1].partition(" x ")
    return scalar, int(count)


Int = int | V


def as_i64(x: Int) -> V:
    return i64(x) if isinstance(x, int) else x


@dataclass(eq=False)
class Phi:
    """A phi node that is still open: incoming values are added as its predecessors are written."""

    value: V
    line: int
    incoming: list[tuple[V, str]] = field(default_factory=list[tuple[V, str]])


@dataclass(eq=False)
class Loop:
    """What a `with fn.loop(...)` block sees: the induction variable and the carried values."""

    index: V
    carried: list[V]
    following: list[V] = field(default_factory=list[V])
    results: list[V] = field(default_factory=list[V])


class Function:
    """One function being written, block by block."""

    def __init__(
        self,
        module: Module,
        name: str,
        result: str,
        params: Sequence[tuple[str, str]],
        attributes: str = "",
        linkage: str = "",
    ) -> None:
        self.module, self.name, self.result, self.attributes, self.linkage = module, name, result, attributes, linkage
        self.param_text = ", ".join(f"{t} %{n}" for t, n in params)
        # A parameter's type may carry attributes ("ptr noalias"); its value's type is the first word.
        self.params = [V(t if t[0] == "<" else t.split()[0], f"%{n}") for t, n in params]
        self.lines: list[str] = ["entry:"]
        self.entry_allocas: list[str] = []
        self.prologue: list[str] = []
        self.block = "entry"
        self._next = 0
        self._phis: list[Phi] = []

    # --- values -------------------------------------------------------------------
    def fresh(self, prefix: str = "v") -> str:
        self._next += 1
        return f"{prefix}{self._next}"

    def emit(self, type_: str, text: str) -> V:
        """Append `%fresh = text` and return it as a value of the given type."""
        ref = f"%v{self._next}"
        self._next += 1
        self.lines.append(f"  {ref} = {text}")
        return V(type_, ref)

    def do(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {text}")

    # --- arithmetic -----------------------------------------------------------------
    def binary(self, opcode: str, a: V, b: V) -> V:
        return self.emit(a.type, f"{opcode} {a.type} {a.ref}, {b.ref}")

    def add(self, a: Int, b: Int) -> V:
        a, b = as_i64(a), as_i64(b)
        x, y = a.literal, b.literal
        if x is not None and y is not None:
            return i64(x + y)
        if x == 0:
            return b
        return a if y == 0 else self.emit(a.type, f"add nsw {a.type} {a.ref}, {b.ref}")

    def sub(self, a: Int, b: Int) -> V:
        a, b = as_i64(a), as_i64(b)
        x, y = a.literal, b.literal
        if x is not None and y is not None:
            return i64(x - y)
        return a if y == 0 else self.emit(a.type, f"sub nsw {a.type} {a.ref}, {b.ref}")

    def mul(self, a: Int, b: Int) -> V:
        a, b = as_i64(a), as_i64(b)
        x, y = a.literal, b.literal
        if x is not None and y is not None:
            return i64(x * y)
        if x == 0 or y == 1:
            return a
        if y == 0 or x == 1:
            return b
        return self.emit(a.type, f"mul nsw {a.type} {a.ref}, {b.ref}")

    def sdiv(self, a: Int, b: Int) -> V:
        """Signed division; for the non-negative numbers of loop arithmetic it is floor division."""
        a, b = as_i64(a), as_i64(b)
        x, y = a.literal, b.literal
        if x is not None and y:
            return i64(int(x / y) if (x < 0) != (y < 0) else x // y)
        return a if y == 1 else self.binary("sdiv", a, b)

    def srem(self, a: Int, b: Int) -> V:
        a, b = as_i64(a), as_i64(b)
        x, y = a.literal, b.literal
        if x is not None and y and x >= 0 and y > 0:
            return i64(x % y)
        return i64(0) if y == 1 else self.binary("srem", a, b)

    def minimum(self, a: Int, b: Int) -> V:
        a, b = as_i64(a), as_i64(b)
        x, y = a.literal, b.literal
        if x is not None and y is not None:
            return i64(min(x, y))
        return self.call("llvm.smin.i64", "i64", [a, b])

    def maximum(self, a: Int, b: Int) -> V:
        a, b = as_i64(a), as_i64(b)
        x, y = a.literal, b.literal
        if x is not None and y is not None:
            return i64(max(x, y))
        return self.call("llvm.smax.i64", "i64", [a, b])

    def icmp(self, predicate: str, a: V, b: V) -> V:
        return self.emit(vector("i1", lanes(a.type)[1]), f"icmp {predicate} {a.type} {a.ref}, {b.ref}")

    def fcmp(self, predicate: str, a: V, b: V) -> V:
        return self.emit(vector("i1", lanes(a.type)[1]), f"fcmp {predicate} {a.type} {a.ref}, {b.ref}")

    def select(self, condition: V, a: V, b: V) -> V:
        return self.emit(a.type, f"select {condition}, {a}, {b}")

    def convert(self, opcode: str, x: V, type_: str) -> V:
        return self.emit(type_, f"{opcode} {x} to {type_}")

    def fma(self, a: V, b: V, c: V) -> V:
        return self.intrinsic("llvm.fma", a.type, [a, b, c])

    # --- vectors ----------------------------------------------------------------------
    def splat(self, x: V, width: int) -> V:
        """All lanes equal to the scalar `x`."""
        if width == 1:
            return x
        type_ = vector(x.type, width)
        if x.ref[0] not in "%@":
            return V(type_, f"splat ({x})")
        one = self.emit(type_, f"insertelement {type_} poison, {x}, i64 0")
        return self.emit(type_, f"shufflevector {one}, {type_} poison, <{width} x i32> zeroinitializer")

    def extract(self, x: V, lane: int) -> V:
        return self.emit(lanes(x.type)[0], f"extractelement {x}, i64 {lane}")

    def insert(self, x: V, lane: int, value: V) -> V:
        return self.emit(x.type, f"insertelement {x}, {value}, i64 {lane}")

    def iota(self, width: int, scalar: str = "i64") -> V:
        """The literal vector 0, 1, ..., width - 1."""
        return V(vector(scalar, width), "<" + ", ".join(f"{scalar} {k}" for k in range(width)) + ">")

    def tail_mask(self, count: V, width: int) -> V:
        """Lanes below `count` (i64)."""
        return self.icmp("slt", self.iota(width), self.splat(count, width))

    # --- memory -----------------------------------------------------------------------
    def gep(self, base: V, index: Int, element: str) -> V:
        """Address of element `index` of an array of `element` (an LLVM type) at `base`."""
        index = as_i64(index)
        return base if index.literal == 0 else self.emit("ptr", f"getelementptr {element}, {base}, {index}")

    def load(self, type_: str, address: V, align: int, metadata: str = "") -> V:
        return self.emit(type_, f"load {type_}, {address}, align {align}{metadata}")

    def store(self, value: V, address: V, align: int) -> None:
        self.do(f"store {value}, {address}, align {align}")

    def masked_load(self, type_: str, address: V, mask: V, align: int) -> V:
        scalar, width = lanes(type_)
        name = f"llvm.masked.load.v{width}{mangle(scalar)}.p0"
        return self.call(name, type_, [V("ptr", f"align {align} {address.ref}"), mask, V(type_, "zeroinitializer")])

    def masked_store(self, value: V, address: V, mask: V, align: int) -> None:
        scalar, width = lanes(value.type)
        name = f"llvm.masked.store.v{width}{mangle(scalar)}.p0"
        self.call(name, "void", [value, V("ptr", f"align {align} {address.ref}"), mask])

    def alloca(self, type_: str, count: int = 1, align: int = 64) -> V:
        """Stack memory, allocated once at function entry whatever block is being written."""
        ref = f"%{self.fresh('stack')}"
        self.entry_allocas.append(f"  {ref} = alloca [{count} x {type_}], align {align}")
        return V("ptr", ref)

    @contextmanager
    def in_prologue(self) -> Generator[None]:
        """Write straight-line code into the entry block, before everything else, whatever block is being written."""
        lines, self.lines = self.lines, self.prologue
        yield
        self.lines = lines

    # --- calls --------------------------------------------------------------------------
    def call(self, name: str, result: str, args: Sequence[V]) -> V:
        """Call a function by name; it is declared on first use unless this module defines it."""
        self.module.declare(name, result, [a.type for a in args])
        text = f"call {result} @{name}({', '.join(map(str, args))})"
        if result == "void":
            self.do(text)
            return V("void", "")
        return self.emit(result, text)

    def intrinsic(self, stem: str, type_: str, args: Sequence[V]) -> V:
        """An overloaded intrinsic, its type suffix added: `llvm.fma` on `<16 x float>` is `llvm.fma.v16f32`."""
        scalar, width = lanes(type_)
        suffix = mangle(scalar) if width == 1 else f"v{width}{mangle(scalar)}"
        return self.call(f"{stem}.{suffix}", type_, args)

    # --- control ----------------------------------------------------------------------
    def new_block(self, prefix: str = "b") -> str:
        return self.fresh(prefix)

    def position(self, label: str) -> None:
        """Start writing the block `label`; the previous block must have been ended."""
        self.lines.append(f"{label}:")
        self.block = label

    def br(self, label: str) -> None:
        self.do(f"br label %{label}")

    def cbr(self, condition: V, then: str, otherwise: str) -> None:
        self.do(f"br {condition}, label %{then}, label %{otherwise}")

    def ret(self, value: V | None = None) -> None:
        self.do("ret void" if value is None else f"ret {value}")

    def phi(self, type_: str) -> Phi:
        value = V(type_, f"%{self.fresh('p')}")
        self.lines.append("")
        phi = Phi(value, len(self.lines) - 1)
        self._phis.append(phi)
        return phi

    @contextmanager
    def loop(self, lo: Int, hi: Int, step: Int = 1, carry: Sequence[V] = ()) -> Generator[Loop]:
        """`for index in range(lo, hi, step)` with carried values.

        The body sets `following` to the next iteration's values when it carries any; afterwards `results` holds
        the final ones. No iteration happens where lo >= hi.
        """
        lo, hi, step = as_i64(lo), as_i64(hi), as_i64(step)
        head, body, done = self.new_block("head"), self.new_block("body"), self.new_block("done")
        before = self.block
        self.br(head)
        self.position(head)
        index = self.phi("i64")
        phis = [self.phi(v.type) for v in carry]
        index.incoming.append((lo, before))
        for phi, start in zip(phis, carry, strict=True):
            phi.incoming.append((start, before))
        self.cbr(self.icmp("slt", index.value, hi), body, done)
        self.position(body)
        state = Loop(index.value, [p.value for p in phis])
        yield state
        following = self.add(index.value, step)
        index.incoming.append((following, self.block))
        for phi, v in zip(phis, state.following, strict=True):
            phi.incoming.append((v, self.block))
        self.br(head)
        self.position(done)
        state.results = [p.value for p in phis]

    @contextmanager
    def when(self, condition: V) -> Generator[None]:
        """Write the body in a block that runs only where `condition` (i1) holds."""
        then, done = self.new_block("then"), self.new_block("endif")
        self.cbr(condition, then, done)
        self.position(then)
        yield
        self.br(done)
        self.position(done)

    def text(self) -> str:
        for phi in self._phis:
            pairs = ", ".join(f"[ {v.ref}, %{label} ]" for v, label in phi.incoming)
            self.lines[phi.line] = f"  {phi.value.ref} = phi {phi.value.type} {pairs}"
        lines = [self.lines[0], *self.entry_allocas, *self.prologue, *self.lines[1:]]
        linkage = f"{self.linkage} " if self.linkage else ""
        head = f"define {linkage}{self.result} @{self.name}({self.param_text}) {self.attributes}".rstrip()
        return "\n".join([f"{head} {{", *lines, "}"])


_MANGLED = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}


def mangle(scalar: str) -> str:
    """The spelling of a scalar type inside an intrinsic's name."""
    return _MANGLED.get(scalar, scalar)


class Module:
    """Functions, declarations and globals of one translation unit."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self.declarations: dict[str, str] = {}
        self.globals: dict[str, str] = {}

    def function(
        self, name: str, result: str, params: Sequence[tuple[str, str]], attributes: str = "nounwind", linkage: str = ""
    ) -> Function:
        """Start a function; `params` are (type with attributes, name) pairs."""
        fn = Function(self, name, result, params, attributes, linkage)
        self.functions[name] = fn
        return fn

    def declare(self, name: str, result: str, types: Sequence[str]) -> None:
        self.declarations.setdefault(name, f"declare {result} @{name}({', '.join(types)})")

    def text(self) -> str:
        bodies = [f.text() for f in self.functions.values()]
        declarations = [d for n, d in self.declarations.items() if n not in self.functions]
        return "\n\n".join(["\n".join([*self.globals.values(), *declarations]), *bodies]) + "\n"
