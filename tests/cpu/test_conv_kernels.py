"""Generated convolution routines against a sum of shifted products in float64, on several vector widths."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from cpu.kernel_harness import Guarded, Library, add_bias_and_residual, context, run_in_pieces, targets
from stitchwork.backends.cpu.conv import ConvSpec, DepthwisePlan, emit_conv, pack_weights, plan_conv
from stitchwork.backends.cpu.llvm import Module
from stitchwork.backends.cpu.routine import Size, Slot, count_value
from stitchwork.backends.cpu.target import Target

TARGETS = targets()
N, H, W, OUT_H, OUT_W, BIAS, RESIDUAL = 8, 9, 10, 11, 12, 16, 17  # slots of ctx


@dataclass(frozen=True)
class Case:
    """`dynamic`: which of n, h, w are known at run time only."""

    n: int
    h: int
    w: int
    channels: int
    filters: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1
    dynamic: str = ""
    dtype: str = "float32"
    epilogue: bool = False

    def __str__(self) -> str:
        numbers = [self.n, self.h, self.w, self.channels, self.filters]
        text = f"{'x'.join(map(str, numbers))}-k{self.kernel}s{self.strides}d{self.dilation}p{self.padding}"
        flags = f"-g{self.groups}" * (self.groups > 1) + f"-dyn_{self.dynamic}" * bool(self.dynamic)
        return (text + flags + "-epi" * self.epilogue + f"-{self.dtype}").replace(" ", "").replace(",", "_")

    @property
    def out(self) -> tuple[int, int]:
        spans = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True)]
        padded = (self.h + sum(self.padding[:2]), self.w + sum(self.padding[2:]))
        height, width = (
            max(0, (size - span) // stride + 1) for size, span, stride in zip(padded, spans, self.strides, strict=True)
        )
        return height, width


def random_cases(count: int) -> Iterator[Case]:
    rng = np.random.default_rng(30)

    def pick(*values: int) -> int:
        return int(rng.choice(values))

    while count:
        kind = pick(0, 0, 0, 1, 1, 2)  # plain, depthwise, groups
        groups = (1, pick(2, 5, 16, 19, 40, 64), pick(2, 3))[kind]
        channels = (pick(1, 2, 3, 4, 7, 16, 20, 33), groups, groups * pick(1, 2, 3, 5))[kind]
        filters = pick(1, 3, 8, 16, 17, 24, 32, 40, 65)
        filters = (filters, groups * pick(1, 1, 1, 2, 3, 4), groups * pick(1, 2, 7, 17))[kind]
        padding = (pick(0, 1, 2, 3), pick(0, 1, 2, 4), pick(0, 0, 1, 2, 5), pick(0, 0, 1, 2, 4))
        case = Case(
            pick(1, 1, 2),
            pick(1, 4, 5, 7, 8, 11),
            pick(1, 3, 5, 7, 8, 13, 14, 15, 16, 20, 29),
            channels,
            filters,
            (pick(1, 1, 2, 3, 3, 5, 7), pick(1, 1, 2, 3, 3, 5, 7)),
            (pick(1, 1, 2, 3), pick(1, 1, 2, 3)),
            (pick(1, 1, 1, 2), pick(1, 1, 1, 2, 3)),
            padding if rng.random() < 0.7 else (0, 0, 0, 0),
            groups,
            "".join(c for c in "nhw" if rng.random() < 0.3),
            "float64" if rng.random() < 0.2 else "float32",
            bool(rng.random() < 0.5),
        )
        if min(case.out) > 0:
            count -= 1
            yield case


CHOSEN = [
    Case(1, 56, 56, 64, 64, (3, 3), padding=(1, 1, 1, 1), epilogue=True),
    Case(1, 30, 30, 3, 64, (7, 7), (2, 2), padding=(3, 3, 3, 3)),
    Case(2, 7, 7, 64, 70, (3, 3), padding=(1, 1, 1, 1), epilogue=True),
    Case(2, 7, 7, 64, 70, (1, 1), epilogue=True),
    Case(2, 14, 14, 33, 70, (1, 1), (2, 2)),
    Case(2, 7, 7, 33, 96, (1, 1), dynamic="n", epilogue=True),
    Case(1, 1, 100, 9, 20, (1, 5), padding=(0, 0, 4, 0), dilation=(1, 1)),
    Case(1, 1, 300, 9, 20, (1, 5), padding=(0, 0, 2, 2), dynamic="w", epilogue=True),
    Case(1, 1, 1, 5, 9, (3, 3), padding=(1, 1, 1, 1), epilogue=True),
    Case(2, 20, 20, 8, 64, (3, 3), padding=(1, 1, 1, 1), dynamic="nhw", epilogue=True),
    Case(1, 5, 5, 4, 8, (3, 3), padding=(6, 5, 7, 4)),
    Case(1, 5, 5, 32, 32, (3, 3), padding=(6, 5, 7, 4), groups=32),
    Case(2, 14, 14, 96, 96, (3, 3), padding=(1, 1, 1, 1), groups=96, epilogue=True),
    Case(2, 14, 14, 96, 96, (3, 3), (2, 2), padding=(0, 1, 0, 1), groups=96, epilogue=True),
    Case(2, 17, 19, 40, 40, (5, 5), padding=(2, 2, 2, 2), groups=40, dynamic="nhw", epilogue=True),
    Case(2, 9, 11, 24, 48, (3, 3), padding=(1, 1, 1, 1), groups=24, epilogue=True),
    Case(1, 9, 11, 3, 48, (3, 3), padding=(1, 1, 1, 1), groups=3, epilogue=True),
    Case(1, 9, 40, 7, 21, (3, 3), padding=(1, 1, 1, 1), groups=7),
    Case(1, 12, 12, 32, 32, (3, 3), dilation=(4, 4), padding=(4, 4, 4, 4), epilogue=True),
    Case(0, 8, 8, 4, 4, (3, 3), dynamic="n"),
    Case(1, 2, 2, 4, 4, (3, 3)),
]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@pytest.mark.parametrize("case", [*CHOSEN, *random_cases(90)], ids=str)
def test_matches_shifted_products(case: Case, target: Target) -> None:
    check(case, target)


@pytest.mark.parametrize("target", [TARGETS["host"], TARGETS["plain16"]], ids=["host", "plain16"])
@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_small_caches(case: Case, target: Target) -> None:
    """Small caches cut pixels into narrow blocks and channels into single panels."""
    check(case, dataclasses.replace(target, l1_bytes=1 << 10, l2_bytes=4 << 10))


def check(case: Case, target: Target) -> None:
    rng = np.random.default_rng(zlib.crc32(str(case).encode()))
    x = rng.standard_normal((case.n, case.h, case.w, case.channels)).astype(case.dtype)
    weights = rng.standard_normal((*case.kernel, case.channels // case.groups, case.filters)).astype(case.dtype)
    spec = specification(case)
    shape = (case.n, *case.out, case.filters)
    epilogue = None
    if case.epilogue:
        epilogue = add_bias_and_residual(BIAS, RESIDUAL, case.filters, spec.type)
    plan = plan_conv(spec, target)
    module = Module()
    emit_conv(module, plan, target, epilogue)
    routine = Library(module, [plan.name], target).routine(plan.name)

    out = Guarded(shape, case.dtype)
    out.array[...] = np.nan
    bias = Guarded.of(rng.standard_normal(case.filters).astype(case.dtype))
    residual = Guarded.of(rng.standard_normal(shape).astype(case.dtype))
    scratch = Guarded((plan.scratch_bytes,), np.uint8, 64)
    slots: dict[int, Guarded | int] = {
        spec.x: Guarded.of(x),
        spec.weights: Guarded.of(pack_weights(plan, weights), 64),
        spec.out: out,
        spec.scratch: scratch,
        BIAS: bias,
        RESIDUAL: residual,
        N: case.n,
        H: case.h,
        W: case.w,
        OUT_H: case.out[0],
        OUT_W: case.out[1],
    }
    ctx = context(slots)
    items = count_value(plan.items, lambda slot: int(ctx[slot.index]))
    run_in_pieces(routine, ctx, items, rng)

    expected, scale = reference(case, x, weights), reference(case, abs(x), abs(weights)) + 1
    if case.epilogue:
        expected = np.maximum(expected + bias.array + residual.array, 0)
    depth = case.kernel[0] * case.kernel[1] * case.channels // case.groups
    assert (abs(out.array - expected) <= 8 * np.finfo(case.dtype).eps * scale * np.sqrt(depth)).all()
    out.check()
    scratch.check()


def specification(case: Case) -> ConvSpec:
    def size(letter: str, value: int, slot: int) -> Size:
        return Slot(slot) if letter in case.dynamic else value

    return ConvSpec(
        size("n", case.n, N),
        size("h", case.h, H),
        size("w", case.w, W),
        case.channels,
        case.filters,
        case.kernel,
        case.strides,
        case.dilation,
        case.padding,
        case.groups,
        out_h=Slot(OUT_H) if "h" in case.dynamic else None,
        out_w=Slot(OUT_W) if "w" in case.dynamic else None,
        type="double" if case.dtype == "float64" else "float",
        key="bias_residual" if case.epilogue else "",
    )


def reference(case: Case, x: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.float64]:
    top, bottom, left, right = case.padding
    padded = np.pad(x.astype(np.float64), ((0, 0), (top, bottom), (left, right), (0, 0)))
    rows, columns = case.out
    group_channels, group_filters = case.channels // case.groups, case.filters // case.groups
    out = np.zeros((case.n, rows, columns, case.groups, group_filters))
    for r in range(case.kernel[0]):
        for s in range(case.kernel[1]):
            i, j = r * case.dilation[0], s * case.dilation[1]
            part = padded[:, i :: case.strides[0], j :: case.strides[1]][:, :rows, :columns]
            part = part.reshape(case.n, rows, columns, case.groups, group_channels)
            tap = weights[r, s].astype(np.float64).reshape(group_channels, case.groups, group_filters)
            out += np.einsum("nhwgc,cgk->nhwgk", part, tap, optimize=True)
    return out.reshape(case.n, rows, columns, case.filters)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@pytest.mark.parametrize("stored", ["half", "bfloat"])
@pytest.mark.parametrize("groups", [1, 24])
def test_sixteen_bit_operands(groups: int, stored: str, target: Target) -> None:
    """Operands and result stored in 16 bits, summed in float32: one rounding at the end."""
    dtype = np.dtype(np.float16 if stored == "half" else ml_dtypes.bfloat16)
    case = Case(1, 9, 10, 24, 24, (3, 3), padding=(1, 1, 1, 1), groups=groups)
    rng = np.random.default_rng(groups)
    x = rng.standard_normal((1, 9, 10, 24)).astype(dtype)
    weights = rng.standard_normal((3, 3, 24 // groups, 24)).astype(dtype)
    spec = dataclasses.replace(specification(case), type=stored)
    plan, module = plan_conv(spec, target), Module()
    emit_conv(module, plan, target)
    out = Guarded((1, 9, 10, 24), dtype)
    slots: dict[int, Guarded | int] = {0: Guarded.of(x), 1: Guarded.of(pack_weights(plan, weights), 64), 2: out}
    slots[3] = Guarded((plan.scratch_bytes,), np.uint8, 64)
    routine = Library(module, [plan.name], target).routine(plan.name)
    run_in_pieces(routine, context(slots), count_value(plan.items, lambda slot: 0), rng)
    expected = reference(case, x, weights)
    epsilon = 2.0**-10 if stored == "half" else 2.0**-7
    assert (abs(out.array.astype(np.float64) - expected) <= epsilon * abs(expected) + 1e-3).all()
    out.check()


def test_depthwise_is_recognised() -> None:
    target = TARGETS["host"]
    plain = ConvSpec(1, 8, 8, 16, 16, (3, 3))
    assert not isinstance(plan_conv(plain, target), DepthwisePlan)
    assert isinstance(plan_conv(dataclasses.replace(plain, groups=16), target), DepthwisePlan)
    assert not isinstance(plan_conv(dataclasses.replace(plain, groups=4), target), DepthwisePlan)
