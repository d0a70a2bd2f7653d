"""A slow evaluator of loop expressions and nests, the definition of what they mean.

`evaluate` works on all positions at once; `run_nest` runs statements one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from loops import scalar_functions
from loops.scalar_functions import Array, narrow, widen
from stitchwork.ir import dims
from stitchwork.ir.dtypes import DType, float32, highest, lowest
from stitchwork.loops.expr import (
    Axis,
    Bitcast,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Extent,
    Load,
    Reduce,
)
from stitchwork.loops.nest import For, If, Let, Scratch, Statement, Store, While


def evaluate(
    e: Expr, out_axes: tuple[Axis, ...], arrays: Mapping[Buffer, Array], sizes: Mapping[str, int] | None = None
) -> Array:
    """`e` at every position of `out_axes`: an array of their extents. `sizes` gives symbols their values."""
    sizes = sizes or {}
    shape = tuple(dims.evaluate(a.extent, sizes) for a in out_axes)
    _check_arrays(arrays, sizes)
    scope = _Scope(arrays, sizes, {})
    for axis in reversed(out_axes):
        scope.add_axis(axis)
    with np.errstate(all="ignore"):
        value = scope.value(e)
        own = value.shape[max(value.ndim - len(shape), 0) :]  # the dims before are those of reduced axes, all 1
        return np.array(np.broadcast_to(value.reshape(own), shape))


def run_nest(
    statements: Sequence[Statement], arrays: Mapping[Buffer, Array], sizes: Mapping[str, int] | None = None
) -> None:
    """Run statements, which write into `arrays`.

    Parallel and vector loops run backwards, so that a dependence between their iterations shows; scratch buffers are
    filled with junk for each of their iterations.
    """
    sizes = sizes or {}
    _check_arrays(arrays, sizes)
    with np.errstate(all="ignore"):
        _Machine(arrays, sizes).run(statements)


def _check_arrays(arrays: Mapping[Buffer, Array], sizes: Mapping[str, int]) -> None:
    for buffer, array in arrays.items():
        shape = tuple(dims.evaluate(n, sizes) for n in buffer.shape)
        assert (array.dtype, array.shape) == (buffer.dtype.numpy, shape), f"{array.dtype}{array.shape} for {shape}"


class _Scope:
    """Values of nodes. Every axis has a dim of its own, counted from the last, so values of any rank broadcast."""

    def __init__(self, arrays: Mapping[Buffer, Array], sizes: Mapping[str, int], known: dict[Expr, Array]) -> None:
        self.arrays, self.sizes, self.known = arrays, sizes, known
        self.dims: dict[Axis, int] = {}

    def add_axis(self, axis: Axis) -> None:
        """Let `axis` run over its extent."""
        if axis not in self.dims:
            rank = len(self.dims)
            self.dims[axis] = -rank - 1
            positions = np.arange(dims.evaluate(axis.extent, self.sizes), dtype=np.int64)
            self.known[axis] = positions.reshape(-1, *(1,) * rank)

    def value(self, e: Expr) -> Array:
        """The value of `e`, in its dtype."""
        found = self.known.get(e)
        if found is None:
            found = self._compute(e)
            assert found.dtype == e.dtype.numpy, f"{getattr(e, 'fn', type(e).__name__)}: {found.dtype} for {e.dtype}"
            self.known[e] = found
        return found

    def _compute(self, e: Expr) -> Array:
        match e:
            case Const():
                return constant(e.value, e.dtype)
            case Extent():
                return np.asarray(dims.evaluate(e.size, self.sizes), np.int64)
            case Call():
                dtype = check_arguments(e)
                return scalar_functions.call(e.fn, [self.value(a) for a in e.args], dtype, e.dtype)
            case Cast():
                return convert(self.value(e.x), e.x.dtype, e.dtype)
            case Bitcast():
                assert e.x.dtype.bits == e.dtype.bits
                return reinterpret(self.value(e.x), e.dtype)
            case Load():
                return self._load(e)
            case Reduce():
                return self._reduce(e)
            case _:
                raise TypeError(f"{type(e).__name__} {getattr(e, 'name', '')} has no value here")

    def _load(self, e: Load) -> Array:
        array = self.arrays[e.buffer]
        index: list[Array] = list(np.broadcast_arrays(*(self.value(i) for i in e.index))) if e.index else []
        assert len(index) == array.ndim and all(i.dtype == np.int64 for i in index)
        return load(array, index, e.boundary, constant(e.fill, e.dtype))

    def _reduce(self, e: Reduce) -> Array:
        for axis in reversed(e.axes):
            self.add_axis(axis)
        body = self.value(e.body)
        rank = max(body.ndim, *(-self.dims[a] for a in e.axes)) if e.axes else body.ndim
        body = body.reshape((1,) * (rank - body.ndim) + body.shape)
        places = [rank + self.dims[a] for a in e.axes]
        shape = list(body.shape)
        for axis, place in zip(e.axes, places, strict=True):
            shape[place] = self.known[axis].size
        last = tuple(range(rank - len(places), rank))
        moved = np.moveaxis(np.broadcast_to(body, shape), places, last)
        flat = moved.reshape(*moved.shape[: rank - len(places)], int(np.prod(moved.shape[rank - len(places) :])))
        for place in places:
            shape[place] = 1
        return reduce(e.kind, flat, e.body.dtype).reshape(shape)


def check_arguments(e: Call) -> DType:
    """The dtype that `e` works on. Asserts that its arguments have it."""
    args = e.args[1:] if e.fn == "select" else e.args
    assert e.fn != "select" or e.args[0].dtype.kind == "b", f"select by {e.args[0].dtype}"
    assert all(a.dtype is args[0].dtype for a in args), f"{e.fn} of {[a.dtype for a in e.args]}"
    return args[0].dtype


def constant(value: Any, dtype: DType) -> Array:
    """A literal as an array of rank 0. Integers wrap."""
    if dtype.is_integer:
        bits = int(value) & ((1 << dtype.bits) - 1)
        signed = bits - (1 << dtype.bits) if dtype.kind == "i" and bits >> (dtype.bits - 1) else bits
        return np.asarray(signed, dtype.numpy)
    return np.asarray(value).astype(dtype.numpy)


def convert(a: Array, source: DType, target: DType) -> Array:
    """A as `target`, as NumPy's astype does it; 4-bit integers wrap."""
    if source.is_complex and not target.is_complex and target.kind != "b":
        a, source = np.real(a), (float32 if a.dtype == np.complex64 else source)
    if source.kind in "iuf" and source.bits < 32:
        a = widen(a, source)
    if target.kind == "b":
        return np.asarray(a != 0)
    if target.is_integer and target.bits < 32 and a.dtype.kind == "f":
        a = a.astype(np.int32)
    return narrow(a, target)


