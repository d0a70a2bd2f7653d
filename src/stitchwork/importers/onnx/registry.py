"""The table of ONNX ops: one small function per op and version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stitchwork.ir.graph import Value
from stitchwork.ops._build import F as _F

if TYPE_CHECKING:
    from stitchwork.importers.onnx.node import Node

F: Any = _F  # every op of ours, by name

# What a handler gives: the node's results in order (None for one that is left out), or its only result.
Results = Value | Sequence[Value | None]
Handler = Callable[["Node"], Results]

_TABLE: dict[tuple[str, str], list[tuple[int, Handler]]] = {}


def onnx_op(*names: str, domain: str = "", since: int = 1) -> Callable[[Handler], Handler]:
    """Register a handler for ops of these names from version `since` of the domain on, up to the next registered."""

    def register(handler: Handler) -> Handler:
        for name in names:
            versions = _TABLE.setdefault((domain, name), [])
            versions.append((since, handler))
            versions.sort(key=lambda v: v[0], reverse=True)
        return handler

    return register


def find(domain: str, name: str, opset: int) -> Handler | None:
    """The handler for an op at a version of its domain; None where there is none."""
    return next((handler for since, handler in _TABLE.get((domain, name), ()) if since <= opset), None)


def supported(domain: str = "") -> list[str]:
    """Names of the ops of a domain that have a handler."""
    return sorted(name for d, name in _TABLE if d == domain)
