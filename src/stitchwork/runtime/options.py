"""How to compile."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CompileOptions:
    """Options of one compilation.

    threads: threads that one run may use; None means all that the process may.
    fast_math: allow reassociation and approximations beyond IEEE 754.
    reduced_precision: "" (none), or "bf16", "f16", "tf32": the precision that matrix units may use for f32 operands.
    disable_type_inference: never specialise to the sizes given to `compile`; sizes are arguments of the one program.
    iteration_limit: rounds after which a while loop is taken for endless and the run fails; None means no limit.
    """

    threads: int | None = None
    fast_math: bool = False
    reduced_precision: str = ""
    disable_type_inference: bool = False
    iteration_limit: int | None = None
