"""ONNX's single-node cases, by the definition of our ops and by the CPU executable.

onnx_nodes.tsv lists what cannot pass, and why. It is checked both ways: all that it does not list must pass, and what
it lists must still fail, so that a line is taken out once it is no longer true.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import onnx
import pytest

from importers.node_cases import all_cases, check, exceptions, load_case, op_types, run_native, run_reference
from stitchwork.errors import UnsupportedError
from stitchwork.importers.onnx import registry
from stitchwork.importers.onnx.functions import body_of

PASSING = [c for c in all_cases() if not exceptions().reason(c)]
# Cases ending in "expanded" are the same op as the function of other ops that the standard gives: definitions suffice.
COMPILED = [c for c in PASSING if not c.name.endswith("_expanded")]
UNKNOWN_OPS = [c for c in all_cases() if op_types(c) & set(exceptions().ops)]
FAILING = [c for c in all_cases() if exceptions().reason(c) and c not in UNKNOWN_OPS]


def _name(case: Any) -> str:
    return case.name.removeprefix("test_")


@pytest.mark.parametrize("case", PASSING, ids=_name)
def test_reference(case: Any) -> None:
    model, feeds = load_case(case)
    check(case, run_reference(model, feeds))


@pytest.mark.parametrize("case", COMPILED, ids=_name)
def test_native(case: Any) -> None:
    model, feeds = load_case(case)
    check(case, run_native(model, feeds))


@pytest.mark.parametrize("case", FAILING, ids=_name)
def test_listed_cases_still_fail(case: Any) -> None:
    with pytest.raises((UnsupportedError, AssertionError)):
        check(case, run_reference(*load_case(case)))


@pytest.mark.parametrize("case", UNKNOWN_OPS, ids=_name)
def test_unknown_ops_are_named(case: Any) -> None:
    with pytest.raises(UnsupportedError) as e:
        load_case(case)
    message = str(e.value)
    unknown = op_types(case) & set(exceptions().ops)
    assert any(op in message for op in unknown) or "only tensors can be inputs" in message or "STRING" in message


def test_every_op_is_supported_or_listed() -> None:
    """Of the newest opset: each op has a handler or is a function of others, or the table says why not."""
    opset = onnx.defs.onnx_opset_version()
    known: set[str] = set()
    every = {s.name for s in onnx.defs.get_all_schemas() if s.domain == "" and not s.deprecated}
    for name in every:
        node = onnx.NodeProto(op_type=name)
        if registry.find("", name, opset) or body_of(node, opset, None) is not None:
            known.add(name)
    listed = set(exceptions().ops)
    assert every - known <= listed <= every
    assert not listed & set(registry.supported())


def test_every_pattern_names_a_case() -> None:
    names = [c.name for c in all_cases()]
    assert [p for p in exceptions().cases if not any(fnmatchcase(n, p) for n in names)] == []
