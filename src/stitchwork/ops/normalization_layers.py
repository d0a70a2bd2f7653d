"""Normalisation layers: by the statistics of the data itself, or per channel. All are made of other ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._contents import known
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, axes_index, axis_index, operand, require_equal, sample
from stitchwork.ops._values import convert, wide
from stitchwork.ops._windows import wide as wide_array
from stitchwork.ops.normalization import check_broadcasts, normalized, optional_wide


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
        F.normalize(own, mean, variance, optional_wide(gamma), optional_wide(beta), epsilon=epsilon), x.dtype
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


layer_norm, rms_norm = F.layer_norm, F.rms_norm
batch_norm, instance_norm, group_norm = F.batch_norm, F.instance_norm, F.group_norm
