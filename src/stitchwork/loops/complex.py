"""Complex numbers as pairs: code generators know real arithmetic only.

A complex buffer is seen as a real one with a further dim of size 2 (real part, imaginary part), which is how it is in
memory.
"""

from __future__ import annotations

from stitchwork.errors import CompileError
from stitchwork.ir.dtypes import bool_, real_of
from stitchwork.loops.expr import (
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Reduce,
    call,
    cast,
    children,
    const,
    extent,
    rebuild,
    walk,
    where,
)
from stitchwork.loops.kernel import LoopKernel, Stage
from stitchwork.loops.nest import For, If, Let, Local, Statement, Store, While

Pair = tuple[Expr, Expr]


def has_complex(e: Expr) -> bool:
    """True where a complex number occurs in the expression."""
    return any(x.dtype.is_complex for x in walk(e))


def split_kernel(kernel: LoopKernel) -> list[LoopKernel]:
    """The kernel in real arithmetic: one where the result is real, else one for each part. Only kernels with a single
    stage can be complex (the stitcher keeps them apart)."""
    root = kernel.root
    if not root.buffer.dtype.is_complex and not has_complex(root.value):
        return [kernel]
    splitter = Splitter()
    if not root.buffer.dtype.is_complex:
        return [
            LoopKernel([Stage(root.buffer, root.axes, splitter.real(root.value), root.name)], kernel.name, kernel.ops)
        ]
    view = real_view(root.buffer)
    made: list[LoopKernel] = []
    for part, value in enumerate(splitter.split(root.value)):
        index = (*root.axes, extent(part))
        made.append(LoopKernel([Stage(view, root.axes, value, root.name, index)], kernel.name, kernel.ops))
    return made


def real_view(buffer: Buffer) -> Buffer:
    """A complex buffer as a real one with a last dim of 2."""
    return Buffer(real_of(buffer.dtype), (*buffer.shape, 2), buffer.key)


class Splitter:
    """Rewrites expressions; shared nodes stay shared."""

    def __init__(self) -> None:
        self.pairs: dict[Expr, Pair] = {}
        self.reals: dict[Expr, Expr] = {}
        self.views: dict[object, Buffer] = {}
        self.locals: dict[Local, tuple[Local, Local]] = {}

    def real(self, e: Expr) -> Expr:
        """A real expression without complex numbers inside."""
        found = self.reals.get(e)
        if found is None:
            found = self.reals[e] = self._real(e)
        return found

    def _real(self, e: Expr) -> Expr:
        if isinstance(e, Call) and e.args and any(a.dtype.is_complex for a in e.args):
            return self._function(e)
        if isinstance(e, Cast) and e.x.dtype.is_complex:
            a, b = self.split(e.x)
            return a.ne(0) | b.ne(0) if e.dtype is bool_ else cast(a, e.dtype)
        return rebuild(e, tuple(map(self.real, children(e))))

    def _function(self, e: Call) -> Expr:
        """Functions of complex numbers with real results."""
        pairs = [self.split(a) for a in e.args if a.dtype.is_complex]
        a, b = pairs[0]
        match e.fn:
            case "real":
                return a
            case "imag":
                return b
            case "abs":
                return hypot(a, b)
            case "eq":
                return a.eq(pairs[1][0]) & b.eq(pairs[1][1])
            case "ne":
                return a.ne(pairs[1][0]) | b.ne(pairs[1][1])
            case "isnan":
                return call("isnan", a) | call("isnan", b)
            case "isinf":
                return call("isinf", a) | call("isinf", b)
            case "isfinite":
                return call("isfinite", a) & call("isfinite", b)
            case "lt" | "le" | "gt" | "ge":  # NumPy's order: by real part, then by imaginary part
                strict = Call(e.fn[:1] + "t", (a, pairs[1][0]), bool_)
                return strict | (a.eq(pairs[1][0]) & Call(e.fn, (b, pairs[1][1]), bool_))
            case _:
                raise CompileError(e.fn, "not defined for complex numbers")

    def split(self, e: Expr) -> Pair:
        """Real and imaginary part of a complex expression."""
        found = self.pairs.get(e)
        if found is None:
            found = self.pairs[e] = self._split(e)
        return found

    def _split(self, e: Expr) -> Pair:
        part = real_of(e.dtype)
        match e:
            case Const():
                z = complex(e.value)
                return const(z.real, part), const(z.imag, part)
            case Load():
                return self._load(e, 0), self._load(e, 1)
            case Cast():
                if not e.x.dtype.is_complex:
                    return cast(self.real(e.x), part), const(0.0, part)
                a, b = self.split(e.x)
                return cast(a, part), cast(b, part)
            case Local():
                if e not in self.locals:
                    self.locals[e] = (Local(part, e.name), Local(part, e.name))
                return self.locals[e]
            case Reduce():
                if e.kind != "sum":
                    raise CompileError(e.kind, "reduction of complex numbers has no loop form", expected="sum")
                a, b = self.split(e.body)
                return Reduce("sum", a, e.axes), Reduce("sum", b, e.axes)
            case Call():
                return self._call(e)
            case _:
                raise CompileError("complex", f"no complex form of {type(e).__name__}")

    def _load(self, e: Load, part: int) -> Expr:
        view = self.views.setdefault(id(e.buffer), real_view(e.buffer))
        fill = complex(e.fill)
        index = (*map(self.real, e.index), extent(part))
        return Load(view, index, e.boundary, fill.imag if part else fill.real)

    def _call(self, e: Call) -> Pair:
        if e.fn == "select":
            condition = self.real(e.args[0])
            (a, b), (c, d) = self.split(e.args[1]), self.split(e.args[2])
            return where(condition, a, c), where(condition, b, d)
        if e.fn == "complex":
            return self.real(e.args[0]), self.real(e.args[1])
        pairs = [self.split(x) for x in e.args]
        a, b = pairs[0]
        match e.fn:
            case "neg":
                return -a, -b
            case "conj":
                return a, -b
            case "add":
                return a + pairs[1][0], b + pairs[1][1]
            case "sub":
                return a - pairs[1][0], b - pairs[1][1]
            case "mul":
                return times(pairs[0], pairs[1])
            case "div":
                return over(pairs[0], pairs[1])
            case _:
                raise CompileError(e.fn, "not defined for complex numbers")


