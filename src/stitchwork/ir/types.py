"""Types of values: tensors with symbolic sizes, and order tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import DType, by_name


@dataclass(frozen=True, slots=True)
class TensorType:
    """An element type and a shape, slowest dim first. The rank is always known; sizes may be symbolic."""

    dtype: DType
    shape: tuple[Size, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> Size:
        return dims.product(self.shape)

    @property
    def is_static(self) -> bool:
        return all(isinstance(n, int) for n in self.shape)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)

    def with_shape(self, shape: tuple[Size, ...]) -> TensorType:
        return TensorType(self.dtype, shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class TokenType:
    """Orders effects: a value of this type carries no data, only "this has happened"."""

    def __str__(self) -> str:
        return "token"


Type = TensorType | TokenType
TOKEN = TokenType()

_TENSOR = re.compile(r"(\w+)\[(.*)\]$")


def parse_type(text: str) -> Type:
    """Inverse of str() on types. Raises ValueError."""
    if text == "token":
        return TOKEN
    match = _TENSOR.match(text.strip())
    if match is None:
        raise ValueError(f"not a type: {text!r}")
    return TensorType(by_name(match.group(1)), tuple(dims.parse(s) for s in split_top_level(match.group(2))))


def split_top_level(text: str, separator: str = ",") -> list[str]:
    """Split at separators that are not inside brackets or quotes; an empty text gives no parts."""
    parts: list[str] = []
    depth, start, quote = 0, 0, ""
    for position, c in enumerate(text):
        if quote:
            quote = "" if c == quote and text[position - 1] != "\\" else quote
        elif c in "'\"":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == separator and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    last = text[start:].strip()
    return [*parts, last] if last or parts else []
