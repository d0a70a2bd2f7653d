"""Symbolic sizes: integer expressions over named symbols, in a normal form.

A dim is a polynomial with integer coefficients over atoms; an atom is a symbol or one of floordiv, mod, min, max and
broadcast of two dims. Expressions that normalise to a constant are plain ints, so a size is `int | Dim`. Symbols stand
for sizes and are never negative.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Union

Size = Union[int, "Dim"]
Monomial = tuple["Atom", ...]  # sorted by text, repeated for powers; () is the constant term


class Atom:
    """A symbol (`args` empty) or a function of two sizes that the polynomial cannot express."""

    __slots__ = ("args", "name", "text")

    def __init__(self, name: str, args: tuple[Size, ...] = ()) -> None:
        self.name, self.args = name, args
        self.text = name if not args else f"{name}({', '.join(map(str, args))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text


class Dim:
    """A size that is not a constant. Immutable; equality is equality of normal forms."""

    __slots__ = ("_hash", "_text", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = dict(terms)
        self._hash: int | None = None
        self._text: str | None = None

    def __add__(self, other: Size) -> Size:
        terms = dict(self.terms)
        for m, c in _terms(other).items():
            terms[m] = terms.get(m, 0) + c
        return _make(terms)

    __radd__ = __add__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + other * -1

    def __rsub__(self, other: Size) -> Size:
        return self * -1 + other

    def __mul__(self, other: Size) -> Size:
        terms: dict[Monomial, int] = {}
        for m1, c1 in self.terms.items():
            for m2, c2 in _terms(other).items():
                m = tuple(sorted(m1 + m2, key=str)) if m1 and m2 else m1 or m2
                terms[m] = terms.get(m, 0) + c1 * c2
        return _make(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        return floordiv(self, other)

    def __rfloordiv__(self, other: int) -> Size:
        return floordiv(other, self)

    def __mod__(self, other: Size) -> Size:
        return mod(self, other)

    def __rmod__(self, other: int) -> Size:
        return mod(other, self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(str(self))
        return self._hash

    def __str__(self) -> str:
        if self._text is None:
            self._text = _render(self.terms)
        return self._text

    def __repr__(self) -> str:
        return str(self)

    def __bool__(self) -> bool:
        raise TypeError(f"the size {self} is not known yet, so it cannot be used as a condition")

    def __index__(self) -> int:
        raise TypeError(f"the size {self} is not known yet, so it cannot be used as an int")


def symbol(name: str) -> Dim:
    """The size called `name`."""
    return Dim({(Atom(name),): 1})


def _terms(x: Size) -> Mapping[Monomial, int]:
    return x.terms if isinstance(x, Dim) else {(): x}


def _make(terms: Mapping[Monomial, int]) -> Size:
    kept = {m: c for m, c in terms.items() if c}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return Dim(dict(sorted(kept.items(), key=lambda item: _order(item[0]))))


def _order(m: Monomial) -> tuple[int, str]:
    return -len(m), "*".join(map(str, m))


def _render(terms: Mapping[Monomial, int]) -> str:
    out = ""
    for m, c in terms.items():
        factors = "*".join(map(str, m))
        body = factors if abs(c) == 1 and m else "*".join(filter(None, [str(abs(c)), factors]))
        out += (" - " if c < 0 else " + ") + body if out else ("-" if c < 0 else "") + body
    return out


def _function(name: str, a: Size, b: Size) -> Size:
    return Dim({(Atom(name, (a, b)),): 1})


def _divide_terms(a: Size, b: Size) -> tuple[Size, Size]:
    """(q, r) with a == q * b + r, where q collects the terms that divide exactly."""
    divisor = _terms(b)
    if len(divisor) != 1:
        q = _exact_quotient(a, b)
        return (0, a) if q is None else (q, 0)
    ((mb, cb),) = divisor.items()
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for m, c in _terms(a).items():
        left = _remove(m, mb)
        if left is not None and c % cb == 0:
            quotient[left] = c // cb
        elif left is not None and not mb and c // cb and m:
            quotient[left], rest[m] = c // cb, c % cb
        else:
            rest[m] = c
    constant = rest.get((), 0)
    if not mb and constant:  # move whole multiples of the divisor out of the constant term
        quotient[()] = quotient.get((), 0) + constant // cb
        rest[()] = constant % cb
    return _make(quotient), _make(rest)


def _remove(m: Monomial, factors: Monomial) -> Monomial | None:
    left = list(m)
    for f in factors:
        if f not in left:
            return None
        left.remove(f)
    return tuple(left)


def _exact_quotient(a: Size, b: Size) -> Size | None:
    """Polynomial long division by the leading term; None unless it leaves no remainder."""
    quotient: Size = 0
    (lead, coefficient) = next(iter(_terms(b).items()))
    for _ in range(len(_terms(a)) + 1):
        if isinstance(a, int) and a == 0:
            return quotient
        (m, c) = next(iter(_terms(a).items()))
        left = _remove(m, lead)
        if left is None or c % coefficient:
            return None
        term = _make({left: c // coefficient})
        quotient, a = quotient + term, a - term * b
    return None


def floordiv(a: Size, b: Size) -> Size:
    """a // b rounded down. Raises ZeroDivisionError where b is the constant 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if isinstance(b, int) and b == 0:
        raise ZeroDivisionError("size divided by 0")
    if a == b:
        return 1
    quotient, rest = _divide_terms(a, b)
    if isinstance(rest, int) and (rest == 0 or (isinstance(b, int) and 0 <= rest < b)):
        return quotient
    inner = _division_plus_constant(rest) if isinstance(b, int) and b > 0 else None
    if inner is not None:  # (x // c + k) // b == (x + k * c) // (c * b)
        x, c, k = inner
        return quotient + floordiv(x + k * c, c * b)
    return quotient + _function("floordiv", rest, b)


