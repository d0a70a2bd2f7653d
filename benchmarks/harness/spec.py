"""How a benchmark is described. A module of `suite` holds such descriptions and the functions that they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
OURS = "stitchwork"


@dataclass(frozen=True)
class Prepared:
    """A contender, ready to be measured.

    step: one run, which must have ended when it returns; its argument counts the runs so far. arrays: a step's result
    as arrays, for the comparison of results. facts: what else to report, asked for after the last round.
    """

    step: Callable[[int], Any]
    arrays: Callable[[Any], Sequence[Any]]
    facts: Callable[[], dict[str, Any]] = dict


@dataclass(frozen=True)
class Contender:
    """Something measured. It is missing, which is no error, where one of its packages is not installed.

    prepare: called once in a process of the contender's own with the benchmark's inputs; a function of a module, as
    other processes must find it. environment: variables of that process. unmeasured: rounds that fill a cache first.
    """

    name: str
    prepare: Callable[[Any], Prepared]
    packages: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    unmeasured: int = 0


@dataclass(frozen=True)
class Reach:
    """What ours should reach: at most `seconds`, or at most `times` the time of the fastest of `peers` that ran."""

    text: str
    seconds: float | None = None
    times: float | None = None
    peers: tuple[str, ...] = ()
    contender: str = OURS


@dataclass(frozen=True)
class Benchmark:
    """Contenders that do the same work on the same inputs.

    inputs: makes them, equal in every process. expected: the right results; where it is None, those of the contender
    `reference`. tolerance: largest error allowed, as a part of the largest magnitude of a right result. rounds: how
    often each contender has its turn; runs: samples per turn, after a warm-up; repeats: steps per sample, for steps of
    microseconds. fresh: every turn is one sample in a new process, without a warm-up.
    """

    name: str
    title: str
    inputs: Callable[[], Any]
    contenders: tuple[Contender, ...]
    reaches: tuple[Reach, ...] = ()
    expected: Callable[[Any], Sequence[Any]] | None = None
    reference: str = ""
    tolerance: float = 1e-5
    rounds: int = 7
    runs: int = 20
    repeats: int = 1
    fresh: bool = False
    ours: str = OURS

    def contender(self, name: str) -> Contender:
        """The contender called so."""
        return next(c for c in self.contenders if c.name == name)


def relative_error(got: Sequence[Any], right: Sequence[Any]) -> float:
    """Largest difference as a part of the largest magnitude; infinite where shapes differ or something is NaN."""
    if len(got) != len(right):
        return float("inf")
    worst = 0.0
    for a, b in zip(got, right, strict=True):
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        if x.shape != y.shape:
            return float("inf")
        if x.size:
            error = float(np.max(np.abs(x - y))) / max(float(np.max(np.abs(y))), 1e-30)
            worst = max(worst, error if np.isfinite(error) else float("inf"))
    return worst
