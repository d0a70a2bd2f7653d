"""Results as tables, and as data for a file."""

from __future__ import annotations

import statistics
from typing import Any

from rich.console import Console
from rich.table import Table

from harness.judge import Verdict, in_seconds, in_words, ratio
from harness.measure import Outcome
from harness.spec import Benchmark

_STYLES = {"missing": "dim", "failed": "red", "wrong": "bold red"}


def show(console: Console, benchmark: Benchmark, outcomes: list[Outcome], verdicts: list[Verdict]) -> None:
    """A table of the contenders, then a line per goal."""
    ours = next(o for o in outcomes if o.name == benchmark.ours)
    table = Table(title=f"{benchmark.name}: {benchmark.title}", title_justify="left", title_style="bold")
    for heading in ("contender", "median", "fastest", "ours is", "ours / it, by round", "error", "reach", "facts"):
        table.add_column(heading, justify="left" if heading in ("contender", "reach", "facts") else "right")
    for o in outcomes:
        table.add_row(*_row(o, ours, _goals(o, verdicts)), style=_STYLES.get(o.status))
    console.print(table)
    for v in verdicts:
        word = {True: "[green]reached[/]", False: "[yellow]missed[/]", None: "[dim]not told[/]"}[v.reached]
        console.print(f"  {v.reach.text}: {v.measured}, {word}")
    console.print()


def _goals(o: Outcome, verdicts: list[Verdict]) -> str:
    """Goals that a row takes part in: against a peer in the peer's row, in seconds in the row of ours."""
    mine = [v.reach for v in verdicts if o.name in (v.reach.peers or (v.reach.contender,))]
    texts = [f"<= {in_seconds(r.seconds)}" if r.seconds is not None else _factor(r.times or 0) for r in mine]
    return "; ".join(dict.fromkeys(texts))


def _factor(times: float) -> str:
    return f">= {1 / times:.3g}x faster" if times < 1 else f"<= {times:.3g}x its time"


def _row(o: Outcome, ours: Outcome, goals: str) -> list[str]:
    if not o.is_measured:
        return [o.name, o.status, "", "", "", "", goals, o.note]
    error = "" if o.error is None else f"{o.error:.0e}"
    compared = ratio(ours, o) if o is not ours else None
    words = "" if compared is None else in_words(compared.median)
    spread = "" if compared is None else f"{compared.low:.2f}-{compared.high:.2f}"
    facts = ", ".join(str(v) if k == "kernels" else f"{k} {v}" for k, v in o.facts.items())
    note = f"{o.status}: {o.note}" if o.status != "ok" else facts
    fastest = in_seconds(min(t for r in o.rounds for t in r))
    return [o.name, in_seconds(o.median), fastest, words, spread, error, goals, note]


def as_data(benchmark: Benchmark, outcomes: list[Outcome], verdicts: list[Verdict]) -> dict[str, Any]:
    """A benchmark's results for JSON; times in seconds."""
    ours = next(o for o in outcomes if o.name == benchmark.ours)
    return {
        "name": benchmark.name,
        "title": benchmark.title,
        "ours": benchmark.ours,
        "tolerance": benchmark.tolerance,
        "contenders": [_contender(o, ours) for o in outcomes],
        "reaches": [{"text": v.reach.text, "measured": v.measured, "reached": v.reached} for v in verdicts],
    }


def _contender(o: Outcome, ours: Outcome) -> dict[str, Any]:
    data: dict[str, Any] = {"name": o.name, "status": o.status, "note": o.note, "error": o.error, "facts": o.facts}
    if o.is_measured:
        samples = sorted(t for r in o.rounds for t in r)
        compared = ratio(ours, o)
        assert compared is not None or not ours.is_measured
        data |= {
            "median": o.median,
            "fastest": samples[0],
            "slowest": samples[-1],
            "samples": len(samples),
            "round_medians": [statistics.median(r) for r in o.rounds],
            "ours_as_multiple": None if compared is None else vars(compared),
            "prepare_seconds": o.prepare_seconds,
            "first_seconds": o.first_seconds,
        }
    return data
