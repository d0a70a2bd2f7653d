"""Variables made from tensors, read and assigned by the original's names."""

from __future__ import annotations

import numpy as np
import pytest

import stitchwork as sw
from stitchwork.errors import FeedError, GraphError


def test_variable_from_tensor_starts_as_the_tensor() -> None:
    g = sw.Graph()
    v = g.variable_from_tensor(g.constant(np.arange(3, dtype=np.float32)) * 2.0, name="twice")
    assert v.name == "twice"
    np.testing.assert_array_equal(v.value, [0, 2, 4])


def test_variable_from_tensor_needs_no_input() -> None:
    g = sw.Graph()
    x = g.placeholder((3,), name="x")
    with pytest.raises(FeedError, match="wrong number of inputs"):
        g.variable_from_tensor(x + 1.0)


def test_read_and_assign_by_name() -> None:
    g = sw.Graph()
    v = g.variable(np.ones(2, np.float32))
    update = g.assign_variable(v, g.read_variable(v) * 3.0)
    g.compile([update]).run()
    np.testing.assert_array_equal(v.value, [3, 3])
    with pytest.raises(GraphError, match="belongs to another graph"):
        sw.Graph().read_variable(v)
