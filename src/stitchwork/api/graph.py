"""Graphs: what a person builds, compiles and runs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import numpy as np

from stitchwork import autodiff, pipeline
from stitchwork.api.device import Device
from stitchwork.api.op_methods import OpMethods
from stitchwork.api.variable import Variable
from stitchwork.backends.cpu.backend import CpuBackend
from stitchwork.backends.cpu.pool import default_pool, pool_for
from stitchwork.errors import GraphError, OpError, user_location
from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import DType, as_dtype, float32
from stitchwork.ir.graph import Block, GuardKey, Module, Value, VariableState
from stitchwork.ir.rewrite import Rewriter
from stitchwork.ir.told import binders, drop_unbound, needs
from stitchwork.ir.types import TOKEN, TensorType
from stitchwork.ops import control_flow
from stitchwork.ops._build import as_array, constant, order_after
from stitchwork.ops._op import building
from stitchwork.ops.memory import Assign
from stitchwork.ops.optimizer import sgd
from stitchwork.passes.specialize import specialize
from stitchwork.runtime.binding import bind_symbols
from stitchwork.runtime.cache import BoundedCache
from stitchwork.runtime.executable import Executable, NativeProgram, VariableStore, shape_of
from stitchwork.runtime.options import CompileOptions
from stitchwork.runtime.tensor_data import TensorData

_EXECUTABLES = 32  # executables that `Graph.run` keeps


class Graph(OpMethods):
    """A graph of tensor operations. Every op is a method; operators on tensors work too."""

    def __init__(self, name: str = "main") -> None:
        self.module = Module(name)
        self._store = VariableStore()
        self._executables: BoundedCache[Any, Executable] = BoundedCache(_EXECUTABLES)

    # --- tensors ------------------------------------------------------------------------------------------------------
    def placeholder(self, shape: Sequence[Any], dtype: Any = float32, name: str = "") -> Value:
        """An input. A size is an int, a name (equal names, equal sizes) or None (any size). Raises GraphError."""
        if name and any(v.name == name for v in self.module.body.arguments):
            raise GraphError("placeholder", f"the name `{name}` is taken")
        try:
            sizes = tuple(self._size(n) for n in shape)
            type_ = TensorType(as_dtype(dtype), sizes)
        except (TypeError, ValueError) as e:
            raise GraphError(
                "placeholder",
                "shape or dtype is not valid",
                expected="sizes as int >= 0, name or None; a dtype",
                got=f"{shape!r}, {dtype!r}",
                hint=str(e),
            ) from None
        return self.module.body.add_argument(type_, name)

    def _size(self, n: Any) -> Size:
        return dims.symbol(self.module.fresh_symbol()) if n is None else dims.as_size(n)

    def constant(self, value: Any, dtype: Any = None, shape: Sequence[int] | None = None) -> Value:
        """A tensor known now: an array, number or nested list, of `dtype` and filled to `shape` where given."""
        wanted = _dtype("constant", dtype)
        array = as_array("constant", "value", value, wanted)
        if wanted is not None:
            array = array.astype(wanted.numpy)
        if shape is not None:
            try:
                array = np.broadcast_to(array, tuple(shape))
            except (TypeError, ValueError) as e:
                raise OpError(
                    "constant", "the value does not fit the shape", expected=str(tuple(shape)), got=str(e)
                ) from None
        return constant(self.module, array)

    def variable(self, initial: Any, dtype: Any = None, name: str = "") -> Variable:
        """State that outlives a run, starting as `initial`."""
        array = as_array("variable", "initial", initial, _dtype("variable", dtype))
        label = name or f"variable_{len(self.module.variables)}"
        if label in self.module.variables:
            raise GraphError("variable", f"the name `{label}` is taken")
        state = VariableState(
            label, TensorType(as_dtype(array.dtype), array.shape), np.ascontiguousarray(array).reshape(array.shape)
        )
        self.module.variables[label] = state
        return Variable(self.module, state, self._store)

    def assign(self, variable: Variable, value: Any) -> Value:
        """Write a variable. Returns a token: the write happens in runs that have it as a target or depend on it."""
        if not isinstance(variable, Variable):  # pyright: ignore[reportUnnecessaryIsInstance]  # a user may pass anything
            raise GraphError(
                "assign",
                "the first argument is not a variable",
                expected="what `Graph.variable` made",
                got=repr(variable),
            )
        if variable.module is not self.module:
            raise GraphError("assign", f"`{variable.name}` belongs to another graph")
        new = control_flow.as_value("assign", "value", value, variable.dtype, self.module)
        op = Assign(variable=variable.name, type=variable.state.type, segments=(1, len(self.module.order)))
        op.infer(new.tensor)
        return self.module.block.append(op, (new, *self.module.order), (TOKEN,), (), user_location()).results[0]

    def apply_sgd(self, learning_rate: Any, variable: Variable, gradient: Any) -> Value:
        """Write `variable - learning_rate * gradient` to the variable. Returns a token, as `assign`."""
        return self.assign(variable, sgd(learning_rate, variable, gradient))

    def gradients(self, primary: Value, wrt: Sequence[Value | Variable], seed: Any = None) -> list[Value]:
        if primary.module is not self.module:
            raise GraphError("gradients", "`primary` is a tensor of another graph", got=repr(primary))
        return autodiff.gradients(primary, wrt, seed)

    gradients.__doc__ = autodiff.gradients.__doc__

    assign_variable = assign

    def read_variable(self, variable: Variable) -> Value:
        """What a variable holds at this point, as using it does: see Variable."""
        if variable.module is not self.module:
            raise GraphError("read_variable", f"`{variable.name}` belongs to another graph")
        return variable.read()

    def variable_from_tensor(self, tensor: Value, name: str = "") -> Variable:
        """State that starts as what `tensor` is now. Raises FeedError where that depends on a placeholder."""
        (initial,) = self.run([], targets=[tensor])
        return self.variable(initial.numpy(), name=name)

    # --- order --------------------------------------------------------------------------------------------------------
    def control_dependency(self, dependent: Any, depends_on: Sequence[Value] | Value) -> Any:
        """`dependent`, available only once the operations `depends_on` are done, which it makes happen.

        dependent: a tensor, a list of them, or a callable that builds them; ops built inside the callable (reads of
        variables among them) come after. depends_on: assigns, or tensors.
        """
        tokens = self._tokens(depends_on)
        if callable(dependent):
            with self._following(tokens):
                return cast("Callable[[], Any]", dependent)()
        if isinstance(dependent, list | tuple):
            return [self.control_dependency(d, depends_on) for d in cast("list[Any]", dependent)]
        value = control_flow.as_value("control_dependency", "dependent", dependent, None, self.module)
        return order_after(value, tokens)

    def control_dependencies(self, depends_on: Sequence[Value] | Value) -> AbstractContextManager[None]:
        """Ops built inside the `with` block come after the operations `depends_on`, and make them happen."""
        return self._following(self._tokens(depends_on))

    @contextmanager
    def _following(self, tokens: tuple[Value, ...]) -> Generator[None]:
        with self._building(), self.module.following(tokens):
            yield

    def _tokens(self, depends_on: Any) -> tuple[Value, ...]:
        tokens = _as_list(depends_on)
        for v in tokens:
            if not isinstance(v, Value):
                raise GraphError(
                    "control_dependency",
                    "`depends_on` holds something else",
                    expected="assigns or tensors",
                    got=repr(v),
                )
            if v.module is not self.module:
                raise GraphError("control_dependency", "`depends_on` holds a tensor of another graph", got=repr(v))
            if not v.block.encloses(self.module.block):
                raise GraphError(
                    "control_dependency", "`depends_on` holds what was made inside a block that has ended", got=repr(v)
                )
        return tuple(tokens)

    @contextmanager
    def _building(self) -> Generator[None]:
        with building(self.module):
            yield

    # --- control flow -------------------------------------------------------------------------------------------------
    def if_else(self, predicate: Any, then: Callable[[], Any], otherwise: Callable[[], Any] | None = None) -> Any:
        with self._building():
            return control_flow.if_else(predicate, then, otherwise)

    def while_loop(self, initial: Any, before: Callable[..., Any], after: Callable[..., Any]) -> Any:
        with self._building():
            return control_flow.while_loop(initial, before, after)

    def for_loop(
        self, iterations: Any = None, initial: Any = (), body: Callable[..., Any] | None = None, **limits: Any
    ) -> Any:
        with self._building():
            return control_flow.for_loop(iterations, initial, body, **limits)

    if_else.__doc__, while_loop.__doc__ = control_flow.if_else.__doc__, control_flow.while_loop.__doc__
    for_loop.__doc__ = control_flow.for_loop.__doc__

    # --- compiling and running ----------------------------------------------------------------------------------------
    def compile(
        self,
        targets: Any,
        feeds: Mapping[Value, Any] | Sequence[Value] | None = None,
        device: str | Device = "cpu",
        options: CompileOptions | None = None,
    ) -> Executable:
        """Compile the graph for some targets: tensors, whose values `run` returns, and assigns, which it does.

        feeds: the placeholders that runs will give, in order, as a list, or a dict to arrays or types whose sizes the
        program may be specialised to. Default: every placeholder that the targets need, in the order of their making.
        """
        Device.parse(device)
        chosen = options or CompileOptions()
        pool = pool_for(chosen.threads) if chosen.threads else default_pool()
        shapes = feeds if isinstance(feeds, Mapping) else None
        given = list(feeds) if isinstance(feeds, Mapping) else None if feeds is None else _as_list(feeds)
        module, placeholders = self._extract(targets, given)

        def program(of: Module) -> NativeProgram:
            compiled = pipeline.run(of, CpuBackend(iteration_limit=chosen.iteration_limit))
            return NativeProgram(of, compiled, pool, self._store, can_fail=chosen.iteration_limit is not None)

        symbolic = any(not v.tensor.is_static for v in placeholders)
        if shapes is None or chosen.disable_type_inference or not symbolic:
            return Executable(program(module), placeholders)
        known = tuple(shape_of(shapes[v]) for v in placeholders)
        sizes = bind_symbols([v.tensor for v in placeholders], known, [v.name for v in placeholders])
        return Executable(program(specialize(module, sizes)), placeholders, known, lambda: program(module))

    def run(
        self, feeds: Mapping[Any, Any] | Sequence[Any] = (), targets: Any = (), device: str | Device = "cpu"
    ) -> list[TensorData]:
        """Compile for the targets on first use, and run. At most 32 executables are kept."""
        wanted = _as_list(targets)
        key = (tuple(wanted), device)
        return self._executables.get_or_make(key, lambda: self.compile(wanted, device=device)).run(feeds)

    def _extract(self, targets: Any, feeds: Any) -> tuple[Module, list[Value]]:
        """A module of its own for some targets, and the placeholders that are its inputs."""
        wanted = [self._target(t) for t in _as_list(targets)]
        needed = _needed(wanted, self.module)
        arguments = [v for v in self.module.body.arguments if v in needed] if feeds is None else list(feeds)
        for v in arguments:
            if not isinstance(v, Value) or v not in self.module.body.arguments:
                raise GraphError("compile", "`feeds` names something that is no placeholder of this graph", got=repr(v))
        if len(set(arguments)) != len(arguments):
            raise GraphError("compile", "`feeds` names a placeholder twice", got=", ".join(map(repr, arguments)))
        missing = [v for v in self.module.body.arguments if v in needed and v not in arguments]
        if missing:
            raise GraphError(
                "compile", "a placeholder that the targets need is not among `feeds`", got=", ".join(map(repr, missing))
            )
        return _Extract(self.module, arguments, wanted).run(), arguments

    def _target(self, target: Any) -> Value:
        value = target.read() if isinstance(target, Variable) else target
        if not isinstance(value, Value):
            raise GraphError(
                "compile", "a target is not a tensor", expected="tensors or assigns of this graph", got=repr(target)
            )
        if value.module is not self.module:
            raise GraphError("compile", "a target is a tensor of another graph", got=repr(target))
        if value.block is not self.module.body:
            raise GraphError(
                "compile",
                "a target is a tensor made inside a block",
                got=repr(target),
                hint="return it from the block that makes it",
            )
        return value


def _dtype(op: str, dtype: Any) -> DType | None:
    try:
        return None if dtype is None else as_dtype(dtype)
    except TypeError as e:
        raise OpError(op, "`dtype` is not a dtype", expected="a dtype or its name", got=f"{dtype!r}: {e}") from None


class _Extract(Rewriter):
    """A copy with the chosen placeholders as arguments."""

    def __init__(self, module: Module, arguments: list[Value], targets: list[Value]) -> None:
        super().__init__(module, lambda _o, _v: None)
        self.arguments, self.targets = arguments, targets
        self.needed = _needed(targets, module)

    def run(self) -> Module:
        body = self.source.body
        for v in self.arguments:
            self._argument(v, self.target.body)
        with self.target.inside(self.target.body):
            for operation in body.operations:
                self._operation(operation)
        self.target.body.results = tuple(self.values[v] for v in self.targets)
        asked, kept = set(_guards_of(body)), set(_guards_of(self.target.body))
        guards = self.target.guards  # those that only operations left out asked for go with them
        self.target.guards = {k: g for k, g in guards.items() if k in kept or k not in asked}
        drop_unbound(self.target)
        return self.target

    def _operation(self, operation: Any) -> None:
        if operation.block is not self.source.body or any(v in self.needed for v in operation.results):
            super()._operation(operation)


def _as_list(targets: Any) -> list[Any]:
    return list(cast("list[Any]", targets)) if isinstance(targets, list | tuple) else [targets]


def _guards_of(block: Block) -> Iterator[GuardKey]:
    for operation in block.operations:
        yield from operation.guards
        for region in operation.regions:
            yield from _guards_of(region)


def _needed(targets: list[Value], module: Module) -> set[Value]:
    """Every value that the targets depend on."""
    from stitchwork.loops.stitch import free_values

    known = binders(module)
    found: set[Value] = set()
    pending = list(targets)
    while pending:
        v = pending.pop()
        if v in found:
            continue
        found.add(v)
        if v.op is not None:
            pending.extend(needs(v.op, known))
            for region in v.op.regions:
                pending.extend(free_values(region))
    return found
