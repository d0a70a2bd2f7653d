"""Fixtures and rules shared by all tests."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import zlib
from functools import cache

import numpy as np
import pytest
from hypothesis import settings

# The same examples on every run and machine, so that a red run is a change's fault. To look for new failures:
# pytest --hypothesis-profile=explore
settings.register_profile("deterministic", derandomize=True, deadline=None, database=None, print_blob=True)
settings.register_profile("explore", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile("deterministic")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator seeded by the test's own id: repeatable alone or in any order, different for each case."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Turn each `needs` marker into a skip where the thing is absent, and refuse skips that give no reason."""
    for item in items:
        for marker in item.iter_markers("needs"):
            name = marker.args[0]
            if not available(name):
                item.add_marker(pytest.mark.skip(reason=f"no {name} here: {_reason(item, marker)}"))
        for kind in ("skip", "skipif", "xfail"):
            for marker in item.iter_markers(kind):
                _reason(item, marker)


def _reason(item: pytest.Item, marker: pytest.Mark) -> str:
    reason = marker.kwargs.get("reason") or (marker.args[0] if marker.name == "skip" and marker.args else "")
    if not reason:
        raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.{marker.name} must give a reason=")
    return reason


@cache
def available(name: str) -> bool:
    """Whether a module can be imported (it is not), or for 'gpu', whether an NVIDIA GPU answers."""
    return _gpu_answers() if name == "gpu" else importlib.util.find_spec(name) is not None


def _gpu_answers() -> bool:
    if shutil.which("nvidia-smi") is None:
        return False
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "GPU 0" in listing.stdout
