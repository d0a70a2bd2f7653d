"""Sizes given to `compile` are built into the program; other sizes still work, by one more compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stitchwork as sw
from stitchwork.errors import FeedError

FILTERS = np.linspace(-1, 1, 3 * 3 * 2 * 4, dtype=np.float32).reshape(3, 3, 2, 4)
PROGRAMS: dict[str, Callable[[sw.Graph, sw.Tensor], Any]] = {
    "pointwise": lambda g, x: g.exp(x) + x[:1],
    "softmax": lambda g, x: g.softmax(x),
    "matmul": lambda g, x: g.relu(x @ g.permute(x, (1, 0))),
    "reshape": lambda g, x: g.reshape(x, (-1, 2)) * 2,
    "stencil": lambda g, x: g.stencil(x, [[1, 2], [3, 4]], padding="same", boundary="reflect"),
    "convolution": lambda g, x: g.conv2d(g.reshape(x, (1, *x.shape[:1], -1, 2)), FILTERS, padding="same"),
    "sizes as data": lambda g, x: x / g.cast(g.shape_of(x)[0], sw.float32),
    "control flow": lambda g, x: g.for_loop(3, x, lambda i, v: g.if_else(i > 0, lambda: v * 2 + x, lambda: v)),
    "split": lambda g, x: g.concat([x, g.slice(x, (0, 1), (x.shape[0], 3))], axis=1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_specialised_and_symbolic_programs_agree(name: str, rng: np.random.Generator) -> None:
    """At the sizes that were built in, and at others, which compile the symbolic program once."""
    g = sw.Graph()
    x = g.placeholder(("n", "m"), name="x")
    y = PROGRAMS[name](g, x)
    special, general = g.compile([y], feeds={x: (4, 6)}), g.compile([y])
    assert all(t.is_static for t in special.output_types())
    for shape, compiled in (((4, 6), 1), ((5, 8), 2), ((1, 4), 2), ((4, 6), 2)):
        data = rng.uniform(-1, 1, shape).astype(np.float32)
        np.testing.assert_allclose(special.run([data])[0], general.run([data])[0], rtol=1e-5, atol=1e-5)
        assert special.compile_count == compiled
    assert general.compile_count == 1


def test_inference_can_be_turned_off() -> None:
    g = sw.Graph()
    x = g.placeholder(("n",), name="x")
    exe = g.compile([x + 1], feeds={x: (4,)}, options=sw.CompileOptions(disable_type_inference=True))
    assert str(exe.output_types()[0]) == "f32[n]"
    for n in (4, 5, 0):
        assert exe.run([np.zeros(n, np.float32)])[0].shape == (n,)
    assert exe.compile_count == 1


def test_types_and_arrays_and_shapes_specialise() -> None:
    g = sw.Graph()
    x = g.placeholder(("n", None), name="x")
    for given in (np.zeros((2, 3)), (2, 3), sw.TensorType(sw.float32, (2, 3)), sw.TensorData(np.zeros((2, 3)))):
        assert str(g.compile([x * 2], feeds={x: given}).output_types()[0]) == "f32[2, 3]"


def test_sizes_of_one_name_are_one_size() -> None:
    g = sw.Graph()
    x, y = g.placeholder(("n",), name="x"), g.placeholder(("n",), name="y")
    exe = g.compile([x + y], feeds={x: (3,), y: (3,)})
    with pytest.raises(FeedError, match="size `n` differs between inputs"):
        exe.run([np.zeros(3, np.float32), np.zeros(4, np.float32)])
    with pytest.raises(FeedError, match="size `n` differs between inputs"):
        g.compile([x + y], feeds={x: (3,), y: (4,)})


def test_guards_hold_in_both_programs() -> None:
    g = sw.Graph()
    x, y = g.placeholder((None,), name="x"), g.placeholder((None,), name="y")
    exe = g.compile([x + y], feeds={x: (3,), y: (1,)})
    np.testing.assert_array_equal(exe.run([np.zeros(3, np.float32), np.ones(1, np.float32)])[0], np.ones(3))
    np.testing.assert_array_equal(exe.run([np.zeros(1, np.float32), np.ones(5, np.float32)])[0], np.ones(5))
    for a, b in ((3, 2), (2, 0)):
        with pytest.raises(FeedError, match="sizes do not fit"):
            exe.run([np.zeros(a, np.float32), np.zeros(b, np.float32)])
    with pytest.raises(FeedError, match="sizes do not fit"):
        g.compile([x + y], feeds={x: (3,), y: (2,)}).run([np.zeros(3, np.float32), np.zeros(2, np.float32)])
    assert exe.compile_count == 2


def test_variables_are_shared_by_both_programs() -> None:
    g = sw.Graph()
    x, v = g.placeholder(("n",), name="x"), g.variable(np.float32(0), name="v")
    exe = g.compile([g.assign(v, v + g.sum(x))], feeds={x: (2,)})
    for n in (2, 5, 2, 3):
        exe.run([np.ones(n, np.float32)])
    assert v.value == 12
