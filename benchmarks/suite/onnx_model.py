"""Contenders that run an ONNX model, used by the benchmarks of models."""

from __future__ import annotations

from typing import Any

import numpy as np
from stitchwork.importers import onnx as stitchwork_onnx

from harness.peers import numpy_arrays, onnxruntime_session, openvino_request
from harness.spec import Prepared

Case = tuple[bytes, dict[str, Any]]  # the file's bytes, and arrays by the names of its inputs


def ours(case: Case) -> Prepared:
    """Stitchwork, through its importer."""
    model, feeds = case
    executable = stitchwork_onnx.load(model).compile()
    kernels = executable.executable.report().splitlines()[0]
    return Prepared(
        lambda _: executable.run(feeds), lambda r: numpy_arrays(list(r.values())), lambda: {"kernels": kernels}
    )


def with_onnxruntime(case: Case) -> Prepared:
    """ONNX Runtime."""
    model, feeds = case
    session = onnxruntime_session(model)
    return Prepared(lambda _: session.run(None, feeds), numpy_arrays)


def with_openvino(case: Case) -> Prepared:
    """OpenVINO."""
    model, feeds = case
    request = openvino_request(model)
    return Prepared(lambda _: request.infer(feeds), lambda r: [np.array(x) for x in r.values()])
