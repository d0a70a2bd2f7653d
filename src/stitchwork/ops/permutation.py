"""Dims in another order, or reversed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stitchwork.ir.graph import Content, Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, extent
from stitchwork.ops._build import F
from stitchwork.ops._contents import int_tuple, known, moved
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, axes_index, axis_index, operand, sample


class Permute(Op, name="permute"):
    """Dims in another order: dim d of the result is dim permutation[d] of x. Without one, the order is reversed."""

    x: Operand = operand("...", "any")
    permutation: Sequence[int] | None = None
    synonyms = {"axes": "permutation", "perm": "permutation"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        rank = types[0].rank
        given = known(cls.name, "permutation", attrs.get("permutation"))
        if given is None:
            return {"permutation": tuple(reversed(range(rank)))}
        order = tuple(axis_index(cls.name, a, rank, "permutation") for a in int_tuple(cls.name, "permutation", given))
        if sorted(order) != list(range(rank)):
            raise cls().fail(
                "`permutation` does not name each dim once", expected=f"0 to {rank - 1} in some order", got=str(given)
            )
        return {"permutation": order}

    @property
    def order(self) -> Ints:
        """The permutation, resolved."""
        assert isinstance(self.permutation, tuple)
        return self.permutation

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape(tuple(x.shape[a] for a in self.order))

    def numpy(self, x: Array) -> Array:
        return np.transpose(x, self.order).copy()

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        return x[tuple(out[a] for a in inverse(self.order))]

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.permute(ct, permutation=inverse(self.order)),)

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return moved(self, types, contents)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4))
        yield sample((2, 3, 4), permutation=(2, 0, 1))
        yield sample((2, 3, 4, 5), axes=(0, -2, -1, 1))
        yield sample((), permutation=())
        yield Sample(((3, 0, 2),), {"permutation": (1, 2, 0)}, grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "does not name each dim once", sample((3, 4), permutation=(0, 0))
        yield "does not name each dim once", sample((3, 4), permutation=(0,))
        yield "`permutation` is out of range", sample((3, 4), permutation=(0, 2))


def inverse(permutation: Ints) -> Ints:
    """The permutation that undoes one."""
    return tuple(permutation.index(d) for d in range(len(permutation)))


class Transpose(Op, name="transpose", aliases=("swapaxes",)):
    """Two dims exchanged; the last two unless others are named. For a full permutation see `permute`."""

    x: Operand = operand("...", "any")
    axis1: int = -2
    axis2: int = -1
    synonyms = {"dimension": "axis1", "dimension2": "axis2"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        given = {"axis1": attrs.get("axis1", -2), "axis2": attrs.get("axis2", -1)}
        return {k: axis_index(cls.name, known(cls.name, k, v), types[0].rank, k) for k, v in given.items()}

    def swap(self, rank: int) -> Ints:
        """The permutation of `rank` dims that this is."""
        exchanged = {self.axis1: self.axis2, self.axis2: self.axis1}
        return tuple(exchanged.get(d, d) for d in range(rank))

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape(tuple(x.shape[a] for a in self.swap(x.rank)))

    def numpy(self, x: Array) -> Array:
        return np.swapaxes(x, self.axis1, self.axis2).copy()

    def decompose(self, x: Value) -> Value:
        return F.permute(x, permutation=self.swap(x.rank))

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.permute(ct, permutation=self.swap(x.rank)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4))
        yield sample((2, 3, 4), axis1=0, axis2=2)
        yield sample((2, 3, 4), axis1=1, axis2=1)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`axis1` is out of range", sample((3,))


class Reverse(Op, name="reverse", aliases=("flip",)):
    """Elements in reverse order along `axes` (an int or several; all for None, none for an empty list)."""

    x: Operand = operand("...", "any")
    axes: Ints | int | None = None
    synonyms = {"axis": "axes"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {"axes": axes_index(cls.name, known(cls.name, "axes", attrs.get("axes")), types[0].rank)}

    @property
    def over(self) -> Ints:
        """The axes, resolved."""
        assert isinstance(self.axes, tuple)
        return self.axes

    def infer(self, x: TensorType) -> TensorType:
        return x

    def numpy(self, x: Array) -> Array:
        return np.flip(x, self.over).copy()

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        return x[tuple(extent(x.shape[d] - 1) - i if d in self.over else i for d, i in enumerate(out))]

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.reverse(ct, axes=self.over),)

    def permuted(self, permutation: Ints) -> Op:
        return dataclasses.replace(self, axes=tuple(sorted(permutation.index(a) for a in self.over)))

    def shape_value(self, types: tuple[Any, ...], *contents: Content) -> Content:
        return moved(self, types, contents)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4))
        yield sample((2, 3, 4), axes=(0, -1))
        yield sample((2, 3), axis=1)
        yield sample((2, 3), axes=())

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`axes` is out of range", sample((3,), axes=1)
        yield "names an axis twice", sample((3,), axes=(0, 0))
