"""Nested lists, tuples and dicts as a structure and its leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Leaf:
    """Where a tensor stands in a structure."""


@dataclass(frozen=True, slots=True)
class Static:
    """A Python value that is part of a structure. 1, 1.0 and True differ here."""

    kind: type
    value: Any


@dataclass(frozen=True, slots=True)
class Node:
    """A list, tuple (named ones too) or dict; `keys` are a dict's."""

    kind: type
    keys: tuple[Any, ...]
    children: tuple[Structure, ...]


Structure = Leaf | Static | Node
LEAF = Leaf()


def flatten(tree: Any, is_leaf: Callable[[Any], bool], leaves: list[Any]) -> Structure:
    """The structure of `tree`; its leaves are appended to `leaves`. What is neither leaf nor container is static."""
    if isinstance(tree, dict):
        items = cast("dict[Any, Any]", tree)
        children = tuple([flatten(x, is_leaf, leaves) for x in items.values()])
        return Node(dict, tuple(items), children)
    if isinstance(tree, list | tuple):
        many = cast("list[Any]", tree)
        return Node(type(many), (), tuple([flatten(x, is_leaf, leaves) for x in many]))
    if is_leaf(tree):
        leaves.append(tree)
        return LEAF
    return static(tree)


def static(x: Any) -> Static:
    """A Python value as a part of a structure."""
    return Static(x.__class__, x)


def unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    """The tree of a structure with these leaves."""
    if isinstance(structure, Leaf):
        return next(leaves)
    if isinstance(structure, Static):
        return structure.value
    children = [unflatten(c, leaves) for c in structure.children]
    if structure.kind is dict:
        return dict(zip(structure.keys, children, strict=True))
    if hasattr(structure.kind, "_fields"):  # a named tuple takes its fields one by one
        return structure.kind(*children)
    return structure.kind(children)


def paths(structure: Structure, prefix: str) -> Iterator[str]:
    """How each leaf is reached, as in `params[0]['w']`."""
    if isinstance(structure, Leaf):
        yield prefix
    elif isinstance(structure, Node):
        keys = structure.keys or range(len(structure.children))
        for key, child in zip(keys, structure.children, strict=True):
            yield from paths(child, f"{prefix}[{key!r}]")
