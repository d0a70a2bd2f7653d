"""Generated matmul routines against einsum in float64, at sizes that do not divide, on several vector widths."""

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
from stitchwork.backends.cpu.llvm import Module
from stitchwork.backends.cpu.matmul import MatmulSpec, emit_matmul, pack_operand, plan_matmul
from stitchwork.backends.cpu.pack import emit_pack, pack_matrix
from stitchwork.backends.cpu.routine import Size, Slot, count_value
from stitchwork.backends.cpu.target import Target

TARGETS = targets()
M, N, K, ROW, BATCH, BIAS, RESIDUAL = 8, 9, 10, 11, 12, 16, 17  # slots of ctx


@dataclass(frozen=True)
class Case:
    """`dynamic`: which of m, n, k, b (batch) are known at run time only; `turned`: which operands are transposed."""

    m: int
    n: int
    k: int
    batch: tuple[int, ...] = ()
    dynamic: str = ""
    turned: str = ""
    constant: bool = False
    broadcast: str = ""
    dtype: str = "float32"
    epilogue: bool = False

    def __str__(self) -> str:
        flags = "".join([f"-dyn_{self.dynamic}" if self.dynamic else "", f"-T{self.turned}" if self.turned else ""])
        flags += "-const" * self.constant + f"-bc{self.broadcast}" * bool(self.broadcast) + "-epi" * self.epilogue
        return f"{'x'.join(map(str, (*self.batch, self.m, self.n, self.k)))}{flags}-{self.dtype}"


def random_cases(count: int) -> Iterator[Case]:
    rng = np.random.default_rng(20)
    sizes = [0, 1, 2, 3, 4, 5, 7, 8, 13, 14, 15, 16, 17, 28, 29, 31, 32, 33, 48, 63, 64, 65, 100, 130]
    weights = np.array([1 if s == 0 else 3 for s in sizes]) / (3 * len(sizes) - 2)
    for _ in range(count):
        m, n, k = (int(x) for x in rng.choice(sizes, 3, p=weights))
        batch = tuple(int(x) for x in rng.integers(1, 4, rng.integers(0, 3)))
        yield Case(
            m,
            n,
            k,
            batch,
            "".join(c for c in "mnkb" if rng.random() < 0.35),
            "".join(c for c in "ab" if rng.random() < 0.35),
            bool(rng.random() < 0.4),
            "".join(c for c in "ab" if rng.random() < 0.3) if batch else "",
            "float64" if rng.random() < 0.25 else "float32",
            bool(rng.random() < 0.5),
        )


CHOSEN = [
    Case(1, 40, 300, constant=True),
    Case(1, 130, 77, turned="b"),
    Case(3, 37, 77, (2,), turned="b", epilogue=True),
    Case(100, 1, 130),
    Case(100, 3, 130, constant=True, epilogue=True),
    Case(37, 2, 19, (2,), turned="b", dynamic="m"),
    Case(64, 200, 900, turned="a"),
    Case(300, 70, 600, dynamic="mnk", epilogue=True),
    Case(300, 70, 600, turned="ab", dynamic="mnk"),
    Case(70, 300, 600, constant=True, dynamic="k", epilogue=True),
    Case(5, 5, 0, epilogue=True),
    Case(5, 5, 0, dynamic="k", constant=True),
    Case(0, 5, 3, dynamic="m"),
    Case(5, 0, 3, dynamic="n"),
    Case(2, 2, 2, (0,)),
    Case(128, 64, 128, (3,), dynamic="b", epilogue=True),
]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@pytest.mark.parametrize("case", [*CHOSEN, *random_cases(80)], ids=str)
def test_matches_einsum(case: Case, target: Target) -> None:
    check(case, target)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@pytest.mark.parametrize("case", [c for c in CHOSEN if c.k >= 300], ids=str)
def test_reduction_in_blocks(case: Case, target: Target) -> None:
    """A small second-level cache makes the reduction be cut."""
    target = dataclasses.replace(target, l2_bytes=32 << 10)
    check(case, target)
    check(dataclasses.replace(case, k=case.k * 2), target)


