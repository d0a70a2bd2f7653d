"""BERT-base on one sequence of 128 tokens, as an ONNX file."""

from __future__ import annotations

import numpy as np

from harness.spec import OURS, Benchmark, Contender
from suite.onnx_model import Case, ours, ours_any_size, with_onnxruntime, with_openvino

_TOKENS = 128


def inputs() -> Case:
    """The model, token numbers, and a mask that leaves all of them in."""
    import models  # needs onnx, without which the contenders are reported as missing

    ids = np.random.default_rng(0).integers(0, 30000, (1, _TOKENS))
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return Case(models.bert().SerializeToString(), feeds, {"batch": 1, "sequence": _TOKENS})


BENCHMARKS = [
    Benchmark(
        "bert",
        f"BERT-base, 1 x {_TOKENS} tokens, f32",
        inputs,
        (
            Contender(OURS, ours, ("onnx",)),
            Contender(f"{OURS}, any size", ours_any_size, ("onnx",)),
            Contender("ONNX Runtime", with_onnxruntime, ("onnx", "onnxruntime")),
            Contender("OpenVINO", with_openvino, ("onnx", "openvino")),
        ),
        reference="ONNX Runtime",
        tolerance=1e-3,
        rounds=5,
        runs=8,
    )
]