def reinterpret(a: Array, target: DType) -> Array:
    """The bits of `a` as `target`."""
    if target.bits == 4:
        return narrow(a.astype(np.int8), target)
    return np.ascontiguousarray(a).view(target.numpy).reshape(a.shape)


# --- loads --------------------------------------------------------------------------------------------------------
def load(array: Array, index: list[Array], boundary: str, fill: Array) -> Array:
    """Elements of `array` at broadcast indices, with `boundary` as Load defines it."""
    if not index:
        return array
    inside = np.ones(index[0].shape, np.bool_)
    flip = np.zeros(index[0].shape, np.bool_)
    mapped: list[Array] = []
    for i, n in zip(index, array.shape, strict=True):
        if boundary in ("", "constant"):
            ok = (i >= 0) & (i < n)
            assert boundary or np.all(ok), f"index {i[~ok][:3]} outside a dim of {n}"
            inside &= ok
            mapped.append(np.where(ok, i, 0))
        else:
            assert n or not i.size, f"boundary {boundary!r} of an empty dim"
            mapped.append(_map_inside(i, max(n, 1), boundary))
            flip ^= (boundary == "antiperiodic") & (i // max(n, 1) % 2 == 1)
    if not np.all(inside) or not array.size:
        found = np.full(inside.shape, fill, array.dtype)
        found[inside] = array[tuple(i[inside] for i in mapped)]
        return found
    found = array[tuple(mapped)]
    return np.where(flip, -found, found).astype(array.dtype) if boundary == "antiperiodic" else found


def _map_inside(i: Array, n: int, boundary: str) -> Array:
    if boundary == "clamp":
        return np.clip(i, 0, n - 1)
    if boundary == "reflect":
        period = max(2 * (n - 1), 1)
        return np.minimum(i % period, period - i % period) if n > 1 else np.zeros_like(i)
    if boundary == "symmetric":
        return np.minimum(i % (2 * n), 2 * n - 1 - i % (2 * n))
    assert boundary in ("periodic", "antiperiodic"), boundary
    return i % n


# --- reductions ---------------------------------------------------------------------------------------------------
def reduce(kind: str, a: Array, dtype: DType) -> Array:
    """`a` combined over its last axis. Narrow floats accumulate in float32."""
    wide = widen(a, dtype)
    if kind in ("argmax", "argmin"):
        return _first_extreme(kind, wide)
    if kind in ("sum", "product"):
        if dtype.kind == "b":
            return np.any(a, -1) if kind == "sum" else np.all(a, -1)
        made = np.sum(wide, -1, dtype=wide.dtype) if kind == "sum" else np.prod(wide, -1, dtype=wide.dtype)
        return narrow(made, dtype)
    if kind in ("and", "or"):
        return narrow((np.bitwise_and if kind == "and" else np.bitwise_or).reduce(wide, -1), dtype)
    start = constant(lowest(dtype) if kind in ("max", "fmax") else highest(dtype), dtype)
    function = {"max": np.maximum, "min": np.minimum, "fmax": np.fmax, "fmin": np.fmin}[kind]
    return narrow(function.reduce(wide, -1, initial=widen(start, dtype)), dtype)


def _first_extreme(kind: str, a: Array) -> Array:
    if not a.shape[-1]:
        return np.full(a.shape[:-1], -1, np.int64)
    valid = a == a
    if a.dtype.kind == "f":
        a = np.where(valid, a, -np.inf if kind == "argmax" else np.inf)
    best = a.max(-1, keepdims=True) if kind == "argmax" else a.min(-1, keepdims=True)
    chosen = valid & (a == best)
    return np.where(chosen.any(-1), chosen.argmax(-1), -1).astype(np.int64)


# --- nests --------------------------------------------------------------------------------------------------------
class _Machine:
    def __init__(self, arrays: Mapping[Buffer, Array], sizes: Mapping[str, int]) -> None:
        self.arrays, self.sizes = _Arrays(arrays, sizes), sizes
        self.variables: dict[Expr, Array] = {}  # loop variables and locals

    def run(self, statements: Sequence[Statement]) -> None:
        for s in statements:
            match s:
                case For():
                    self._for(s)
                case Store():
                    self._store(s)
                case Let():
                    assert s.local.dtype is s.value.dtype
                    self.variables[s.local] = self._value(s.value)
                case If():
                    self.run(s.then if self._value(s.condition) else s.otherwise)
                case While():
                    while self._value(s.condition):
                        self.run(s.body)

    def _value(self, e: Expr) -> Array:
        found = self.variables.get(e)
        if found is None:
            found = _Scope(self.arrays, self.sizes, dict(self.variables)).value(e)
        assert found.ndim == 0 or found.size == 1
        return found.reshape(())

    def _for(self, s: For) -> None:
        assert s.kind in ("serial", "parallel", "vector"), s.kind
        positions = range(int(self._value(s.lo)), int(self._value(s.hi)))
        for i in positions if s.kind == "serial" else reversed(positions):
            if s.kind == "parallel":
                self.arrays.scratch.clear()
            self.variables[s.axis] = np.asarray(i, np.int64)
            self.run(s.body)

    def _store(self, s: Store) -> None:
        array = self.arrays[s.buffer]
        assert s.value.dtype is s.buffer.dtype, f"a store of {s.value.dtype} into {s.buffer.dtype}"
        index = tuple(int(self._value(i)) for i in s.index)
        if not all(0 <= i < n for i, n in zip(index, array.shape, strict=True)):
            assert s.boundary == "drop", f"store at {index} outside {array.shape}"
            return
        value = self._value(s.value)
        if s.combine:
            dtype = s.buffer.dtype
            value = scalar_functions.call(s.combine, [np.asarray(array[index]), value], dtype, dtype)
        array[index] = value


class _Arrays(Mapping[Buffer, Array]):
    """The arrays given, and scratch buffers made full of junk when first used."""

    def __init__(self, given: Mapping[Buffer, Array], sizes: Mapping[str, int]) -> None:
        self.given, self.sizes = given, sizes
        self.scratch: dict[Buffer, Array] = {}

    def __getitem__(self, buffer: Buffer) -> Array:
        found = self.given.get(buffer)
        if found is None:
            found = self.scratch.get(buffer)
        if found is None:
            assert isinstance(buffer.key, Scratch), f"no array for buffer {buffer.key}"
            shape = tuple(dims.evaluate(n, self.sizes) for n in buffer.shape)
            found = np.full(shape, junk(buffer.dtype), buffer.dtype.numpy)
            self.scratch[buffer] = found
        return found

    def __iter__(self) -> Any:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)


def junk(dtype: DType) -> Any:
    """What undefined memory holds here: NaN, or the largest integer."""
    if dtype.is_float or dtype.is_complex:
        return np.nan
    return True if dtype.kind == "b" else int(ml_dtypes.iinfo(dtype.numpy).max)
