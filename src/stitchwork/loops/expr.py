"""Loop expressions: one output element of an op as an expression over loop axes.

Fusion substitutes these into each other; every code generator emits them. An expression is immutable and compared by
identity; sharing a node means computing it once.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stitchwork.ir import dims
from stitchwork.ir.dims import Dim, Size
from stitchwork.ir.dtypes import DType, bool_, int32, int64, real_of

Scalar = bool | int | float | complex


class Expr:
    """A scalar of some dtype. Python's operators build arithmetic; comparisons give bool expressions."""

    __slots__ = ("dtype",)
    dtype: DType

    def __add__(self, o: Operand) -> Expr:
        return arithmetic("add", self, o)

    def __radd__(self, o: Operand) -> Expr:
        return arithmetic("add", o, self)

    def __sub__(self, o: Operand) -> Expr:
        return arithmetic("sub", self, o)

    def __rsub__(self, o: Operand) -> Expr:
        return arithmetic("sub", o, self)

    def __mul__(self, o: Operand) -> Expr:
        return arithmetic("mul", self, o)

    def __rmul__(self, o: Operand) -> Expr:
        return arithmetic("mul", o, self)

    def __truediv__(self, o: Operand) -> Expr:
        return arithmetic("div", self, o)

    def __rtruediv__(self, o: Operand) -> Expr:
        return arithmetic("div", o, self)

    def __floordiv__(self, o: Operand) -> Expr:
        return arithmetic("floordiv", self, o)

    def __rfloordiv__(self, o: Operand) -> Expr:
        return arithmetic("floordiv", o, self)

    def __mod__(self, o: Operand) -> Expr:
        return arithmetic("mod", self, o)

    def __rmod__(self, o: Operand) -> Expr:
        return arithmetic("mod", o, self)

    def __neg__(self) -> Expr:
        return Call("neg", (self,), self.dtype)

    def __and__(self, o: Operand) -> Expr:
        return arithmetic("and", self, o)

    def __or__(self, o: Operand) -> Expr:
        return arithmetic("or", self, o)

    def __xor__(self, o: Operand) -> Expr:
        return arithmetic("xor", self, o)

    def __invert__(self) -> Expr:
        return Call("not", (self,), self.dtype)

    def __lt__(self, o: Operand) -> Expr:
        return compare("lt", self, o)

    def __le__(self, o: Operand) -> Expr:
        return compare("le", self, o)

    def __gt__(self, o: Operand) -> Expr:
        return compare("gt", self, o)

    def __ge__(self, o: Operand) -> Expr:
        return compare("ge", self, o)

    def eq(self, o: Operand) -> Expr:
        return compare("eq", self, o)

    def ne(self, o: Operand) -> Expr:
        return compare("ne", self, o)


Operand = Expr | Scalar


class Const(Expr):
    """A literal."""

    __slots__ = ("value",)

    def __init__(self, value: Scalar, dtype: DType) -> None:
        self.value, self.dtype = value, dtype


class Extent(Expr):
    """A symbolic size as an i64."""

    __slots__ = ("size",)

    def __init__(self, size: Dim) -> None:
        self.size, self.dtype = size, int64


class Axis(Expr):
    """A loop variable, i64, running over [0, extent)."""

    __slots__ = ("extent", "name")

    def __init__(self, extent: Size, name: str = "") -> None:
        self.extent, self.name, self.dtype = extent, name, int64


class Call(Expr):
    """A scalar function of FUNCTIONS. Arguments of arithmetic have one dtype; `select` takes a bool first."""

    __slots__ = ("args", "fn")

    def __init__(self, fn: str, args: tuple[Expr, ...], dtype: DType) -> None:
        self.fn, self.args, self.dtype = fn, args, dtype


class RareSelect(Call):
    """A `select` whose last argument costs much and is needed for unusual numbers only.

    A code generator may branch around it where no lane needs it; treating it as any select is right too.
    """

    __slots__ = ()

    def __init__(self, common: Expr, usual: Expr, rare: Expr) -> None:
        super().__init__("select", (common, usual, rare), usual.dtype)


