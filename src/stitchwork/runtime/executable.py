"""A compiled program, ready to run any number of times, from any number of threads."""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, cast

import numpy as np

from stitchwork.backends.cpu.backend import Compiled
from stitchwork.backends.cpu.codegen import FIRST_CHECK
from stitchwork.backends.cpu.pool import Pool
from stitchwork.errors import ExecutionError, FeedError, located, user_location
from stitchwork.ir import dims
from stitchwork.ir.dtypes import DType, as_dtype
from stitchwork.ir.graph import Array, Module, Value
from stitchwork.ir.types import TensorType
from stitchwork.loops.kernel import Storage, launches
from stitchwork.runtime.binding import NO_ARENA, Binder, Bound, Shapes
from stitchwork.runtime.cache import BoundedCache
from stitchwork.runtime.queue import CommandQueue, Pending
from stitchwork.runtime.tensor_data import TensorData

_PLANS = 256  # sets of input shapes that one program remembers
_ARENAS = 4  # arenas kept for later runs

_Entry = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 5)


class VariableStore:
    """The values of a graph's variables, shared by its executables. Runs that touch variables go one at a time."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self.lock = threading.RLock()

    def ensure(self, module: Module) -> None:
        """Create what is not there yet, with its initial value."""
        for name, state in module.variables.items():
            if name not in self.arrays:
                self.arrays[name] = np.array(state.initial, order="C")


class NativeProgram:
    """A program's native code with what a call needs."""

    def __init__(
        self, module: Module, compiled: Compiled, pool: Pool, store: VariableStore, can_fail: bool = False
    ) -> None:
        """can_fail: a run may end before it is done; variables then get back what they held."""
        self.module, self.compiled, self.pool, self.store = module, compiled, pool, store
        program = compiled.planned.program
        store.ensure(module)
        self.inputs, self.outputs = program.inputs, program.outputs
        self.binder = Binder(program, compiled.planned.arena.sizes, compiled.code.scratch_bytes, pool.threads)
        self.bounds: BoundedCache[Shapes, Bound] = BoundedCache(_PLANS)
        self._dtypes = [s.type.dtype.numpy for s in program.inputs]
        self._output_dtypes = [s.type.dtype.numpy for s in program.outputs]
        self._constants = _together(compiled.code.constants)
        variables = [store.arrays[s.name] for s in program.variables]
        self._variables = list(map(address_of, variables))
        self._constant_addresses = list(map(address_of, self._constants))
        self._restored = variables if can_fail or program.checks else []
        self._tells_sizes = bool(program.bounds)
        self._lock = store.lock if program.variables else None
        self._entry = _Entry(compiled.entry)
        self._arenas: list[tuple[Array, int]] = []

    def run(self, feeds: Sequence[Any]) -> list[Array]:
        """Results for inputs given in order. Raises FeedError for inputs that do not fit."""
        arrays = [
            x if type(x) is np.ndarray and x.dtype == d and x.flags.c_contiguous else self._convert(k, x)
            for k, (x, d) in enumerate(zip(feeds, self._dtypes, strict=True))
        ]
        shapes = tuple([a.shape for a in arrays])
        bound = self.bounds.get(shapes)
        if bound is None:
            bound = self.binder.bind(shapes)
            self.bounds.put(shapes, bound)
        try:
            results = [np.empty(shape, dtype) for shape, dtype in zip(bound.outputs, self._output_dtypes, strict=True)]
        except (MemoryError, ValueError):  # NumPy's ways to say that an array is too large
            raise self._no_room(bound) from None
        addresses = [*map(address_of, arrays), *map(address_of, results), *self._variables]
        sizes: array[int] | None = None
        if self._tells_sizes:
            sizes = array("q", bound.initial)
            addresses.append(sizes.buffer_info()[0])
        io = array("Q", addresses + self._constant_addresses)
        arena, start = self._take_arena(bound.arena_bytes)
        pool = self.pool
        call = (io.buffer_info()[0], bound.plan_address, start, pool.handle, pool.parallel_for_address)
        if self._lock is None:
            status = self._entry(*call)
        else:
            with self._lock:
                before = [v.copy() for v in self._restored]
                status = self._entry(*call)
                if status:
                    for variable, old in zip(self._restored, before, strict=True):
                        variable[...] = old
        if arena is not None:
            self._arenas.append((arena, start))
        if status:
            raise self._failed(status, sizes or ())
        if sizes is not None:
            for k in self.binder.late:
                results[k] = _shortened(results[k], self.binder.late_shape(k, sizes))
        return results

    def _failed(self, status: int, sizes: Sequence[int]) -> ExecutionError:
        """Why a run ended before it was done."""
        if status >= FIRST_CHECK:
            return self.binder.failed(status - FIRST_CHECK, sizes)
        return ExecutionError(
            "run",
            "a loop did not end",
            expected="at most `iteration_limit` rounds",
            hint="check the predicate, or raise CompileOptions.iteration_limit",
        )

    def _take_arena(self, size: int) -> tuple[Array | None, int]:
        """Memory for temporaries and its address, a multiple of 64."""
        if size <= NO_ARENA:
            return None, 0
        try:
            arena, start = self._arenas.pop()
        except IndexError:
            return _new_arena(size)
        if arena.nbytes >= size + 64:
            return arena, start
        del self._arenas[_ARENAS:]
        return _new_arena(size)

    def _no_room(self, bound: Bound) -> ExecutionError:
        """Why the results could not be made: the largest of them."""
        made = [
            (s.type.with_shape(shape), s.name or f"{k}")
            for k, (s, shape) in enumerate(zip(self.outputs, bound.outputs, strict=True))
        ]
        type_, label = max(made, key=lambda m: _bytes(m[0]))
        return ExecutionError(
            "run", f"result `{label}` does not fit into memory", got=f"{type_}, {_bytes(type_):,} bytes"
        )

    def _convert(self, k: int, x: Any) -> Array:
        """An input as a C-contiguous array of the declared dtype; dtypes are never converted silently."""
        storage = self.inputs[k]
        label = f"`{storage.name}`" if storage.name else f"{k}"
        source = _as_array(x, label)
        wanted = storage.type.dtype
        try:
            own = as_dtype(source.dtype)
        except TypeError:
            own = None
        if own is not wanted:
            if isinstance(x, np.ndarray | TensorData) or hasattr(x, "__dlpack__") or not _is_safe(source, wanted):
                raise FeedError(
                    "run",
                    f"input {label} has the wrong dtype",
                    expected=str(storage.type),
                    got=f"{own or source.dtype}{list(source.shape)}",
                    hint="convert the array with astype",
                )
        try:
            made: Array = np.ascontiguousarray(source, wanted.numpy)
            return made.reshape(source.shape)
        except MemoryError:
            raise ExecutionError(
                "run",
                f"a contiguous copy of input {label} does not fit into memory",
                got=f"{wanted}{list(source.shape)}, strides {source.strides}",
            ) from None


