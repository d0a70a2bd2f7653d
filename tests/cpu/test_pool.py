"""The native thread pool: coverage of ranges, threads, nesting, forks and exits."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import subprocess
import sys
import threading

import numpy as np
import pytest

from stitchwork.backends.cpu import target as target_module
from stitchwork.backends.cpu.jit import compile_object, load_object
from stitchwork.backends.cpu.llvm import Module, V, i64
from stitchwork.backends.cpu.pool import Pool, default_pool, pool_for, pool_module
from stitchwork.backends.cpu.target import Target, binding
from stitchwork.config import MAX_THREADS, config

I64, PTR = ctypes.c_int64, ctypes.c_void_p
BODY = ctypes.CFUNCTYPE(None, PTR, I64, I64, I64)
PARALLEL_FOR = ctypes.CFUNCTYPE(None, PTR, PTR, PTR, I64, I64)
needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="no fork there")


def _test_bodies() -> str:
    """count: `++counts[i]` over a range, tids[i] = tid. nested: one inner region of `count` per index."""
    module = Module()
    job = [("ptr", "ctx"), ("i64", "lo"), ("i64", "hi"), ("i64", "tid")]
    fn = module.function("count", "void", job)
    ctx, lo, hi, tid = fn.params
    counts, tids = fn.load("ptr", ctx, 8), fn.load("ptr", fn.gep(ctx, 1, "ptr"), 8)
    with fn.loop(lo, hi) as loop:
        slot = fn.gep(counts, loop.index, "i64")
        fn.store(fn.add(fn.load("i64", slot, 8), 1), slot, 8)
        fn.store(tid, fn.gep(tids, loop.index, "i64"), 8)
    fn.ret()
    fn = module.function("nested", "void", job)
    ctx, lo, hi, _ = fn.params
    parallel_for, pool, inner_n, contexts = (fn.load("ptr", fn.gep(ctx, k, "ptr"), 8) for k in range(4))
    n = fn.convert("ptrtoint", inner_n, "i64")
    with fn.loop(lo, hi) as loop:
        inner = fn.gep(contexts, fn.mul(loop.index, 2), "ptr")
        args = ", ".join(map(str, (pool, V("ptr", "@count"), inner, n, i64(3))))
        fn.do(f"call void {parallel_for.ref}({args})")
    fn.ret()
    return module.text()


LOADED = load_object(compile_object(_test_bodies(), Target.host()), ["count", "nested"])


def _run(pool: Pool, body: int, ctx: int | None, n: int, grain: int) -> None:
    PARALLEL_FOR(pool.parallel_for_address)(pool.handle, body, ctx, n, grain)


def _count(pool: Pool, n: int, grain: int) -> tuple[np.ndarray, np.ndarray]:
    counts, tids = np.zeros(max(n, 1), np.int64), np.full(max(n, 1), -1, np.int64)
    ctx = np.array([counts.ctypes.data, tids.ctypes.data], np.int64)
    _run(pool, LOADED.address("count"), ctx.ctypes.data, n, grain)
    return counts, tids


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_index_once(threads: int) -> None:
    pool = pool_for(threads)
    for n, grain in itertools.product([1, 2, 3, 7, 16, 63, 64, 65, 1000, 4097], [1, 2, 3, 5, 16, 64, 999, 5000]):
        counts, tids = _count(pool, n, grain)
        assert (counts == 1).all(), (n, grain)
        assert tids.min() >= 0
        assert tids.max() < threads


@pytest.mark.parametrize("grain", [0, -1, -(1 << 63)])
def test_a_senseless_grain_counts_as_one(grain: int) -> None:
    counts, _ = _count(pool_for(2), 100, grain)
    assert (counts == 1).all()


@pytest.mark.parametrize("n", [0, -1, -(1 << 63)])
def test_no_work(n: int) -> None:
    _run(pool_for(2), 0, None, n, 1)  # a body at address 0 would crash


def test_ranges_have_the_length_of_the_grain() -> None:
    ranges: list[tuple[int, int]] = []
    body = BODY(lambda _ctx, lo, hi, _tid: ranges.append((lo, hi)))
    address = ctypes.cast(body, PTR).value
    assert address
    _run(pool_for(2), address, None, 10, 4)
    assert sorted(ranges) == [(0, 4), (4, 8), (8, 10)]
    ranges.clear()
    huge = (1 << 63) - 1
    _run(pool_for(2), address, None, huge, huge // 3)
    assert sorted(ranges) == [(k * (huge // 3), (k + 1) * (huge // 3)) for k in range(3)] + (
        [(huge // 3 * 3, huge)] if huge % 3 else []
    )
    ranges.clear()
    _run(pool_for(2), address, None, huge, huge - 1)
    assert sorted(ranges) == [(0, huge - 1), (huge - 1, huge)]


def test_draws_begin_with_the_own_stretch_and_get_smaller() -> None:
    barrier = threading.Barrier(2)
    ranges: list[tuple[int, int, int]] = []
    drawn: dict[int, tuple[int, int]] = {}

    def body(_ctx: int, lo: int, hi: int, tid: int) -> None:
        ranges.append((tid, lo, hi))
        if tid not in drawn:
            drawn[tid] = (lo, hi)
            barrier.wait(60)  # or one thread might do it all before the other wakes

    native = BODY(body)
    address = ctypes.cast(native, PTR).value
    assert address
    _run(pool_for(2), address, None, 200, 1)
    assert drawn == {0: (0, 34), 1: (100, 134)}, "a third of the own stretch of 100"
    firsts = [(lo, hi) for _, lo, hi in ranges if lo < 100]
    assert sorted(firsts)[:3] == [(0, 34), (34, 56), (56, 71)]
    assert max(hi - lo for _, lo, hi in ranges) == 34


@pytest.mark.parametrize("threads", [2, 4])
def test_all_threads_take_part(threads: int) -> None:
    barrier = threading.Barrier(threads)
    seen: list[tuple[int, int]] = []

    def body(_ctx: int, lo: int, _hi: int, tid: int) -> None:
        barrier.wait(60)  # passes only when every thread is in a block of its own
        seen.append((tid, threading.get_ident()))

    native = BODY(body)
    address = ctypes.cast(native, PTR).value
    assert address
    for _ in range(20):
        seen.clear()
        _run(pool_for(threads), address, None, threads, 1)
        assert sorted(tid for tid, _ in seen) == list(range(threads))
        assert (0, threading.get_ident()) in seen, "the caller is number 0"
        assert len({ident for _, ident in seen}) == threads


def test_many_regions_in_a_row(rng: np.random.Generator) -> None:
    """Each region reads what the one before wrote, in whatever threads: sums must come out exact."""
    pool = pool_for(4)
    counts, tids = np.zeros(500, np.int64), np.zeros(500, np.int64)
    ctx = np.array([counts.ctypes.data, tids.ctypes.data], np.int64)
    expected = np.zeros(500, np.int64)
    for n, grain in zip(rng.integers(1, 500, 5000).tolist(), rng.integers(1, 40, 5000).tolist(), strict=True):
        _run(pool, LOADED.address("count"), ctx.ctypes.data, n, grain)
        expected[:n] += 1
    assert (counts == expected).all()


def test_concurrent_callers() -> None:
    failures: list[str] = []
    barrier = threading.Barrier(6)

    def work(seed: int) -> None:
        barrier.wait(60)
        for k in range(300):
            n = 1 + (seed * 977 + k * 131) % 3000
            counts, tids = _count(pool_for(2 + seed % 2), n, 1 + k % 50)
            if not ((counts == 1).all() and (tids >= 0).all() and (tids < 3).all()):
                failures.append(f"{seed} {k}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_region_within_a_region() -> None:
    pool, outer, inner = pool_for(3), 40, 25
    counts, tids = np.zeros((outer, inner), np.int64), np.full((outer, inner), -1, np.int64)
    contexts = np.array([(c.ctypes.data, t.ctypes.data) for c, t in zip(counts, tids, strict=True)], np.int64)
    ctx = np.array([pool.parallel_for_address, pool.handle, inner, contexts.ctypes.data], np.int64)
    for repeat in range(1, 50):
        _run(pool, LOADED.address("nested"), ctx.ctypes.data, outer, 1)
        assert (counts == repeat).all()
    assert (tids == 0).all(), "the inner region runs where it is called"


def test_pools_are_shared_by_size() -> None:
    assert pool_for(2) is pool_for(2)
    assert pool_for(2).handle != pool_for(3).handle
    assert pool_for(3).threads == 3
    assert default_pool() is pool_for(config().threads)
    for threads in (0, -1, MAX_THREADS + 1):
        with pytest.raises(ValueError, match="a pool has 1 to"):
            pool_for(threads)


@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "arm64-apple-macosx"])
def test_the_code_is_portable(triple: str) -> None:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    arm = dataclasses.replace(Target.host(), triple=triple, cpu="generic", features="", vector_bytes=16)
    text = pool_module(arm)
    assert "x86" not in text
    module = binding.parse_assembly(text)
    module.verify()
    assembly = target_module._create_machine(triple, "generic", "", 2).emit_assembly(module)  # pyright: ignore
    assert "sw_parallel_for" in assembly
    assert "__aarch64" not in assembly, "atomics need no helper library"


# --- whole processes --------------------------------------------------------------------------------------------------
_PRELUDE = f"""
import sys
sys.path[:0] = {sys.path!r}
import ctypes, os, signal, threading, time
from stitchwork.backends.cpu.jit import compile_object, load_object
from stitchwork.backends.cpu.pool import pool_for
from stitchwork.backends.cpu.target import Target
BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 3)
pool = pool_for(3)
parallel_for = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2)(pool.parallel_for_address)
def native_code(text, name):
    return load_object(compile_object(text, Target.host()), [name])
