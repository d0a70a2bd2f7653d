"""A whole program as one LLVM module: its kernels, and `main`, which runs them.

`i32 main(ptr io, ptr plan, ptr arena, ptr pool, ptr parallel_for)`: `io` holds the addresses of inputs, outputs,
variables and constants; `plan` the symbols' values, the arena offset of every slot, then the scratch memory's offset
and bytes per thread. Loops and branches are native code, so one call runs everything.

A program that binds sizes itself has, in `io` before the constants, the address of a table of the symbols' values: each
run has its own, which holds all sizes when the run is over. The result is 0, TOO_MANY_ROUNDS, or FIRST_CHECK and more
where a check does not hold.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from stitchwork.backends.cpu import scalars
from stitchwork.backends.cpu.emitter import Sizes
from stitchwork.backends.cpu.kernel import KernelFunction, KernelInfo
from stitchwork.backends.cpu.llvm import Function, Module, V, i64
from stitchwork.backends.cpu.loops import emit_loop_kernel
from stitchwork.backends.cpu.nest import emit_nest_kernel
from stitchwork.backends.cpu.symbols import kernel_symbols
from stitchwork.backends.cpu.target import Target
from stitchwork.ir import dims
from stitchwork.ir.dims import Size, symbols_of
from stitchwork.loops.kernel import (
    Bind,
    Branch,
    Check,
    Copy,
    Instruction,
    Kernel,
    Launch,
    Loop,
    LoopKernel,
    NestKernel,
    Program,
    RoutineKernel,
    Storage,
)
from stitchwork.loops.memory import Arena, kernel_storages

_PARALLEL_WORK = 30_000  # estimated operations from which waking other threads pays
TOO_MANY_ROUNDS = 1  # status of a run that met the iteration limit
FIRST_CHECK = 2  # status of a run that met a check that does not hold: this plus the check's number
MAIN_PARAMS = [("ptr", "io"), ("ptr", "plan"), ("ptr", "arena"), ("ptr", "pool"), ("ptr", "parallel_for")]


@dataclass
class Code:
    """A program's LLVM text, and how much scratch memory each thread needs."""

    text: str
    scratch_bytes: Size
    kernels: list[KernelInfo]
    constants: list[Storage]


def generate(program: Program, arena: Arena, target: Target, iteration_limit: int | None = None) -> Code:
    """The LLVM module of a program."""
    return _Generator(program, arena, target, iteration_limit).run()


class _Generator:
    def __init__(self, program: Program, arena: Arena, target: Target, iteration_limit: int | None) -> None:
        self.program, self.arena, self.target, self.iteration_limit = program, arena, target, iteration_limit
        self.module = Module()
        self.kernel_texts: dict[str, str] = {}
        self.infos: list[KernelInfo] = []
        self.scratch: Size = 0

    def run(self) -> Code:
        main = Main(self)
        main.write()
        body = self.module.text()
        texts = "\n\n".join(self.kernel_texts.values())
        return Code(f"{texts}\n\n{body}", self.scratch, self.infos, main.constants)

    def kernels(self, kernel: Kernel) -> list[KernelInfo]:
        """The functions to run for a kernel; kernels that read the same are one function."""
        made = kernel.routine.emit(self.module, kernel) if isinstance(kernel, RoutineKernel) else [self._own(kernel)]
        for info in made:
            self.scratch = dims.maximum(self.scratch, info.scratch_bytes)
        self.infos += made
        return made

    def _own(self, kernel: LoopKernel | NestKernel) -> KernelInfo:
        symbols = sorted(kernel_symbols(kernel))
        storages = kernel_storages(kernel)
        own = Module()
        fn = KernelFunction(own, storages, symbols, self.target)
        match kernel:
            case LoopKernel():
                emit_loop_kernel(fn, kernel, self.target)
            case NestKernel():
                emit_nest_kernel(fn, kernel, self.target)
        text = fn.text()
        name = "k" + hashlib.sha256(text.encode()).hexdigest()[:20]
        self.kernel_texts.setdefault(name, text.replace("@KERNEL(", f"@{name}(", 1))
        for declared, line in own.declarations.items():
            self.module.declarations.setdefault(declared, line)
        slots = (*storages, *map(dims.symbol, symbols))
        return KernelInfo(name, slots, fn.items, fn.work, fn.grain, fn.scratch_bytes)