class Cast(Expr):
    """Value conversion as NumPy's astype does it; floats out of an integer's range give an unspecified number."""

    __slots__ = ("x",)

    def __init__(self, x: Expr, dtype: DType) -> None:
        self.x, self.dtype = x, dtype


class Bitcast(Expr):
    """The bits of `x` read as another type of the same width."""

    __slots__ = ("x",)

    def __init__(self, x: Expr, dtype: DType) -> None:
        self.x, self.dtype = x, dtype


class Load(Expr):
    """An element of a buffer.

    `boundary` says what an index outside the buffer reads: "" means it cannot happen; "constant" reads `fill`;
    "clamp", "reflect" (edge not repeated), "symmetric" (edge repeated), "periodic" and "antiperiodic" (periodic with
    the sign flipped once per wrapped dim) map it back inside. The mapping is per dim and holds for any distance.
    """

    __slots__ = ("boundary", "buffer", "fill", "index")

    def __init__(self, buffer: Buffer, index: tuple[Expr, ...], boundary: str = "", fill: Scalar = 0) -> None:
        self.buffer, self.index, self.boundary, self.fill, self.dtype = buffer, index, boundary, fill, buffer.dtype


class Reduce(Expr):
    """`body` combined over `axes`; kind is sum, product, max, min, fmax, fmin, and, or, argmax or argmin.

    max and min propagate NaN, fmax and fmin skip it. argmax and argmin give the i64 position of the first extreme
    element in row-major order over `axes`; NaN is never chosen, and where nothing can be chosen the result is -1.
    """

    __slots__ = ("axes", "body", "kind")

    def __init__(self, kind: str, body: Expr, axes: tuple[Axis, ...]) -> None:
        self.kind, self.body, self.axes = kind, body, axes
        self.dtype = int64 if kind.startswith("arg") else body.dtype


class Buffer:
    """A tensor operand as seen by `compute`. `key` identifies where the data is (a graph value, a stage, ...)."""

    __slots__ = ("dtype", "key", "shape")

    def __init__(self, dtype: DType, shape: tuple[Size, ...], key: object = None) -> None:
        self.dtype, self.shape, self.key = dtype, shape, key

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __getitem__(self, index: Any) -> Expr:
        """The element at these indices, all known to be inside."""
        return Load(self, _indices(self, index))

    def at(self, *index: Operand, boundary: str, fill: Scalar = 0) -> Expr:
        """The element at these indices, which may lie outside: see Load."""
        return Load(self, _indices(self, index), boundary, fill)

    def broadcast(self, out: Sequence[Expr], shape: Sequence[Size] | None = None) -> Expr:
        """The element that NumPy broadcasting pairs with output position `out`.

        `shape` is the output's shape where `out` are not plain axes. Against a size that is not known to be 1 or equal,
        the index is multiplied by 0 or 1 at run time.
        """
        sizes = [a.extent for a in out if isinstance(a, Axis)] if shape is None else list(shape)
        skip = len(out) - self.rank
        return Load(self, tuple(broadcast_index(out[skip + d], sizes[skip + d], n) for d, n in enumerate(self.shape)))


def broadcast_index(position: Expr, size: Size, own: Size) -> Expr:
    """Index into a dim of size `own` for an output position along a dim of size `size`."""
    if isinstance(own, int) and own == 1:
        return Const(0, int64)
    if own == size or isinstance(own, int):
        return position
    return position * extent(dims.minimum(own - 1, 1))


def _indices(buffer: Buffer, index: Any) -> tuple[Expr, ...]:
    many = typing.cast("tuple[Any, ...]", index) if isinstance(index, tuple) else (index,)
    assert len(many) == buffer.rank, f"{len(many)} indices into rank {buffer.rank}"
    return tuple(as_index(i) for i in many)


def as_index(x: Any) -> Expr:
    """An i64 expression from an int, a Dim or an expression of any integer type."""
    if isinstance(x, Expr):
        return x if x.dtype is int64 else cast(x, int64)
    return extent(x)


def extent(size: Size) -> Expr:
    """A size as an i64 expression."""
    return Extent(size) if isinstance(size, Dim) else Const(int(size), int64)


