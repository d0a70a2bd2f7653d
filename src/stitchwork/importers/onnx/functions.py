"""Ops that are functions of other ops: those of the ONNX standard and a model's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TypeProto

from stitchwork.importers.onnx.proto import code_of
from stitchwork.ir.graph import Value

_DEFS: Any = onnx.defs  # its stubs lack half of what it has


def body_of(node: NodeProto, opset: int, inputs: Sequence[Value | None] | None) -> FunctionProto | None:
    """The standard's definition of an op by other ops, at a version of its domain; None where it has none.

    Some definitions depend on the operands' types; without `inputs` any definition is given, to tell that there is one.
    """
    try:
        schema = _DEFS.get_schema(node.op_type, opset, "" if node.domain == "ai.onnx" else node.domain)
    except _DEFS.SchemaError:
        return None
    function = FunctionProto()
    if schema.has_context_dependent_function:
        if inputs is None:
            return function
        types = [_type_of(v) for v in inputs]
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
        if not versions:
            return None
        text = schema.get_context_dependent_function_with_opset_version(versions[-1], node.SerializeToString(), types)
        function.ParseFromString(text)
        return function if function.node else None
    if not schema.has_function:
        return None
    versions = [v for v in schema.function_opset_versions if v <= opset]
    text = schema.get_function_with_opset_version(versions[-1]) if versions else b""
    if not text:
        return None
    function.ParseFromString(text)
    return function


def _type_of(value: Value | None) -> bytes:
    made = TypeProto()
    if value is not None:
        made.tensor_type.elem_type = code_of(value.dtype)
        for n in value.shape:
            dim = made.tensor_type.shape.dim.add()
            if isinstance(n, int):
                dim.dim_value = n
    return made.SerializeToString()


def expand(function: FunctionProto, call: NodeProto, opset: int) -> list[NodeProto]:
    """The nodes of a function with the caller's attributes in place."""
    given = {a.name: a for a in call.attribute}
    defaults = {**_schema_defaults(call, opset), **{a.name: a for a in function.attribute_proto}}
    return [_expanded(n, {**defaults, **given}, call.name or function.name) for n in function.node]


def _schema_defaults(call: NodeProto, opset: int) -> dict[str, AttributeProto]:
    try:
        schema = _DEFS.get_schema(call.op_type, opset, "" if call.domain == "ai.onnx" else call.domain)
    except _DEFS.SchemaError:
        return {}
    return {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}


def _expanded(node: NodeProto, given: dict[str, AttributeProto], caller: str) -> NodeProto:
    made = NodeProto()
    made.CopyFrom(node)
    made.name = f"{caller}/{node.name or (node.output[0] if node.output else node.op_type)}"
    del made.attribute[:]
    for a in node.attribute:
        if a.ref_attr_name:
            source = given.get(a.ref_attr_name)
            if source is None:
                continue  # an optional attribute that the caller leaves out
            copy = made.attribute.add()
            copy.CopyFrom(source)
            copy.name = a.name
            continue
        copy = made.attribute.add()
        copy.CopyFrom(a)
        if a.type == AttributeProto.GRAPH:
            _expand_graph(copy.g, given, caller)
    return made


def _expand_graph(graph: GraphProto, given: dict[str, AttributeProto], caller: str) -> None:
    nodes = [_expanded(n, given, caller) for n in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
