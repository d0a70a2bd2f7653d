"""What the code generator must know about a CPU, and the LLVM objects that stand for it."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import llvmlite
import llvmlite.binding

from stitchwork.config import config


class LLVMModule(Protocol):
    """A parsed module, as llvmlite hands it out."""

    triple: str
    data_layout: str

    def verify(self) -> None: ...
    def close(self) -> None: ...


class LLVMMachine(Protocol):
    """An LLVM target machine: the code generator for one CPU."""

    @property
    def target_data(self) -> object: ...
    def emit_object(self, module: LLVMModule) -> bytes: ...
    def emit_assembly(self, module: LLVMModule) -> str: ...


# llvmlite has no type stubs. What comes from it is typed by the protocols here and in `jit`.
binding: Any = llvmlite.binding

# One lock for all that LLVM does for us. llvmlite locks every single call anyway; this one is held over whole tasks,
# the freeing of LLVM's objects included: a fork waits for their end, so no child inherits LLVM half way through one.
llvm_lock = threading.RLock()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=llvm_lock.acquire, after_in_parent=llvm_lock.release, after_in_child=llvm_lock.release)


@functools.cache
def _initialise_llvm() -> None:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()


@dataclass(frozen=True)
class Target:
    """A CPU to generate code for. `vector_bytes` is the widest vector worth using; masks are for loop tails."""

    triple: str
    cpu: str
    features: str  # LLVM's form: "+avx2,-avx512f"
    vector_bytes: int
    vector_registers: int
    has_masked_ops: bool  # loads and stores of any element size under a mask, in one instruction
    has_fma: bool
    l1_bytes: int
    l2_bytes: int
    flags: frozenset[
        str
    ]  # LLVM's names of what the CPU has ("avx512vnni"); complete for the host, else what we ask for

    @staticmethod
    def host() -> Target:
        """The CPU this process runs on, or the one named by STITCHWORK_CPU less what this CPU lacks."""
        override = config().cpu
        with llvm_lock:
            return _host(override)

    @staticmethod
    def named(cpu: str) -> Target:
        """The CPU with LLVM's name `cpu` ("x86-64-v3", "znver4"), of the architecture of this process.

        Code for it may not run here. LLVM warns on the standard error output about a name it does not know, and then
        assumes the oldest CPU of the architecture.
        """
        with llvm_lock:
            return _named(cpu, "")

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith(("x86_64", "i386", "i686"))

    @functools.cached_property
    def fingerprint(self) -> str:
        """Equal where object code may be exchanged: same CPU, features and version of LLVM."""
        text = "|".join((self.triple, self.cpu, self.features, llvmlite.__version__, str(binding.llvm_version_info)))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def function_attributes(self) -> str:
        """The attributes every generated function carries.

        Several CPUs with AVX-512 are tuned for 256-bit vectors; without these, LLVM may split our 512-bit ones.
        """
        bits = self.vector_bytes * 8
        return f'nounwind "min-legal-vector-width"="{bits}" "prefer-vector-width"="{bits}"'

    def create_machine(self, opt: int = 2) -> LLVMMachine:
        """A fresh target machine; `opt` is the effort of LLVM's code generator, 0 to 3. Use it under `llvm_lock`."""
        with llvm_lock:
            return _create_machine(self.triple, self.cpu, self.features, opt)


def _create_machine(triple: str, cpu: str, features: str, opt: int) -> LLVMMachine:
    _initialise_llvm()
    if triple.startswith("x86_64"):
        # LLVM ends the process when it is given a CPU name it does not know and this is not said.
        features = f"{features},+64bit" if features else "+64bit"
    target = binding.Target.from_triple(triple)
    # Small and position independent: constants are read relative to the instruction, calls leave through stubs. The
    # default for JIT code is the large model, which loads every address as a 64-bit literal.
    machine = target.create_target_machine(
        cpu=cpu, features=features, opt=opt, reloc="pic", codemodel="small", jit=True
    )
    return cast(LLVMMachine, machine)


