"""Chains of ops that become one kernel, and their numbers against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import stitchwork as sw

Array = np.ndarray[Any, Any]


def kernels(exe: sw.Executable) -> int:
    """How many kernels a program has, by its report."""
    first, *lines = exe.report().splitlines()
    many = int(first.split()[0])
    assert many == len([line for line in lines if not line.startswith("note:")])
    return many


def softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def layer_norm(x: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * gamma + beta


def conv2d(x: Array, weights: Array) -> Array:
    """Weights of 3 by 3, stride 1, one element of padding; [batch, height, width, channels]."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))  # [..., channels, 3, 3]
    return np.einsum("bhwcij,ijco->bhwo", windows, weights)


def check(exe: sw.Executable, feeds: list[Array], want: Array, tolerance: float = 1e-5) -> None:
    (got,) = exe.run(feeds)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("known", [True, False])
def test_softmax_is_one_kernel(rng: np.random.Generator, known: bool) -> None:
    g = sw.Graph()
    x = g.placeholder((4, 50) if known else (None, None))
    exe = g.compile([g.softmax(x)])
    assert kernels(exe) == 1, exe.report()
    for shape in ((4, 50),) if known else ((4, 50), (1, 1), (3, 17), (2, 1000)):
        data = rng.normal(0, 10, shape).astype(np.float32)
        check(exe, [data], softmax(data.astype(np.float64)))
    check(exe, [np.full((4, 50), 1e30, np.float32)], np.full((4, 50), 1 / 50))  # no overflow


def test_softmax_with_what_surrounds_it_is_one_kernel(rng: np.random.Generator) -> None:
    """Scores are scaled and masked before, and weighed after."""
    g = sw.Graph()
    x, mask, weights = g.placeholder(("n", "m")), g.placeholder(("m",)), g.placeholder(("n", 1))
    exe = g.compile([g.softmax(x * 0.25 + mask) * weights])
    assert kernels(exe) == 1, exe.report()
    data = [rng.normal(0, 3, s).astype(np.float32) for s in ((5, 33), (33,), (5, 1))]
    check(exe, data, softmax(data[0] * 0.25 + data[1]) * data[2])


@pytest.mark.parametrize("known", [True, False])
def test_layer_norm_is_one_kernel(rng: np.random.Generator, known: bool) -> None:
    gamma, beta = (rng.uniform(0.5, 1.5, 24).astype(np.float32) for _ in range(2))
    g = sw.Graph()
    x = g.placeholder((2, 5, 24) if known else (None, None, 24))
    exe = g.compile([g.layer_norm(x, gamma, beta, epsilon=1e-3)])
    assert kernels(exe) == 1, exe.report()
    for shape in ((2, 5, 24),) if known else ((2, 5, 24), (1, 1, 24), (3, 31, 24)):
        data = rng.normal(2, 3, shape).astype(np.float32)
        check(exe, [data], layer_norm(data.astype(np.float64), gamma, beta, 1e-3), 1e-4)


def test_layer_norm_of_a_sum_is_one_kernel(rng: np.random.Generator) -> None:
    g = sw.Graph()
    x, residual = g.placeholder(("n", "d")), g.placeholder(("n", "d"))
    exe = g.compile([g.layer_norm(x + residual, epsilon=1e-3)])
    assert kernels(exe) == 1, exe.report()
    a, b = (rng.normal(0, 1, (7, 40)).astype(np.float32) for _ in range(2))
    check(exe, [a, b], layer_norm((a + b).astype(np.float64), np.ones(40), np.zeros(40), 1e-3), 1e-4)


@pytest.mark.parametrize("known", [True, False])
def test_conv_bias_residual_relu_is_one_kernel(rng: np.random.Generator, known: bool) -> None:
    weights, bias = rng.uniform(-0.3, 0.3, (3, 3, 8, 16)).astype(np.float32), rng.uniform(-1, 1, 16).astype(np.float32)
    g = sw.Graph()
    sizes: tuple[Any, ...] = (2, 9, 10) if known else ("n", "h", "w")
    x, residual = g.placeholder((*sizes, 8)), g.placeholder((*sizes, 16))
    exe = g.compile([g.relu(g.conv2d(x, weights, padding="same") + bias + residual)])
    assert kernels(exe) == 1, exe.report()
    for shape in ((2, 9, 10),) if known else ((2, 9, 10), (1, 1, 1), (3, 4, 17)):
        a, r = (rng.uniform(-1, 1, (*shape, c)).astype(np.float32) for c in (8, 16))
        check(exe, [a, r], np.maximum(conv2d(a, weights) + bias + r, 0), 1e-4)


GELUS: dict[str, Callable[[Array], Array]] = {
    "none": lambda x: x * special.ndtr(x),
    "tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("approximate", GELUS)
def test_matmul_bias_gelu_is_one_kernel(rng: np.random.Generator, known: bool, approximate: str) -> None:
    weights, bias = rng.uniform(-1, 1, (40, 24)).astype(np.float32), rng.uniform(-1, 1, 24).astype(np.float32)
    g = sw.Graph()
    x = g.placeholder((10, 40) if known else ("n", 40))
    exe = g.compile([g.gelu(x @ weights + bias, approximate=approximate)])
    assert kernels(exe) == 1, exe.report()
    for n in (10,) if known else (10, 1, 65):
        data = rng.uniform(-1, 1, (n, 40)).astype(np.float32)
        check(exe, [data], GELUS[approximate](data.astype(np.float64) @ weights + bias), 1e-4)


def test_pointwise_chains_and_a_reduction_are_one_kernel(rng: np.random.Generator) -> None:
    g = sw.Graph()
    x, y = g.placeholder(("n", "m")), g.placeholder(("m",))
    exe = g.compile([g.sum(g.tanh(x * y) - g.exp(-x), axis=1)])
    assert kernels(exe) == 1, exe.report()
    a, b = rng.uniform(-1, 1, (6, 45)).astype(np.float32), rng.uniform(-1, 1, 45).astype(np.float32)
    check(exe, [a, b], (np.tanh(a * b) - np.exp(-a)).sum(1), 1e-4)


def test_a_tensor_that_is_also_a_result_keeps_its_numbers(rng: np.random.Generator) -> None:
    """What is stitched into another kernel and asked for itself is right in both places."""
    g = sw.Graph()
    x = g.placeholder(("n", "m"))
    middle = g.tanh(x)
    exe = g.compile([middle, g.softmax(middle), g.sum(middle, axis=0)])
    data = rng.normal(0, 1, (4, 19)).astype(np.float32)
    t = np.tanh(data)
    for got, want in zip(exe.run([data]), (t, softmax(t), t.sum(0)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
