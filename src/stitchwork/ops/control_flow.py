"""Control flow inside the graph: if, while and for, their blocks given as Python callables.

A block is built once, when the op is. It may use any tensor made before it, in any enclosing block.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from stitchwork.errors import GraphError, OpError, user_location
from stitchwork.ir import dtypes
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import Block, Module, Value
from stitchwork.ir.told import symbols_in
from stitchwork.ir.types import TOKEN, TensorType, TokenType, Type
from stitchwork.ops._build import F, as_array, constant
from stitchwork.ops._op import Array, Op, Operand, building, current_module, operand, require_equal

Regions = Sequence[Callable[..., list[Any]]]


class IfElse(Op, name="if_else", internal=True):
    """The results of the first region where the predicate is not 0, else those of the second."""

    predicate: Operand = operand("", "any", "")

    def numpy(self, predicate: Array, regions: Regions) -> list[Array]:
        return regions[0]() if predicate != 0 else regions[1]()


class WhileLoop(Op, name="while_loop", internal=True):
    """Region 0 (before) maps the carried values to a predicate and results; region 1 (after) maps these results to the
    next carried values. The results of the first `before` whose predicate is 0 are the op's results."""

    carried: Operand = operand("...", "any", "", variadic=True)

    def numpy(self, *carried: Array, regions: Regions) -> list[Array]:
        values: list[Any] = list(carried)
        while True:
            predicate, *results = regions[0](*values)
            if predicate == 0:
                return results
            values = regions[1](*results)


class ForLoop(Op, name="for_loop", internal=True):
    """The region maps (index, carried values) to the next carried values, for index in range(lower, upper, step)."""

    lower: Operand = operand("", "index", "I")
    upper: Operand = operand("", "index", "I")
    step: Operand = operand("", "index", "I")
    carried: Operand = operand("...", "any", "", variadic=True)

    def numpy(self, lower: Array, upper: Array, step: Array, *carried: Array, regions: Regions) -> list[Array]:
        values: list[Any] = list(carried)
        for i in range(int(lower), int(upper), int(step)) if step > 0 else ():
            values = regions[0](np.asarray(i, lower.dtype), *values)
        return values


class NoEffect(Op, name="no_effect", internal=True):
    """A token that waits for nothing."""

    def infer(self) -> TokenType:
        return TOKEN

    def numpy(self) -> None:
        return None


def if_else(predicate: Any, then: Callable[[], Any], otherwise: Callable[[], Any] | None = None) -> Any:
    """The results of one of two blocks.

    predicate: a tensor with one element; not 0 chooses `then`. The blocks take nothing and return a tensor, a list of
    tensors, or (for their effect alone) the result of an assign; both must agree in number, dtypes and shapes.
    `otherwise` may be left out where `then` returns no tensor. Returns what the blocks return: one value, or a list.
    """
    module = _module("if_else", predicate)
    condition = scalar("if_else", "predicate", predicate, None, module)
    first, single = _trace("if_else", "then", module, then, ())
    if otherwise is None and any(not v.is_token for v in first.results):
        raise GraphError("if_else", "`otherwise` is missing", expected="both blocks, since `then` returns tensors")
    second, _ = _trace("if_else", "otherwise", module, otherwise or (lambda: _idle(module, first)), ())
    _fit_results("if_else", "`otherwise` must return what `then` does", _types(first), second)
    made = module.block.append(IfElse(), (condition,), _types(first), (first, second), user_location())
    return _unpack(made.results, single)


def while_loop(initial: Any, before: Callable[..., Any], after: Callable[..., Any]) -> Any:
    """Repeat while a predicate computed on the device holds.

    initial: the first carried values. before(*carried) returns (predicate, results): a tensor with one element, and a
    tensor or list of tensors. Where the predicate is not 0, after(*results) gives the next carried values, of the
    types of `initial`; where it is 0, `results` are the loop's results. A list, or one tensor where `results` is one.
    """
    values = _as_list(initial)
    module = _module("while_loop", *values)
    carried = _values("while_loop", "initial", values, module)
    single = [False]

    def first(*arguments: Value) -> list[Any]:
        predicate, results = _split_before(before(*arguments))
        single[0] = not isinstance(results, list | tuple)
        return [scalar("while_loop", "predicate", predicate, None, module), *_as_list(results)]

    head, _ = _trace("while_loop", "before", module, first, tuple(v.type for v in carried))
    results = _types(head)[1:]
    body, _ = _trace("while_loop", "after", module, after, results)
    _fit_results("while_loop", "`after` must return values of the types of `initial`", _types_of(carried), body)
    op = WhileLoop(segments=(len(carried),))
    made = module.block.append(op, carried, results, (head, body), user_location())
    return _unpack(made.results, single[0])


