"""The disk cache and the in-memory cache: damage, eviction, other processes, other threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stitchwork.config import Config, config, reset_config
from stitchwork.errors import StitchworkError
from stitchwork.runtime.cache import BoundedCache, DiskCache, disk_cache, object_key

KEY = "a" * 64


def _stored(cache: DiskCache) -> list[Path]:
    return sorted(cache.directory.glob("*.bin"))


def _total(cache: DiskCache) -> int:
    return sum(path.stat().st_size for path in _stored(cache))


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "deep" / "cache", 1 << 20)


def test_what_is_put_is_got(cache: DiskCache) -> None:
    assert cache.get(KEY) is None
    for payload in (b"", b"x", bytes(range(256)) * 100):
        cache.put(KEY, payload)
        assert cache.get(KEY) == payload
        assert DiskCache(cache.directory, 1 << 20).get(KEY) == payload
    assert [path.suffix for path in cache.directory.iterdir()] == [".bin"], "no temporary file stays"


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty", "longer", "other magic", "hash alone"])
def test_a_damaged_file_is_ignored_and_removed(cache: DiskCache, damage: str) -> None:
    cache.put(KEY, b"object code" * 50)
    (path,) = _stored(cache)
    data = bytearray(path.read_bytes())
    match damage:
        case "flipped":
            data[-5] ^= 1
        case "truncated":
            data = data[:-1]
        case "empty":
            data.clear()
        case "longer":
            data += b"!"
        case "other magic":
            data[0] ^= 1
        case _:
            data = data[:40]
    path.write_bytes(data)
    assert cache.get(KEY) is None
    assert not path.exists()
    cache.put(KEY, b"again")
    assert cache.get(KEY) == b"again"


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10_000)
    keys = [f"{k:064x}" for k in range(9)]
    for age, key in enumerate(keys):
        cache.put(key, b"z" * 1000)
        os.utime(tmp_path / f"{key}.bin", (time.time() - 1000 + age,) * 2)
    assert cache.get(keys[0]) is not None  # used now: the youngest of all
    cache.put("f" * 64, b"z" * 1000)
    left = {path.stem for path in _stored(cache)}
    assert _total(cache) <= 10_000
    assert keys[0] in left
    assert "f" * 64 in left
    assert keys[1] not in left
    assert keys[8] in left


def test_what_exceeds_the_bound_alone_is_not_stored(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 100)
    cache.put(KEY, b"z" * 100)
    assert _stored(cache) == []
    assert not DiskCache(tmp_path, 0).enabled


def test_leftovers_of_dead_writers_are_cleared(tmp_path: Path) -> None:
    old, young = tmp_path / ".tmp-1-old", tmp_path / ".tmp-1-young"
    old.write_bytes(b"?")
    young.write_bytes(b"?")
    os.utime(old, (time.time() - 7200,) * 2)
    DiskCache(tmp_path, 1 << 20).put(KEY, b"x")
    assert not old.exists()
    assert young.exists(), "its writer may still be at work"


def test_off_without_a_word_where_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "cache", 1 << 20)
    cache.put(KEY, b"x")
    assert cache.get(KEY) is None
    assert not cache.enabled


def test_off_where_anybody_can_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    cache = DiskCache(tmp_path, 1 << 20)
    cache.put(KEY, b"x")
    assert cache.get(KEY) is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_vanishes_is_a_miss(cache: DiskCache) -> None:
    cache.put(KEY, b"x")
    _stored(cache)[0].unlink()
    cache.directory.rmdir()
    assert cache.get(KEY) is None
    cache.put(KEY, b"x")
    assert cache.get(KEY) is None


@pytest.mark.parametrize("key", ["../x", "a/b", "", ".", "a.b"])
def test_a_key_is_a_plain_name(cache: DiskCache, key: str) -> None:
    with pytest.raises(ValueError, match="not a cache key"):
        cache.put(key, b"x")


def test_a_key_depends_on_every_part() -> None:
    keys = {object_key("ir", "target", "v"), object_key("ir2", "target", "v"), object_key("ir", "target2", "v")}
    keys |= {object_key("ir", "target", "w"), object_key("irt", "arge", "v"), object_key("ir", "targe", "tv")}
    assert len(keys) == 6
    assert object_key("ir", "target", "v") in keys


_WRITER = """
import hashlib, random, sys
from pathlib import Path
from stitchwork.runtime.cache import DiskCache
cache, rng = DiskCache(Path(sys.argv[1]), 200_000), random.Random(int(sys.argv[2]))
def payload(key):
    return hashlib.sha256(key.encode()).digest() * (100 + int(key, 16) % 300)
