"""Recurrent layers. Each projects its input in one matrix product, then loops over time.

Shapes, with T times, batch N, I inputs, H hidden, and D = 2 where bidirectional, else 1: source [T, N, I], or the
projected input itself where input_weight is left out; results [T, N, D * H], the two directions side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from stitchwork.ir.dims import Size
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._op import Operand, Sample, operand, sample
from stitchwork.ops._recurrent import (
    Recurrent,
    Weights,
    activated,
    all_wide_arrays,
    gates,
    join,
    narrowed,
    over_time,
    reshaped,
    start_state,
    times_transposed,
)
from stitchwork.ops._windows import Sizes


def _kept(h: Any, w: Weights) -> Any:
    return h if w.mask is None else h * w.mask


class SingleGateRnn(Recurrent, name="single_gate_rnn"):
    """A recurrent layer with one gate:

    z[t] = source[t] @ input_weightᵀ + bias + (h[t-1] * mask) @ recurrent_weightᵀ,   h[t] = activation(z[t])

    source [T, N, I] (without input_weight [T, N, D * H]), recurrent_weight [H, H] (bidirectional [2, H, H]),
    input_weight [D * H, I], bias [D * H], init_state [N, D * H] (zeros unless given), mask [N, D * H] (recurrent
    dropout). Returns h [T, N, D * H]; with training (h, z). reverse: from the last time to the first (results stay at
    their times). activation: "relu", "tanh", "sigmoid", "hard_sigmoid" or "none".
    """

    gate_count: ClassVar[int] = 1
    source: Operand = operand("t n i", "float")
    recurrent_weight: Operand = operand("...", "float")
    input_weight: Operand = operand("g i", "float", optional=True)
    bias: Operand = operand("g", "float", optional=True)
    init_state: Operand = operand("...", "float", optional=True)
    mask: Operand = operand("...", "float", optional=True)
    activation: str = "relu"

    def infer(self, *operands: TensorType | None) -> Any:
        h, z = self.check(*operands)
        return (h, z) if self.training else h

    def numpy(self, *operands: Any) -> Any:
        return narrowed(self._run(*all_wide_arrays(operands)), operands[0])

    def decompose(self, *operands: Any) -> Any:
        return narrowed(self._run(*self.wide_values(operands)), operands[0])

    def _run(self, source: Any, recurrent: Any, input_weight: Any, bias: Any, state: Any, mask: Any) -> list[Any]:
        hidden = recurrent.shape[-1]

        def run(d: int, x: Any, backwards: bool) -> list[Any]:
            w = self.direction(d, recurrent, mask)

            def step(now: Any, states: Sequence[Any]) -> tuple[list[Any], list[Any]]:
                z = now + times_transposed(_kept(states[0], w), w.recurrent)
                h = activated(self.activation, z)
                return [h], [h, z] if self.training else [h]

            first = start_state(self.half(state, d), x, hidden)
            return over_time(x, [first], step, [hidden] * (2 if self.training else 1), backwards)

        return self.run_directions(self.projected(source, input_weight, bias), run)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 2, 4), (3, 3), (3, 4), (3,), None, None, activation="tanh")
        yield sample((3, 2, 3), (3, 3), None, None, (2, 3), (2, 3), reverse=True, training=True, activation="sigmoid")
        yield sample((2, 2, 4), (2, 3, 3), (6, 4), (6,), (2, 6), (2, 6), bidirectional=True, activation="none")
        yield sample((1, 1, 1), (1, 1), None, None, None, None)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`recurrent_weight` does not fit", sample((3, 2, 4), (3, 4), (3, 4), None, None, None)
        yield "`source` has no times", sample((0, 2, 4), (3, 3), (3, 4), None, None, None)
        yield "`recurrent_weight` has rank 2", sample((3, 2, 4), (3, 3), (6, 4), None, None, None, bidirectional=True)
        yield "`source` does not fit", sample((3, 2, 4), (3, 3), None, None, None, None)
        yield "`init_state` does not fit", sample((3, 2, 4), (3, 3), (3, 4), None, (3, 3), None)
        yield "unknown activation", sample((3, 2, 4), (3, 3), (3, 4), None, None, None, activation="gelu")


class Lstm(Recurrent, name="lstm"):
    """Long short-term memory:

    [i, f, z, o] = source[t] @ input_weightᵀ + bias + (h[t-1] * mask) @ recurrent_weightᵀ + peephole * c[t-1]
    c[t] = act(f) * c[t-1] + act(i) * act(z),   h[t] = act(o) * activation(c[t])

    source [T, N, I] (without input_weight [T, N, D * 4H]), recurrent_weight [4H, H] (bidirectional [2, 4H, H]),
    input_weight [D * 4H, I], bias [D * 4H], init_state and init_cell [N, D * H] (zeros unless given), mask [N, D * H]
    (recurrent dropout), peephole [4H] (bidirectional [2, 4H]). Gates are ordered i, f, z, o (PyTorch's order), with
    forget_gate_last i, z, f, o.

    Returns h [T, N, D * H]; with produce_cell or training (h, c); with training (h, c, gates), the gates before their
    activations, [T, N, D * 4H]. reverse: from the last time to the first. Activations as in `single_gate_rnn`.
    """

    gate_count: ClassVar[int] = 4
    source: Operand = operand("t n i", "float")
    recurrent_weight: Operand = operand("...", "float")
    input_weight: Operand = operand("g i", "float", optional=True)
    bias: Operand = operand("g", "float", optional=True)
    init_state: Operand = operand("...", "float", optional=True)
    init_cell: Operand = operand("...", "float", optional=True)
    mask: Operand = operand("...", "float", optional=True)
    peephole: Operand = operand("...", "float", optional=True)
    produce_cell: bool = False
    forget_gate_last: bool = False
    input_gate_activation: str = "sigmoid"
    forget_gate_activation: str = "sigmoid"
    cell_gate_activation: str = "tanh"
    output_gate_activation: str = "sigmoid"
    activation: str = "tanh"

    def extra_shapes(self, hidden: Size, whole: Sizes) -> dict[str, Sizes]:
        return {"init_cell": whole, "peephole": (2, hidden * 4) if self.bidirectional else (hidden * 4,)}

    def infer(self, *operands: TensorType | None) -> Any:
        h, z = self.check(*operands)
        return (h, h, z) if self.training else (h, h) if self.produce_cell else h

    def numpy(self, *operands: Any) -> Any:
        return narrowed(self._run(*all_wide_arrays(operands)), operands[0])

    def decompose(self, *operands: Any) -> Any:
        return narrowed(self._run(*self.wide_values(operands)), operands[0])

    def _run(
        self, source: Any, recurrent: Any, input_weight: Any, bias: Any, state: Any, cell: Any, mask: Any, peephole: Any
    ) -> list[Any]:
        hidden = recurrent.shape[-1]
        count = 3 if self.training else 2 if self.produce_cell else 1
        sizes: list[Size] = [hidden, hidden, hidden * 4]

        def run(d: int, x: Any, backwards: bool) -> list[Any]:
            w = self.direction(d, recurrent, mask, peephole=peephole)

            def step(now: Any, states: Sequence[Any]) -> tuple[list[Any], list[Any]]:
                h, c = states
                z = now + times_transposed(_kept(h, w), w.recurrent)
                if w.extra["peephole"] is not None:
                    apart = reshaped(w.extra["peephole"], (1, 4, hidden)) * reshaped(c, (c.shape[0], 1, hidden))
                    z = z + reshaped(apart, (c.shape[0], hidden * 4))
                h, c = self._cell(z, c)
                return [h, c], [h, c, z][:count]

            first = [start_state(self.half(s, d), x, hidden) for s in (state, cell)]
            return over_time(x, first, step, sizes[:count], backwards)

        return self.run_directions(self.projected(source, input_weight, bias), run)

    def _cell(self, z: Any, c: Any) -> tuple[Any, Any]:
        i, f, g, o = gates(z, 4)
        if self.forget_gate_last:
            f, g = g, f
        c = activated(self.forget_gate_activation, f) * c
        c = c + activated(self.input_gate_activation, i) * activated(self.cell_gate_activation, g)
        return activated(self.output_gate_activation, o) * activated(self.activation, c), c

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        none = (None, None, None, None)
        yield sample((3, 2, 4), (12, 3), (12, 4), (12,), *none)
        yield sample((2, 2, 12), (12, 3), None, None, (2, 3), (2, 3), (2, 3), (12,), training=True, reverse=True)
        yield sample(
            (2, 2, 4), (2, 8, 2), (16, 4), (16,), (2, 4), (2, 4), (2, 4), (2, 8), bidirectional=True, produce_cell=True
        )
        yield sample(
            (2, 1, 4), (12, 3), (12, 4), None, *none, forget_gate_last=True, input_gate_activation="hard_sigmoid"
        )

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        none = (None, None, None, None)
        yield "`recurrent_weight` does not fit", sample((3, 2, 4), (9, 3), (12, 4), (12,), *none)
        yield "`bias` does not fit", sample((3, 2, 12), (12, 3), None, (3,), *none)
        yield "`peephole` does not fit", sample((3, 2, 4), (12, 3), (12, 4), (12,), None, None, None, (9,))


class Gru(Recurrent, name="gru"):
    """Gated recurrent unit, with x' = source[t] @ input_weightᵀ + bias, h = h[t-1], m = h * mask, and R the rows of
    recurrent_weight for each gate:

    z = act(x'_z + m @ R_zᵀ),   r = act(x'_r + m @ R_rᵀ)
    o = act(x'_o + (m * r) @ R_oᵀ),   or with reset_after  o = act(x'_o + (m @ R_oᵀ + secondary_bias) * r)
    h[t] = z * h + (1 - z) * o,   or with flip_z  (1 - z) * h + z * o

    Gates are ordered z, r, o, with reset_gate_first r, z, o. The default mix is that of PyTorch and ONNX (the
    original's texts contradict each other). source [T, N, I] (without input_weight [T, N, D * 3H]), recurrent_weight
    [3H, H] (bidirectional [2, 3H, H]), input_weight [D * 3H, I], bias [D * 3H], init_state [N, D * H] (zeros unless
    given), mask [N, D * H] (recurrent dropout), secondary_bias [D * H] (with reset_after only).

    Returns h [T, N, D * H]; with training (h, gates), the gates before their activations, [T, N, D * 3H]. reverse: from
    the last time to the first. Activations as in `single_gate_rnn`.
    """

    gate_count: ClassVar[int] = 3
    source: Operand = operand("t n i", "float")
    recurrent_weight: Operand = operand("...", "float")
    input_weight: Operand = operand("g i", "float", optional=True)
    bias: Operand = operand("g", "float", optional=True)
    init_state: Operand = operand("...", "float", optional=True)
    mask: Operand = operand("...", "float", optional=True)
    secondary_bias: Operand = operand("b", "float", optional=True)
    reset_gate_first: bool = False
    reset_after: bool = False
    flip_z: bool = False
    update_gate_activation: str = "sigmoid"
    reset_gate_activation: str = "sigmoid"
    output_gate_activation: str = "tanh"

    def extra_shapes(self, hidden: Size, whole: Sizes) -> dict[str, Sizes]:
        return {"secondary_bias": whole[1:]}

    def infer(self, *operands: TensorType | None) -> Any:
        if operands[-1] is not None and not self.reset_after:
            raise self.fail("`secondary_bias` without reset_after", expected="reset_after=True, or no secondary_bias")
        h, z = self.check(*operands)
        return (h, z) if self.training else h

    def numpy(self, *operands: Any) -> Any:
        return narrowed(self._run(*all_wide_arrays(operands)), operands[0])

    def decompose(self, *operands: Any) -> Any:
        return narrowed(self._run(*self.wide_values(operands)), operands[0])

    def _run(
        self, source: Any, recurrent: Any, input_weight: Any, bias: Any, state: Any, mask: Any, secondary: Any
    ) -> list[Any]:
        hidden = recurrent.shape[-1]
        sizes: list[Size] = [hidden, hidden * 3]
        count = 2 if self.training else 1

        def run(d: int, x: Any, backwards: bool) -> list[Any]:
            w = self.direction(d, recurrent, mask, secondary=secondary)
            apart = reshaped(w.recurrent, (3, hidden, hidden))
            first_two, last = reshaped(apart[:2], (hidden * 2, hidden)), apart[2]

            def step(now: Any, states: Sequence[Any]) -> tuple[list[Any], list[Any]]:
                h, parts = self._cell(
                    gates(now, 3), states[0], _kept(states[0], w), first_two, last, w.extra["secondary"]
                )
                return [h], [h, self._joined(parts)][:count]

            return over_time(x, [start_state(self.half(state, d), x, hidden)], step, sizes[:count], backwards)

        return self.run_directions(self.projected(source, input_weight, bias), run)

    def _cell(
        self, now: Sequence[Any], h: Any, kept: Any, first_two: Any, last: Any, secondary: Any
    ) -> tuple[Any, list[Any]]:
        """The next state, and the gates before their activations in the order of the weights."""
        seen = gates(times_transposed(kept, first_two), 2)
        parts = [now[0] + seen[0], now[1] + seen[1]]
        z, r = reversed(parts) if self.reset_gate_first else parts
        z, r = activated(self.update_gate_activation, z), activated(self.reset_gate_activation, r)
        if self.reset_after:
            c = times_transposed(kept, last)
            c = (c if secondary is None else c + secondary) * r
        else:
            c = times_transposed(kept * r, last)
        parts.append(now[2] + c)
        o = activated(self.output_gate_activation, parts[2])
        return (h + z * (o - h) if self.flip_z else o + z * (h - o)), parts

    def _joined(self, parts: Sequence[Any]) -> Any:
        grown = [reshaped(p, (p.shape[0], 1, p.shape[1])) for p in parts]
        whole = join(grown, 1)
        return reshaped(whole, (whole.shape[0], whole.shape[2] * 3))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 2, 4), (9, 3), (9, 4), (9,), None, None, None)
        yield sample((2, 2, 9), (9, 3), None, None, (2, 3), (2, 3), (3,), reset_after=True, training=True, reverse=True)
        yield sample(
            (2, 2, 4),
            (2, 6, 2),
            (12, 4),
            (12,),
            (2, 4),
            (2, 4),
            (4,),
            bidirectional=True,
            reset_after=True,
            flip_z=True,
        )
        yield sample((2, 1, 4), (9, 3), (9, 4), None, None, None, None, reset_gate_first=True, training=True)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "`secondary_bias` without reset_after", sample((3, 2, 9), (9, 3), None, None, None, None, (3,))
        yield "`input_weight` does not fit", sample((3, 2, 4), (9, 3), (12, 4), None, None, None, None)


single_gate_rnn, lstm, gru = F.single_gate_rnn, F.lstm, F.gru
