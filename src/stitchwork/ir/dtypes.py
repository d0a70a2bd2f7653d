"""Element types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type. `name` is its text form (`f32`), `kind` one of b, i, u, f, c; equality is identity."""

    name: str
    kind: str
    bits: int
    numpy: np.dtype[Any]

    @property
    def itemsize(self) -> int:
        """Bytes per element in memory; sub-byte types take one byte."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def is_complex(self) -> bool:
        return self.kind == "c"

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return by_name, (self.name,)


def _make(name: str, kind: str, bits: int, numpy: Any) -> DType:
    dtype = DType(name, kind, bits, np.dtype(numpy))
    _BY_NAME[name] = dtype
    _BY_NUMPY[dtype.numpy] = dtype
    return dtype


_BY_NAME: dict[str, DType] = {}
_BY_NUMPY: dict[np.dtype[Any], DType] = {}

bool_ = _make("bool", "b", 8, np.bool_)
int2 = _make("i2", "i", 2, ml_dtypes.int2)
int4 = _make("i4", "i", 4, ml_dtypes.int4)
int8 = _make("i8", "i", 8, np.int8)
int16 = _make("i16", "i", 16, np.int16)
int32 = _make("i32", "i", 32, np.int32)
int64 = _make("i64", "i", 64, np.int64)
uint2 = _make("u2", "u", 2, ml_dtypes.uint2)
uint4 = _make("u4", "u", 4, ml_dtypes.uint4)
uint8 = _make("u8", "u", 8, np.uint8)
uint16 = _make("u16", "u", 16, np.uint16)
uint32 = _make("u32", "u", 32, np.uint32)
uint64 = _make("u64", "u", 64, np.uint64)
float4_e2m1 = _make("f4e2m1", "f", 4, ml_dtypes.float4_e2m1fn)
float8_e4m3fnuz = _make("f8e4m3fnuz", "f", 8, ml_dtypes.float8_e4m3fnuz)
float8_e5m2fnuz = _make("f8e5m2fnuz", "f", 8, ml_dtypes.float8_e5m2fnuz)
float8_e8m0 = _make("f8e8m0", "f", 8, ml_dtypes.float8_e8m0fnu)  # powers of two, and no 0: scales of other tensors
float8_e4m3 = _make("f8e4m3", "f", 8, ml_dtypes.float8_e4m3fn)
float8_e5m2 = _make("f8e5m2", "f", 8, ml_dtypes.float8_e5m2)
float16 = _make("f16", "f", 16, np.float16)
bfloat16 = _make("bf16", "f", 16, ml_dtypes.bfloat16)
float32 = _make("f32", "f", 32, np.float32)
float64 = _make("f64", "f", 64, np.float64)
complex64 = _make("c64", "c", 64, np.complex64)
complex128 = _make("c128", "c", 128, np.complex128)

GROUPS: dict[str, tuple[DType, ...]] = {
    "bool": (bool_,),
    "int": (int2, int4, int8, int16, int32, int64, uint2, uint4, uint8, uint16, uint32, uint64),
    "float": (
        float4_e2m1,
        float8_e4m3fnuz,
        float8_e5m2fnuz,
        float8_e4m3,
        float8_e5m2,
        float16,
        bfloat16,
        float32,
        float64,
    ),
    "complex": (complex64, complex128),
    "index": (int32, int64),
}
GROUPS["any"] = tuple(_BY_NAME.values())
GROUPS["number"] = GROUPS["int"] + GROUPS["float"] + GROUPS["complex"]
GROUPS["real"] = GROUPS["int"] + GROUPS["float"]


def by_name(name: str) -> DType:
    """The dtype with this text form. Raises KeyError."""
    return _BY_NAME[name]


def as_dtype(spec: DType | npt.DTypeLike | str) -> DType:
    """The dtype meant by a DType, a NumPy dtype (any byte order) or a name of either kind. Raises TypeError."""
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, str) and spec in _BY_NAME:
        return _BY_NAME[spec]
    numpy = np.dtype(spec)
    found = _BY_NUMPY.get(numpy) or _BY_NUMPY.get(numpy.newbyteorder("="))
    if found is None:
        raise TypeError(f"no element type for NumPy dtype {numpy}")
    return found


def group(spec: str) -> tuple[DType, ...]:
    """The dtypes meant by a space-separated list of names and group names."""
    return tuple(dict.fromkeys(d for word in spec.split() for d in GROUPS.get(word) or (_BY_NAME[word],)))


_COMPLEX_OF = {float32: complex64, float64: complex128}
_REAL_OF = {complex64: float32, complex128: float64}


def complex_of(dtype: DType) -> DType:
    """The complex type whose parts are `dtype`."""
    return _COMPLEX_OF[dtype]


def real_of(dtype: DType) -> DType:
    """The type of the parts of a complex type; any other type unchanged."""
    return _REAL_OF.get(dtype, dtype)


def promote(a: DType, b: DType) -> DType:
    """The type that a mixed binary op computes in.

    JAX's rule for arrays: within a kind the wider type; a float (complex) beats any integer (float) whatever the width;
    the two 16-bit floats meet in float32; a signed and an unsigned integer meet in the next wider signed one.
    """
    if a is b:
        return a
    rank = "biufc"
    low, high = sorted((a, b), key=lambda d: (rank.index(d.kind), d.bits))
    if low.kind == "b":
        return high
    if high.kind == "c":
        return complex128 if float64 in (low, high) or complex128 in (low, high) else complex64
    if high.kind == "f":
        if low.kind != "f":
            return high
        return float32 if low.bits == high.bits else high
    if low.kind == high.kind:
        return high
    unsigned, signed = (a, b) if a.kind == "u" else (b, a)
    bits = signed.bits if signed.bits > unsigned.bits else min(2 * unsigned.bits, 64)
    return _BY_NAME[f"i{bits}"]


def _has_infinity(dtype: DType) -> bool:
    return dtype.bits > 8 or dtype is float8_e5m2


def lowest(dtype: DType) -> Any:
    """The identity of max: -inf, the smallest integer, or False."""
    if dtype.kind == "f":
        return -np.inf if _has_infinity(dtype) else float(cast("Any", ml_dtypes.finfo(dtype.numpy)).min)
    if dtype.kind == "b":
        return False
    return int(ml_dtypes.iinfo(dtype.numpy).min)


def highest(dtype: DType) -> Any:
    """The identity of min: inf, the largest integer, or True."""
    if dtype.kind == "f":
        return np.inf if _has_infinity(dtype) else float(cast("Any", ml_dtypes.finfo(dtype.numpy)).max)
    if dtype.kind == "b":
        return True
    return int(ml_dtypes.iinfo(dtype.numpy).max)
