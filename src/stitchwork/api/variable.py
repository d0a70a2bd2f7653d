"""Variables: the only state of a graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from stitchwork.errors import GraphError
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import OPERATORS, Array, Module, Value, VariableState
from stitchwork.ops.memory import ReadVariable
from stitchwork.runtime.executable import VariableStore


class Variable:
    """A tensor that lives on the device between runs and is shared by all executables of its graph.

    Used as an operand it is read: as it was when the run started, or, for ops that come after an assign by a control
    dependency, as that assign left it. It changes only through `Graph.assign`.
    """

    __array_ufunc__ = None

    def __init__(self, module: Module, state: VariableState, store: VariableStore) -> None:
        self.module, self.state, self._store = module, state, store

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def shape(self) -> tuple[Size, ...]:
        return self.state.type.shape

    @property
    def dtype(self) -> DType:
        return self.state.type.dtype

    def read_in(self, module: Module) -> Value:
        """A read at this point of `module`, which must be the variable's own."""
        if module is not self.module:
            raise GraphError("variable", f"`{self.name}` belongs to another graph")
        op = ReadVariable(variable=self.name, type=self.state.type, segments=(len(module.order),))
        value = module.block.append(op, module.order, (self.state.type,)).results[0]
        value.name = self.name
        return value

    def read(self) -> Value:
        """A read as a tensor of the graph."""
        return self.read_in(self.module)

    @property
    def value(self) -> Array:
        """A copy of what the variable holds now. Assigning to it replaces the content (same shape and dtype)."""
        with self._store.lock:
            return self._current().copy()

    @value.setter
    def value(self, new: Any) -> None:
        array = np.asarray(new)
        if array.shape != self.state.initial.shape:
            raise GraphError(
                "variable",
                f"`{self.name}` cannot change its shape",
                expected=str(self.state.type),
                got=str(array.shape),
            )
        with self._store.lock:
            self._current()[...] = array.astype(self.state.initial.dtype)

    def _current(self) -> Array:
        self._store.ensure(self.module)
        return self._store.arrays[self.name]

    def __repr__(self) -> str:
        return f"<variable {self.name}: {self.state.type}>"


def _forward(name: str, reflected: bool = False) -> Any:
    def operator(self: Variable, *others: Any) -> Any:
        mine = self.read()
        return OPERATORS[name](*others, mine) if reflected else OPERATORS[name](mine, *others)

    return operator


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"):
    setattr(Variable, f"__{_name}__", _forward(_name))
    setattr(Variable, f"__r{_name}__", _forward(_name, True))
for _name in ("lt", "le", "gt", "ge", "neg", "abs", "invert", "getitem"):
    setattr(Variable, f"__{_name}__", _forward(_name))
