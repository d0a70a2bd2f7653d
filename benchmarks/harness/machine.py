"""Facts of the machine and versions of what is installed, for the record."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("stitchwork", "numpy", "llvmlite", "torch", "jax", "jaxlib", "onnx", "onnxruntime", "openvino", "numba",
             "scipy")  # fmt: skip


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "cpu": _cpu_model(),
        "architecture": platform.machine(),
        "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "caches": _caches(),
        "memory_bytes": _memory(),
        "system": platform.platform(),
        "load_average": list(os.getloadavg()),
    }


def versions() -> dict[str, str | None]:
    """Versions of the packages measured, None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def first_cpus(count: int) -> list[int]:
    """The first `count` CPUs that this process may use; empty where the system does not say."""
    return sorted(os.sched_getaffinity(0))[:count] if hasattr(os, "sched_getaffinity") else []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _cpu_model() -> str:
    """The name; where a virtual machine hides it, family, model and stepping tell."""
    lines = [line.partition(":") for line in _text(Path("/proc/cpuinfo")).split("\n\n")[0].splitlines()]
    facts = {key.strip(): value.strip() for key, _, value in lines}
    if "model name" not in facts:
        return platform.processor()
    numbers = " ".join(f"{k} {facts[k]}" for k in ("cpu family", "model", "stepping") if k in facts)
    return f"{facts['model name']} ({numbers})"


def _caches() -> dict[str, str]:
    found: dict[str, str] = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind = _text(folder / "type")
        found[f"L{_text(folder / 'level')}{'' if kind == 'Unified' else ' ' + kind.lower()}"] = _text(folder / "size")
    return found


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0