def meet():
    "Returns when all three threads have met in one region."
    barrier, tids = threading.Barrier(3), []
    def body(ctx, lo, hi, tid):
        barrier.wait(60)
        tids.append(tid)
    native = BODY(body)
    parallel_for(pool.handle, ctypes.cast(native, ctypes.c_void_p), None, 3, 1)
    assert sorted(tids) == [0, 1, 2], tids
"""


def _process(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", _PRELUDE + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@needs_fork
@pytest.mark.parametrize("used_before", [True, False])
def test_a_child_gets_workers_of_its_own(used_before: bool) -> None:
    _process(f"""
if {used_before}:
    meet()
handle = pool.handle
for _ in range(3):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        assert pool_for(3) is pool and pool.handle == handle
        meet(); meet()
        grandchild = os.fork()
        if grandchild == 0:
            meet()
            os._exit(0)
        os._exit(os.waitpid(grandchild, 0)[1] != 0)
    assert os.waitpid(child, 0)[1] == 0
    meet()
""")


@needs_fork
def test_a_fork_amid_a_region_of_another_thread() -> None:
    _process("""
entered, leave = threading.Barrier(4), threading.Event()
def body(ctx, lo, hi, tid):
    entered.wait(60)
    leave.wait(60)
native = BODY(body)
other = threading.Thread(target=parallel_for, args=(pool.handle, ctypes.cast(native, ctypes.c_void_p), None, 3, 1))
other.start()
entered.wait(60)  # all three: a thread that is just entering Python may hold a lock that a fork's child never gets
child = os.fork()
if child == 0:
    signal.alarm(60)
    meet()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
