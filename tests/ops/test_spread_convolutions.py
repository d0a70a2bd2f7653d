"""Convolutions of inputs spread apart, done by phases: against JAX, as rewritten and as compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stitchwork as sw
from ops.running import assert_close
from ops.test_window_oracles import jax_conv, numbers
from stitchwork.backends.reference.interpreter import Interpreter
from stitchwork.ir import dims, dtypes
from stitchwork.ir.graph import Module
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._op import building
from stitchwork.passes.simplify import Simplify

Shapes = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]


@st.composite
def spread_convolutions(draw: Any) -> Shapes:
    """Shapes of x and w, and attributes, with stride 1 where the input is spread apart."""
    rank = draw(st.integers(1, 3))
    each = range(rank)
    spread = [draw(st.integers(1, 4)) for _ in each]
    spread[draw(st.integers(0, rank - 1))] = draw(st.integers(2, 4))
    window, dilation = [draw(st.integers(1, 5)) for _ in each], [draw(st.integers(1, 3)) for _ in each]
    strides = [draw(st.integers(1, 2)) if r == 1 else 1 for r in spread]
    pads = [(draw(st.integers(-1, 4)), draw(st.integers(-1, 4))) for _ in each]
    sizes: list[int] = []
    for k, d, r, (lo, hi) in zip(window, dilation, spread, pads, strict=True):
        needed = (k - 1) * d + 1 - lo - hi
        sizes.append(max(-(-(needed - 1) // r) + 1, 1) + draw(st.integers(0, 3)))
    groups, c = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    x, w = (draw(st.integers(1, 2)), *sizes, c * groups), (*window, c, groups * draw(st.integers(1, 2)))
    return x, w, {"strides": tuple(strides), "padding": tuple(pads), "input_dilation": tuple(spread),
                  "kernel_dilation": tuple(dilation), "groups": groups}  # fmt: skip


def expected(x: np.ndarray, w: np.ndarray, attrs: dict[str, Any]) -> Any:
    return jax_conv(
        x, w, window_strides=attrs["strides"], padding=attrs["padding"], lhs_dilation=attrs["input_dilation"],
        rhs_dilation=attrs["kernel_dilation"], feature_group_count=attrs["groups"],
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(spread_convolutions(), st.booleans())
def test_rewritten(case: Shapes, symbolic: bool) -> None:
    """Simplified modules hold no spread input any more, and give what JAX gives."""
    x_shape, w_shape, attrs = case
    rng = np.random.default_rng(0)
    x, w = numbers(rng, *x_shape), numbers(rng, *w_shape)
    module = Module("spread")
    named = [n if d in (0, len(x_shape) - 1) else dims.symbol(f"s{d}") for d, n in enumerate(x_shape)]
    with building(module):
        data = module.body.add_argument(TensorType(dtypes.float32, tuple(named) if symbolic else x_shape))
        weights = module.body.add_argument(TensorType(dtypes.float32, w_shape))
        module.body.results = (F.conv_general(data, weights, **attrs),)
    result = Simplify().run(module)
    assert result.modified
    left = [o.op for o in result.module.body.operations if o.op.name == "conv_general"]
    assert all(set(getattr(op, "input_dilation")) == {1} for op in left)  # noqa: B009
    sizes = {f"s{d}": n for d, n in enumerate(x_shape)} if symbolic else {}
    assert_close(Interpreter(result.module, sizes).run(x, w)[0], expected(x, w, attrs))


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("k, s, p", [(2, 2, 0), (3, 2, 1), (4, 2, 1), (2, 3, 0), (5, 3, 2)])
def test_compiled(k: int, s: int, p: int, symbolic: bool) -> None:
    """Transposed convolutions with what usually follows them."""
    rng = np.random.default_rng(k)
    x, w, bias = numbers(rng, 2, 5, 7, 19), numbers(rng, k, k, 21, 19), numbers(rng, 21)
    graph = sw.Graph()
    data = graph.placeholder((None, None, None, 19) if symbolic else x.shape)
    y = graph.relu(graph.conv_transpose2d(data, w, strides=s, padding=p, output_padding=s - 1) + bias)
    (got,) = graph.compile(targets=[y]).run([x])
    flipped = np.ascontiguousarray(w[::-1, ::-1].transpose(0, 1, 3, 2))
    before = k - 1 - p
    attrs = {"strides": (1, 1), "padding": ((before, before + s - 1),) * 2, "input_dilation": (s, s),
             "kernel_dilation": (1, 1), "groups": 1}  # fmt: skip
    assert_close(np.asarray(got), np.maximum(expected(x, flipped, attrs) + bias, 0), 1e-4)
