"""The sample calls of all ops, and how to turn one into a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from stitchwork.backends.reference.interpreter import Interpreter
from stitchwork.errors import OpError
from stitchwork.ir import dtypes
from stitchwork.ir.graph import Module, Value
from stitchwork.ir.types import TensorType
from stitchwork.ops import REGISTRY
from stitchwork.ops._build import function
from stitchwork.ops._op import Op, Sample, building


@dataclass(frozen=True, eq=False)
class Case:
    """One sample of one op; `why` is the expected fragment of the message where it must fail."""

    cls: type[Op]
    sample: Sample
    index: int
    why: str = ""

    def __str__(self) -> str:
        return f"{self.cls.name}-{self.index}"


@dataclass
class Built:
    """A module whose body is one call, and the arrays for its inputs."""

    module: Module
    results: list[Value]
    arrays: list[np.ndarray]
    owners: list[Case] = field(default_factory=list)  # the case that each result belongs to
    told: dict[str, int] = field(default_factory=dict)  # sizes that only a run tells, once it has run


CASES = [Case(cls, s, i) for cls in REGISTRY.values() for i, s in enumerate(cls.samples())]
REJECTS = [Case(cls, s, i, why) for cls in REGISTRY.values() for i, (why, s) in enumerate(cls.rejects())]


class Refused(Exception):  # noqa: N818  # a verdict on the case, not an error
    """The op does not take the case as a check changes it: with unknown sizes, or in another dtype."""


def by_op(cases: Iterable[Case]) -> list[Any]:
    """The cases as parameters of a test, those of one op together: a test of its own costs more than a case does."""
    groups: dict[type[Op], list[Case]] = {}
    for case in cases:
        groups.setdefault(case.cls, []).append(case)
    return [pytest.param(many, id=cls.name) for cls, many in groups.items()]


def each(cases: list[Case], check: Callable[[Case], object]) -> None:
    """Check every case. Raises one ExceptionGroup with all failures; skips where the op refuses every case."""
    failures: list[Exception] = []
    refusals: list[Refused] = []
    for case in cases:
        try:
            check(case)
        except Refused as e:
            refusals.append(e)
        except Exception as e:
            e.add_note(f"in {case}: {case.sample}")
            failures.append(e)
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(cases)} cases failed", failures)
    if len(refusals) == len(cases):
        pytest.skip(f"the op refuses every case: {str(refusals[0]).splitlines()[0]}")


def make_operands(case: Case, seed: int = 0) -> list[Any]:
    """Arrays for a sample's operands: shapes become random numbers of its domain."""
    rng = np.random.default_rng(seed)
    specs = list(case.cls.operands.values())
    return [_make(x, case, specs[k].dtypes, rng) for k, x in enumerate(case.sample.operands)]


def _make(x: Any, case: Case, accepted: str, rng: np.random.Generator) -> Any:
    if x is None or isinstance(x, np.ndarray | bool | int | float | complex | np.generic):
        return x
    if isinstance(x, list):
        return [_make(e, case, accepted, rng) for e in x]
    group = dtypes.group(accepted)
    wanted = dtypes.as_dtype(case.sample.dtype) if case.sample.dtype else dtypes.float32
    dtype = wanted if wanted in group or case.why else group[0]
    lo, hi = case.sample.domain
    if dtype.kind == "b":
        return rng.random(x) < 0.5
    if dtype.is_integer:
        lo, hi = (int(lo), int(hi)) if dtype.kind == "i" else (0, max(int(hi), 1))
        return rng.integers(lo, hi, x, endpoint=True).astype(dtype.numpy)
    if dtype.is_complex:
        return (rng.uniform(lo, hi, x) + 1j * rng.uniform(lo, hi, x)).astype(dtype.numpy)
    return rng.uniform(lo, hi, x).astype(dtype.numpy)


def build(case: Case, operands: list[Any], symbolic: bool = False) -> Built:
    """A graph with every array operand a placeholder (with unknown sizes where `symbolic`)."""
    graph = Built(Module("case"), [], [])
    _add(graph, case, operands, symbolic)
    graph.module.body.results = tuple(graph.results)
    return graph


def build_symbolic(case: Case, operands: list[Any]) -> Built:
    """A graph with unknown sizes. Raises Refused where the op has to know some."""
    try:
        return build(case, operands, symbolic=True)
    except OpError as e:
        raise Refused(str(e)) from e


def build_all(cases: list[Case], operands: list[list[Any]], symbolic: bool) -> tuple[Built, list[Case]]:
    """One graph with all the cases; those that need known sizes are left out where `symbolic`."""
    graph = Built(Module("cases"), [], [])
    taken: list[Case] = []
    for case, own in zip(cases, operands, strict=True):
        if symbolic:
            try:
                build_symbolic(case, own)
            except Refused:
                continue
        _add(graph, case, own, symbolic)
        taken.append(case)
    graph.module.body.results = tuple(graph.results)
    return graph, taken


def _add(graph: Built, case: Case, operands: list[Any], symbolic: bool) -> None:
    module, arrays = graph.module, graph.arrays

    def place(x: Any) -> Any:
        if isinstance(x, list):
            return [place(e) for e in x]
        if not isinstance(x, np.ndarray):
            return x
        arrays.append(x)
        shape = tuple(module_symbol(module) for _ in x.shape) if symbolic else x.shape
        return module.body.add_argument(TensorType(dtypes.as_dtype(x.dtype), shape), f"x{len(arrays)}")

    with building(module):
        made = function(case.cls)(*map(place, operands), **case.sample.attrs)
    results = list(made) if isinstance(made, tuple) else [made]
    graph.results += results
    graph.owners += [case] * len(results)


def module_symbol(module: Module) -> Any:
    from stitchwork.ir import dims

    return dims.symbol(module.fresh_symbol())


def reference(graph: Built) -> list[np.ndarray]:
    """Results by the reference backend."""
    interpreter = Interpreter(graph.module, {})
    results = interpreter.run(*graph.arrays)
    graph.told = {s: interpreter.sizes[s] for s in graph.module.bounds}
    return results
