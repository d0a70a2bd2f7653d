"""Functions of arrays, traced once for each combination of dtypes and ranks and then run as compiled programs."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast, overload

import numpy as np

from stitchwork.api._trees import Node, Structure, flatten, paths, static, unflatten
from stitchwork.api.graph import Graph
from stitchwork.errors import FeedError, GraphError
from stitchwork.ir import dtypes
from stitchwork.ir.dtypes import DType, as_dtype
from stitchwork.ir.graph import Array, Module, Value
from stitchwork.ops._build import constant
from stitchwork.ops._op import building, current_module
from stitchwork.runtime.cache import BoundedCache
from stitchwork.runtime.executable import Executable
from stitchwork.runtime.options import CompileOptions
from stitchwork.runtime.tensor_data import TensorData

_EXECUTABLES = 64  # that one function keeps
_NUMBERS = (bool, int, float, complex)


@dataclass(frozen=True)
class _Call:
    """Arguments taken apart: what decides the program, and the arrays it runs on."""

    structure: Structure
    arrays: list[Array]

    @property
    def key(self) -> Any:
        return self.structure, tuple([(a.dtype, a.ndim) for a in self.arrays])


@dataclass(frozen=True)
class _Program:
    """A compiled function for one key, and the structure of its result."""

    executable: Executable
    result: Structure


class Function:
    """A Python function of tensors as a compiled one; see `function`."""

    def __init__(
        self, call: Callable[..., Any], static_argnames: Sequence[str], options: CompileOptions | None
    ) -> None:
        functools.update_wrapper(self, call)
        self._call, self._options = call, options
        self.name = getattr(call, "__name__", type(call).__name__)
        self._signature = inspect.signature(call)
        self._static = frozenset(static_argnames)
        known = self._signature.parameters
        unknown = [n for n in static_argnames if n not in known]
        if unknown:
            raise GraphError(self.name, f"`static_argnames` names `{unknown[0]}`, which is no argument",
                             expected=", ".join(known), got=", ".join(static_argnames))  # fmt: skip
        self._names = [p.name for p in known.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._programs: BoundedCache[Any, _Program] = BoundedCache(_EXECUTABLES)
        self._compiled = 0

    @property
    def compile_count(self) -> int:
        """How many programs were compiled so far."""
        return self._compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Results for arrays as TensorData; on tensors of a graph, or while a graph is traced, the result's tensors."""
        module = _graph_of(args, kwargs)
        if module is not None:
            return self._inlined(module, args, kwargs)
        call = self._taken_apart(args, kwargs)
        program = self._programs.get_or_make(call.key, lambda: self._compile(call))
        return unflatten(program.result, iter(program.executable.run(call.arrays)))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method: the instance is a static argument."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<function {self.name}{self._signature}, {self._compiled} compiled>"

    def lower(self, *args: Any, **kwargs: Any) -> Module:
        """The program for arguments like these, before any pass: arrays count by their dtype and rank."""
        graph, _, targets, _ = self._trace(self._taken_apart(args, kwargs))
        graph.module.body.results = tuple(targets)
        return graph.module

    # --- arguments ----------------------------------------------------------------------------------------------------
    def _taken_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        if kwargs or self._static:
            args, kwargs = self._bound(args, kwargs)
        leaves: list[Any] = []
        positional = [self._flatten(n, x, leaves) for n, x in zip(self._names_of(args), args, strict=True)]
        keyword = [self._flatten(n, x, leaves) for n, x in kwargs.items()]
        structure = Node(tuple, (), (Node(tuple, (), tuple(positional)), Node(dict, tuple(kwargs), tuple(keyword))))
        return _Call(structure, _as_arrays(self.name, structure, leaves))

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call in one form, whatever was given by keyword. Raises FeedError where the arguments do not fit."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as e:
            raise FeedError(
                self.name, "the arguments do not fit", expected=f"{self.name}{self._signature}", got=str(e)
            ) from None
        return bound.args, bound.kwargs

    def _names_of(self, args: tuple[Any, ...]) -> list[str]:
        extra = len(args) - len(self._names)
        return [*self._names[: len(args)], *(f"argument {k}" for k in range(len(args) - max(extra, 0), len(args)))]

    def _flatten(self, name: str, x: Any, leaves: list[Any]) -> Structure:
        made = static(x) if name in self._static else flatten(x, _is_leaf, leaves)
        try:
            hash(made)
        except TypeError:
            raise FeedError(
                self.name,
                f"`{name}` holds something that cannot be used as a static value",
                expected="arrays, numbers, lists, tuples and dicts of them, or hashable values",
                got=repr(x)[:80],
                hint="a static argument must be hashable: give a tuple in place of a list",
            ) from None
        return made

    # --- tracing ------------------------------------------------------------------------------------------------------
    def _compile(self, call: _Call) -> _Program:
        graph, placeholders, targets, result = self._trace(call)
        executable = graph.compile(targets, feeds=placeholders, options=self._options)
        self._compiled += 1
        return _Program(executable, result)

    def _trace(self, call: _Call) -> tuple[Graph, list[Value], list[Value], Structure]:
        graph = Graph(self.name)
        placeholders = [
            graph.placeholder((None,) * a.ndim, a.dtype, name)
            for a, name in zip(call.arrays, self._labels(call.structure), strict=True)
        ]
        args, kwargs = unflatten(call.structure, iter(placeholders))
        with building(graph.module):
            made = self._call(*args, **kwargs)
            found: list[Any] = []
            result = flatten(made, lambda x: isinstance(x, Value) or _is_leaf(x), found)
            targets = [x if isinstance(x, Value) else graph.constant(x) for x in found]
        return graph, placeholders, targets, result

    def _labels(self, structure: Structure) -> list[str]:
        assert isinstance(structure, Node)
        positional, keyword = (cast("Node", c) for c in structure.children)
        names = [*self._names_of(positional.children), *keyword.keys]
        children = (*positional.children, *keyword.children)
        return [label for n, c in zip(names, children, strict=True) for label in paths(c, n)]

    def _inlined(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function's operations as part of a graph; arrays among the arguments become constants."""

        def place(name: str, x: Any) -> Any:
            if name in self._static:
                return x
            leaves: list[Any] = []
            structure = flatten(x, lambda leaf: isinstance(leaf, Value) or _is_leaf(leaf), leaves)
            return unflatten(structure, iter([_constant(self.name, name, leaf, module) for leaf in leaves]))

        args, kwargs = self._bound(args, kwargs)
        with building(module):
            given = [place(n, x) for n, x in zip(self._names_of(args), args, strict=True)]
            return self._call(*given, **{n: place(n, x) for n, x in kwargs.items()})


def _is_array(x: Any) -> bool:
    return isinstance(x, np.ndarray | np.generic | TensorData) or (
        not isinstance(x, type) and (hasattr(x, "__dlpack__") or hasattr(x, "__array__"))
    )


def _is_leaf(x: Any) -> bool:
    return _is_array(x) or isinstance(x, _NUMBERS)


def _graph_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Module | None:
    """The graph that a call is part of: that of a tensor among the arguments, or the one that is being traced."""
    found: list[Any] = []
    for x in (*args, *kwargs.values()):
        if type(x) is not np.ndarray:
            flatten(x, lambda leaf: isinstance(leaf, Value) or hasattr(leaf, "read_in"), found)
    return found[0].module if found else current_module()


def _constant(op: str, what: str, leaf: Any, module: Module) -> Any:
    if isinstance(leaf, Value) or not _is_array(leaf):
        return leaf
    return constant(module, np.array(_as_array(op, what, leaf)))


def _as_array(op: str, what: str, x: Any) -> Array:
    """An array-like as a NumPy array, without a copy where it allows that. Raises FeedError."""
    if isinstance(x, TensorData):
        return x.numpy()
    try:
        array = np.from_dlpack(x) if hasattr(x, "__dlpack__") and not hasattr(x, "__array__") else np.asarray(x)
        as_dtype(array.dtype)
    except (TypeError, ValueError, RuntimeError, BufferError) as e:
        raise FeedError(
            op,
            f"`{what}` is not an array of numbers",
            expected="an array, or something with DLPack or __array__",
            got=f"{type(x).__name__}: {e}",
        ) from None
    return array


def _as_arrays(op: str, structure: Node, leaves: list[Any]) -> list[Array]:
    """Leaves as arrays. Python numbers take a dtype that the arrays beside them do not change for."""
    arrays: list[Array | None] = [
        x
        if type(x) is np.ndarray and x.dtype.kind in "biufc"
        else _as_array(op, "an argument", x)
        if _is_array(x)
        else None
        for x in leaves
    ]
    if all(a is not None for a in arrays):
        return cast("list[Array]", arrays)
    own = [as_dtype(a.dtype) for a in arrays if a is not None]
    wide = functools.reduce(dtypes.promote, [d for d in own if d.is_float] or [dtypes.float32])
    return [_number(x, wide) if a is None else a for x, a in zip(leaves, arrays, strict=True)]


def _number(x: Any, wide: DType) -> Array:
    """A Python number as an array: int as i32 (i64 where it must), float as `wide`, complex as that of `wide`."""
    if isinstance(x, bool):
        return np.asarray(x)
    if isinstance(x, int):
        return np.asarray(x, np.int32 if -(2**31) <= x < 2**31 else np.int64)
    if isinstance(x, float):
        return np.asarray(x, wide.numpy)
    return np.asarray(x, np.complex128 if wide is dtypes.float64 else np.complex64)


@overload
def function(call: Callable[..., Any], /) -> Function: ...


@overload
def function(
    *, static_argnames: str | Sequence[str] = (), options: CompileOptions | None = None
) -> Callable[[Callable[..., Any]], Function]: ...


def function(
    call: Callable[..., Any] | None = None,
    /,
    *,
    static_argnames: str | Sequence[str] = (),
    options: CompileOptions | None = None,
) -> Any:
    """Compile a Python function of tensors. A decorator: `@sw.function` or `@sw.function(static_argnames="axis")`.

    The function is traced with placeholders in place of arrays and may use all ops, operators and other such functions.
    Arguments and results are arrays (NumPy, TensorData, DLPack, `__array__`), Python numbers, and nested lists, tuples
    and dicts of these; results come as TensorData. One program serves all sizes: a new one is compiled only for other
    dtypes, ranks, nesting or static values. Static are the arguments named by `static_argnames` and everything that is
    no array, number or container (strings, None, dtypes, ...); they must be hashable. An argument left out keeps its
    Python default. A Python number is a tensor of rank 0: an int of i32, a float of the arguments' float dtype (f32
    where there is none); where Python must know it, as for an axis, it has to be static.

    Called with tensors of a graph, or while a graph is traced, it adds its operations to that graph.
    """
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    if call is None:
        return functools.partial(Function, static_argnames=names, options=options)
    return Function(call, names, options)