leave.set()
other.join()
meet()
""")


@needs_fork
def test_forks_amid_short_regions() -> None:
    _process("""
text = "define void @empty(ptr %c, i64 %lo, i64 %hi, i64 %t) { ret void }"  # in Python, forks could deadlock: see above
loaded = native_code(text, "empty")
address = loaded.address("empty")
stop = False
def work():
    while not stop:
        parallel_for(pool.handle, address, None, 8, 1)
other = threading.Thread(target=work)
other.start()
for _ in range(30):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        meet()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop = True
other.join()
""")


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_exit_with_idle_workers(seconds: float) -> None:
    _process(f"meet()\ntime.sleep({seconds})")  # at once: they spin; later: they sleep


def test_exit_without_use_and_by_sys_exit() -> None:
    _process("pass")
    _process("meet()\nsys.exit(0)")


def test_exit_while_a_region_runs() -> None:
    _process("""
text = '''
define void @endless(ptr %c, i64 %lo, i64 %hi, i64 %t) {
  store atomic i64 1, ptr %c monotonic, align 8
  br label %l
l:
  %v = load atomic i64, ptr %c monotonic, align 8
  %b = icmp eq i64 %v, 1
  br i1 %b, label %l, label %x
x:
  ret void
}'''
loaded = native_code(text, "endless")
flag = ctypes.c_int64(0)
args = (pool.handle, loaded.address("endless"), ctypes.addressof(flag), 3, 1)
threading.Thread(target=parallel_for, args=args, daemon=True).start()
while not flag.value:
    time.sleep(0.001)
""")
