"""Padding by a constant or by the tensor's own elements, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from stitchwork.errors import OpError
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import as_dtype
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, Scalar, const, extent, maximum, minimum, where
from stitchwork.ops._build import F
from stitchwork.ops._contents import known, size_tuple
from stitchwork.ops._families import accumulator
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, operand, require_at_least, require_equal, sample
from stitchwork.ops._regions import Shape, arange
from stitchwork.ops.slicing import fill_of, reordered

MODES = ("constant", "reflect", "symmetric", "clamp_to_edge", "periodic", "antiperiodic")
_SPELLINGS = {"zero": "constant", "edge": "clamp_to_edge", "replicate": "clamp_to_edge", "wrap": "periodic"}


class Padding(Op):
    """What `pad` and its gradient share: how much is added per dim and side, and of what."""

    left_padding: Sequence[Size] | Size
    right_padding: Sequence[Size] | Size | None = None
    mode: str = "constant"
    synonyms = {"pad_width": "left_padding", "padding_mode": "mode", "constant_values": "constant_value"}

    @property
    def left(self) -> Shape:
        """How much is added before the first element of each dim."""
        assert isinstance(self.left_padding, tuple)
        return self.left_padding

    @property
    def right(self) -> Shape:
        """How much is added after the last element of each dim."""
        assert isinstance(self.right_padding, tuple)
        return self.right_padding

    def padded(self, shape: Shape, what: str) -> Shape:
        """The shape after padding. Raises OpError where that is impossible; adds guards."""
        result: list[Size] = []
        for d, (n, a, b) in enumerate(zip(shape, self.left, self.right, strict=True)):
            size = n + a + b
            if not require_at_least(self.name, size, 0, f"padded {what}[{d}] >= 0"):
                raise self.fail(f"more is cropped than dim {d} has", expected=f"{n} + {a} + {b} >= 0", got=str(size))
            mirrored = self.mode != "constant" and (a, b) != (0, 0)
            if mirrored and not require_at_least(self.name, n, 1, f"{what}[{d}] >= 1"):
                raise self.fail(f"dim {d} has no elements to pad with", expected="size 1 or more", got=str(n))
            result.append(size)
        return tuple(result)


def normalize_padding(op: str, rank: int, attrs: dict[str, Any]) -> dict[str, Any]:
    """Padding attributes as one size per dim and side, the mode by its own name."""
    mode = attrs.get("mode", "constant")
    mode = _SPELLINGS.get(mode, mode)
    if mode not in MODES:
        raise OpError(op, "unknown `mode`", expected=", ".join((*MODES, *_SPELLINGS)), got=repr(mode))
    left, right = known(op, "left_padding", attrs["left_padding"]), attrs.get("right_padding")
    if right is None:
        left, right = _pairs(op, left, rank)
    sides = [size_tuple(op, k, v) for k, v in (("left_padding", left), ("right_padding", right))]
    sides = [s * rank if len(s) == 1 else s for s in sides]
    for k, s in zip(("left_padding", "right_padding"), sides, strict=True):
        if len(s) != rank:
            raise OpError(op, f"`{k}` does not have one entry per dim", expected=str(rank), got=str(len(s)))
    return {**attrs, "mode": mode, "left_padding": sides[0], "right_padding": sides[1]}


def _pairs(op: str, width: Any, rank: int) -> tuple[Any, Any]:
    """NumPy's pad_width: one number for all sides, or a (before, after) pair per dim."""
    if not isinstance(width, tuple):
        return (width,) * rank, (width,) * rank
    many = cast("tuple[Any, ...]", width)
    if not all(isinstance(p, tuple) and len(cast("tuple[Any, ...]", p)) == 2 for p in many):
        raise OpError(
            op,
            "`right_padding` is missing",
            expected="left_padding and right_padding, or pairs per dim",
            got=repr(many),
        )
    return tuple(p[0] for p in many), tuple(p[1] for p in many)


