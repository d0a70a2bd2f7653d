"""Floats of 8 bits or fewer: from their bits in memory to `float` and back.

Both directions are exact or rounded once, as ml_dtypes does it (the tests compare every pattern).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from stitchwork.backends.cpu.llvm import Function, V, lanes, vector
from stitchwork.ir import dtypes
from stitchwork.ir.dtypes import DType

_MANTISSA, _BIAS, _INFINITY = 23, 127, 0x7F800000  # of float32


@dataclass(frozen=True, slots=True)
class Format:
    """Where the parts of a small float lie. `over` is the code for numbers beyond `top`, the largest finite code; both
    without the sign, as is `nan` where `signed_nan`; otherwise `nan` is the one code of NaN."""

    mantissa: int
    bias: int
    sign: int  # the sign's bit
    top: int
    over: int
    nan: int
    signed_nan: bool = True
    has_negative_zero: bool = True


_FORMATS: dict[DType, Format] = {
    dtypes.float8_e4m3: Format(3, 7, 0x80, 0x7E, 0x7F, 0x7F),
    dtypes.float8_e5m2: Format(2, 15, 0x80, 0x7B, 0x7C, 0x7E),
    dtypes.float8_e4m3fnuz: Format(3, 8, 0x80, 0x7F, 0x80, 0x80, signed_nan=False, has_negative_zero=False),
    dtypes.float8_e5m2fnuz: Format(2, 16, 0x80, 0x7F, 0x80, 0x80, signed_nan=False, has_negative_zero=False),
    # Without NaN: what is not a number becomes -0, what is too large the largest number.
    dtypes.float4_e2m1: Format(1, 1, 0x08, 0x07, 0x07, 0x08, signed_nan=False),
}


def is_small(dtype: DType) -> bool:
    """Whether this file has the dtype."""
    return dtype in _FORMATS or dtype is dtypes.float8_e8m0


def decode(fn: Function, x: V, dtype: DType) -> V:
    """Bytes as floats."""
    width = lanes(x.type)[1]
    if dtype is dtypes.float8_e8m0:
        return _decode_exponent(fn, x, width)
    f = _FORMATS[dtype]
    if dtype is dtypes.float8_e5m2:  # the upper half of a half
        wide = fn.binary("shl", fn.convert("zext", x, vector("i16", width)), _integer("i16", 8, width))
        return fn.convert("fpext", fn.convert("bitcast", wide, vector("half", width)), vector("float", width))
    floats, ints = vector("float", width), vector("i32", width)
    bits = fn.convert("zext", x, ints)
    code = fn.binary("and", bits, _integer("i32", f.sign - 1, width))
    magnitude = fn.binary("shl", code, _integer("i32", _MANTISSA - f.mantissa, width))
    # The bias is corrected by a multiplication, which is exact and takes care of subnormal numbers.
    scaled = fn.binary("fmul", fn.convert("bitcast", magnitude, floats), _float(2.0 ** (_BIAS - f.bias), width))
    if f.over != f.top:
        is_nan = fn.icmp("eq", code if f.signed_nan else bits, _integer("i32", f.nan, width))
        scaled = fn.select(is_nan, _float(float("nan"), width), scaled)
    up = _integer("i32", 32 - f.sign.bit_length(), width)
    sign = fn.binary("and", fn.binary("shl", bits, up), _integer("i32", -(1 << 31), width))
    return fn.convert("bitcast", fn.binary("or", fn.convert("bitcast", scaled, ints), sign), floats)


def encode(fn: Function, x: V, dtype: DType) -> V:
    """Floats as bytes, rounded to nearest even."""
    width = lanes(x.type)[1]
    ints, floats = vector("i32", width), vector("float", width)
    bits = fn.convert("bitcast", x, ints)
    if dtype is dtypes.float8_e8m0:
        return _encode_exponent(fn, bits, width)
    f = _FORMATS[dtype]
    magnitude = fn.binary("and", bits, _integer("i32", (1 << 31) - 1, width))
    # Normal numbers: the mantissa's tail rounded away, the exponent moved to the other bias.
    shift = _MANTISSA - f.mantissa
    odd = fn.binary("and", fn.binary("lshr", magnitude, _integer("i32", shift, width)), _integer("i32", 1, width))
    offset = ((f.bias - _BIAS) << _MANTISSA) + (1 << (shift - 1)) - 1
    moved = fn.binary("add", fn.binary("add", magnitude, _integer("i32", offset, width)), odd)
    normal = fn.binary("lshr", moved, _integer("i32", shift, width))
    # Subnormal ones: added to a number whose last bit is worth their last bit, so that the addition rounds.
    magic = 2.0 ** (1 - f.bias - f.mantissa + _MANTISSA)
    absolute = fn.convert("bitcast", magnitude, floats)
    raised = fn.convert("bitcast", fn.binary("fadd", absolute, _float(magic, width)), ints)
    subnormal = fn.binary("sub", raised, _integer("i32", _bits(magic), width))
    is_subnormal = fn.icmp("ult", magnitude, _integer("i32", _bits(2.0 ** (1 - f.bias)), width))
    code = fn.select(is_subnormal, subnormal, normal)
    code = fn.select(fn.icmp("ugt", code, _integer("i32", f.top, width)), _integer("i32", f.over, width), code)
    is_nan = fn.icmp("ugt", magnitude, _integer("i32", _INFINITY, width))
    if f.signed_nan:
        code = fn.select(is_nan, _integer("i32", f.nan, width), code)
    down = _integer("i32", 32 - f.sign.bit_length(), width)
    sign = fn.binary("and", fn.binary("lshr", bits, down), _integer("i32", f.sign, width))
    made = fn.binary("or", code, sign)
    if not f.has_negative_zero:
        made = fn.select(fn.icmp("eq", code, _integer("i32", 0, width)), code, made)
    if not f.signed_nan:
        lost = (
            is_nan if f.over == f.top else fn.binary("or", is_nan, fn.icmp("eq", code, _integer("i32", f.over, width)))
        )
        made = fn.select(lost, _integer("i32", f.nan, width), made)
    return fn.convert("trunc", made, vector("i8", width))


# --- exponents alone --------------------------------------------------------------------------------------------------
def _decode_exponent(fn: Function, x: V, width: int) -> V:
    """The code is float32's exponent; code 0 is 2**-127, subnormal there, and 255 is NaN."""
    bits = fn.convert("zext", x, vector("i32", width))
    moved = fn.binary("shl", bits, _integer("i32", _MANTISSA, width))
    moved = fn.select(
        fn.icmp("eq", bits, _integer("i32", 0, width)), _integer("i32", 1 << (_MANTISSA - 1), width), moved
    )
    quiet = fn.binary("or", moved, _integer("i32", 1 << (_MANTISSA - 1), width))
    chosen = fn.select(fn.icmp("eq", bits, _integer("i32", 0xFF, width)), quiet, moved)
    return fn.convert("bitcast", chosen, vector("float", width))