@functools.cache
def _host(override: str | None) -> Target:
    _initialise_llvm()
    found = cast("dict[str, bool]", binding.get_host_cpu_features())
    if override is not None:
        lacking = ",".join(f"-{name}" for name, present in sorted(found.items()) if not present)
        return _named(override, lacking)
    if not found:  # LLVM cannot tell on some systems; the CPU's name implies its features then
        return _named(cast(str, binding.get_host_cpu_name()), "")
    features = ",".join(f"{'+' if present else '-'}{name}" for name, present in sorted(found.items()))
    flags = frozenset(name for name, present in found.items() if present)
    triple, cpu = cast("tuple[str, str]", (binding.get_process_triple(), binding.get_host_cpu_name()))
    return _describe(triple, cpu, features, flags)


@functools.cache
def _named(cpu: str, features: str) -> Target:
    _initialise_llvm()
    triple = cast(str, binding.get_process_triple())
    return _describe(triple, cpu, features, _probe(triple, cpu, features))


def _describe(triple: str, cpu: str, features: str, flags: frozenset[str]) -> Target:
    """Derive the facts of a target from the names of its features."""
    arm = triple.startswith(("aarch64", "arm64"))
    avx512 = flags.issuperset(("avx512f", "avx512bw", "avx512dq", "avx512vl"))
    l1_bytes, l2_bytes = _cache_sizes()
    return Target(
        triple=triple,
        cpu=cpu,
        features=features,
        vector_bytes=64 if avx512 else 32 if "avx2" in flags else 16,
        vector_registers=32 if avx512 or arm else 16,
        has_masked_ops=avx512 or "sve" in flags,
        has_fma=arm or "fma" in flags,
        l1_bytes=l1_bytes,
        l2_bytes=l2_bytes,
        flags=flags,
    )


# --- features of a named CPU ------------------------------------------------------------------------------------------
# LLVM knows them and llvmlite does not tell. So a few lines are compiled, each of which becomes one certain instruction
# only where the feature exists and something longer elsewhere: (function body, instruction that proves it, features).
_Probe = tuple[str, str, tuple[str, ...]]

_X86_PROBES: tuple[_Probe, ...] = (
    ("<8 x i32> @f(<8 x i32> %a, <8 x i32> %b) { %r = add <8 x i32> %a, %b", r"vpaddd .*ymm", ("avx", "avx2")),
    (
        "<64 x i8> @f(<64 x i8> %a, <64 x i8> %b) { %r = add <64 x i8> %a, %b",
        r"vpaddb .*zmm",
        ("avx512f", "avx512bw"),
    ),
    ("<4 x i64> @f(<4 x i64> %a, <4 x i64> %b) { %r = mul <4 x i64> %a, %b", r"vpmullq", ("avx512dq", "avx512vl")),
    ("float @f(float %a, float %b) { %r = call float @llvm.fma.f32(float %a, float %b, float %b)", r"vfmadd", ("fma",)),
    ("<8 x float> @f(<8 x half> %a) { %r = fpext <8 x half> %a to <8 x float>", r"vcvtph2ps", ("f16c",)),
    ("<8 x half> @f(<8 x half> %a, <8 x half> %b) { %r = fadd <8 x half> %a, %b", r"vaddph", ("avx512fp16",)),
    (
        "<8 x bfloat> @f(<8 x float> %a) { %r = fptrunc <8 x float> %a to <8 x bfloat>",
        r"vcvtneps2bf16",
        ("avx512bf16",),
    ),
    (
        "<4 x i32> @f(<8 x i16> %a, <8 x i16> %b, <4 x i32> %c) { "
        "%m = call <4 x i32> @llvm.x86.sse2.pmadd.wd(<8 x i16> %a, <8 x i16> %b) %r = add <4 x i32> %c, %m",
        r"vpdpwssd",
        ("avx512vnni",),
    ),
)
_ARM_PROBES: tuple[_Probe, ...] = (
    ("<8 x half> @f(<8 x half> %a, <8 x half> %b) { %r = fadd <8 x half> %a, %b", r"fadd[ .].*8h", ("fullfp16",)),
    ("<4 x bfloat> @f(<4 x float> %a) { %r = fptrunc <4 x float> %a to <4 x bfloat>", r"bfcvtn", ("bf16",)),
    (
        "<16 x i8> @f(ptr %p, <16 x i1> %m) { %r = call <16 x i8> @llvm.masked.load.v16i8.p0"
        "(ptr align 1 %p, <16 x i1> %m, <16 x i8> zeroinitializer)",
        r"ld1b",
        ("sve",),
    ),
)
_DECLARATIONS = {
    "llvm.fma": "declare float @llvm.fma.f32(float, float, float)",
    "llvm.x86": "declare <4 x i32> @llvm.x86.sse2.pmadd.wd(<8 x i16>, <8 x i16>)",
    "llvm.masked": "declare <16 x i8> @llvm.masked.load.v16i8.p0(ptr, <16 x i1>, <16 x i8>)",
}


