"""Inputs that are settings: small ones that decide which branch a model takes."""

from __future__ import annotations

from onnx import GraphProto, ValueInfoProto


def possible_settings(graph: GraphProto) -> list[str]:
    """Inputs small enough to compile a program per value of theirs: those of one dim at most."""
    initialized = {t.name for t in graph.initializer}
    return [i.name for i in graph.input if i.name not in initialized and _is_small(i)]


def deciding_settings(graph: GraphProto) -> list[str]:
    """Those of them that conditions of If nodes depend on, where these depend on nothing else that a run brings."""
    possible = possible_settings(graph)
    sources: dict[str, frozenset[str]] = {"": frozenset(), **{t.name: frozenset() for t in graph.initializer}}
    sources.update({name: frozenset([name]) for name in possible})
    found: set[str] = set()
    for node in graph.node:
        known = [sources.get(name) for name in node.input]
        if node.op_type == "Shape":
            known = []  # sizes are there before any value is
        if any(k is None for k in known):
            continue
        union = frozenset[str]().union(*(k for k in known if k is not None))
        if node.op_type == "If":
            found |= union
        elif not any(a.HasField("g") for a in node.attribute):  # a graph inside may use other names
            sources.update({name: union for name in node.output})
    return [name for name in possible if name in found]


def _is_small(info: ValueInfoProto) -> bool:
    return info.type.WhichOneof("value") == "tensor_type" and len(info.type.tensor_type.shape.dim) <= 1
