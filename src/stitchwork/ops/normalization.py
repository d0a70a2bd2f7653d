"""Normalisation by given or own statistics, and the gradients of the explicit form. All are made of other ops."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._contents import known
from stitchwork.ops._families import count, reduced_shape
from stitchwork.ops._op import (
    Array,
    Ints,
    Op,
    Operand,
    Sample,
    axes_index,
    axis_index,
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


def _optional_wide(x: Value | None) -> Value | None:
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
        gamma, gamma_gradient, beta_gradient = map(_optional_wide, rest)
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


# --- layers ---------------------------------------------------------------------------------------------------------
class LayerNorm(Op, name="layer_norm"):
    """Normalise each row over `axes` (the last dim unless given) by its own mean and population variance, then * gamma
    + beta where given, which broadcast to x. Result: shape and dtype of x; narrow floats are computed in float32.
    """

    x: Operand = operand("...", "float")
    gamma: Operand = operand("...", "float", optional=True)
    beta: Operand = operand("...", "float", optional=True)
    axes: Any = -1
    epsilon: float = 1e-5
    synonyms = {"axis": "axes"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {**attrs, "axes": axes_index(cls.name, known(cls.name, "axes", attrs.get("axes", -1)), types[0].rank)}

    def infer(self, x: TensorType, gamma: TensorType | None, beta: TensorType | None) -> TensorType:
        check_broadcasts(self, x, gamma=gamma, beta=beta)
        return x

    def numpy(self, x: Array, gamma: Array | None, beta: Array | None) -> Array:
        own = wide_array(x)
        mean, variance = own.mean(self.axes, keepdims=True), own.var(self.axes, keepdims=True)
        return normalized(own, mean, variance, gamma, beta, self.epsilon).astype(x.dtype)

    def decompose(self, x: Value, gamma: Value | None, beta: Value | None) -> Value:
        return by_own_statistics(x, self.axes, gamma, beta, self.epsilon)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 5), (5,), (5,))
        yield sample((2, 3, 4), (3, 4), None, axes=(-1, -2))
        yield sample((3, 1), None, None, epsilon=0.5)
        yield Sample(((2, 9), (9,), (9,)), {}, dtype="f16", grad=False)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`axes` is out of range", sample((2, 5), None, None, axes=2)
        yield "shapes do not broadcast", sample((2, 5), (4,), None)


def by_own_statistics(x: Value, axes: Ints, gamma: Value | None, beta: Value | None, epsilon: float) -> Value:
    """x normalised by its mean and variance over `axes`."""
    own = wide(x)
    mean = F.mean(own, axes=axes, keepdims=True)
    variance = F.variance(own, mean, axes=axes, keepdims=True)
    return convert(
        F.normalize(own, mean, variance, _optional_wide(gamma), _optional_wide(beta), epsilon=epsilon), x.dtype
    )


class RmsNorm(Op, name="rms_norm"):
    """x / sqrt(mean of x² over `axes` + epsilon), times gamma where given, which broadcasts to x. axes: the last dim
    unless given. Result: shape and dtype of x; narrow floats are computed in float32.
    """

    x: Operand = operand("...", "float")
    gamma: Operand = operand("...", "float", optional=True)
    axes: Any = -1
    epsilon: float = 1e-5
    synonyms = {"axis": "axes"}

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {**attrs, "axes": axes_index(cls.name, known(cls.name, "axes", attrs.get("axes", -1)), types[0].rank)}

    def infer(self, x: TensorType, gamma: TensorType | None) -> TensorType:
        check_broadcasts(self, x, gamma=gamma)
        return x

    def numpy(self, x: Array, gamma: Array | None) -> Array:
        own = wide_array(x)
        made = own / np.sqrt((own * own).mean(self.axes, keepdims=True) + np.asarray(self.epsilon, own.dtype))
        return (made if gamma is None else made * wide_array(gamma)).astype(x.dtype)

    def decompose(self, x: Value, gamma: Value | None) -> Value:
        own = wide(x)
        made = own * F.rsqrt(F.mean(own * own, axes=self.axes, keepdims=True) + self.epsilon)
        return convert(made if gamma is None else made * wide(gamma), x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 5), (5,))
        yield sample((2, 3, 4), None, axes=(1, 2))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "shapes do not broadcast", sample((2, 5), (4,))


class PerChannel(Op):
    """Normalisations with one gamma and beta per channel, [c]."""

    epsilon: float = 1e-5
    channel_axis: int = -1

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        return {
            **attrs,
            "channel_axis": axis_index(cls.name, attrs.get("channel_axis", -1), types[0].rank, "channel_axis"),
        }

    def check_channels(self, x: TensorType, **vectors: TensorType | None) -> None:
        """Raises OpError where a vector does not have one element per channel."""
        c = x.shape[self.channel_axis]
        for name, v in vectors.items():
            if v is not None and not require_equal(self.name, v.shape[0], c, f"length of `{name}` == channels of x"):
                raise self.fail(f"`{name}` does not have one element per channel", expected=f"[{c}]", got=str(v))

    def along(self, rank: int, v: Any) -> Any:
        """A vector shaped such that it broadcasts along the channel axis; None stays None."""
        if v is None:
            return None
        shape: tuple[Size, ...] = tuple(v.shape[0] if d == self.channel_axis else 1 for d in range(rank))
        return F.reshape(v, shape) if isinstance(v, Value) else v.reshape(shape)


class BatchNorm(PerChannel, name="batch_norm"):
    """Batch normalisation at inference: (x - mean) / sqrt(variance + epsilon) * gamma + beta, per channel.

    mean, variance and (optional) gamma, beta: [c] with c the size of x along channel_axis (last unless given). Result:
    shape and dtype of x.
    """

    x: Operand = operand("...", "float")
    mean: Operand = operand("c", "float")
    variance: Operand = operand("c", "float")
    gamma: Operand = operand("c", "float", optional=True)
    beta: Operand = operand("c", "float", optional=True)

    def infer(self, x: TensorType, *vectors: TensorType | None) -> TensorType:
        self.check_channels(x, **dict(zip(("mean", "variance", "gamma", "beta"), vectors, strict=True)))
        return x

    def numpy(self, x: Array, mean: Array, variance: Array, gamma: Array | None, beta: Array | None) -> Array:
        shaped = [self.along(x.ndim, v) for v in (mean, variance, gamma, beta)]
        return normalized(x, shaped[0], shaped[1], shaped[2], shaped[3], self.epsilon)

    def decompose(self, x: Value, *vectors: Value | None) -> Value:
        return F.normalize(x, *(self.along(x.rank, v) for v in vectors), epsilon=self.epsilon)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        positive = np.linspace(0.5, 2, 4, dtype=np.float32)
        yield sample((2, 3, 5, 4), (4,), positive, (4,), (4,))
        yield sample((2, 4, 3), (4,), positive, None, (4,), channel_axis=1)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`mean` does not have one element per channel", sample((2, 3), (2,), (2,))


class InstanceNorm(PerChannel, name="instance_norm"):
    """Normalise each channel of each batch element by its own mean and population variance over the other dims.

    x [n, ..., c] (channels at channel_axis, last unless given); gamma, beta [c], optional. Result: shape and dtype of
    x.
    """

    x: Operand = operand("...", "float")
    gamma: Operand = operand("c", "float", optional=True)
    beta: Operand = operand("c", "float", optional=True)

    def infer(self, x: TensorType, gamma: TensorType | None, beta: TensorType | None) -> TensorType:
        if x.rank < 3 or self.channel_axis == 0:
            raise self.fail(
                "x has no spatial dims", expected="[n, spatial..., c], channels at channel_axis", got=str(x)
            )
        self.check_channels(x, gamma=gamma, beta=beta)
        return x

    def _spatial(self, rank: int) -> Ints:
        return tuple(d for d in range(1, rank) if d != self.channel_axis)

    def numpy(self, x: Array, gamma: Array | None, beta: Array | None) -> Array:
        own, axes = wide_array(x), self._spatial(x.ndim)
        mean, variance = own.mean(axes, keepdims=True), own.var(axes, keepdims=True)
        made = normalized(own, mean, variance, self.along(x.ndim, gamma), self.along(x.ndim, beta), self.epsilon)
        return made.astype(x.dtype)

    def decompose(self, x: Value, gamma: Value | None, beta: Value | None) -> Value:
        shaped = (self.along(x.rank, gamma), self.along(x.rank, beta))
        return by_own_statistics(x, self._spatial(x.rank), *shaped, self.epsilon)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 3, 5, 4), (4,), (4,))
        yield sample((2, 4, 3), (4,), None, channel_axis=1)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "no spatial dims", sample((2, 3), None, None)
        yield "`gamma` does not have one element per channel", sample((2, 3, 4), (3,), None)


class GroupNorm(PerChannel, name="group_norm"):
    """Normalise each group of neighbouring channels of each batch element by its own mean and population variance.

    x [n, ..., c] (channels at channel_axis, last unless given) with c a multiple of groups; gamma, beta [c], optional.
    Result: shape and dtype of x.
    """

    x: Operand = operand("...", "float")
    gamma: Operand = operand("c", "float", optional=True)
    beta: Operand = operand("c", "float", optional=True)
    groups: int = 1

    def infer(self, x: TensorType, gamma: TensorType | None, beta: TensorType | None) -> TensorType:
        if x.rank < 2 or self.channel_axis == 0:
            raise self.fail("x has no batch dim before the channels", expected="[n, ..., c]", got=str(x))
        self.check_channels(x, gamma=gamma, beta=beta)
        c = x.shape[self.channel_axis]
        if self.groups < 1 or not require_equal(self.name, dims.mod(c, self.groups), 0, "channels divide into groups"):
            raise self.fail(
                "channels do not divide into groups", expected=f"a multiple of groups={self.groups}", got=str(c)
            )
        return x

    def _apart(self, shape: tuple[Size, ...]) -> tuple[tuple[Size, ...], Ints]:
        """Shape with the channels taken apart, and the axes to average over."""
        a = self.channel_axis
        apart = (*shape[:a], self.groups, dims.floordiv(shape[a], self.groups), *shape[a + 1 :])
        return apart, tuple(d for d in range(1, len(apart)) if d != a)

    def numpy(self, x: Array, gamma: Array | None, beta: Array | None) -> Array:
        apart: tuple[Any, Ints] = self._apart(x.shape)
        own = wide_array(x).reshape(apart[0])
        mean, variance = own.mean(apart[1], keepdims=True), own.var(apart[1], keepdims=True)
        made = normalized(own, mean, variance, None, None, self.epsilon).reshape(x.shape)
        made = made if gamma is None else made * wide_array(self.along(x.ndim, gamma))
        made = made if beta is None else made + wide_array(self.along(x.ndim, beta))
        return made.astype(x.dtype)

    def decompose(self, x: Value, gamma: Value | None, beta: Value | None) -> Value:
        apart, axes = self._apart(x.shape)
        made = F.reshape(by_own_statistics(F.reshape(wide(x), apart), axes, None, None, self.epsilon), x.shape)
        made = made if gamma is None else made * wide(self.along(x.rank, gamma))
        made = made if beta is None else made + wide(self.along(x.rank, beta))
        return convert(made, x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 3, 6), (6,), (6,), groups=2)
        yield sample((2, 6, 3, 2), None, (6,), groups=3, channel_axis=1)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "do not divide into groups", sample((2, 3, 5), None, None, groups=2)


normalize, layer_norm, rms_norm = F.normalize, F.layer_norm, F.rms_norm
batch_norm, instance_norm, group_norm = F.batch_norm, F.instance_norm, F.group_norm
normalization_gradient, normalization_gamma_gradient = F.normalization_gradient, F.normalization_gamma_gradient
normalization_beta_gradient = F.normalization_beta_gradient
