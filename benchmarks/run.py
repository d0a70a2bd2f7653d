"""Compare Stitchwork with its peers on this machine: `python benchmarks/run.py [names] [--quick]`; see README.md."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.judge import judge
from harness.machine import first_cpus, machine, versions
from harness.measure import Outcome, Setting, measure
from harness.plot import plot
from harness.show import as_data, show
from harness.spec import Benchmark
from suite import MODULES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; gives 1 where ours failed or somebody's result was wrong. No time decides that."""
    known = {b.name: (module, b) for module in MODULES for b in import_module(module).BENCHMARKS}
    parser = _parser(list(known))
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(known)}")
    if options.threads < 1:
        parser.error("--threads must be at least 1")
    if options.list:
        for name, (_, b) in known.items():
            print(f"{name:18} {b.title}")
        return 0
    if options.plot and find_spec("matplotlib") is None:
        parser.error("--plot needs a package that is missing: pip install matplotlib")
    chosen = [known[name] for name in options.names or known]
    results, healthy = _run(chosen, options)
    if options.plot:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        plot(results, options.plot)
    return 0 if healthy else 1


def _parser(names: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Compare Stitchwork with its peers on this machine.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"some of: {', '.join(names)}")
    parser.add_argument("--list", action="store_true", help="show the benchmarks and what they measure")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and runs: figures are less certain")
    parser.add_argument("--threads", type=int, default=2, help="threads, and CPUs, for every contender (2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a picture (.svg, .png)")
    return parser


def _run(chosen: list[tuple[str, Benchmark]], options: Any) -> tuple[dict[str, Any], bool]:
    console = Console(width=None if sys.stdout.isatty() else 150)
    results: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": options.quick,
        "threads": options.threads,
        "benchmarks": [],
    }
    _warn_if_busy(console, options.threads)
    healthy = True
    with tempfile.TemporaryDirectory(prefix="stitchwork-benchmark-") as folder:
        setting = Setting(options.threads, first_cpus(options.threads), folder, options.quick)
        for module, benchmark in chosen:
            with console.status(benchmark.name) as status:
                outcomes = measure(module, benchmark, setting, lambda t, b=benchmark: status.update(f"{b.name}: {t}"))
            verdicts = judge(benchmark, outcomes)
            show(console, benchmark, outcomes, verdicts)
            healthy = healthy and _is_healthy(benchmark, outcomes)
            results["benchmarks"].append(as_data(benchmark, outcomes, verdicts))
            results["load_average_after"] = list(os.getloadavg())
            if options.json:  # after each, so that a run that is stopped leaves what it has
                _write(results, options.json)
    return results, healthy


def _is_healthy(benchmark: Benchmark, outcomes: list[Outcome]) -> bool:
    ours = [o for o in outcomes if o.name.startswith("stitchwork")]
    return all(o.status == "ok" for o in ours) and not any(o.status == "wrong" for o in outcomes)


def _warn_if_busy(console: Console, threads: int) -> None:
    load = os.getloadavg()[0]
    if load + threads > (os.cpu_count() or 1) + 0.5:
        console.print(f"[yellow]the machine is busy (load {load:.1f}): take the figures as indicative[/]")


def _write(results: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