def for_loop(
    iterations: Any = None,
    initial: Any = (),
    body: Callable[..., Any] | None = None,
    *,
    lower: Any = None,
    upper: Any = None,
    step: Any = None,
) -> Any:
    """Repeat a block a number of times known when the loop starts.

    Either `iterations` (the index runs over 0, 1, ..., iterations - 1) or `lower`, `upper` and `step` (> 0; half-open);
    ints or tensors with one element. body(index, *carried) returns the next carried values, of the types of `initial`;
    the index is an i32 tensor (i64 where a bound is). Returns the last carried values: a list, or one tensor where
    `initial` is one. A step that is not positive runs no iteration.
    """
    if body is None:
        raise GraphError("for_loop", "`body` is missing", expected="body(index, *carried)")
    if (iterations is None) == (upper is None):
        raise GraphError(
            "for_loop", "the range is not clear", expected="`iterations`, or `upper` with `lower` and `step`"
        )
    bounds = [0 if lower is None else lower, iterations if upper is None else upper, 1 if step is None else step]
    values = _as_list(initial)
    module = _module("for_loop", *bounds, *values)
    carried = _values("for_loop", "initial", values, module)
    dtype = dtypes.int64 if any(getattr(b, "dtype", None) in (dtypes.int64, np.int64) for b in bounds) else dtypes.int32
    limits = tuple(
        scalar("for_loop", n, b, dtype, module) for n, b in zip(("lower", "upper", "step"), bounds, strict=True)
    )
    index: Type = TensorType(dtype, ())
    region, _ = _trace("for_loop", "body", module, body, (index, *_types_of(carried)))
    _fit_results("for_loop", "`body` must return values of the types of `initial`", _types_of(carried), region)
    op = ForLoop(segments=(1, 1, 1, len(carried)))
    made = module.block.append(op, (*limits, *carried), _types_of(carried), (region,), user_location())
    return _unpack(made.results, not isinstance(initial, list | tuple))


# --- shared by the three ----------------------------------------------------------------------------------------------
def _module(op: str, *values: Any) -> Module:
    for v in values:
        module = getattr(v, "module", None)
        if module is not None:
            return module
    module = current_module()
    if module is None:
        raise GraphError(op, "no operand is a tensor of a graph", hint="call the method of a Graph")
    return module


def _as_list(x: Any) -> list[Any]:
    return list(cast("list[Any]", x)) if isinstance(x, list | tuple) else [] if x is None else [x]


def _split_before(made: Any) -> tuple[Any, Any]:
    if not isinstance(made, tuple) or len(cast("tuple[Any, ...]", made)) != 2:
        raise GraphError(
            "while_loop",
            "`before` did not return two things",
            expected="(predicate, results)",
            got=repr(cast("object", made)),
        )
    return cast("tuple[Any, Any]", made)


def as_value(op: str, what: str, x: Any, dtype: DType | None, module: Module, *, token: bool = False) -> Value:
    """A value of `module` from a value, variable, array or number; an assign only where `token` says so."""
    if hasattr(x, "read_in"):
        x = x.read_in(module)
    if not isinstance(x, Value):
        return constant(module, as_array(op, what, x, dtype))
    if x.module is not module:
        raise GraphError(op, f"`{what}` is a tensor of another graph", got=repr(x))
    if not x.block.encloses(module.block):
        raise GraphError(op, f"`{what}` is a tensor made inside a block that has ended", got=repr(x))
    if x.is_token and not token:
        raise GraphError(op, f"`{what}` is an assign, not a tensor", got=repr(x))
    return x


def scalar(op: str, what: str, x: Any, dtype: DType | None, module: Module) -> Value:
    """A value of rank 0 (one-element tensors are reshaped), of `dtype` where that is given."""
    value = as_value(op, what, x, dtype, module)
    if value.rank:
        if any(n != 1 for n in value.shape):
            raise OpError(
                op, f"`{what}` has more than one element", expected="a tensor with one element", got=str(value.type)
            )
        value = F.reshape(value, ())
    if dtype is not None and value.dtype is not dtype:
        if not value.dtype.is_integer:
            raise OpError(op, f"`{what}` is not an integer", expected="an integer tensor", got=str(value.type))
        value = F.cast(value, dtype)
    return value