def _encode_exponent(fn: Function, bits: V, width: int) -> V:
    """The nearest power of two, the larger of two equally near; NaN for what is not above 0."""
    half = _integer("i32", 1 << (_MANTISSA - 1), width)
    normal = fn.binary("lshr", fn.binary("add", bits, half), _integer("i32", _MANTISSA, width))
    from_half = fn.icmp("uge", bits, _integer("i32", 3 << (_MANTISSA - 2), width))  # halfway from 2**-127 to 2**-126
    subnormal = fn.select(from_half, _integer("i32", 1, width), _integer("i32", 0, width))
    code = fn.select(fn.icmp("ult", bits, _integer("i32", 1 << _MANTISSA, width)), subnormal, normal)
    is_number = fn.icmp("ult", fn.binary("sub", bits, _integer("i32", 1, width)), _integer("i32", _INFINITY, width))
    made = fn.select(is_number, code, _integer("i32", 0xFF, width))
    return fn.convert("trunc", made, vector("i8", width))


def _bits(value: float) -> int:
    return int(struct.unpack("I", struct.pack("f", value))[0])


def _integer(scalar: str, value: int, width: int) -> V:
    return V(scalar, str(value)) if width == 1 else V(vector(scalar, width), f"splat ({scalar} {value})")


def _float(value: float, width: int) -> V:
    text = f"0x{struct.unpack('Q', struct.pack('d', value))[0]:016X}"
    return V("float", text) if width == 1 else V(vector("float", width), f"splat (float {text})")
