"""Normalisation by statistics given as tensors, and its gradients. All are made of other ops."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._contents import known
from stitchwork.ops._families import count, reduced_shape
from stitchwork.ops._op import (
    Array,
    Op,
    Operand,
    Sample,
    axes_index,
    broadcast_shapes,
    operand,
    require_equal,
    sample,
)
from stitchwork.ops._values import convert, size_scalar, wide
from stitchwork.ops._windows import wide as wide_array


def check_broadcasts(op: Op, x: TensorType, **others: TensorType | None) -> None:
    """Raises OpError where one of `others` does not broadcast to the shape of x."""
    for name, t in others.items():
        if t is None:
            continue
        fits = t.rank <= x.rank
        if fits:
            made = broadcast_shapes(op.name, x.shape, t.shape)
            fits = all(
                require_equal(op.name, a, b, f"`{name}` broadcasts to x") for a, b in zip(made, x.shape, strict=True)
            )
        if not fits:
            raise op.fail(f"`{name}` does not broadcast to x", expected=f"dims of {x}, or 1", got=str(t))


def normalized(
    x: Array, mean: Array, variance: Array, gamma: Array | None, beta: Array | None, epsilon: float
) -> Array:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta, narrow floats in float32."""
    made = (wide_array(x) - wide_array(mean)) / np.sqrt(wide_array(variance) + np.asarray(epsilon, wide_array(x).dtype))
    made = made if gamma is None else made * wide_array(gamma)
    made = made if beta is None else made + wide_array(beta)
    return made.astype(x.dtype)


def optional_wide(x: Value | None) -> Value | None:
    """`wide`, for an operand that may be left out."""
    return None if x is None else wide(x)


