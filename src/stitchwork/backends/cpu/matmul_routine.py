"""`batch_matmul` done by the generated matmul kernels."""

from __future__ import annotations

from typing import Any

from stitchwork.backends.cpu import scalars
from stitchwork.backends.cpu.kernel import KernelInfo
from stitchwork.backends.cpu.llvm import Module
from stitchwork.backends.cpu.matmul import MatmulPlan, MatmulSpec, emit_matmul, pack_operand, plan_matmul
from stitchwork.backends.cpu.pack import PackPlan, emit_pack
from stitchwork.backends.cpu.routine import Size as RoutineSize
from stitchwork.backends.cpu.routines import FusedEpilogue, SlotTable, constant_storage, storage_of
from stitchwork.backends.cpu.target import Target
from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.graph import Array, Operation, constant_array
from stitchwork.ir.types import TensorType
from stitchwork.loops.affine import row_major
from stitchwork.loops.kernel import RoutineKernel, Storage

_FIRST_SIZE = 5  # slots: a, b, out, packed a, packed b


def make_matmul(operation: Operation, target: Target) -> MatmulRoutine | None:
    """The routine for an operation, or None where the kernels do not cover it."""
    a, b = (v.tensor for v in operation.operands)
    out = operation.results[0].tensor
    if a.dtype.name not in ("f32", "f64") or not _broadcasts_plainly(a, b, out):
        return None
    return MatmulRoutine(operation, target)


def _broadcasts_plainly(a: TensorType, b: TensorType, out: TensorType) -> bool:
    """True where every batch dim of an operand is the result's or 1."""
    batch = out.shape[:-2]
    for t in (a, b):
        own = t.shape[:-2]
        for n, size in zip(own, batch[len(batch) - len(own) :], strict=True):
            if n != size and n != 1:
                return False
    return True


class MatmulRoutine:
    """One matmul: its case, and the plan for it."""

    def __init__(self, operation: Operation, target: Target) -> None:
        self.operation, self.target = operation, target
        op: Any = operation.op
        self.a, self.b = (v.tensor for v in operation.operands)
        self.out = operation.results[0].tensor
        self.weights = constant_array(operation.operands[1])
        self.table = SlotTable(_FIRST_SIZE)
        self.transpose_a, self.transpose_b = bool(op.transpose_a), bool(op.transpose_b)
        self.plan = plan_matmul(self._spec(""), target)

    def _spec(self, key: str, out_type: str = "") -> MatmulSpec:
        slot = self.table.slot
        m, n = self.out.shape[-2:]
        k = self.a.shape[-2] if self.transpose_a else self.a.shape[-1]
        batch = self.out.shape[:-2]
        type_ = scalars.memory_type(self.a.dtype)
        b_strides = (1, slot(k)) if self.transpose_b else (slot(n), 1)
        if not self.transpose_a and all(
            x == 1 for x in self.b.shape[:-2]
        ):  # all rows of all batches are rows of one matrix
            rows = dims.product(batch) * m if self.a.shape[:-2] == batch or not batch else None
            if rows is not None:
                return MatmulSpec(
                    slot(rows),
                    slot(n),
                    slot(k),
                    type_,
                    out_type,
                    (),
                    None,
                    b_strides,
                    b_constant=self.weights is not None,
                    key=key,
                )
        a_strides = (1, slot(m)) if self.transpose_a else (slot(k), 1)
        return MatmulSpec(
            slot(m),
            slot(n),
            slot(k),
            type_,
            out_type,
            tuple(map(slot, batch)),
            a_strides,
            b_strides,
            self._batch_strides(self.a, batch),
            self._batch_strides(self.b, batch),
            b_constant=self.weights is not None,
            key=key,
        )

    def _batch_strides(self, t: TensorType, batch: tuple[Size, ...]) -> tuple[RoutineSize, ...]:
        own = t.shape[:-2]
        strides = row_major(t.shape)[: len(own)]
        made: list[RoutineSize] = [0] * (len(batch) - len(own))
        return (*made, *(0 if n == 1 else self.table.slot(s) for n, s in zip(own, strides, strict=True)))

    @property
    def workspaces(self) -> list[TensorType]:
        """Where operands are packed at run time."""
        return [
            TensorType(self.a.dtype, (self._packed_elements(p),)) for p in (self.plan.pack_a, self.plan.pack_b) if p
        ]

    def _packed_elements(self, pack: PackPlan) -> Size:
        return dims.ceildiv(self.table.count(pack.packed_bytes), self.a.dtype.itemsize)

    def emit(self, module: Module, kernel: RoutineKernel) -> list[KernelInfo]:
        """Packing of operands where needed, then the product."""
        fused = FusedEpilogue(kernel, _FIRST_SIZE + len(self.table.sizes))
        out_type = scalars.memory_type(kernel.buffer.dtype)
        plan = plan_matmul(self._spec(fused.key(), out_type), self.target)
        slots = self._slots(kernel, plan, fused)
        infos: list[KernelInfo] = []
        for pack in (plan.pack_a, plan.pack_b):
            if pack:
                fn = emit_pack(module, pack, self.target)
                infos.append(
                    KernelInfo(fn.name, slots, self.table.count(pack.items), self._packed_elements(pack), 1, 0)
                )
        fn = emit_matmul(module, plan, self.target, fused.callback())
        work = dims.product(self.out.shape) * (self.a.shape[-2] if self.transpose_a else self.a.shape[-1])
        infos.append(KernelInfo(fn.name, slots, self.table.count(plan.items), work, 1, 0))
        return infos

    def _slots(self, kernel: RoutineKernel, plan: MatmulPlan, fused: FusedEpilogue) -> tuple[Storage | Size, ...]:
        a, b = map(storage_of, kernel.operands)
        if self.weights is not None:
            b = constant_storage(pack_operand(plan, self._matrix(self.weights)))
        spaces = iter(kernel.workspaces)
        packed_a: Storage | Size = next(spaces) if plan.pack_a else 0
        packed_b: Storage | Size = next(spaces) if plan.pack_b else 0
        return (a, b, storage_of(kernel.buffer), packed_a, packed_b, *self.table.sizes, *fused.slots)

    def _matrix(self, weights: Array) -> Array:
        made = weights.swapaxes(-1, -2) if self.transpose_b else weights
        return made.reshape(made.shape[-2:]) if all(n == 1 for n in made.shape[:-2]) else made
