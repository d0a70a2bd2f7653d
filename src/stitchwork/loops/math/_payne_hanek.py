"""Huge arguments of sin, cos and tan: x 2/pi with the bits of 2/pi that matter for x."""

from __future__ import annotations

import itertools

from stitchwork.ir.dtypes import float64, int64, uint64
from stitchwork.loops.expr import Const, Expr, bitcast, call, cast, where
from stitchwork.loops.math._profile import DOUBLE, PI, Profile, fma, two_sum

_ZEROS = 8  # before the digits of 2/pi, for exponents that need less than all of them
_TWO_OVER_PI_BITS = 1208  # 971 of the exponent, 192 of the result, rounded up so that the words are 19


def _arctangent_of_inverse(n: int, bits: int) -> int:
    """atan(1 / n) times 2**bits."""
    power = total = (1 << bits) // n
    k = 1
    while power:
        power //= -n * n
        k += 2
        total += power // k
    return total


def _two_over_pi(bits: int) -> int:
    """2 / pi times 2**bits, by Machin's formula."""
    guard = bits + 64
    pi = 4 * (4 * _arctangent_of_inverse(5, guard) - _arctangent_of_inverse(239, guard))
    return (2 << (guard + bits)) // pi


_DIGITS = _two_over_pi(_TWO_OVER_PI_BITS)


def reduce_by_parts(a: Expr, p: Profile) -> tuple[Expr, Expr]:
    """(r, q) of a float32 (in either format) by products with 24-bit parts of 2/pi, which float64 holds exactly.

    Whole multiples of 4 quadrants leave each product before they are added.
    """
    x = cast(a, float64)
    total: Expr = Const(0.0, float64)
    error: Expr = Const(0.0, float64)
    for k in range(9):  # 216 bits: 128 of the exponent, 24 lost to x itself, 64 for the result
        digits = (_DIGITS >> (_TWO_OVER_PI_BITS - 24 * (k + 1))) & 0xFFFFFF
        product = x * (digits * 2.0 ** (-24 * (k + 1)))
        product = fma(call("rint", product * 0.25), -4.0, product)
        if k == 0:
            total = product
            continue
        new = total + product
        part = new - total
        error = error + ((total - (new - part)) + (product - part))
        total = new
    n = call("rint", total)
    r = ((total - n) + error) * float(PI / 2)
    return cast(r, p.dtype), bitcast(cast(n, p.dtype) + 1.5 * 2.0**p.mantissa, p.signed)


def reduce_by_integers(a: Expr) -> tuple[Expr, Expr]:
    """(r, q) of a float64 of at least 2**47 by a product of integers: 53 bits of it with 192 bits of 2/pi."""
    bits = bitcast(a, uint64)
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    # a = mantissa * 2**e, and the bits of 2/pi that come before bit e - 2 give whole multiples of 4 quadrants.
    position = call("shr", bits, 52) - (1023 + 52 + 2 - _ZEROS)
    words = _window(call("shr", position, 6), position & 63)
    high = _high_product(mantissa, words[1])
    low = _high_product(mantissa, words[2])
    second = mantissa * words[1]
    lower = second + low
    upper = mantissa * words[0] + high + cast(lower < second, uint64)  # 2 bits of quadrants, 62 of their fraction
    nearest = call("shr", upper + (1 << 61), 62)
    fraction = upper - call("shl", nearest, 62)
    head, tail = two_sum(cast(bitcast(fraction, int64), float64) * 2.0**-62, cast(lower, float64) * 2.0**-126)
    parts = DOUBLE.parts(PI / 2, 2)
    r = fma(head, parts[0], fma(head, parts[1], tail * parts[0]))
    return r + (a - a), bitcast(nearest, int64)  # a - a: NaN for infinities


def _window(index: Expr, shift: Expr) -> list[Expr]:
    """Three words of the digits of 2/pi from bit 64 * index + shift on."""
    count = (_ZEROS + _TWO_OVER_PI_BITS) // 64
    mask = (1 << 64) - 1
    words: list[Expr] = [Const((_DIGITS >> (64 * (count - 1 - k))) & mask, uint64) for k in range(count)]
    for step, keep in ((8, 11), (4, 7), (2, 5), (1, 4)):
        chosen = (index & step).ne(0)
        words = [where(chosen, words[min(k + step, len(words) - 1)], words[k]) for k in range(keep)]
    rest = Const(64, uint64) - shift  # a shift by 64 gives 0
    return [call("shl", w, shift) | call("shr", v, rest) for w, v in itertools.pairwise(words)]


def _high_product(a: Expr, b: Expr) -> Expr:
    """The upper 64 of the 128 bits of a product of two u64."""
    half = (1 << 32) - 1
    a_high, a_low, b_high, b_low = call("shr", a, 32), a & half, call("shr", b, 32), b & half
    middle = a_high * b_low + call("shr", a_low * b_low, 32)
    other = a_low * b_high + (middle & half)
    return a_high * b_high + call("shr", middle, 32) + call("shr", other, 32)
