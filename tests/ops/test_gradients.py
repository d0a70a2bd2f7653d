"""Every `vjp` rule agrees with central differences of the `numpy` rule, in float64. No op is named in this file.

For a complex tensor the pairing of a cotangent with a change is Re(ct * dx).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from ops.cases import CASES, Built, Case, Refused, build, by_op, each, make_operands
from stitchwork.backends.reference.interpreter import Interpreter
from stitchwork.errors import OpError
from stitchwork.ir import dims
from stitchwork.ir.graph import Array, Operation, Value
from stitchwork.ops._build import F
from stitchwork.ops._op import Sample, building

STEP = 1e-6
WIDE = {"f": np.dtype(np.float64), "c": np.dtype(np.complex128)}


def is_continuous(array: Any) -> bool:
    """Whether an operand is an array of floats or complex numbers."""
    return isinstance(array, np.ndarray) and array.dtype.kind in "fcV"  # V: the floats that NumPy lacks


def random_arguments(case: Case) -> set[int]:
    """Which arguments the sample gives as shapes. A rule may have no gradient for a parameter, given as an array."""
    flat: list[Any] = []
    for x in case.sample.operands:
        flat += x if isinstance(x, list) else [x]
    tensors = [x for x in flat if isinstance(x, tuple | np.ndarray)]
    return {k for k, x in enumerate(tensors) if isinstance(x, tuple)}


def is_differentiable(value: Value) -> bool:
    """Whether a value is a tensor of floats or complex numbers."""
    return not value.is_token and value.dtype.kind in "fc"


def wide_case(case: Case) -> Case:
    """The case with random operands in the widest dtype of their kind."""
    wide = {"c64": "c128", "c128": "c128", "f16": "f64", "bf16": "f64", "f32": "f64", "": "f64"}
    dtype = wide.get(case.sample.dtype, case.sample.dtype)
    return dataclasses.replace(case, sample=dataclasses.replace(case.sample, dtype=dtype))


def wide_operand(x: Any) -> Any:
    """An operand with floats as float64 and complex numbers as complex128."""
    if isinstance(x, list):
        return [wide_operand(e) for e in x]
    if not is_continuous(x):
        return x
    return x.astype(WIDE["c" if x.dtype.kind == "c" else "f"])


def has_gradient(case: Case) -> bool:
    """Whether there is something to compare."""
    sample: Sample = case.sample
    return sample.grad and case.cls.has("vjp") and not case.cls.effect


GRADIENTS = [wide_case(c) for c in CASES if has_gradient(c)]


@pytest.mark.parametrize("cases", by_op(GRADIENTS))
def test_gradient_agrees_with_differences(cases: list[Case]) -> None:
    each(cases, lambda case: check(case, symbolic=False))


@pytest.mark.parametrize("cases", by_op(GRADIENTS))
def test_gradient_with_symbolic_sizes_agrees_with_differences(cases: list[Case]) -> None:
    each(cases, lambda case: check(case, symbolic=True))


def check(case: Case, symbolic: bool) -> None:
    """Compare, for each operand by itself, the change of the results along a random direction."""
    operands = [wide_operand(x) for x in make_operands(case)]
    try:
        graph = build(case, operands, symbolic)
    except OpError as e:
        raise Refused(f"not in float64, or not with unknown sizes: {e}") from e
    arguments = list(graph.module.body.arguments)
    outputs = [k for k, v in enumerate(graph.results) if is_differentiable(v)]
    inputs = [k for k, a in enumerate(graph.arrays) if is_continuous(a)]
    if not outputs or not inputs:
        return
    random = random_arguments(case)
    rng = np.random.default_rng(0)
    sizes = bind(graph)
    forward = Interpreter(graph.module, sizes)
    base = forward.run(*graph.arrays)
    cotangents = [random_like(base[k], rng) for k in outputs]
    directions = {k: random_like(graph.arrays[k], rng) for k in inputs}
    by_output = dict(zip(outputs, cotangents, strict=True))
    expected = {k: difference(forward, graph.arrays, k, directions[k], by_output) for k in inputs}
    gradients = Gradients(graph, outputs).run(cotangents, sizes)
    for k in inputs:
        gradient, array = gradients[arguments[k]], graph.arrays[k]
        if gradient is None:
            assert k not in random or abs(expected[k]) < 1e-6, f"no gradient for argument {k}, whose change matters"
            continue
        assert (gradient.shape, gradient.dtype) == (array.shape, array.dtype)
        scale = np.abs(gradient * directions[k]).sum()
        assert_close(pairing(gradient, directions[k]), expected[k], scale, case)


def assert_close(got: float, expected: float, scale: float, case: Case) -> None:
    """Up to the error of the difference quotient, `scale` being the size of the terms."""
    limit = 2e-7 * case.sample.tolerance * max(1.0, float(scale), abs(expected))
    assert abs(got - expected) <= limit, f"vjp gives {got}, differences {expected} (limit {limit:.2g})"


def pairing(ct: Array, change: Array) -> float:
    """How much a change matters to a cotangent."""
    return float(np.sum(ct * change).real)


def random_like(array: Array, rng: np.random.Generator) -> Array:
    """Normal random numbers in the shape and dtype of an array."""
    made = rng.standard_normal(array.shape)
    return made + 1j * rng.standard_normal(array.shape) if array.dtype.kind == "c" else np.asarray(made)


def difference(
    forward: Interpreter, arrays: list[Array], k: int, direction: Array, cotangents: dict[int, Array]
) -> float:
    """The change of the results, as it matters to the cotangents, per change of operand k along a direction."""
    before, after = (
        forward.run(*arrays[:k], np.asarray(arrays[k] + step * direction), *arrays[k + 1 :]) for step in (-STEP, STEP)
    )
    return sum(pairing(ct, (after[j] - before[j]) / (2 * STEP)) for j, ct in cotangents.items())


def bind(graph: Built) -> dict[str, int]:
    """The values of the symbols in the types of the arguments."""
    return {
        str(symbol): n
        for argument, array in zip(graph.module.body.arguments, graph.arrays, strict=True)
        for symbol, n in zip(argument.shape, array.shape, strict=True)
        if isinstance(symbol, dims.Dim)
    }


class Gradients:
    """The graph of a case extended by its op's `vjp` rule."""

    def __init__(self, graph: Built, outputs: list[int]) -> None:
        self.graph = graph
        module, operation = graph.module, graph.results[0].op
        assert operation is not None
        self.arguments = list(module.body.arguments)
        cotangents: list[Value | None] = [None] * len(graph.results)
        for k in outputs:
            cotangents[k] = module.body.add_argument(graph.results[k].type, f"ct{k}")
        groups = zip(operation.op.group(operation.operands), operation.op.operands.values(), strict=True)
        grouped = [part for part, spec in groups if not spec.token]
        with building(module):
            made = operation.op.vjp(*cotangents, *grouped)
            self.gradients = by_operand(operation, grouped, made)
        module.body.results = tuple(g for g in self.gradients.values() if g is not None)

    def run(self, cotangents: list[Array], sizes: dict[str, int]) -> dict[Value, Array | None]:
        """The gradient of each argument; None where the rule says there is none."""
        arrays = iter(Interpreter(self.graph.module, sizes).run(*self.graph.arrays, *cotangents))
        found = {v: None if g is None else next(arrays) for v, g in self.gradients.items()}
        return {v: found.get(v) for v in self.arguments}


def by_operand(operation: Operation, grouped: list[Any], made: Any) -> dict[Value, Value | None]:
    """What a `vjp` rule gave, by operand that is an argument, summed where operands were broadcast."""
    pairs: list[tuple[Any, Any]] = []
    flat = [v for v in operation.operands if not v.is_token]
    for part, given in zip(grouped, made, strict=True) if len(made) == len(grouped) else zip(flat, made, strict=True):
        if isinstance(part, tuple):
            pairs += zip(part, given if isinstance(given, tuple | list) else [given], strict=True)
        else:
            pairs.append((part, given))
    gradients: dict[Value, Value | None] = {}
    for operand, gradient in pairs:
        if operand is not None and operand.op is None and is_differentiable(operand):
            gradients[operand] = None if gradient is None else F.unbroadcast(gradient, operand)
    return gradients
