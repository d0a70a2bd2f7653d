"""From times to ratios and verdicts."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from harness.measure import Outcome
from harness.spec import Benchmark, Reach


@dataclass(frozen=True)
class Ratio:
    """Our time as a multiple of a peer's: the median over rounds, and the least and greatest round."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """What was measured for a goal. reached: None where it could not be told."""

    reach: Reach
    measured: str
    reached: bool | None


def ratio(ours: Outcome, peer: Outcome) -> Ratio | None:
    """Compares round by round, since what disturbs the machine disturbs neighbours alike."""
    pairs = zip(ours.rounds, peer.rounds, strict=False)
    found = [statistics.median(a) / statistics.median(b) for a, b in pairs]
    return Ratio(statistics.median(found), min(found), max(found)) if found else None


def in_words(times: float) -> str:
    """A multiple of a time, such as "2.00x faster" for half of it."""
    return f"{1 / times:.2f}x faster" if times < 1 else f"{times:.2f}x slower" if times >= 1.005 else "equal"


def judge(benchmark: Benchmark, outcomes: list[Outcome]) -> list[Verdict]:
    """A verdict for each goal of the benchmark."""
    by_name = {o.name: o for o in outcomes}
    return [_judge(reach, by_name) for reach in benchmark.reaches]


def _judge(reach: Reach, outcomes: dict[str, Outcome]) -> Verdict:
    ours = outcomes[reach.contender]
    if not ours.is_measured or ours.status != "ok":
        return Verdict(reach, f"{reach.contender}: {ours.status}", None)
    if reach.seconds is not None:
        return Verdict(reach, in_seconds(ours.median), ours.median <= reach.seconds)
    usable = [outcomes[p] for p in reach.peers if outcomes[p].is_measured and outcomes[p].status == "ok"]
    if not usable or reach.times is None:
        return Verdict(reach, "no peer to compare with", None)
    best = min(usable, key=lambda o: o.median)
    found = ratio(ours, best)
    assert found is not None
    return Verdict(reach, f"{found.median:.3g}x the time of {best.name}", found.median <= reach.times)


def in_seconds(seconds: float) -> str:
    """Seconds in a unit that fits, with three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds / size < 1000 else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 1e-9:.0f} ns"
