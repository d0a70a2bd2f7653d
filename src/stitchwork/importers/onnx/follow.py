"""Following what small tensors hold while a model is imported, so that sizes computed by its nodes become sizes.

Tensors computed from constants alone are folded to arrays; others of up to 64 elements, of any dtype, are followed as
arrays of numbers and sizes (see numbers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from stitchwork.importers.onnx import numbers
from stitchwork.ir import dims
from stitchwork.ir.dims import Dim
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import Array, Module, Operation, Value, constant_array
from stitchwork.ops._build import constant

_LIMIT = 64  # elements of a tensor that is followed
_FOLD = 1024  # elements that a folded tensor may have whatever its operands'


class Follower:
    """What is known about the values of a module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.arrays: dict[Value, Array] = {}
        self.contents: dict[Value, Array | None] = {}

    def array(self, value: Value) -> Array | None:
        """A value that depends on constants only, as an array; else None."""
        found = constant_array(value)
        return self.arrays.get(value) if found is None else found

    def content(self, value: Value) -> Array | None:
        """What a small tensor holds, as an array of elements; None where nothing is known."""
        if value not in self.contents:
            self.contents[value] = self._content(value)
        return self.contents[value]

    def _content(self, value: Value) -> Array | None:
        array = self.array(value)
        if array is not None:
            return as_elements(array) if array.size <= _LIMIT and array.dtype.kind != "c" else None
        if value.content is None or not value.tensor.is_static:
            return None
        made = np.empty(cast("tuple[int, ...]", value.shape), object)
        for position in np.ndindex(made.shape):
            element: Any = value.content
            for p in position:
                element = element[p]
            made[position] = element
        return made

    def note(self, operations: Sequence[Operation]) -> None:
        """Learn what the results of new operations hold."""
        for operation in operations:
            if operation.op.effect or operation.regions or operation.op.name == "constant":
                continue
            if any(v.is_token for v in (*operation.operands, *operation.results)):
                continue
            if not self._fold(operation):
                self._follow(operation)

    def settle(self, value: Value) -> Value:
        """The value itself, or the constant that it was folded to."""
        array = self.arrays.get(value)
        return value if array is None or constant_array(value) is not None else self.constant(array)

    def constant(self, array: Array) -> Value:
        """A constant that every block may use."""
        with self.module.inside(self.module.body):
            return constant(self.module, array)

    def know(self, value: Value, content: Array) -> None:
        """Set what a value holds."""
        self.contents[value] = content
        if value.dtype.is_integer and value.rank <= 1 and all(isinstance(x, int | Dim) for x in content.flat):
            value.content = tuple(content) if content.ndim else content.item()

    def _fold(self, operation: Operation) -> bool:
        op = operation.op
        arrays = [self.array(v) for v in operation.operands]
        if (
            not op.has("numpy")
            or any(a is None for a in arrays)
            or any(_symbolic(getattr(op, a)) for a in op.attributes())
        ):
            return False
        known = cast("list[Array]", arrays)
        if not all(v.tensor.is_static for v in operation.results):
            return False
        size = sum(cast("int", v.tensor.elements) for v in operation.results)
        if size > max(_FOLD, 2 * sum(a.size for a in known)):
            return False
        with np.errstate(all="ignore"):
            made = op.numpy(*op.group(known))
        many: Sequence[Any] = cast("list[Any]", made) if isinstance(made, tuple | list) else [made]
        for value, array in zip(operation.results, many, strict=True):
            self.arrays[value] = np.asarray(array)
        return True

    def _follow(self, operation: Operation) -> None:
        if not all(_is_small(v) for v in operation.results):
            return
        name = operation.op.name
        if name == "shape_of":
            shape = np.empty(operation.operands[0].rank, object)
            shape[:] = operation.operands[0].shape
            return self.know(operation.results[0], shape)
        contents = [self.content(v) for v in operation.operands]
        if any(c is None for c in contents):
            return None
        known = cast("list[Array]", contents)
        if name in _MOVES:
            return self._move(operation, known)
        rule = _rule(operation)
        if rule is not None:
            self.know(operation.results[0], np.asarray(np.frompyfunc(rule, len(known), 1)(*known), object))
        elif name in _REDUCTIONS:
            self._reduce(operation, known[0])
        return None

    def _move(self, operation: Operation, known: list[Array]) -> None:
        op = operation.op
        if any(_symbolic(getattr(op, a)) for a in op.attributes()):
            return
        operands: list[Any] = list(known)
        for k in _MOVES[op.name]:  # indices must be numbers
            if not all(isinstance(x, int) for x in operands[k].flat):
                return
            operands[k] = operands[k].astype(np.int64)
        made = op.numpy(*op.group(operands))
        many: Sequence[Any] = cast("list[Any]", made) if isinstance(made, tuple | list) else [made]
        for value, content in zip(operation.results, many, strict=True):
            self.know(value, np.asarray(content, object))

    def _reduce(self, operation: Operation, x: Array) -> None:
        axes, keep = getattr(operation.op, "axes"), getattr(operation.op, "keepdims")  # noqa: B009
        combine, first = _REDUCTIONS[operation.op.name]
        moved = np.moveaxis(x, axes, range(len(axes)))
        rows = moved.reshape(-1, *moved.shape[len(axes) :])
        total = np.full(rows.shape[1:], first, object)
        for row in rows:
            total = np.asarray(np.frompyfunc(combine, 2, 1)(total, row), object)
        shape = [1 if d in axes else n for d, n in enumerate(x.shape) if keep or d not in axes]
        self.know(operation.results[0], total.reshape(shape))