def _allocate(size: int) -> Array:
    """Memory for a program's temporaries. Raises ExecutionError."""
    try:
        return np.empty(size, np.uint8)
    except (MemoryError, ValueError):
        raise ExecutionError("run", "the temporaries do not fit into memory", got=f"{size:,} bytes") from None


def _shortened(vector: Array, shape: tuple[int, ...]) -> Array:
    """The tensor of a shape that a vector begins with; a copy where most of the memory would be held for nothing."""
    part = vector[: math.prod(shape)].reshape(shape)
    return part.copy() if 2 * part.size < vector.size else part


def _bytes(type_: TensorType) -> int:
    elements = type_.elements
    return (elements if isinstance(elements, int) else 0) * type_.dtype.numpy.itemsize


def _is_safe(source: Array, wanted: DType) -> bool:
    """Python numbers and lists are taken where no value changes, floats where only rounding does."""
    ranks = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}
    if ranks.get(source.dtype.kind, 4) > ranks[wanted.kind]:
        return False
    converted = source.astype(wanted.numpy)
    return source.dtype.kind == "f" or bool(np.all(converted == source))


def _as_array(x: Any, label: str) -> Array:
    if isinstance(x, np.ndarray):
        return cast("Array", x)
    if isinstance(x, TensorData):
        return x.numpy()
    try:
        if hasattr(x, "__dlpack__") and not hasattr(x, "__array__"):
            return np.from_dlpack(x)
        made = np.asarray(x)
        if made.dtype.kind in "OUS":
            raise TypeError("no numbers")
        return made
    except (TypeError, ValueError, RuntimeError, BufferError) as e:
        raise FeedError(
            "run",
            f"input {label} is not an array",
            expected="an array, or something with DLPack or __array__",
            got=f"{type(x).__name__}: {e}",
        ) from None


