"""Fourier transforms of sizes known when the model is compiled, as products with matrices of roots of unity.

Exported audio models transform frames of a few hundred samples: there a matrix product is as good as a fast transform.
"""

from __future__ import annotations

import numpy as np

from stitchwork.importers.onnx.node import Node
from stitchwork.importers.onnx.registry import F, Results, onnx_op
from stitchwork.ir.graph import Array, Value

_LARGEST = 8192


@onnx_op("DFT")
def dft_with_axis_attribute(node: Node) -> Results:
    return _dft(node, node.int("axis", 1))


@onnx_op("DFT", since=20)
def dft(node: Node) -> Results:
    return _dft(node, int(node.number(2, "axis", -2)))


def _dft(node: Node, axis: int) -> Value:
    """x [..., n, ..., 1 or 2] (real, or real and imaginary) along an axis; the result has pairs last.

    With `inverse` and `onesided` the rows are the first half of a Hermitian spectrum and the result is real.
    """
    x = node[0]
    axis %= x.rank
    inverse, onesided = bool(node.int("inverse", 0)), bool(node.int("onesided", 0))
    if axis == x.rank - 1:
        raise node.invalid("`axis` is the dim of real and imaginary parts")
    size = node.ints(1, "dft_length")[0] if node.optional(1) is not None else x.shape[axis]
    if node.optional(1) is None and inverse and onesided:
        size = 2 * (x.shape[axis] - 1)
    if not isinstance(size, int) or size > _LARGEST:
        raise node.unsupported(f"a transform whose size is not a number of at most {_LARGEST}", got=str(size))
    rows = size // 2 + 1 if inverse and onesided else size
    real, imaginary = _parts(node, x, axis, rows)
    if inverse and onesided:
        made = _real_inverse(node, real, imaginary, size)
        return F.permute(F.expand_dims(made, axes=-1), permutation=_back(x.rank, axis))
    c, s = _roots(size, size // 2 + 1 if onesided else size, 1 if inverse else -1)
    a, b = _product(node, real, imaginary, *((c / size, s / size) if inverse else (c, s)))
    return F.permute(F.stack([a, b], axis=-1), permutation=_back(x.rank, axis))


def _roots(n: int, columns: int, sign: int) -> tuple[Array, Array]:
    """Real and imaginary part of exp(sign * 2 pi i j k / n), [n, columns]. Angles are reduced first, to stay exact."""
    angle = 2 * np.pi / n * (np.outer(np.arange(n), np.arange(columns)) % n)
    return np.cos(angle), sign * np.sin(angle)


def _parts(node: Node, x: Value, axis: int, rows: int) -> tuple[Value, Value | None]:
    """Real and (where there is one) imaginary part with the axis last, cut or filled with zeros to `rows`."""
    missing = rows - x.shape[axis]
    if not isinstance(missing, int):
        raise node.unsupported("an axis whose size is not known when the model is compiled", got=str(x.shape[axis]))
    if missing:
        x = F.pad(x, (0,) * x.rank, tuple(missing if d == axis else 0 for d in range(x.rank)))
    moved = F.permute(x, permutation=(*(d for d in range(x.rank - 1) if d != axis), axis, x.rank - 1))
    if x.shape[-1] == 1:
        return F.squeeze(moved, axes=-1), None
    halves = [F.slice(moved, (*(None,) * (x.rank - 1), k), None, squeeze_mask=1 << (x.rank - 1)) for k in (0, 1)]
    return halves[0], halves[1]


def _back(rank: int, axis: int) -> tuple[int, ...]:
    """The permutation that puts dim rank - 2 back at `axis`."""
    order = [d for d in range(rank - 1) if d != axis]
    return (*(order.index(d) if d != axis else rank - 2 for d in range(rank - 1)), rank - 1)


def _constant(node: Node, matrix: Array, like: Value) -> Value:
    return node.importer.constant(np.ascontiguousarray(matrix).astype(like.dtype.numpy))


def _product(node: Node, real: Value, imaginary: Value | None, cosines: Array, sines: Array) -> tuple[Value, Value]:
    """(real + i imaginary) @ (cosines + i sines)."""
    c, s = _constant(node, cosines, real), _constant(node, sines, real)
    a, b = F.matmul(real, c), F.matmul(real, s)
    if imaginary is None:
        return a, b
    return F.subtraction(a, F.matmul(imaginary, s)), F.addition(b, F.matmul(imaginary, c))


def _real_inverse(node: Node, real: Value, imaginary: Value | None, size: int) -> Value:
    """The real signal of the first half of its spectrum: rows but the first and the middle one count twice."""
    half = size // 2 + 1
    weight = np.full(half, 2.0)
    weight[0] = 1
    if size % 2 == 0:
        weight[-1] = 1
    c, s = (_constant(node, (m * weight / size).T, real) for m in _roots(size, half, 1))
    made = F.matmul(real, c)
    return made if imaginary is None else F.subtraction(made, F.matmul(imaginary, s))


@onnx_op("STFT")
def short_time_transform(node: Node) -> Results:
    """Frames of the signal [b, n, 1 or 2], each times the window and transformed: [b, frames, bins, 2].

    A frame is a window of a convolution whose features are the transform's columns.
    """
    signal, step = node[0], int(node.number(1, "frame_step"))
    window = node.array(2)
    if node.optional(2) is not None and window is None:
        raise node.unknown(2, "window")
    length = int(node.number(3, "frame_length")) if node.optional(3) is not None else 0
    length = length or (0 if window is None else window.size)
    if not 0 < length <= _LARGEST or step <= 0:
        raise node.unsupported("frames without a size", got=f"frame_length {length}, frame_step {step}")
    onesided = bool(node.int("onesided", 1))
    c, s = _roots(length, length // 2 + 1 if onesided else length, -1)
    if window is not None:
        c, s = (m * window.astype(np.float64)[:, None] for m in (c, s))
    bins = c.shape[1]
    both = np.concatenate([c, s], axis=1)
    if signal.shape[-1] == 2:
        both = np.stack([both, np.concatenate([-s, c], axis=1)], axis=1)
    kernel = _constant(node, both.reshape(length, -1, 2 * bins), signal)
    x = signal if signal.rank == 3 else F.expand_dims(signal, axes=-1)
    made = F.conv1d(x, kernel, strides=step)
    return F.permute(F.reshape(made, shape=(*made.shape[:2], 2, bins)), permutation=(0, 1, 3, 2))
