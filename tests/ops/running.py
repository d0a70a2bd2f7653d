"""Running one op on arrays by its definition, for comparisons with other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np

from stitchwork.backends.reference.interpreter import Interpreter
from stitchwork.ir import dtypes
from stitchwork.ir.graph import Module
from stitchwork.ir.types import TensorType
from stitchwork.ops import REGISTRY
from stitchwork.ops._build import function
from stitchwork.ops._op import building


def run(op: str, *operands: Any, **attrs: Any) -> Any:
    """The op's result, or a list of them. Operands are arrays, or None for an optional one left out."""
    module = Module("oracle")
    arrays = [a for a in operands if a is not None]
    with building(module):
        types = [TensorType(dtypes.as_dtype(a.dtype), a.shape) for a in arrays]
        inputs = iter([module.body.add_argument(t) for t in types])
        made = function(REGISTRY[op])(*(None if a is None else next(inputs) for a in operands), **attrs)
    module.body.results = made if isinstance(made, tuple) else (made,)
    results = Interpreter(module, {}).run(*arrays)
    return results if isinstance(made, tuple) else results[0]


def assert_close(got: np.ndarray, want: Any, tolerance: float = 2e-5) -> None:
    """Equal shapes, values equal up to rounding."""
    want = np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance)
