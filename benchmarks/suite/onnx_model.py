"""Contenders that run an ONNX model, used by the benchmarks of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.peers import numpy_arrays, onnxruntime_session, openvino_request
from harness.spec import Prepared
from stitchwork.importers import onnx as stitchwork_onnx


@dataclass(frozen=True)
class Case:
    """A model's file, arrays by the names of its inputs, and what its named sizes are in them."""

    model: bytes
    feeds: dict[str, Any]
    sizes: dict[str, int]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: x.shape for name, x in self.feeds.items()}


def _ours(case: Case, sizes: dict[str, int]) -> Prepared:
    executable = stitchwork_onnx.load(case.model, sizes=sizes).compile()
    kernels = executable.executable.report().splitlines()[0]
    return Prepared(
        lambda _: executable.run(case.feeds), lambda r: numpy_arrays(list(r.values())), lambda: {"kernels": kernels}
    )


def ours(case: Case) -> Prepared:
    """Stitchwork, told the sizes."""
    return _ours(case, case.sizes)


def ours_any_size(case: Case) -> Prepared:
    """Stitchwork, one executable for all sizes that the model allows."""
    return _ours(case, {})


def with_onnxruntime(case: Case) -> Prepared:
    """ONNX Runtime, told the sizes."""
    session = onnxruntime_session(case.model, case.sizes)
    return Prepared(lambda _: session.run(None, case.feeds), numpy_arrays)


def with_openvino(case: Case) -> Prepared:
    """OpenVINO, told the sizes."""
    request = openvino_request(case.model, case.shapes)
    return Prepared(lambda _: request.infer(case.feeds), lambda r: [np.array(x) for x in r.values()])
