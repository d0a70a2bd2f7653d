"""Nest kernels in LLVM: ops written as loops with stores. Outermost parallel loops become the work items."""

from __future__ import annotations

from stitchwork.backends.cpu import scalars
from stitchwork.backends.cpu.emitter import Emitter, Place
from stitchwork.backends.cpu.kernel import KernelFunction
from stitchwork.backends.cpu.llvm import V, i64
from stitchwork.backends.cpu.target import Target
from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.loops.affine import row_major
from stitchwork.loops.expr import Axis, Buffer, Call, Const, Expr, Extent, Reduce, walk
from stitchwork.loops.kernel import NestKernel
from stitchwork.loops.math import expand
from stitchwork.loops.nest import For, If, Let, Scratch, Statement, Store, While


def emit_nest_kernel(fn: KernelFunction, kernel: NestKernel, target: Target) -> None:
    """Write the kernel's function: items are the iterations of its outermost parallel loops."""
    _Nest(fn, kernel, target).emit()


class _Nest:
    def __init__(self, fn: KernelFunction, kernel: NestKernel, target: Target) -> None:
        self.fn, self.kernel, self.target = fn, kernel, target
        self.offsets = self._scratch_offsets()
        self.em = Emitter(fn.fn, fn.sizes, self._place)

    def emit(self) -> None:
        fn = self.fn
        parallel, body = _parallel_prefix(self.kernel.statements)
        fn.items = dims.product(a.extent for a in parallel)
        fn.work = fn.items * 256
        counts = [fn.size(a.extent) for a in parallel]
        with fn.fn.loop(fn.lo, fn.hi) as item:
            rest = item.index
            for k in range(len(parallel) - 1, -1, -1):
                self.em.axes[parallel[k]] = fn.fn.srem(rest, counts[k]) if k else rest
                rest = fn.fn.sdiv(rest, counts[k]) if k else rest
            self._statements(body)
        fn.fn.ret()

    def _scratch_offsets(self) -> dict[Buffer, Size]:
        offset: Size = 0
        made: dict[Buffer, Size] = {}
        for buffer in self.kernel.scratch:
            made[buffer] = offset
            size = dims.product(buffer.shape) * buffer.dtype.itemsize
            offset = offset + dims.ceildiv(size, 64) * 64 + 64
        self.fn.scratch_bytes = offset
        return made

    def _place(self, buffer: Buffer) -> Place:
        if isinstance(buffer.key, Scratch):
            pointer = self.fn.fn.gep(self.fn.scratch, self.fn.size(self.offsets[buffer]), "i8")
            return Place(pointer, row_major(buffer.shape))
        return self.fn.place(buffer)

    # --- statements ---------------------------------------------------------------------------------------------------
    def _statements(self, statements: list[Statement]) -> None:
        for s in statements:
            match s:
                case For():
                    self._for(s)
                case Store():
                    self._store(s)
                case Let():
                    self._let(s)
                case If():
                    self._if(s)
                case While():
                    self._while(s)

    def _value(self, e: Expr) -> V:
        with self.em.scope():
            return self.em.emit(expand(e))

    def _for(self, s: For) -> None:
        if s.kind == "vector" and len(s.body) == 1 and isinstance(s.body[0], Store) and _steps_along(s.body[0], s.axis):
            self._vector_for(s, s.body[0])
            return
        with self.fn.fn.loop(self._value(s.lo), self._value(s.hi)) as loop:
            self.em.axes[s.axis] = loop.index
            self._statements(s.body)

    def _vector_for(self, s: For, body: Store) -> None:
        """Whole vectors first, then what is left one by one."""
        fn, em = self.fn.fn, self.em
        width = max(1, self.target.vector_bytes // max(4, body.buffer.dtype.itemsize))
        low, high = self._value(s.lo), self._value(s.hi)
        whole = fn.add(low, fn.mul(fn.sdiv(fn.sub(high, low), width), width))
        value = expand(body.value)
        with fn.loop(low, whole, width) as loop:
            em.axes[s.axis] = loop.index
            index = [self._value(i) for i in body.index]
            with em.lanes(s.axis, width):
                raw = scalars.to_memory(fn, em.full(value), body.buffer.dtype)
            fn.store(raw, self._address(body.buffer, index), body.buffer.dtype.itemsize)
        with fn.loop(whole, high) as loop:
            em.axes[s.axis] = loop.index
            self._statements(s.body)

    def _address(self, buffer: Buffer, index: list[V]) -> V:
        fn = self.fn.fn
        place = self._place(buffer)
        offset: V = i64(0)
        for i, stride in zip(index, place.strides, strict=True):
            offset = fn.add(offset, fn.mul(i, self.fn.size(stride)))
        return fn.gep(place.pointer, offset, scalars.memory_type(buffer.dtype))

    def _let(self, s: Let) -> None:
        value = self._value(s.value)
        if s.local not in self.em.locals:
            self.em.locals[s.local] = self.fn.fn.alloca(value.type, 1, 8)
        self.fn.fn.store(value, self.em.locals[s.local], 8)

    def _if(self, s: If) -> None:
        fn = self.fn.fn
        then, other, done = fn.new_block("then"), fn.new_block("else"), fn.new_block("endif")
        fn.cbr(self._value(s.condition), then, other)
        fn.position(then)
        self._statements(s.then)
        fn.br(done)
        fn.position(other)
        self._statements(s.otherwise)
        fn.br(done)
        fn.position(done)

    def _while(self, s: While) -> None:
        fn = self.fn.fn
        head, body, done = fn.new_block("while"), fn.new_block("do"), fn.new_block("endwhile")
        fn.br(head)
        fn.position(head)
        fn.cbr(self._value(s.condition), body, done)
        fn.position(body)
        self._statements(s.body)
        fn.br(head)
        fn.position(done)

    def _store(self, s: Store) -> None:
        fn = self.fn.fn
        index = [self._value(i) for i in s.index]
        if s.boundary != "drop":
            self._write(s, index)
            return
        inside = V("i1", "true")
        for i, n in zip(index, s.buffer.shape, strict=True):
            inside = fn.binary("and", inside, fn.icmp("ult", i, self.fn.size(n)))
        with fn.when(inside):
            self._write(s, index)

    def _write(self, s: Store, index: list[V]) -> None:
        fn = self.fn.fn
        dtype = s.buffer.dtype
        element = scalars.memory_type(dtype)
        address = self._address(s.buffer, index)
        value = self._value(s.value)
        if s.combine:
            before = scalars.from_memory(fn, fn.load(element, address, dtype.itemsize), dtype)
            value = self._combined(s, before, value)
        fn.store(scalars.to_memory(fn, value, dtype), address, dtype.itemsize)

    def _combined(self, s: Store, before: V, value: V) -> V:
        name = {"set": ""}.get(s.combine, s.combine)
        return scalars.call(self.fn.fn, name, s.buffer.dtype, [before, value]) if name else value


def _steps_along(store: Store, axis: Axis) -> bool:
    """True where neighbouring iterations of `axis` write neighbouring elements, unconditionally, from values that only
    loads and the axis itself decide."""
    if store.combine or store.boundary or not store.index or store.buffer.dtype.bits < 8:
        return False
    if any(axis in walk(i) for i in store.index[:-1]) or any(isinstance(e, Reduce) for e in walk(store.value)):
        return False
    return _unit_step(store.index[-1], axis)


def _unit_step(e: Expr, axis: Axis) -> bool:
    match e:
        case Axis():
            return e is axis
        case Call(fn="add", args=(a, b)):
            return (_unit_step(a, axis) and axis not in walk(b)) or (_unit_step(b, axis) and axis not in walk(a))
        case Call(fn="sub", args=(a, b)):
            return _unit_step(a, axis) and axis not in walk(b)
        case _:
            return False


def _parallel_prefix(statements: list[Statement]) -> tuple[list[Axis], list[Statement]]:
    """The nested parallel loops that hold everything, and what is inside them."""
    axes: list[Axis] = []
    while len(statements) == 1 and isinstance(s := statements[0], For) and s.kind == "parallel" and _from_zero(s):
        axes.append(s.axis)
        statements = s.body
    return axes, statements


def _from_zero(s: For) -> bool:
    return isinstance(s.lo, Const) and s.lo.value == 0 and isinstance(s.hi, Const | Extent)
