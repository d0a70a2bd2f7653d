"""What ops of one family share: pointwise ops with broadcasting, reductions over axes."""

from __future__ import annotations

import dataclasses
from typing import Any

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import DType, float32
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, cast, reduce
from stitchwork.ops._contents import known
from stitchwork.ops._op import Ints, Op, axes_index, broadcast_shapes


class Pointwise(Op):
    """Each output element from the operands' elements at the same (broadcast) position.

    A subclass gives `scalar`, and `numpy`. The result has the first operand's dtype unless `result_dtype` says
    otherwise.
    """

    def scalar(self, *args: Expr) -> Expr:
        """The result from the operands' elements."""
        raise TypeError(f"{self.name} has no `scalar` rule")

    def result_dtype(self, *dtypes: DType) -> DType:
        """The result's dtype from the operands'."""
        return dtypes[0]

    def infer(self, *types: TensorType) -> TensorType:
        shape = broadcast_shapes(self.name, *(t.shape for t in types))
        return TensorType(self.result_dtype(*(t.dtype for t in types)), shape)

    def permuted(self, permutation: Ints) -> Op:
        return self

    def compute(self, out: tuple[Axis, ...], *buffers: Buffer) -> Expr:
        return self.scalar(*(b.broadcast(out) for b in buffers))


class OverAxes(Op):
    """An op that reduces along axes to one element each.

    `axes` (also written `axis`) None means all. The reduced dims stay as 1 with `keepdims`, else they go. The result
    has the operand's dtype unless `result_dtype` says otherwise.
    """

    synonyms = {"axis": "axes"}
    axes: Ints | int | None = None
    keepdims: bool = False

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        axes = known(cls.name, "axes", attrs.get("axes"))
        return {**attrs, "axes": axes_index(cls.name, axes, types[0].rank)}

    def result_dtype(self, dtype: DType) -> DType:
        """The result's dtype from the operand's."""
        return dtype

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(self.result_dtype(x.dtype), reduced_shape(x.shape, self.over, self.keepdims))

    def permuted(self, permutation: Ints) -> Op | None:
        if not self.keepdims:
            return None
        return dataclasses.replace(self, axes=tuple(sorted(permutation.index(a) for a in self.over)))

    @property
    def over(self) -> Ints:
        """The axes, resolved."""
        assert isinstance(self.axes, tuple)
        return self.axes


class Reduction(OverAxes):
    """Combine elements along axes; a subclass gives `kind` and `numpy`, and may change `element`, what is combined."""

    def kind(self) -> str:
        """How `Reduce` combines."""
        raise TypeError(f"{self.name} has no `kind`")

    def element(self, x: Expr) -> Expr:
        """What is combined, from an element of the operand."""
        return x

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        index, over = reduction_index(out, x.shape, self.over, self.keepdims)
        element = self.element(x[index])
        return cast(reduce(self.kind(), element, *over) if over else element, self.result_dtype(x.dtype))


def accumulator(dtype: DType) -> DType:
    """The dtype that sums and products of a dtype are formed in: float32 for the narrower floats."""
    return float32 if dtype.is_float and dtype.bits < 32 else dtype


def reduced_shape(shape: tuple[Size, ...], axes: Ints, keepdims: bool) -> tuple[Size, ...]:
    """The shape left by a reduction."""
    if keepdims:
        return tuple(1 if d in axes else n for d, n in enumerate(shape))
    return tuple(n for d, n in enumerate(shape) if d not in axes)


def reduction_index(
    out: tuple[Axis, ...], shape: tuple[Size, ...], axes: Ints, keepdims: bool
) -> tuple[tuple[Expr, ...], tuple[Axis, ...]]:
    """Index into the operand of a reduction, and the reduced axes in it."""
    over = {d: Axis(shape[d], f"r{d}") for d in axes}
    kept = iter(out)
    index: list[Expr] = []
    for d in range(len(shape)):
        own = next(kept) if d not in axes or keepdims else None
        index.append(over[d] if d in axes else own or over[d])
    return tuple(index), tuple(over.values())


def count(shape: tuple[Size, ...], axes: Ints) -> Size:
    """How many elements each result of a reduction combines."""
    return dims.product(shape[d] for d in axes)
