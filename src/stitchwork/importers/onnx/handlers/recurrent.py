"""Recurrent layers: LSTM, GRU and RNN as loops over time, with all steps' input products computed at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stitchwork.importers.onnx.node import Node
from stitchwork.importers.onnx.registry import F, Results, onnx_op
from stitchwork.importers.onnx.scan import scan
from stitchwork.ir import dtypes
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Value

Activation = Callable[[Value], Value]
# One step: (input products [b, gates * h], states [b, h] each) -> next states, the first of which is the output.
Step = Callable[[Value, Sequence[Value]], list[Value]]


@dataclass
class Layer:
    """Operands and attributes that the three layers share. x is [time, batch, features]."""

    node: Node
    x: Value
    hidden: int
    directions: int
    batch_first: bool
    lengths: Value | None

    @property
    def steps(self) -> Size:
        return self.x.shape[0]

    @property
    def batch(self) -> Size:
        return self.x.shape[1]

    def part(self, k: int, direction: int) -> Value | None:
        """Operand k of one direction, without the dim of directions."""
        value = self.node.optional(k)
        return None if value is None else F.slice(value, (direction,), (direction + 1,), squeeze_mask=1)

    def initial(self, k: int, direction: int) -> Value:
        """An initial state [b, h] from operand k, zeros where that is left out."""
        value = self.node.optional(k)
        if value is None:
            return F.broadcast(np.zeros((), self.x.dtype.numpy), shape=(self.batch, self.hidden))
        if self.batch_first:
            value = F.permute(value, permutation=(1, 0, 2))
        state = F.slice(value, (direction,), (direction + 1,), squeeze_mask=1)
        # The batch of the state must be that of x; where that is not evident, it is checked at each run.
        return state if state.shape[0] == self.batch else F.reshape(state, shape=(self.batch, self.hidden))


def _layer(node: Node, lengths: int) -> Layer:
    x = node[0]
    direction = node.string("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise node.invalid("attribute `direction` is not valid", got=direction)
    hidden = node[2].shape[-1]
    if not isinstance(hidden, int):
        raise node.unsupported("a hidden size that is not known")
    first = bool(node.int("layout", 0))
    x = F.permute(x, permutation=(1, 0, 2)) if first else x
    return Layer(node, x, hidden, 2 if direction == "bidirectional" else 1, first, node.optional(lengths))


def _activations(node: Node, defaults: Sequence[str], directions: int) -> list[list[Activation]]:
    """The activations of each direction."""
    names = list(node.string_list("activations", tuple(defaults) * directions))
    alphas, betas = list(node.float_list("activation_alpha", ())), list(node.float_list("activation_beta", ()))
    made: list[Activation] = []
    for name in names:
        alpha = alphas.pop(0) if name in _WITH_ALPHA and alphas else None
        beta = betas.pop(0) if name in _WITH_BETA and betas else None
        made.append(_activation(node, name, alpha, beta))
    if len(made) != len(defaults) * directions:
        raise node.invalid(
            "attribute `activations` does not name them all",
            expected=str(len(defaults) * directions),
            got=str(len(made)),
        )
    return [made[d * len(defaults) : (d + 1) * len(defaults)] for d in range(directions)]


_WITH_ALPHA = ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")
_WITH_BETA = ("Affine", "ScaledTanh", "HardSigmoid")
_PLAIN = {"Sigmoid": "sigmoid", "Tanh": "tanh", "Relu": "relu", "Softsign": "softsign", "Softplus": "softplus"}


def _activation(node: Node, name: str, alpha: float | None, beta: float | None) -> Activation:
    if name in _PLAIN:
        return getattr(F, _PLAIN[name])
    a, b = alpha, beta
    if name == "LeakyRelu":
        return lambda x: F.leaky_relu(x, 0.01 if a is None else a)
    if name == "Elu":
        return lambda x: F.elu(x, 1.0 if a is None else a)
    if name == "HardSigmoid":
        return lambda x: F.hard_sigmoid(x, 0.2 if a is None else a, 0.5 if b is None else b)
    if name == "Affine":
        return lambda x: F.addition(F.multiplication(x, 1.0 if a is None else a), 0.0 if b is None else b)
    if name == "ScaledTanh":
        return lambda x: F.multiplication(F.tanh(F.multiplication(x, 1.0 if b is None else b)), 1.0 if a is None else a)
    if name == "ThresholdedRelu":
        return lambda x: F.select(F.greater_than(x, 1.0 if a is None else a), x, 0.0)
    raise node.unsupported(f"activation `{name}`")


def _clipped(node: Node, activation: Activation) -> Activation:
    if not node.has("clip"):
        return activation
    limit = node.float("clip")
    return lambda x: activation(F.clamp(x, -limit, limit))


def _run(
    layer: Layer, products: Sequence[Value], steps: Sequence[Step], states: Sequence[Sequence[Value]]
) -> list[Value]:
    """Y [time, directions, batch, hidden], then each last state [directions, batch, hidden]."""
    outputs: list[Value] = []
    last: list[list[Value]] = []
    reverse_first = layer.node.string("direction", "forward") == "reverse"
    for d in range(layer.directions):
        finals, y = _run_direction(layer, products[d], steps[d], states[d], reverse_first or d == 1)
        outputs.append(y)
        last.append(finals)
    y = F.stack(outputs, axis=1)
    joined = [F.stack(list(s), axis=0) for s in zip(*last, strict=True)]
    if layer.batch_first:
        return [F.permute(y, permutation=(2, 0, 1, 3)), *(F.permute(s, permutation=(1, 0, 2)) for s in joined)]
    return [y, *joined]


def _run_direction(
    layer: Layer, products: Value, step: Step, states: Sequence[Value], reverse: bool
) -> tuple[list[Value], Value]:
    lengths = None if layer.lengths is None else F.reshape(F.cast(layer.lengths, dtypes.int64), shape=(-1, 1))

    def body(t: Value, carried: Sequence[Value], here: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        made = step(here[0], carried)
        if lengths is None:
            return made, [made[0]]
        active = F.less_than(
            F.reshape(F.cast(t, dtypes.int64), shape=(1, 1)), lengths
        )  # past its end a row keeps its state
        kept = [F.select(active, new, old) for new, old in zip(made, carried, strict=True)]
        return kept, [F.select(active, made[0], np.zeros((), made[0].dtype.numpy))]

    finals, (y,) = scan(layer.steps, list(states), [products], body, reverse)
    return finals, y


def _products(layer: Layer, direction: int, gates: int, recurrent_bias: int) -> tuple[Value, Value, Value | None]:
    """x @ W' + bias for all steps [time, batch, gates * h]; R'; the last gate's recurrent bias, where it stays apart.

    Of the recurrent biases, those of the first `recurrent_bias` gates are added here.
    """
    w, r, b = layer.part(1, direction), layer.part(2, direction), layer.part(3, direction)
    assert w is not None and r is not None
    product = F.matmul(layer.x, F.transpose(w))
    apart: Value | None = None
    if b is not None:
        h = layer.hidden
        product = F.addition(product, F.slice(b, (0,), (gates * h,)))
        recurrent = F.slice(b, (gates * h,), (2 * gates * h,))
        if recurrent_bias == gates:
            product = F.addition(product, recurrent)
        else:
            early = F.slice(recurrent, (0,), (recurrent_bias * h,))
            product = F.addition(product, F.pad(early, (0,), ((gates - recurrent_bias) * h,)))
            apart = F.slice(recurrent, (recurrent_bias * h,), (gates * h,))
    return product, F.transpose(r), apart


def _gate(x: Value, k: int, hidden: int) -> Value:
    return F.slice(x, (None, k * hidden), (None, (k + 1) * hidden))


@onnx_op("LSTM")
def lstm(node: Node) -> Results:
    layer = _layer(node, 4)
    h = layer.hidden
    chosen = _activations(node, ("Sigmoid", "Tanh", "Tanh"), layer.directions)
    coupled = bool(node.int("input_forget", 0))
    products: list[Value] = []
    steps: list[Step] = []
    for d in range(layer.directions):
        product, r, _ = _products(layer, d, 4, 4)
        peephole = layer.part(7, d)
        peeps = None if peephole is None else [F.slice(peephole, (k * h,), ((k + 1) * h,)) for k in range(3)]
        f, g, out = (_clipped(node, a) if k < 2 else a for k, a in enumerate(chosen[d]))
        products.append(product)
        steps.append(_lstm_step(h, r, peeps, f, g, out, coupled))
    states = [(layer.initial(5, d), layer.initial(6, d)) for d in range(layer.directions)]
    return _run(layer, products, steps, states)


def _lstm_step(
    h: int, r: Value, peeps: Sequence[Value] | None, f: Activation, g: Activation, out: Activation, coupled: bool
) -> Step:
    def step(product: Value, states: Sequence[Value]) -> list[Value]:
        hidden, cell = states
        gates = F.addition(product, F.matmul(hidden, r))
        i, o, forget, c = (_gate(gates, k, h) for k in range(4))  # ONNX's order
        if peeps is not None:
            i = F.addition(i, F.multiplication(peeps[0], cell))
            forget = F.addition(forget, F.multiplication(peeps[2], cell))
        i = f(i)
        forget = F.subtraction(1.0, i) if coupled else f(forget)
        cell = F.addition(F.multiplication(forget, cell), F.multiplication(i, g(c)))
        if peeps is not None:
            o = F.addition(o, F.multiplication(peeps[1], cell))
        return [F.multiplication(f(o), out(cell)), cell]

    return step


@onnx_op("GRU")
def gru(node: Node) -> Results:
    layer = _layer(node, 4)
    linear = bool(node.int("linear_before_reset", 0))
    chosen = _activations(node, ("Sigmoid", "Tanh"), layer.directions)
    products: list[Value] = []
    steps: list[Step] = []
    for d in range(layer.directions):
        product, r, apart = _products(layer, d, 3, 2 if linear else 3)
        f, g = (_clipped(node, a) for a in chosen[d])
        products.append(product)
        steps.append(_gru_step(layer.hidden, r, apart, f, g, linear))
    return _run(layer, products, steps, [(layer.initial(5, d),) for d in range(layer.directions)])


def _gru_step(h: int, r: Value, apart: Value | None, f: Activation, g: Activation, linear: bool) -> Step:
    def step(product: Value, states: Sequence[Value]) -> list[Value]:
        (hidden,) = states
        pz, pr, ph = (_gate(product, k, h) for k in range(3))  # ONNX's order: update, reset, hidden
        rz, rr, rh = (_gate(r, k, h) for k in range(3))
        z = f(F.addition(pz, F.matmul(hidden, rz)))
        reset = f(F.addition(pr, F.matmul(hidden, rr)))
        if linear:
            inner = F.matmul(hidden, rh)
            inner = F.multiplication(reset, inner if apart is None else F.addition(inner, apart))
        else:
            inner = F.matmul(F.multiplication(reset, hidden), rh)
        new = g(F.addition(ph, inner))
        return [F.addition(F.multiplication(F.subtraction(1.0, z), new), F.multiplication(z, hidden))]

    return step


@onnx_op("RNN")
def rnn(node: Node) -> Results:
    layer = _layer(node, 4)
    chosen = _activations(node, ("Tanh",), layer.directions)
    products: list[Value] = []
    steps: list[Step] = []
    for d in range(layer.directions):
        product, r, _ = _products(layer, d, 1, 1)
        products.append(product)
        steps.append(_rnn_step(r, _clipped(node, chosen[d][0])))
    return _run(layer, products, steps, [(layer.initial(5, d),) for d in range(layer.directions)])


def _rnn_step(r: Value, f: Activation) -> Step:
    return lambda product, states: [f(F.addition(product, F.matmul(states[0], r)))]
