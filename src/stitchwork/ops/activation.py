"""Activation functions and the gradients that the original names. Softmax is elsewhere: it is no pointwise op."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir.graph import Value
from stitchwork.loops.expr import Expr, call, const, where
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Operand, Sample, operand, sample
from stitchwork.ops._pointwise import Binary, Elementwise, Unary, standard_samples


class Relu(Elementwise, name="relu"):
    """max(x, 0); NaN stays NaN. Integers too."""

    x: Operand = operand("...", "real")

    def wide(self, x: Array) -> Any:
        return np.maximum(x, np.zeros((), x.dtype))

    def element(self, x: Expr) -> Expr:
        return x if x.dtype.kind == "u" else call("max", x, const(0, x.dtype))

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.relu_gradient(ct, x),)


class GradientOf(Binary):
    """The gradient of an activation from the incoming gradient and the activation's input, broadcast."""

    promotes = False
    gradient: Operand = operand("...", "float")
    source: Operand = operand("...", "float")


class ReluGradient(GradientOf, name="relu_gradient"):
    """`gradient` where `source`, the input of the relu, is positive, else 0."""

    def wide(self, gradient: Array, source: Array) -> Any:
        return np.where(source > 0, gradient, np.zeros((), gradient.dtype))

    def element(self, gradient: Expr, source: Expr) -> Expr:
        return where(source > 0, gradient, const(0, gradient.dtype))

    def vjp(self, ct: Value, gradient: Value, source: Value) -> tuple[Value, None]:
        return F.relu_gradient(ct, source), None


class Relu6(Unary, name="relu6"):
    """min(max(x, 0), 6); NaN stays NaN."""

    domain = (-3.0, 9.0)

    def wide(self, x: Array) -> Any:
        return np.minimum(np.maximum(x, 0), 6)

    def element(self, x: Expr) -> Expr:
        return call("min", call("max", x, const(0, x.dtype)), const(6, x.dtype))

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.select(F.bitwise_and(x > 0, x < 6), ct, 0),)


