"""Reading ONNX files: the protobuf message, its tensors and their element types."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import onnx
import onnx.numpy_helper
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from stitchwork.errors import PackageError, UnsupportedError
from stitchwork.importers.onnx.lifting import Lifted, bytes_of
from stitchwork.ir import dtypes
from stitchwork.ir.dtypes import DType
from stitchwork.ir.graph import Array

_DTYPES: dict[int, DType] = {
    TensorProto.FLOAT: dtypes.float32,
    TensorProto.UINT8: dtypes.uint8,
    TensorProto.INT8: dtypes.int8,
    TensorProto.UINT16: dtypes.uint16,
    TensorProto.INT16: dtypes.int16,
    TensorProto.INT32: dtypes.int32,
    TensorProto.INT64: dtypes.int64,
    TensorProto.BOOL: dtypes.bool_,
    TensorProto.FLOAT16: dtypes.float16,
    TensorProto.DOUBLE: dtypes.float64,
    TensorProto.UINT32: dtypes.uint32,
    TensorProto.UINT64: dtypes.uint64,
    TensorProto.COMPLEX64: dtypes.complex64,
    TensorProto.COMPLEX128: dtypes.complex128,
    TensorProto.BFLOAT16: dtypes.bfloat16,
    TensorProto.FLOAT4E2M1: dtypes.float4_e2m1,
    TensorProto.FLOAT8E4M3FNUZ: dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2FNUZ: dtypes.float8_e5m2fnuz,
    TensorProto.FLOAT8E8M0: dtypes.float8_e8m0,
    TensorProto.FLOAT8E4M3FN: dtypes.float8_e4m3,
    TensorProto.FLOAT8E5M2: dtypes.float8_e5m2,
    TensorProto.UINT2: dtypes.uint2,
    TensorProto.INT2: dtypes.int2,
    TensorProto.UINT4: dtypes.uint4,
    TensorProto.INT4: dtypes.int4,
}
_MAPPED = 1 << 24  # bytes of a file that is mapped, not read
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


def dtype_of(code: int, what: str) -> DType:
    """The dtype for ONNX's code of an element type. Raises UnsupportedError for one that there is no dtype for."""
    found = _DTYPES.get(code)
    if found is None:
        names = {number: name for name, number in TensorProto.DataType.items()}
        raise UnsupportedError(
            what,
            "an element type that there is no dtype for",
            expected=", ".join(map(str, _CODES)),
            got=names.get(code, f"code {code}"),
        )
    return found


def code_of(dtype: DType) -> int:
    """ONNX's code of a dtype."""
    return _CODES[dtype]


def limits_of(dtype: DType) -> tuple[float, float]:
    """The smallest and the largest finite number of a dtype."""
    types: Any = ml_dtypes
    found = (types.iinfo if dtype.is_integer else types.finfo)(dtype.numpy)
    return float(found.min), float(found.max)


def read_model(source: Any) -> tuple[ModelProto, Tensors]:
    """The message, and its tensors; external data may lie in the folder of a model that is a file.

    Raises PackageError for what is no ONNX model.
    """
    if isinstance(source, ModelProto):
        return _checked(source, "the message"), Tensors(None)
    if isinstance(source, bytes | bytearray | memoryview):
        return _parse(bytes_of(bytes(cast("bytes", source))), "the bytes", None)
    path = _path_of(source)
    try:
        content = _content(path)
    except (OSError, ValueError) as e:  # a path with a null character is a ValueError
        raise PackageError("onnx", f"`{path}` cannot be read", got=str(e)) from None
    return _parse(content, f"`{path}`", path.resolve().parent)


def _content(path: Path) -> Array:
    """A file's bytes: read where that is quick, else mapped."""
    if path.stat().st_size < _MAPPED:
        return bytes_of(path.read_bytes())
    return np.memmap(path, np.uint8, "r")


def _path_of(source: Any) -> Path:
    try:
        return Path(source)
    except TypeError:
        raise PackageError(
            "onnx", "not a model", expected="a path, bytes or an onnx.ModelProto", got=type(source).__name__
        ) from None


