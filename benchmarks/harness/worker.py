"""A contender's process: prepares it, then gives times when asked. One process each keeps thread pools apart."""

from __future__ import annotations

import gc
import os
import time
from dataclasses import dataclass
from typing import Any

from harness.spec import Array, Benchmark, Prepared


@dataclass(frozen=True)
class Ready:
    """A contender is prepared: its first results, the seconds to prepare and for the first run (warm-up of a JIT)."""

    results: list[Array]
    prepare_seconds: float
    first_seconds: float


@dataclass(frozen=True)
class Failed:
    """A contender could not be prepared or run."""

    message: str


def serve(connection: Any, module: str, benchmark: str, contender: str, cpus: list[int]) -> None:
    """The life of the process: send Ready or Failed; then take (runs, repeats), and send a list of seconds per step,
    until None comes, which is answered by the facts."""
    try:
        if cpus and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cpus)
        # What peers print on standard output would fall into our tables.
        os.dup2(2, 1)
        _serve(connection, _find(module, benchmark), contender)
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        return
    except BaseException as e:  # a peer may raise anything; it is reported where the table is
        connection.send(Failed(f"{type(e).__name__}: {e}"[:600]))


def _find(module: str, name: str) -> Benchmark:
    from importlib import import_module

    return next(b for b in import_module(module).BENCHMARKS if b.name == name)


def _serve(connection: Any, benchmark: Benchmark, name: str) -> None:
    inputs = benchmark.inputs()
    start = time.perf_counter()
    prepared = benchmark.contender(name).prepare(inputs)
    middle = time.perf_counter()
    result = prepared.step(0)
    end = time.perf_counter()
    results = [x.copy() for x in prepared.arrays(result)]
    del result
    connection.send(Ready(results, middle - start, end - middle))
    count = 1
    while (request := connection.recv()) is not None:
        runs, repeats = request
        connection.send(_times(prepared, count, runs, repeats))
        count += (runs + 1) * repeats
    connection.send(prepared.facts())


def _times(prepared: Prepared, count: int, runs: int, repeats: int) -> list[float]:
    """Seconds per step of `runs` samples, after one that is not counted."""
    step = prepared.step
    found: list[float] = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(runs + 1):
            start = time.perf_counter()
            for k in range(count, count + repeats):
                step(k)
            found.append((time.perf_counter() - start) / repeats)
            count += repeats
    finally:
        gc.enable()
    return found[1:]
