"""What an op is. Everything else in the package asks an Op; nothing keeps a list of ops."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast, dataclass_transform

import numpy as np
import numpy.typing as npt

from stitchwork.errors import OpError, user_location
from stitchwork.ir import dims, dtypes
from stitchwork.ir.dims import Dim, Size
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import Content, Guard, Module, Value
from stitchwork.ir.types import TensorType, Type
from stitchwork.loops.expr import Axis, Buffer

Array = npt.NDArray[Any]
Pair = tuple[int, int]
Ints = tuple[int, ...]

REGISTRY: dict[str, type[Op]] = {}


@dataclass(frozen=True)
class Operand:
    """One operand of an op, as declared.

    dims: names of its dims ("n h w c"), any number of leading ones written `...` ("... m k"); a name that occurs twice
    means equal sizes. dtypes: accepted names and groups. same: operands with one letter must have one dtype (mixed
    ones are promoted where the op says so); empty means free. optional operands may be None; a variadic operand is a
    list; a token operand orders effects.
    """

    dims: str = "..."
    dtypes: str = "float"
    same: str = "T"
    optional: bool = False
    variadic: bool = False
    token: bool = False


def operand(
    dims: str = "...", dtypes: str = "float", same: str = "T", *, optional: bool = False, variadic: bool = False
) -> Any:
    """Declare an operand: see Operand."""
    return Operand(dims, dtypes, same, optional, variadic)


def tokens() -> Any:
    """Declare the trailing order tokens of an op with effects."""
    return Operand("", "", "", False, True, True)


def _always(op: Op, *types: TensorType) -> bool:
    return True


@dataclass(frozen=True)
class Lib:
    """A routine that can do this op whole, and when. Data only; the backend that owns the routine calls it."""

    routine: str
    on: str
    dtypes: str = "f32"
    when: Callable[..., bool] = _always


@dataclass(frozen=True)
class Sample:
    """A call that must work (or, among `rejects`, fail).

    An operand is a shape (random numbers from `domain` are made), an array taken as it is, None for an optional one
    left out, or a list of these for a variadic one. `grad` False leaves out the comparison of gradients with finite
    differences (kinks, integer data); `tolerance` multiplies the usual one.
    """

    operands: tuple[Any, ...]
    attrs: dict[str, Any]
    domain: tuple[float, float] = (-2.0, 2.0)
    dtype: str = ""
    grad: bool = True
    tolerance: float = 1.0


def sample(*operands: Any, **attrs: Any) -> Sample:
    """A sample call with the usual domain."""
    return Sample(operands, attrs)


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Op:
    """Subclass it, and the op exists: function, Graph method, checks, text form, tests and doc page.

    Class keywords: `name`, `aliases`, and `operator` (the Python operator that means this op, as in "add").
    """

    name: ClassVar[str] = ""
    aliases: ClassVar[tuple[str, ...]] = ()
    operands: ClassVar[dict[str, Operand]] = {}
    library: ClassVar[tuple[Lib, ...]] = ()
    promotes: ClassVar[bool] = False  # operands of one `same` letter are converted to a common dtype
    effect: ClassVar[str] = ""  # "" pure, "read" of a variable, "write" of one
    overwrites: ClassVar[int | None] = (
        None  # the operand that `loops` can overwrite: then it is given as the result, too
    )
    internal: ClassVar[bool] = False  # made by the compiler only: no function, no Graph method
    binds: ClassVar[str] = ""  # the attribute with a size that the run tells; the last result of `loops` holds it
    synonyms: ClassVar[dict[str, str]] = {}  # other spellings of arguments, as in {"axis": "axes"}
    alias: ClassVar[bool] = False  # the result is the first operand's elements in their order: no copy is needed
    __dataclass_fields__: ClassVar[dict[str, Any]]

    # --- the rules of an op. (*args: Any, **kwargs: Any) lets each op name its own operands ----------------------
    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        """Attributes in canonical form (negative axes resolved, pairs spelled out). `types` are the operands' types,
        None where one is left out, a tuple where it is variadic."""
        return attrs

    def infer(self, *args: Any, **kwargs: Any) -> Type | tuple[Type, ...]:
        """Result types from operand types. Raises OpError; called once, at graph building."""
        raise TypeError(f"{self.name} has no `infer` rule")

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        """The definition: what the result is, on NumPy arrays. Clarity over speed."""
        raise TypeError(f"{self.name} has no `numpy` rule")

    def compute(self, out: tuple[Axis, ...], *args: Any, **kwargs: Any) -> Any:
        """The kernel: one output element over loop axes (several results: a tuple, `out` being the first's axes)."""
        raise TypeError(f"{self.name} has no `compute` rule")

    def loops(self, b: Any, outs: tuple[Buffer, ...], *args: Any, **kwargs: Any) -> None:
        """Instead of `compute`: the op as loops with stores, written with a `stitchwork.loops.nest.Builder`."""
        raise TypeError(f"{self.name} has no `loops` rule")

    def decompose(self, *args: Any, **kwargs: Any) -> Any:
        """Instead of `compute`: the results built from other ops."""
        raise TypeError(f"{self.name} has no `decompose` rule")

    def simplify(self, *args: Any, **kwargs: Any) -> Value | None:
        """A cheaper value equal to the op's only result for these operands, bit for bit; None where there is none."""
        return None

    def vjp(self, *args: Any, **kwargs: Any) -> Sequence[Value | None]:
        """Cotangent of each operand, given the results' cotangent(s) first and then the operands."""
        raise TypeError(f"{self.name} has no `vjp` rule")

    def shape_value(self, types: tuple[Any, ...], *contents: Content, **kwargs: Any) -> Content:
        """What an integer result holds, as sizes: an int or Dim for a scalar, a tuple of them for a vector.

        Given the operands' types and what they hold; None where that is not known. Only called for integer results.
        """
        return None

    def permuted(self, permutation: Ints) -> Op | None:
        """The op that takes every (full-rank) operand with its dims permuted and gives the result permuted alike: dim d
        of the new tensors is dim permutation[d] of the old. None where there is no such op. Used to move layouts."""
        return None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        """Calls that must work. Every derived test runs on each."""
        return iter(())

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        """Calls that must fail, each with a fragment of its message."""
        return iter(())

    # --- derived, never overridden --------------------------------------------------------------------------
    def __init_subclass__(
        cls, name: str = "", aliases: tuple[str, ...] = (), operator: str = "", internal: bool = False, **kw: Any
    ) -> None:
        super().__init_subclass__(**kw)
        declared = {k: v for k, v in list(vars(cls).items()) if isinstance(v, Operand)}
        if declared:
            cls.operands = declared
        for k in declared:
            cls.__annotations__.pop(k, None)
            delattr(cls, k)
        dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
        if not name:
            return
        cls.name, cls.aliases, cls.internal = name, aliases, internal
        for key in (name, *aliases):
            if key in REGISTRY:
                raise TypeError(f"op {key!r} is already defined in {REGISTRY[key].__module__}")
        REGISTRY[name] = cls
        cls.operator = operator

    operator: ClassVar[str] = ""
    # How many operands each declared one took, where that is not one each (optional and variadic operands).
    segments: Ints | None = None

    @classmethod
    def has(cls, rule: str) -> bool:
        """True where this op defines `rule` itself or by its family."""
        return getattr(cls, rule) is not getattr(Op, rule)

    @classmethod
    def attributes(cls) -> tuple[str, ...]:
        """Names of the attributes, in declared order."""
        return tuple(f.name for f in dataclasses.fields(cls) if f.name != "segments")

    def group(self, flat: Sequence[Any]) -> list[Any]:
        """Flat operands as declared: None for one left out, a tuple for a variadic one."""
        if self.segments is None:
            return list(flat)
        grouped: list[Any] = []
        position = 0
        for spec, count in zip(self.operands.values(), self.segments, strict=True):
            part = tuple(flat[position : position + count])
            grouped.append(part if spec.variadic else part[0] if part else None)
            position += count
        return grouped

    def key(self) -> tuple[Any, ...]:
        """Equal for ops that do the same (arrays compare by identity)."""
        return (self.name, self.segments, *(_hashable(getattr(self, a)) for a in self.attributes()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def substituted(self, values: Mapping[str, Size]) -> Op:
        """This op with symbolic sizes in its attributes replaced."""
        changes = {a: _substitute(getattr(self, a), values) for a in self.attributes() if _symbolic(getattr(self, a))}
        return dataclasses.replace(self, **changes) if changes else self

    def fail(self, problem: str, *, expected: str = "", got: str = "", hint: str = "") -> OpError:
        """An error of this op, to be raised."""
        return OpError(self.name, problem, expected=expected, got=got, hint=hint)


def _symbolic(x: Any) -> bool:
    return isinstance(x, Dim) or (isinstance(x, tuple) and any(map(_symbolic, cast("tuple[Any, ...]", x))))


def _substitute(x: Any, values: Mapping[str, Size]) -> Any:
    if isinstance(x, tuple):
        return tuple(_substitute(e, values) for e in cast("tuple[Any, ...]", x))
    return dims.substitute(x, values) if isinstance(x, Dim) else x


def _hashable(x: Any) -> Any:
    return id(cast("object", x)) if isinstance(x, np.ndarray) else x


# --- checks that follow from a declaration ---------------------------------------------------------------------
def check_operands(op: type[Op], grouped: Sequence[Any], module: Module | None) -> None:
    """Rank, dim and dtype checks of grouped operand types. Raises OpError; unknown equalities become guards."""
    named = [(n, s, t) for (n, s), t in zip(op.operands.items(), grouped, strict=True) if not s.token]
    got = "  ".join(f"{n}: {_show(t)}" for n, _, t in named if t is not None)
    sizes: dict[str, tuple[Size, str]] = {}
    letters: dict[str, tuple[DType, str]] = {}
    for n, spec, t in named:
        accepted = dtypes.group(spec.dtypes)
        for label, each in _each(n, t):
            if each.dtype not in accepted:
                raise OpError(
                    op.name, f"`{label}` has dtype {each.dtype}", expected=f"one of {_compact(spec.dtypes)}", got=got
                )
            if spec.same:
                first, owner = letters.setdefault(spec.same, (each.dtype, label))
                if first is not each.dtype:
                    raise OpError(
                        op.name,
                        f"`{owner}` and `{label}` differ in dtype",
                        expected=f"{label}: {first}",
                        got=got,
                        hint="convert one with cast",
                    )
            _check_dims(op.name, label, spec, each, sizes, got, module)


def _check_dims(
    op: str,
    label: str,
    spec: Operand,
    t: TensorType,
    sizes: dict[str, tuple[Size, str]],
    got: str,
    module: Module | None,
) -> None:
    names = spec.dims.split()
    if names == ["..."]:
        return
    open_ = names[:1] == ["..."]
    names = names[1:] if open_ else names
    if len(names) > t.rank or (not open_ and len(names) != t.rank):
        expected = f"rank {len(names)}{' or more' if open_ else ''} ({spec.dims})"
        raise OpError(op, f"`{label}` has rank {t.rank}", expected=expected, got=got)
    for i, (d, size) in enumerate(zip(names, t.shape[t.rank - len(names) :], strict=True)):
        position = f"{label}[{t.rank - len(names) + i}]"
        first, owner = sizes.setdefault(d, (size, position))
        if not require_equal(op, first, size, f"{owner} == {position}", module):
            raise OpError(
                op,
                f"dimension `{d}` differs between operands",
                expected=f"{owner} == {position}",
                got=got,
                hint=f"{label} is laid out ({spec.dims})",
            )


def _each(name: str, t: Any) -> list[tuple[str, TensorType]]:
    if t is None:
        return []
    if isinstance(t, tuple):
        return [(f"{name}[{k}]", x) for k, x in enumerate(cast("tuple[TensorType, ...]", t))]
    return [(name, t)]


def _show(t: Any) -> str:
    return f"[{', '.join(map(str, cast('tuple[Any, ...]', t)))}]" if isinstance(t, tuple) else str(t)


def _compact(spec: str) -> str:
    return ", ".join(d.name for d in dtypes.group(spec))


def told_by_run(op: str, given: Any, bound: Size, prefix: str) -> Dim:
    """A size of a result that only the run tells, at most `bound`: a new one where none is given."""
    module = current_module()
    assert module is not None
    if given is None:
        return module.new_told(prefix, bound)
    if not isinstance(given, Dim) or module.bounds.get(str(given)) != bound:
        expected = "nothing, or a size made for this op"
        raise OpError(op, "`size` is not one that the run tells", expected=expected, got=str(given))
    return given


def require_equal(op: str, a: Size, b: Size, what: str, module: Module | None = None) -> bool:
    """True where the sizes agree or may agree (then a guard is added); False where they cannot."""
    if a == b:
        return True
    if isinstance(a - b, int):
        return False
    _guard(op, what, "==", a, b, module)
    return True


def require_at_least(op: str, a: Size, least: int, what: str, module: Module | None = None) -> bool:
    """True where a >= least holds or may hold (then a guard is added)."""
    if isinstance(a, int):
        return a >= least
    if not dims.is_nonnegative(a - least):
        _guard(op, what, ">=", a, least, module)
    return True


def _guard(op: str, what: str, relation: str, a: Size, b: Size, module: Module | None) -> None:
    module = module or current_module()
    if module is not None:
        module.ask_guard(Guard(op, what, relation, a, b, user_location()))


def broadcast_shapes(op: str, *shapes: tuple[Size, ...]) -> tuple[Size, ...]:
    """NumPy broadcasting of shapes; sizes that may not fit become guards. Raises OpError where they cannot."""
    rank = max(map(len, shapes), default=0)
    result: list[Size] = []
    for d in range(rank):
        size: Size = 1
        for shape in shapes:
            n = shape[d - rank + len(shape)] if d - rank + len(shape) >= 0 else 1
            if size == n or n == 1 or size == 1:
                size = n if size == 1 else size
            elif isinstance(size, int) and isinstance(n, int):
                raise OpError(
                    op,
                    "shapes do not broadcast",
                    expected="each dim equal, or 1 in one of them",
                    got="  ".join(f"[{', '.join(map(str, s))}]" for s in shapes),
                )
            else:
                _guard(op, f"broadcast of dim {d - rank}", "fits", size, n, None)
                size = dims.broadcast(size, n)
        result.append(size)
    return tuple(result)


def axis_index(op: str, axis: Any, rank: int, what: str = "axis") -> int:
    """A non-negative axis. Raises OpError where it is not one of a tensor of this rank."""
    try:
        a = axis.__index__()
    except AttributeError:
        raise OpError(op, f"`{what}` is not an integer", expected="an int", got=repr(axis)) from None
    if not -rank <= a < rank:
        raise OpError(op, f"`{what}` is out of range", expected=f"{-rank} <= {what} < {rank}", got=str(a))
    return a % rank


def axes_index(op: str, axes: Any, rank: int, what: str = "axes") -> Ints:
    """Sorted non-negative axes; None means all. Raises OpError for one out of range or given twice."""
    if axes is None:
        return tuple(range(rank))
    many: Sequence[Any] = cast("Sequence[Any]", axes) if isinstance(axes, tuple | list) else (axes,)
    found = tuple(sorted(axis_index(op, a, rank, what) for a in many))
    if len(set(found)) != len(found):
        raise OpError(op, f"`{what}` names an axis twice", got=str(tuple(many)))
    return found


# --- building -------------------------------------------------------------------------------------------------------
class _Building(threading.local):
    def __init__(self) -> None:
        self.modules: list[Module] = []


_STATE = _Building()  # set while a function is traced or a pass builds ops without operands; see `building`


class building:  # noqa: N801  # used like a function, as the context managers of contextlib
    """Ops without tensor operands go into this module inside the `with` block."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def __enter__(self) -> Module:
        _STATE.modules.append(self.module)
        return self.module

    def __exit__(self, *_: object) -> None:
        _STATE.modules.pop()


def current_module() -> Module | None:
    """The module that ops are being built into, if that is known without operands."""
    return _STATE.modules[-1] if _STATE.modules else None
