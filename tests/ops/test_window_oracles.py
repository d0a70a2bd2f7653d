"""Convolutions, window reductions and stencils against JAX, SciPy and ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
import scipy.ndimage
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from ops.running import assert_close, run
from stitchwork.ops import REGISTRY

_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.uniform(-2, 2, shape).astype(np.float32)


def jax_conv(x: Any, w: Any, **attrs: Any) -> Any:
    """JAX's convolution, channels last."""
    s = _SPATIAL[x.ndim - 2]
    layouts = (f"N{s}C", f"{s}IO", f"N{s}C")
    return jax.lax.conv_general_dilated(x, w, dimension_numbers=layouts, precision="highest", **attrs)


@st.composite
def convolutions(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes of x and w, and attributes, that make a convolution with at least one result."""
    rank = draw(st.integers(1, 3))
    small = st.tuples(*(st.integers(1, 3) for _ in range(rank)))
    strides, dilation, window = draw(small), draw(small), draw(small)
    spread = draw(small) if draw(st.booleans()) else (1,) * rank
    parts = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(("groups", "batch_groups")))
    pads = tuple(draw(st.tuples(st.integers(-1, 3), st.integers(-1, 3))) for _ in range(rank))
    sizes: list[int] = []
    for k, d, r, (lo, hi) in zip(window, dilation, spread, pads, strict=True):
        needed = (k - 1) * d + 1 - lo - hi
        least = max(-(-(needed - 1) // r) + 1, 1)
        sizes.append(least + draw(st.integers(0, 3)))
    groups, batch_groups = (parts, 1) if kind == "groups" else (1, parts)
    c = draw(st.integers(1, 2))
    x = (batch_groups * draw(st.integers(1, 2)), *sizes, c * groups)
    w = (*window, c, parts * draw(st.integers(1, 2)))
    attrs = {"strides": strides, "padding": pads, "input_dilation": spread, "kernel_dilation": dilation,
             "groups": groups, "batch_groups": batch_groups}  # fmt: skip
    return x, w, attrs


@settings(max_examples=30)
@given(convolutions())
def test_conv_general_agrees_with_jax(case: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]) -> None:
    x_shape, w_shape, a = case
    rng = np.random.default_rng(0)
    x, w = numbers(rng, *x_shape), numbers(rng, *w_shape)
    want = jax_conv(
        x, w, window_strides=a["strides"], padding=a["padding"], lhs_dilation=a["input_dilation"],
        rhs_dilation=a["kernel_dilation"], feature_group_count=a["groups"], batch_group_count=a["batch_groups"],
    )  # fmt: skip
    assert_close(run("conv_general", x, w, **a), want)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_conv2d_and_its_gradients_agree_with_jax(
    padding: str, strides: tuple[int, int], rng: np.random.Generator
) -> None:
    x, w = numbers(rng, 2, 7, 8, 4), numbers(rng, 3, 2, 2, 6)

    def forward(x: Any, w: Any) -> Any:
        return jax_conv(x, w, window_strides=strides, padding=padding, feature_group_count=2)

    want, pull = jax.vjp(forward, x, w)
    ct = numbers(rng, *want.shape)
    dx, dw = pull(ct)
    attrs: dict[str, Any] = {"strides": strides, "padding": padding.lower(), "groups": 2}
    assert_close(run("conv2d", x, w, **attrs), want)
    assert_close(run("conv2d_data_gradient", ct, w, output_shape=x.shape, **attrs), dx)
    assert_close(run("conv2d_weights_gradient", ct, x, output_shape=w.shape, **attrs), dw, 1e-4)
    assert_close(run("conv_transpose2d", ct, w, output_shape=x.shape, **attrs), dx)
    first = np.transpose(x, (0, 3, 1, 2)), np.transpose(w, (3, 2, 0, 1))
    made = run("conv2d", *first, data_layout="NCHW", weights_layout="OIHW", **attrs)
    assert_close(made, np.transpose(want, (0, 3, 1, 2)))


def onnx_run(op: str, inputs: list[np.ndarray | None], outputs: int = 1, opset: int = 22, **attrs: Any) -> Any:
    """Results of one ONNX node by the reference evaluator."""
    names = ["" if a is None else f"i{k}" for k, a in enumerate(inputs)]
    node = helper.make_node(op, names, [f"o{k}" for k in range(outputs)], **attrs)
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, inputs, strict=True)
        if a is not None
    ]
    made = [helper.make_empty_tensor_value_info(f"o{k}") for k in range(outputs)]
    model = helper.make_model(
        helper.make_graph([node], "g", types, made), opset_imports=[helper.make_opsetid("", opset)]
    )
    assert isinstance(model, onnx.ModelProto)
    feeds = {n: a for n, a in zip(names, inputs, strict=True) if a is not None}
    results = ReferenceEvaluator(model).run(None, feeds)
    return results if outputs > 1 else results[0]


@pytest.mark.parametrize("extra", [{}, {"output_padding": [1, 0]}, {"dilations": [2, 1]}])
def test_conv_transpose2d_agrees_with_onnx(extra: dict[str, Any], rng: np.random.Generator) -> None:
    x, w = numbers(rng, 1, 4, 3, 5), numbers(rng, 4, 3, 3, 2)
    want = onnx_run("ConvTranspose", [x, w], strides=[2, 3], pads=[1, 0, 0, 1], **extra)
    names = {"dilations": "dilation"}
    attrs = {names.get(k, k): v for k, v in extra.items()}
    got = run(
        "conv_transpose2d",
        x,
        w,
        strides=(2, 3),
        padding=((1, 0), (0, 1)),
        data_layout="NCHW",
        weights_layout="OIHW",
        **attrs,
    )
    assert_close(got, want)


def test_depthwise_conv2d_agrees_with_jax(rng: np.random.Generator) -> None:
    x, w = numbers(rng, 2, 6, 5, 3), numbers(rng, 3, 2, 3, 4)
    want = jax_conv(x, w.reshape(3, 2, 1, 12), window_strides=(1, 2), padding="SAME", feature_group_count=3)
    assert_close(run("depthwise_conv2d", x, w, strides=(1, 2), padding="same"), want)


def test_im_to_col_times_weights_is_conv2d(rng: np.random.Generator) -> None:
    x, w = numbers(rng, 2, 6, 5, 3), numbers(rng, 3, 2, 3, 4)
    columns = run("im_to_col", x, kernel_size=(3, 2), strides=(2, 1), padding=1)
    want = run("conv2d", x, w, strides=(2, 1), padding=1)
    assert_close((columns @ w.reshape(-1, 4)).reshape(want.shape), want)


# --- window reductions ----------------------------------------------------------------------------------------------
_REDUCERS: dict[str, tuple[Any, float]] = {
    "sum": (jax.lax.add, 0.0),
    "product": (jax.lax.mul, 1.0),
    "max": (jax.lax.max, -np.inf),
    "min": (jax.lax.min, np.inf),
}


@pytest.mark.parametrize("kind", list(_REDUCERS))
@pytest.mark.parametrize("base", [1, 3])
def test_reduce_window_agrees_with_jax(kind: str, base: int, rng: np.random.Generator) -> None:
    x = numbers(rng, 3, 6, 7)
    reducer, start = _REDUCERS[kind]
    window, strides, dilation, pads = (1, 3, 2), (2, 1, 3), (1, 2, 3), ((0, 0), (2, 1), (0, 3))
    want = jax.lax.reduce_window(
        x, start, reducer, window, strides, pads, base_dilation=(base,) * 3, window_dilation=dilation
    )
    attrs: dict[str, Any] = {"window": window, "strides": strides, "padding": pads, "window_dilation": dilation}
    assert_close(run("reduce_window", x, kind=kind, base_dilation=(base,) * 3, **attrs), want)


def test_max_pooling2d_gradient_agrees_with_jax(rng: np.random.Generator) -> None:
    x = numbers(rng, 2, 7, 6, 3)

    def forward(x: Any) -> Any:
        return jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (1, 3, 2, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (0, 0), (0, 0))
        )

    want, pull = jax.vjp(forward, x)
    ct = numbers(rng, *want.shape)
    attrs: dict[str, Any] = {"kernel_size": (3, 2), "strides": 2, "padding": ((1, 1), (0, 0))}
    assert_close(run("max_pooling2d", x, **attrs), want)
    assert_close(run("max_pooling2d_gradient", ct, x, **attrs), pull(ct)[0])
    _, indices = run("max_pooling2d_return_indices", x, **attrs)
    assert_close(run("max_pooling2d_gradient_with_indices", ct, indices, output_shape=x.shape, **attrs), pull(ct)[0])


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 1, 1], [1, 1, 1, 1]])
def test_pooling_agrees_with_onnx(pads: list[int], ceil_mode: int, rng: np.random.Generator) -> None:
    x = numbers(rng, 1, 2, 8, 7)
    shared: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 3], "pads": pads, "ceil_mode": ceil_mode}
    pairs = ((pads[0], pads[2]), (pads[1], pads[3]))
    own: dict[str, Any] = {"kernel_size": (3, 2), "strides": (2, 3), "padding": pairs, "data_layout": "NCHW"}
    own["ceil_mode"] = bool(ceil_mode)
    values, indices = run("max_pooling2d_return_indices", x, **own, return_indices_mode="global_flatten_4d")
    want, want_indices = onnx_run("MaxPool", [x], 2, **shared)
    assert_close(values, want)
    np.testing.assert_array_equal(indices, want_indices)
    for counted in (0, 1):
        want = onnx_run("AveragePool", [x], count_include_pad=counted, **shared)
        assert_close(run("avg_pooling2d", x, include_zero_pad=bool(counted), **own), want)


# --- stencils -------------------------------------------------------------------------------------------------------
_SCIPY = {"zero": "constant", "constant": "constant", "reflect": "mirror", "symmetric": "reflect",
          "clamp_to_edge": "nearest", "periodic": "wrap"}  # fmt: skip


@pytest.mark.parametrize("boundary", list(_SCIPY))
@pytest.mark.parametrize("shape", [(9,), (7, 8), (5, 6, 4), (4, 3, 5, 4)], ids=str)
def test_stencil_agrees_with_scipy(boundary: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    x = numbers(rng, *shape)
    weights = numbers(rng, *(3, 5, 3, 1)[: len(shape)])
    value = 1.5 if boundary == "constant" else 0.0
    how: dict[str, Any] = {"mode": _SCIPY[boundary], "cval": value}
    attrs: dict[str, Any] = {"padding": "same", "boundary": boundary, "constant": value}
    assert_close(run("stencil", x, weights, **attrs), scipy.ndimage.correlate(x, weights, **how))
    ones = np.ones(weights.shape, np.float32)
    smallest: Callable[..., Any] = scipy.ndimage.minimum_filter
    assert_close(run("stencil", x, ones, reduction="min", **attrs), smallest(x, size=ones.shape, **how))
    assert_close(
        run("stencil", x, ones, reduction="max", **attrs), scipy.ndimage.maximum_filter(x, size=ones.shape, **how)
    )


def test_stencil_position_is_that_of_the_first_extreme(rng: np.random.Generator) -> None:
    x = rng.integers(0, 3, (6, 7)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 3)).reshape(5, 5, 6)
    ones = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(run("stencil", x, ones, reduction="argmax"), windows.argmax(-1))
    np.testing.assert_array_equal(run("stencil", x, ones, reduction="argmin"), windows.argmin(-1))


def test_stencil_antiperiodic_flips_at_every_wrap() -> None:
    x = np.array([1, 2, 3], np.float32)
    got = run("stencil", x, np.ones(1, np.float32), padding=((4, 5),), boundary="antiperiodic")
    np.testing.assert_array_equal(got, [3, -1, -2, -3, 1, 2, 3, -1, -2, -3, 1, 2])


def test_stencil_weights_known_at_compile_time_are_built_in() -> None:
    from stitchwork.ir.dtypes import float32
    from stitchwork.ir.graph import Module
    from stitchwork.ir.types import TensorType
    from stitchwork.ops._build import F
    from stitchwork.passes.decompose import Decompose

    module = Module("m")
    x = module.body.add_argument(TensorType(float32, (8, 8)))
    module.body.results = (F.stencil(x, [[0, 1, 0], [1, -4, 1], [0, 1, 0]], padding="same"),)
    made = Decompose().run(module).module.body.operations[-1].op
    assert made.name == "stencil_unrolled" and REGISTRY[made.name].internal
    assert getattr(made, "weights") == (0.0, 1.0, 0.0, 1.0, -4.0, 1.0, 0.0, 1.0, 0.0)  # noqa: B009
