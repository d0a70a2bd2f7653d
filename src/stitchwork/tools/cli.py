"""The command `stitchwork`: compile, run and look at programs; look up ops and devices."""

from __future__ import annotations

import functools
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from stitchwork import pipeline
from stitchwork.api.device import devices as known_devices
from stitchwork.backends.cpu.backend import Compiled, CpuBackend, Generated, Planned
from stitchwork.backends.cpu.pool import default_pool
from stitchwork.errors import StitchworkError
from stitchwork.ir.graph import Block, Module, Operation, constant_array
from stitchwork.ir.printer import print_module
from stitchwork.ir.scanner import TextError
from stitchwork.loops.kernel import Program as Kernels
from stitchwork.loops.printer import print_program
from stitchwork.ops import FUNCTIONS
from stitchwork.runtime.executable import NativeProgram, VariableStore, report
from stitchwork.tools.docs import describe, public_ops, summary
from stitchwork.tools.models import load_feeds, load_program, save_module, save_outputs

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
P = ParamSpec("P")

ModelFile = Annotated[Path, typer.Argument(help="an ONNX model (.onnx), or a module's text (.txt)", metavar="MODEL")]


def main() -> None:
    """The entry point of the command."""
    app()


def _console() -> Console:
    wide = None if sys.stdout.isatty() else 160  # a pipe has no width of its own
    return Console(width=wide, soft_wrap=True, highlight=False)


def _table(*columns: str) -> Table:
    numbers = ("ms", "count")
    heads = [Column(c, no_wrap=not k, justify="right" if c in numbers else "left") for k, c in enumerate(columns)]
    return Table(*heads, box=None, pad_edge=False)


def _command(call: Callable[P, None]) -> Callable[P, None]:
    """A command whose user's mistakes end it with the message alone, and exit code 2."""

    @functools.wraps(call)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            call(*args, **kwargs)
        except BrokenPipeError:
            raise
        except (StitchworkError, OSError) as e:
            typer.echo(_message(e), err=True)
            raise typer.Exit(2) from None

    return app.command()(guarded)


def _message(e: StitchworkError | OSError) -> str:
    """The error's text; lines of Python mean nothing to the user of a command, lines of the text that was read do."""
    if not isinstance(e, StitchworkError):
        return f"file: {e.strerror or e}" + (f"\n  got       {e.filename}" if e.filename else "")
    lines = str(e).split("\n")
    return "\n".join(lines if isinstance(e, TextError) else [x for x in lines if not x.startswith("  at  ")])


@_command
def compile(
    model: ModelFile,
    stop_after: Annotated[
        str, typer.Option(help="stop after this stage and print what it gives", metavar="STAGE")
    ] = "",
    show_report: Annotated[bool, typer.Option("--report", help="say what was stitched into what, and why not")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="write what is printed into this file")] = None,
) -> None:
    """Compile a model, or watch a stage of its compilation."""
    program = load_program(model)
    stages = pipeline.stages(CpuBackend())
    names = list(dict.fromkeys(s.name for s in stages))
    if stop_after and stop_after not in names:
        raise StitchworkError("compile", f"there is no stage `{stop_after}`", expected=", ".join(names), at="")
    table = _table("stage", "gives", "ms")
    state: Any = program.module
    for stage in stages:
        start = time.perf_counter()
        state = stage.run(state)
        table.add_row(stage.name, stage.gives, f"{(time.perf_counter() - start) * 1e3:.1f}")
        if stage.name == stop_after:
            break
    if stop_after and not isinstance(state, Compiled):
        _put(state, output)
        return
    console = _console()
    console.print(table)
    if show_report:
        console.print(report(state), markup=False)


def _put(state: Any, output: Path | None) -> None:
    """Print what a stage gives, or write it into a file."""
    if output is None:
        typer.echo(_as_text(state))
    elif isinstance(state, Module):
        save_module(state, output)
    else:
        output.write_text(_as_text(state), encoding="utf-8")


