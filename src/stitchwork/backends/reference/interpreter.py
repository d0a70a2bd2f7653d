"""The reference backend: every op's `numpy` rule, nothing else. Slow, and the definition of what is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from stitchwork.ir.graph import Array, Block, Module, Operation, Value
from stitchwork.ir.told import bound_by
from stitchwork.ops._op import Op


class Interpreter:
    """Runs a module on arrays. `sizes` gives the symbols their values, and takes those that the run tells; `state`
    holds the variables."""

    def __init__(self, module: Module, sizes: Mapping[str, int], state: dict[str, Array] | None = None) -> None:
        self.module, self.sizes = module, dict(sizes)
        self.state = state if state is not None else {n: v.initial.copy() for n, v in module.variables.items()}

    def run(self, *inputs: Array) -> list[Array]:
        """Results of the body for its arguments, in order."""
        return self.run_block(self.module.body, inputs, {})

    def run_block(self, block: Block, arguments: tuple[Any, ...], outer: dict[Value, Any]) -> list[Any]:
        """Results of a block; `outer` holds the values of the blocks around it."""
        env = dict(outer)
        env.update(zip(block.arguments, arguments, strict=True))
        for operation in block.operations:
            results = self._run_operation(operation, env)
            if operation.op.binds:
                self._bind(operation, results)
            env.update(zip(operation.results, results, strict=True))
        return [env[v] for v in block.results]

    def _run_operation(self, operation: Operation, env: dict[Value, Any]) -> tuple[Any, ...]:
        op = operation.op.substituted(self.sizes)
        operands = [env[v] for v in operation.operands]
        if op.effect:
            return (self._run_effect(op, operands),)
        if operation.regions:
            regions = [self._region(r, env) for r in operation.regions]
            return tuple(_as_results(op.numpy(*operands, regions=regions), operation))
        given = [v for v, s in zip(op.group(operands), op.operands.values(), strict=True) if not s.token]
        with np.errstate(all="ignore"):
            return tuple(_as_results(op.numpy(*given), operation))

    def _bind(self, operation: Operation, results: tuple[Any, ...]) -> None:
        """Give the size that the operation tells its value."""
        symbol = bound_by(operation)
        for value, array in zip(operation.results, results, strict=True):
            self.sizes.update((symbol, m) for n, m in zip(value.shape, array.shape, strict=True) if str(n) == symbol)

    def _region(self, block: Block, env: dict[Value, Any]) -> Callable[..., list[Any]]:
        def call(*args: Any) -> list[Any]:
            return self.run_block(block, args, env)

        return call

    def _run_effect(self, op: Op, operands: list[Any]) -> Any:
        name = getattr(op, "variable")  # noqa: B009  # every op with an effect names its variable
        if op.effect == "read":
            return self.state[name].copy()
        self.state[name] = np.array(operands[0])
        return None


def _as_results(made: Any, operation: Operation) -> list[Array]:
    many: list[Any] = list(cast("list[Any]", made)) if isinstance(made, tuple | list) else [made]
    for value, array in zip(operation.results, many, strict=True):
        assert np.asarray(array).dtype == value.dtype.numpy, (
            f"{operation.op.name}: {np.asarray(array).dtype} for {value.type}"
        )
    return [np.asarray(a) for a in many]