def as_elements(array: Array) -> Array:
    """An array as an array of Python numbers."""
    wide = array.astype(np.float64) if array.dtype.kind not in "biuf" else array
    return wide.astype(object)


def _is_small(value: Value) -> bool:
    n = value.tensor.elements
    return isinstance(n, int) and n <= _LIMIT


def _symbolic(x: Any) -> bool:
    if isinstance(x, tuple):
        return any(map(_symbolic, cast("tuple[Any, ...]", x)))
    return isinstance(x, Dim)


# Ops that only move elements, and which of their operands are indices.
_MOVES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("reshape", "squeeze", "expand_dims", "flatten2d", "broadcast", "permute", "transpose", "slice"), ()
    ),
    **dict.fromkeys(("strided_slice", "slice_dim", "concat", "stack", "tile", "split", "split_equal", "reverse"), ()),
    **dict.fromkeys(("identity", "stop_gradient"), ()),
    **dict.fromkeys(("gather", "gather_nd", "gather_along_axis"), (1,)),
}


def _known(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, None where an argument is not known."""
    return lambda *args: None if any(a is None for a in args) else fn(*args)


def _select(predicate: Any, a: Any, b: Any) -> Any:
    if numbers.is_number(predicate):
        return a if predicate else b
    return a if a is b or (isinstance(a, int | Dim) and isinstance(b, int | Dim) and a == b) else None


def _negative(x: Any) -> Any:
    return numbers.subtract(0, x)


def _absolute(x: Any) -> Any:
    if isinstance(x, Dim):
        return x if dims.is_nonnegative(x) else None
    return abs(x) if numbers.is_number(x) else None


def _clamp(x: Any, low: Any, high: Any) -> Any:
    return numbers.minimum(numbers.maximum(x, low), high)


def _different(a: Any, b: Any) -> Any:
    return numbers.negation(numbers.compare("==")(a, b))


def _swapped(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(a: Any, b: Any) -> Any:
        return fn(b, a)

    return apply


def _of_truths(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(a: Any, b: Any) -> Any:
        return fn(numbers.truth(a), numbers.truth(b))

    return apply


_RULES: dict[str, Callable[..., Any]] = {
    "addition": numbers.add,
    "subtraction": numbers.subtract,
    "multiplication": numbers.multiply,
    "true_divide": numbers.divide,
    "floor_divide": numbers.floor_division,
    "floor_modulo": numbers.modulo,
    "negative": _negative,
    "absolute": _absolute,
    "floor": numbers.floor,
    "ceil": numbers.ceil,
    "truncate": numbers.truncate,
    "minimum": numbers.minimum,
    "minimum_nan_propagation": numbers.minimum,
    "maximum": numbers.maximum,
    "maximum_nan_propagation": numbers.maximum,
    "clamp": _clamp,
    "equal": numbers.compare("=="),
    "not_equal": _different,
    "less_than": numbers.compare("<"),
    "less_than_or_equal_to": numbers.compare("<="),
    "greater_than": _swapped(numbers.compare("<")),
    "greater_than_or_equal_to": _swapped(numbers.compare("<=")),
    "logical_not": numbers.negation,
    "logical_and": _of_truths(numbers.conjunction),
    "logical_or": _of_truths(numbers.disjunction),
}
_REDUCTIONS: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "reduction_sum": (_known(numbers.add), 0),
    "reduction_product": (_known(numbers.multiply), 1),
}


def _rule(operation: Operation) -> Callable[..., Any] | None:
    """What an elementwise operation does to elements; None for other operations."""
    name, result = operation.op.name, operation.results[0].dtype
    if name == "select":
        return _select
    if name == "cast":
        return _known(_conversion(operation.operands[0].dtype, result))
    if name == "division":
        return _known(numbers.truncated_division if result.is_integer else numbers.divide)
    found = _RULES.get(name)
    return None if found is None else _known(found)


def _conversion(source: DType, target: DType) -> Callable[[Any], Any]:
    if target.kind == "b":
        return numbers.truth
    if target.is_integer:
        return numbers.truncate if source.is_float else lambda x: int(x) if isinstance(x, bool) else x
    return lambda x: float(x) if isinstance(x, int) else x
