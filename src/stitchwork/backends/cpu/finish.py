"""Functions that send sums through an epilogue to the result; routines whose epilogues read the same share one.

`void finish(ptr ctx, ptr sums, ptr out, i64 rows, i64 count, i64 row, i64 column, i64 width, i64 pitch)`: `rows` times
`count` sums, rows `width` apart, go to results whose rows are `pitch` apart. `row` and `column` say which result is the
first. Whole vectors of sums may be read, also where `count` ends within one.
"""

from __future__ import annotations

from dataclasses import dataclass

from stitchwork.backends.cpu.llvm import Function, Module, V, vector
from stitchwork.backends.cpu.microkernel import SCALAR_BYTES, narrow, storage_bytes
from stitchwork.backends.cpu.routine import Epilogue, TargetLike, begin_helper, digest

_UNROLLED = 48
"""Instructions up to which the vectors of a row are written one after the other instead of as a loop."""


@dataclass(frozen=True, slots=True)
class Finish:
    """What is in the code: type and lanes of the sums, type of the result (`type` of its bits, for 16-bit floats).

    `vectors`: whole vectors of every row where that is known, 0 otherwise. `tails`: rows may end within a vector.
    """

    scalar: str
    lanes: int
    type: str
    vectors: int
    tails: bool


def finish_function(module: Module, code: Finish, target: TargetLike, epilogue: Epilogue | None) -> str:
    """The name of the function, which is written if the module lacks an equal one."""
    own = Module()
    params = [("ptr noalias nocapture readonly", "ctx"), ("ptr", "sums"), ("ptr", "out")]
    params += [("i64", p) for p in ("rows", "count", "row", "column", "width", "pitch")]
    fn = begin_helper(own, "finish", params, target)
    _Finish(fn, code, target, epilogue).write()
    name = digest("finish", fn.text())
    if name not in module.functions:
        fn.name, fn.module = name, module
        module.functions[name] = fn
        module.globals |= own.globals
        module.declarations = own.declarations | module.declarations
    return name


class _Finish:
    def __init__(self, fn: Function, code: Finish, target: TargetLike, epilogue: Epilogue | None) -> None:
        self.fn, self.code, self.target, self.epilogue = fn, code, target, epilogue

    def write(self) -> None:
        fn, code = self.fn, self.code
        _, sums, out, rows, count, row, column, width, pitch = fn.params
        with fn.loop(0, rows) as loop:
            at = fn.gep(sums, fn.mul(loop.index, width), code.scalar)
            to = fn.gep(out, fn.mul(loop.index, pitch), code.type)
            self._row(at, to, fn.add(row, loop.index), column, count)
        fn.ret()

    def _row(self, at: V, to: V, row: V, column: V, count: V) -> None:
        fn, code = self.fn, self.code

        def write(j: V | int, lanes: int, mask: V | None = None) -> None:
            value = fn.load(vector(code.scalar, lanes), fn.gep(at, j, code.scalar), SCALAR_BYTES[code.scalar])
            self._store(value, fn.gep(to, j, code.type), (row, fn.add(column, j)), lanes, mask)

        if not code.tails and (code.vectors == 1 or 0 < code.vectors * self._length() <= _UNROLLED):
            for j in range(code.vectors):
                write(j * code.lanes, code.lanes)
            return
        whole = fn.sub(count, fn.srem(count, code.lanes)) if code.tails else count
        with fn.loop(0, whole, code.lanes) as loop:
            write(loop.index, code.lanes)
        if not code.tails:
            return
        if self.target.has_masked_ops:
            with fn.when(fn.icmp("slt", whole, count)):
                write(whole, code.lanes, fn.tail_mask(fn.sub(count, whole), code.lanes))
        else:
            with fn.loop(whole, count) as loop:
                write(loop.index, 1)

    def _length(self) -> int:
        """Instructions that one vector takes, found by writing it to a function that is thrown away."""
        fn, code = Function(Module(), "trial", "void", [("ptr", "ctx")]), self.code
        row, column, value = V("i64", "%row"), V("i64", "%column"), V(vector(code.scalar, code.lanes), "%sum")
        trial = _Finish(fn, code, self.target, self.epilogue)
        trial._store(value, V("ptr", "%to"), (row, column), code.lanes, None)
        return len(fn.lines)

    def _store(self, value: V, address: V, indices: tuple[V, V], lanes: int, mask: V | None) -> None:
        fn, type_ = self.fn, self.code.type
        if self.epilogue is not None:
            value = self.epilogue(fn, value, indices, lanes, mask)
        elif value.type != vector(type_, lanes):
            value = narrow(fn, value, type_)
        align = storage_bytes(type_)
        if mask is None:
            fn.store(value, address, align)
        else:
            fn.masked_store(value, address, mask, align)
