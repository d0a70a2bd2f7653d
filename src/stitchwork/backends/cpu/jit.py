"""From LLVM IR text to machine code in memory: compile, keep on disk, load, unload."""

from __future__ import annotations

import itertools
import secrets
import weakref
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any, Protocol, cast

from stitchwork.backends.cpu.target import LLVMModule, Target, binding, llvm_lock
from stitchwork.config import config
from stitchwork.errors import VerifyError
from stitchwork.runtime.cache import disk_cache, object_key

_PIPELINE_VERSION = "1"  # to be raised when the same IR is to give other code, so that cached objects are not used


def compile_object(ir_text: str, target: Target, *, fast: bool = False) -> bytes:
    """Machine code of `ir_text`, as a relocatable object file.

    The IR carries explicit vectors, so nothing is vectorised or unrolled here. Inlining happens where a function says
    `alwaysinline`; stack slots become registers; the code generator does the rest.

    Args:
        ir_text: a module as LLVM IR text.
        target: the CPU to generate code for.
        fast: compile two to five times faster, into code that runs up to four times slower: for code that runs once.

    Raises:
        VerifyError: LLVM refuses the IR: a fault of this package. Where STITCHWORK_DUMP_DIR is set, the message names
            a file there that holds the IR.
    """
    with llvm_lock, closing(binding.create_context()) as context:
        try:
            module = cast(LLVMModule, binding.parse_assembly(ir_text, context))
        except RuntimeError as error:
            raise _refused("cannot be parsed", error, ir_text) from None
        with closing(module):
            try:
                module.verify()
                return _generate(module, target, fast)
            except RuntimeError as error:
                raise _refused("is not valid", error, ir_text) from None


def _generate(module: LLVMModule, target: Target, fast: bool) -> bytes:
    machine = target.create_machine(0 if fast else 2)
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    passes = binding.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    if not fast:
        # Its work on masks and conversions is worth 1.5x on kernels of small integers, for about 10% of compile time.
        # GVN, loop passes and LLVM's own O1 to O3 cost one to four times the code generator and gained nothing on
        # matmul, stencil and pointwise kernels: LLVM's code generator hoists and shares by itself.
        passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(1)))
    return machine.emit_object(module)


def _refused(what: str, error: Exception, ir_text: str) -> VerifyError:
    message = f"generated LLVM IR {what}: {error}"
    folder = config().dump_dir
    if folder is None:
        return VerifyError(f"{message}\n  (set STITCHWORK_DUMP_DIR to a folder to keep the IR)")
    path = folder / f"refused-{secrets.token_hex(6)}.ll"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(ir_text)
    except OSError as problem:
        return VerifyError(f"{message}\n  (the IR could not be kept: {problem})")
    return VerifyError(f"{message}\n  IR kept in {path}")


def cached_object(ir_text: str, target: Target, *, fast: bool = False) -> bytes:
    """`compile_object` through the disk cache."""
    cache = disk_cache()
    if cache is None:
        return compile_object(ir_text, target, fast=fast)
    key = object_key(ir_text, target.fingerprint, f"{_PIPELINE_VERSION}-{'fast' if fast else 'good'}")
    found = cache.get(key)
    if found is None:
        found = compile_object(ir_text, target, fast=fast)
        cache.put(key, found)
    return found


# --- loading ----------------------------------------------------------------------------------------------------------
class _Tracker(Protocol):
    """Keeps a linked library in memory; closing it unloads the code."""

    def __getitem__(self, name: str) -> int: ...
    def close(self) -> None: ...


class LoadedObject:
    """Object code in memory. The addresses it gives out are valid as long as it exists."""

    def __init__(self, tracker: _Tracker, addresses: Mapping[str, int]) -> None:
        self._addresses = addresses
        # Not at the interpreter's exit: threads of ours may still be asleep in the code.
        weakref.finalize(self, _unload, tracker).atexit = False

    def address(self, name: str) -> int:
        """Where the exported function or global `name` begins.

        Raises:
            KeyError: `name` was not among the exports.
        """
        return self._addresses[name]


def _unload(tracker: _Tracker) -> None:
    with llvm_lock:
        tracker.close()


_linker: Any = None
_library_numbers = itertools.count()


def load_object(obj: bytes, exports: Iterable[str]) -> LoadedObject:
    """Link an object file into this process.

    Its symbols are its own: two objects may use the same names. Names it does not define are looked for among those of
    the process: libc, libm, pthreads.

    Raises:
        VerifyError: the object is malformed, needs a symbol nobody has, or lacks one of `exports`.
    """
    names = tuple(exports)
    builder = binding.JITLibraryBuilder().add_object_img(obj).add_current_process()
    for name in names:
        builder.export_symbol(name)
    with llvm_lock:
        try:
            tracker = cast(_Tracker, builder.link(_get_linker(), f"object{next(_library_numbers)}"))
        except RuntimeError as error:
            reason = f"{error} (LLVM tells more on the standard error output)"
            raise VerifyError(f"generated object code cannot be loaded: {reason}") from None
    return LoadedObject(tracker, {name: tracker[name] for name in names})


def _get_linker() -> Any:
    """The linker of the process (under the lock). JITLink keeps an object's sections within reach of one another."""
    global _linker
    if _linker is None:
        _linker = binding.create_lljit_compiler(Target.host().create_machine(), use_jit_link=True)
    return _linker
