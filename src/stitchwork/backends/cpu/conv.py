"""Code of convolution routines: `plan_conv` chooses, `emit_conv` writes (see `conv_plan.py` for the choices)."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from stitchwork.backends.cpu.conv_driver import emit_direct
from stitchwork.backends.cpu.conv_plan import ConvPlan, ConvSpec, pack_direct, plan_direct
from stitchwork.backends.cpu.depthwise import emit_depthwise
from stitchwork.backends.cpu.depthwise_plan import DepthwisePlan, is_depthwise, pack_depthwise, plan_depthwise
from stitchwork.backends.cpu.llvm import Function, Module
from stitchwork.backends.cpu.routine import Epilogue, TargetLike

__all__ = ["ConvPlan", "ConvSpec", "DepthwisePlan", "emit_conv", "pack_weights", "plan_conv"]


def plan_conv(spec: ConvSpec, target: TargetLike) -> ConvPlan | DepthwisePlan:
    """Choose how a case is computed. Both plans have `name`, `items` and `scratch_bytes`."""
    return plan_depthwise(spec, target) if is_depthwise(spec, target) else plan_direct(spec, target)


def pack_weights(plan: ConvPlan | DepthwisePlan, weights: NDArray[Any]) -> NDArray[Any]:
    """A filter [R, S, C / groups, K] in the order the plan's code reads it, aligned to 64 bytes."""
    return pack_direct(plan, weights) if isinstance(plan, ConvPlan) else pack_depthwise(plan, weights)


def emit_conv(
    module: Module, plan: ConvPlan | DepthwisePlan, target: TargetLike, epilogue: Epilogue | None = None
) -> Function:
    """Add the routine of a plan to the module, unless it is there already.

    The epilogue's indices are (pixel, channel), pixels counted through all images. Callers must give a filter packed by
    `pack_weights` and an output that overlaps no operand.
    """
    if plan.name in module.functions:
        return module.functions[plan.name]
    if isinstance(plan, DepthwisePlan):
        return emit_depthwise(module, plan, target, epilogue)
    return emit_direct(module, plan, target, epilogue)