def const(value: Scalar, dtype: DType) -> Expr:
    """A literal of a dtype."""
    return Const(value, dtype)


def lift(x: Operand, dtype: DType) -> Expr:
    """An expression from an expression or a Python number."""
    return x if isinstance(x, Expr) else Const(x, dtype)


# Scalar functions and their arity. Floats follow IEEE 754; integers wrap; a shift by the width or more gives 0 (or the
# sign); integer division by 0 gives 0. `div` on integers truncates, `floordiv` and `mod` round down as Python does.
FUNCTIONS: dict[str, int] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "floordiv", "mod", "rem", "pow", "atan2"), 2),
    **dict.fromkeys(("max", "min", "fmax", "fmin", "copysign", "nextafter"), 2),
    **dict.fromkeys(("and", "or", "xor", "shl", "shr"), 2),
    **dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne"), 2),
    **dict.fromkeys(("neg", "abs", "not", "popcount", "floor", "ceil", "trunc", "rint", "round", "sqrt", "clz"), 1),
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos"), 1),
    **dict.fromkeys(("atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "cbrt", "rsqrt"), 1),
    **dict.fromkeys(("isnan", "isinf", "isfinite", "signbit", "real", "imag", "conj"), 1),
    "complex": 2,
    "select": 3,
    "fma": 3,
}


def arithmetic(fn: str, a: Operand, b: Operand) -> Expr:
    """A two-argument function; a Python number takes the other's dtype. Index arithmetic on literals folds."""
    dtype = a.dtype if isinstance(a, Expr) else b.dtype if isinstance(b, Expr) else int64
    x, y = lift(a, dtype), lift(b, dtype)
    if dtype is int64:
        folded = _fold_index(fn, x, y)
        if folded is not None:
            return folded
    assert x.dtype is y.dtype, f"{fn} of {x.dtype} and {y.dtype}"
    return Call(fn, (x, y), dtype)


def _fold_index(fn: str, x: Expr, y: Expr) -> Expr | None:
    a = x.value if isinstance(x, Const) else x.size if isinstance(x, Extent) else None
    b = y.value if isinstance(y, Const) else y.size if isinstance(y, Extent) else None
    if fn == "add" and (a == 0 or b == 0):
        return y if a == 0 else x
    if fn == "sub" and b == 0:
        return x
    if fn == "mul" and (a == 1 or b == 1):
        return y if a == 1 else x
    if fn == "mul" and (a == 0 or b == 0):
        return Const(0, int64)
    if fn == "floordiv" and b == 1:
        return x
    if fn == "mod" and b == 1:
        return Const(0, int64)
    if (
        not isinstance(a, int | Dim)
        or not isinstance(b, int | Dim)
        or fn not in _SIZE_ARITHMETIC
        or (b == 0 and fn in ("floordiv", "mod"))
    ):
        return None
    return extent(_SIZE_ARITHMETIC[fn](a, b))


_SIZE_ARITHMETIC: dict[str, Callable[[Size, Size], Size]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": dims.floordiv,
    "mod": dims.mod,
    "min": dims.minimum,
    "max": dims.maximum,
}


def compare(fn: str, a: Operand, b: Operand) -> Expr:
    """A comparison, of dtype bool."""
    dtype = a.dtype if isinstance(a, Expr) else b.dtype if isinstance(b, Expr) else int64
    return Call(fn, (lift(a, dtype), lift(b, dtype)), bool_)


def call(fn: str, *args: Operand) -> Expr:
    """A scalar function of FUNCTIONS applied to expressions; Python numbers take the first expression's dtype."""
    assert FUNCTIONS[fn] == len(args), fn
    if fn in ("lt", "le", "gt", "ge", "eq", "ne"):
        return compare(fn, *args)
    if len(args) == 2 and fn != "complex":
        return arithmetic(fn, *args)
    dtype = next(a.dtype for a in args if isinstance(a, Expr))
    if fn in ("isnan", "isinf", "isfinite", "signbit"):
        result = bool_
    elif fn in ("real", "imag") or (fn == "abs" and dtype.is_complex):
        result = real_of(dtype)
    elif fn in ("popcount", "clz"):
        result = dtype if dtype.is_integer else int32
    else:
        result = dtype
    return Call(fn, tuple(lift(a, dtype) for a in args), result)


def complex_of(real: Expr, imag: Expr, dtype: DType) -> Expr:
    """A complex number of complex type `dtype` from its parts."""
    return Call("complex", (real, imag), dtype)


def where(condition: Expr, a: Operand, b: Operand) -> Expr:
    """`a` where the bool `condition` holds, else `b`; both may be evaluated."""
    dtype = a.dtype if isinstance(a, Expr) else b.dtype if isinstance(b, Expr) else int64
    return Call("select", (condition, lift(a, dtype), lift(b, dtype)), dtype)


def cast(x: Expr, dtype: DType) -> Expr:
    """`x` converted to `dtype`; `x` itself where it has it already."""
    if x.dtype is dtype:
        return x
    if isinstance(x, Const) and x.dtype is int64 and dtype.kind in "iuf":
        return Const(x.value, dtype)
    return Cast(x, dtype)


def bitcast(x: Expr, dtype: DType) -> Expr:
    """The bits of `x` as a type of the same width."""
    return x if x.dtype is dtype else Bitcast(x, dtype)


def maximum(a: Operand, b: Operand) -> Expr:
    """The larger, NaN where either is NaN."""
    return arithmetic("max", a, b)


def minimum(a: Operand, b: Operand) -> Expr:
    """The smaller, NaN where either is NaN."""
    return arithmetic("min", a, b)


def reduce(kind: str, body: Expr, *axes: Axis) -> Expr:
    """`body` combined over axes that occur in it: see Reduce."""
    return Reduce(kind, body, axes)


def total(body: Expr, *axes: Axis) -> Expr:
    """Sum over axes."""
    return Reduce("sum", body, axes)


def axes_for(shape: Sequence[Size], prefix: str = "i") -> tuple[Axis, ...]:
    """One axis per dim."""
    return tuple(Axis(n, f"{prefix}{k}") for k, n in enumerate(shape))


def children(e: Expr) -> tuple[Expr, ...]:
    """The expressions directly under `e`."""
    match e:
        case Call():
            return e.args
        case Load():
            return e.index
        case Cast() | Bitcast():
            return (e.x,)
        case Reduce():
            return (e.body,)
        case _:
            return ()


def rebuild(e: Expr, parts: tuple[Expr, ...]) -> Expr:
    """`e` with other children; itself where they are the same."""
    if all(a is b for a, b in zip(parts, children(e), strict=True)):
        return e
    match e:
        case RareSelect():
            return RareSelect(*parts)
        case Call():
            if e.dtype is int64 and len(parts) == 2:
                return arithmetic(e.fn, *parts)
            return Call(e.fn, parts, e.dtype)
        case Load():
            return Load(e.buffer, parts, e.boundary, e.fill)
        case Cast():
            return cast(parts[0], e.dtype)
        case Bitcast():
            return Bitcast(parts[0], e.dtype)
        case Reduce():
            return Reduce(e.kind, parts[0], e.axes)
        case _:
            return e


def transform(e: Expr, leaf: Callable[[Expr], Expr | None], memo: dict[Expr, Expr] | None = None) -> Expr:
    """`e` with every node for which `leaf` gives an expression replaced by it, top down; sharing is kept."""
    memo = {} if memo is None else memo

    def go(x: Expr) -> Expr:
        found = memo.get(x)
        if found is None:
            found = leaf(x)
            if found is None:
                found = rebuild(x, tuple(map(go, children(x))))
            memo[x] = found
        return found

    return go(e)


def substitute(e: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """`e` with some nodes (axes, usually) replaced."""
    return transform(e, values.get)


def walk(e: Expr) -> list[Expr]:
    """Every node once, children before parents."""
    seen: dict[Expr, None] = {}

    def go(x: Expr) -> None:
        if x not in seen:
            for c in children(x):
                go(c)
            seen[x] = None

    go(e)
    return list(seen)


def loads(e: Expr) -> list[Load]:
    """Every load once."""
    return [x for x in walk(e) if isinstance(x, Load)]
