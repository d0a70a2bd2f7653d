"""How dtypes and scalar functions look in LLVM.

In memory a bool is an i8; integers and floats of fewer than 8 bits are bytes. In registers a bool is an i1 and every
float of 16 bits or fewer is a `float`: arithmetic on them is done in 32 bits and rounded when stored or cast.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from stitchwork.backends.cpu import small_floats
from stitchwork.backends.cpu.llvm import Function, V, lanes, vector
from stitchwork.ir.dtypes import DType, bfloat16, bool_, float16, float64, highest, lowest

_HALVES = {float16: "half", bfloat16: "i16"}  # not LLVM's bfloat: CPUs without the instructions would need a library


def memory_type(dtype: DType) -> str:
    """The LLVM type of an element in memory."""
    if dtype.kind == "f" and dtype.bits > 8:
        return _HALVES.get(dtype, "double" if dtype is float64 else "float")
    return f"i{max(dtype.bits, 8)}"


def register_type(dtype: DType) -> str:
    """The LLVM type of an element in computations."""
    if dtype.kind == "f":
        return "double" if dtype is float64 else "float"
    return "i1" if dtype is bool_ else f"i{max(dtype.bits, 8)}"


def literal(value: bool | int | float | complex, dtype: DType, width: int = 1) -> V:
    """A literal of a dtype in register form, the same in every lane."""
    scalar = register_type(dtype)
    if dtype.kind == "f":
        number = float(value.real)
        if dtype is not float64:
            number = struct.unpack("f", struct.pack("f", number))[0] if abs(number) < 3.5e38 else number
        text = f"0x{struct.unpack('Q', struct.pack('d', number))[0]:016X}"
    elif dtype is bool_:
        text = "true" if value else "false"
    else:
        bits = max(dtype.bits, 8)
        number = int(value.real) & ((1 << bits) - 1)
        text = str(number - (1 << bits) if number >> (bits - 1) else number)
    if width == 1:
        return V(scalar, text)
    return V(vector(scalar, width), f"splat ({scalar} {text})")


def from_memory(fn: Function, x: V, dtype: DType) -> V:
    """A loaded element (or vector) in register form."""
    width = lanes(x.type)[1]
    target = vector(register_type(dtype), width)
    if dtype is bool_:
        return fn.icmp("ne", x, _zero(x.type))
    if dtype is bfloat16:
        wide = fn.binary("shl", fn.convert("zext", x, vector("i32", width)), _integer("i32", 16, width))
        return fn.convert("bitcast", wide, target)
    if dtype is float16:
        return fn.convert("fpext", x, target)
    if small_floats.is_small(dtype):
        return small_floats.decode(fn, x, dtype)
    return _wrap_small(fn, x, dtype)


def to_memory(fn: Function, x: V, dtype: DType) -> V:
    """A register value as it is stored."""
    width = lanes(x.type)[1]
    if dtype is bool_:
        return fn.convert("zext", x, vector("i8", width))
    if dtype is bfloat16:
        return _encode_bf16(fn, x, width)
    if dtype is float16:
        return fn.convert("fptrunc", x, vector("half", width))
    if small_floats.is_small(dtype):
        return small_floats.encode(fn, x, dtype)
    return x


def round_to(fn: Function, x: V, dtype: DType) -> V:
    """A register value with the precision that memory would give it."""
    if dtype in _HALVES or small_floats.is_small(dtype):
        return from_memory(fn, to_memory(fn, x, dtype), dtype)
    return _wrap_small(fn, x, dtype)


def _zero(type_: str) -> V:
    return V(type_, "zeroinitializer" if type_[0] == "<" else "0")


def _integer(scalar: str, value: int, width: int) -> V:
    if width == 1:
        return V(scalar, str(value))
    return V(vector(scalar, width), "<" + ", ".join([f"{scalar} {value}"] * width) + ">")


def _wrap_small(fn: Function, x: V, dtype: DType) -> V:
    """An integer of fewer than 8 bits, from the low bits of a byte; other integers as they are."""
    if dtype.bits >= 8:
        return x
    unused = _integer("i8", 8 - dtype.bits, lanes(x.type)[1])
    return fn.binary("ashr" if dtype.kind == "i" else "lshr", fn.binary("shl", x, unused), unused)


def _encode_bf16(fn: Function, x: V, width: int) -> V:
    """The upper half of the float, rounded to nearest even; a NaN stays one."""
    ints = vector("i32", width)
    bits = fn.convert("bitcast", x, ints)
    odd = fn.binary("and", fn.binary("lshr", bits, _integer("i32", 16, width)), _integer("i32", 1, width))
    rounded = fn.binary("add", fn.binary("add", bits, _integer("i32", 0x7FFF, width)), odd)
    quiet = fn.binary("or", bits, _integer("i32", 0x400000, width))
    chosen = fn.select(fn.fcmp("uno", x, x), quiet, rounded)
    return fn.convert("trunc", fn.binary("lshr", chosen, _integer("i32", 16, width)), vector("i16", width))


# --- scalar functions ---------------------------------------------------------------------------------------------
_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "rem": "frem"}
_INT = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_FLOAT_COMPARE = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_UNARY = {
    **{f: f"llvm.{f}" for f in ("floor", "ceil", "trunc", "sqrt")},
    "rint": "llvm.roundeven",
    "abs": "llvm.fabs",
}


def call(fn: Function, name: str, dtype: DType, args: list[V]) -> V:
    """A scalar function on register values; `dtype` is the operands' (of `select`, the result's)."""
    if name == "select":
        return fn.select(*args)
    if name in _FLOAT_COMPARE:
        return _compare(fn, name, dtype, args)
    if dtype.kind == "f":
        return _float_call(fn, name, args)
    return _bool_call(fn, name, args) if dtype is bool_ else _int_call(fn, name, dtype, args)


def _compare(fn: Function, name: str, dtype: DType, args: list[V]) -> V:
    if dtype.kind == "f":
        return fn.fcmp(_FLOAT_COMPARE[name], *args)
    unsigned = dtype.kind in "ub"
    return fn.icmp(name if name in ("eq", "ne") else ("u" if unsigned else "s") + name, *args)


def _float_call(fn: Function, name: str, args: list[V]) -> V:
    a = args[0]
    if name in _FLOAT:
        return fn.binary(_FLOAT[name], *args)
    if name in _UNARY:
        return fn.intrinsic(_UNARY[name], a.type, args)
    match name:
        case "neg":
            return fn.emit(a.type, f"fneg {a}")
        case "fma":
            return fn.fma(*args)
        case "max" | "min":
            return _propagating(fn, name, *args)
        case "fmax" | "fmin":
            return fn.intrinsic("llvm.maxnum" if name == "fmax" else "llvm.minnum", a.type, args)
        case "copysign":
            return fn.intrinsic("llvm.copysign", a.type, args)
        case "isnan":
            return fn.fcmp("uno", a, a)
        case "isinf" | "isfinite":
            magnitude = fn.intrinsic("llvm.fabs", a.type, [a])
            infinity = V(a.type, _splat_text(a.type, "0x7FF0000000000000"))
            return fn.fcmp("oeq" if name == "isinf" else "olt", magnitude, infinity)
        case "signbit":
            scalar, width = lanes(a.type)
            ints = vector("i64" if scalar == "double" else "i32", width)
            return fn.icmp("slt", fn.convert("bitcast", a, ints), _zero(ints))
        case _:
            raise AssertionError(f"{name} of floats was not expanded")


def _splat_text(type_: str, text: str) -> str:
    scalar, width = lanes(type_)
    return text if width == 1 else f"splat ({scalar} {text})"


def _propagating(fn: Function, name: str, a: V, b: V) -> V:
    """max or min that gives NaN where either is NaN. With a literal on one side one compare and select do (the x86
    instruction itself), as a NaN on the other side fails the compare and is selected."""
    if _is_literal(b):
        a, b = b, a
    predicate = "ogt" if name == "max" else "olt"
    chosen = fn.select(fn.fcmp(predicate, a, b), a, b)
    return chosen if _is_literal(a) else fn.select(fn.fcmp("uno", a, a), a, chosen)


def _is_literal(x: V) -> bool:
    return x.ref[0] != "%" and "0x7FF8" not in x.ref


def _bool_call(fn: Function, name: str, args: list[V]) -> V:
    a = args[0]
    match name:
        case "and" | "or" | "xor":
            return fn.binary(name, *args)
        case "mul" | "min" | "fmin":
            return fn.binary("and", *args)
        case "add" | "max" | "fmax":
            return fn.binary("or", *args)
        case "not":
            return fn.binary("xor", a, V(a.type, _splat_text(a.type, "true")))
        case "sub":
            return fn.binary("xor", *args)
        case _:
            raise AssertionError(f"{name} of bools")


def _int_call(fn: Function, name: str, dtype: DType, args: list[V]) -> V:
    a = args[0]
    if name in _INT:
        made = fn.binary(_INT[name], *args)
        return _wrap_small(fn, made, dtype)
    signed = dtype.kind == "i"
    match name:
        case "neg":
            return _wrap_small(fn, fn.binary("sub", _zero(a.type), a), dtype)
        case "not":
            return _wrap_small(fn, fn.binary("xor", a, V(a.type, _splat_text(a.type, "-1"))), dtype)
        case "abs":
            if not signed:
                return a
            scalar, width = lanes(a.type)
            suffix = scalar if width == 1 else f"v{width}{scalar}"
            return fn.call(f"llvm.abs.{suffix}", a.type, [a, V("i1", "false")])
        case "max" | "fmax" | "min" | "fmin":
            return fn.intrinsic(f"llvm.{'s' if signed else 'u'}{name[-3:]}", a.type, args)
        case "div" | "rem" | "floordiv" | "mod":
            return _divide(fn, name, dtype, *args)
        case "shl" | "shr":
            return _wrap_small(fn, _shift(fn, name, dtype, *args), dtype)
        case "popcount":
            return fn.intrinsic("llvm.ctpop", a.type, args)
        case "clz":
            scalar, width = lanes(a.type)
            suffix = scalar if width == 1 else f"v{width}{scalar}"
            return fn.call(f"llvm.ctlz.{suffix}", a.type, [a, V("i1", "false")])
        case "isnan" | "isinf":
            return V(vector("i1", lanes(a.type)[1]), _splat_text(vector("i1", lanes(a.type)[1]), "false"))
        case "isfinite":
            return V(vector("i1", lanes(a.type)[1]), _splat_text(vector("i1", lanes(a.type)[1]), "true"))
        case "signbit":
            return fn.icmp("slt", a, _zero(a.type)) if signed else fn.icmp("ult", a, _zero(a.type))
        case _:
            raise AssertionError(f"{name} of integers was not expanded")


def _divide(fn: Function, name: str, dtype: DType, a: V, b: V) -> V:
    """Integer division that cannot trap: by 0 it gives 0, and the lowest number by -1 wraps."""
    zero, one = _zero(a.type), V(a.type, _splat_text(a.type, "1"))
    positive = _is_literal(b) and lanes(b.type)[1] == 1 and int(b.ref) > 0
    if dtype.kind == "u":
        safe = b if positive else fn.select(fn.icmp("eq", b, zero), one, b)
        made = fn.binary("udiv" if name in ("div", "floordiv") else "urem", a, safe)
        return made if positive else fn.select(fn.icmp("eq", b, zero), zero, made)
    if positive:
        return _signed_divide(fn, name, a, b, zero)
    is_zero = fn.icmp("eq", b, zero)
    is_minus_one = fn.icmp("eq", b, V(b.type, _splat_text(b.type, "-1")))
    made = _signed_divide(fn, name, a, fn.select(fn.binary("or", is_zero, is_minus_one), one, b), zero)
    by_minus_one = fn.binary("sub", zero, a) if name in ("div", "floordiv") else zero
    return fn.select(is_zero, zero, fn.select(is_minus_one, by_minus_one, made))


def _signed_divide(fn: Function, name: str, a: V, b: V, zero: V) -> V:
    if name in ("div", "rem"):
        return fn.binary("sdiv" if name == "div" else "srem", a, b)
    rest = fn.binary("srem", a, b)
    opposite = fn.icmp("slt", fn.binary("xor", rest, b), zero)
    adjust = fn.binary("and", opposite, fn.icmp("ne", rest, zero))
    if name == "mod":
        return fn.select(adjust, fn.binary("add", rest, b), rest)
    quotient = fn.binary("sdiv", a, b)
    return fn.binary("add", quotient, fn.convert("sext", adjust, a.type))


def _shift(fn: Function, name: str, dtype: DType, a: V, b: V) -> V:
    """A shift by the width or more (or by a negative number) gives 0, or the sign for a signed right shift."""
    bits = V(a.type, _splat_text(a.type, str(max(dtype.bits, 8))))
    inside = fn.icmp("ult", b, bits)
    top = V(a.type, _splat_text(a.type, str(max(dtype.bits, 8) - 1)))
    amount = fn.select(inside, b, top)
    if name == "shr" and dtype.kind == "i":
        return fn.binary("ashr", a, amount)
    return fn.select(inside, fn.binary("shl" if name == "shl" else "lshr", a, amount), _zero(a.type))


def cast(fn: Function, x: V, source: DType, target: DType) -> V:
    """Value conversion between register forms."""
    width = lanes(x.type)[1]
    wanted = vector(register_type(target), width)
    if target is bool_:
        if source.kind == "f":
            return fn.fcmp("une", x, V(x.type, "zeroinitializer" if width > 1 else "0.0"))
        return x if source is bool_ else fn.icmp("ne", x, _zero(x.type))
    if source.kind == "f" and target.kind == "f":
        made = x
        if x.type != wanted:
            made = fn.convert("fpext" if target is float64 else "fptrunc", x, wanted)
        return round_to(fn, made, target)
    if source.kind == "f":  # freeze: a number out of range must stay one number, not undefined behaviour
        narrow = target.bits < 32
        kind = "fptosi" if target.kind == "i" or narrow else "fptoui"
        made = fn.convert(kind, x, vector("i32", width) if narrow else wanted)
        made = fn.emit(made.type, f"freeze {made}")
        made = fn.convert("trunc", made, wanted) if narrow else made
        return _wrap_small(fn, made, target)
    if target.kind == "f":
        made = fn.convert("sitofp" if source.kind == "i" else "uitofp", x, wanted)
        return round_to(fn, made, target)
    if x.type == wanted:
        return _wrap_small(fn, x, target)
    if source is bool_:
        return fn.convert("zext", x, wanted)
    if max(source.bits, 8) > max(target.bits, 8):
        return _wrap_small(fn, fn.convert("trunc", x, wanted), target)
    return fn.convert("sext" if source.kind == "i" else "zext", x, wanted)


def bitcast(fn: Function, x: V, source: DType, target: DType) -> V:
    """The bits of a value, as memory would hold them, read as another dtype of the same width."""
    raw = to_memory(fn, x, source)
    wanted = vector(memory_type(target), lanes(raw.type)[1])
    if raw.type != wanted:
        raw = fn.convert("bitcast", raw, wanted)
    return from_memory(fn, raw, target)


def identity_of(kind: str, dtype: DType) -> bool | int | float:
    """What a reduction starts from."""
    match kind:
        case "sum" | "or":
            return 0
        case "product" | "and":
            return -1 if kind == "and" and dtype.is_integer else 1
        case "max" | "fmax":
            return lowest(dtype)
        case _:
            return highest(dtype)


COMBINE: dict[str, str] = {
    "sum": "add",
    "product": "mul",
    "max": "max",
    "min": "min",
    "fmax": "fmax",
    "fmin": "fmin",
    "and": "and",
    "or": "or",
}


def combiner(kind: str, dtype: DType) -> Callable[[Function, V, V], V]:
    """How a reduction merges two register values."""
    name = COMBINE[kind]
    return lambda fn, a, b: call(fn, name, dtype, [a, b])
