"""Mean, variance, standard deviation, log-sum-exp and norms over axes.

Results are floats: integers and bools are averaged as float32. Narrow floats are computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stitchwork.ir.dtypes import DType, as_dtype, float32, real_of
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._families import OverAxes, count, reduced_shape
from stitchwork.ops._op import Array, Operand, Sample, operand, require_equal, sample
from stitchwork.ops._values import convert, size_scalar, spread, wide


class Statistic(OverAxes):
    """A reduction made of other ops, in float32 or wider."""

    def result_dtype(self, dtype: DType) -> DType:
        return dtype if dtype.kind in "fc" else float32

    def finish(self, kept: Value, x: Value) -> Value:
        """A wide result with its reduced dims kept, as this op returns it."""
        shape = reduced_shape(x.shape, self.over, self.keepdims)
        dtype = self.result_dtype(x.dtype)
        return convert(kept if self.keepdims else F.reshape(kept, shape=shape), dtype)

    def widened(self, x: Array) -> Array:
        """An array in the dtype that the result is computed in."""
        wide = x.astype(np.float32) if as_dtype(x.dtype).kind not in "fc" or x.dtype.itemsize < 4 else x
        return wide

    def narrowed(self, made: Array, x: Array) -> Array:
        """A result in this op's dtype."""
        return np.asarray(made).astype(self.result_dtype(as_dtype(x.dtype)).numpy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4))
        yield sample((3, 4, 5), axes=(0, -1))
        yield sample((3, 4, 5), axis=1, keepdims=True)
        yield sample((7, 33), axis=0)
        yield Sample(((5, 9),), {"axis": 1}, dtype="f16", grad=False)
        yield Sample(((5, 9),), {"axis": 1}, dtype="f64")

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`axes` is out of range", sample((3, 4), axes=2)


def average(x: Value, axes: tuple[int, ...], less: int = 0) -> Value:
    """Sum over axes, kept as 1, divided by their element count minus `less`."""
    total = F.reduction_sum(x, axes=axes, keepdims=True)
    return total / size_scalar(x, count(x.shape, axes) - less, real_of(x.dtype))


