"""Parsing a model without its weights: they stay where they are, in the file or the bytes, and are viewed there.

Protobuf would copy every `raw_data` field into its message, and each access out of it again. So the wire format
(https://protobuf.dev/programming-guides/encoding/) is walked first, and tickets take the place of large `raw_data`.
"""

from __future__ import annotations

import secrets
from typing import Any, Literal

import numpy as np

from stitchwork.ir.graph import Array

Message = Literal["model", "graph", "function", "node", "attribute", "tensor"]

# The fields that lead to tensors, by number, from onnx.proto.
_FIELDS: dict[Message, dict[int, Message]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
    "tensor": {},
}
_RAW_DATA = 9
_LARGE = 1024  # bytes of a field that is lifted
_DEPTH = 100  # messages inside messages, as many as protobuf reads
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class _MalformedError(Exception):
    """The bytes are not in the wire format; protobuf's own parser says so better."""


class Lifted:
    """A model's bytes, and where in them the data of its large tensors is."""

    def __init__(self, data: Array) -> None:
        """data: u8[n], the bytes, read only through views."""
        self.data = data
        self._view = memoryview(data.data)
        self._secret = secrets.token_bytes(8)  # a file cannot hold a ticket that it made itself
        self._spans: list[tuple[int, int]] = []

    def message(self) -> bytes:
        """The bytes with tickets in place of large data, for protobuf."""
        try:
            return self._without_data("model", 0, len(self._view), 0)
        except _MalformedError:
            self._spans.clear()
            return bytes(self._view)

    def find(self, ticket: bytes) -> Array | None:
        """What was where the ticket is now, as u8[n]; None for data that is no ticket."""
        if len(ticket) != 16 or ticket[:8] != self._secret:
            return None
        start, end = self._spans[int.from_bytes(ticket[8:], "little")]
        return self.data[start:end]

    def _without_data(self, kind: Message, start: int, end: int, depth: int) -> bytes:
        made, copied, at = bytearray(), start, start
        while at < end:
            tag, body = self._varint(at, end)
            size, body = self._extent(tag & 7, body, end)
            number, large = tag >> 3, tag & 7 == _BYTES and size >= _LARGE
            child = _FIELDS[kind].get(number)
            replacement: bytes | None = None
            if large and kind == "tensor" and number == _RAW_DATA:
                replacement = self._secret + len(self._spans).to_bytes(8, "little")
                self._spans.append((body, body + size))
            elif large and child is not None and depth < _DEPTH:
                replacement = self._without_data(child, body, body + size, depth + 1)
            at = body + size
            if replacement is not None:
                made += self._view[copied : body - len(_encoded(size))]
                made += _encoded(len(replacement))
                made += replacement
                copied = at
        made += self._view[copied:end]
        return bytes(made)

    def _extent(self, wire: int, at: int, end: int) -> tuple[int, int]:
        """Length and start of a field's content."""
        size = {_FIXED64: 8, _FIXED32: 4}.get(wire, 0)
        if wire == _VARINT:
            at, start = self._varint(at, end)[1], at
            return at - start, start
        if wire == _BYTES:
            size, after = self._varint(at, end)
            if after - at != len(_encoded(size)):  # longer than needed: valid, and never written
                raise _MalformedError
            at = after
        elif not size:
            raise _MalformedError
        if at + size > end:
            raise _MalformedError
        return size, at

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """The number at a place, and the place after it."""
        value, view = 0, self._view
        for k in range(10):
            if at >= end:
                break
            byte = view[at]
            at += 1
            value |= (byte & 0x7F) << (7 * k)
            if byte < 0x80:
                return value, at
        raise _MalformedError


def _encoded(x: int) -> bytes:
    made = bytearray()
    while x >= 0x80:
        made.append(x & 0x7F | 0x80)
        x >>= 7
    made.append(x)
    return bytes(made)


def bytes_of(source: Any) -> Array:
    """Bytes as u8[n], without a copy."""
    return np.frombuffer(source, np.uint8)