def check(case: Case, target: Target) -> None:
    rng = np.random.default_rng(zlib.crc32(str(case).encode()))
    a, b = operands(case, rng)
    spec, sizes = specification(case)
    epilogue = None
    if case.epilogue:
        epilogue = add_bias_and_residual(BIAS, RESIDUAL, case.n, spec.type)
    plan = plan_matmul(spec, target)
    module = Module()
    emit_matmul(module, plan, target, epilogue)
    packs = [p for p in (plan.pack_a, plan.pack_b) if p is not None]
    for pack in packs:
        emit_pack(module, pack, target)
    library = Library(module, [plan.name, *(p.name for p in packs)], target)

    def lookup(slot: Slot) -> int:
        return sizes[slot.index]

    out = Guarded((*case.batch, case.m, case.n), case.dtype)
    out.array[...] = np.nan
    bias = Guarded.of(rng.standard_normal(case.n).astype(case.dtype))
    residual = Guarded.of(rng.standard_normal(out.shape).astype(case.dtype))
    stored_b = Guarded.of(pack_operand(plan, b), 64) if case.constant else Guarded.of(turn(b, "b" in case.turned))
    slots: dict[int, Guarded | int] = {
        spec.a: Guarded.of(turn(a, "a" in case.turned)),
        spec.b: stored_b,
        spec.out: out,
        BIAS: bias,
        RESIDUAL: residual,
        **sizes,
    }
    buffers = [Guarded((count_value(p.packed_bytes, lookup),), np.uint8, 64) for p in packs]
    for pack, buffer in zip(packs, buffers, strict=True):
        slots[pack.spec.destination] = buffer
    ctx = context(slots)
    for pack in packs:
        run_in_pieces(library.routine(pack.name), ctx, count_value(pack.items, lookup), rng)
    run_in_pieces(library.routine(plan.name), ctx, count_value(plan.items, lookup), rng)

    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    scale = np.matmul(abs(a).astype(np.float64), abs(b).astype(np.float64)) + 1
    if case.epilogue:
        expected = np.maximum(expected + bias.array + residual.array, 0)
    epsilon = np.finfo(case.dtype).eps
    assert (abs(out.array - expected) <= 8 * epsilon * scale * max(1, np.sqrt(case.k))).all()
    for guarded in (out, *buffers):
        guarded.check()