class Main:
    """Writes the function that runs the instructions."""

    def __init__(self, owner: _Generator) -> None:
        self.owner = owner
        program = owner.program
        self.fn = Function(owner.module, "main", "i32", MAIN_PARAMS, owner.target.function_attributes)
        owner.module.functions["main"] = self.fn
        self.io, self.plan, self.arena, self.pool, self.parallel_for = self.fn.params
        self.symbols = {name: k for k, name in enumerate(program.symbols)}
        self.fixed_sizes = Sizes(self.fn, {})
        self.pointers: dict[Storage, V] = {}
        self.constants: list[Storage] = []  # those that are used, in the order of their addresses in `io`
        self.slots = 0
        self.context = V("ptr", "%context")
        self.symbol_table: V | None = None  # of a program that binds sizes itself

    def write(self) -> None:
        program, fn = self.owner.program, self.fn
        for k, name in enumerate(program.symbols):
            with fn.in_prologue():
                self.fixed_sizes.symbols[name] = fn.load("i64", fn.gep(self.plan, k, "i64"), 8)
        if program.bounds:
            with fn.in_prologue():
                self.symbol_table = fn.load("ptr", fn.gep(self.io, self._fixed_count() - 1, "i64"), 8)
        self._instructions(program.instructions)
        fn.ret(V("i32", "0"))
        fn.entry_allocas.append(f"  %context = alloca [{self.slots + 2} x i64], align 64")

    def _instructions(self, instructions: list[Instruction]) -> None:
        for i in instructions:
            match i:
                case Launch():
                    self._launch(i.kernel)
                case Copy():
                    self._copy(i)
                case Branch():
                    self._branch(i)
                case Loop():
                    self._loop(i)
                case Bind():
                    self._bind(i)
                case Check():
                    self._check(i)

    # --- memory -------------------------------------------------------------------------------------------------------
    def pointer(self, storage: Storage) -> V:
        """The address of a storage, computed once at the start."""
        found = self.pointers.get(storage)
        if found is None:
            with self.fn.in_prologue():
                found = self.pointers[storage] = self._address(storage)
        return found

    def _address(self, storage: Storage) -> V:
        fn, program = self.fn, self.owner.program
        if storage.kind == "temporary":
            slot = self.owner.arena.slot_of[storage]
            offset = fn.load("i64", fn.gep(self.plan, len(program.symbols) + slot, "i64"), 8)
            return fn.gep(self.arena, offset, "i8")
        if storage.kind == "constant":
            self.constants.append(storage)
            number = self._fixed_count() + len(self.constants) - 1
        else:
            number = [*program.inputs, *program.outputs, *program.variables].index(storage)
        return fn.load("ptr", fn.gep(self.io, number, "i64"), 8)

    def _fixed_count(self) -> int:
        """Addresses in `io` before those of constants."""
        program = self.owner.program
        return len(program.inputs) + len(program.outputs) + len(program.variables) + bool(program.bounds)

    def sizes(self) -> Sizes:
        """Sizes as they are at this point of the run; computed once at the start where the run binds no symbol."""
        return _LazySizes(self) if self.owner.program.bounds else self.fixed_sizes

    def symbol(self, name: str) -> V:
        return self.fn.load("i64", self._symbol_address(name), 8)

    def _symbol_address(self, name: str) -> V:
        assert self.symbol_table is not None
        return self.fn.gep(self.symbol_table, self.symbols[name], "i64")

    # --- instructions -------------------------------------------------------------------------------------------------
    def _launch(self, kernel: Kernel) -> None:
        for info in self.owner.kernels(kernel):
            sizes = self.sizes()
            slots = [self.pointer(s) if isinstance(s, Storage) else sizes(s) for s in info.slots]
            scratch = self._scratch(info)
            if info.scratch_slot is None:
                slots += scratch
            else:
                slots[info.scratch_slot] = scratch[0]
            self.slots = max(self.slots, len(slots))
            for k, value in enumerate(slots):
                self.fn.store(value, self.fn.gep(self.context, k, "i64"), 8)
            self._run(info)

    def _scratch(self, info: KernelInfo) -> list[V]:
        """Address of the scratch memory, and its bytes per thread."""
        if isinstance(info.scratch_bytes, int) and info.scratch_bytes == 0:
            return [V("ptr", "null"), i64(0)]
        fn = self.fn
        base = len(self.owner.program.symbols) + len(self.owner.arena.sizes)
        offset = fn.load("i64", fn.gep(self.plan, base, "i64"), 8)
        return [fn.gep(self.arena, offset, "i8"), fn.load("i64", fn.gep(self.plan, base + 1, "i64"), 8)]

    def _run(self, info: KernelInfo) -> None:
        fn, sizes = self.fn, self.sizes()
        items = sizes(info.items)
        direct = [self.context, i64(0), items, i64(0)]
        name = V("ptr", f"@{info.name}")
        if (isinstance(info.work, int) and info.work < _PARALLEL_WORK) or info.items == 1:
            self._call(info, direct)
            return
        if isinstance(info.work, int):
            self._parallel(name, items, info.grain)
            return
        large, small, done = fn.new_block("many"), fn.new_block("few"), fn.new_block("ran")
        fn.cbr(fn.icmp("sge", sizes(info.work), i64(_PARALLEL_WORK)), large, small)
        fn.position(large)
        self._parallel(name, items, info.grain)
        fn.br(done)
        fn.position(small)
        self._call(info, direct)
        fn.br(done)
        fn.position(done)

    def _call(self, info: KernelInfo, args: list[V]) -> None:
        self.fn.do(f"call void @{info.name}({', '.join(map(str, args))})")

    def _parallel(self, name: V, items: V, grain: int) -> None:
        args = ", ".join(map(str, [self.pool, name, self.context, items, i64(grain)]))
        self.fn.do(f"call void {self.parallel_for.ref}({args})")

    def _copy(self, copy: Copy) -> None:
        size = self.sizes()(copy.source.bytes)
        args = [self.pointer(copy.target), self.pointer(copy.source), size, V("i1", "false")]
        self.fn.call("llvm.memcpy.p0.p0.i64", "void", args)

    def _truth(self, storage: Storage) -> V:
        fn, dtype = self.fn, storage.type.dtype
        raw = fn.load(scalars.memory_type(dtype), self.pointer(storage), dtype.itemsize)
        value = scalars.from_memory(fn, raw, dtype)
        return scalars.cast(fn, value, dtype, scalars.bool_)

    def _branch(self, branch: Branch) -> None:
        fn = self.fn
        then, otherwise, done = fn.new_block("then"), fn.new_block("else"), fn.new_block("endif")
        fn.cbr(self._truth(branch.predicate), then, otherwise)
        fn.position(then)
        self._instructions(branch.then)
        fn.br(done)
        fn.position(otherwise)
        self._instructions(branch.otherwise)
        fn.br(done)
        fn.position(done)

    def _loop(self, loop: Loop) -> None:
        fn = self.fn
        head, body, done = fn.new_block("head"), fn.new_block("body"), fn.new_block("done")
        rounds = self._round_counter()
        fn.br(head)
        fn.position(head)
        self._instructions(loop.head)
        fn.cbr(self._truth(loop.predicate), body, done)
        fn.position(body)
        if rounds is not None:
            self._count_round(rounds)
        self._instructions(loop.body)
        fn.br(head)
        fn.position(done)

    def _round_counter(self) -> V | None:
        if self.owner.iteration_limit is None:
            return None
        counter = self.fn.alloca("i64", 1, 8)
        self.fn.store(i64(0), counter, 8)
        return counter

    def _count_round(self, counter: V) -> None:
        """End the run with a status once a loop has had too many rounds."""
        fn = self.fn
        number = fn.load("i64", counter, 8)
        many, fine = fn.new_block("endless"), fn.new_block("round")
        assert self.owner.iteration_limit is not None
        fn.cbr(fn.icmp("sge", number, i64(self.owner.iteration_limit)), many, fine)
        fn.position(many)
        fn.ret(V("i32", str(TOO_MANY_ROUNDS)))
        fn.position(fine)
        fn.store(fn.add(number, 1), counter, 8)

    def _bind(self, bind: Bind) -> None:
        fn, dtype = self.fn, bind.source.type.dtype
        raw = fn.load(scalars.memory_type(dtype), self.pointer(bind.source), dtype.itemsize)
        value = raw if raw.type == "i64" else fn.convert("sext", raw, "i64")
        fn.store(value, self._symbol_address(bind.symbol), 8)

    def _check(self, check: Check) -> None:
        fn, sizes, guard = self.fn, self.sizes(), check.guard
        a, b = sizes(guard.a), sizes(guard.b)
        if guard.relation == ">=":
            holds = fn.icmp("sge", a, b)
        else:
            holds = fn.icmp("eq", a, b)
            for n in (a, b) if guard.relation == "fits" else ():
                holds = fn.binary("or", holds, fn.icmp("eq", n, i64(1)))
        fails, goes_on = fn.new_block("check_fails"), fn.new_block("checked")
        fn.cbr(holds, goes_on, fails)
        fn.position(fails)
        fn.ret(V("i32", str(FIRST_CHECK + check.number)))
        fn.position(goes_on)


class _LazySizes(Sizes):
    """Sizes of `main`, computed where they are used: a symbol may have been bound just before."""

    def __init__(self, main: Main) -> None:
        super().__init__(main.fn, {})
        self.main = main

    def __call__(self, size: Size) -> V:
        if isinstance(size, int):
            return i64(size)
        for name in symbols_of(size):
            if name not in self.symbols:
                self.symbols[name] = self.main.symbol(name)
        if size not in self.known:
            self.known[size] = self._compute(size)
        return self.known[size]