hits = 0
for _ in range(400):
    key = f"{rng.randrange(60):04x}"
    found = cache.get(key)
    if found is None:
        cache.put(key, payload(key))
    else:
        hits += 1
        assert found == payload(key), "someone else's bytes"
assert hits, "nothing was ever found"
"""


def test_processes_share_a_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    writers = [
        subprocess.Popen([*command, str(k)], env=environment, stderr=subprocess.PIPE, text=True) for k in range(4)
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors
    cache = DiskCache(tmp_path, 200_000)
    cache.put(KEY, b"x")
    assert 0 < _total(cache) <= 200_000
    assert not list(tmp_path.glob(".tmp-*"))


def test_threads_share_a_cache(cache: DiskCache) -> None:
    failures: list[str] = []

    def work(seed: int) -> None:
        for k in range(200):
            key = f"{(seed * 7 + k) % 40:04x}"
            found = cache.get(key)
            if found is None:
                cache.put(key, key.encode() * 100)
            elif found != key.encode() * 100:
                failures.append(key)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_bounded_cache_forgets_the_least_recently_used() -> None:
    cache: BoundedCache[str, int] = BoundedCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert cache.get("b") is None
    assert (cache.get("a"), cache.get("c"), len(cache)) == (1, 3, 2)
    cache.put("a", 10)
    assert cache.get("a") == 10
    assert cache.get_or_make("a", lambda: 11) == 10
    assert cache.get_or_make("d", lambda: 4) == 4
    assert "d" in cache
    assert "c" not in cache
    cache.clear()
    assert len(cache) == 0
    with pytest.raises(ValueError, match="at least 1"):
        BoundedCache(0)


def test_bounded_cache_gives_all_threads_one_entry() -> None:
    cache: BoundedCache[int, object] = BoundedCache(8)
    barrier = threading.Barrier(8)
    seen: list[tuple[int, object]] = []

    def work() -> None:
        barrier.wait(60)
        for k in range(500):
            seen.append((k % 8, cache.get_or_make(k % 8, object)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8 * 500
    assert len({(key, id(value)) for key, value in seen}) == 8


def test_the_environment_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STITCHWORK_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("STITCHWORK_CACHE_BYTES", "12345")
    monkeypatch.setenv("STITCHWORK_THREADS", "3")
    reset_config()
    try:
        chosen = disk_cache()
        assert chosen is not None
        assert (chosen.directory, chosen.max_bytes) == (tmp_path, 12345)
        assert disk_cache() is chosen
        assert config().threads == 3
        monkeypatch.setenv("STITCHWORK_CACHE", "0")
        assert disk_cache() is chosen, "read once"
        reset_config()
        assert disk_cache() is None
    finally:
        monkeypatch.undo()
        reset_config()


def test_defaults() -> None:
    settings = Config.read({"XDG_CACHE_HOME": "/xdg", "STITCHWORK_THREADS": " "})
    assert settings.cache_dir == Path("/xdg/stitchwork")
    assert settings.cache_bytes == 512 << 20
    assert settings.threads == settings.usable_cpus >= 1
    assert (settings.cpu, settings.dump_dir) == (None, None)
    relative = Config.read({"XDG_CACHE_HOME": "relative"}).cache_dir
    assert relative is None or relative.is_absolute()


@pytest.mark.parametrize(
    "name, value",
    [
        ("STITCHWORK_THREADS", "many"),
        ("STITCHWORK_THREADS", "0"),
        ("STITCHWORK_THREADS", "257"),
        ("STITCHWORK_THREADS", "9" * 5000),
        ("STITCHWORK_THREADS", "²"),
        ("STITCHWORK_CACHE_BYTES", "-1"),
        ("STITCHWORK_CACHE", "maybe"),
        ("STITCHWORK_CPU", "x86-64 +avx"),
    ],
)
def test_a_bad_value_is_named(name: str, value: str) -> None:
    with pytest.raises(StitchworkError, match=rf"^{name}: bad value\n  expected .*\n  got "):
        Config.read({name: value})
