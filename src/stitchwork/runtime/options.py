"""How to compile."""

from __future__ import annotations

from dataclasses import dataclass

from stitchwork.config import MAX_THREADS
from stitchwork.errors import CompileError

_PRECISIONS = ("", "bf16", "f16", "tf32")


@dataclass(frozen=True)
class CompileOptions:
    """Options of one compilation.

    threads: threads that one run may use; None means all that the process may.
    disable_type_inference: never specialise to the sizes given to `compile`; sizes are arguments of the one program.
    iteration_limit: rounds after which a loop is taken for endless and the run fails with ExecutionError; None means no limit.

    Raises CompileError for a value that is none of these.
    """

    threads: int | None = None
    disable_type_inference: bool = False
    iteration_limit: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and not 1 <= self.threads <= MAX_THREADS:
            raise CompileError("options", "`threads` is out of range", expected=f"1 to {MAX_THREADS}, or None", got=repr(self.threads))
        if self.reduced_precision not in _PRECISIONS:
            raise CompileError("options", "unknown `reduced_precision`", expected=", ".join(map(repr, _PRECISIONS)),
                               got=repr(self.reduced_precision))
