"""Resizing, sampling, normalisation, attention and recurrent layers against ONNX's reference evaluator and JAX."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ops.running import assert_close, run
from ops.test_window_oracles import numbers, onnx_run

_COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")


def runtime_run(op: str, inputs: list[np.ndarray | None], opset: int, **attrs: Any) -> Any:
    """The first result of one ONNX node by ONNX Runtime, for what the reference evaluator does not do as specified."""
    names = ["" if a is None else f"i{k}" for k, a in enumerate(inputs)]
    feeds = {n: a for n, a in zip(names, inputs, strict=True) if a is not None}
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    made = [helper.make_tensor_value_info("o", TensorProto.FLOAT, None)]
    graph = helper.make_graph([helper.make_node(op, names, ["o"], **attrs)], "g", types, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[
        0
    ]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", _COORDINATES)
@pytest.mark.parametrize("sizes", [(7, 9), (3, 2), (5, 6)], ids=str)
def test_resize_to_sizes_agrees_with_onnx(
    mode: str, coordinates: str, sizes: tuple[int, int], rng: np.random.Generator
) -> None:
    x = numbers(rng, 1, 2, 5, 6)
    whole = np.array([1, 2, *sizes], np.int64)
    roundings = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil") if mode == "nearest" else ("floor",)
    for rounding in roundings:
        how: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
        want = onnx_run("Resize", [x, None, None, whole], opset=19, **how)
        got = run("resize", x, size=sizes, layout="NCHW", mode=mode, coordinates=coordinates, rounding=rounding)
        assert_close(got, want)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", [*_COORDINATES, "tf_half_pixel_for_nn"])
def test_resize_by_scales_agrees_with_onnx_runtime(mode: str, coordinates: str, rng: np.random.Generator) -> None:
    x = numbers(rng, 1, 1, 5, 6)
    old = coordinates == "tf_half_pixel_for_nn"  # gone from later versions
    for scales in ((0.6, 2.0), (1.7, 0.25), (0.2, 1.5)):
        factors = np.array([1, 1, *scales], np.float32)
        how: dict[str, Any] = {
            "mode": mode,
            "coordinate_transformation_mode": coordinates,
            "nearest_mode": "round_prefer_floor",
        }
        want = runtime_run("Resize", [x, np.zeros(8, np.float32) if old else None, factors], 11 if old else 19, **how)
        own = tuple(float(s) for s in factors[2:])
        got = run(
            "resize", x, scales=own, layout="NCHW", mode=mode, coordinates=coordinates, rounding="round_prefer_floor"
        )
        assert_close(got, want)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_of_a_crop_agrees_with_onnx(mode: str, rng: np.random.Generator) -> None:
    x = numbers(rng, 1, 1, 5, 6)
    roi = np.array([0, 0, 0.2, -0.3, 1, 1, 0.9, 1.3], np.float32)
    how: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 9.0,
    }
    want = onnx_run("Resize", [x, roi, None, np.array([1, 1, 4, 7], np.int64)], opset=19, **how)
    own = tuple(float(r) for r in roi[[2, 3, 6, 7]])
    got = run("resize", x, size=(4, 7), layout="NCHW", mode=mode, coordinates="tf_crop_and_resize", roi=own,
              extrapolation=9.0, rounding="round_prefer_floor")  # fmt: skip
    assert_close(got, want)


@pytest.mark.parametrize("coefficient", [-0.75, -0.5])
def test_resize_excluding_outside_agrees_with_onnx(coefficient: float, rng: np.random.Generator) -> None:
    x = numbers(rng, 1, 1, 4, 4)
    sizes = np.array([1, 1, 9, 3], np.int64)
    want = onnx_run(
        "Resize", [x, None, None, sizes], opset=19, mode="cubic", cubic_coeff_a=coefficient, exclude_outside=1
    )
    got = run(
        "resize",
        x,
        size=(9, 3),
        layout="NCHW",
        mode="cubic",
        center_result=True,
        cubic_coefficient=coefficient,
        exclude_outside=True,
    )
    assert_close(got, want)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_sample_grid_agrees_with_onnx_runtime(mode: str, padding: str, aligned: bool, rng: np.random.Generator) -> None:
    x, grid = numbers(rng, 2, 3, 4, 5), rng.uniform(-1.5, 1.5, (2, 3, 6, 2)).astype(np.float32)
    want = runtime_run("GridSample", [x, grid], 20, mode=mode, padding_mode=padding, align_corners=int(aligned))
    name = {"zeros": "constant", "border": "clamp_to_edge", "reflection": "reflect" if aligned else "symmetric"}[
        padding
    ]
    got = run(
        "sample_grid",
        x,
        grid,
        layout="NCHW",
        mode=mode,
        padding_mode=name,
        align_corners=aligned,
        rounding="round_to_even",
    )
    assert_close(got, want, 1e-4)


# --- normalisation and attention ------------------------------------------------------------------------------------
def test_normalizations_agree_with_onnx(rng: np.random.Generator) -> None:
    x, gamma, beta = numbers(rng, 2, 6, 3, 4), numbers(rng, 6), numbers(rng, 6)
    mean, variance = numbers(rng, 6), np.abs(numbers(rng, 6))
    want = onnx_run("BatchNormalization", [x, gamma, beta, mean, variance], epsilon=1e-3)
    assert_close(run("batch_norm", x, mean, variance, gamma, beta, channel_axis=1, epsilon=1e-3), want)
    want = onnx_run("InstanceNormalization", [x, gamma, beta], epsilon=1e-3)
    assert_close(run("instance_norm", x, gamma, beta, channel_axis=1, epsilon=1e-3), want)
    want = onnx_run("GroupNormalization", [x, gamma, beta], opset=21, num_groups=3, epsilon=1e-3)
    assert_close(run("group_norm", x, gamma, beta, groups=3, channel_axis=1, epsilon=1e-3), want)
    scale, shift = numbers(rng, 3, 4), numbers(rng, 3, 4)
    want = onnx_run("LayerNormalization", [x, scale, shift], axis=2, epsilon=1e-3)
    assert_close(run("layer_norm", x, scale, shift, axes=(2, 3), epsilon=1e-3), want)


def test_normalization_gradients_agree_with_jax(rng: np.random.Generator) -> None:
    x, gamma, beta, ct = numbers(rng, 4, 3, 5), numbers(rng, 1, 1, 5), numbers(rng, 1, 1, 5), numbers(rng, 4, 3, 5)

    def forward(x: Any, gamma: Any, beta: Any) -> Any:
        mean, variance = x.mean((0, 1), keepdims=True), x.var((0, 1), keepdims=True)
        return (x - mean) / (variance + 1e-3) ** 0.5 * gamma + beta

    _, pull = jax.vjp(forward, x, gamma, beta)
    dx, dgamma, dbeta = pull(ct)
    mean, variance = x.mean((0, 1), keepdims=True), x.var((0, 1), keepdims=True)
    attrs: dict[str, Any] = {"axes": (0, 1), "epsilon": 1e-3}
    of_gamma = run("normalization_gamma_gradient", ct, x, mean, variance, **attrs)
    of_beta = run("normalization_beta_gradient", ct, x, **attrs)
    assert_close(of_gamma, dgamma, 1e-4)
    assert_close(of_beta, dbeta, 1e-4)
    assert_close(run("normalization_gradient", ct, x, mean, variance, gamma, None, None, **attrs), dx, 1e-4)
    assert_close(run("normalization_gradient", ct, x, mean, variance, gamma, of_gamma, of_beta, **attrs), dx, 1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_agrees_with_jax(causal: bool, rng: np.random.Generator) -> None:
    q, k, v = numbers(rng, 2, 4, 5, 8), numbers(rng, 2, 2, 5, 8), numbers(rng, 2, 2, 5, 8)
    moved = [np.swapaxes(a, 1, 2) for a in (q, k, v)]  # JAX: [batch, time, heads, features]
    want = jax.nn.dot_product_attention(*moved, is_causal=causal)
    assert_close(run("scaled_dot_product_attention", q, k, v, None, None, causal=causal), np.swapaxes(want, 1, 2), 1e-4)


# --- recurrent layers -----------------------------------------------------------------------------------------------
def packed(*gates: np.ndarray) -> np.ndarray:
    """Gates one after the other along their rows."""
    return np.concatenate(gates, 0)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_lstm_agrees_with_onnx(direction: str, rng: np.random.Generator) -> None:
    x, h, c = numbers(rng, 4, 2, 3), numbers(rng, 2, 5), numbers(rng, 2, 5)
    w, r, b = ([numbers(rng, 5, n) for _ in range(4)] for n in (3, 5, 1))
    order = (0, 3, 1, 2)  # ours i f z o, ONNX's i o f z
    onnx_b = np.concatenate([*(b[k][:, 0] for k in order), np.zeros(20, np.float32)])
    want, last, cell = onnx_run(
        "LSTM", [x, packed(*(w[k] for k in order))[None], packed(*(r[k] for k in order))[None], onnx_b[None],
                 None, h[None], c[None]], 3, hidden_size=5, direction="forward",
    ) if direction == "forward" else _reversed_lstm(x, w, r, onnx_b, h, c, order)  # fmt: skip
    got, cells = run("lstm", x, packed(*r), packed(*w), packed(*b)[:, 0], h, c, None, None,
                     reverse=direction == "reverse", produce_cell=True)  # fmt: skip
    assert_close(got, want[:, 0])
    end = 0 if direction == "reverse" else -1
    assert_close(got[end], last[0])
    assert_close(cells[end], cell[0])


def _reversed_lstm(x: Any, w: Any, r: Any, b: Any, h: Any, c: Any, order: Any) -> Any:
    """The evaluator runs forwards only: time is reversed outside."""
    flipped = np.ascontiguousarray(x[::-1])
    inputs = [
        flipped,
        packed(*(w[k] for k in order))[None],
        packed(*(r[k] for k in order))[None],
        b[None],
        None,
        h[None],
        c[None],
    ]
    y, last, cell = onnx_run("LSTM", inputs, 3, hidden_size=5)
    return y[::-1], last, cell


@pytest.mark.parametrize("after", [0, 1])
def test_gru_agrees_with_onnx(after: int, rng: np.random.Generator) -> None:
    x, h = numbers(rng, 4, 2, 3), numbers(rng, 2, 5)
    w, r, b, second = numbers(rng, 15, 3), numbers(rng, 15, 5), numbers(rng, 15), numbers(rng, 15)
    inputs = [x, w[None], r[None], np.concatenate([b, second])[None], None, h[None]]
    want, last = onnx_run("GRU", inputs, 2, hidden_size=5, linear_before_reset=after)
    bias = b + second
    if after:  # the hidden gate's second bias stays with its product
        bias[10:] = b[10:]
    got = run("gru", x, r, w, bias, h, None, second[10:] if after else None, reset_after=bool(after))
    assert_close(got, want[:, 0])
    assert_close(got[-1], last[0])


def test_single_gate_rnn_agrees_with_onnx(rng: np.random.Generator) -> None:
    x, h, w, r, b = numbers(rng, 4, 2, 3), numbers(rng, 2, 5), numbers(rng, 5, 3), numbers(rng, 5, 5), numbers(rng, 5)
    inputs = [x, w[None], r[None], np.concatenate([b, np.zeros(5, np.float32)])[None], None, h[None]]
    want, _ = onnx_run("RNN", inputs, 2, hidden_size=5)
    assert_close(run("single_gate_rnn", x, r, w, b, h, None, activation="tanh"), want[:, 0])


def test_bidirectional_is_both_directions_side_by_side(rng: np.random.Generator) -> None:
    x = numbers(rng, 4, 2, 3)
    w, r, b = ([numbers(rng, *shape) for _ in range(2)] for shape in ((20, 3), (20, 5), (20,)))
    both = run("lstm", x, np.stack(r), packed(*w), packed(*b), None, None, None, None, bidirectional=True)
    each = [run("lstm", x, r[d], w[d], b[d], None, None, None, None, reverse=d == 1) for d in range(2)]
    assert_close(both, np.concatenate(each, -1))


@pytest.mark.parametrize("flip,first", list(itertools.product([False, True], repeat=2)))
def test_gru_order_and_mix(flip: bool, first: bool, rng: np.random.Generator) -> None:
    x, w, r, b = numbers(rng, 3, 2, 4), numbers(rng, 9, 4), numbers(rng, 9, 3), numbers(rng, 9)

    def swapped(a: np.ndarray) -> np.ndarray:
        return np.concatenate([a[3:6], a[:3], a[6:]]) if first else a

    plain = run("gru", x, r, w, b, None, None, None, flip_z=flip)
    assert_close(
        run("gru", x, swapped(r), swapped(w), swapped(b), None, None, None, flip_z=flip, reset_gate_first=first), plain
    )
