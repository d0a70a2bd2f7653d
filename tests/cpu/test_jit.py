"""Compiling, loading and unloading object code, and the description of CPUs."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import math
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stitchwork.backends.cpu import target as target_module
from stitchwork.backends.cpu.jit import LoadedObject, cached_object, compile_object, load_object
from stitchwork.backends.cpu.target import Target, binding
from stitchwork.config import reset_config
from stitchwork.errors import VerifyError
from stitchwork.runtime import cache as cache_module

HOST = Target.host()
on_x86 = pytest.mark.skipif(not HOST.is_x86, reason="names of x86 CPUs mean nothing to LLVM elsewhere")

ADD = """
define i64 @add(i64 %a, i64 %b) {{
  %slot = alloca i64
  store i64 {constant}, ptr %slot
  %c = load i64, ptr %slot
  %d = call i64 @inner(i64 %a, i64 %b)
  %e = add i64 %d, %c
  ret i64 %e
}}
define internal i64 @inner(i64 %a, i64 %b) alwaysinline {{
  %c = add i64 %a, %b
  ret i64 %c
}}
"""


def _add(loaded: LoadedObject, a: int, b: int) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(loaded.address("add"))(a, b)


@pytest.mark.parametrize("fast", [False, True])
def test_compile_load_call(fast: bool) -> None:
    loaded = load_object(compile_object(ADD.format(constant=100), HOST, fast=fast), ["add"])
    assert _add(loaded, 20, 3) == 123
    with pytest.raises(KeyError):
        loaded.address("inner")


def test_symbols_belong_to_their_object_and_leave_with_it() -> None:
    objects = [compile_object(ADD.format(constant=k), HOST, fast=True) for k in range(10)]
    alive = [load_object(objects[k % 10], ["add"]) for k in range(300)]
    assert [_add(loaded, 1, 1) for loaded in alive] == [2 + k % 10 for k in range(300)]
    del alive[::2]
    gc.collect()
    alive += [load_object(objects[k % 10], ["add"]) for k in range(1, 300, 2)]
    assert all(_add(loaded, 1, 1) == 2 + (1 + 2 * k) % 10 for k, loaded in enumerate(alive[:150]))
    assert all(_add(loaded, 1, 1) == 2 + (1 + 2 * k) % 10 for k, loaded in enumerate(alive[150:]))


@pytest.mark.skipif(sys.platform != "linux", reason="the size of a process is read from /proc")
def test_dropped_objects_give_their_memory_back() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    big = "@table = global [200000 x i64] zeroinitializer\n" + ADD.format(constant=0)
    obj = compile_object(big.replace("zeroinitializer", f"[{', '.join(['i64 7'] * 200_000)}]"), HOST, fast=True)
    load_object(obj, ["add"])
    before = resident_bytes()
    for _ in range(100):
        load_object(obj, ["add"])  # 1.6 MB each
    gc.collect()
    assert resident_bytes() - before < 50 << 20


LIBC = """
declare double @fmod(double, double)
declare ptr @memcpy(ptr, ptr, i64)
declare ptr @memset(ptr, i32, i64)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
@source = internal constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
@keep = global ptr @pthread_create
define double @f(double %x, i64 %i) {
  %mutex = alloca [256 x i8], align 64
  %buffer = alloca [4 x double], align 64
  %a = call ptr @memset(ptr %buffer, i32 0, i64 32)
  %b = call ptr @memcpy(ptr %buffer, ptr @source, i64 32)
  %c = call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  %d = call i32 @pthread_mutex_lock(ptr %mutex)
  %p = getelementptr double, ptr %buffer, i64 %i
  %v = load double, ptr %p
  %r = call double @fmod(double %x, double %v)
  ret double %r
}
"""


@pytest.mark.parametrize("fast", [False, True])
def test_libc_and_libm_resolve(fast: bool) -> None:
    loaded = load_object(compile_object(LIBC, HOST, fast=fast), ["f", "keep"])
    function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_int64)(loaded.address("f"))
    assert function(7.75, 2) == math.fmod(7.75, 3.5)


MALFORMED = {
    "syntax": "define i64 @add(i64 %a { ret i64 %a }",
    "type": "define i64 @f(float %a) {\n ret i64 %a\n}",
    "undefined": "define i64 @f() {\n ret i64 %nowhere\n}",
    "dominance": "define i64 @f() {\n %a = add i64 %b, 1\n %b = add i64 1, 1\n ret i64 %a\n}",
    "phi": "define i64 @f() {\ne:\n br label %l\nl:\n %p = phi i64 [ 1, %l ]\n ret i64 %p\n}",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_ir_is_an_error_of_ours(name: str) -> None:
    with pytest.raises(VerifyError, match=r"generated LLVM IR (cannot be parsed|is not valid): .") as caught:
        compile_object(MALFORMED[name], HOST)
    assert "STITCHWORK_DUMP_DIR" in str(caught.value)


@pytest.mark.parametrize("name", ["syntax", "dominance"])
def test_malformed_ir_is_kept_when_asked(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STITCHWORK_DUMP_DIR", str(tmp_path / "dump"))
    reset_config()
    try:
        with pytest.raises(VerifyError, match=r"IR kept in .*refused-") as caught:
            compile_object(MALFORMED[name], HOST)
        (kept,) = (tmp_path / "dump").iterdir()
        assert str(kept) in str(caught.value)
        assert kept.read_text() == MALFORMED[name]
    finally:
        monkeypatch.undo()
        reset_config()


def test_what_cannot_be_linked_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    unresolved = "declare i64 @nobody_has_this()\ndefine i64 @f() {\n %a = call i64 @nobody_has_this()\n ret i64 %a\n}"
    with pytest.raises(VerifyError, match="cannot be loaded"):
        load_object(compile_object(unresolved, HOST), ["f"])
    assert "nobody_has_this" in capfd.readouterr().err
    good = compile_object(ADD.format(constant=0), HOST)
    with pytest.raises(VerifyError, match="missing"):
        load_object(good, ["add", "missing"])
    for bad in (b"", b"not an object", good[: len(good) // 2]):
        with pytest.raises(VerifyError, match="cannot be loaded"):
            load_object(bad, ["add"])
    assert _add(load_object(good, ["add"]), 2, 3) == 5, "the linker survives refusals"


def test_threads_compile_and_load_at_once() -> None:
    results: dict[int, int] = {}

    def work(k: int) -> None:
        for _ in range(5):
            results[k] = _add(load_object(compile_object(ADD.format(constant=k), HOST), ["add"]), 0, 0)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {k: k for k in range(6)}


def test_objects_come_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STITCHWORK_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("STITCHWORK_CACHE", raising=False)
    reset_config()
    try:
        text = ADD.format(constant=7)
        obj = cached_object(text, HOST)
        (stored,) = tmp_path.iterdir()
        assert cached_object(text, HOST) == obj
        cached_object(text, HOST, fast=True)
        assert len(list(tmp_path.iterdir())) == 2, "another way to compile, another object"
        data = bytearray(stored.read_bytes())
        data[len(data) // 2] ^= 0xFF
        stored.write_bytes(data)
        assert _add(load_object(cached_object(text, HOST), ["add"]), 1, 1) == 9
        cache = cache_module.disk_cache()
        assert cache is not None
        assert cache.get(stored.stem) is not None, "stored anew"
    finally:
        monkeypatch.undo()
        reset_config()


_FORK = """
import os, threading
from stitchwork.backends.cpu.jit import compile_object, load_object
from stitchwork.backends.cpu.target import Target
text = "define i64 @f(i64 %a) {\\n %b = add i64 %a, 1\\n ret i64 %b\\n}"
stop = threading.Event()
def work():
    while not stop.is_set():
        load_object(compile_object(text, Target.host()), ["f"])