def times(x: Pair, y: Pair) -> Pair:
    """Product."""
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def over(x: Pair, y: Pair) -> Pair:
    """Quotient by Smith's algorithm, which scales by the larger part of the divisor so that nothing overflows early."""
    (a, b), (c, d) = x, y
    wide = call("abs", c) >= call("abs", d)
    large, small = where(wide, c, d), where(wide, d, c)
    ratio = small / large
    scale = large + small * ratio
    real = where(wide, a + b * ratio, a * ratio + b) / scale
    imag = where(wide, b - a * ratio, b * ratio - a) / scale
    zero = c.eq(0) & d.eq(0)
    return where(zero, a / c, real), where(zero, b / c, imag)


def hypot(a: Expr, b: Expr) -> Expr:
    """sqrt(a^2 + b^2) without early overflow."""
    x, y = call("abs", a), call("abs", b)
    large, small = call("fmax", x, y), call("fmin", x, y)
    ratio = where(large.eq(0) | call("isinf", large), const(0.0, a.dtype), small / large)
    root = large * call("sqrt", ratio * ratio + 1.0)
    return where(call("isinf", large), large, where(call("isnan", a) | call("isnan", b), a + b, root))


# --- nests ------------------------------------------------------------------------------------------------------------
def split_nest(statements: list[Statement]) -> list[Statement]:
    """Statements in real arithmetic."""
    return [made for s in statements for made in _statement(s, Splitter())]


def _statement(s: Statement, splitter: Splitter) -> list[Statement]:
    match s:
        case For():
            body = [m for x in s.body for m in _statement(x, splitter)]
            return [For(s.axis, splitter.real(s.lo), splitter.real(s.hi), body, s.kind)]
        case If():
            then = [m for x in s.then for m in _statement(x, splitter)]
            other = [m for x in s.otherwise for m in _statement(x, splitter)]
            return [If(splitter.real(s.condition), then, other)]
        case While():
            return [While(splitter.real(s.condition), [m for x in s.body for m in _statement(x, splitter)])]
        case Let():
            if not s.local.dtype.is_complex:
                return [Let(s.local, splitter.real(s.value))]
            splitter.split(s.local)
            a, b = splitter.locals[s.local]
            (x, y), (c, d) = splitter.split(s.value), (Local(a.dtype), Local(b.dtype))
            return [Let(c, x), Let(d, y), Let(a, c), Let(b, d)]
        case Store():
            return _store(s, splitter)


def _store(s: Store, splitter: Splitter) -> list[Statement]:
    index = tuple(map(splitter.real, s.index))
    if not s.buffer.dtype.is_complex:
        return [Store(s.buffer, index, splitter.real(s.value), s.combine, s.boundary)]
    view = real_view(s.buffer)
    value = splitter.split(s.value)
    if s.combine in ("mul", "div"):
        before = splitter.split(Load(s.buffer, s.index, "constant" if s.boundary else ""))
        value = times(before, value) if s.combine == "mul" else over(before, value)
    elif s.combine not in ("", "set", "add", "sub"):
        raise CompileError(s.combine, "not defined for complex numbers")
    combine = s.combine if s.combine in ("add", "sub") else ""
    a, b = Local(view.dtype), Local(view.dtype)
    return [
        Let(a, value[0]),
        Let(b, value[1]),
        Store(view, (*index, extent(0)), a, combine, s.boundary),
        Store(view, (*index, extent(1)), b, combine, s.boundary),
    ]