class LeakyRelu(Binary, name="leaky_relu"):
    """x where x > 0, else alpha * x; `alpha` is a number or a tensor, broadcast against x (a PReLU).

    The original's text says max(x, alpha), a slip for max(x, alpha * x), which for alpha <= 1 is the same.
    """

    promotes = False
    x: Operand = operand("...", "float")
    alpha: Operand = operand("...", "float")

    def wide(self, x: Array, alpha: Array) -> Any:
        return np.where(x > 0, x, alpha * x)

    def element(self, x: Expr, alpha: Expr) -> Expr:
        return where(x > 0, x, alpha * x)

    def vjp(self, ct: Value, x: Value, alpha: Value) -> tuple[Value, Value]:
        return F.leaky_relu_gradient(ct, x, alpha), F.select(x > 0, 0, ct * x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample((3, 4), 0.1)
        yield Sample(((3, 4), 0.1), {}, dtype="f16", grad=False)


class LeakyReluGradient(Elementwise, name="leaky_relu_gradient"):
    """`gradient` where `source`, the input of the leaky_relu, is positive, else alpha * gradient; all broadcast."""

    gradient: Operand = operand("...", "float")
    source: Operand = operand("...", "float")
    alpha: Operand = operand("...", "float")

    def wide(self, gradient: Array, source: Array, alpha: Array) -> Any:
        return np.where(source > 0, gradient, alpha * gradient)

    def element(self, gradient: Expr, source: Expr, alpha: Expr) -> Expr:
        return where(source > 0, gradient, alpha * gradient)

    def vjp(self, ct: Value, gradient: Value, source: Value, alpha: Value) -> tuple[Value, None, Value]:
        return F.leaky_relu_gradient(ct, source, alpha), None, F.select(source > 0, 0, ct * gradient)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample((3, 4), (3, 4), 0.1)


class Sigmoid(Unary, name="sigmoid", aliases=("logistic",)):
    """1 / (1 + e^-x)."""

    def wide(self, x: Array) -> Any:
        return _sigmoid_array(x)

    def element(self, x: Expr) -> Expr:
        return _sigmoid(x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (F.sigmoid_gradient(ct, x),)


def _sigmoid(x: Expr) -> Expr:
    return const(1, x.dtype) / (call("exp", -x) + 1)


def _sigmoid_array(x: Array) -> Any:
    return 1 / (1 + np.exp(-x))


class SigmoidGradient(GradientOf, name="sigmoid_gradient"):
    """gradient * s * (1 - s) with s = sigmoid(source); `source` is the input of the sigmoid, not its result."""

    def wide(self, gradient: Array, source: Array) -> Any:
        s = _sigmoid_array(source)
        return gradient * (s * (1 - s))

    def element(self, gradient: Expr, source: Expr) -> Expr:
        s = _sigmoid(source)
        return gradient * (s * (1 - s))

    def vjp(self, ct: Value, gradient: Value, source: Value) -> tuple[Value, Value]:
        slope = F.sigmoid_gradient(ct, source)
        return slope, slope * gradient * (1 - F.sigmoid(source) * 2)


class Silu(Unary, name="silu", aliases=("swish",)):
    """x * sigmoid(x)."""

    def wide(self, x: Array) -> Any:
        return x * _sigmoid_array(x)

    def element(self, x: Expr) -> Expr:
        return x * _sigmoid(x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        s = F.sigmoid(x)
        return (ct * s * (x * (1 - s) + 1),)


_ROOT_HALF = math.sqrt(0.5)
_ROOT_2_OVER_PI = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_QUICK = 1.702


class Gelu(Unary, name="gelu"):
    """x * P(X <= x) for a standard normal X: x * erfc(-x / sqrt(2)) / 2 (Hendrycks and Gimpel, arXiv:1606.08415).

    `approximate`: "none"; "tanh" for x/2 * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); "sigmoid" for
    x * sigmoid(1.702 x).
    """

    approximate: str = "none"

    def infer(self, *types: Any) -> Any:
        if self.approximate not in ("none", "tanh", "sigmoid"):
            raise self.fail(
                "`approximate` is unknown", expected='"none", "tanh" or "sigmoid"', got=repr(self.approximate)
            )
        return super().infer(*types)

    def wide(self, x: Array) -> Any:
        if self.approximate == "sigmoid":
            return x * _sigmoid_array(x * _QUICK)
        if self.approximate == "tanh":
            return 0.5 * x * (1 + np.tanh(_ROOT_2_OVER_PI * (x + _CUBIC * x * x * x)))
        erfc = np.frompyfunc(math.erfc, 1, 1)
        return 0.5 * x * np.asarray(erfc(-x.astype(np.float64) * _ROOT_HALF)).astype(x.dtype)

    def element(self, x: Expr) -> Expr:
        if self.approximate == "sigmoid":
            return x * _sigmoid(x * _QUICK)
        if self.approximate == "tanh":
            return x * 0.5 * (call("tanh", (x * x * x * _CUBIC + x) * _ROOT_2_OVER_PI) + 1)
        return x * 0.5 * call("erfc", x * -_ROOT_HALF)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        if self.approximate == "sigmoid":
            s = F.sigmoid(x * _QUICK)
            return (ct * s * (x * _QUICK * (1 - s) + 1),)
        squared = F.square(x)
        if self.approximate == "tanh":
            t = F.tanh((x + x * squared * _CUBIC) * _ROOT_2_OVER_PI)
            inner = (squared * (3 * _CUBIC) + 1) * _ROOT_2_OVER_PI
            return (ct * 0.5 * (t + 1 + x * (1 - F.square(t)) * inner),)
        density = F.exp(squared * -0.5) * (_ROOT_HALF / math.sqrt(math.pi))
        return (ct * (F.erfc(x * -_ROOT_HALF) * 0.5 + x * density),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        for approximate in ("tanh", "sigmoid"):
            yield from standard_samples(cls, (-4.0, 4.0), True, approximate=approximate)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`approximate` is unknown", sample((3,), approximate="exact")


class HardSigmoid(Unary, name="hard_sigmoid"):
    """alpha * x + beta, limited to [0, 1]; NaN stays NaN. Defaults as in ONNX; Keras 3 has alpha = 1/6."""

    alpha: float = 0.2
    beta: float = 0.5
    domain = (-4.0, 4.0)

    def wide(self, x: Array) -> Any:
        return np.minimum(np.maximum(x * self.alpha + self.beta, 0), 1)

    def element(self, x: Expr) -> Expr:
        return _unit(x * self.alpha + self.beta)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        y = x * self.alpha + self.beta
        return (F.select(F.bitwise_and(y > 0, y < 1), ct * self.alpha, 0),)


def _unit(x: Expr) -> Expr:
    return call("min", call("max", x, const(0, x.dtype)), const(1, x.dtype))


class HardSwish(Unary, name="hard_swish", aliases=("hard_silu",)):
    """x * (x / 6 + 1/2 limited to [0, 1])."""

    domain = (-5.0, 5.0)

    def wide(self, x: Array) -> Any:
        return x * np.minimum(np.maximum(x * (1 / 6) + 0.5, 0), 1)

    def element(self, x: Expr) -> Expr:
        return x * _unit(x * (1 / 6) + 0.5)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        middle = F.select(x < 3, x * (1 / 3) + 0.5, 1)
        return (ct * F.select(x > -3, middle, 0),)


class Elu(Unary, name="elu"):
    """x where x > 0, else alpha * (e^x - 1)."""

    alpha: float = 1.0

    def wide(self, x: Array) -> Any:
        return np.where(x > 0, x, self.alpha * np.expm1(x))

    def element(self, x: Expr) -> Expr:
        return where(x > 0, x, call("expm1", x) * self.alpha)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.select(x > 0, 1, F.exp(x) * self.alpha),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample((2, 3), alpha=0.3)


_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805


class Selu(Unary, name="selu"):
    """scale * (x where x > 0, else alpha * (e^x - 1)), with the constants of Klambauer et al., arXiv:1706.02515."""

    alpha: float = _SELU_ALPHA
    scale: float = _SELU_SCALE

    def wide(self, x: Array) -> Any:
        return self.scale * np.where(x > 0, x, self.alpha * np.expm1(x))

    def element(self, x: Expr) -> Expr:
        return where(x > 0, x, call("expm1", x) * self.alpha) * self.scale

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.select(x > 0, self.scale, F.exp(x) * (self.alpha * self.scale)),)


class Celu(Unary, name="celu"):
    """x where x > 0, else alpha * (e^(x / alpha) - 1); `alpha` is not 0."""

    alpha: float = 1.0

    def infer(self, *types: Any) -> Any:
        if self.alpha == 0:
            raise self.fail("`alpha` is 0", expected="a number other than 0")
        return super().infer(*types)

    def wide(self, x: Array) -> Any:
        return np.where(x > 0, x, self.alpha * np.expm1(x / self.alpha))

    def element(self, x: Expr) -> Expr:
        return where(x > 0, x, call("expm1", x / self.alpha) * self.alpha)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.select(x > 0, 1, F.exp(x * (1 / self.alpha))),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample((2, 3), alpha=0.3)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`alpha` is 0", sample((3,), alpha=0.0)


class Softplus(Unary, name="softplus"):
    """log(1 + e^x) without overflow: max(x, 0) + log1p(e^-|x|)."""

    def wide(self, x: Array) -> Any:
        return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))

    def element(self, x: Expr) -> Expr:
        return _softplus(x)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct * F.sigmoid(x),)


def _softplus(x: Expr) -> Expr:
    return call("max", x, const(0, x.dtype)) + call("log1p", call("exp", -call("abs", x)))


class Softsign(Unary, name="softsign"):
    """x / (1 + |x|)."""

    def wide(self, x: Array) -> Any:
        return x / (1 + np.abs(x))

    def element(self, x: Expr) -> Expr:
        return x / (call("abs", x) + 1)

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct / F.square(F.absolute(x) + 1),)


class Mish(Unary, name="mish"):
    """x * tanh(softplus(x)) (Misra, arXiv:1908.08681)."""

    def wide(self, x: Array) -> Any:
        return x * np.tanh(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))

    def element(self, x: Expr) -> Expr:
        return x * call("tanh", _softplus(x))

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        t = F.tanh(F.softplus(x))
        return (ct * (t + x * (1 - F.square(t)) * F.sigmoid(x)),)