threads = [threading.Thread(target=work) for _ in range(2)]
[t.start() for t in threads]
for _ in range(10):
    child = os.fork()
    if child == 0:
        load_object(compile_object(text, Target.host()), ["f"]).address("f")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
[t.join() for t in threads]
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork there")
def test_a_child_may_compile_whatever_the_parent_was_doing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{_FORK}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- targets ----------------------------------------------------------------------------------------------------------
@on_x86
@pytest.mark.parametrize(
    "cpu, vector_bytes, registers, masked, fma",
    [
        ("x86-64", 16, 16, False, False),
        ("x86-64-v2", 16, 16, False, False),
        ("x86-64-v3", 32, 16, False, True),
        ("x86-64-v4", 64, 32, True, True),
        ("sapphirerapids", 64, 32, True, True),
        ("znver4", 64, 32, True, True),
    ],
)
def test_named_cpus(cpu: str, vector_bytes: int, registers: int, masked: bool, fma: bool) -> None:
    named = Target.named(cpu)
    facts = (named.vector_bytes, named.vector_registers, named.has_masked_ops, named.has_fma)
    assert facts == (vector_bytes, registers, masked, fma)
    assert named is Target.named(cpu)
    assert ("avx512bf16" in named.flags) == ("avx512vnni" in named.flags) == (cpu in ("sapphirerapids", "znver4"))


