"""From an ONNX graph to ours: names to values, nodes to ops, functions and subgraphs inlined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from stitchwork.api.graph import Graph
from stitchwork.errors import FeedError, OpError, StitchworkError, UnsupportedError
from stitchwork.importers.onnx import registry
from stitchwork.importers.onnx.follow import Follower
from stitchwork.importers.onnx.functions import body_of, expand
from stitchwork.importers.onnx.node import Node, label_of
from stitchwork.importers.onnx.proto import Tensors, dtype_of
from stitchwork.importers.onnx.sizes import SizeNames
from stitchwork.ir.graph import Array, Module, Value

_NODES = 1_000_000  # nodes that one import takes, those of functions counted at each call
_DEPTH = 32  # functions inside functions


class Scope:
    """The names of a graph and of those around it. Initializers become constants on first use."""

    def __init__(self, importer: Importer, uses: Counter[str], parent: Scope | None = None) -> None:
        self.importer, self.uses, self.parent = importer, uses, parent
        self.values: dict[str, Value] = {}
        self.initializers: dict[str, TensorProto] = {}

    def find(self, name: str) -> Value:
        """The value called so. Raises OpError where there is none."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.values.get(name)
            if found is not None:
                return found
            tensor = scope.initializers.get(name)
            if tensor is not None:
                made = self.importer.constant(self.importer.tensors.array(tensor))
                scope.values[name] = made
                return made
            scope = scope.parent
        raise OpError(
            "onnx",
            f"`{name}` is used before it is made",
            expected="an input, an initializer or the result of an earlier node",
        )