def _probe(triple: str, cpu: str, features: str) -> frozenset[str]:
    if triple.startswith(("aarch64", "arm64")):
        return _run_probes(triple, cpu, features, _ARM_PROBES) | {"neon"}
    if not triple.startswith("x86_64"):
        return frozenset()
    flags = _run_probes(triple, cpu, features, _X86_PROBES)
    if "avx512vnni" in flags and "avx512f" not in flags:  # one probe for both forms of the instruction
        flags = flags - {"avx512vnni"} | {"avxvnni"}
    return flags


def _run_probes(triple: str, cpu: str, features: str, probes: Iterable[_Probe]) -> frozenset[str]:
    text: list[str] = []
    for index, (body, _, _) in enumerate(probes):
        result = body.partition(" @f(")[0]
        body = body.replace("@f(", f"@probe{index}(").replace("{", "#0 {").replace(") %r", ")\n  %r")
        text.append(f"define {body}\n  ret {result} %r\n}}")
    text += [line for stem, line in _DECLARATIONS.items() if any(stem in body for body, _, _ in probes)]
    text.append('attributes #0 = { nounwind "min-legal-vector-width"="512" "prefer-vector-width"="512" }')
    module = binding.parse_assembly("\n".join(text))
    assembly = _create_machine(triple, cpu, features, 1).emit_assembly(module)
    functions = re.split(r"^_?probe\d+:", assembly, flags=re.MULTILINE)[1:]
    return frozenset(
        flag
        for code, (_, pattern, flags) in zip(functions, probes, strict=True)
        for flag in flags
        if re.search(pattern.replace(" ", r"\s+"), code)
    )


# --- caches -----------------------------------------------------------------------------------------------------------
_SYSTEM_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_DEFAULT_CACHES = (32 << 10, 512 << 10)  # no mainstream CPU of the last ten years has less


@functools.cache
def _cache_sizes(folder: Path = _SYSTEM_CACHES) -> tuple[int, int]:
    """(bytes of the first-level data cache, bytes of the second level); modest guesses where the system is silent."""
    sizes: dict[int, int] = dict(zip((1, 2), _DEFAULT_CACHES, strict=True))
    try:
        for index in sorted(folder.glob("index*")):
            level = int((index / "level").read_text())
            size = re.fullmatch(r"(\d+)([KM]?)\s*", (index / "size").read_text())
            if size and level in sizes and (index / "type").read_text().strip() in ("Data", "Unified"):
                sizes[level] = int(size[1]) << {"": 0, "K": 10, "M": 20}[size[2]]
    except (OSError, ValueError):
        pass
    # What a virtual machine reports can be anything; blocking must never be led to absurd sizes.
    return min(max(sizes[1], 8 << 10), 1 << 20), min(max(sizes[2], 128 << 10), 64 << 20)
