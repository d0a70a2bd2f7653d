"""Turning a call of an op into operations of a graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from typing import Any, cast

import numpy as np

from stitchwork.errors import GraphError, OpError, user_location
from stitchwork.ir import dtypes
from stitchwork.ir.dims import Dim
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import OPERATORS, Module, Value
from stitchwork.ir.told import symbols_in
from stitchwork.ir.types import TensorType, Type
from stitchwork.ops._op import REGISTRY, Op, Operand, building, check_operands, current_module

_CONTENT_LIMIT = 64  # elements of an integer constant that are followed as sizes


def apply(cls: type[Op], *args: Any, **kwargs: Any) -> Any:
    """Add the op to the graph of its operands: a value, or a tuple of values for several results."""
    grouped, attrs = _bind(cls, args, kwargs)
    module = _module_of(cls, grouped)
    values = _convert(cls, grouped, module)
    return build(cls, values, attrs, module)


def build(cls: type[Op], grouped: Sequence[Any], attrs: dict[str, Any], module: Module) -> Any:
    """As `apply`, for operands that are values (None where left out, tuples where variadic)."""
    types = tuple(_type_of(v) for v in grouped)
    _check_attributes(cls, attrs)
    check_operands(cls, _plain(cls, types), module)
    with building(module):
        attrs = cls.normalize(types, {k: canonical(v) for k, v in attrs.items()})
        op = cls(segments=_segments(cls, grouped), **attrs)
        results = op.infer(*(t for t, s in zip(types, cls.operands.values(), strict=True) if not s.token))
    many = results if isinstance(results, tuple) else (results,)
    if module.bounds:
        _refuse_hidden_sizes(op, many, module)
    flat = flatten(grouped)
    operation = module.block.append(op, flat, many, (), user_location())
    _follow_sizes(op, types, grouped, operation.results)
    made = operation.results
    if module.order and not cls.effect and all(not v.is_token for v in made):
        made = tuple(order_after(v, module.order) for v in made)
    return made if isinstance(results, tuple) else made[0]


def _refuse_hidden_sizes(op: Op, results: tuple[Type, ...], module: Module) -> None:
    """Raises GraphError for a size that is known only inside a block that has ended."""
    for name in symbols_in((*results, *(getattr(op, a) for a in op.attributes()))):
        if not module.is_visible(name, module.block):
            raise GraphError(
                op.name,
                f"the size `{name}` is known only inside the block that finds it, which has ended",
                hint="use the size inside that block",
            )


def order_after(value: Value, tokens: tuple[Value, ...]) -> Value:
    """The same tensor, available only once the tokens are."""
    cls = REGISTRY["after"]
    op = cls(segments=(1, len(tokens)))
    made = value.module.block.append(op, (value, *tokens), (value.type,), (), user_location()).results[0]
    made.content = value.content
    return made


def flatten(grouped: Sequence[Any]) -> tuple[Value, ...]:
    """Grouped operands as one flat tuple."""
    flat: list[Value] = []
    for part in grouped:
        if isinstance(part, tuple):
            flat.extend(cast("tuple[Value, ...]", part))
        elif part is not None:
            flat.append(part)
    return tuple(flat)


def _plain(cls: type[Op], types: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if s.token else t for t, s in zip(types, cls.operands.values(), strict=True))


def _segments(cls: type[Op], grouped: Sequence[Any]) -> tuple[int, ...] | None:
    if not any(s.optional or s.variadic for s in cls.operands.values()):
        return None
    return tuple(len(cast("tuple[Any, ...]", p)) if isinstance(p, tuple) else int(p is not None) for p in grouped)


def _type_of(part: Any) -> Any:
    if isinstance(part, tuple):
        return tuple(_type_of(p) for p in cast("tuple[Any, ...]", part))
    return None if part is None else part.type


def _follow_sizes(op: Op, types: tuple[Any, ...], grouped: Sequence[Any], results: tuple[Value, ...]) -> None:
    """Note what integer results hold symbolically."""
    if len(results) != 1 or results[0].is_token or results[0].dtype.kind not in "iub" or not op.has("shape_value"):
        return
    results[0].content = op.shape_value(types, *map(_content_of, grouped))


def _content_of(part: Any) -> Any:
    if isinstance(part, tuple):
        return tuple(v.content for v in cast("tuple[Value, ...]", part))
    return None if part is None else part.content


# --- arguments ----------------------------------------------------------------------------------------------------
def _bind(cls: type[Op], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    names = [n for n, s in cls.operands.items() if not s.token]
    attributes = cls.attributes()
    kwargs = {k: v for k, v in kwargs.items() if k != "name" or "name" in attributes}
    order = list(signature(cls).parameters)
    if len(args) > len(order):
        raise OpError(cls.name, "too many arguments", expected=_signature(cls), got=f"{len(args)} positional arguments")
    given = dict(zip(order, args, strict=False))
    for spelling, v in kwargs.items():
        k = cls.synonyms.get(spelling, spelling)
        if k not in order:
            raise OpError(cls.name, f"unknown argument `{k}`", expected=_signature(cls))
        if k in given:
            raise OpError(cls.name, f"argument `{k}` given twice", expected=_signature(cls))
        given[k] = v
    for n in names:
        spec = cls.operands[n]
        if given.get(n) is None and not spec.optional:
            raise OpError(cls.name, f"operand `{n}` is missing", expected=_signature(cls))
    grouped = [() if cls.operands[n].token else given.get(n) for n in cls.operands]
    return grouped, {a: given[a] for a in attributes if a in given}


def _check_attributes(cls: type[Op], attrs: dict[str, Any]) -> None:
    for f in fields(cls):
        required = f.default is MISSING and f.default_factory is MISSING
        if f.name != "segments" and required and f.name not in attrs:
            raise OpError(cls.name, f"attribute `{f.name}` is missing", expected=_signature(cls))


def _signature(cls: type[Op]) -> str:
    return f"{cls.name}{signature(cls)}"


def canonical(x: Any) -> Any:
    """An attribute in the form that ops store: tuples for lists, Python numbers for NumPy's, DTypes for its dtypes."""
    if isinstance(x, list | tuple):
        return tuple(canonical(e) for e in cast("list[Any]", x))
    if isinstance(x, np.bool_ | np.integer | np.floating | np.complexfloating):
        return cast("np.generic", x).item()
    if isinstance(x, np.dtype) or (isinstance(x, type) and issubclass(x, np.generic)):
        return dtypes.as_dtype(cast("Any", x))
    return cast("Any", x)


