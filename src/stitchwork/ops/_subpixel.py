"""Convolutions of inputs that are spread apart, as ordinary ones: most of their products meet the zeros in between.

With inputs r apart, result o = r * m + phase meets input elements only under the taps q = first + t * step with
phase + q * dilation - before divisible by r; input index m + (phase + first * dilation - before) / r + t * dilation / g
(g is the greatest common divisor of r and dilation, step = r / g). So every phase is a convolution of the input as it
is, with a part of the window; their results interleave. Where all phases read the same inputs (a window as long as the
spreading, say), they are one convolution with more features.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.expr import Axis, Buffer, Expr, as_index, extent
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Ints, Op, Operand, Sample, operand
from stitchwork.ops._values import filled

if TYPE_CHECKING:
    from stitchwork.ops._convolution import ConvGeneral


class Interleave(Op, name="interleave", internal=True):
    """[n, counts..., spread... * f] -> [n, sizes..., f]: the features of a point become `spread` points along each dim,
    of which those within `sizes` are kept.
    """

    x: Operand = operand("...", "any")
    spread: Ints
    sizes: Any

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape((x.shape[0], *self.sizes, dims.floordiv(x.shape[-1], math.prod(self.spread))))

    def numpy(self, x: Array) -> Array:
        n, *counts, _ = x.shape
        rank = len(counts)
        apart = x.reshape(n, *counts, *self.spread, -1)
        order = [0, *(d for k in range(rank) for d in (1 + k, 1 + rank + k)), 1 + 2 * rank]
        whole = apart.transpose(order).reshape(n, *(c * r for c, r in zip(counts, self.spread, strict=True)), -1)
        return whole[(slice(None), *(slice(int(size)) for size in self.sizes))]

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        n, *place, f = out
        phase: Expr = as_index(0)
        for o, r in zip(place, self.spread, strict=True):
            phase = phase * r + o % r
        return x[(n, *(o // r for o, r in zip(place, self.spread, strict=True)), phase * extent(f.extent) + f)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(((2, 3, 2, 12),), {"spread": (2, 3), "sizes": (6, 5)})
        yield Sample(((1, 4, 2),), {"spread": (2,), "sizes": (8,)}, dtype="i32")


@dataclass(frozen=True)
class _Phase:
    """One phase along one dim: `count` taps from `first` on, `step` apart.

    They read inputs `dilation` apart, the first of them `before` before the first input.
    """

    first: int
    step: int
    count: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def reads(self) -> Ints:
        """Equal for phases that read the same inputs."""
        return (self.count, self.stride, self.dilation, self.before, self.after)


def by_phases(op: ConvGeneral, x: Value, w: Value, result: tuple[Size, ...]) -> Value | None:
    """The convolution by phases, where its input is spread apart and sizes allow it; None elsewhere."""
    if op.batch_groups != 1 or 0 in result or all(r == 1 for r in op.input_dilation):
        return None
    many: list[list[_Phase]] = []
    counts: list[Size] = []
    for d, r in enumerate(op.input_dilation):
        count = dims.ceildiv(result[d + 1], r)
        phases = _phases(op, d, x.shape[d + 1], w.shape[d], result[d + 1], count)
        if phases is None:
            return None
        many.append(phases)
        counts.append(count)
    combined = [*itertools.product(*many)]
    if op.groups == 1 and len({tuple(p.reads for p in c) for c in combined}) == 1 and all(p.count for p in combined[0]):
        weights = [_window(w, c) for c in combined]
        merged = weights[0] if len(weights) == 1 else F.concat(weights, axis=-1)
        made = _convolved(op, x, merged, combined[0])
    else:
        made = F.concat([_part(op, x, w, c, (x.shape[0], *counts, w.shape[-1])) for c in combined], axis=-1)
    return F.interleave(made, spread=tuple(op.input_dilation), sizes=result[1:-1])


def _phases(op: ConvGeneral, d: int, n: Size, k: Size, wanted: Size, count: Size) -> list[_Phase] | None:
    """The phases of dim d; None where they are not known, or are not plain convolutions."""
    r, s, e, (before, after) = op.input_dilation[d], op.strides[d], op.kernel_dilation[d], op.padding[d]
    if not isinstance(k, int) or not isinstance(before, int) or n == 0:
        return None
    if r == 1:
        return [_Phase(0, 1, k, s, e, before, after)] if isinstance(after, int) else None
    if s != 1:
        return None
    g = math.gcd(e, r)
    phases: list[_Phase] = []
    for phase in range(r):
        first = next((q for q in range(r // g) if (phase + q * e - before) % r == 0), k)
        taps = len(range(first, k, r // g))
        ahead = (before - phase - first * e) // r
        behind = count - n - ahead + (taps - 1) * (e // g)
        if not isinstance(behind, int):
            return None
        phases.append(_Phase(first, r // g, taps, 1, e // g, ahead, behind) if taps else _Phase(0, 1, 0, 1, 1, 0, 0))
    return phases


def _window(w: Value, phases: tuple[_Phase, ...]) -> Value:
    """The part of the window that belongs to a phase."""
    starts = (*(p.first for p in phases), 0, 0)
    sizes = (*(p.count for p in phases), *w.shape[-2:])
    if all(p.step == 1 and p.first == 0 and p.count == n for p, n in zip(phases, w.shape, strict=False)):
        return w
    return F.strided_slice(w, starts=starts, sizes=sizes, strides=(*(p.step for p in phases), 1, 1))


def _convolved(op: ConvGeneral, x: Value, w: Value, phases: tuple[_Phase, ...]) -> Value:
    return F.conv_general(
        x, w, strides=tuple(p.stride for p in phases), padding=tuple((p.before, p.after) for p in phases),
        kernel_dilation=tuple(p.dilation for p in phases), groups=op.groups,
    )  # fmt: skip


def _part(op: ConvGeneral, x: Value, w: Value, phases: tuple[_Phase, ...], shape: tuple[Size, ...]) -> Value:
    """The results of one phase; zeros where no tap meets an input."""
    if not all(p.count for p in phases):
        return filled(x, shape, 0)
    return _convolved(op, x, _window(w, phases), phases)
