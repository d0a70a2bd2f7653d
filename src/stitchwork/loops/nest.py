"""Loop nests: statements over loop expressions, what every code generator emits.

The scheduler makes nests from `compute` expressions; ops that are not "one output element as an expression" (scatter,
scans, sorts) write theirs with Builder. Each statement evaluates its expressions anew, in order, so loads see earlier
stores of the same nest.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import DType
from stitchwork.loops.expr import Axis, Buffer, Expr, Operand, as_index, const, extent, lift


class Local(Expr):
    """A scalar variable of a nest; reading it gives what was last assigned."""

    __slots__ = ("name",)

    def __init__(self, dtype: DType, name: str = "") -> None:
        self.dtype, self.name = dtype, name


@dataclass(eq=False)
class For:
    """Run `body` for `axis` from `lo` to `hi` (exclusive).

    kind: "serial"; "parallel" (iterations are independent and may run on any thread); "vector" (iterations are
    independent and may run as lanes).
    """

    axis: Axis
    lo: Expr
    hi: Expr
    body: list[Statement]
    kind: str = "serial"


@dataclass(eq=False)
class Store:
    """Write an element. `combine` merges with what is there ("add", "mul", "min", "max", ... of the scalar functions);
    `boundary` "drop" makes a store outside the buffer do nothing, "" promises that there is none."""

    buffer: Buffer
    index: tuple[Expr, ...]
    value: Expr
    combine: str = ""
    boundary: str = ""


@dataclass(eq=False)
class Let:
    """Set a local variable."""

    local: Local
    value: Expr


@dataclass(eq=False)
class If:
    """Run `then` where the bool `condition` holds, else `otherwise`."""

    condition: Expr
    then: list[Statement]
    otherwise: list[Statement] = field(default_factory=list["Statement"])


@dataclass(eq=False)
class While:
    """Run `body` as long as the bool `condition` holds, tested before each round."""

    condition: Expr
    body: list[Statement]


Statement = For | Store | Let | If | While


@dataclass(frozen=True, eq=False)
class Scratch:
    """Key of a buffer that lives within one iteration of the parallel loops: one copy per thread."""

    name: str


class Builder:
    """Writes a nest, statement by statement. Axes are i64 expressions; indices take ints, sizes and expressions."""

    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self.scratch: list[Buffer] = []

    def store(
        self, buffer: Buffer, index: Sequence[Operand | Size], value: Operand, combine: str = "", boundary: str = ""
    ) -> None:
        """Write `value` (converted from a Python number where it is one) at `index`."""
        indices = tuple(as_index(i) for i in index)
        assert len(indices) == buffer.rank, f"{len(indices)} indices into rank {buffer.rank}"
        self.statements.append(Store(buffer, indices, lift(value, buffer.dtype), combine, boundary))

    def let(self, value: Expr, name: str = "") -> Local:
        """A local holding `value` as it is now."""
        local = Local(value.dtype, name)
        self.statements.append(Let(local, value))
        return local

    def variable(self, value: Operand, dtype: DType, name: str = "") -> Local:
        """A local to be assigned again."""
        return self.let(lift(value, dtype), name)

    def assign(self, local: Local, value: Operand) -> None:
        """Change a local."""
        self.statements.append(Let(local, lift(value, local.dtype)))

    def array(self, dtype: DType, shape: Sequence[Size], name: str = "scratch") -> Buffer:
        """A scratch buffer, one per thread, its contents undefined at the start of each parallel iteration."""
        buffer = Buffer(dtype, tuple(shape), Scratch(name))
        self.scratch.append(buffer)
        return buffer

    @contextmanager
    def loop(self, hi: Size | Expr, lo: Size | Expr = 0, kind: str = "serial", name: str = "") -> Generator[Axis]:
        """`for axis in range(lo, hi)`."""
        axis = Axis(hi if not isinstance(hi, Expr) else -1, name)  # -1: the extent is known at run time only
        with self._body() as body:
            yield axis
        low = lo if isinstance(lo, Expr) else extent(lo)
        high = hi if isinstance(hi, Expr) else extent(hi)
        self.statements.append(For(axis, low, high, body, kind))

    @contextmanager
    def nest(self, sizes: Sequence[Size], kind: str = "parallel") -> Generator[tuple[Axis, ...]]:
        """Nested loops over all positions of a shape."""
        if not sizes:
            yield ()
            return
        with self.loop(sizes[0], kind=kind) as first, self.nest(sizes[1:], kind) as rest:
            yield (first, *rest)

    @contextmanager
    def when(self, condition: Expr) -> Generator[None]:
        """The statements inside run only where `condition` holds."""
        with self._body() as body:
            yield
        self.statements.append(If(condition, body))

    @contextmanager
    def otherwise(self) -> Generator[None]:
        """The other branch of the `when` just before."""
        before = self.statements[-1]
        assert isinstance(before, If), "otherwise() must follow when()"
        with self._body() as body:
            yield
        before.otherwise = body

    @contextmanager
    def while_(self, condition: Expr) -> Generator[None]:
        """Repeat as long as `condition`, re-evaluated each round, holds."""
        with self._body() as body:
            yield
        self.statements.append(While(condition, body))

    @contextmanager
    def _body(self) -> Generator[list[Statement]]:
        outer, self.statements = self.statements, []
        body = self.statements
        yield body
        self.statements = outer


def literal(value: int, dtype: DType) -> Expr:
    """An integer literal of a dtype."""
    return const(value, dtype)
