"""Every check that follows from an op's declaration. No op is named in this file."""

from __future__ import annotations

import numpy as np
import pytest

from ops.cases import CASES, REJECTS, Case, build, by_op, each, make_operands, reference
from stitchwork.errors import OpError
from stitchwork.ir import dims
from stitchwork.ops import REGISTRY

PUBLIC = [c for c in REGISTRY.values() if not c.internal]


@pytest.mark.parametrize("cases", by_op(CASES))
def test_infer_agrees_with_numpy(cases: list[Case]) -> None:
    each(cases, check_infer)


def check_infer(case: Case) -> None:
    graph = build(case, make_operands(case))
    for value, array in zip(graph.results, reference(graph), strict=True):
        assert array.shape == tuple(dims.evaluate(n, graph.told) for n in value.shape)
        assert array.dtype == value.dtype.numpy


@pytest.mark.parametrize("cases", by_op(REJECTS))
def test_rejects(cases: list[Case]) -> None:
    each(cases, check_rejected)


def check_rejected(case: Case) -> None:
    with pytest.raises(OpError) as e:
        build(case, make_operands(case))
    message = str(e.value)
    assert case.why in message
    assert message.startswith(f"{case.cls.name}: ")
    assert "  at        " in message and "ops/cases.py" in message


@pytest.mark.parametrize("cls", PUBLIC, ids=lambda c: c.name)
def test_declaration_is_complete(cls: type) -> None:
    assert cls.__doc__ and cls.__doc__.strip().endswith("."), "docstring"
    ways = [r for r in ("compute", "loops", "decompose") if cls.has(r)]
    assert ways, "one of compute, loops, decompose"
    assert cls.has("infer") and cls.has("numpy")
    assert list(cls.samples()), "samples"


def test_cases_exist() -> None:
    assert len(CASES) > len(PUBLIC) * 0.9 and np.all([c.cls for c in CASES])
