"""How to compile."""

from __future__ import annotations

from dataclasses import dataclass

from stitchwork.config import MAX_THREADS
from stitchwork.errors import CompileError


@dataclass(frozen=True)
class CompileOptions:
    """Options of one compilation.

    threads: threads that one run may use; None means all that the process may.
    disable_type_inference: never specialise to the sizes given to `compile`; sizes are arguments of the one program.
    iteration_limit: rounds after which a loop is taken for endless and the run fails (ExecutionError); None: no limit.

    Raises CompileError for a value that is none of these.
    """

    threads: int | None = None
    disable_type_inference: bool = False
    iteration_limit: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and not 1 <= self.threads <= MAX_THREADS:
            expected = f"1 to {MAX_THREADS}, or None"
            raise CompileError("options", "`threads` is out of range", expected=expected, got=repr(self.threads))
        if self.iteration_limit is not None and self.iteration_limit < 1:
            got = repr(self.iteration_limit)
            raise CompileError("options", "`iteration_limit` is out of range", expected="1 or more, or None", got=got)