def _division_plus_constant(x: Size) -> tuple[Size, int, int] | None:
    """(y, c, k) for a size that is y // c + k with numbers c > 0 and k."""
    terms = dict(_terms(x))
    k = terms.pop((), 0)
    if len(terms) != 1:
        return None
    ((m, coefficient),) = terms.items()
    if coefficient != 1 or len(m) != 1 or m[0].name != "floordiv" or not m[0].args:
        return None
    y, c = m[0].args
    return (y, c, k) if isinstance(c, int) and c > 0 else None


def mod(a: Size, b: Size) -> Size:
    """a - (a // b) * b."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if isinstance(b, int) and b == 0:
        raise ZeroDivisionError("size modulo 0")
    _, rest = _divide_terms(a, b)
    if isinstance(rest, int) and (rest == 0 or (isinstance(b, int) and 0 <= rest < b)):
        return rest
    return _function("mod", rest, b)


def ceildiv(a: Size, b: Size) -> Size:
    """a / b rounded up, for positive b."""
    return floordiv(a + b - 1, b)


def _extreme(name: str, pick: Callable[[int, int], int], a: Size, b: Size) -> Size:
    difference = a - b
    if isinstance(difference, int):
        return b + pick(difference, 0)
    for x, y, sign in ((a, b, 1), (b, a, -1)):
        if x in _joined(name, y):
            return y
        if is_nonnegative(difference * sign):  # x >= y, whatever the symbols
            return x if name == "max" else y
    a, b = sorted((a, b), key=str)
    return _function(name, a, b)


def _joined(name: str, x: Size) -> set[Size]:
    """The sizes that a nested function of this name combines; the size itself where it is none."""
    found: set[Size] = {x}
    pending = [x]
    while pending:
        terms = _terms(pending.pop())
        m, c = next(iter(terms.items()), ((), 0))
        if len(terms) == 1 and c == 1 and len(m) == 1 and m[0].name == name:
            pending += [a for a in m[0].args if a not in found]
            found.update(m[0].args)
    return found


def minimum(a: Size, b: Size) -> Size:
    """The smaller size."""
    return _extreme("min", min, a, b)


def maximum(a: Size, b: Size) -> Size:
    """The larger size."""
    return _extreme("max", max, a, b)


def broadcast(a: Size, b: Size) -> Size:
    """The size that two broadcast dims give: the other one where one is 1. The caller guards that they fit."""
    if a == b or (isinstance(b, int) and b == 1):
        return a
    if isinstance(a, int) and a == 1:
        return b
    if isinstance(a, int):
        return a
    if isinstance(b, int):
        return b
    for x, y in ((a, b), (b, a)):
        if x in _joined("broadcast", y):
            return y
    a, b = sorted((a, b), key=str)
    return _function("broadcast", a, b)


def product(sizes: Iterable[Size]) -> Size:
    """The number of elements of a shape."""
    total: Size = 1
    for n in sizes:
        total = total * n
    return total


def is_nonnegative(x: Size) -> bool:
    """True where x >= 0 follows from the signs of its terms alone."""
    return all(c >= 0 and all(_atom_nonnegative(a) for a in m) for m, c in _terms(x).items())


def _atom_nonnegative(a: Atom) -> bool:
    if not a.args:
        return True
    if a.name == "mod":
        return is_nonnegative(a.args[1])
    if a.name == "max":
        return any(map(is_nonnegative, a.args))
    return all(map(is_nonnegative, a.args))


def symbols_of(x: Size) -> frozenset[str]:
    """Names of the symbols in a size."""
    if isinstance(x, int):
        return frozenset()
    return frozenset(s for m in x.terms for a in m for s in _atom_symbols(a))


def _atom_symbols(a: Atom) -> frozenset[str]:
    return frozenset((a.name,)) if not a.args else frozenset[str]().union(*map(symbols_of, a.args))


def _apply_broadcast(a: int, b: int) -> int:
    return a if b == 1 else b


def _floordiv_or_zero(a: int, b: int) -> int:
    return a // b if b else 0


def _mod_or_zero(a: int, b: int) -> int:
    return a % b if b else 0


FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "floordiv": _floordiv_or_zero,
    "mod": _mod_or_zero,
    "min": min,
    "max": max,
    "broadcast": _apply_broadcast,
}
_SYMBOLIC: dict[str, Callable[[Size, Size], Size]] = {
    "floordiv": floordiv,
    "mod": mod,
    "min": minimum,
    "max": maximum,
    "broadcast": broadcast,
}


def substitute(x: Size, values: Mapping[str, Size]) -> Size:
    """`x` with symbols replaced by sizes."""
    if isinstance(x, int):
        return x
    total: Size = 0
    for m, c in x.terms.items():
        term: Size = c
        for a in m:
            if a.args:
                left, right = (substitute(arg, values) for arg in a.args)
                if isinstance(left, int) and isinstance(right, int):
                    factor: Size = FUNCTIONS[a.name](left, right)
                else:
                    factor = _SYMBOLIC[a.name](left, right)
            else:
                factor = values.get(a.name, _symbol_of(a))
            term = factor * term
        total = term + total
    return total


@lru_cache(maxsize=4096)
def _symbol_of(a: Atom) -> Dim:
    return Dim({(a,): 1})


def evaluate(x: Size, values: Mapping[str, int]) -> int:
    """The number that `x` is for these symbol values. Raises KeyError where one is missing."""
    if isinstance(x, int):
        return x
    total = 0
    for m, c in x.terms.items():
        for a in m:
            c *= FUNCTIONS[a.name](*(evaluate(arg, values) for arg in a.args)) if a.args else values[a.name]
        total += c
    return total


class _Guess(dict[str, int]):
    def __init__(self, unknown: int) -> None:
        super().__init__()
        self.unknown = unknown

    def __missing__(self, key: str) -> int:
        return self.unknown


@lru_cache(maxsize=16384)
def estimate(x: Size, unknown: int) -> float:
    """About how large `x` is, every symbol counting as `unknown`: for choices of time or memory, never correctness."""
    return float(evaluate(x, _Guess(unknown)))


def python_source(x: Size, source_of: Callable[[Atom], str]) -> str:
    """`x` as a Python expression; `source_of` says how a symbol or a function of sizes is written."""
    if isinstance(x, int):
        return str(x)
    terms: list[str] = []
    for m, c in x.terms.items():
        factors = [str(c)] if c != 1 or not m else []
        terms.append("*".join([*factors, *map(source_of, m)]))
    return "(" + " + ".join(terms) + ")"


_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][\w.:/]*)|([-+*(),]))")


def parse(text: str) -> Size:
    """Inverse of str() on sizes. Raises ValueError."""
    tokens: list[str] = []
    position = 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"not a size: {text!r}")
        tokens.append(match.group(match.lastindex or 0))
        position = match.end()
    size, rest = _parse_sum(tokens)
    if rest:
        raise ValueError(f"not a size: {text!r}")
    return size


def _parse_sum(tokens: list[str]) -> tuple[Size, list[str]]:
    total: Size = 0
    sign = 1
    if tokens[:1] == ["-"]:
        sign, tokens = -1, tokens[1:]
    while True:
        term, tokens = _parse_product(tokens)
        total = total + term * sign
        if tokens[:1] not in (["+"], ["-"]):
            return total, tokens
        sign, tokens = (1 if tokens[0] == "+" else -1), tokens[1:]


def _parse_product(tokens: list[str]) -> tuple[Size, list[str]]:
    factor, tokens = _parse_factor(tokens)
    while tokens[:1] == ["*"]:
        following, tokens = _parse_factor(tokens[1:])
        factor = factor * following
    return factor, tokens


def _parse_factor(tokens: list[str]) -> tuple[Size, list[str]]:
    if not tokens:
        raise ValueError("a size ends too early")
    head, rest = tokens[0], tokens[1:]
    if head.isdigit():
        return int(head), rest
    if head in _SYMBOLIC and rest[:1] == ["("]:
        a, rest = _parse_sum(rest[1:])
        if rest[:1] != [","]:
            raise ValueError(f"{head} takes two sizes")
        b, rest = _parse_sum(rest[1:])
        return _SYMBOLIC[head](a, b), rest[1:]
    if not (head[0].isalpha() or head[0] == "_"):
        raise ValueError(f"unexpected {head!r} in a size")
    return symbol(head), rest


def as_size(x: Any) -> Size:
    """A size from an int-like, a Dim, or a name. Raises TypeError, and ValueError for an int that no size can be."""
    if isinstance(x, Dim):
        return x
    if isinstance(x, str):
        if not x.isidentifier() or x in _SYMBOLIC:
            raise ValueError(f"{x!r} is not a name")
        return symbol(x)
    value = operator.index(x)
    if value < 0:
        raise ValueError(f"{value} is negative")
    if value >= 2**63:
        raise ValueError(f"{value} is more than 2**63 - 1")
    return value
