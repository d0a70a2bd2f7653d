"""The thread pool: native code, written as LLVM IR, that spreads ranges of work over threads.

Generated code calls `sw_parallel_for(pool, fn, ctx, n, grain)`, whose address and pool it is given at run time; that
calls `fn(ctx, lo, hi, tid)` on disjoint ranges which cover [0, n).

How a region runs. The caller takes `busy`, writes the job, opens the `gate`, advances `epoch` and works through the
blocks. A worker that sees a new epoch enters the gate if it is open (adds one to it), works, and leaves (subtracts
one). When no block is left the caller closes the gate and waits until nobody is inside. So a worker that wakes late is
never waited for, any number of workers will do, none included, and the job can only be rewritten when nobody can read
it. Idle workers spin for some tens of microseconds, then sleep on a condition variable.

Who does which block. The blocks are cut into as many stretches as there are threads. A thread draws from its own
stretch first, in order, then helps with the others'; a draw takes some of what is left, so the last ones are small.
What follows each other runs on one CPU, then, and so do the same parts of job after job: their data are in its cache.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from stitchwork.backends.cpu.jit import LoadedObject, cached_object, load_object
from stitchwork.backends.cpu.llvm import Function, Int, Module, V, as_i64, i64
from stitchwork.backends.cpu.routine import ceil_div_value
from stitchwork.backends.cpu.target import Target
from stitchwork.config import MAX_THREADS, config

# Layout of a pool, in bytes. What different threads write lies in different cache lines.
_EPOCH = 0  # number of the latest job
_GATE = 64  # threads inside the job, plus _OPEN while more may enter
_BUSY = 128  # 1 while some thread runs a region
_FN, _CTX, _N, _GRAIN, _BLOCKS, _STRETCH = 192, 200, 208, 216, 224, 232  # the job; constant while anybody is inside
_THREADS, _SPIN, _STARTED, _FIRST_EPOCH = 320, 328, 336, 344  # constant while workers run
_JOINED = 384  # workers that have taken their number
_PARKED = 448  # workers asleep, or about to be
_MUTEX, _CONDITION = 512, 768  # pthread objects: 40 to 64 bytes on the systems known
_DRAWN = 1024  # for each stretch, in a cache line of its own: the next block to be drawn
_LINE = 64

_OPEN = 1 << 32
_SHARE = 3  # a draw takes this part of the blocks that a stretch has left
_STACK_BYTES = 4 << 20  # some C libraries give a thread as little as 128 KiB


class _Writer:
    """A function of the pool being written: field access on top of `llvm.Function`."""

    def __init__(self, fn: Function, pool: V, is_x86: bool) -> None:
        self.fn, self.pool, self.is_x86 = fn, pool, is_x86

    def at(self, offset: int) -> V:
        return self.fn.gep(self.pool, offset, "i8")

    def get(self, offset: int, type_: str = "i64") -> V:
        return self.fn.load(type_, self.at(offset), 8)

    def put(self, offset: int, value: Int) -> None:
        self.fn.store(as_i64(value), self.at(offset), 8)

    def atomic_get(self, offset: int, order: str) -> V:
        return self.fn.emit("i64", f"load atomic i64, {self.at(offset)} {order}, align 8")

    def atomic_put(self, offset: int, value: int, order: str) -> None:
        self.fn.do(f"store atomic i64 {value}, {self.at(offset)} {order}, align 8")

    def atomic(self, operation: str, offset: int, operand: int, order: str) -> V:
        """Apply an operation to a field; the value is that from before."""
        return self.fn.emit("i64", f"atomicrmw {operation} {self.at(offset)}, i64 {operand} {order}")

    def counter(self, stretch: V) -> V:
        """The address of a stretch's counter."""
        return self.fn.gep(self.at(_DRAWN), self.fn.mul(stretch, _LINE), "i8")

    def libc(self, name: str, *args: V) -> V:
        return self.fn.call(name, "i32", args)

    def pause(self) -> None:
        if self.is_x86:
            self.fn.call("llvm.x86.sse2.pause", "void", [])

    def is_zero(self, value: V) -> V:
        return self.fn.icmp("eq", value, i64(0))


