"""BERT-base on one sequence of 128 tokens, as an ONNX file."""

from __future__ import annotations

import models
import numpy as np

from harness.spec import OURS, Benchmark, Contender
from suite.onnx_model import Case, ours, with_onnxruntime, with_openvino


def inputs() -> Case:
    """The model, and token numbers."""
    model = models.bert_base()
    ids = np.random.default_rng(0).integers(0, 30000, (1, 128))
    return model.SerializeToString(), {model.graph.input[0].name: ids}


BENCHMARKS = [
    Benchmark(
        "bert",
        "BERT-base, 1 x 128 tokens, f32",
        inputs,
        (
            Contender(OURS, ours, ("onnx",)),
            Contender("ONNX Runtime", with_onnxruntime, ("onnx", "onnxruntime")),
            Contender("OpenVINO", with_openvino, ("onnx", "openvino")),
        ),
        reference="ONNX Runtime",
        tolerance=1e-3,
        rounds=5,
        runs=8,
    )
]
