"""Measuring a benchmark: contenders in turns, each in a process of its own, results compared in the same run."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from harness.spec import Benchmark, Contender, relative_error
from harness.worker import Failed, Ready, serve

_PAUSE = 0.03  # seconds between turns: pools that spin for a while after a run must not take part in the next turn
_PATIENCE = 600.0  # seconds that a contender may take to answer
_LIBRARY_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS",
                    "STITCHWORK_THREADS", "BENCHMARK_THREADS")  # fmt: skip
_TUNING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # would make NumPy slower than it is


@dataclass
class Outcome:
    """What was found about one contender. status: "ok", "missing", "failed" or "wrong"."""

    name: str
    status: str = "ok"
    note: str = ""
    rounds: list[list[float]] = field(default_factory=list[list[float]])  # seconds per step
    prepare_seconds: float = 0.0
    first_seconds: float = 0.0
    error: float | None = None
    facts: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def median(self) -> float:
        """Seconds; over all samples."""
        return statistics.median([t for r in self.rounds for t in r])

    @property
    def is_measured(self) -> bool:
        return bool(self.rounds)


@dataclass(frozen=True)
class Setting:
    """How to measure. cpus: where the contenders may run; empty for anywhere. cache_folder: Stitchwork's disk cache
    while measuring. quick: fewer rounds and runs."""

    threads: int
    cpus: list[int]
    cache_folder: str
    quick: bool = False

    def rounds(self, benchmark: Benchmark) -> int:
        return min(benchmark.rounds, 3) if self.quick else benchmark.rounds

    def runs(self, benchmark: Benchmark) -> int:
        return max(benchmark.runs // 4, 2) if self.quick else benchmark.runs

    def environment(self, contender: Contender) -> dict[str, str]:
        return {
            **dict.fromkeys(_LIBRARY_THREADS, str(self.threads)),
            "STITCHWORK_CACHE_DIR": self.cache_folder,
            "JAX_PLATFORMS": "cpu",
            "TOKENIZERS_PARALLELISM": "false",
            **contender.environment,
        }


class Process:
    """A contender's process, as seen from outside."""

    def __init__(self, module: str, benchmark: Benchmark, contender: Contender, setting: Setting) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, module, benchmark.name, contender.name, setting.cpus)
        self._process = context.Process(target=serve, args=arguments)
        with _environment(setting.environment(contender)):
            self._process.start()
        theirs.close()

    def ask(self, *request: Any) -> Any:
        """Send a request, if one is given, and wait for the answer; a process that dies or hangs answers Failed."""
        try:
            if request:
                self._connection.send(request[0])
            if not self._connection.poll(_PATIENCE):
                return Failed(f"no answer within {_PATIENCE:.0f} s")
            return self._connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._process.join(5)
            return Failed(f"its process ended with exit code {self._process.exitcode}")

    def close(self) -> None:
        self._connection.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def measure(module: str, benchmark: Benchmark, setting: Setting, progress: Callable[[str], None]) -> list[Outcome]:
    """Outcomes in the order of the benchmark's contenders. progress: is told what happens."""
    outcomes = {c.name: Outcome(c.name) for c in benchmark.contenders}
    present: list[Contender] = []
    for c in benchmark.contenders:
        lacking = [p for p in c.packages if find_spec(p) is None]
        if lacking:
            outcomes[c.name].status, outcomes[c.name].note = "missing", f"{', '.join(lacking)} not installed"
        else:
            present.append(c)
    way = _fresh if benchmark.fresh else _in_turns
    results = way(module, benchmark, present, outcomes, setting, progress)
    _compare(benchmark, outcomes, results)
    return list(outcomes.values())


def _in_turns(
    module: str,
    benchmark: Benchmark,
    present: list[Contender],
    outcomes: dict[str, Outcome],
    setting: Setting,
    progress: Callable[[str], None],
) -> dict[str, list[Any]]:
    """All contenders alive at once, asked in turns. Gives their results."""
    processes: dict[str, Process] = {}
    results: dict[str, list[Any]] = {}
    try:
        for c in present:
            progress(f"preparing {c.name}")
            processes[c.name] = process = Process(module, benchmark, c, setting)
            if (found := _started(process, outcomes[c.name])) is not None:
                results[c.name] = found
        for k in range(setting.rounds(benchmark)):
            # Every second round goes backwards, so that nobody always follows the same one.
            for name in list(results) if k % 2 == 0 else list(results)[::-1]:
                progress(f"round {k + 1}: {name}")
                time.sleep(_PAUSE)
                if outcomes[name].status == "ok":
                    _take(processes[name].ask((setting.runs(benchmark), benchmark.repeats)), outcomes[name])
        for name in results:
            if outcomes[name].status == "ok":
                answer = processes[name].ask(None)
                outcomes[name].facts = answer if isinstance(answer, dict) else {}
    finally:
        for process in processes.values():
            process.close()
    return results


def _fresh(
    module: str,
    benchmark: Benchmark,
    present: list[Contender],
    outcomes: dict[str, Outcome],
    setting: Setting,
    progress: Callable[[str], None],
) -> dict[str, list[Any]]:
    """A new process for every sample, which is its first step. Gives the results of the last ones."""
    results: dict[str, list[Any]] = {}
    extra = max([c.unmeasured for c in present], default=0)
    for k in range(-extra, setting.rounds(benchmark)):
        for c in present:
            outcome = outcomes[c.name]
            if k < -c.unmeasured or outcome.status != "ok":
                continue
            progress(f"round {k + 1}: {c.name}")
            process = Process(module, benchmark, c, setting)
            try:
                found = _started(process, outcome)
                if found is not None:
                    results[c.name] = found
                    facts = process.ask(None)
                    outcome.facts = facts if isinstance(facts, dict) else {}
                    if k >= 0:
                        outcome.rounds.append([outcome.first_seconds])
            finally:
                process.close()
    return results


def _started(process: Process, outcome: Outcome) -> list[Any] | None:
    answer = process.ask()
    if isinstance(answer, Ready):
        outcome.prepare_seconds, outcome.first_seconds = answer.prepare_seconds, answer.first_seconds
        return answer.results
    outcome.status, outcome.note = "failed", answer.message
    return None


def _take(answer: Any, outcome: Outcome) -> None:
    if isinstance(answer, Failed):
        outcome.status, outcome.note = "failed", answer.message
    else:
        outcome.rounds.append(answer)


def _compare(benchmark: Benchmark, outcomes: dict[str, Outcome], results: Mapping[str, list[Any]]) -> None:
    if benchmark.expected is not None:
        right = list(benchmark.expected(benchmark.inputs()))
    elif benchmark.reference in results:
        right = results[benchmark.reference]
    else:
        return
    for name, got in results.items():
        error = relative_error(got, right)
        outcomes[name].error = error
        if not error <= benchmark.tolerance and outcomes[name].status == "ok":
            outcomes[name].status = "wrong"
            outcomes[name].note = f"error {error:.1e}, allowed {benchmark.tolerance:.0e}"


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Processes started inside get these variables, and none of `_TUNING`."""
    before = dict(os.environ)
    os.environ.update(changes)
    for name in _TUNING:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
