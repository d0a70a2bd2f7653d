"""Lowering: a module's blocks to instructions over storages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stitchwork.ir import dims
from stitchwork.ir.graph import Block, Guard, Module, Operation, Value, VariableState, constant_array
from stitchwork.ir.told import binders, bound_by, symbols_in
from stitchwork.ir.types import TensorType
from stitchwork.loops.complex import split_kernel, split_nest
from stitchwork.loops.expr import Buffer, Expr, Load, axes_for, loads, transform
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
    Stage,
    Storage,
)
from stitchwork.loops.nest import Builder
from stitchwork.loops.split import split_ranges
from stitchwork.loops.stitch import BlockStitcher, Group, Root, Routine, describe, free_values, is_alias, make_stages


def lower(module: Module, routine: Routine) -> Program:
    """The program of a module. `routine` says which routine of the backend, if any, does an operation whole."""
    return _Lowering(module, routine).run()


class _Lowering:
    def __init__(self, module: Module, routine: Routine) -> None:
        self.module, self.routine = module, routine
        self.storages: dict[Value, Storage] = {}
        self.aliases: dict[Value, Value] = {}
        self.constants: dict[int, Storage] = {}
        self.variables = {n: _variable_storage(k, v) for k, (n, v) in enumerate(module.variables.items())}
        self.temporaries: list[Storage] = []
        self.notes: list[str] = []
        self.told = frozenset(module.bounds)
        known = binders(module)
        self.bounds = {s: n for s, n in module.bounds.items() if s in known}
        self.known: list[str] = []  # of `told`, those that are bound where instructions are made now
        self.checks: list[Guard] = []

    def run(self) -> Program:
        body = self.module.body
        inputs = [Storage(v.tensor, "input", v.name, None, k) for k, v in enumerate(body.arguments)]
        self.storages.update(zip(body.arguments, inputs, strict=True))
        outputs = [Storage(v.tensor, "output", v.name, None, k) for k, v in enumerate(body.results)]
        sinks: dict[Value, Storage] = {}
        for value, output in zip(body.results, outputs, strict=True):
            sinks.setdefault(self.resolve(value), output)
        instructions = self.block(body, sinks)
        for value, output in zip(body.results, outputs, strict=True):
            source = self.storage(value)
            if source is not output:
                instructions.append(Copy(source, output))
        symbols = sorted({s for v in body.arguments for n in v.shape for s in dims.symbols_of(n)} | set(self.bounds))
        constants = list(self.constants.values())
        variables = list(self.variables.values())
        before = [g for g in self.module.guards.values() if self.told.isdisjoint(symbols_in((g.a, g.b)))]
        return Program(
            instructions,
            inputs,
            outputs,
            constants,
            variables,
            self.temporaries,
            symbols,
            before,
            self.checks,
            self.bounds,
            self.notes,
        )

    # --- values and memory ------------------------------------------------------------------------------------------
    def resolve(self, value: Value) -> Value:
        """The value that owns the memory of `value`: reshapes share their operand's."""
        while value.op is not None and is_alias(value.op):
            value = value.op.operands[0]
        return value

    def storage(self, value: Value) -> Storage:
        """Where a value is, as memory; constants and variables are made known on first use."""
        owner = self.resolve(value)
        found = self.storages.get(owner)
        if found is None:
            array = constant_array(owner)
            assert array is not None, f"no storage for {owner!r}"
            found = self.constants.get(id(array))
            if found is None:
                found = Storage(owner.tensor, "constant", "", array, len(self.constants))
                self.constants[id(array)] = found
            self.storages[owner] = found
        return found

    def temporary(self, type_: TensorType, name: str = "") -> Storage:
        made = Storage(type_, "temporary", name, None, len(self.temporaries))
        self.temporaries.append(made)
        return made

    def buffer(self, value: Value) -> Buffer:
        """A value's memory seen with the value's own shape."""
        return Buffer(value.dtype, value.shape, self.storage(value))

    # --- blocks -------------------------------------------------------------------------------------------------------
    def block(self, block: Block, sinks: dict[Value, Storage], owns_arguments: bool = False) -> list[Instruction]:
        """Instructions of a block; `sinks` says where results that this block computes should go."""
        known = len(self.known)
        stitcher = BlockStitcher(block, self.routine, self.resolve, self.notes, owns_arguments)
        groups = stitcher.run()
        made: list[Instruction] = []
        for group in groups:
            last = group.roots[-1]
            op = last.operation.op
            if op.effect == "read":
                self._read(last.operation, stitcher, groups, made)
            elif op.effect == "write":
                variable = self.variables[getattr(op, "variable")]  # noqa: B009
                made.append(Copy(self.storage(last.operation.operands[0]), variable))
            elif last.operation.regions:
                made += self._control(last.operation, sinks)
            elif constant_array(last.value) is None:
                if last.operation in stitcher.overwritten:
                    self._overwrite(last.operation)
                self._outputs(group, sinks)
                made += [Launch(k) for k in self._kernels(group)]
                made += self._bind(last.operation)
        del self.known[known:]
        return made

    def _overwrite(self, operation: Operation) -> None:
        """The result of an update in place is its operand's memory."""
        assert operation.op.overwrites is not None
        self.storages[operation.results[0]] = self.storage(operation.operands[operation.op.overwrites])

    def _outputs(self, group: Group, sinks: dict[Value, Storage]) -> None:
        for value in group.roots[-1].operation.results if group.roots[-1].expr is None else (group.roots[-1].value,):
            if value not in self.storages:
                self.storages[value] = sinks.get(value) or self.temporary(value.tensor, value.name)

    def _bind(self, operation: Operation) -> list[Instruction]:
        """The size that an operation has told, and the checks that waited for it."""
        name = bound_by(operation)
        if not name:
            return []
        self.known.append(name)
        made: list[Instruction] = [Bind(name, self.storage(operation.results[-1]))]
        for guard in self.module.guards.values():
            about = symbols_in((guard.a, guard.b)) & self.told
            if name in about and about <= set(self.known):
                made.append(Check(guard, len(self.checks)))
                self.checks.append(guard)
        return made

    def _read(
        self, operation: Operation, stitcher: BlockStitcher, groups: list[Group], made: list[Instruction]
    ) -> None:
        """A read shares the variable's memory, unless something uses it after a write that it comes before."""
        name = getattr(operation.op, "variable")  # noqa: B009
        variable, value = self.variables[name], operation.results[0]
        write = first_write(stitcher.block, name, stitcher.position[operation])
        last = max(
            (stitcher.position[g.roots[-1].operation] for g in groups if _uses(g, value, self.resolve)), default=-1
        )
        escapes = any(self.resolve(v) is value for v in stitcher.block.results)
        if write is None or (last < write and not escapes):
            self.storages[value] = variable
            return
        self.storages[value] = self.temporary(value.tensor, name)
        made.append(Copy(variable, self.storages[value]))

    # --- kernels ------------------------------------------------------------------------------------------------------
    def _kernels(self, group: Group) -> Sequence[Kernel]:
        kernel = self._kernel(group)
        if not isinstance(kernel, LoopKernel):
            return [kernel]
        return [piece for real in split_kernel(kernel) for piece in split_ranges(real)]

    def _kernel(self, group: Group) -> Kernel:
        root = group.roots[-1]
        ops = [o for r in group.roots for o in r.operations]
        name = " + ".join(map(describe, dict.fromkeys(ops)))
        if group.routine is not None:
            return self._routine(group, name)
        if root.expr is not None:
            stages = make_stages(group.roots)
            local = {s.buffer for s in stages[:-1]}
            placed = [self._place_stage(s, local) for s in stages[:-1]]
            last = stages[-1]
            value = self._place(last.value, local)
            placed.append(Stage(self.buffer(root.value), last.axes, value, last.name))
            return LoopKernel(placed, name, ops)
        return self._nest(root.operation, name)

    def _place_stage(self, stage: Stage, local: set[Buffer]) -> Stage:
        return Stage(stage.buffer, stage.axes, self._place(stage.value, local), stage.name)

    def _place(self, expr: Expr, local: set[Buffer]) -> Expr:
        """`expr` with its loads from values turned into loads from storages."""
        buffers: dict[Buffer, Buffer] = {}

        def leaf(e: Expr) -> Expr | None:
            if not isinstance(e, Load) or e.buffer in local or not isinstance(e.buffer.key, Value):
                return None
            if e.buffer not in buffers:
                buffers[e.buffer] = Buffer(e.dtype, e.buffer.shape, self.storage(e.buffer.key))
            return Load(buffers[e.buffer], tuple(transform(i, leaf) for i in e.index), e.boundary, e.fill)

        return transform(expr, leaf)

    def _routine(self, group: Group, name: str) -> RoutineKernel:
        producer, root = group.roots[0], group.roots[-1]
        operation = producer.operation
        operands = [self.buffer(v) for v in operation.operands]
        accumulator = Buffer(producer.value.dtype, producer.value.shape, producer.value)
        axes = root.axes or axes_for(root.value.shape)
        local = {accumulator}

        def leaf(e: Expr) -> Expr | None:
            return accumulator[e.index] if isinstance(e, Load) and e.buffer.key is producer.value else None

        value = (
            accumulator[axes]
            if root is producer
            else self._place(transform(root.expr or accumulator[axes], leaf), local)
        )
        workspaces = [self.temporary(t, "workspace") for t in group.routine.workspaces]
        return RoutineKernel(
            group.routine,
            operation,
            operands,
            self.buffer(root.value),
            axes,
            accumulator,
            value,
            workspaces,
            name,
            [o for r in group.roots for o in r.operations],
        )

    def _nest(self, operation: Operation, name: str) -> NestKernel:
        builder = Builder()
        flat = [None if v.is_token else self.buffer(v) for v in operation.operands]
        outs = tuple(self.buffer(v) for v in operation.results)
        operation.op.loops(builder, outs, *operation.op.group(flat))
        return NestKernel(split_nest(builder.statements), builder.scratch, name, [operation])

    # --- control flow -------------------------------------------------------------------------------------------------
    def _control(self, operation: Operation, sinks: dict[Value, Storage]) -> list[Instruction]:
        if len(operation.regions) != 2:
            raise AssertionError(f"{operation.op.name} reached lowering")
        return self._branch(operation, sinks) if operation.op.name == "if_else" else self._loop(operation)

    def _branch(self, operation: Operation, sinks: dict[Value, Storage]) -> list[Instruction]:
        for value in operation.results:
            if not value.is_token:
                self.storages[value] = sinks.get(value) or self.temporary(value.tensor, value.name)
        arms = [self._arm(region, operation) for region in operation.regions]
        return [Branch(self.storage(operation.operands[0]), arms[0], arms[1])]

    def _arm(self, region: Block, operation: Operation) -> list[Instruction]:
        pairs = [
            (v, self.storages[r]) for v, r in zip(region.results, operation.results, strict=True) if not r.is_token
        ]
        sinks: dict[Value, Storage] = {}
        for value, target in pairs:
            sinks.setdefault(self.resolve(value), target)
        made = self.block(region, sinks)
        return made + [Copy(self.storage(v), t) for v, t in pairs if self.storage(v) is not t]

    def _loop(self, operation: Operation) -> list[Instruction]:
        before, after = operation.regions
        carried = [self.temporary(v.tensor, "carried") for v in operation.operands]
        made: list[Instruction] = [Copy(self.storage(v), c) for v, c in zip(operation.operands, carried, strict=True)]
        self.storages.update(zip(before.arguments, carried, strict=True))
        head = self.block(before, {})
        predicate, *results = (self.storage(v) for v in before.results)
        self.storages.update(zip(after.arguments, results, strict=True))
        body = self.block(after, {}, owns_arguments=self._are_own(results))
        following = [self.storage(v) for v in after.results]
        body += self._parallel_copies(following, carried)
        self.storages.update(zip(operation.results, results, strict=True))
        return [*made, Loop(head, predicate, body)]

    def _are_own(self, results: list[Storage]) -> bool:
        """True where a loop's carried values are memory of the loop alone, each its own."""
        return all(s.kind == "temporary" for s in results) and len(set(map(id, results))) == len(results)

    def _parallel_copies(self, sources: list[Storage], targets: list[Storage]) -> list[Instruction]:
        """targets[k] = sources[k] for all k at once."""
        moves = [(s, t) for s, t in zip(sources, targets, strict=True) if s is not t]
        written = {t for _, t in moves}
        saved: dict[Storage, Storage] = {}
        made: list[Instruction] = []
        for source, _ in moves:
            if source in written and source not in saved:
                saved[source] = self.temporary(source.type, "swap")
                made.append(Copy(source, saved[source]))
        return made + [Copy(saved.get(s, s), t) for s, t in moves]


def first_write(block: Block, variable: str, after: int) -> int | None:
    """Position of the first operation after `after` that writes the variable, in itself or its regions."""
    for k, operation in enumerate(block.operations[after + 1 :], after + 1):
        if writes(operation, variable):
            return k
    return None


def writes(operation: Operation, variable: str) -> bool:
    """True where the operation, or one in its regions, writes the variable."""
    if operation.op.effect == "write" and getattr(operation.op, "variable") == variable:  # noqa: B009
        return True
    return any(writes(o, variable) for r in operation.regions for o in r.operations)


def _uses(group: Group, value: Value, resolve: Any) -> bool:
    return any(_root_uses(r, value, resolve) for r in group.roots)


def _root_uses(root: Root, value: Value, resolve: Any) -> bool:
    if root.expr is not None:
        from_loads = {resolve(e.buffer.key) for e in loads(root.expr)}
        return value in from_loads
    used = {resolve(v) for v in root.operation.operands}
    for region in root.operation.regions:
        used |= {resolve(v) for v in free_values(region)}
    return value in used


def _variable_storage(number: int, state: VariableState) -> Storage:
    return Storage(state.type, "variable", state.name, None, number)
