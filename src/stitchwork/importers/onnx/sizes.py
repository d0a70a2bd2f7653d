"""Names of sizes: from what ONNX files write for a dim to symbols."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stitchwork.ir import dims
from stitchwork.ir.dims import Dim
from stitchwork.ir.graph import Module


class SizeNames:
    """Equal names are equal sizes; a dim without a name, or with one that means "unknown" (-1, ?, 0), is any size."""

    def __init__(self, module: Module, fixed: Mapping[str, int]) -> None:
        self.module, self.fixed = module, fixed
        self.symbols: dict[str, str] = {}

    def size_of(self, dim: Any) -> int | Dim:
        """The size that a dim of a shape message means."""
        kind = dim.WhichOneof("value")
        if kind == "dim_value" and dim.dim_value > 0:
            return int(dim.dim_value)
        if kind == "dim_param" and dim.dim_param in self.fixed:
            return self.fixed[dim.dim_param]
        name = self._symbol(dim.dim_param) if kind == "dim_param" else ""
        return dims.symbol(name or self.module.fresh_symbol())

    def _symbol(self, written: str) -> str:
        """An identifier for a name; empty where it names nothing. Different names give different identifiers."""
        if written in self.symbols:
            return self.symbols[written]
        plain = re.sub(r"\W+", "_", written, flags=re.ASCII).strip("_")
        if not plain or plain.isdigit():
            return ""
        plain = f"n_{plain}" if plain[0].isdigit() or plain in dims.FUNCTIONS else plain
        taken = set(self.symbols.values())
        unique, k = plain, 2
        while unique in taken:
            unique, k = f"{plain}_{k}", k + 1
        self.symbols[written] = unique
        return unique