@on_x86
@pytest.mark.parametrize("cpu", ["sapphirerapids", "emeraldrapids", "skylake-avx512", "x86-64-v4"])
def test_wide_vectors_stay_wide(cpu: str) -> None:
    named = Target.named(cpu)
    module = binding.parse_assembly(
        "declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)\n"
        f"define void @f(ptr %p, float %s) {named.function_attributes} {{\n"
        "  %a = load <16 x float>, ptr %p\n  %i = insertelement <16 x float> poison, float %s, i64 0\n"
        "  %b = shufflevector <16 x float> %i, <16 x float> poison, <16 x i32> zeroinitializer\n"
        "  %c = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %b, <16 x float> %a)\n"
        "  store <16 x float> %c, ptr %p\n  ret void\n}"
    )
    assembly = named.create_machine(2).emit_assembly(module)
    assert "zmm" in assembly
    assert "ymm" not in assembly


def test_the_host() -> None:
    assert HOST is Target.host()
    assert HOST.vector_bytes in (16, 32, 64)
    assert 8 << 10 <= HOST.l1_bytes <= HOST.l2_bytes
    assert len(HOST.fingerprint) == 64
    assert dataclasses.replace(HOST, features=HOST.features + ",-fma").fingerprint != HOST.fingerprint
    assert dataclasses.replace(HOST).fingerprint == HOST.fingerprint
    # What LLVM says of this CPU and what is found out about a CPU of the same name must not contradict each other.
    if HOST.flags:
        assert target_module._probe(HOST.triple, HOST.cpu, HOST.features) <= HOST.flags  # pyright: ignore


@on_x86
def test_a_chosen_cpu_is_cut_to_what_the_host_has(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        for name in ("x86-64", "x86-64-v3", "x86-64-v4", "diamondrapids"):
            monkeypatch.setenv("STITCHWORK_CPU", name)
            reset_config()
            chosen = Target.host()
            assert chosen.cpu == name
            assert chosen.vector_bytes <= HOST.vector_bytes
            assert chosen.flags <= HOST.flags
            loaded = load_object(compile_object(ADD.format(constant=5), chosen), ["add"])
            assert _add(loaded, 1, 1) == 7
    finally:
        monkeypatch.undo()
        reset_config()


@on_x86
def test_an_unknown_cpu_name_does_not_end_the_process() -> None:
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from stitchwork.backends.cpu.jit import compile_object\n"
        "from stitchwork.backends.cpu.target import Target\n"
        "t = Target.named('no-such-cpu')\n"
        "assert compile_object('define i64 @f(i64 %a) {\\n ret i64 %a\\n}', t) and t.vector_bytes == 16\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "not a recognized processor" in done.stderr


def test_cache_sizes_survive_odd_systems(tmp_path: Path) -> None:
    sizes = target_module._cache_sizes  # pyright: ignore[reportPrivateUsage]
    assert sizes(tmp_path / "absent") == (32 << 10, 512 << 10)

    def describe(name: str, level: str, kind: str, size: str) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        for file, text in (("level", level), ("type", kind), ("size", size)):
            (tmp_path / name / file).write_text(text + "\n")

    describe("index0", "1", "Data", "48K")
    describe("index1", "1", "Instruction", "64K")
    describe("index2", "2", "Unified", "2M")
    assert sizes(tmp_path) == (48 << 10, 2 << 20)
    sizes.cache_clear()
    describe("index0", "1", "Data", "999999M")
    describe("index2", "nonsense", "Unified", "2M")
    assert sizes(tmp_path) == (1 << 20, 512 << 10)
    sizes.cache_clear()
