"""What a handler of an ONNX op sees: the node, its operands and attributes, and what is known about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto

from stitchwork.errors import OpError, UnsupportedError
from stitchwork.importers.onnx.proto import dtype_of
from stitchwork.ir.dims import Dim, Size
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import Array, Value

if TYPE_CHECKING:
    from stitchwork.importers.onnx.importer import Importer, Scope

_KINDS: dict[int, str] = {
    AttributeProto.FLOAT: "float",
    AttributeProto.INT: "int",
    AttributeProto.STRING: "string",
    AttributeProto.TENSOR: "tensor",
    AttributeProto.GRAPH: "graph",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
}


class Node:
    """One node being imported. `inputs` holds None for an operand that is left out; `opset` is its domain's version."""

    def __init__(self, importer: Importer, scope: Scope, proto: NodeProto, opset: int) -> None:
        self.importer, self.scope, self.proto, self.opset = importer, scope, proto, opset
        self.module = importer.module
        self.op_type = proto.op_type
        self.label = label_of(proto)
        self.attributes: dict[str, AttributeProto] = {a.name: a for a in proto.attribute}
        self.inputs: list[Value | None] = [scope.find(name) if name else None for name in proto.input]
        self.outputs = [name for name in proto.output]

    # --- operands ---------------------------------------------------------------------------------------------------
    def __getitem__(self, k: int) -> Value:
        """Operand k, which must be there. Raises OpError."""
        found = self.optional(k)
        if found is None:
            raise OpError(self.label, f"operand {k} is missing", got=f"{len(self.inputs)} operands")
        return found

    def optional(self, k: int) -> Value | None:
        """Operand k, or None where it is left out."""
        return self.inputs[k] if k < len(self.inputs) else None

    def all(self) -> list[Value]:
        """Every operand, for ops that take any number."""
        return [self[k] for k in range(len(self.inputs))]

    def all_from(self, first: int) -> list[Value]:
        """Every operand from `first` on."""
        return [self[k] for k in range(first, len(self.inputs))]

    def wants(self, k: int) -> bool:
        """Whether result k is named, and so may be used."""
        return k < len(self.outputs) and bool(self.outputs[k])

    # --- what operands hold -------------------------------------------------------------------------------------------
    def array(self, k: int) -> Array | None:
        """Operand k as an array where it is a constant, else None."""
        value = self.optional(k)
        return None if value is None else self.importer.follower.array(value)

    def elements(self, k: int) -> Array | None:
        """What operand k holds, as an array of numbers and sizes; None where any of that is not known."""
        value = self.optional(k)
        found = None if value is None else self.importer.follower.content(value)
        return None if found is None or any(x is None for x in found.flat) else found

    def sizes(self, k: int, what: str) -> tuple[Size, ...]:
        """What operand k holds, as ints and sizes. Raises UnsupportedError where that is not known."""
        found = self.elements(k)
        if found is None or not all(isinstance(x, int | float | Dim) for x in found.flat):
            raise self.unknown(k, what)
        return tuple(x if isinstance(x, Dim) else int(x) for x in found.reshape(-1))

    def ints(self, k: int, what: str) -> tuple[int, ...]:
        """As `sizes`, numbers only."""
        found = self.sizes(k, what)
        if any(isinstance(x, Dim) for x in found):
            raise self.unsupported(f"`{what}` depends on sizes", got=str(found))
        return cast("tuple[int, ...]", found)

    def number(self, k: int, what: str, default: float | None = None) -> Any:
        """The only element of operand k as a Python number. Raises UnsupportedError where it is not a constant."""
        if self.optional(k) is None and default is not None:
            return default
        found = self.array(k)
        if found is None or found.size != 1:
            raise self.unknown(k, what)
        return found.reshape(()).astype(np.float64 if found.dtype.kind not in "biu" else found.dtype).item()

    def axes(self, k: int, default: Any = None) -> Any:
        """Axes from attribute `axes`, or from operand k where that is given; `default` without either."""
        if "axes" in self.attributes:
            return self.int_list("axes")
        return default if self.optional(k) is None else self.ints(k, "axes")

    # --- attributes ---------------------------------------------------------------------------------------------------
    def has(self, name: str) -> bool:
        return name in self.attributes

    def int(self, name: str, default: int | None = None) -> int:
        """An integer attribute. Raises OpError where it is missing or of another kind, as the other accessors do."""
        found = self._attribute(name, AttributeProto.INT, default)
        return found.i if isinstance(found, AttributeProto) else found

    def float(self, name: str, default: float | None = None) -> float:
        found = self._attribute(name, AttributeProto.FLOAT, default)
        # The file holds 32 bits; the shortest number that means them is what the author wrote.
        return float(str(np.float32(found.f))) if isinstance(found, AttributeProto) else found

    def string(self, name: str, default: str | None = None) -> str:
        found = self._attribute(name, AttributeProto.STRING, default)
        return found.s.decode("utf-8", "replace") if isinstance(found, AttributeProto) else found

    def int_list(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        found = self._attribute(name, AttributeProto.INTS, default)
        return tuple(found.ints) if isinstance(found, AttributeProto) else tuple(found)

    def float_list(self, name: str, default: Sequence[float] | None = None) -> tuple[float, ...]:
        found = self._attribute(name, AttributeProto.FLOATS, default)
        return tuple(found.floats) if isinstance(found, AttributeProto) else tuple(found)

    def string_list(self, name: str, default: Sequence[str] | None = None) -> tuple[str, ...]:
        found = self._attribute(name, AttributeProto.STRINGS, default)
        return (
            tuple(s.decode("utf-8", "replace") for s in found.strings)
            if isinstance(found, AttributeProto)
            else tuple(found)
        )

    def tensor(self, name: str) -> Array:
        return self.importer.tensors.array(self._attribute(name, AttributeProto.TENSOR, None).t)

    def subgraph(self, name: str) -> GraphProto:
        return self._attribute(name, AttributeProto.GRAPH, None).g

    def dtype(self, name: str, default: DType | None = None) -> DType:
        """A dtype from an attribute that holds ONNX's code of it."""
        if default is not None and not self.int(name, 0):
            return default
        return dtype_of(self.int(name), self.label)

    def _attribute(self, name: str, kind: int, default: Any) -> Any:
        found = self.attributes.get(name)
        if found is None:
            if default is None:
                raise OpError(self.label, f"attribute `{name}` is missing")
            return default
        if found.type != kind:
            raise OpError(
                self.label,
                f"attribute `{name}` is of the wrong kind",
                expected=_KINDS[kind],
                got=_KINDS.get(found.type, f"kind {found.type}"),
            )
        return found

    # --- errors -------------------------------------------------------------------------------------------------------
    def unsupported(self, problem: str, *, got: str = "", hint: str = "") -> UnsupportedError:
        """An error about something valid that cannot be expressed."""
        return UnsupportedError(self.label, problem, got=got, hint=hint)

    def unknown(self, k: int, what: str) -> UnsupportedError:
        """The error where operand k would have to be known when the model is compiled."""
        value = self.optional(k)
        name = self.proto.input[k] if k < len(self.proto.input) else ""
        return UnsupportedError(
            self.label,
            f"`{what}` is not known when the model is compiled",
            expected="a constant, or something computed from constants and sizes",
            got=f"`{name}`: {value.type}" if value is not None else "nothing",
            hint=f"where `{name}` is an input that never changes, give it to load(..., constants={{...}})",
        )

    def invalid(self, problem: str, *, expected: str = "", got: str = "") -> OpError:
        """An error about a node that breaks ONNX's own rules."""
        return OpError(self.label, problem, expected=expected, got=got)


def label_of(proto: NodeProto) -> str:
    """A node as messages name it."""
    name = proto.name or (proto.output[0] if proto.output else "")
    return f"{proto.domain + '.' if proto.domain else ''}{proto.op_type} node `{name}`"