def _write_run_blocks(w: _Writer, tid: V) -> None:
    """void sw_run_blocks(ptr pool, i64 tid): do blocks of the current job until none is left."""
    fn = w.fn
    body, ctx, n, grain, blocks, stretch = (
        w.get(_FN, "ptr"), w.get(_CTX, "ptr"), w.get(_N), w.get(_GRAIN), w.get(_BLOCKS), w.get(_STRETCH)
    )  # fmt: skip
    threads = w.get(_THREADS)
    with fn.loop(0, threads) as loop:
        beyond = fn.add(tid, loop.index)
        number = fn.select(fn.icmp("sge", beyond, threads), fn.sub(beyond, threads), beyond)
        end = fn.minimum(fn.mul(fn.add(number, 1), stretch), blocks)
        counter = w.counter(number)
        look, draw, work, done = (fn.new_block(name) for name in ("look", "draw", "work", "done"))
        fn.br(look)
        fn.position(look)
        first = fn.emit("i64", f"load atomic i64, {counter} monotonic, align 8")
        left = fn.sub(end, first)
        fn.cbr(fn.icmp("sgt", left, i64(0)), draw, done)
        fn.position(draw)
        following = fn.add(first, ceil_div_value(fn, left, _SHARE))
        pair = fn.emit("{ i64, i1 }", f"cmpxchg {counter}, {first}, {following} monotonic monotonic")
        fn.cbr(fn.emit("i1", f"extractvalue {pair}, 1"), work, look)
        fn.position(work)
        lo = fn.mul(first, grain)  # below n: no overflow, whatever n and grain
        last = fn.mul(fn.sub(following, 1), grain)
        hi = fn.add(last, fn.minimum(grain, fn.sub(n, last)))
        fn.do(f"call void {body.ref}({ctx}, {lo}, {hi}, {tid})")
        fn.br(look)
        fn.position(done)
    fn.ret()


def _write_worker(w: _Writer) -> None:
    """ptr sw_worker(ptr pool): the life of a worker thread; it has no end."""
    fn = w.fn
    tid = fn.add(w.atomic("add", _JOINED, 1, "monotonic"), 1)
    first = w.get(_FIRST_EPOCH)
    limit = w.get(_SPIN)
    idle, spin, wait, park, sleep, awake, check, leave, inside = (
        fn.new_block(name) for name in ("idle", "spin", "wait", "park", "sleep", "awake", "check", "leave", "inside")
    )
    entry = fn.block
    fn.br(idle)
    fn.position(idle)
    seen = fn.phi("i64")
    seen.incoming.append((first, entry))
    fn.br(spin)

    fn.position(spin)
    count = fn.phi("i64")
    count.incoming.append((i64(0), idle))
    epoch_spinning = w.atomic_get(_EPOCH, "acquire")
    fn.cbr(fn.icmp("ne", epoch_spinning, seen.value), check, wait)
    fn.position(wait)
    w.pause()
    more = fn.add(count.value, 1)
    count.incoming.append((more, wait))
    fn.cbr(fn.icmp("slt", more, limit), spin, park)

    # Parked first, epoch second; a caller advances the epoch first and reads `parked` second. Both in one total order,
    # so either the worker sees the job or the caller sees the worker, and no wake-up is lost.
    fn.position(park)
    w.libc("pthread_mutex_lock", w.at(_MUTEX))
    w.atomic("add", _PARKED, 1, "seq_cst")
    fn.br(sleep)
    fn.position(sleep)
    epoch_parked = w.atomic_get(_EPOCH, "seq_cst")
    still = fn.new_block("still")
    fn.cbr(fn.icmp("ne", epoch_parked, seen.value), awake, still)
    fn.position(still)
    w.libc("pthread_cond_wait", w.at(_CONDITION), w.at(_MUTEX))
    fn.br(sleep)
    fn.position(awake)
    w.atomic("sub", _PARKED, 1, "seq_cst")
    w.libc("pthread_mutex_unlock", w.at(_MUTEX))
    fn.br(check)

    fn.position(check)
    epoch = fn.phi("i64")
    epoch.incoming += [(epoch_spinning, spin), (epoch_parked, awake)]
    before = w.atomic("add", _GATE, 1, "acq_rel")
    fn.cbr(w.is_zero(fn.binary("and", before, i64(_OPEN))), leave, inside)
    fn.position(inside)
    fn.call("sw_run_blocks", "void", [w.pool, tid])
    fn.br(leave)
    fn.position(leave)
    w.atomic("sub", _GATE, 1, "release")
    seen.incoming.append((epoch.value, leave))
    fn.br(idle)