def _module_of(cls: type[Op], grouped: Sequence[Any]) -> Module:
    found: Module | None = None
    for part in grouped:
        for v in cast("Sequence[Any]", part) if isinstance(part, list | tuple) else (part,):
            module = getattr(v, "module", None)
            if module is None:
                continue
            if found is not None and module is not found:
                raise GraphError(
                    cls.name,
                    "operands belong to different graphs",
                    expected="tensors of one graph",
                    hint="build the whole computation in one Graph, or feed one graph's result to the other",
                )
            found = module
    found = found or current_module()
    if found is None:
        raise GraphError(
            cls.name,
            "no operand is a tensor of a graph",
            expected="at least one tensor",
            hint="call the method of a Graph, or use the function inside one decorated with sw.function",
        )
    return found


def _convert(cls: type[Op], grouped: Sequence[Any], module: Module) -> list[Any]:
    """Operands as values: arrays and numbers become constants, variables are read, dtypes are promoted."""
    targets = _common_dtypes(cls, grouped)
    out: list[Any] = []
    for (n, spec), part in zip(cls.operands.items(), grouped, strict=True):
        dtype = targets.get(spec.same) if spec.same else None
        if spec.token:
            out.append(module.order)
        elif spec.variadic:
            if not isinstance(part, list | tuple):
                raise OpError(cls.name, f"`{n}` is not a list", expected="a list of tensors", got=type(part).__name__)
            out.append(tuple(_as_value(cls, n, spec, p, dtype, module) for p in cast("list[Any]", part)))
        else:
            out.append(None if part is None else _as_value(cls, n, spec, part, dtype, module))
    return out


def _common_dtypes(cls: type[Op], grouped: Sequence[Any]) -> dict[str, DType]:
    """The dtype that the operands of each letter meet in: tensors and arrays decide, Python numbers follow."""
    found: dict[str, DType] = {}
    numbers: dict[str, list[Any]] = {}
    for (name, spec), part in zip(cls.operands.items(), grouped, strict=True):
        if not spec.same or part is None or spec.token:
            continue
        for p in cast("list[Any]", part) if spec.variadic and isinstance(part, list | tuple) else (part,):
            if isinstance(p, bool | int | float | complex):
                numbers.setdefault(spec.same, []).append(p)
            else:
                dtype = _own_dtype(cls.name, name, p)
                first = found.setdefault(spec.same, dtype)
                if first is not dtype and cls.promotes:
                    found[spec.same] = dtypes.promote(first, dtype)
    for letter, many in numbers.items():
        for number in many:
            found[letter] = _with_number(found.get(letter), number)
    return found


def _own_dtype(op: str, name: str, x: Any) -> DType:
    """The dtype of an operand that is no Python number. Raises OpError for what is no tensor."""
    if isinstance(x, Value) or hasattr(x, "read_in"):
        _refuse_token(op, name, x)
        return x.dtype
    try:
        return _array_dtype(x)
    except (TypeError, ValueError):
        return dtypes.as_dtype(as_array(op, name, x, None).dtype)  # raises what explains it


def _refuse_token(op: str, name: str, x: Any) -> None:
    if isinstance(x, Value) and x.is_token:
        raise OpError(op, f"`{name}` is an assign, not a tensor", got=repr(x),
                      hint="read the variable after it: inside `with g.control_dependencies([assign])`")  # fmt: skip


def _array_dtype(x: Any) -> DType:
    array = np.asarray(x)
    if array.dtype == np.float64 and not isinstance(x, np.ndarray | np.generic):
        return dtypes.float32  # nested Python lists of floats
    return dtypes.as_dtype(array.dtype)


