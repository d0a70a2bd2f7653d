"""ResNet-50 on one image, as an ONNX file."""

from __future__ import annotations

import numpy as np

from harness.spec import OURS, Benchmark, Contender, Reach
from suite.onnx_model import Case, ours, ours_any_size, with_onnxruntime, with_openvino

_ANY = f"{OURS}, any size"


def inputs() -> Case:
    """The model, and one image."""
    import models  # needs onnx, without which the contenders are reported as missing

    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)
    sizes = {"batch": 1, "height": 224, "width": 224}
    return Case(models.resnet50().SerializeToString(), {"image": image}, sizes)


BENCHMARKS = [
    Benchmark(
        "resnet50",
        "ResNet-50, 1 x 3 x 224 x 224, f32",
        inputs,
        (
            Contender(OURS, ours, ("onnx",)),
            Contender(_ANY, ours_any_size, ("onnx",)),
            Contender("ONNX Runtime", with_onnxruntime, ("onnx", "onnxruntime")),
            Contender("OpenVINO", with_openvino, ("onnx", "openvino")),
        ),
        (
            Reach("as fast as ONNX Runtime", times=1.0, peers=("ONNX Runtime",)),
            Reach("the same, one executable for any size", times=1.0, peers=("ONNX Runtime",), contender=_ANY),
        ),
        reference="ONNX Runtime",
        tolerance=1e-3,
    )
]