def _write_start(w: _Writer) -> None:
    """void sw_start(ptr pool): make the workers. Called by the owner of `busy`; as many as the system allows."""
    fn = w.fn
    w.libc("pthread_mutex_init", w.at(_MUTEX), V("ptr", "null"))
    w.libc("pthread_cond_init", w.at(_CONDITION), V("ptr", "null"))
    w.put(_FIRST_EPOCH, w.atomic_get(_EPOCH, "monotonic"))
    w.put(_JOINED, 0)
    w.put(_STARTED, 1)
    attributes, handle = fn.alloca("i8", 256), fn.alloca("i64", 1)
    w.libc("pthread_attr_init", attributes)
    w.libc("pthread_attr_setstacksize", attributes, i64(_STACK_BYTES))
    workers = fn.sub(w.get(_THREADS), 1)
    with fn.loop(0, workers):
        result = w.libc("pthread_create", handle, attributes, V("ptr", "@sw_worker"), w.pool)
        with fn.when(fn.icmp("eq", result, V("i32", "0"))):
            w.libc("pthread_detach", fn.load("i64", handle, 8))
    w.libc("pthread_attr_destroy", attributes)
    fn.ret()


def _write_parallel_for(w: _Writer, body: V, ctx: V, n: V, grain: V) -> None:
    """void sw_parallel_for(ptr pool, ptr fn, ptr ctx, i64 n, i64 grain)"""
    fn = w.fn
    some, many, region, alone, out = (fn.new_block(name) for name in ("some", "many", "region", "alone", "out"))
    fn.cbr(fn.icmp("sgt", n, i64(0)), some, out)
    fn.position(some)
    threads, grain = w.get(_THREADS), fn.maximum(grain, 1)
    one_block = fn.icmp("sle", n, grain)
    one_thread = fn.icmp("sle", threads, i64(1))
    fn.cbr(fn.binary("or", one_block, one_thread), alone, many)
    fn.position(many)
    pair = fn.emit("{ i64, i1 }", f"cmpxchg {w.at(_BUSY)}, i64 0, i64 1 acquire monotonic")
    fn.cbr(fn.emit("i1", f"extractvalue {pair}, 1"), region, alone)

    fn.position(alone)  # also where the pool is busy: with another run, or with the very region this call is made in
    fn.do(f"call void {body.ref}({ctx}, i64 0, {n}, i64 0)")
    fn.br(out)

    fn.position(region)
    with fn.when(w.is_zero(w.get(_STARTED))):
        fn.call("sw_start", "void", [w.pool])
    blocks = fn.add(fn.sdiv(fn.sub(n, 1), grain), 1)
    stretch = fn.add(fn.sdiv(fn.sub(blocks, 1), threads), 1)
    job = ((_FN, body), (_CTX, ctx), (_N, n), (_GRAIN, grain), (_BLOCKS, blocks), (_STRETCH, stretch))
    for offset, value in job:
        fn.store(value, w.at(offset), 8)
    with fn.loop(0, threads) as loop:
        first = fn.mul(loop.index, stretch)
        fn.do(f"store atomic {first}, {w.counter(loop.index)} monotonic, align 8")
    w.atomic("or", _GATE, _OPEN, "release")
    w.atomic("add", _EPOCH, 1, "seq_cst")
    _write_wake(w, fn.sub(blocks, 1))
    fn.call("sw_run_blocks", "void", [w.pool, i64(0)])
    w.atomic("and", _GATE, ~_OPEN, "acq_rel")
    _write_wait_until_empty(w)
    w.atomic_put(_BUSY, 0, "release")
    fn.br(out)
    fn.position(out)
    fn.ret()


