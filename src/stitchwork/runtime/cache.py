"""Caches: `DiskCache` keeps object code between processes, `BoundedCache` keeps anything within one.

A file of the disk cache is `magic, SHA-256 of the payload, payload`. It appears under its name only when whole (written
aside, then renamed) and is read back only if its hash is right, so neither a crash, a full disk nor another process
can make us load half an object. Any trouble with the disk means a miss, never an error: a cache is an optimisation.
"""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
import stat
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Generic, TypeVar

from stitchwork.config import config

_MAGIC = b"STITCHW1"
_HEADER = len(_MAGIC) + hashlib.sha256().digest_size
_SUFFIX = ".bin"
_TEMPORARY = ".tmp-"
_STALE_SECONDS = 3600.0  # a temporary file this old was left by a process that died
_WRITES_BETWEEN_SCANS = 32  # how often what other processes wrote is counted

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def object_key(ir_text: str, target_fingerprint: str, variant: str) -> str:
    """Name of the object code made from `ir_text`: SHA-256, in hexadecimal, of all that decides its bytes.

    Args:
        ir_text: the code as LLVM IR text.
        target_fingerprint: `Target.fingerprint`: CPU, features and the version of LLVM.
        variant: how it is compiled: version and options of our pass pipeline.
    """
    digest = hashlib.sha256()
    for part in (target_fingerprint, variant, ir_text):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))  # lengths keep ("ab", "c") apart from ("a", "bc")
        digest.update(data)
    return digest.hexdigest()


class DiskCache:
    """Payloads by key in one folder, at most `max_bytes` of them; the least recently used go first.

    Safe between threads and processes. A folder that cannot be written, or that other users could write to (what lies
    there is executed), leaves the cache silently off.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.directory, self.max_bytes = directory, max_bytes
        self._lock = threading.Lock()
        self._bytes = 0  # of all files as far as known
        self._writes_until_scan = 0
        self._private: bool | None = None
        _instances.add(self)

    def after_fork(self) -> None:
        """Called in the child of a fork: the thread that held the lock, if any, does not exist there."""
        self._lock = threading.Lock()

    @property
    def enabled(self) -> bool:
        """Whether the folder exists, or could be made, and is ours alone to write."""
        if self._private is None:
            self._private = self.max_bytes > 0 and _make_private(self.directory)
        return self._private

    def get(self, key: str) -> bytes | None:
        """The payload stored under `key`, or None. A damaged file is removed."""
        if not self.enabled:
            return None
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        payload = data[_HEADER:]
        if data[:_HEADER] != _MAGIC + hashlib.sha256(payload).digest():
            _remove(path)
            return None
        try:
            os.utime(path)  # time of modification serves as time of last use; access times are often switched off
        except OSError:
            pass
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Store `payload` under `key`; does nothing where it cannot or where it is larger than the whole cache."""
        data = _MAGIC + hashlib.sha256(payload).digest() + payload
        if not self.enabled or len(data) > self.max_bytes:
            return
        temporary = self.directory / f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with open(temporary, "xb") as file:
                file.write(data)
            os.replace(temporary, self._path(key))
        except OSError:
            _remove(temporary)
            return
        self._account(len(data))

    def _path(self, key: str) -> Path:
        if not key.isalnum():
            raise ValueError(f"not a cache key: {key!r}")  # a key is a file name: no separators, no dots
        return self.directory / f"{key}{_SUFFIX}"

    def _account(self, added: int) -> None:
        with self._lock:
            self._bytes += added
            self._writes_until_scan -= 1
            if self._writes_until_scan < 0 or self._bytes > self.max_bytes:
                self._writes_until_scan = _WRITES_BETWEEN_SCANS
                self._bytes = self._evict()

    def _evict(self) -> int:
        """Count all files; above the bound, remove the longest unused down to nine tenths of it. Returns the bytes."""
        files = self._scan()
        total = sum(size for _, size, _ in files)
        if total <= self.max_bytes:
            return total
        for _, size, path in sorted(files):
            if total <= self.max_bytes * 9 // 10:
                break
            _remove(path)
            total -= size
        return total

    def _scan(self) -> list[tuple[int, int, str]]:
        """(time of last use in ns, bytes, path) of every stored file."""
        files: list[tuple[int, int, str]] = []
        oldest_temporary = time.time() - _STALE_SECONDS
        try:
            with os.scandir(self.directory) as entries:
                for entry in entries:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:  # another process removed it
                        continue
                    if entry.name.startswith(_TEMPORARY):
                        if status.st_mtime < oldest_temporary:
                            _remove(entry.path)
                    elif entry.name.endswith(_SUFFIX):
                        files.append((status.st_mtime_ns, status.st_size, entry.path))
        except OSError:
            pass
        return files


def _make_private(directory: Path) -> bool:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError:
        return False
    if hasattr(os, "getuid") and (status.st_uid not in (os.getuid(), 0) or status.st_mode & stat.S_IWOTH):
        return False
    return os.access(directory, os.R_OK | os.W_OK | os.X_OK)


def _remove(path: str | Path) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


@functools.lru_cache(maxsize=4)
def _disk_cache(directory: Path, max_bytes: int) -> DiskCache:
    return DiskCache(directory, max_bytes)


def disk_cache() -> DiskCache | None:
    """The cache that `config()` describes, one per process; None where it is switched off."""
    settings = config()
    return None if settings.cache_dir is None else _disk_cache(settings.cache_dir, settings.cache_bytes)


class BoundedCache(Generic[K, T]):
    """A mapping that forgets its least recently used entry when it holds more than `capacity`. Thread-safe."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        self._lock = threading.RLock()  # a value's finaliser may run in here and come back to this cache
        self._entries: OrderedDict[K, T] = OrderedDict()
        _instances.add(self)

    def after_fork(self) -> None:
        """Called in the child of a fork: the thread that held the lock, if any, does not exist there."""
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> T | None:
        """The entry of `key`, now the most recently used, or None."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key]

    def put(self, key: K, value: T) -> None:
        """Store `value` under `key` in place of what was there."""
        forgotten: list[T] = []  # dropped after the lock is released: their finalisers may take long
        with self._lock:
            if key in self._entries:
                forgotten.append(self._entries[key])
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self.capacity:
                forgotten.append(self._entries.popitem(last=False)[1])

    def get_or_make(self, key: K, make: Callable[[], T]) -> T:
        """The entry of `key`, made by `make()` if absent.

        `make` runs without the lock, so two threads may both make the entry; all callers get the one stored first.
        """
        found = self.get(key)
        if found is not None:
            return found
        made = make()
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
            self.put(key, made)
            return made

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            forgotten, self._entries = self._entries, OrderedDict[K, T]()
        del forgotten


_instances: weakref.WeakSet[DiskCache | BoundedCache[Any, Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for cache in list(_instances):
        cache.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