def mapped_array(p: Array, n: int, mode: str) -> tuple[Array, Array]:
    """Positions inside a dim of size n for positions beyond it, and the sign that each has."""
    sign = np.where(p // max(n, 1) % 2 == 1, -1, 1) if mode == "antiperiodic" else np.ones(p.shape, np.int64)
    if mode == "clamp_to_edge":
        return np.clip(p, 0, n - 1), sign
    if mode == "reflect":
        q = p % max(2 * n - 2, 1)
        return np.minimum(q, max(2 * n - 2, 1) - q) if n > 1 else np.zeros_like(p), sign
    if mode == "symmetric":
        return np.minimum(p % (2 * n), 2 * n - 1 - p % (2 * n)), sign
    return p % n, sign


def mapped_index(p: Expr, n: Size, mode: str) -> Expr:
    """As `mapped_array`, the position as an expression."""
    size = extent(n)
    if mode == "clamp_to_edge":
        return minimum(maximum(p, 0), size - 1)
    if mode == "reflect":
        period = maximum(size * 2 - 2, 1)
        q = p % period
        return minimum(minimum(q, period - q), size - 1)
    if mode == "symmetric":
        q = p % (size * 2)
        return minimum(q, size * 2 - 1 - q)
    return p % size


class Pad(Padding, name="pad"):
    """x with elements added before and after each dim; negative numbers take elements away.

    `left_padding` and `right_padding` have a size per dim (one number counts for all); or give NumPy's pad_width, pairs
    per dim, as the first. What is added: `constant_value` ("constant"), the tensor mirrored at its edge without
    ("reflect") or with the edge itself repeated ("symmetric"), the edge element ("clamp_to_edge"), or the tensor again
    ("periodic", with its sign changed each time "antiperiodic"). Mirrored ones may be longer than the tensor. NumPy's
    names "edge" and "wrap" are understood too.
    """

    x: Operand = operand("...", "any")
    constant_value: Scalar = 0

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return normalize_padding(cls.name, types[0].rank, attrs)

    def infer(self, x: TensorType) -> TensorType:
        if self.mode == "antiperiodic" and x.dtype.kind in "bu":
            raise self.fail("an antiperiodic tensor needs signs", expected="a signed dtype", got=str(x.dtype))
        return x.with_shape(self.padded(x.shape, "x"))

    def numpy(self, x: Array) -> Array:
        shape = [n + int(a) + int(b) for n, a, b in zip(x.shape, self.left, self.right, strict=True)]
        where_from: list[Array] = [arange(m) - int(a) for m, a in zip(shape, self.left, strict=True)]
        if self.mode == "constant":
            made = np.full(shape, fill_of(as_dtype(x.dtype), self.constant_value)).astype(x.dtype)
            kept = [np.flatnonzero((p >= 0) & (p < n)) for p, n in zip(where_from, x.shape, strict=True)]
            made[np.ix_(*kept)] = x[np.ix_(*(p[k] for p, k in zip(where_from, kept, strict=True)))]
            return made
        maps = [self._mapped(p, n, int(a)) for p, n, a in zip(where_from, x.shape, self.left, strict=True)]
        found = x[np.ix_(*(p for p, _ in maps))]
        if self.mode != "antiperiodic":
            return found
        negative: Array = np.ones((), np.int64)
        for _, sign in maps:
            negative = negative[..., None] * sign
        return np.where(negative < 0, -found, found).astype(x.dtype)

    def _mapped(self, p: Array, n: int, left: int) -> tuple[Array, Array]:
        return (p, np.ones_like(p)) if p.size == n and left == 0 else mapped_array(p, n, self.mode)

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        index = tuple(i - extent(a) for i, a in zip(out, self.left, strict=True))
        boundary = "clamp" if self.mode == "clamp_to_edge" else self.mode
        return x.at(*index, boundary=boundary, fill=fill_of(x.dtype, self.constant_value))

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        if self.mode == "constant":
            ones = (1,) * x.rank
            return (F.strided_slice(ct, starts=self.left, sizes=x.shape, strides=ones, guarded=True),)
        return (F.pad_gradient(ct, x, mode=self.mode, left_padding=self.left, right_padding=self.right),)

    def permuted(self, permutation: Ints) -> Op:
        return reordered(self, permutation, "left_padding", "right_padding")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4), left_padding=(1, 2), right_padding=(0, 3))
        yield sample((3, 4), left_padding=((1, 2), (0, 3)), constant_value=1.5)
        yield sample((5, 4), left_padding=(-1, 2), right_padding=(-2, -1))
        yield sample((3,), pad_width=2)
        yield sample((), left_padding=(), right_padding=())
        yield Sample(((0, 2),), {"left_padding": (1, 0), "right_padding": (1, 0)}, grad=False)
        for mode in (*MODES[1:], *_SPELLINGS):
            yield sample((4, 3), left_padding=(2, 0), right_padding=(3, 1), mode=mode)
        for mode in MODES[1:]:
            yield sample((3, 1), left_padding=(7, 2), right_padding=(8, 2), mode=mode)
            yield sample((5,), left_padding=(-1,), right_padding=(-2,), mode=mode)
        yield Sample(((3,),), {"left_padding": 1, "constant_value": 1}, dtype="bool", grad=False)
        yield Sample(((3,),), {"left_padding": 1, "mode": "antiperiodic"}, dtype="i8", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "unknown `mode`", sample((3,), left_padding=1, mode="mirror")
        yield "`right_padding` is missing", sample((3, 4), left_padding=(1, 2))
        yield "`left_padding` does not have one entry per dim", sample((3, 4, 5), left_padding=(1, 2), right_padding=1)
        yield "more is cropped than dim 0 has", sample((3,), left_padding=(-2,), right_padding=(-2,))
        yield "has no elements to pad with", sample((0,), left_padding=1, mode="reflect")
        yield "needs signs", Sample(((3,),), {"left_padding": 1, "mode": "antiperiodic"}, dtype="u8")


class PadGradient(Padding, name="pad_gradient"):
    """The gradient of `pad`: each element of `source` gets the sum of what stands for it in `gradient`.

    For constants that is the middle of `gradient`. `source` gives only its shape.
    """

    gradient: Operand = operand("...", "number")
    source: Operand = operand("...", "any", same="S")

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return normalize_padding(cls.name, types[0].rank, attrs)

    def infer(self, gradient: TensorType, source: TensorType) -> TensorType:
        same = gradient.rank == source.rank
        wanted = self.padded(source.shape, "source") if same else ()
        if not same or not all(
            require_equal(self.name, a, b, f"gradient[{d}] is the padded size")
            for d, (a, b) in enumerate(zip(gradient.shape, wanted, strict=True))
        ):
            raise self.fail(
                "`gradient` does not have the padded shape",
                expected=str(gradient.with_shape(wanted)),
                got=str(gradient),
            )
        return gradient.with_shape(source.shape)

    def numpy(self, gradient: Array, source: Array) -> Array:
        wide = accumulator(as_dtype(gradient.dtype)).numpy
        total: Array = np.zeros(source.shape, wide)
        values: Array = gradient.astype(wide)
        index: list[Array] = []
        for d, (n, a, size) in enumerate(zip(source.shape, self.left, gradient.shape, strict=True)):
            p: Array = arange(size) - int(a)
            if self.mode == "constant":
                kept = np.flatnonzero((p >= 0) & (p < n))
                values, p = np.take(values, kept, axis=d), p[kept]
            elif size and (size != n or a != 0):
                p, sign = mapped_array(p, n, self.mode)
                values = values * sign.reshape(-1, *(1,) * (values.ndim - d - 1)).astype(wide)
            index.append(p)
        np.add.at(total, np.ix_(*index), values)
        return total.astype(gradient.dtype)

    def loops(self, b: Any, outs: tuple[Buffer, ...], gradient: Buffer, source: Buffer) -> None:
        (out,) = outs
        free = [d for d in range(out.rank) if self.left[d] == 0 and self.right[d] == 0]
        rest = [d for d in range(out.rank) if d not in free]
        with b.nest([out.shape[d] for d in free], "parallel") as outer:
            fixed = dict(zip(free, outer, strict=True))
            with b.nest([out.shape[d] for d in rest], "serial") as inner:
                b.store(out, self._index(fixed, dict(zip(rest, inner, strict=True))), const(0, out.dtype))
            with b.nest([gradient.shape[d] for d in rest], "serial") as inner:
                position = dict(zip(rest, inner, strict=True))
                value: Expr = gradient[self._index(fixed, position)]
                target = dict(fixed)
                for d, p in position.items():
                    moved = p - extent(self.left[d])
                    target[d] = moved if self.mode == "constant" else mapped_index(moved, out.shape[d], self.mode)
                    if self.mode == "antiperiodic":
                        odd = (moved // extent(out.shape[d]) % 2).eq(1)
                        value = where(odd, -value, value)
                b.store(out, self._index(target, {}), value, combine="add", boundary="drop")

    def _index(self, a: dict[int, Any], b: dict[int, Any]) -> tuple[Any, ...]:
        both = {**a, **b}
        return tuple(both[d] for d in range(len(both)))

    def vjp(self, ct: Value, gradient: Value, source: Value) -> tuple[Value, None]:
        return F.pad(ct, left_padding=self.left, right_padding=self.right, mode=self.mode), None

    def permuted(self, permutation: Ints) -> Op:
        return reordered(self, permutation, "left_padding", "right_padding")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((4, 9), (3, 4), left_padding=(1, 2), right_padding=(0, 3))
        yield sample((2, 5), (5, 4), left_padding=(-1, 2), right_padding=(-2, -1))
        for mode in MODES[1:]:
            yield sample((9, 3), (4, 3), left_padding=(2, 0), right_padding=(3, 0), mode=mode)
            yield sample((18, 5), (3, 1), left_padding=(7, 2), right_padding=(8, 2), mode=mode)
        yield Sample(((9, 3), (4, 3)), {"left_padding": (2, 0), "right_padding": (3, 0), "mode": "edge"}, dtype="f16")

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "does not have the padded shape", sample((4,), (3,), left_padding=(1,), right_padding=(1,))
        yield "does not have the padded shape", sample((4,), (3, 1), left_padding=(1,), right_padding=(0,))