def _write_wake(w: _Writer, useful: V) -> None:
    """Wake sleeping workers, no more of them than `useful`."""
    fn = w.fn
    parked = w.atomic_get(_PARKED, "seq_cst")
    with fn.when(fn.icmp("sgt", parked, i64(0))):
        w.libc("pthread_mutex_lock", w.at(_MUTEX))
        w.libc("pthread_mutex_unlock", w.at(_MUTEX))
        with fn.loop(0, fn.minimum(parked, useful)):
            w.libc("pthread_cond_signal", w.at(_CONDITION))


def _write_wait_until_empty(w: _Writer) -> None:
    """Spin until nobody is inside the gate; after a while let other threads have the CPU between looks."""
    fn = w.fn
    look, again, busy, patient, done = (fn.new_block(name) for name in ("look", "again", "busy", "patient", "done"))
    before = fn.block
    limit = w.get(_SPIN)
    fn.br(look)
    fn.position(look)
    count = fn.phi("i64")
    count.incoming.append((i64(0), before))
    fn.cbr(w.is_zero(w.atomic_get(_GATE, "acquire")), done, again)
    fn.position(again)
    more = fn.add(count.value, 1)
    fn.cbr(fn.icmp("slt", more, limit), busy, patient)
    fn.position(busy)
    w.pause()
    count.incoming.append((more, busy))
    fn.br(look)
    fn.position(patient)
    w.libc("sched_yield")
    count.incoming.append((limit, patient))
    fn.br(look)
    fn.position(done)


def _write_create(fn: Function, threads: V, spin: V, is_x86: bool) -> None:
    """ptr sw_pool_create(i64 threads, i64 spin): a pool without workers yet; null where memory is short."""
    slot = fn.alloca("ptr", 1)
    fn.store(V("ptr", "null"), slot, 8)
    size = fn.add(_DRAWN, fn.mul(threads, _LINE))
    status = fn.call("posix_memalign", "i32", [slot, i64(_LINE), size])
    made, failed = fn.new_block("made"), fn.new_block("failed")
    fn.cbr(fn.icmp("eq", status, V("i32", "0")), made, failed)
    fn.position(failed)
    fn.ret(V("ptr", "null"))
    fn.position(made)
    w = _Writer(fn, fn.load("ptr", slot, 8), is_x86)
    fn.call("llvm.memset.p0.i64", "void", [w.pool, V("i8", "0"), size, V("i1", "false")])
    w.put(_THREADS, threads)
    w.put(_SPIN, spin)
    fn.ret(w.pool)


def _write_after_fork(w: _Writer) -> None:
    """void sw_pool_after_fork(ptr pool): in a child, where no worker exists: as if none had ever been made."""
    for offset in (_STARTED, _GATE, _PARKED, _BUSY):
        w.atomic_put(offset, 0, "release")
    w.fn.ret()


def pool_module(target: Target) -> str:
    """The pool's code as LLVM IR text."""
    module = Module()

    def function(name: str, result: str, params: list[tuple[str, str]], linkage: str = "internal") -> Function:
        return module.function(name, result, params, target.function_attributes, linkage)

    def writer(fn: Function) -> _Writer:
        return _Writer(fn, fn.params[0], target.is_x86)

    fn = function("sw_run_blocks", "void", [("ptr", "pool"), ("i64", "tid")])
    _write_run_blocks(writer(fn), fn.params[1])
    _write_worker(writer(function("sw_worker", "ptr", [("ptr", "pool")])))
    _write_start(writer(function("sw_start", "void", [("ptr", "pool")])))
    job = [("ptr", "pool"), ("ptr", "fn"), ("ptr", "ctx"), ("i64", "n"), ("i64", "grain")]
    fn = function("sw_parallel_for", "void", job, "")
    _write_parallel_for(writer(fn), *fn.params[1:])
    fn = function("sw_pool_create", "ptr", [("i64", "threads"), ("i64", "spin")], "")
    _write_create(fn, fn.params[0], fn.params[1], target.is_x86)
    _write_after_fork(writer(function("sw_pool_after_fork", "void", [("ptr", "pool")], "")))
    return module.text()