class Normalize(Op, name="normalize"):
    """Normalise by statistics given as tensors: (x - mean) / sqrt(variance + epsilon) * gamma + beta.

    mean, variance, gamma and beta (the last two optional) broadcast to x. Which normalisation this is depends on the
    axes over which mean and variance were taken: for [n, h, w, c] data, axes (0, 1, 2) make it batch, (1, 2) instance,
    (-1,) layer normalisation. Result: shape and dtype of x; narrow floats are computed in float32.
    """

    x: Operand = operand("...", "float")
    mean: Operand = operand("...", "float")
    variance: Operand = operand("...", "float")
    gamma: Operand = operand("...", "float", optional=True)
    beta: Operand = operand("...", "float", optional=True)
    epsilon: float = 1e-5

    def infer(
        self, x: TensorType, mean: TensorType, variance: TensorType, gamma: TensorType | None, beta: TensorType | None
    ) -> TensorType:
        check_broadcasts(self, x, mean=mean, variance=variance, gamma=gamma, beta=beta)
        return x

    def numpy(self, x: Array, mean: Array, variance: Array, gamma: Array | None, beta: Array | None) -> Array:
        return normalized(x, mean, variance, gamma, beta, self.epsilon)

    def decompose(self, x: Value, mean: Value, variance: Value, gamma: Value | None, beta: Value | None) -> Value:
        made = (wide(x) - wide(mean)) * F.rsqrt(wide(variance) + self.epsilon)
        made = made if gamma is None else made * wide(gamma)
        made = made if beta is None else made + wide(beta)
        return convert(made, x.dtype)

    def vjp(
        self, ct: Value, x: Value, mean: Value, variance: Value, gamma: Value | None, beta: Value | None
    ) -> Sequence[Value | None]:
        scale = F.rsqrt(wide(variance) + self.epsilon)
        centred = wide(x) - wide(mean)
        grown = wide(ct) if gamma is None else wide(ct) * wide(gamma)
        dx = grown * scale
        dvariance = dx * centred * (scale * scale * -0.5)
        dgamma = None if gamma is None else convert(wide(ct) * centred * scale, x.dtype)
        return (
            convert(dx, x.dtype),
            convert(-dx, x.dtype),
            convert(dvariance, x.dtype),
            dgamma,
            None if beta is None else ct,
        )

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        positive = np.linspace(0.5, 2, 4, dtype=np.float32)
        yield sample((2, 3, 5, 4), (1, 1, 1, 4), positive.reshape(1, 1, 1, 4), (1, 1, 1, 4), (4,))
        yield sample((2, 3, 4), (2, 3, 1), np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3, 1), epsilon=0.1)
        yield sample((3, 4), (), np.float32(2), None, (4,))
        yield Sample(((3, 4), (4,), positive.astype(np.float16)), {}, dtype="f16", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`mean` does not broadcast to x", sample((3, 1), (3, 4), (3, 1))
        yield "`gamma` does not broadcast to x", sample((4,), (1,), (1,), (3, 4))
        yield "shapes do not broadcast", sample((3, 4), (3,), (3, 1))


# --- gradients of the explicit form ---------------------------------------------------------------------------------
class Gradient(Op):
    """Attributes of the gradients: `axes` are those of the normalisation."""

    axes: Any = None
    epsilon: float = 1e-5
    synonyms = {"axis": "axes", "reduction_axes": "axes"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {**attrs, "axes": axes_index(cls.name, known(cls.name, "axes", attrs.get("axes")), types[0].rank)}

    def check_same(self, gradient: TensorType, source: TensorType) -> None:
        """Raises OpError where gradient and source differ in shape."""
        same = gradient.rank == source.rank and all(
            require_equal(self.name, a, b, f"dim {d} of gradient and source")
            for d, (a, b) in enumerate(zip(gradient.shape, source.shape, strict=True))
        )
        if not same:
            raise self.fail("`gradient` and `source` differ in shape", expected=str(source), got=str(gradient))


class NormalizationGammaGradient(Gradient, name="normalization_gamma_gradient"):
    """Cotangent of gamma of `normalize`: the sum over axes of gradient * (source - mean) / sqrt(variance + epsilon).

    gradient, source: as result and x; mean, variance as given to it. The summed dims are kept as 1.
    """

    gradient: Operand = operand("...", "float")
    source: Operand = operand("...", "float")
    mean: Operand = operand("...", "float")
    variance: Operand = operand("...", "float")

    def infer(self, gradient: TensorType, source: TensorType, mean: TensorType, variance: TensorType) -> TensorType:
        self.check_same(gradient, source)
        check_broadcasts(self, source, mean=mean, variance=variance)
        return source.with_shape(reduced_shape(source.shape, self.axes, True))

    def numpy(self, gradient: Array, source: Array, mean: Array, variance: Array) -> Array:
        x = normalized(wide_array(source), mean, variance, None, None, self.epsilon)
        return (wide_array(gradient) * x).sum(self.axes, keepdims=True).astype(source.dtype)

    def decompose(self, gradient: Value, source: Value, mean: Value, variance: Value) -> Value:
        x = (wide(source) - wide(mean)) * F.rsqrt(wide(variance) + self.epsilon)
        return convert(F.reduction_sum(wide(gradient) * x, axes=self.axes, keepdims=True), source.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        positive = np.linspace(0.5, 2, 4, dtype=np.float32).reshape(1, 1, 4)
        yield sample((2, 3, 4), (2, 3, 4), (1, 1, 4), positive, axes=(0, 1))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "differ in shape", sample((2, 3), (2, 4), (1, 1), (1, 1), axes=0)


class NormalizationBetaGradient(Gradient, name="normalization_beta_gradient"):
    """Cotangent of beta of `normalize`: the sum over axes of gradient. The summed dims are kept as 1."""

    gradient: Operand = operand("...", "float")
    source: Operand = operand("...", "float")

    def infer(self, gradient: TensorType, source: TensorType) -> TensorType:
        self.check_same(gradient, source)
        return source.with_shape(reduced_shape(source.shape, self.axes, True))

    def numpy(self, gradient: Array, source: Array) -> Array:
        return wide_array(gradient).sum(self.axes, keepdims=True).astype(source.dtype)

    def decompose(self, gradient: Value, source: Value) -> Value:
        return F.reduction_sum(gradient, axes=self.axes, keepdims=True)

    def vjp(self, ct: Value, gradient: Value, source: Value) -> tuple[Value, None]:
        return F.broadcast(ct, shape=gradient.shape), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 3, 4), (2, 3, 4), axes=(0, 1))


class NormalizationGradient(Gradient, name="normalization_gradient"):
    """Cotangent of x of `normalize` where mean and variance are those of x over `axes`:

    (g - mean(g) - x' * mean(g * x')) / sqrt(variance + epsilon),   g = gradient * gamma, x' = normalised source

    gradient, source: as result and x; mean, variance, gamma as given to it. gamma_gradient and beta_gradient, where
    they are known already (the ops of that name), save sums; they hold where gamma is constant along `axes`.
    """

    gradient: Operand = operand("...", "float")
    source: Operand = operand("...", "float")
    mean: Operand = operand("...", "float")
    variance: Operand = operand("...", "float")
    gamma: Operand = operand("...", "float", optional=True)
    gamma_gradient: Operand = operand("...", "float", optional=True)
    beta_gradient: Operand = operand("...", "float", optional=True)

    def infer(self, gradient: TensorType, source: TensorType, *others: TensorType | None) -> TensorType:
        self.check_same(gradient, source)
        names = ("mean", "variance", "gamma", "gamma_gradient", "beta_gradient")
        check_broadcasts(self, source, **dict(zip(names, others, strict=True)))
        return source

    def numpy(self, gradient: Array, source: Array, mean: Array, variance: Array, *rest: Array | None) -> Array:
        gamma, gamma_gradient, beta_gradient = (None if r is None else wide_array(r) for r in rest)
        x = normalized(wide_array(source), mean, variance, None, None, self.epsilon)
        g = wide_array(gradient) if gamma is None else wide_array(gradient) * gamma
        number = math.prod(source.shape[a] for a in self.axes)
        factor = 1 if gamma is None else gamma
        of_g = g.mean(self.axes, keepdims=True) if beta_gradient is None else beta_gradient * factor / number
        of_gx = (g * x).mean(self.axes, keepdims=True) if gamma_gradient is None else gamma_gradient * factor / number
        made = (g - of_g - x * of_gx) / np.sqrt(wide_array(variance) + np.asarray(self.epsilon, x.dtype))
        return made.astype(source.dtype)

    def decompose(self, gradient: Value, source: Value, mean: Value, variance: Value, *rest: Value | None) -> Value:
        gamma, gamma_gradient, beta_gradient = map(optional_wide, rest)
        scale = F.rsqrt(wide(variance) + self.epsilon)
        x = (wide(source) - wide(mean)) * scale
        g = wide(gradient) if gamma is None else wide(gradient) * gamma
        number = size_scalar(x, count(source.shape, self.axes), x.dtype)

        def average(known_sum: Value | None, of: Value) -> Value:
            if known_sum is None:
                return F.reduction_sum(of, axes=self.axes, keepdims=True) / number
            return (known_sum if gamma is None else known_sum * gamma) / number

        made = (g - average(beta_gradient, g) - x * average(gamma_gradient, g * x)) * scale
        return convert(made, source.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        positive = np.linspace(0.5, 2, 4, dtype=np.float32).reshape(1, 1, 4)
        yield sample((2, 3, 4), (2, 3, 4), (1, 1, 4), positive, (1, 1, 4), axes=(0, 1))
        yield sample((2, 3, 4), (2, 3, 4), (1, 1, 4), positive, (1, 1, 4), (1, 1, 4), (1, 1, 4), axes=(0, 1))
        yield sample((2, 3), (2, 3), (2, 1), np.ones((2, 1), np.float32), axes=-1, epsilon=0.0)


normalize, normalization_gradient = F.normalize, F.normalization_gradient
normalization_gamma_gradient = F.normalization_gamma_gradient
normalization_beta_gradient = F.normalization_beta_gradient
