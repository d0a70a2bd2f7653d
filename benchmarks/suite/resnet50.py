"""ResNet-50 on one image, as an ONNX file."""

from __future__ import annotations

import models
import numpy as np

from harness.spec import OURS, Benchmark, Contender, Reach
from suite.onnx_model import Case, ours, with_onnxruntime, with_openvino


def inputs() -> Case:
    """The model, and one image."""
    model = models.resnet50()
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)
    return model.SerializeToString(), {model.graph.input[0].name: image}


BENCHMARKS = [
    Benchmark(
        "resnet50",
        "ResNet-50, 1 x 3 x 224 x 224, f32",
        inputs,
        (
            Contender(OURS, ours, ("onnx",)),
            Contender("ONNX Runtime", with_onnxruntime, ("onnx", "onnxruntime")),
            Contender("OpenVINO", with_openvino, ("onnx", "openvino")),
        ),
        (Reach("as fast as ONNX Runtime", times=1.0, peers=("ONNX Runtime",)),),
        reference="ONNX Runtime",
        tolerance=1e-3,
    )
]
