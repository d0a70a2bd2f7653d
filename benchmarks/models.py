"""Models that are built, not downloaded: ResNet-50 and a BERT encoder as ONNX, with random weights of sensible scale.

Batch size, image size and sequence length are symbolic. The graphs are what PyTorch's exporter writes at this opset:
batch norms folded into convolutions, layer norm as one op, attention and GELU spelled out in small ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
OPSET = 17


class Builder:
    """Collects nodes and weights of a graph; every method returns the name of its result."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; one name, or a list of them for several outputs."""
        label = f"{kind}_{len(self.nodes)}"
        names = [label] if outputs == 1 else [f"{label}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=label, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, array: Any) -> str:
        """Add an initializer."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def normal(self, *shape: int, scale: float) -> str:
        """An initializer of normally distributed numbers."""
        return self.constant((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def model(self, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
        """The finished model, checked."""
        graph = helper.make_graph(self.nodes, self.name, inputs, outputs, self.weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        onnx.checker.check_model(made)
        return made


# --- ResNet-50 v1.5 (stride in the 3x3 convolution; He et al., arXiv:1512.03385) ------------------------------------
_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # blocks, width
_EXPANSION = 4


def resnet50(classes: int = 1000, seed: int = 0) -> onnx.ModelProto:
    """ResNet-50: `image` f32 [batch, 3, height, width] to `logits` [batch, classes]. 25.5 million weights."""
    b = Builder("resnet50", seed)
    x = _conv(b, "image", 3, 64, 7, stride=2, relu=True)
    x = b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, (blocks, width) in enumerate(_STAGES):
        for k in range(blocks):
            x = _bottleneck(b, x, channels, width, stride=2 if stage and not k else 1)
            channels = width * _EXPANSION
    x = b.op("Flatten", b.op("GlobalAveragePool", x), axis=1)
    weights = b.normal(classes, channels, scale=0.01)
    b.nodes.append(
        helper.make_node("Gemm", [x, weights, b.constant(np.zeros(classes, np.float32))], ["logits"], transB=1)
    )
    return b.model(
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])],
    )


def _conv(
    b: Builder, x: str, inputs: int, outputs: int, size: int, stride: int = 1, relu: bool = False, gain: float = 2.0
) -> str:
    """Convolution with the bias that a folded batch norm leaves; weights keep the variance of activations (He)."""
    weights = b.normal(outputs, inputs, size, size, scale=float(np.sqrt(gain / (inputs * size * size))))
    bias = b.normal(outputs, scale=0.05)
    pad = size // 2
    y = b.op("Conv", x, weights, bias, kernel_shape=[size, size], strides=[stride, stride], pads=[pad] * 4)
    return b.op("Relu", y) if relu else y


def _bottleneck(b: Builder, x: str, channels: int, width: int, stride: int) -> str:
    y = _conv(b, x, channels, width, 1, relu=True)
    y = _conv(b, y, width, width, 3, stride, relu=True)
    y = _conv(b, y, width, width * _EXPANSION, 1, gain=0.5)  # a small branch keeps sixteen sums from growing
    if stride != 1 or channels != width * _EXPANSION:
        x = _conv(b, x, channels, width * _EXPANSION, 1, stride, gain=1.0)
    return b.op("Relu", b.op("Add", y, x))


# --- BERT (Devlin et al., arXiv:1810.04805) -------------------------------------------------------------------------
def bert(
    layers: int = 12, hidden: int = 768, heads: int = 12, vocabulary: int = 30522, positions: int = 512, seed: int = 0
) -> onnx.ModelProto:
    """A BERT encoder, base size by default: `input_ids`, `attention_mask` i64 [batch, sequence] to `hidden_states`
    f32 [batch, sequence, hidden]. Token types are all 0, their embedding is in that of the positions."""
    b = Builder("bert", seed)
    words = b.op("Gather", b.normal(vocabulary, hidden, scale=0.02), "input_ids")
    length = b.op("Slice", b.op("Shape", "input_ids"), b.constant([1]), b.constant([2]), b.constant([0]))
    table = b.normal(positions, hidden, scale=0.02)
    places = b.op("Slice", table, b.constant([0]), length, b.constant([0]))
    x = _layer_norm(b, b.op("Add", words, places), hidden)
    mask = b.op("Cast", b.op("Unsqueeze", "attention_mask", b.constant([1, 2])), to=TensorProto.FLOAT)
    hidden_keys = b.op("Sub", b.constant(np.float32(1)), mask)
    mask = b.op("Mul", hidden_keys, b.constant(np.float32(-10000)))
    for _ in range(layers):
        x = _layer(b, x, mask, hidden, heads)
    b.nodes.append(helper.make_node("Identity", [x], ["hidden_states"]))
    shape = ["batch", "sequence"]
    return b.model(
        [helper.make_tensor_value_info(n, TensorProto.INT64, shape) for n in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("hidden_states", TensorProto.FLOAT, [*shape, hidden])],
    )


def _linear(b: Builder, x: str, inputs: int, outputs: int) -> str:
    y = b.op("MatMul", x, b.normal(inputs, outputs, scale=float(1 / np.sqrt(inputs))))
    return b.op("Add", y, b.normal(outputs, scale=0.02))


def _layer_norm(b: Builder, x: str, hidden: int) -> str:
    scale = b.constant(np.ones(hidden, np.float32))
    return b.op("LayerNormalization", x, scale, b.constant(np.zeros(hidden, np.float32)), axis=-1, epsilon=1e-12)


def _layer(b: Builder, x: str, mask: str, hidden: int, heads: int) -> str:
    split = b.constant([0, 0, heads, hidden // heads])
    q, k, v = (b.op("Reshape", _linear(b, x, hidden, hidden), split) for _ in range(3))
    q, v = (b.op("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, v))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 3, 1]))
    scores = b.op("Add", b.op("Div", scores, b.constant(np.float32(np.sqrt(hidden // heads)))), mask)
    context = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
    context = b.op("Reshape", b.op("Transpose", context, perm=[0, 2, 1, 3]), b.constant([0, 0, hidden]))
    x = _layer_norm(b, b.op("Add", x, _linear(b, context, hidden, hidden)), hidden)
    y = _linear(b, _gelu(b, _linear(b, x, hidden, 4 * hidden)), 4 * hidden, hidden)
    return _layer_norm(b, b.op("Add", x, y), hidden)


def _gelu(b: Builder, x: str) -> str:
    """x * (1 + erf(x / sqrt 2)) / 2, as PyTorch exports it below opset 20."""
    e = b.op("Erf", b.op("Div", x, b.constant(np.float32(np.sqrt(2)))))
    y = b.op("Mul", x, b.op("Add", e, b.constant(np.float32(1))))
    return b.op("Mul", y, b.constant(np.float32(0.5)))
