"""Softmax, its logarithm, and the cross-entropy of both with labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._families import count, reduced_shape
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, axis_index, operand, require_equal, sample
from stitchwork.ops._values import convert, size_scalar, spread, wide
from stitchwork.ops._windows import choice
from stitchwork.ops._windows import wide as wide_array


class AlongAxis(Op):
    """An op that treats every row along `axis` alone."""

    axis: int = -1

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {**attrs, "axis": axis_index(cls.name, attrs.get("axis", -1), types[0].rank)}

    def permuted(self, permutation: Ints) -> Op | None:
        return dataclasses.replace(self, axis=permutation.index(self.axis))

    def check_same(self, a: TensorType, b: TensorType, names: str) -> None:
        """Raises OpError where two operands differ in shape."""
        if a.rank != b.rank or not all(
            require_equal(self.name, m, n, f"dim {d} of {names}")
            for d, (m, n) in enumerate(zip(a.shape, b.shape, strict=True))
        ):
            raise self.fail(f"{names} differ in shape", expected=str(b), got=str(a))


def shifted(x: Value, axis: int) -> Value:
    """x minus the largest element of its row, wide: exponentials of it cannot overflow."""
    own = wide(x)
    return own - F.stop_gradient(F.reduction_maximum(own, axes=axis, keepdims=True))


def softmax_of(x: Value, axis: int) -> Value:
    """Softmax, wide."""
    exponentials = F.exp(shifted(x, axis))
    return exponentials / F.reduction_sum(exponentials, axes=axis, keepdims=True)


def log_softmax_of(x: Value, axis: int) -> Value:
    """Logarithm of softmax, wide."""
    own = shifted(x, axis)
    return own - F.log(F.reduction_sum(F.exp(own), axes=axis, keepdims=True))


def _softmax(x: Array, axis: int) -> Array:
    return np.exp(_log_softmax(x, axis))


def _log_softmax(x: Array, axis: int) -> Array:
    own = wide_array(x)
    own = own - own.max(axis, keepdims=True, initial=-np.inf)
    return own - np.log(np.exp(own).sum(axis, keepdims=True))


class Softmax(AlongAxis, name="softmax"):
    """exp(x) / sum of exp(x) along `axis` (last unless given), without overflow. Shape and dtype of x; narrow floats
    are computed in float32.
    """

    x: Operand = operand("... d", "float")

    def infer(self, x: TensorType) -> TensorType:
        return x

    def numpy(self, x: Array) -> Array:
        return _softmax(x, self.axis).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        return convert(softmax_of(x, self.axis), x.dtype)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.softmax_gradient(ct, x, axis=self.axis),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4))
        yield sample((2, 3, 4), axis=1)
        yield sample((5,), axis=0)
        yield sample((2, 1))
        yield Sample(((2, 0),), {}, grad=False)
        yield Sample(((3, 7),), {}, domain=(-200, 200), grad=False)
        yield Sample(((3, 7),), {}, dtype="bf16", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`axis` is out of range", sample((3, 4), axis=2)
        yield "`x` has rank 0", sample(())


class LogSoftmax(AlongAxis, name="log_softmax"):
    """x - log(sum of exp(x)) along `axis` (last unless given), without overflow. Shape and dtype of x."""

    x: Operand = operand("... d", "float")

    def infer(self, x: TensorType) -> TensorType:
        return x

    def numpy(self, x: Array) -> Array:
        return _log_softmax(x, self.axis).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        return convert(log_softmax_of(x, self.axis), x.dtype)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        own = wide(ct)
        total = F.reduction_sum(own, axes=self.axis, keepdims=True)
        return (convert(own - softmax_of(x, self.axis) * total, x.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4))
        yield sample((2, 3, 4), axis=-2)
        yield Sample(((3, 7),), {}, domain=(-200, 200), grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`axis` is out of range", sample((3, 4), axis=-3)


class SoftmaxGradient(AlongAxis, name="softmax_gradient"):
    """Cotangent of x of `softmax`: s * (gradient - sum of gradient * s), s = softmax(source) along `axis`.

    gradient: that of the result; source: x (not the result), of the same shape.
    """

    gradient: Operand = operand("... d", "float")
    source: Operand = operand("...", "float")

    def infer(self, gradient: TensorType, source: TensorType) -> TensorType:
        self.check_same(gradient, source, "gradient and source")
        return source

    def numpy(self, gradient: Array, source: Array) -> Array:
        s, g = _softmax(source, self.axis), wide_array(gradient)
        return (s * (g - (g * s).sum(self.axis, keepdims=True))).astype(source.dtype)

    def decompose(self, gradient: Value, source: Value) -> Value:
        s, g = softmax_of(source, self.axis), wide(gradient)
        return convert(s * (g - F.reduction_sum(g * s, axes=self.axis, keepdims=True)), source.dtype)

    def vjp(self, ct: Value, gradient: Value, source: Value) -> tuple[Value, Value]:
        s, g, c = softmax_of(source, self.axis), wide(gradient), wide(ct)
        of_c = F.reduction_sum(c * s, axes=self.axis, keepdims=True)
        ds = c * g - c * F.reduction_sum(g * s, axes=self.axis, keepdims=True) - g * of_c
        dsource = s * (ds - F.reduction_sum(ds * s, axes=self.axis, keepdims=True))
        return convert(s * (c - of_c), gradient.dtype), convert(dsource, source.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4), (3, 4))
        yield sample((2, 3, 4), (2, 3, 4), axis=0)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "differ in shape", sample((3, 4), (3, 5))


class Loss(AlongAxis):
    """Attributes of the cross-entropy."""

    reduction: str = "none"

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        reduction = choice(cls.name, attrs.get("reduction", "none"), ("none", "sum", "mean"), "reduction")
        return {**super().normalize(types, attrs), "reduction": reduction}

    def permuted(self, permutation: Ints) -> Op | None:
        return None

    def rest(self, rank: int) -> Ints:
        """All other axes."""
        return tuple(d for d in range(rank) if d != self.axis)

    def result(self, source: TensorType) -> tuple[Any, ...]:
        """Shape of the loss."""
        return reduced_shape(source.shape, (self.axis,), False) if self.reduction == "none" else ()

    def spread(self, gradient: Value, source: Value) -> Value:
        """The gradient of each row, with `axis` kept as 1."""
        kept = reduced_shape(source.shape, (self.axis,), True)
        own = wide(gradient)
        if self.reduction == "none":
            return F.reshape(own, kept)
        if self.reduction == "mean":
            own = own / size_scalar(own, count(source.shape, self.rest(source.rank)), own.dtype)
        return spread(own, kept, tuple(range(len(kept))), False)

    def spread_array(self, gradient: Array, source: Array) -> Array:
        """`spread` on arrays."""
        shape: Any = reduced_shape(source.shape, (self.axis,), True)
        own = wide_array(gradient)
        if self.reduction == "none":
            return own.reshape(shape)
        return np.broadcast_to(own / (np.prod(shape, dtype=own.dtype) if self.reduction == "mean" else 1), shape)


class SoftmaxCrossEntropy(Loss, name="softmax_cross_entropy"):
    """Cross-entropy of labels with softmax(source): -sum along `axis` of labels * log(softmax(source)).

    source: logits; labels: probabilities of the same shape (not class numbers; use one_hot). reduction: "none" gives
    one loss per row (`axis` goes), "sum" and "mean" (over all other axes) a scalar. Result dtype: that of source.
    """

    source: Operand = operand("... d", "float")
    labels: Operand = operand("...", "float")

    def infer(self, source: TensorType, labels: TensorType) -> TensorType:
        self.check_same(labels, source, "labels and source")
        return source.with_shape(self.result(source))

    def numpy(self, source: Array, labels: Array) -> Array:
        losses = -(wide_array(labels) * _log_softmax(source, self.axis)).sum(self.axis)
        made = losses if self.reduction == "none" else losses.sum() if self.reduction == "sum" else losses.mean()
        return np.asarray(made).astype(source.dtype)

    def decompose(self, source: Value, labels: Value) -> Value:
        losses = -F.reduction_sum(wide(labels) * log_softmax_of(source, self.axis), axes=self.axis)
        if self.reduction == "sum":
            losses = F.reduction_sum(losses)
        elif self.reduction == "mean":
            losses = F.reduction_sum(losses) / size_scalar(
                losses, count(losses.shape, tuple(range(losses.rank))), losses.dtype
            )
        return convert(losses, source.dtype)

    def vjp(self, ct: Value, source: Value, labels: Value) -> tuple[Value, Value]:
        each = self.spread(ct, source)
        dsource = F.softmax_cross_entropy_gradient(ct, source, labels, axis=self.axis, reduction=self.reduction)
        return dsource, convert(-each * log_softmax_of(source, self.axis), labels.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for reduction in ("none", "sum", "mean"):
            yield sample((3, 4), (3, 4), reduction=reduction)
        yield sample((2, 3, 4), (2, 3, 4), axis=1)
        yield sample((4,), (4,), reduction="mean")

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "labels and source differ in shape", sample((3, 4), (3, 5))
        yield "labels and source differ in shape", sample((3, 4), (3,))
        yield "unknown reduction", sample((3, 4), (3, 4), reduction="max")


class SoftmaxCrossEntropyGradient(Loss, name="softmax_cross_entropy_gradient"):
    """Cotangent of source of `softmax_cross_entropy`: gradient * (softmax(source) * sum of labels - labels).

    gradient: that of the loss (its shape depends on `reduction`; often the constant 1); source, labels, axis and
    reduction as there.
    """

    gradient: Operand = operand("...", "float")
    source: Operand = operand("... d", "float")
    labels: Operand = operand("...", "float")

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return super().normalize(types[1:], attrs)

    def infer(self, gradient: TensorType, source: TensorType, labels: TensorType) -> TensorType:
        self.check_same(labels, source, "labels and source")
        self.check_same(gradient, source.with_shape(self.result(source)), "gradient and loss")
        return source

    def numpy(self, gradient: Array, source: Array, labels: Array) -> Array:
        each, own = self.spread_array(gradient, source), wide_array(labels)
        made = each * (_softmax(source, self.axis) * own.sum(self.axis, keepdims=True) - own)
        return made.astype(source.dtype)

    def decompose(self, gradient: Value, source: Value, labels: Value) -> Value:
        each, own = self.spread(gradient, source), wide(labels)
        total = F.reduction_sum(own, axes=self.axis, keepdims=True)
        return convert(each * (softmax_of(source, self.axis) * total - own), source.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3,), (3, 4), (3, 4))
        yield sample((2, 4), (2, 3, 4), (2, 3, 4), axis=1)
        yield sample((), (3, 4), (3, 4), reduction="mean")
        yield sample((), (3, 4), (3, 4), reduction="sum")

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "gradient and loss differ in shape", sample((4,), (3, 4), (3, 4))


softmax, log_softmax, softmax_gradient = F.softmax, F.log_softmax, F.softmax_gradient
softmax_cross_entropy, softmax_cross_entropy_gradient = F.softmax_cross_entropy, F.softmax_cross_entropy_gradient
