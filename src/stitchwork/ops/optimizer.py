"""Steps of optimizers: new values from old values and gradients. Nothing is written; `assign` does that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Op, Operand, Sample, operand, require_equal
from stitchwork.ops._values import convert, wide


class Step(Op):
    """An op on tensors of one shape, in the dtype of the first; narrow floats are computed in float32."""

    def check_shapes(self, **types: TensorType) -> None:
        """Raises OpError unless all have the shape of the first."""
        (first, wanted), *rest = types.items()
        for name, t in rest:
            same = t.rank == wanted.rank and all(
                require_equal(self.name, m, n, f"dim {d} of {first} and {name}")
                for d, (m, n) in enumerate(zip(wanted.shape, t.shape, strict=True))
            )
            if not same:
                raise self.fail(f"`{name}` and `{first}` differ in shape", expected=str(wanted), got=str(t))


def _wide_arrays(arrays: Sequence[Array | None]) -> list[Any]:
    return [x.astype(np.float32) if x is not None and x.dtype.itemsize < 4 else x for x in arrays]


def _wide_values(values: Sequence[Value | None], like: Value) -> list[Any]:
    """Values as they are computed with: tensors get the sizes of `like`, which a run has checked to be equal."""
    return [None if v is None else wide(v if v.rank == 0 else _with_sizes(v, like)) for v in values]


def _with_sizes(x: Value, like: Value) -> Value:
    return x if x.shape == like.shape else F.reshape(x, shape=like.shape)


class StochasticGradientDescent(Step, name="sgd"):
    """A step of stochastic gradient descent: values - learning_rate · gradient.

    learning_rate is a number or a tensor of rank 0; the result has the shape and dtype of `values`.
    """

    learning_rate: Operand = operand("")
    values: Operand = operand("...")
    gradient: Operand = operand("...")

    def infer(self, learning_rate: TensorType, values: TensorType, gradient: TensorType) -> TensorType:
        self.check_shapes(values=values, gradient=gradient)
        return values

    def numpy(self, learning_rate: Array, values: Array, gradient: Array) -> Array:
        rate, x, g = _wide_arrays((learning_rate, values, gradient))
        return np.asarray(x - rate * g).astype(values.dtype)

    def decompose(self, learning_rate: Value, values: Value, gradient: Value) -> Value:
        rate, x, g = _wide_values((learning_rate, values, gradient), values)
        return convert(x - rate * g, values.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample((0.1, (3, 4), (3, 4)), {})
        yield Sample((0.5, (), ()), {}, dtype="f64")
        yield Sample((np.array(0.1, np.float16), (5,), (5,)), {}, dtype="f16")
        yield Sample((0.1, (0, 4), (0, 4)), {})

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`gradient` and `values` differ in shape", Sample((0.1, (3, 4), (4, 3)), {})
        yield "`learning_rate` has rank 1", Sample(((1,), (3,), (3,)), {})


class AdamWithCurrentLearningRate(Step, name="adam_with_current_learning_rate"):
    """A step of Adam whose learning rate has been corrected for the bias of the first steps already.

    m = beta1 · momentum + (1 - beta1) · gradient;  v = beta2 · velocity + (1 - beta2) · gradient²;
    x = values - current_learning_rate · m / (sqrt(v) + epsilon).

    Gives (x, m, v). With `maximum_velocity` (AMSGrad) the root is of w = max(maximum_velocity, v), and the result is
    (x, m, v, w). Rates and epsilon are numbers or tensors of rank 0; all else has the shape of `values`. Source: Kingma
    and Ba 2015, section 2; Reddi et al. 2018.
    """

    current_learning_rate: Operand = operand("")
    beta1: Operand = operand("")
    beta2: Operand = operand("")
    epsilon: Operand = operand("")
    values: Operand = operand("...")
    momentum: Operand = operand("...")
    velocity: Operand = operand("...")
    gradient: Operand = operand("...")
    maximum_velocity: Operand = operand("...", optional=True)

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return _infer_adam(self, types[4:])

    def numpy(self, *arrays: Array | None) -> tuple[Array, ...]:
        return _adam_arrays(*arrays)

    def decompose(self, *values: Value | None) -> tuple[Value, ...]:
        rate, beta1, beta2, epsilon, x, m, v, g, w = _wide_values(values, cast("Value", values[4]))
        dtype = cast("Value", values[4]).dtype
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * F.square(g)
        w = None if w is None else F.maximum(w, v)
        x = x - rate * m / (F.sqrt(v if w is None else w) + epsilon)
        return tuple(convert(each, dtype) for each in (x, m, v, w) if each is not None)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _adam_samples((0.1, 0.9, 0.99, 1e-3))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        shapes = ((3, 4), (4, 3), (3, 4), (3, 4))
        yield "`momentum` and `values` differ in shape", Sample((0.1, 0.9, 0.99, 1e-3, *shapes), {})


class Adam(Step, name="adam"):
    """A step of Adam: `adam_with_current_learning_rate` at learning_rate · sqrt(1 - beta2_power) / (1 - beta1_power).

    beta1_power and beta2_power are beta1 and beta2 to the number of this step, 1 for the first. Gives (x, m, v), or
    (x, m, v, w) with `maximum_velocity`.
    """

    learning_rate: Operand = operand("")
    beta1: Operand = operand("")
    beta2: Operand = operand("")
    epsilon: Operand = operand("")
    beta1_power: Operand = operand("")
    beta2_power: Operand = operand("")
    values: Operand = operand("...")
    momentum: Operand = operand("...")
    velocity: Operand = operand("...")
    gradient: Operand = operand("...")
    maximum_velocity: Operand = operand("...", optional=True)

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return _infer_adam(self, types[6:])

    def numpy(self, *arrays: Array | None) -> tuple[Array, ...]:
        rate, beta1, beta2, epsilon, power1, power2, *rest = _wide_arrays(arrays)
        dtype = cast("Array", arrays[6]).dtype
        made = _adam_arrays(rate * np.sqrt(1 - power2) / (1 - power1), beta1, beta2, epsilon, *rest)
        return tuple(x.astype(dtype) for x in made)

    def decompose(self, *values: Value | None) -> tuple[Value, ...]:
        rate, beta1, beta2, epsilon, power1, power2, x, *rest = _wide_values(values, cast("Value", values[6]))
        dtype = cast("Value", values[6]).dtype
        corrected = rate * F.sqrt(1 - power2) / (1 - power1)
        made = F.adam_with_current_learning_rate(corrected, beta1, beta2, epsilon, x, *rest)
        return tuple(convert(each, dtype) for each in made)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _adam_samples((0.1, 0.9, 0.99, 1e-3, 0.81, 0.98))

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        shapes = ((3, 4), (3, 4), (3, 4), (3, 1))
        yield "`gradient` and `values` differ in shape", Sample((0.1, 0.9, 0.99, 1e-3, 0.9, 0.99, *shapes), {})
        yield "operand `gradient` is missing", Sample((0.1, 0.9, 0.99, 1e-3, 0.9, 0.99, (3,), (3,), (3,)), {})


def _infer_adam(op: Step, types: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
    names = ("values", "momentum", "velocity", "gradient", "maximum_velocity")
    given = {n: t for n, t in zip(names, types, strict=True) if t is not None}
    op.check_shapes(**given)
    return (given["values"],) * (len(given) - 1)


def _adam_arrays(*arrays: Array | None) -> tuple[Array, ...]:
    rate, beta1, beta2, epsilon, x, m, v, g, w = _wide_arrays(arrays)
    dtype = cast("Array", arrays[4]).dtype
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    w = None if w is None else np.maximum(w, v)
    x = x - rate * m / (np.sqrt(v if w is None else w) + epsilon)
    return tuple(np.asarray(each).astype(dtype) for each in (x, m, v, w) if each is not None)


def _adam_samples(numbers: tuple[float, ...]) -> Iterator[Sample]:
    positive = (0.1, 2.0)
    yield Sample((*numbers, (3, 4), (3, 4), (3, 4), (3, 4)), {}, positive)
    yield Sample((*numbers, (7,), (7,), (7,), (7,), (7,)), {}, positive)
    yield Sample((*numbers, (), (), (), ()), {}, positive, "f64")
    yield Sample((*numbers, (0,), (0,), (0,), (0,)), {}, positive)
    narrow = tuple(np.array(x, np.float16) for x in numbers)
    yield Sample((*narrow, (5,), (5,), (5,), (5,)), {}, positive, "f16", tolerance=2.0)


sgd = F.sgd
