"""Trained models agree with ONNX Runtime at three sizes each, compiled once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from importers.node_cases import run_reference
from importers.real_models import MODELS, Array, Feeds, RealModel
from stitchwork.importers.onnx import load

pytestmark = [
    pytest.mark.needs(name, reason="brings the trained models (tests/model-packages.txt)")
    for name in sorted({m.package for m in MODELS})
]


def expected(model: RealModel, feeds: list[Feeds]) -> list[list[Array]]:
    """What ONNX Runtime gives."""
    runtime: Any = pytest.importorskip("onnxruntime", reason="the runtime to compare with")
    session = runtime.InferenceSession(str(model.path), providers=["CPUExecutionProvider"])
    return [session.run(None, {**f, **model.constants}) for f in feeds]


def assert_close(got: list[Array], want: list[Array]) -> None:
    for g, w in zip(got, want, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4 * float(np.abs(w).max()))


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_compiled(model: RealModel) -> None:
    feeds = model.feeds()
    executable = load(model.path, constants=model.constants).compile()
    for f, want in zip(feeds, expected(model, feeds), strict=True):
        assert_close([x.numpy() for x in executable.run(f).values()], want)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_definition(model: RealModel) -> None:
    """The smallest feed by the definition of our ops: tells a fault of the importer from one of the compiler."""
    feeds = model.feeds()[:1]
    imported = load(model.path, constants=model.constants)
    assert_close(run_reference(imported, feeds[0]), expected(model, feeds)[0])