def _with_number(dtype: DType | None, number: Any) -> DType:
    """The dtype of an op between a tensor and a Python number: the tensor's, unless the number is of a higher kind."""
    kind = (
        "b"
        if isinstance(number, bool)
        else "i"
        if isinstance(number, int)
        else "f"
        if isinstance(number, float)
        else "c"
    )
    default = {"b": dtypes.bool_, "i": dtypes.int32, "f": dtypes.float32, "c": dtypes.complex64}[kind]
    if dtype is None:
        return default
    rank = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}
    if rank[kind] <= rank[dtype.kind]:
        return dtype
    return dtypes.complex128 if kind == "c" and dtype is dtypes.float64 else default


def _as_value(cls: type[Op], name: str, spec: Operand, x: Any, dtype: DType | None, module: Module) -> Value:
    if hasattr(x, "read_in"):  # a variable, read by use
        x = x.read_in(module)
    if isinstance(x, Value):
        if not x.block.encloses(module.block):
            raise GraphError(
                cls.name,
                f"`{name}` is a tensor made inside a block that has ended",
                hint="return it from the block (if_else, for_loop, while_loop) and use the result",
            )
        _refuse_token(cls.name, name, x)
        if dtype is not None and cls.promotes and x.dtype is not dtype:
            return build(REGISTRY["cast"], [x], {"dtype": dtype}, module)
        return x
    return constant(module, as_array(cls.name, name, x, dtype))


def as_array(op: str, name: str, x: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    """An array from a number, list or array-like, in `dtype` where a Python number or list leaves that open."""
    if isinstance(x, Dim):
        raise OpError(op, f"`{name}` is a size, not a tensor", got=str(x), hint="use shape_of to have sizes as tensors")
    try:
        array = np.asarray(x)
        own = dtypes.as_dtype(array.dtype)
    except (TypeError, ValueError) as e:
        raise OpError(
            op, f"`{name}` is not a tensor", expected="a tensor, array or number", got=f"{type(x).__name__}: {e}"
        ) from None
    if isinstance(x, np.ndarray | np.generic):
        target = dtype if dtype is not None and dtypes.promote(own, dtype) is dtype else own
    else:
        target = dtype or _array_dtype(x)
        if target.is_integer and array.size and not _fits(array, target):
            raise OpError(op, f"`{name}` does not fit the dtype", expected=f"a number of {target}", got=str(x))
    return array.astype(target.numpy)


def _fits(array: np.ndarray[Any, Any], dtype: DType) -> bool:
    return bool(np.all(array == array.astype(dtype.numpy))) and not (dtype.kind == "u" and bool(np.any(array < 0)))


def constant(module: Module, array: np.ndarray[Any, Any]) -> Value:
    """A constant operation; its integer content is followed as sizes where it is small."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    array.flags.writeable = False
    type_: Type = TensorType(dtypes.as_dtype(array.dtype), array.shape)
    op: Op = cast("Any", REGISTRY["constant"])(value=array)
    value = module.block.append(op, (), (type_,), (), user_location()).results[0]
    if value.dtype.kind in "iub" and array.ndim <= 1 and array.size <= _CONTENT_LIMIT:
        value.content = int(array) if array.ndim == 0 else tuple(int(e) for e in array)
    return value


# --- functions ------------------------------------------------------------------------------------------------------
def signature(cls: type[Op]) -> inspect.Signature:
    """The public signature: operands, then attributes; `name` labels the result."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    params = [
        inspect.Parameter(n, kind, default=None if s.optional else inspect.Parameter.empty)
        for n, s in cls.operands.items()
        if not s.token
    ]
    optional = any(s.optional for s in cls.operands.values())
    for a in cls.attributes():
        default = cls.__dataclass_fields__[a].default
        plain = inspect.Parameter.empty if default is MISSING else default
        keyword = inspect.Parameter.KEYWORD_ONLY if optional and plain is inspect.Parameter.empty else kind
        params.append(inspect.Parameter(a, keyword, default=plain))
    params.sort(key=lambda p: (p.kind, p.default is not inspect.Parameter.empty))
    return inspect.Signature(params)


def function(cls: type[Op]) -> Callable[..., Any]:
    """The public function of an op: operands, then attributes, by position or keyword."""

    def call(*args: Any, name: str = "", **kwargs: Any) -> Any:
        if name and "name" in cls.attributes():
            kwargs["name"] = name
        made = apply(cls, *args, **kwargs)
        if name and isinstance(made, Value):
            made.name = name
        return made

    call.__name__ = call.__qualname__ = cls.name
    call.__doc__ = cls.__doc__
    call.__signature__ = signature(cls)
    if cls.operator:
        OPERATORS[cls.operator] = call
    return call


class Functions:
    """Every op's function as an attribute: what `vjp` and `decompose` rules build with, without import cycles."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        made = function(REGISTRY[name])
        setattr(self, name, made)
        return made


F: Any = Functions()
