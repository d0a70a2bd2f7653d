"""Constants, variables, and the order of effects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stitchwork.ir.dtypes import as_dtype
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TOKEN, TensorType, TokenType, Type
from stitchwork.loops.expr import Axis, Buffer, Expr
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Op, Operand, Sample, operand, sample, tokens


class Constant(Op, name="constant", internal=True):
    """A tensor known at compile time."""

    value: Any

    def infer(self) -> TensorType:
        return TensorType(as_dtype(self.value.dtype), self.value.shape)

    def numpy(self) -> Array:
        return self.value


class ReadVariable(Op, name="read_variable", internal=True):
    """What a variable holds at this point: after the assigns among its tokens, before all others of the run."""

    variable: str
    type: Any
    order: Operand = tokens()
    effect = "read"

    def infer(self) -> TensorType:
        return self.type


class Assign(Op, name="assign_variable", internal=True):
    """Write a variable. The result is a token; the write happens where that is a target or a control dependency."""

    value: Operand = operand("...", "any")
    order: Operand = tokens()
    variable: str
    type: Any
    effect = "write"

    def infer(self, value: TensorType) -> TokenType:
        if value != self.type:
            raise self.fail("the value does not fit the variable", expected=str(self.type), got=str(value))
        return TOKEN


class After(Op, name="after", internal=True):
    """The same tensor, available only once the tokens are."""

    x: Operand = operand("...", "any")
    order: Operand = tokens()

    def infer(self, x: TensorType) -> TensorType:
        return x

    def numpy(self, x: Array) -> Array:
        return x

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct,)


class Identity(Op, name="identity"):
    """The tensor itself, bit for bit."""

    x: Operand = operand("...", "any")
    alias = True

    def infer(self, x: TensorType) -> Type:
        return x

    def numpy(self, x: Array) -> Array:
        return np.array(x)

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        return x[out]

    def simplify(self, x: Value) -> Value:
        return x

    def vjp(self, ct: Value, x: Value) -> tuple[Value]:
        return (ct,)

    def shape_value(self, types: tuple[Any, ...], x: Any) -> Any:
        return x

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((3, 4))
        yield sample(())


class StopGradient(Op, name="stop_gradient"):
    """The tensor itself, a constant as far as gradients go."""

    x: Operand = operand("...", "any")
    alias = True

    def infer(self, x: TensorType) -> Type:
        return x

    def numpy(self, x: Array) -> Array:
        return np.array(x)

    def compute(self, out: tuple[Axis, ...], x: Buffer) -> Expr:
        return x[out]

    def simplify(self, x: Value) -> Value:
        return x

    def vjp(self, ct: Value, x: Value) -> tuple[None]:
        return (None,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(((3, 4),), {}, grad=False)


identity, stop_gradient = F.identity, F.stop_gradient
