"""Settings of the process. The only reader of environment variables.

| variable | meaning | default |
| --- | --- | --- |
| `STITCHWORK_CACHE_DIR` | folder of the disk cache | the user's cache folder + `stitchwork` |
| `STITCHWORK_CACHE` | `0` turns the disk cache off | `1` |
| `STITCHWORK_CACHE_BYTES` | bound of the disk cache, in bytes | 536870912 (512 MiB) |
| `STITCHWORK_THREADS` | threads of the CPU backend, 1 to 256 | CPUs this process may use |
| `STITCHWORK_CPU` | LLVM name of the CPU to generate code for, such as `x86-64-v3` | the CPU found |
| `STITCHWORK_DUMP_DIR` | folder that receives code which LLVM refused | none |
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stitchwork.errors import StitchworkError

MAX_THREADS = 256
_CPU_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Config:
    """What the environment said when it was first asked for."""

    cache_dir: Path | None  # None: no disk cache
    cache_bytes: int
    threads: int
    usable_cpus: int
    cpu: str | None
    dump_dir: Path | None

    @staticmethod
    def read(environment: Mapping[str, str]) -> Config:
        """The settings in `environment`; an empty value counts as absent.

        Raises:
            StitchworkError: a value has the wrong form; the message names the variable.
        """
        return Config(
            cache_dir=_cache_dir(environment),
            cache_bytes=_integer(environment, "STITCHWORK_CACHE_BYTES", 512 << 20, 0, 1 << 62),
            threads=_integer(environment, "STITCHWORK_THREADS", _usable_cpus(), 1, MAX_THREADS),
            usable_cpus=_usable_cpus(),
            cpu=_cpu(environment),
            dump_dir=_path(environment, "STITCHWORK_DUMP_DIR"),
        )


def _integer(environment: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = environment.get(name, "").strip()
    if not text:
        return default
    # Checked before int(): Python refuses to read thousands of digits, with a message that names no variable.
    if not re.fullmatch(r"[0-9]{1,20}", text) or not low <= int(text) <= high:
        raise StitchworkError(
            name, "bad value", expected=f"an integer from {low} to {high}", got=repr(text[:60]), at=""
        )
    return int(text)


def _cpu(environment: Mapping[str, str]) -> str | None:
    text = environment.get("STITCHWORK_CPU", "").strip()
    if text and not _CPU_NAME.fullmatch(text):
        raise StitchworkError(
            "STITCHWORK_CPU", "bad value", expected="a CPU name as LLVM spells it", got=repr(text[:60]), at=""
        )
    return text or None


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    text = environment.get(name, "")
    return Path(text) if text else None


def _cache_dir(environment: Mapping[str, str]) -> Path | None:
    if not _integer(environment, "STITCHWORK_CACHE", 1, 0, 1):
        return None
    if chosen := _path(environment, "STITCHWORK_CACHE_DIR"):
        return chosen
    base = _path(environment, "XDG_CACHE_HOME")
    if base is None or not base.is_absolute():  # the XDG specification: a relative path is to be ignored
        try:
            home = Path.home()
        except RuntimeError:  # a user without a home: nothing may be assumed about where to write
            return None
        base = home / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return base / "stitchwork"


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MAX_THREADS)
    return min(os.cpu_count() or 1, MAX_THREADS)


_lock = threading.Lock()
_config: Config | None = None


def config() -> Config:
    """The process's settings, read from the environment at the first call.

    Raises:
        StitchworkError: a variable has a value of the wrong form.
    """
    global _config
    with _lock:
        if _config is None:
            _config = Config.read(os.environ)
        return _config


def reset_config() -> None:
    """Forget what was read, so that the next `config()` reads the environment again (for tests)."""
    global _config
    with _lock:
        _config = None


if hasattr(os, "register_at_fork"):
    # Another thread may hold the lock while this one forks; the child would wait for a thread it does not have.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