def _as_text(state: Any) -> str:
    match state:
        case Module():
            return print_module(state)
        case Kernels():
            return print_program(state)
        case Planned():
            return print_program(state.program, state.arena)
        case Generated():
            return state.code.text
        case _:
            return str(state)


@_command
def run(
    model: ModelFile,
    feeds: Annotated[
        list[str] | None, typer.Option("--input", help="an input: NAME=FILE.npy", metavar="NAME=FILE")
    ] = None,
    output_dir: Annotated[Path | None, typer.Option(help="write the outputs into this folder, as NAME.npy")] = None,
) -> None:
    """Run a model once on arrays from files."""
    program = load_program(model)
    arrays = load_feeds(program, feeds or [])
    compiled = pipeline.run(program.module, CpuBackend())
    results = NativeProgram(program.module, compiled, default_pool(), VariableStore()).run(arrays)
    console = _console()
    for name, value, array in zip(program.outputs, program.outputs.values(), results, strict=True):
        console.print(f"{name}: {value.dtype}{list(array.shape)}", markup=False)
        if output_dir is None:
            console.print(str(array), markup=False)
    if output_dir is not None:
        for file in save_outputs(list(program.outputs), results, output_dir):
            console.print(f"wrote {file}", markup=False)


@_command
def inspect(model: ModelFile) -> None:
    """Show a model's inputs, outputs, ops and sizes."""
    program = load_program(model)
    module = program.module
    console = _console()
    values = _table("", "name", "type")
    for kind, many in (("input", program.inputs), ("output", program.outputs)):
        for name, value in many.items():
            values.add_row(kind, Text(name), Text(str(value.type)))
    console.print(values)
    counts, parameters, size = Counter[str](), 0, 0
    for operation in _operations(module.body):
        array = constant_array(operation.results[0]) if operation.results else None
        if array is None:
            counts[operation.op.name] += 1
        else:
            parameters, size = parameters + array.size, size + array.nbytes
    for state in module.variables.values():
        parameters, size = parameters + state.initial.size, size + state.initial.nbytes
    table = _table("op", "count")
    for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(name, str(count))
    console.print()
    console.print(table)
    console.print(
        f"\n{sum(counts.values())} operations, {len(module.variables)} variables, {len(module.guards)} guards"
    )
    console.print(f"{parameters:,} numbers in constants and variables, {size / 2**20:.2f} MiB")


def _operations(block: Block) -> list[Operation]:
    found: list[Operation] = []
    for operation in block.operations:
        found.append(operation)
        for region in operation.regions:
            found += _operations(region)
    return found


@_command
def ops(name: Annotated[str, typer.Argument(help="an op, to have it described")] = "") -> None:
    """List the ops, or describe one."""
    known = {n: cls for cls in public_ops() for n in (cls.name, *cls.aliases)}
    console = _console()
    if name:
        if name not in known:
            near = ", ".join(n for n in FUNCTIONS if name in n or n in name)
            raise StitchworkError("ops", f"there is no op `{name}`", hint=f"there are {near}" if near else "", at="")
        console.print(describe(known[name]), markup=False)
        return
    table = _table("op", "also", "")
    for cls in sorted(public_ops(), key=lambda c: c.name):
        table.add_row(cls.name, Text(", ".join(cls.aliases)), Text(summary(cls)))
    console.print(table)


@_command
def devices() -> None:
    """List the devices that programs can be compiled for."""
    target = CpuBackend().target
    table = _table("device", "what", "")
    caches = f"{target.l1_bytes // 1024} KiB L1, {target.l2_bytes // 1024} KiB L2"
    about = f"{target.vector_bytes * 8}-bit vectors, {target.vector_registers} registers, {caches}"
    for device in known_devices():
        details = f"{about}, {default_pool().threads} threads" if device.kind == "cpu" else ""
        table.add_row(str(device), Text(device.description), Text(details))
    _console().print(table)
