"""Tensors repeated along their axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Content, Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, extent
from stitchwork.ops._build import F
from stitchwork.ops._contents import moved, size_tuple
from stitchwork.ops._op import (
    Array,
    Op,
    Operand,
    Sample,
    operand,
    require_at_least,
    require_equal,
    sample,
)
from stitchwork.ops._regions import Shape


class Tile(Op, name="tile"):
    """x repeated `multiplier` times along each dim; more entries than dims add leading dims, fewer leave those at 1."""

    x: Operand = operand("...", "any")
    multiplier: Sequence[Size] | Size
    synonyms = {"reps": "multiplier"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        many = size_tuple(cls.name, "multiplier", attrs["multiplier"])
        return {"multiplier": _multiplier(cls(multiplier=many), many, types[0].rank)}

    @property
    def times(self) -> Shape:
        """The multiplier, one entry per dim of the result."""
        assert isinstance(self.multiplier, tuple)
        return self.multiplier

    def infer(self, x: TensorType) -> TensorType:
        whole = (*(1,) * (len(self.times) - x.rank), *x.shape)
        return x.with_shape(tuple(n * m for n, m in zip(whole, self.times, strict=True)))

    def numpy(self, x: Array) -> Array:
        return np.tile(x, [int(m) for m in self.times])

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        skip = len(out) - x.rank
        return x[tuple(i if self.times[skip + d] == 1 else i % extent(x.shape[d]) for d, i in enumerate(out[skip:]))]

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (_tile_sum(ct, x.shape, self.times),)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return moved(self, types, contents)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4), multiplier=(2, 3))
        yield sample((3, 4), multiplier=(2, 1, 2))
        yield sample((3, 4), multiplier=2)
        yield sample((), multiplier=(2, 3))
        yield Sample(((3, 4),), {"multiplier": (0, 1)}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`multiplier` is negative", sample((3, 4), multiplier=(-1, 2))
        yield "`multiplier` is not an integer", sample((3, 4), multiplier=(1.5, 2))


def _multiplier(op: Op, many: Shape, rank: int) -> Shape:
    if any(not require_at_least(op.name, m, 0, "multiplier >= 0") for m in many):
        raise op.fail("`multiplier` is negative", expected="sizes of 0 or more", got=str(many))
    return (*(1,) * (rank - len(many)), *many)


def _tile_sum(ct: Value, shape: Shape, times: Shape) -> Value:
    """The sum over the copies that a tile made of a tensor of `shape`."""
    whole = (*(1,) * (len(times) - len(shape)), *shape)
    apart = [n for pair in zip(times, whole, strict=True) for n in pair]
    copies = [2 * d for d in range(len(times))]
    return F.reshape(F.reduction_sum(F.reshape(ct, shape=apart), axes=copies), shape=shape)


class TileGradient(Op, name="tile_gradient"):
    """The gradient of `tile`: the sum of `gradient` over the copies of `source`, of which only the shape matters."""

    gradient: Operand = operand("...", "number")
    source: Operand = operand("...", "any", same="S")
    multiplier: Sequence[Size] | Size

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        many = size_tuple(cls.name, "multiplier", attrs["multiplier"])
        return {"multiplier": _multiplier(cls(multiplier=many), many, types[1].rank)}

    def infer(self, gradient: TensorType, source: TensorType) -> TensorType:
        tiled = Tile(multiplier=self.multiplier).infer(source)
        if gradient.rank != tiled.rank or not all(
            require_equal(self.name, a, b, f"gradient[{d}] is the tiled size")
            for d, (a, b) in enumerate(zip(gradient.shape, tiled.shape, strict=True))
        ):
            raise self.fail("`gradient` does not have the tiled shape", expected=str(tiled), got=str(gradient))
        return gradient.with_shape(source.shape)

    def numpy(self, gradient: Array, source: Array) -> Array:
        assert isinstance(self.multiplier, tuple)
        times = [int(cast("int", m)) for m in self.multiplier]
        whole = (*(1,) * (len(times) - source.ndim), *source.shape)
        apart = gradient.reshape([n for pair in zip(times, whole, strict=True) for n in pair])
        return apart.sum(axis=tuple(range(0, apart.ndim, 2))).reshape(source.shape).astype(gradient.dtype)

    def decompose(self, gradient: Value, source: Value) -> Value:
        assert isinstance(self.multiplier, tuple)
        return _tile_sum(gradient, source.shape, self.multiplier)

    def vjp(self, ct: Value, gradient: Value, source: Value) -> tuple[Value, None]:
        return F.tile(ct, multiplier=self.multiplier), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((6, 12), (3, 4), multiplier=(2, 3))
        yield sample((2, 3, 4), (3, 4), multiplier=(2, 1, 1))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "does not have the tiled shape", sample((6, 4), (3, 4), multiplier=(2, 3))