def _values(op: str, what: str, many: list[Any], module: Module) -> tuple[Value, ...]:
    with building(module):
        return tuple(as_value(op, f"{what}[{k}]", x, None, module) for k, x in enumerate(many))


def _trace(
    op: str, what: str, module: Module, block: Callable[..., Any], arguments: tuple[Type, ...]
) -> tuple[Block, bool]:
    """Build a region by calling `block` once; True where it returned one value rather than a list."""
    region = module.new_block()
    with building(module), module.inside(region):
        values = [region.add_argument(t) for t in arguments]
        _check_takes(op, what, block, values)
        made = block(*values)
        region.results = tuple(as_value(op, f"{what} result", x, None, module, token=True) for x in _as_list(made))
    _refuse_hidden_sizes(op, what, region)
    return region, not isinstance(made, list | tuple | type(None))


def _refuse_hidden_sizes(op: str, what: str, region: Block) -> None:
    """Raises GraphError where a block returns a tensor of a size that is found inside of it."""
    module, outside = region.module, region.parent
    assert outside is not None
    for value in region.results:
        hidden = [s for s in symbols_in(value.type) if not module.is_visible(s, outside)]
        if hidden:
            raise GraphError(
                op,
                f"`{what}` returns a tensor whose size `{hidden[0]}` is known only when the block has run",
                got=str(value.type),
                hint="return what is computed from it: a sum, a count, or a scatter into a tensor of known size",
            )


def _check_takes(op: str, what: str, block: Callable[..., Any], values: list[Value]) -> None:
    """Raises GraphError where a block does not take so many arguments."""
    try:
        known = inspect.signature(block)
    except (TypeError, ValueError):  # a built-in without one, or no callable: calling it tells
        return
    try:
        known.bind(*values)
    except TypeError:
        got = f"({', '.join(str(v.type) for v in values)})"
        raise GraphError(op, f"`{what}` does not take the values it gets", expected=f"{known}", got=got) from None


def _idle(module: Module, like: Block) -> list[Value]:
    return [module.block.append(NoEffect(), (), (TOKEN,), (), user_location()).results[0] for _ in like.results]


def _types(block: Block) -> tuple[Type, ...]:
    return tuple(v.type for v in block.results)


def _types_of(values: Sequence[Value]) -> tuple[Type, ...]:
    return tuple(v.type for v in values)


def _fit_results(op: str, problem: str, expected: tuple[Type, ...], region: Block) -> None:
    """Give a region's results the expected types: sizes that may agree do so by a check of each run."""
    got = _types(region)
    if got == expected:
        return
    with building(region.module), region.module.inside(region):
        if len(got) != len(expected) or not all(_may_agree(op, g, e) for g, e in zip(got, expected, strict=True)):
            same = not _differ_in_size(got, expected)
            raise GraphError(
                op,
                problem,
                expected=f"({', '.join(map(str, expected))})",
                got=f"({', '.join(map(str, got))})",
                hint="" if same else "sizes cannot change from one iteration or branch to another",
            )
        pairs = zip(region.results, expected, strict=True)
        region.results = tuple(
            v if v.type == t or isinstance(t, TokenType) else F.reshape(v, t.shape) for v, t in pairs
        )


def _differ_in_size(got: tuple[Type, ...], expected: tuple[Type, ...]) -> bool:
    """True where shapes are all that is different."""
    pairs = list(zip(got, expected, strict=False))
    same = all(isinstance(g, TensorType) and isinstance(e, TensorType) and g.dtype is e.dtype for g, e in pairs)
    return len(got) == len(expected) and same


def _may_agree(op: str, got: Type, expected: Type) -> bool:
    if got == expected:
        return True
    if (
        isinstance(got, TokenType)
        or isinstance(expected, TokenType)
        or (got.dtype, got.rank) != (expected.dtype, expected.rank)
    ):
        return False
    sizes = enumerate(zip(got.shape, expected.shape, strict=True))
    return all(require_equal(op, m, n, f"dim {d} is the same in each iteration or branch") for d, (m, n) in sizes)


def _unpack(results: tuple[Value, ...], single: bool) -> Any:
    return results[0] if single and len(results) == 1 else list(results)
