"""Every op as a method of Graph. `op_methods.pyi`, which scripts/make_docs.py generates, says their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stitchwork.ir.graph import Module
from stitchwork.ops import FUNCTIONS
from stitchwork.ops._op import building


class OpMethods:
    """The ops, building into `module`."""

    module: Module


def _method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: OpMethods, *args: Any, **kwargs: Any) -> Any:
        with building(self.module):
            return function(*args, **kwargs)

    method.__name__ = name
    method.__qualname__ = f"Graph.{name}"
    method.__doc__ = function.__doc__
    return method


for _name, _function in FUNCTIONS.items():
    setattr(OpMethods, _name, _method(_name, _function))