# --- the Python side --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Code:
    """The pool's machine code; loaded once and never unloaded, for workers live in it to the end of the process."""

    loaded: LoadedObject
    parallel_for_address: int
    create: Callable[[int, int], int | None]
    after_fork: Callable[[int], None]


def _load_code() -> _Code:
    target = Target.host()
    loaded = load_object(
        cached_object(pool_module(target), target), ("sw_parallel_for", "sw_pool_create", "sw_pool_after_fork")
    )
    create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(loaded.address("sw_pool_create"))
    # PYFUNCTYPE keeps the GIL: in the child of a fork nothing may run in between.
    after_fork = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(loaded.address("sw_pool_after_fork"))
    return _Code(loaded, loaded.address("sw_parallel_for"), create, after_fork)


_lock = threading.RLock()
_code: _Code | None = None
_pools: dict[int, Pool] = {}
_handles: list[int] = []


def _spin_limit(threads: int, is_x86: bool) -> int:
    """How often an idle worker looks for work before it sleeps: about 50 us. Not at all where CPUs are fewer."""
    if threads > config().usable_cpus:
        return 1
    return 1000 if is_x86 else 25_000  # with its pause, a look takes 10 to 50 ns on x86; elsewhere about 2 ns


class Pool:
    """`threads` threads: the one that calls, and workers that are made at the first region and made anew after a fork.

    A pool and its workers last as long as the process. `pool_for` shares one pool per size.
    """

    def __init__(self, threads: int) -> None:
        """
        Raises:
            ValueError: `threads` is not in 1 to `config.MAX_THREADS`.
            MemoryError: no memory for the pool.
        """
        global _code
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"a pool has 1 to {MAX_THREADS} threads, got {threads}")
        with _lock:
            if _code is None:
                _code = _load_code()
            handle = _code.create(threads, _spin_limit(threads, Target.host().is_x86))
            if not handle:
                raise MemoryError("no memory for a thread pool")
            _handles.append(handle)
        self._handle, self._threads, self._address = handle, threads, _code.parallel_for_address

    @property
    def handle(self) -> int:
        """The first argument of `sw_parallel_for`; it stays the same over a fork."""
        return self._handle

    @property
    def threads(self) -> int:
        """How many threads may run a body at once; `tid` is below it."""
        return self._threads

    @property
    def parallel_for_address(self) -> int:
        """Address of `void sw_parallel_for(ptr pool, ptr fn, ptr ctx, i64 n, i64 grain)`.

        It calls `fn(ptr ctx, i64 lo, i64 hi, i64 tid)` on disjoint ranges that cover [0, n), each of a multiple of
        `grain` (at least 1) but the last, and returns when all calls have returned; their writes are then visible. The
        calling thread has tid 0, workers have 1 to threads - 1. It calls `fn(ctx, 0, n, 0)` instead where the pool has
        one thread, where one block holds all, or where the pool is in use by another region. `n` <= 0 calls nothing.
        """
        return self._address


def pool_for(threads: int) -> Pool:
    """The pool of this many threads, shared by all who ask for that size.

    Raises:
        ValueError: `threads` is not in 1 to `config.MAX_THREADS`.
    """
    with _lock:
        pool = _pools.get(threads)
        if pool is None:
            pool = _pools[threads] = Pool(threads)
        return pool


def default_pool() -> Pool:
    """The pool of `config().threads` threads."""
    return pool_for(config().threads)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    if _code is not None:
        for handle in _handles:
            _code.after_fork(handle)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
