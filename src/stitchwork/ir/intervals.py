"""How large a size can become while some of its symbols are known only by their bounds: interval arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

from stitchwork.ir import dims
from stitchwork.ir.dims import Atom, Dim, Monomial, Size, floordiv, is_nonnegative, maximum, minimum, symbols_of

Interval = tuple[Size, Size]  # least and greatest value


def upper_bound(x: Size, bounds: Mapping[str, Size]) -> Size:
    """A size that `x` never exceeds, without the symbols of `bounds`: each of them is from 0 to its bound.

    A bound may hold other symbols of `bounds`, but not in a circle.
    """
    return _interval(x, bounds)[1]


def _interval(x: Size, bounds: Mapping[str, Size]) -> Interval:
    if isinstance(x, int) or symbols_of(x).isdisjoint(bounds):
        return x, x
    low: Size = 0
    high: Size = 0
    for monomial, coefficient in x.terms.items():
        a, b = _product(monomial, bounds)
        if coefficient < 0:
            a, b = b, a
        low, high = low + a * coefficient, high + b * coefficient
    return low, high


def _product(monomial: Monomial, bounds: Mapping[str, Size]) -> Interval:
    low: Size = 1
    high: Size = 1
    for atom in monomial:
        a, b = _atom(atom, bounds)
        if is_nonnegative(low) and is_nonnegative(a):
            low, high = low * a, high * b
        else:
            high = maximum(high, low * -1) * maximum(b, a * -1)
            low = high * -1
    return low, high


def _atom(atom: Atom, bounds: Mapping[str, Size]) -> Interval:
    whole = Dim({(atom,): 1})
    if symbols_of(whole).isdisjoint(bounds):
        return whole, whole
    if not atom.args:
        return 0, upper_bound(bounds[atom.name], bounds)
    (a, b), (c, d) = (_interval(arg, bounds) for arg in atom.args)
    match atom.name:
        case "floordiv" if isinstance(d, int) and c == d and d > 0:
            return floordiv(a, d), floordiv(b, d)
        case "floordiv":  # by at least 1, or by 0, which gives 0
            return minimum(a, 0), maximum(b, 0)
        case "mod":
            return 0, maximum(d, 0)
        case "min":
            return minimum(a, c), minimum(b, d)
        case "max":
            return maximum(a, c), maximum(b, d)
        case name:
            assert name == "broadcast", name  # one of the two
            return minimum(a, c), maximum(b, d)


def product_bound(sizes: tuple[Size, ...], bounds: Mapping[str, Size]) -> Size:
    """As `upper_bound`, for the number of elements of a shape."""
    return dims.product(upper_bound(n, bounds) for n in sizes)
