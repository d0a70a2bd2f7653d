"""From the bytes of ResNet-50's ONNX file to something that can run: once per process, packages imported before."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from harness.peers import numpy_arrays, onnxruntime_session, openvino_request
from harness.spec import OURS, Benchmark, Contender, Prepared, Reach
from stitchwork.importers import onnx as stitchwork_onnx
from suite.onnx_model import Case
from suite.resnet50 import inputs

_COLD, _WARM = f"{OURS}, cold", f"{OURS}, warm cache"
_NO_CACHE = {"STITCHWORK_CACHE": "0"}


def _prepared(compile_it: Callable[[], Callable[[], list[Any]]]) -> Prepared:
    """compile_it: what is timed; gives a function that runs the model, whose first run is reported beside it."""
    facts: dict[str, Any] = {}

    def first_run(run: Callable[[], list[Any]]) -> list[Any]:
        start = time.perf_counter()
        result = run()
        facts["first run"] = f"{(time.perf_counter() - start) * 1e3:.0f} ms"
        return result

    return Prepared(lambda _: compile_it(), first_run, lambda: facts)


def _ours(case: Case, sizes: dict[str, int]) -> Prepared:
    def compile_it() -> Callable[[], list[Any]]:
        executable = stitchwork_onnx.load(case.model, sizes=sizes).compile()
        return lambda: numpy_arrays(list(executable.run(case.feeds).values()))

    return _prepared(compile_it)


def ours(case: Case) -> Prepared:
    """Stitchwork, told the sizes; the contender's environment says with which cache."""
    return _ours(case, case.sizes)


def ours_any_size(case: Case) -> Prepared:
    """Stitchwork, for any size."""
    return _ours(case, {})


def with_onnxruntime(case: Case) -> Prepared:
    """Making a session of ONNX Runtime, which optimises the graph and packs weights."""
    import_module("onnxruntime")  # not part of what is timed

    def compile_it() -> Callable[[], list[Any]]:
        session = onnxruntime_session(case.model, case.sizes)
        return lambda: session.run(None, case.feeds)

    return _prepared(compile_it)


def with_openvino(case: Case) -> Prepared:
    """Compiling a model with OpenVINO."""
    import_module("openvino")  # not part of what is timed

    def compile_it() -> Callable[[], list[Any]]:
        request = openvino_request(case.model, case.shapes)
        return lambda: [np.array(x) for x in request.infer(case.feeds).values()]

    return _prepared(compile_it)


BENCHMARKS = [
    Benchmark(
        "resnet50-compile",
        "ResNet-50 from the bytes of its ONNX file to an executable, in a new process",
        inputs,
        (
            Contender(_COLD, ours, ("onnx",), _NO_CACHE),
            Contender(f"{OURS}, any size, cold", ours_any_size, ("onnx",), _NO_CACHE),
            Contender(_WARM, ours, ("onnx",), unmeasured=1),
            Contender("ONNX Runtime", with_onnxruntime, ("onnx", "onnxruntime")),
            Contender("OpenVINO", with_openvino, ("onnx", "openvino")),
        ),
        (
            Reach("cold, at most 2.5 s", seconds=2.5, contender=_COLD),
            Reach("with a warm disk cache, at most 0.2 s", seconds=0.2, contender=_WARM),
        ),
        reference="ONNX Runtime",
        tolerance=1e-3,
        rounds=5,
        fresh=True,
        ours=_COLD,
    )
]