def operands(case: Case, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """A and B with batch dimensions of size 1 where they are broadcast."""
    ones = (1,) * len(case.batch)
    a = rng.standard_normal((*(ones if "a" in case.broadcast else case.batch), case.m, case.k))
    b = rng.standard_normal((*(ones if "b" in case.broadcast else case.batch), case.k, case.n))
    return a.astype(case.dtype), b.astype(case.dtype)


def turn(x: NDArray[Any], turned: bool) -> NDArray[Any]:
    return np.ascontiguousarray(np.swapaxes(x, -1, -2)) if turned else x


def specification(case: Case) -> tuple[MatmulSpec, dict[int, int]]:
    sizes = {M: case.m, N: case.n, K: case.k, ROW: case.n} | {BATCH + i: s for i, s in enumerate(case.batch)}

    def size(letter: str, value: int, slot: int) -> Size:
        return Slot(slot) if letter in case.dynamic else value

    m, n, k = size("m", case.m, M), size("n", case.n, N), size("k", case.k, K)
    none = (0,) * len(case.batch)
    return (
        MatmulSpec(
            m,
            n,
            k,
            type="double" if case.dtype == "float64" else "float",
            batch=tuple(size("b", s, BATCH + i) for i, s in enumerate(case.batch)),
            a_strides=(1, m) if "a" in case.turned else None,
            b_strides=(1, k) if "b" in case.turned and not case.constant else None,
            a_batch_strides=none if "a" in case.broadcast else None,
            b_batch_strides=none if "b" in case.broadcast else None,
            out_row_stride=Slot(ROW) if "n" in case.dynamic else None,
            b_constant=case.constant,
            key="bias_residual" if case.epilogue else "",
        ),
        sizes,
    )


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@pytest.mark.parametrize("stored", ["half", "bfloat"])
@pytest.mark.parametrize("constant, turned", [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("m, n, k", [(1, 40, 50), (30, 45, 70), (40, 3, 33)])
def test_sixteen_bit_operands(
    m: int, n: int, k: int, constant: bool, turned: bool, stored: str, target: Target
) -> None:
    """Operands and result stored in 16 bits, summed in float32: one rounding at the end."""
    dtype = np.dtype(np.float16 if stored == "half" else ml_dtypes.bfloat16)
    rng = np.random.default_rng(m)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    spec = MatmulSpec(m, n, k, type=stored, b_strides=(1, k) if turned else None, b_constant=constant)
    plan, module = plan_matmul(spec, target), Module()
    emit_matmul(module, plan, target)
    slots: dict[int, Guarded | int] = {0: Guarded.of(a), 2: Guarded((m, n), dtype)}
    slots[1] = Guarded.of(pack_operand(plan, b), 64) if constant else Guarded.of(turn(b, turned))
    routines = [(plan.name, plan.items)]
    if plan.pack_b is not None:
        emit_pack(module, plan.pack_b, target)
        routines.insert(0, (plan.pack_b.name, plan.pack_b.items))
        slots[spec.packed_b] = Guarded((count_value(plan.pack_b.packed_bytes, lambda s: 0),), np.uint8, 64)
    library, ctx = Library(module, [name for name, _ in routines], target), context(slots)
    for name, count in routines:
        run_in_pieces(library.routine(name), ctx, count_value(count, lambda s: 0), rng)
    out = slots[2]
    assert isinstance(out, Guarded)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    epsilon = 2.0**-10 if stored == "half" else 2.0**-7
    assert (abs(out.array.astype(np.float64) - expected) <= epsilon * abs(expected) + 1e-5 * k).all()
    out.check()


def test_pack_matrix_pads_with_zeros() -> None:
    packed = pack_matrix(np.arange(10, dtype=np.float32).reshape(2, 5), 4)
    assert packed.shape == (2, 2, 4)
    assert packed.ctypes.data % 64 == 0
    assert packed.tolist() == [[[0, 1, 2, 3], [5, 6, 7, 8]], [[4, 0, 0, 0], [9, 0, 0, 0]]]


def test_equal_cases_share_a_function() -> None:
    target, module = TARGETS["host"], Module()
    first = emit_matmul(module, plan_matmul(MatmulSpec(4, 4, 4), target), target)
    again = emit_matmul(module, plan_matmul(MatmulSpec(4, 4, 4), target), target)
    other = emit_matmul(module, plan_matmul(MatmulSpec(4, 4, 5), target), target)
    assert first is again
    assert first is not other


def test_output_with_gaps() -> None:
    """Rows of the result may be further apart than they are long: what lies between stays as it was."""
    target, module = TARGETS["host"], Module()
    spec = MatmulSpec(5, 7, 3, batch=(2,), out_row_stride=10, out_batch_strides=(60,))
    plan = plan_matmul(spec, target)
    emit_matmul(module, plan, target)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((2, 5, 3), (2, 3, 7)))
    out = Guarded((2, 6, 10), np.float32)
    out.array[...] = 9
    slots: dict[int, Guarded | int] = {0: Guarded.of(a), 1: Guarded.of(b), 2: out}
    ctx = context(slots)
    Library(module, [plan.name], target).routine(plan.name)(ctx.ctypes.data, 0, count_value(plan.items, lambda s: 0), 0)
    np.testing.assert_allclose(out.array[:, :5, :7], a @ b, rtol=1e-4, atol=1e-5)
    assert (out.array[:, 5:] == 9).all()
    assert (out.array[:, :, 7:] == 9).all()
