"""Index expressions as affine forms: constant + sum of coefficient * axis, with symbolic coefficients."""

from __future__ import annotations

from dataclasses import dataclass

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import int64
from stitchwork.loops.expr import Axis, Buffer, Call, Const, Expr, Extent, Load, extent


@dataclass(frozen=True)
class Affine:
    """constant + sum(coefficient * axis); coefficients are never 0."""

    terms: dict[Axis, Size]
    constant: Size = 0

    def __add__(self, other: Affine) -> Affine:
        terms = dict(self.terms)
        for axis, c in other.terms.items():
            terms[axis] = terms.get(axis, 0) + c
        return Affine(_nonzero(terms), self.constant + other.constant)

    def scaled(self, factor: Size) -> Affine:
        """This form multiplied by a size."""
        return Affine(_nonzero({a: c * factor for a, c in self.terms.items()}), self.constant * factor)

    def coefficient(self, axis: Axis) -> Size:
        return self.terms.get(axis, 0)

    def without(self, axis: Axis) -> Affine:
        """The rest of the form once the term of `axis` is gone."""
        return Affine({a: c for a, c in self.terms.items() if a is not axis}, self.constant)

    def to_expr(self) -> Expr:
        """The form as an i64 expression."""
        total: Expr = extent(self.constant)
        for axis, c in self.terms.items():
            total = axis * extent(c) + total
        return total


def _nonzero(terms: dict[Axis, Size]) -> dict[Axis, Size]:
    return {a: c for a, c in terms.items() if not (isinstance(c, int) and c == 0)}


def affine(e: Expr) -> Affine | None:
    """The affine form of an i64 expression, or None where it is not affine in its axes."""
    match e:
        case Axis():
            return Affine({e: 1})
        case Const() if e.dtype is int64:
            return Affine({}, int(e.value.real))
        case Extent():
            return Affine({}, e.size)
        case Call(fn="add" | "sub", args=(a, b)):
            left, right = affine(a), affine(b)
            if left is None or right is None:
                return None
            return left + (right if e.fn == "add" else right.scaled(-1))
        case Call(fn="mul", args=(a, b)):
            left, right = affine(a), affine(b)
            if left is None or right is None:
                return None
            if not left.terms:
                return right.scaled(left.constant)
            return left.scaled(right.constant) if not right.terms else None
        case Call(fn="neg", args=(a,)):
            inner = affine(a)
            return None if inner is None else inner.scaled(-1)
        case _:
            return None


def row_major(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    """Element strides of a contiguous tensor."""
    strides: list[Size] = []
    step: Size = 1
    for n in reversed(shape):
        strides.append(step)
        step = step * n
    return tuple(reversed(strides))


def offset_of(load: Load, strides: tuple[Size, ...] | None = None) -> Affine | None:
    """The element offset that a load without boundary reads, as an affine form."""
    total = Affine({})
    for index, stride in zip(load.index, strides or row_major(load.buffer.shape), strict=True):
        form = affine(index)
        if form is None:
            return None
        total = total + form.scaled(stride)
    return total


def view_index(outer: tuple[Size, ...], inner: tuple[Size, ...], out: tuple[Expr, ...]) -> tuple[Expr, ...] | None:
    """Index into a tensor of shape `inner` for position `out` of its reshape to `outer`, where that is affine.

    It is where every dim of `inner` is split into dims of `outer`, dims of size 1 aside; merging needs division.
    """
    index: list[Expr] = []
    position = 0
    for n in inner:
        if isinstance(n, int) and n == 1:
            index.append(Const(0, int64))
            continue
        taken: list[tuple[Expr, Size]] = []
        volume: Size = 1
        while volume != n:
            if position == len(outer):
                return None
            size = outer[position]
            if not (isinstance(size, int) and size == 1):
                taken.append((out[position], size))
                volume = volume * size
            position += 1
            if isinstance(volume, int) and isinstance(n, int) and volume > n:
                return None
        index.append(_mixed_radix(taken))
    rest = outer[position:]
    return tuple(index) if all(isinstance(n, int) and n == 1 for n in rest) else None


def _mixed_radix(digits: list[tuple[Expr, Size]]) -> Expr:
    total: Expr = Const(0, int64)
    for digit, size in digits:
        total = total * extent(size) + digit
    return total


def collapse(axes: tuple[Axis, ...], forms: list[Affine], fixed: set[Axis]) -> list[tuple[Axis, ...]]:
    """Groups of adjacent axes that one axis can replace: in every form the outer coefficient is the inner one times the
    inner extent. Axes of extent 1 join any group; `fixed` ones stay alone."""
    groups: list[list[Axis]] = []
    for axis in axes:
        if groups and axis not in fixed and _joins(groups[-1], axis, forms, fixed):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return [tuple(g) for g in groups]


def _joins(group: list[Axis], axis: Axis, forms: list[Affine], fixed: set[Axis]) -> bool:
    if any(a in fixed for a in group):
        return False
    last = group[-1]
    return all(f.coefficient(last) == f.coefficient(axis) * axis.extent for f in forms)


def flat_buffer(buffer: Buffer) -> Buffer:
    """The same data as one dim."""
    return Buffer(buffer.dtype, (dims.product(buffer.shape),), buffer.key)