class Mean(Statistic, name="mean"):
    """Arithmetic mean over axes: Σ x / n. NaN over no elements."""

    x: Operand = operand("...", "number bool")

    def numpy(self, x: Array) -> Array:
        return self.narrowed(np.mean(self.widened(x), axis=self.over, keepdims=self.keepdims), x)

    def decompose(self, x: Value) -> Value:
        return self.finish(average(wide(x), self.over), x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value | None]:
        if x.dtype.kind not in "fc":
            return (None,)
        share = wide(ct) / size_scalar(x, count(x.shape, self.over), real_of(wide(ct).dtype))
        return (spread(convert(share, x.dtype), x.shape, self.over, self.keepdims),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield Sample(((5, 9),), {"axis": 0}, dtype="i32", grad=False)
        yield Sample(((5, 9),), {}, dtype="c64")
        yield sample((2, 3), axes=())


class Spread(Statistic):
    """What variance and standard deviation share: the mean may be given, and `ddof` is taken off the count."""

    ddof: int = 0

    def _variance(self, x: Array, mean: Array | None) -> Array:
        wide = self.widened(x)
        if mean is None:
            centre = np.mean(wide, axis=self.over, keepdims=True)
        else:
            kept = reduced_shape(x.shape, self.over, True)
            centre = self.widened(mean).reshape(*map(int, kept)) if mean.ndim != x.ndim else self.widened(mean)
        number = int(np.prod([x.shape[d] for d in self.over]))
        total = np.sum((wide - centre) ** 2, axis=self.over, keepdims=self.keepdims)
        return np.divide(total, np.asarray(number - self.ddof, total.dtype))

    def infer(self, x: TensorType, mean: TensorType | None = None) -> TensorType:
        if mean is not None:
            kept = mean.rank == x.rank
            wanted = x.with_shape(reduced_shape(x.shape, self.over, kept))
            if len(wanted.shape) != mean.rank or not all(
                require_equal(self.name, a, b, "mean has the shape of the mean")
                for a, b in zip(mean.shape, wanted.shape, strict=True)
            ):
                raise self.fail("`mean` does not have the shape of the mean", expected=str(wanted), got=str(mean))
        return super().infer(x)

    def centred(self, x: Value, mean: Value | None) -> Value:
        """x minus its mean, wide."""
        if mean is None:
            return wide(x) - average(wide(x), self.over)
        return wide(x) - F.reshape(wide(mean), shape=reduced_shape(x.shape, self.over, True))

    def wide_variance(self, x: Value, mean: Value | None) -> Value:
        """The variance with its dims kept."""
        centred = self.centred(x, mean)
        return average(centred * centred, self.over, self.ddof)

    def pull(self, ct: Value, x: Value, mean: Value | None) -> tuple[Value | None, ...]:
        """Cotangents for a wide cotangent of the variance whose dims are kept."""
        if x.dtype.kind != "f":
            return None, None
        number = size_scalar(x, count(x.shape, self.over) - self.ddof, ct.dtype)
        pulled = self.centred(x, mean) * (ct * 2.0 / number)
        if mean is None:
            return convert(pulled, x.dtype), None
        back = F.reshape(F.reduction_sum(-pulled, axes=self.over), shape=mean.shape)
        return convert(pulled, x.dtype), convert(back, mean.dtype)

    def kept(self, value: Value, x: Value) -> Value:
        """A result of this op with its reduced dims put back, wide."""
        return F.reshape(wide(value), shape=reduced_shape(x.shape, self.over, True))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for s in super().samples():
            yield Sample((*s.operands, None), s.attrs, dtype=s.dtype, grad=s.grad)
        yield sample((5, 9), (5,), axis=1)
        yield sample((5, 9), (5, 1), axis=1, keepdims=True)
        yield sample((5, 9), None, axis=0, ddof=1)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`axes` is out of range", sample((3, 4), None, axes=2)
        yield "`mean` does not have the shape of the mean", sample((3, 4), (4,), axes=1)


class Variance(Spread, name="variance", aliases=("var",)):
    """Variance over axes: Σ (x - mean)² / (n - ddof); `mean` may be given where it is known already.

    `ddof` is 0 unless given, as in NumPy: the population's variance.
    """

    x: Operand = operand("...", "float int bool")
    mean: Operand = operand("...", "float int bool", optional=True, same="")

    def numpy(self, x: Array, mean: Array | None = None) -> Array:
        return self.narrowed(self._variance(x, mean), x)

    def decompose(self, x: Value, mean: Value | None = None) -> Value:
        return self.finish(self.wide_variance(x, mean), x)

    def vjp(self, ct: Value, x: Value, mean: Value | None = None) -> tuple[Value | None, ...]:
        return self.pull(self.kept(ct, x), x, mean)


class StandardDeviation(Spread, name="standard_deviation", aliases=("std",)):
    """Standard deviation over axes: the square root of `variance`. Its gradient is 0 where the deviation is 0."""

    x: Operand = operand("...", "float int bool")
    mean: Operand = operand("...", "float int bool", optional=True, same="")

    def numpy(self, x: Array, mean: Array | None = None) -> Array:
        return self.narrowed(np.sqrt(self._variance(x, mean)), x)

    def decompose(self, x: Value, mean: Value | None = None) -> Value:
        return self.finish(F.sqrt(self.wide_variance(x, mean)), x)

    def vjp(self, ct: Value, x: Value, mean: Value | None = None) -> tuple[Value | None, ...]:
        deviation = F.sqrt(self.wide_variance(x, mean))
        flat = F.equal(deviation, 0.0)
        slope = F.select(flat, 0.0, 0.5 / F.select(flat, 1.0, deviation))
        return self.pull(self.kept(ct, x) * slope, x, mean)


class LogSumExp(Statistic, name="log_sum_exp", aliases=("logsumexp",)):
    """log Σ exp(x) over axes, without overflow: the maximum is taken out first. -inf over no elements."""

    x: Operand = operand("...", "float")

    def numpy(self, x: Array) -> Array:
        wide = self.widened(x)
        top = np.max(wide, axis=self.over, keepdims=True, initial=-np.inf)
        top = np.where(np.isfinite(top), top, 0).astype(wide.dtype)
        made = np.log(np.sum(np.exp(wide - top), axis=self.over, keepdims=True)) + top
        return self.narrowed(made if self.keepdims else made.squeeze(self.over), x)

    def decompose(self, x: Value) -> Value:
        high = F.reduction_maximum(wide(x), axes=self.over, keepdims=True)
        top = F.select(F.is_finite(high), high, 0.0)
        return self.finish(F.log(F.reduction_sum(F.exp(wide(x) - top), axes=self.over, keepdims=True)) + top, x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        total = F.log_sum_exp(wide(x), axes=self.over, keepdims=True)
        top = F.select(F.is_finite(total), total, 0.0)
        return (convert(spread(wide(ct), x.shape, self.over, self.keepdims) * F.exp(wide(x) - top), x.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield Sample((np.array([[1e4, 1e4], [-np.inf, -np.inf], [-1e4, 0]], np.float32),), {"axis": 1}, grad=False)


class L1Norm(Statistic, name="l1_norm"):
    """Sum of absolute values over axes: Σ |x|."""

    x: Operand = operand("...", "float int")

    def numpy(self, x: Array) -> Array:
        return self.narrowed(np.sum(np.abs(self.widened(x)), axis=self.over, keepdims=self.keepdims), x)

    def decompose(self, x: Value) -> Value:
        return self.finish(F.reduction_sum(F.absolute(wide(x)), axes=self.over, keepdims=True), x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value | None]:
        return (spread(ct, x.shape, self.over, self.keepdims) * F.sign(x) if x.dtype.is_float else None,)


class L2Norm(Statistic, name="l2_norm"):
    """Euclidean length over axes: sqrt(Σ x²). Its gradient at 0 is 0."""

    x: Operand = operand("...", "float int")

    def numpy(self, x: Array) -> Array:
        return self.narrowed(np.sqrt(np.sum(self.widened(x) ** 2, axis=self.over, keepdims=self.keepdims)), x)

    def decompose(self, x: Value) -> Value:
        return self.finish(F.sqrt(F.reduction_sum(wide(x) * wide(x), axes=self.over, keepdims=True)), x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value | None]:
        if not x.dtype.is_float:
            return (None,)
        length = F.l2_norm(wide(x), axes=self.over, keepdims=True)
        unit = wide(x) / F.select(F.equal(length, 0.0), 1.0, length)
        return (convert(spread(wide(ct), x.shape, self.over, self.keepdims) * unit, x.dtype),)
