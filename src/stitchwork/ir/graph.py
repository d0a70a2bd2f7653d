"""The graph IR: operations in SSA form, blocks, and the module that owns them.

A module has one body block. Its arguments are the program's inputs. Operations with regions (if, while, for) hold
blocks, which may use values of the blocks around them. Effects are ordered by token values, so nothing else is needed
to move, merge or drop operations safely.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from stitchwork.errors import GraphError
from stitchwork.ir.dims import Dim, Size, symbol
from stitchwork.ir.dtypes import DType
from stitchwork.ir.types import TensorType, TokenType, Type

if TYPE_CHECKING:
    from stitchwork.ops._op import Op

Array = npt.NDArray[Any]
GuardKey = tuple[str, str, Size, Size]
Content = Any  # nested tuples of sizes: what an integer tensor holds, as far as it is known symbolically

# Python's operators on values (`x + y`), filled in by the ops that declare them.
OPERATORS: dict[str, Callable[..., Any]] = {}


class Value:
    """A tensor or token of a graph: a result of an operation, or an argument of a block."""

    __slots__ = ("__weakref__", "block", "content", "name", "op", "type")
    __array_ufunc__ = None  # `array + value` must become a graph op, not an object array

    def __init__(self, type_: Type, block: Block, op: Operation | None = None, name: str = "") -> None:
        self.type, self.block, self.op, self.name = type_, block, op, name
        self.content: Content = None

    @property
    def tensor(self) -> TensorType:
        """The type, known to be a tensor's."""
        assert isinstance(self.type, TensorType)
        return self.type

    @property
    def shape(self) -> tuple[Size, ...]:
        return self.tensor.shape

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    @property
    def rank(self) -> int:
        return len(self.tensor.shape)

    @property
    def is_token(self) -> bool:
        return isinstance(self.type, TokenType)

    @property
    def module(self) -> Module:
        return self.block.module

    def __repr__(self) -> str:
        source = self.op.op.name if self.op is not None else "argument"
        return f"<{source}{' ' + self.name if self.name else ''}: {self.type}>"

    def __bool__(self) -> bool:
        raise GraphError(
            "tensor",
            "a tensor of a graph has no truth value while the graph is being built",
            got=repr(self),
            hint="use if_else or select to choose by its value at run time",
        )

    def __iter__(self) -> Iterator[Value]:
        raise GraphError("tensor", "a tensor of a graph cannot be iterated", got=repr(self), hint="use split")

    def __len__(self) -> int:
        raise GraphError("tensor", "len() of a tensor of a graph", got=repr(self), hint="use .shape")

    # Operators: each forwards to the op that declared it.
    def __add__(self, other: Any) -> Value:
        return OPERATORS["add"](self, other)

    def __radd__(self, other: Any) -> Value:
        return OPERATORS["add"](other, self)

    def __sub__(self, other: Any) -> Value:
        return OPERATORS["sub"](self, other)

    def __rsub__(self, other: Any) -> Value:
        return OPERATORS["sub"](other, self)

    def __mul__(self, other: Any) -> Value:
        return OPERATORS["mul"](self, other)

    def __rmul__(self, other: Any) -> Value:
        return OPERATORS["mul"](other, self)

    def __truediv__(self, other: Any) -> Value:
        return OPERATORS["truediv"](self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return OPERATORS["truediv"](other, self)

    def __floordiv__(self, other: Any) -> Value:
        return OPERATORS["floordiv"](self, other)

    def __rfloordiv__(self, other: Any) -> Value:
        return OPERATORS["floordiv"](other, self)

    def __mod__(self, other: Any) -> Value:
        return OPERATORS["mod"](self, other)

    def __rmod__(self, other: Any) -> Value:
        return OPERATORS["mod"](other, self)

    def __pow__(self, other: Any) -> Value:
        return OPERATORS["pow"](self, other)

    def __rpow__(self, other: Any) -> Value:
        return OPERATORS["pow"](other, self)

    def __matmul__(self, other: Any) -> Value:
        return OPERATORS["matmul"](self, other)

    def __rmatmul__(self, other: Any) -> Value:
        return OPERATORS["matmul"](other, self)

    def __and__(self, other: Any) -> Value:
        return OPERATORS["and"](self, other)

    def __rand__(self, other: Any) -> Value:
        return OPERATORS["and"](other, self)

    def __or__(self, other: Any) -> Value:
        return OPERATORS["or"](self, other)

    def __ror__(self, other: Any) -> Value:
        return OPERATORS["or"](other, self)

    def __xor__(self, other: Any) -> Value:
        return OPERATORS["xor"](self, other)

    def __rxor__(self, other: Any) -> Value:
        return OPERATORS["xor"](other, self)

    def __lshift__(self, other: Any) -> Value:
        return OPERATORS["lshift"](self, other)

    def __rshift__(self, other: Any) -> Value:
        return OPERATORS["rshift"](self, other)

    def __lt__(self, other: Any) -> Value:
        return OPERATORS["lt"](self, other)

    def __le__(self, other: Any) -> Value:
        return OPERATORS["le"](self, other)

    def __gt__(self, other: Any) -> Value:
        return OPERATORS["gt"](self, other)

    def __ge__(self, other: Any) -> Value:
        return OPERATORS["ge"](self, other)

    def __neg__(self) -> Value:
        return OPERATORS["neg"](self)

    def __abs__(self) -> Value:
        return OPERATORS["abs"](self)

    def __invert__(self) -> Value:
        return OPERATORS["invert"](self)

    def __getitem__(self, index: Any) -> Value:
        return OPERATORS["getitem"](self, index)


@dataclass(eq=False, slots=True)
class Operation:
    """One op applied to values."""

    op: Op
    operands: tuple[Value, ...]
    block: Block
    regions: tuple[Block, ...] = ()
    results: tuple[Value, ...] = ()
    location: str = ""
    guards: tuple[GuardKey, ...] = ()  # of the module's guards, those that this operation asks for

    @property
    def tokens(self) -> tuple[Value, ...]:
        """The order tokens among the operands."""
        return tuple(v for v in self.operands if v.is_token)


@dataclass(eq=False)
class Block:
    """A list of operations with arguments and results; a region of an operation, or a module's body."""

    module: Module
    parent: Block | None = None
    arguments: list[Value] = field(default_factory=list[Value])
    operations: list[Operation] = field(default_factory=list[Operation])
    results: tuple[Value, ...] = ()

    def add_argument(self, type_: Type, name: str = "") -> Value:
        value = Value(type_, self, None, name)
        self.arguments.append(value)
        return value

    def append(
        self,
        op: Op,
        operands: tuple[Value, ...],
        types: tuple[Type, ...],
        regions: tuple[Block, ...] = (),
        location: str = "",
    ) -> Operation:
        operation = Operation(op, operands, self, regions, (), location, self.module.take_asked())
        operation.results = tuple(Value(t, self, operation) for t in types)
        self.operations.append(operation)
        if op.binds:
            self.module.note_told(str(getattr(op, op.binds)), self)
        return operation

    def encloses(self, other: Block) -> bool:
        """True where values of this block can be used in `other`."""
        inner: Block | None = other
        while inner is not None:
            if inner is self:
                return True
            inner = inner.parent
        return False


@dataclass(eq=False)
class VariableState:
    """State that outlives a run: its declaration here, its storage in the runtime."""

    name: str
    type: TensorType
    initial: Array


@dataclass(frozen=True)
class Guard:
    """Two sizes that must agree at run time and could not be proven equal, or a size that must not be negative.

    `relation` is "==", ">=" or "fits" (broadcast: equal, or one of them 1).
    """

    op: str
    what: str
    relation: str
    a: Size
    b: Size
    location: str = ""

    def __str__(self) -> str:
        return f"guard {self.op}: {self.a} {self.relation} {self.b}  # {self.what}"


@dataclass(eq=False)
class Module:
    """A program: body, variables and the facts about sizes that each run must check."""

    name: str = "main"
    guards: dict[tuple[str, str, Size, Size], Guard] = field(default_factory=dict[Any, Guard])
    variables: dict[str, VariableState] = field(default_factory=dict[str, VariableState])
    bounds: dict[str, Size] = field(default_factory=dict[str, Size])  # sizes that only a run tells, and what they
    # cannot exceed: see stitchwork.ir.told

    def __post_init__(self) -> None:
        self.body = Block(self)
        self._insertion: list[Block] = [self.body]
        self._order: list[tuple[Value, ...]] = [()]
        self._next_symbol = 0
        self._asked: list[GuardKey] = []
        self._homes: dict[str, list[Block]] = {}  # of `bounds`, the blocks that find each

    @property
    def block(self) -> Block:
        """Where new operations go."""
        return self._insertion[-1]

    @property
    def order(self) -> tuple[Value, ...]:
        """Tokens that operations created now must follow."""
        return self._order[-1]

    @contextmanager
    def inside(self, block: Block) -> Generator[Block]:
        """New operations go into `block`."""
        self._insertion.append(block)
        self._order.append(())
        try:
            yield block
        finally:
            self._order.pop()
            self._insertion.pop()

    @contextmanager
    def following(self, tokens: tuple[Value, ...]) -> Generator[None]:
        """New operations follow these tokens too."""
        self._order.append(tuple(dict.fromkeys(self.order + tokens)))
        try:
            yield
        finally:
            self._order.pop()

    def new_block(self, parent: Block | None = None) -> Block:
        return Block(self, parent or self.block)

    def fresh_symbol(self, prefix: str = "d") -> str:
        """A symbol name not given by the user (users' names are identifiers; these hold a dot)."""
        self._next_symbol += 1
        return f"{prefix}.{self._next_symbol}"

    def new_told(self, prefix: str, bound: Size) -> Dim:
        """A size that only a run tells, and what it cannot exceed."""
        name = self.fresh_symbol(prefix)
        self.bounds[name] = bound
        return symbol(name)

    def note_told(self, name: str, block: Block) -> None:
        """An operation of `block` finds a size of `bounds`."""
        self._homes.setdefault(name, []).append(block)

    def is_visible(self, name: str, block: Block) -> bool:
        """False where a size is found only inside blocks that do not enclose this one."""
        homes = self._homes.get(name)
        return homes is None or any(home.encloses(block) for home in homes)

    def add_guard(self, guard: Guard) -> GuardKey:
        key = (guard.op, guard.relation, guard.a, guard.b)
        self.guards.setdefault(key, guard)
        return key

    def ask_guard(self, guard: Guard) -> None:
        """Add a guard that belongs to the operation that is being made."""
        self._asked.append(self.add_guard(guard))

    def take_asked(self) -> tuple[GuardKey, ...]:
        """The guards asked for since the last operation was made."""
        asked, self._asked = tuple(dict.fromkeys(self._asked)), []
        return asked

    def clone_frame(self) -> Module:
        """An empty module with this one's name, guards, variables and symbol counter."""
        other = Module(self.name, dict(self.guards), dict(self.variables), dict(self.bounds))
        other._next_symbol = self._next_symbol
        return other


def constant_array(value: Value) -> Array | None:
    """The array of a value that a `constant` operation made, else None."""
    if value.op is None:
        return None
    array = getattr(value.op.op, "value", None)
    return cast("Array", array) if isinstance(array, np.ndarray) else None
