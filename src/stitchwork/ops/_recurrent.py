"""What recurrent layers share: weights of one or two directions, and the loop over time.

The step of a cell is written once, for tensors and for arrays: `Ops` says how each does what operators cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import int32
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Op, require_at_least, require_equal
from stitchwork.ops._values import convert, filled, size_scalar, wide
from stitchwork.ops._windows import Sizes, choice
from stitchwork.ops._windows import wide as wide_array
from stitchwork.ops.control_flow import for_loop

ACTIVATIONS = ("none", "relu", "tanh", "sigmoid", "hard_sigmoid")
Step = Callable[..., Any]  # (x of this time, states) -> (next states, results)


class Weights(NamedTuple):
    """Operands of one direction, shaped for it: tensors or arrays; None where left out."""

    recurrent: Any  # [gates * hidden, hidden]
    mask: Any  # broadcasts to [batch, hidden]
    extra: dict[str, Any]  # other vectors, [its gates * hidden]


def activated(name: str, x: Any) -> Any:
    """An activation function of a tensor or array."""
    if name == "none":
        return x
    if isinstance(x, Value):
        return {"relu": F.relu, "tanh": F.tanh, "sigmoid": F.sigmoid, "hard_sigmoid": F.hard_sigmoid}[name](x)
    if name == "relu":
        return np.maximum(x, 0)
    if name == "tanh":
        return np.tanh(x)
    return np.clip(x * 0.2 + 0.5, 0, 1) if name == "hard_sigmoid" else 1 / (1 + np.exp(-x))


def times_transposed(x: Any, w: Any) -> Any:
    """x @ wᵀ."""
    return F.batch_matmul(x, w, transpose_b=True) if isinstance(x, Value) else x @ w.T


def reshaped(x: Any, shape: Sequence[Size]) -> Any:
    """A tensor or array with another shape."""
    return F.reshape(x, tuple(shape)) if isinstance(x, Value) else x.reshape(tuple(shape))


def gates(z: Any, n: int) -> list[Any]:
    """[batch, n * hidden] as n of [batch, hidden]."""
    hidden = z.shape[-1] // n
    apart = reshaped(z, (z.shape[0], n, hidden))
    return [apart[:, g] for g in range(n)]


class Recurrent(Op):
    """Attributes of a recurrent layer and its loop over time."""

    gate_count: ClassVar[int] = 1
    reverse: bool = False
    bidirectional: bool = False
    training: bool = False

    @classmethod
    def normalize(cls, types: tuple[Any, ...], attrs: dict[str, Any]) -> dict[str, Any]:
        for key, value in attrs.items():
            if key.endswith("activation"):
                choice(cls.name, value, ACTIVATIONS, key)
        return attrs

    @property
    def directions(self) -> int:
        """1, or 2 where bidirectional."""
        return 2 if self.bidirectional else 1

    # --- shapes -----------------------------------------------------------------------------------------------------
    def extra_shapes(self, hidden: Size, whole: Sizes) -> dict[str, Sizes]:
        """Shapes of the operands that only this layer has; `whole` is that of a state."""
        return {}

    def shapes(self, source: Sizes, recurrent: Sizes, projected: bool) -> dict[str, Sizes]:
        """The shape that each operand must have, by name. `projected`: there is no input weight."""
        d, g = self.directions, self.gate_count
        if len(recurrent) != 1 + d:
            raise self.fail(f"`recurrent_weight` has rank {len(recurrent)}", expected=f"rank {1 + d}")
        hidden = recurrent[-1]
        rows, whole = hidden * (d * g), (source[1], hidden * d)
        return {
            "source": (*source[:2], rows) if projected else source,
            "recurrent_weight": (*((2,) if d == 2 else ()), hidden * g, hidden),
            "input_weight": (rows, source[2]),
            "bias": (rows,),
            "init_state": whole,
            "mask": whole,
            **self.extra_shapes(hidden, whole),
        }

    def check(self, *operands: TensorType | None) -> list[TensorType]:
        """Types of a state and of the gates, over time. Raises OpError where an operand does not fit."""
        source, recurrent = operands[:2]
        assert source is not None and recurrent is not None
        shapes = self.shapes(source.shape, recurrent.shape, operands[2] is None)
        if not require_at_least(self.name, source.shape[0], 1, "source has a time"):
            raise self.fail("`source` has no times", expected="[time >= 1, batch, features]", got=str(source))
        for name, t in zip(self.operands, operands, strict=True):
            if t is not None:
                self.fits(name, t, shapes[name])
        width = recurrent.shape[-1] * self.directions
        return [source.with_shape((*source.shape[:2], width * n)) for n in (1, self.gate_count)]

    def wide_values(self, operands: Sequence[Value | None]) -> list[Value | None]:
        """Operands in the dtype that the layer computes in, equal sizes written alike."""
        source, recurrent = operands[:2]
        assert source is not None and recurrent is not None
        shapes = self.shapes(source.shape, recurrent.shape, operands[2] is None)
        made: list[Value | None] = []
        for name, v in zip(self.operands, operands, strict=True):
            same = v is None or v.shape == shapes[name]
            made.append(None if v is None else wide(v if same else F.reshape(v, shapes[name])))
        return made

    def fits(self, name: str, t: TensorType, shape: Sizes) -> None:
        """Raises OpError where `t` does not have this shape; unknown sizes get guards."""
        ok = t.rank == len(shape) and all(
            require_equal(self.name, a, b, f"dim {k} of {name}")
            for k, (a, b) in enumerate(zip(t.shape, shape, strict=True))
        )
        if not ok:
            raise self.fail(f"`{name}` does not fit", expected=f"[{', '.join(map(str, shape))}]", got=str(t))

    # --- both kinds -------------------------------------------------------------------------------------------------
    def projected(self, source: Any, input_weight: Any, bias: Any) -> Any:
        """source @ input_weightᵀ + bias for all times at once: [time, batch, directions * gates * hidden]."""
        x = source
        if input_weight is not None:
            time, batch, features = source.shape
            flat = times_transposed(reshaped(source, (time * batch, features)), input_weight)
            x = reshaped(flat, (time, batch, input_weight.shape[0]))
        return x if bias is None else x + bias

    def direction(self, d: int, recurrent: Any, mask: Any, **extra: Any) -> Weights:
        """The operands of direction d."""
        rows = {name: None if v is None else reshaped(v, (1, dims.product(v.shape))) for name, v in extra.items()}
        own = {name: self.half(row, d) for name, row in rows.items()}
        return Weights(recurrent[d] if self.bidirectional else recurrent, self.half(mask, d), own)

    def half(self, x: Any, d: int) -> Any:
        """The part of direction d of the last dim."""
        if x is None or not self.bidirectional:
            return x
        lead, last = x.shape[:-1], x.shape[-1]
        apart = reshaped(x, (*lead, 2, last // 2))
        return apart[(*(slice(None),) * len(lead), d)]

    def run_directions(self, x: Any, run: Callable[[int, Any, bool], list[Any]]) -> list[Any]:
        """Results of `run` (direction, projected source, backwards), joined along the last dim."""
        if not self.bidirectional:
            return run(0, x, self.reverse)
        both = [run(d, self.half(x, d), d == 1) for d in range(2)]
        return [join(pair, -1) for pair in zip(*both, strict=True)]


def join(parts: Sequence[Any], axis: int) -> Any:
    """Tensors or arrays one after the other along an axis."""
    return F.concat(list(parts), axis=axis) if isinstance(parts[0], Value) else np.concatenate(parts, axis)


def over_time(x: Any, states: Sequence[Any], step: Step, sizes: Sequence[Size], backwards: bool) -> list[Any]:
    """Run a step over x [time, batch, ...], from the end where backwards: its results [batch, size] over time."""
    if isinstance(x, Value):
        return _graph_over_time(x, states, step, sizes, backwards)
    made = [np.zeros((*x.shape[:2], int(n)), x.dtype) for n in sizes]
    for t in range(x.shape[0])[:: -1 if backwards else 1]:
        states, results = step(x[t], states)
        for whole, result in zip(made, results, strict=True):
            whole[t] = result
    return made


def _graph_over_time(
    x: Value, states: Sequence[Value], step: Step, sizes: Sequence[Size], backwards: bool
) -> list[Value]:
    time, batch = x.shape[:2]
    iterations: Any = time if isinstance(time, int) else size_scalar(x, time, int32)
    last: Any = size_scalar(x, time - 1, int32) if backwards else None
    wholes = [filled(x, (time, batch, n)) for n in sizes]

    def body(i: Value, *carried: Value) -> list[Value]:
        t = last - i if backwards else i
        after, results = step(F.gather(x, t, axis=0), carried[: len(states)])
        start = t * np.array([1, 0, 0], np.int32)
        grown = [
            F.dynamic_update_slice(whole, F.reshape(result, (1, *result.shape)), start)
            for whole, result in zip(carried[len(states) :], results, strict=True)
        ]
        return [*after, *grown]

    return for_loop(iterations, [*states, *wholes], body)[len(states) :]


def start_state(given: Any, x: Any, hidden: Size) -> Any:
    """The state before the first step: zeros where none is given."""
    if given is not None:
        return given
    return filled(x, (x.shape[1], hidden)) if isinstance(x, Value) else np.zeros((x.shape[1], int(hidden)), x.dtype)


def all_wide_arrays(arrays: Sequence[Array | None]) -> list[Array | None]:
    """Arrays in the dtype that the layer computes in."""
    return [None if a is None else wide_array(a) for a in arrays]


def narrowed(results: Sequence[Any], like: Any) -> Any:
    """Results in the dtype of `like`: one, or a tuple."""
    many: tuple[Any, ...] = tuple(
        convert(r, like.dtype) if isinstance(r, Value) else r.astype(like.dtype) for r in results
    )
    return many if len(many) != 1 else many[0]
