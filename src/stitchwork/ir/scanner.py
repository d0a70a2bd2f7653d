"""Reading one line of the text form: names, strings, types, sizes and attributes. See `stitchwork.ir.printer`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from stitchwork.errors import StitchworkError
from stitchwork.ir import dims
from stitchwork.ir.dims import Dim, Size
from stitchwork.ir.dtypes import by_name
from stitchwork.ir.graph import Array
from stitchwork.ir.printer import DENSE_LIMIT, SPLAT_LIMIT, WORD
from stitchwork.ir.types import TOKEN, TensorType, Type, parse_type

MAX_BYTES = 1 << 62  # of a tensor whose size is known; a larger one cannot be addressed
_DEPTH = 64  # of tuples inside tuples
_SPACE = re.compile(r"\s*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_TYPE = re.compile(r"token\b|\w+\[[^\]]*\]")
_SIZE = re.compile(r"<([^<>]*)>")
_FLOAT = re.compile(r"-?(?:\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+|inf\b|nan\b)")
_INT = re.compile(r"-?\d+")
_HEX = re.compile(r"0x((?:[0-9a-f]{2})*)")
_VALUE = re.compile(r"%([A-Za-z0-9_.]+)")
_CONSTANTS = {"none": None, "true": True, "false": False}


class TextError(StitchworkError, ValueError):
    """The text of a module does not follow the format, or describes a module that cannot be."""


class Scanner:
    """A position in a line. `take` methods raise TextError where something else stands there."""

    def __init__(self, line: str, where: str, resources: Mapping[str, Array]) -> None:
        self.line, self.where, self.resources = line, where, resources
        self.position = 0
        self.skip()

    # --- pieces ----------------------------------------------------------------------------------------------
    def skip(self, count: int = 0) -> None:
        match = _SPACE.match(self.line, self.position + count)
        self.position = match.end() if match else len(self.line)

    @property
    def rest(self) -> str:
        return self.line[self.position :]

    def fail(self, problem: str, expected: str = "", got: str = "") -> TextError:
        """An error at this position, to be raised."""
        return TextError("text", problem, expected=expected, got=got or repr(self.rest[:60]), at=self.where)

    def found(self, text: str) -> bool:
        """Step over `text` where it is next."""
        if not self.line.startswith(text, self.position):
            return False
        self.skip(len(text))
        return True

    def take(self, text: str) -> None:
        """Step over `text`."""
        if not self.found(text):
            raise self.fail("unexpected text", f"`{text}`")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Step over what the pattern matches, if it does."""
        match = pattern.match(self.line, self.position)
        if match is not None:
            self.skip(match.end() - self.position)
        return match

    def expect(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """Step over what the pattern matches."""
        match = self.match(pattern)
        if match is None:
            raise self.fail("unexpected text", what)
        return match

    def until(self, stop: str) -> str:
        """The text up to a character, which comes next then; up to the end of the line for none."""
        end = self.line.find(stop, self.position) if stop else len(self.line)
        if end < 0:
            raise self.fail("unexpected text", f"`{stop}`")
        text = self.line[self.position : end]
        self.position = end
        return text.strip()

    def end(self) -> None:
        """Nothing may follow."""
        if self.position < len(self.line):
            raise self.fail("unexpected text", "the end of the line")

    # --- names -----------------------------------------------------------------------------------------------
    def word(self, what: str = "a name") -> str:
        return self.expect(WORD, what).group()

    def string(self) -> str:
        text = self.expect(_STRING, "a string in double quotes").group()
        try:
            return json.loads(text)
        except ValueError:
            raise self.fail("a string has a wrong escape", got=text[:60]) from None

    def name(self) -> str:
        """A word, or any name in quotes."""
        return self.string() if self.rest.startswith('"') else self.word()

    def value_name(self) -> str:
        return self.expect(_VALUE, "a value: `%name`").group(1)

    # --- types and sizes -------------------------------------------------------------------------------------
    def type(self) -> Type:
        """A type whose sizes are not negative and whose bytes can be addressed."""
        text = self.expect(_TYPE, "a type: `dtype[sizes]` or `token`").group()
        try:
            type_ = parse_type(text)
        except (ValueError, KeyError, IndexError, ZeroDivisionError, RecursionError):
            raise self.fail("not a type", "`dtype[sizes]`", text[:60]) from None
        if type_ is not TOKEN and not _is_addressable(type_):
            raise self.fail("a size is out of range", "sizes >= 0 and less than 2^62 bytes in all", text[:60])
        return type_

    def tensor_type(self) -> TensorType:
        type_ = self.type()
        if not isinstance(type_, TensorType):
            raise self.fail("a token stands where a tensor must", "`dtype[sizes]`")
        return type_

    def size(self, text: str) -> Size:
        try:
            return dims.parse(text)
        except (ValueError, IndexError, ZeroDivisionError, RecursionError):
            raise self.fail("not a size", "an integer expression of named sizes", text[:60]) from None

    # --- attributes ------------------------------------------------------------------------------------------
    def attribute(self, depth: int = 0) -> Any:
        """A value as `_Printer.attribute` writes it."""
        if self.found("("):
            return self._tuple(depth)
        if self.rest.startswith('"'):
            return self.string()
        if size := self.match(_SIZE):
            return self.size(size.group(1))
        for array in ("dense<", "resource<"):
            if self.found(array):
                return self._dense() if array == "dense<" else self._resource()
        if self.found("complex("):
            return self._complex()
        if (number := self.number()) is not None:
            return number
        if _TYPE.match(self.line, self.position):
            return self.type()
        word = self.word("an attribute")
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        try:
            return by_name(word)
        except KeyError:
            raise self.fail("not an attribute", "a number, string, size, dtype, type, array or tuple", word) from None

    def number(self) -> int | float | None:
        if match := self.match(_FLOAT):
            return float(match.group())
        if match := self.match(_INT):
            if len(match.group()) > 40:
                raise self.fail("a number is out of range", got=match.group()[:60])
            return int(match.group())
        return None

    def _tuple(self, depth: int) -> tuple[Any, ...]:
        if depth > _DEPTH:
            raise self.fail("tuples are nested too deeply")
        many: list[Any] = []
        while not self.found(")"):
            many.append(self.attribute(depth + 1))
            if not self.found(","):
                self.take(")")
                break
        return tuple(many)

    def _complex(self) -> complex:
        real = self.number()
        self.take(",")
        imag = self.number()
        self.take(")")
        if real is None or imag is None:
            raise self.fail("a part of a complex number is missing", "`complex(real, imag)`")
        return complex(real, imag)

    # --- arrays ----------------------------------------------------------------------------------------------
    def array(self) -> Array:
        x = self.attribute()
        if not isinstance(x, np.ndarray):
            raise self.fail("not an array", "`dense<...>` or `resource<...>`", repr(x)[:60])
        return cast("Array", x)

    def _dense(self) -> Array:
        type_, shape = self._array_type()
        if not self.found(":"):
            flat = np.empty(0, type_.dtype.numpy)
        else:
            splat = self.found("splat")
            flat = self._elements(type_)
            limit = SPLAT_LIMIT if splat else DENSE_LIMIT
            if splat and flat.size == 1 and dims.evaluate(type_.elements, {}) <= limit:
                flat = np.full(dims.evaluate(type_.elements, {}), flat[0], flat.dtype)
        self.take(">")
        if flat.size != type_.elements:
            raise self.fail("an array has another number of elements", str(type_), str(flat.size))
        return flat.reshape(shape)

    def _elements(self, type_: TensorType) -> Array:
        dtype = type_.dtype
        if match := self.match(_HEX):
            raw = bytes.fromhex(match.group(1))
            if dtype.kind not in "fc" or len(raw) % dtype.itemsize:
                raise self.fail("not the bytes of elements", f"bytes of a floating {type_}", match.group()[:60])
            return np.frombuffer(raw, dtype.numpy)
        many = [self._element()]
        while self.found(","):
            many.append(self._element())
        kinds = {"b": bool, "i": int, "u": int, "f": int | float, "c": int | float | complex}[dtype.kind]
        if not all(isinstance(e, kinds) for e in many):
            raise self.fail("an element does not fit the dtype", str(type_), str(many))
        try:
            source = np.array(many)
            made = source.astype(dtype.numpy)
            exact = dtype.kind not in "iu" or bool(np.all(made.astype(source.dtype) == source))
        except (TypeError, ValueError, OverflowError):
            exact, made = False, np.empty(0)
        if not exact:
            raise self.fail("an element does not fit the dtype", str(type_), str(many))
        return made

    def _element(self) -> bool | int | float | complex:
        x = self.attribute()
        if not isinstance(x, bool | int | float | complex):
            raise self.fail("not a number", "elements of an array", repr(x)[:60])
        return x

    def _resource(self) -> Array:
        name = self.word()
        self.take(":")
        type_, shape = self._array_type()
        self.take(">")
        array = self.resources.get(name)
        if array is None:
            raise self.fail(f"the resource `{name}` is missing", f"an array of type {type_}")
        if array.shape != shape or array.dtype != type_.dtype.numpy:
            got = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
            raise self.fail(f"the resource `{name}` has another type", str(type_), got)
        return array

    def _array_type(self) -> tuple[TensorType, tuple[int, ...]]:
        type_ = self.tensor_type()
        if not type_.is_static:
            raise self.fail("an array has a symbolic size", "sizes as numbers", str(type_))
        return type_, tuple(n for n in type_.shape if isinstance(n, int))


def _is_addressable(type_: Type) -> bool:
    if not isinstance(type_, TensorType):
        return True
    known = [n for n in type_.shape if not isinstance(n, Dim)]
    size = dims.product(max(n, 1) for n in known)
    return min(known, default=0) >= 0 and isinstance(size, int) and size * type_.dtype.itemsize < MAX_BYTES