def address_of(x: Array) -> int:
    """Address of an array's first element."""
    if x.flags.writeable:
        try:
            # Three times faster than asking NumPy.
            return ctypes.addressof(ctypes.c_char.from_buffer(x))  # pyright: ignore[reportArgumentType]
        except (TypeError, ValueError):  # empty arrays, and dtypes that the buffer protocol does not know
            pass
    return x.__array_interface__["data"][0]


def _new_arena(size: int) -> tuple[Array, int]:
    arena = _allocate(size + 64)
    start = address_of(arena)
    return arena, start + (-start) % 64


def _together(constants: Sequence[Storage]) -> list[Array]:
    """Move constants into one piece of memory, each at an address that vector loads like.

    A large piece gets large pages: weights that are read once per run would otherwise wait for page tables.
    """
    starts = list(accumulate((-(-cast("Array", s.array).nbytes // 64) * 64 for s in constants), initial=0))
    block = _allocate(starts[-1] + 64)
    first = -address_of(block) % 64
    for storage, start in zip(constants, starts, strict=False):
        x = cast("Array", storage.array)
        made = block[first + start : first + start + x.nbytes].view(x.dtype).reshape(x.shape)
        made[...] = x
        storage.array = made
    return [cast("Array", s.array) for s in constants]


class Executable:
    """A graph compiled for given targets.

    `run` takes the inputs as a list in the order of `inputs`, or as a dict by placeholder or by name, and returns a
    list of TensorData in the order of the targets that are tensors. Thread-safe. Nothing is compiled while running,
    unless the program was specialised and meets other sizes than those: then the program for all sizes is compiled,
    once.
    """

    def __init__(
        self,
        program: NativeProgram,
        placeholders: Sequence[Value],
        specialized: Shapes | None = None,
        general: Callable[[], NativeProgram] | None = None,
    ) -> None:
        self._program = program
        self._placeholders = list(placeholders)
        self._positions: dict[Any, int] = {}
        for k, v in enumerate(placeholders):
            self._positions[v] = k
            if v.name:
                self._positions.setdefault(v.name, k)
        self._specialized, self._make_general = specialized, general
        self._general: NativeProgram | None = None
        self._lock = threading.Lock()
        self.compile_count = 1

    @property
    def inputs(self) -> list[Value]:
        """The placeholders, in the order in which a list of inputs is taken."""
        return list(self._placeholders)

    def run(self, feeds: Sequence[Any] | Mapping[Any, Any] = ()) -> list[TensorData]:
        """Run on inputs. Raises FeedError for inputs that do not fit, before anything has run."""
        given = cast("list[Any]", feeds) if type(feeds) is list else self._ordered(feeds)
        if len(given) != len(self._placeholders):
            raise self._wrong_count(len(given))
        program = self._program
        if self._specialized is not None and tuple([_shape_given(x) for x in given]) != self._specialized:
            program = self._for_all_sizes()
        return [TensorData(a) for a in program.run(given)]

    def run_async(self, feeds: Sequence[Any] | Mapping[Any, Any] = (), queue: CommandQueue | None = None) -> Pending:
        """Start a run and return at once. The inputs must stay as they are until it is done. Runs of one queue go in
        order; without a queue, a common one is used."""
        at = user_location()

        def run() -> list[TensorData]:
            with located(at):
                return self.run(feeds)

        return (queue or _common_queue()).submit(run)

    def output_types(self, input_types: Sequence[Any] | None = None) -> list[TensorType]:
        """Types of the results: symbolic, or for inputs with the shapes of `input_types` (arrays, types or shapes).

        A size that only the run tells stays symbolic.
        """
        outputs = [s.type for s in self._program.outputs]
        if input_types is None:
            return outputs
        if len(input_types) != len(self._placeholders):
            raise self._wrong_count(len(input_types))
        shapes = tuple(shape_of(t) for t in input_types)
        special = self._specialized
        program = self._program if special is None or special == shapes else self._for_all_sizes()
        symbols = program.binder.bind(shapes).symbols
        return [t.with_shape(tuple(dims.substitute(n, symbols) for n in t.shape)) for t in outputs]

    def _for_all_sizes(self) -> NativeProgram:
        with self._lock:
            if self._general is None:
                assert self._make_general is not None
                self._general = self._make_general()
                self.compile_count += 1
            return self._general

    def _ordered(self, feeds: Sequence[Any] | Mapping[Any, Any]) -> list[Any]:
        if not isinstance(feeds, Mapping):
            try:
                return list(feeds)
            except TypeError:
                raise FeedError("run", "the inputs are neither a list nor a dict", got=type(feeds).__name__) from None
        ordered: list[Any] = [_MISSING] * len(self._placeholders)
        for key, x in feeds.items():
            k = self._positions.get(key)
            if k is None:
                known = ", ".join(v.name or repr(v) for v in self._placeholders)
                raise FeedError("run", "an input is not one of this executable's", expected=known, got=repr(key))
            ordered[k] = x
        missing = [v.name or repr(v) for v, x in zip(self._placeholders, ordered, strict=True) if x is _MISSING]
        if missing:
            raise FeedError(
                "run", "inputs are missing", expected=f"{len(ordered)} inputs", got=f"no {', '.join(missing)}"
            )
        return ordered

    def _wrong_count(self, n: int) -> FeedError:
        names = ", ".join(f"{v.name or k}: {v.type}" for k, v in enumerate(self._placeholders))
        return FeedError("run", "wrong number of inputs", expected=f"{len(self._placeholders)} ({names})", got=str(n))

    def report(self) -> str:
        """What was stitched into what: one line per kernel, then why some ops stayed apart."""
        return report(self._program.compiled)


_MISSING = object()


def report(compiled: Compiled) -> str:
    """A line per kernel, in order of execution."""
    program = compiled.planned.program
    lines = [f"{k:3}  {x.kernel.name}" for k, x in enumerate(launches(program.instructions))]
    return "\n".join([f"{len(lines)} kernels", *lines, *(f"note: {n}" for n in program.notes)])


def _shape_given(x: Any) -> tuple[int, ...] | None:
    """The shape of a fed array, list or number; None where it has none, which `run` then explains."""
    try:
        return np.shape(x)
    except ValueError:
        return None


def shape_of(spec: Any) -> tuple[int, ...]:
    """The shape meant by an array, a type or a shape."""
    shape = getattr(spec, "shape", spec)
    try:
        return tuple(int(n) for n in shape)
    except (TypeError, ValueError):
        raise FeedError(
            "run", "no shape", expected="an array, a type or a shape of known sizes", got=repr(spec)
        ) from None


@functools.cache
def _common_queue() -> CommandQueue:
    return CommandQueue("common")
