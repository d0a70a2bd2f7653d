"""Depthwise convolution: every channel has filters of its own, so vectors run over channels.

A tile is a few pixels of one output row x one vector of channels; inputs that several pixels share are loaded once.
Filter rows outside the image are left out; columns outside it read a vector of zeros. An item is a block of output
rows with all their channels, which reads memory strictly forwards; few rows are divided by channels too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from stitchwork.backends.cpu.conv_plan import ENOUGH_ITEMS, ConvSpec
from stitchwork.backends.cpu.microkernel import compute_type, vector_lanes
from stitchwork.backends.cpu.pack import pack_matrix
from stitchwork.backends.cpu.routine import Count, TargetLike, ceil_div, digest, even_parts, known


@dataclass(frozen=True, slots=True)
class DepthwisePlan:
    """How a depthwise case is computed: tiles of `tile_w` pixels, items of `block_h` rows x `chunk` vectors."""

    spec: ConvSpec
    name: str
    scalar: str
    lanes: int
    tile_w: int
    block_h: int
    chunk: int
    scratch_bytes: int = 0

    @property
    def items(self) -> Count:
        """Work items of the routine."""
        spec = self.spec
        return ((spec.n, 1), (spec.rows, self.block_h), (spec.filters, self.chunk * self.lanes))

    @property
    def multiplier(self) -> int:
        """Results of each input channel, side by side in the output."""
        return self.spec.group_filters


def is_depthwise(spec: ConvSpec, target: TargetLike) -> bool:
    """Whether vectors over channels do a case: one input channel per group, its results a whole part of a vector."""
    lanes = vector_lanes(target, compute_type(spec.type))
    return spec.groups > 1 and spec.group_channels == 1 and lanes % spec.group_filters == 0


def plan_depthwise(spec: ConvSpec, target: TargetLike) -> DepthwisePlan:
    scalar = compute_type(spec.type)
    lanes = vector_lanes(target, scalar)
    rows, columns = known(spec.rows), known(spec.columns)
    most = 8 if target.vector_registers >= 32 else 4
    tile_w = most if columns is None else even_parts(columns, most)
    vectors = ceil_div(spec.filters, lanes)
    images = spec.n if isinstance(spec.n, int) and spec.n > 0 else 1
    block_h = 4 if rows is None else even_parts(rows, max(1, images * rows // ENOUGH_ITEMS))
    lines = images * ceil_div(rows or ENOUGH_ITEMS, block_h)
    chunk = even_parts(vectors, ceil_div(vectors, ceil_div(ENOUGH_ITEMS, max(1, lines))))
    name = digest("depthwise", spec, target.vector_bytes, target.vector_registers, target.has_masked_ops)
    return DepthwisePlan(spec, name, scalar, lanes, tile_w, block_h, chunk)


def pack_depthwise(plan: DepthwisePlan, weights: NDArray[Any]) -> NDArray[Any]:
    """A filter [R, S, 1, K] as [ceil(K / lanes), R * S, lanes], zero-padded, aligned to 64 bytes."""
    return pack_matrix(weights.reshape(-1, plan.spec.filters), plan.lanes)