def _parse(content: Array, what: str, folder: Path | None) -> tuple[ModelProto, Tensors]:
    model, lifted = ModelProto(), Lifted(content)
    try:
        model.ParseFromString(lifted.message())
    except (DecodeError, ValueError) as e:
        raise PackageError(
            "onnx", f"{what} is not an ONNX model", got=str(e), hint="the file may be damaged or cut off"
        ) from None
    return _checked(model, what), Tensors(folder, lifted)


def _checked(model: ModelProto, what: str) -> ModelProto:
    if not model.graph.node and not model.graph.output:
        raise PackageError("onnx", f"{what} holds no graph", expected="a model with nodes and outputs")
    return model


class Tensors:
    """Turns tensor messages into arrays. Large ones are views of the model's bytes or of the files they are in."""

    def __init__(self, folder: Path | None, lifted: Lifted | None = None) -> None:
        self.folder, self.lifted = folder, lifted

    def array(self, tensor: TensorProto) -> Array:
        """The tensor as an array. Raises PackageError for a damaged one, UnsupportedError for its element type."""
        what = f"tensor `{tensor.name}`"
        dtype = dtype_of(tensor.data_type, what)
        if any(n < 0 for n in tensor.dims):
            raise PackageError(what, "a size is negative", got=str(list(tensor.dims)))
        if tensor.data_location == TensorProto.EXTERNAL:
            return self._external(tensor, dtype, what)
        data = None if self.lifted is None else self.lifted.find(tensor.raw_data)
        if data is not None and dtype.bits >= 8:
            return _viewed(data, dtype, tuple(tensor.dims), what)
        try:
            made = onnx.numpy_helper.to_array(tensor if data is None else _with_data(tensor, data))
        except (ValueError, TypeError, OverflowError, MemoryError) as e:
            raise PackageError(
                what, "its data does not fit its shape", expected=f"{dtype}{list(tensor.dims)}", got=str(e)
            ) from None
        return np.asarray(made).astype(dtype.numpy, copy=False)

    def _external(self, tensor: TensorProto, dtype: DType, what: str) -> Array:
        entries = {e.key: e.value for e in tensor.external_data}
        file = self._external_file(entries.get("location", ""), what)
        shape = tuple(tensor.dims)
        count = math.prod(shape)
        if dtype.bits < 8:
            raise UnsupportedError(what, "packed data of fewer than 8 bits in another file", got=str(dtype))
        size = count * dtype.itemsize
        try:
            offset = int(entries.get("offset", "0"))
            length = int(entries.get("length", str(size)))
        except ValueError as e:
            raise PackageError(what, "offset or length of its data is not a number", got=str(e)) from None
        room = os.stat(file).st_size
        if length != size or offset < 0 or offset + size > room:
            raise PackageError(
                what,
                "its data does not lie inside its file",
                expected=f"{size} bytes of {room}",
                got=f"offset {offset}, length {length}",
            )
        if not size:
            return np.empty(shape, dtype.numpy)
        return np.memmap(file, np.uint8, "r", offset, (size,)).view(dtype.numpy).reshape(shape)

    def _external_file(self, location: str, what: str) -> Path:
        if self.folder is None:
            raise PackageError(what, "its data is in another file", hint="give the model's path instead of its content")
        folder = self.folder.resolve()
        file = (folder / location).resolve()
        if not location or not file.is_relative_to(folder):
            raise PackageError(
                what, "its data is outside the model's folder", expected=f"a file in {folder}", got=repr(location)
            )
        if not file.is_file():
            raise PackageError(what, "the file with its data is missing", expected=str(file))
        return file


def _viewed(data: Array, dtype: DType, shape: tuple[int, ...], what: str) -> Array:
    """Bytes as an array, without a copy."""
    size = math.prod(shape) * dtype.itemsize
    if data.size != size:
        raise PackageError(
            what,
            "its data does not fit its shape",
            expected=f"{dtype}{list(shape)}, {size} bytes",
            got=f"{data.size} bytes",
        )
    return data.view(np.ndarray).view(dtype.numpy).reshape(shape)


def _with_data(tensor: TensorProto, data: Array) -> TensorProto:
    whole = TensorProto()
    whole.CopyFrom(tensor)
    whole.raw_data = data.tobytes()
    return whole