class Importer:
    """One import: the graph being built and what is known of it."""

    def __init__(
        self, model: ModelProto, tensors: Tensors, constants: Mapping[str, Array], sizes: Mapping[str, int]
    ) -> None:
        self.model, self.tensors, self.constants = model, tensors, constants
        self.graph = Graph(model.graph.name or "main")
        self.module: Module = self.graph.module
        self.follower = Follower(self.module)
        self.opsets = {o.domain if o.domain != "ai.onnx" else "": o.version for o in model.opset_import}
        self.functions: dict[tuple[str, str], FunctionProto] = {(f.domain, f.name): f for f in model.functions}
        self.names = SizeNames(self.module, sizes)
        # Convolutions with constant weights, by result: their node, weights and bias.
        self.convolutions: dict[Value, tuple[Node, Array, Array | None]] = {}
        self._count, self._depth = 0, 0
        self._shared: dict[tuple[Any, ...], Value] = {}

    def run(self) -> tuple[dict[str, Value], dict[str, Value]]:
        """Inputs and outputs by name."""
        graph = self.model.graph
        self.check_supported()
        scope = Scope(self, count_uses(graph))
        with self.graph._building():  # pyright: ignore[reportPrivateUsage]  # ops without operands go into this graph
            inputs = self._inputs(graph, scope)
            self.run_graph(graph, scope)
            outputs = {o.name: scope.find(o.name) for o in graph.output}
        return inputs, outputs

    def check_supported(self) -> None:
        """Raises UnsupportedError naming every op that has no handler."""
        missing: dict[str, list[str]] = {}
        for node in _all_nodes([*self.model.graph.node, *(n for f in self.model.functions for n in f.node)]):
            domain = _domain(node)
            if registry.find(domain, node.op_type, self.opset(domain)) is None and self._body(node, None) is None:
                key = f"{domain + '.' if domain else ''}{node.op_type} (opset {self.opset(domain)})"
                missing.setdefault(key, []).append(node.name or (node.output[0] if node.output else "?"))
        if missing:
            lines = [f"{op}: {_some(names)}" for op, names in missing.items()]
            raise UnsupportedError(
                "onnx",
                f"{len(missing)} op{'s' if len(missing) > 1 else ''} of the model cannot be imported",
                got="; ".join(lines),
            )

    def opset(self, domain: str) -> int:
        """The version of a domain that the model is written in."""
        return self.opsets.get(domain, 1 if domain else onnx.defs.onnx_opset_version())

    # --- inputs -----------------------------------------------------------------------------------------------------
    def _inputs(self, graph: GraphProto, scope: Scope) -> dict[str, Value]:
        made: dict[str, Value] = {}
        known = {t.name for t in graph.initializer}
        for info in graph.input:
            if info.name in self.constants:
                scope.values[info.name] = self.constant(self._given(info))
            elif info.name not in known:  # old files list initializers among the inputs
                made[info.name] = scope.values[info.name] = self._placeholder(info)
        stray = [n for n in self.constants if n not in scope.values]
        if stray:
            raise FeedError(
                "onnx",
                "`constants` names something that is no input",
                expected=", ".join(i.name for i in graph.input),
                got=", ".join(stray),
            )
        return made

    def _placeholder(self, info: ValueInfoProto) -> Value:
        kind = info.type.WhichOneof("value")
        if kind != "tensor_type":
            raise UnsupportedError(f"input `{info.name}`", "only tensors can be inputs", got=str(kind))
        tensor = info.type.tensor_type
        dtype = dtype_of(tensor.elem_type, f"input `{info.name}`")
        if not tensor.HasField("shape"):
            raise UnsupportedError(
                f"input `{info.name}`", "its rank is not declared", expected="a shape, whose sizes may be unknown"
            )
        return self.graph.placeholder([self.names.size_of(d) for d in tensor.shape.dim], dtype, info.name)

    def _given(self, info: ValueInfoProto) -> Array:
        tensor = info.type.tensor_type
        dtype = dtype_of(tensor.elem_type, f"input `{info.name}`")
        array = np.asarray(self.constants[info.name])
        if array.dtype != dtype.numpy and not (array.dtype.kind == dtype.numpy.kind or array.dtype.kind in "iu"):
            raise FeedError(
                "onnx", f"the constant for `{info.name}` has the wrong dtype", expected=str(dtype), got=str(array.dtype)
            )
        if tensor.HasField("shape") and array.ndim != len(tensor.shape.dim):
            raise FeedError(
                "onnx",
                f"the constant for `{info.name}` has the wrong rank",
                expected=str(len(tensor.shape.dim)),
                got=str(array.ndim),
            )
        return array.astype(dtype.numpy)

    # --- graphs and nodes -------------------------------------------------------------------------------------------
    def constant(self, array: Array) -> Value:
        """A constant that every block may use; equal small ones are shared."""
        if array.size > 16:
            return self.follower.constant(array)
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self._shared:
            self._shared[key] = self.follower.constant(array)
        return self._shared[key]

    def run_graph(self, graph: GraphProto, scope: Scope) -> None:
        """Import a graph's nodes; its inputs are in the scope already."""
        if graph.sparse_initializer:
            raise UnsupportedError("onnx", "sparse initializers", got=f"{len(graph.sparse_initializer)} of them")
        scope.initializers.update({t.name: t for t in graph.initializer if t.name not in scope.values})
        self.run_nodes(graph.node, scope)

    def subgraph(self, graph: GraphProto, scope: Scope, arguments: Sequence[Value] = ()) -> list[Value]:
        """Results of a graph inside a node, imported where operations go now."""
        inner = Scope(self, scope.uses, scope)
        if len(arguments) != len(graph.input):
            raise OpError(
                "onnx",
                f"graph `{graph.name}` has the wrong number of inputs",
                expected=str(len(arguments)),
                got=str(len(graph.input)),
            )
        inner.values.update({i.name: v for i, v in zip(graph.input, arguments, strict=True)})
        self.run_graph(graph, inner)
        return [inner.find(o.name) for o in graph.output]

    def run_nodes(self, nodes: Sequence[NodeProto], scope: Scope) -> None:
        """Import nodes in order, binding their results in the scope."""
        for proto in nodes:
            self._count += 1
            if self._count > _NODES:
                raise UnsupportedError(
                    "onnx", "the model's functions unfold to too many nodes", expected=f"at most {_NODES:,}"
                )
            domain = _domain(proto)
            handler = registry.find(domain, proto.op_type, self.opset(domain))
            if handler is not None:
                self._run_node(Node(self, scope, proto, self.opset(domain)), handler)
            else:
                self._run_function(proto, scope)

    def _run_node(self, node: Node, handler: registry.Handler) -> None:
        block, guards = self.module.block, set(self.module.guards)
        start = len(block.operations)
        try:
            made = handler(node)
        except (UnsupportedError, FeedError):
            raise
        except StitchworkError as e:
            if e.op.endswith("`"):  # names its node already
                raise
            raise type(e)(
                node.label, f"{e.op}: {e.problem}", expected=e.expected, got=e.got, hint=e.hint, at=e.at
            ) from None
        except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as e:
            # What a handler does not check: an axis, a rank or an attribute that breaks ONNX's rules.
            raise OpError(node.label, "the node does not fit its operands", got=f"{type(e).__name__}: {e}") from e
        new = block.operations[start:]
        for operation in new:
            operation.location = node.label
        for key in set(self.module.guards) - guards:
            if " node `" not in self.module.guards[key].location:
                self.module.guards[key] = replace(self.module.guards[key], location=node.label)
        self.follower.note(new)
        results = [made] if isinstance(made, Value) else list(made)
        for k, name in enumerate(node.outputs):
            if not name:
                continue
            if k >= len(results) or results[k] is None:
                raise node.unsupported(f"result {k} (`{name}`) is not available")
            value = results[k]
            assert value is not None
            node.scope.values[name] = self.follower.settle(value)

    # --- functions ----------------------------------------------------------------------------------------------------
    def _body(self, node: NodeProto, inputs: Sequence[Value | None] | None) -> FunctionProto | None:
        local = self.functions.get((node.domain, node.op_type))
        return local if local is not None else body_of(node, self.opset(_domain(node)), inputs)

    def _run_function(self, proto: NodeProto, scope: Scope) -> None:
        inputs = [scope.find(n) if n else None for n in proto.input]
        function = self._body(proto, inputs)
        if function is None:
            raise UnsupportedError(
                label_of(proto),
                "cannot be imported with operands like these",
                got=", ".join(str(v.type) if v is not None else "-" for v in inputs),
            )
        if self._depth >= _DEPTH:
            raise OpError(label_of(proto), "functions call each other too deeply", expected=f"at most {_DEPTH} levels")
        nodes = expand(function, proto, self.opset(_domain(proto)))
        inner = Scope(self, count_node_uses(nodes, list(function.output)))
        inner.values.update({n: v for n, v in zip(function.input, inputs, strict=False) if v is not None})
        outer, self._depth = self.opsets, self._depth + 1
        self.opsets = {**outer, **{o.domain if o.domain != "ai.onnx" else "": o.version for o in function.opset_import}}
        try:
            self.run_nodes(nodes, inner)
        finally:
            self.opsets, self._depth = outer, self._depth - 1
        for name, inside in zip(proto.output, function.output, strict=False):
            if name:
                scope.values[name] = inner.find(inside)


def _some(names: Sequence[str]) -> str:
    """How many nodes, and the first three by name."""
    shown = ", ".join([*names[:3], *(["..."] if len(names) > 3 else [])])
    return f"{len(names)} node{'s' if len(names) > 1 else ''} ({shown})"


def _domain(node: NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def _all_nodes(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """Nodes, and those of the graphs inside them."""
    found: list[NodeProto] = []
    for node in nodes:
        found.append(node)
        for a in node.attribute:
            if a.type == AttributeProto.GRAPH:
                found.extend(_all_nodes(a.g.node))
    return found


def count_node_uses(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> Counter[str]:
    """How often each name is used."""
    uses = Counter(outputs)
    for node in _all_nodes(nodes):
        uses.update(node.input)
        for a in node.attribute:
            if a.type == AttributeProto.GRAPH:
                uses.update(o.name for o in a.g.output)
    return uses


def count_uses(graph: GraphProto) -> Counter[str]:
    """How often each name of a graph is used, in graphs inside its nodes too."""
    return count_node_uses(graph.node, [o.name for o in graph.output])
