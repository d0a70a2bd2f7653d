"""ONNX's own test cases for single nodes, and how to run one."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
from onnx.backend.test.case.node import collect_testcases

from stitchwork.backends.reference.interpreter import Interpreter
from stitchwork.errors import UnsupportedError
from stitchwork.importers.onnx import OnnxModel, load

Array = np.ndarray[Any, Any]
_SMALL = 16  # elements of an input that may be an axis, a shape or another setting


@dataclass(frozen=True)
class Exceptions:
    """The table onnx_nodes.tsv: `ops` maps op types, `cases` patterns of case names to why they cannot pass."""

    ops: dict[str, str]
    cases: dict[str, str]

    def reason(self, case: Any) -> str:
        """Why a case cannot pass; empty where it must."""
        for op in op_types(case):
            if op in self.ops:
                return self.ops[op]
        return next((why for pattern, why in self.cases.items() if fnmatchcase(case.name, pattern)), "")


@cache
def exceptions() -> Exceptions:
    """The table, read once."""
    ops: dict[str, str] = {}
    cases: dict[str, str] = {}
    for line in Path(__file__).with_name("onnx_nodes.tsv").read_text().splitlines():
        if line and not line.startswith("#"):
            kind, name, reason = line.split("\t")
            {"op": ops, "case": cases}[kind][name] = reason
    return Exceptions(ops, cases)


@cache
def all_cases() -> tuple[Any, ...]:
    """Every single-node case of the default domain."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(
            c
            for c in collect_testcases(None)
            if c.kind == "node" and all(n.domain == "" for n in _nodes(c.model.graph))
        )


def op_types(case: Any) -> set[str]:
    """Op types of a case's nodes, those inside subgraphs included."""
    return {n.op_type for n in _nodes(case.model.graph)}


def _nodes(graph: Any) -> list[Any]:
    found: list[Any] = []
    for node in graph.node:
        found.append(node)
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                found.extend(_nodes(a.g))
    return found


def _array(x: Any) -> Array:
    return np.asarray(onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x)


def load_case(case: Any) -> tuple[OnnxModel, dict[str, Array]]:
    """The model of a case and its feeds. Inputs that must be known when compiling are taken as constants."""
    names = [i.name for i in case.model.graph.input]
    try:
        model = load(case.model)
    except UnsupportedError as e:
        if "not known when the model is compiled" not in str(e):
            raise
        model = None
    feeds = {n: _array(x) for n, x in zip(names, case.data_sets[0][0], strict=True)}
    if model is not None:
        return model, feeds
    constants = {n: x for k, (n, x) in enumerate(feeds.items()) if x.size <= _SMALL and (k or x.ndim < 2)}
    rest = {n: x for n, x in feeds.items() if n not in constants}
    return load(case.model, constants=constants), rest


def run_reference(model: OnnxModel, feeds: dict[str, Array]) -> list[Array]:
    """The outputs by each op's definition."""
    sizes = {
        str(d): n
        for name, v in model.inputs.items()
        for d, n in zip(v.shape, feeds[name].shape, strict=True)
        if not isinstance(d, int)
    }
    model.graph.module.body.results = tuple(model.outputs.values())
    return Interpreter(model.graph.module, sizes).run(*(feeds[n] for n in model.inputs))


def run_native(model: OnnxModel, feeds: dict[str, Array]) -> list[Array]:
    """The outputs by the CPU executable."""
    return [x.numpy() for x in model.compile().run(feeds).values()]


_RELATIVE = {"float16": 4e-3, "bfloat16": 3e-2}


def check(case: Any, got: list[Array]) -> None:
    """Compare with what the case expects; sums of narrow floats may round differently."""
    for g, wanted in zip(got, map(_array, case.data_sets[0][1]), strict=True):
        assert (g.dtype, g.shape) == (wanted.dtype, wanted.shape)
        rtol = max(case.rtol, _RELATIVE.get(g.dtype.name, 0))
        atol = max(getattr(case, "atol", 0) or 0, 1e-6, _RELATIVE.get(g.dtype.name, 0) / 4)
        wide = [x if x.dtype.kind in "biufc" else x.astype(np.float64) for x in (g, wanted)]
        np.testing.assert_allclose(*wide, rtol=rtol, atol=atol)
