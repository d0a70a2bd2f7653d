"""`conv_general` done by the generated convolution kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from stitchwork.backends.cpu import scalars
from stitchwork.backends.cpu.conv import ConvPlan, ConvSpec, emit_conv, pack_weights, plan_conv
from stitchwork.backends.cpu.kernel import KernelInfo
from stitchwork.backends.cpu.llvm import Module
from stitchwork.backends.cpu.pack import PackPlan, PackSpec, emit_pack, plan_pack
from stitchwork.backends.cpu.routines import FusedEpilogue, SlotTable, constant_storage, storage_of
from stitchwork.backends.cpu.target import Target
from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Operation, constant_array
from stitchwork.ir.types import TensorType
from stitchwork.loops.kernel import RoutineKernel, Storage

_FIRST_SIZE = 5  # slots: x, weights, out, scratch (not used: the launch's own), unpacked weights


def make_conv(operation: Operation, target: Target) -> ConvRoutine | None:
    """The routine for an operation, or None where the kernels do not cover it: more than two spatial dims, channels
    that are not known, weights that are neither constant nor simple to pack at run time."""
    op: Any = operation.op
    x, w = (v.tensor for v in operation.operands)
    if x.rank not in (3, 4) or not w.is_static or any(p < 0 for pair in op.padding for p in pair):
        return None
    if any(n == 0 for n in w.shape) or not isinstance(op.groups, int):
        return None
    if constant_array(operation.operands[1]) is None and op.groups != 1:
        return None
    return ConvRoutine(operation, target)


class ConvRoutine:
    """One convolution: its case, and the plan for it. One spatial dim is two, the first of size 1."""

    def __init__(self, operation: Operation, target: Target) -> None:
        self.operation, self.target = operation, target
        self.x, self.w = (v.tensor for v in operation.operands)
        self.out = operation.results[0].tensor
        self.weights = constant_array(operation.operands[1])
        self.table = SlotTable(_FIRST_SIZE)
        self.plan = plan_conv(self._spec(""), target)
        self.pack = self._pack() if self.weights is None else None

    def _spec(self, key: str, out_type: str = "") -> ConvSpec:
        op: Any = self.operation.op
        slot = self.table.slot
        flat = self.x.rank == 3
        *window, _, filters = self.w.shape
        n, *sizes, channels = self.x.shape
        rows, columns = self._two(sizes, 1)
        out_rows, out_columns = self._two(list(self.out.shape[1:-1]), 1)
        padding = [(0, 0), *op.padding] if flat else list(op.padding)
        return ConvSpec(
            slot(n),
            slot(rows),
            slot(columns),
            _int(channels),
            _int(filters),
            _pair(self._two(window, 1)),
            _pair(self._two(op.strides, 1)),
            _pair(self._two(op.kernel_dilation, 1)),
            (*_pair(padding[0]), *_pair(padding[1])),
            _int(op.groups),
            slot(out_rows),
            slot(out_columns),
            scalars.memory_type(self.x.dtype),
            out_type,
            key=key,
        )

    def _two(self, values: Any, first: Size) -> tuple[Size, Size]:
        return (first, values[0]) if self.x.rank == 3 else (values[0], values[1])

    def _pack(self) -> PackPlan:
        """Weights that change from run to run: a matrix [window * channels, filters], packed into panels each time."""
        *rows, filters = (_int(n) for n in self.w.shape)
        assert isinstance(self.plan, ConvPlan)
        spec = PackSpec(
            scalars.memory_type(self.w.dtype),
            int(np.prod(rows)),
            filters,
            filters,
            1,
            self.plan.panel,
            source=4,
            destination=1,
        )
        return plan_pack(spec, self.target)

    @property
    def workspaces(self) -> list[TensorType]:
        if self.pack is None:
            return []
        return [
            TensorType(self.w.dtype, (dims.ceildiv(self.table.count(self.pack.packed_bytes), self.w.dtype.itemsize),))
        ]

    def emit(self, module: Module, kernel: RoutineKernel) -> list[KernelInfo]:
        """Packing of weights where they are not constant, then the convolution."""
        fused = FusedEpilogue(kernel, _FIRST_SIZE + len(self.table.sizes))
        plan = plan_conv(self._spec(fused.key(), scalars.memory_type(kernel.buffer.dtype)), self.target)
        x, w = (storage_of(b) for b in kernel.operands)
        out = storage_of(kernel.buffer)
        packed = kernel.workspaces[0] if self.pack else constant_storage(pack_weights(plan, self._filter()))
        slots: tuple[Storage | Size, ...] = (x, packed, out, 0, w if self.pack else 0, *self.table.sizes, *fused.slots)
        infos: list[KernelInfo] = []
        if self.pack:
            fn = emit_pack(module, self.pack, self.target)
            infos.append(
                KernelInfo(fn.name, slots, self.table.count(self.pack.items), dims.product(self.w.shape), 1, 0)
            )
        fn = emit_conv(module, plan, self.target, fused.callback())
        work = dims.product(self.out.shape) * dims.product(self.w.shape[:-1])
        infos.append(
            KernelInfo(fn.name, slots, self.table.count(plan.items), work, 1, plan.scratch_bytes, scratch_slot=3)
        )
        return infos

    def _filter(self) -> Any:
        assert self.weights is not None
        return self.weights[None] if self.x.rank == 3 else self.weights


def _int(n: Any) -> int:
    assert isinstance(n, int)
    return n


def _pair(values: Any) -> tuple[int, int]:
    return _int(values[0]), _int(values[1])
