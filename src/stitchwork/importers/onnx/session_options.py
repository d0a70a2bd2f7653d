"""Options with ONNX Runtime's names: those with a meaning here have effect, the others are accepted or refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NoReturn

from stitchwork.errors import UnsupportedError
from stitchwork.runtime.options import CompileOptions


class GraphOptimizationLevel(IntEnum):
    """Accepted for the sake of the caller's code: there is one level."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Accepted for the sake of the caller's code."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """Accepted for the sake of the caller's code."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@dataclass(slots=True)
class SessionOptions:
    """What ONNX Runtime's SessionOptions has.

    `intra_op_num_threads` (0: as many as the process may use) and `add_free_dimension_override_by_name` have effect.
    Profiling, saving the optimised model and libraries of custom ops are refused by InferenceSession with
    UnsupportedError. The rest tunes another runtime and is accepted without effect. A name that is none of these is an
    AttributeError.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: int = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: int = ExecutionMode.ORT_SEQUENTIAL
    execution_order: int = ExecutionOrder.DEFAULT
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    profile_file_prefix: str = "onnxruntime_profile_"
    optimized_model_filepath: str = ""
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    sizes: dict[str, int] = field(default_factory=dict[str, int])  # fixed by name
    entries: dict[str, str] = field(default_factory=dict[str, str])

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix a named size of the model's inputs."""
        self.sizes[name] = int(size)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Kept, without effect."""
        self.entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """What was added under `key`. Raises KeyError."""
        return self.entries[key]

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> NoReturn:
        """Refused: models are compiled with the names of sizes, not with their denotations."""
        raise _refused("sizes by denotation", hint="add_free_dimension_override_by_name fixes a size by its name")

    def register_custom_ops_library(self, path: str) -> NoReturn:
        """Refused: what such a library holds is written for another runtime."""
        raise _refused("libraries of custom ops")

    def add_initializer(self, name: str, value: object) -> NoReturn:
        """Refused."""
        raise _refused("initializers from outside the model", hint="load(path, constants={...}) takes arrays by name")

    def compile_options(self) -> CompileOptions:
        """What of this says how to compile. Raises UnsupportedError for what cannot be done."""
        if self.enable_profiling:
            raise _refused("`enable_profiling`")
        if self.optimized_model_filepath:
            raise _refused("`optimized_model_filepath`", hint="`stitchwork compile MODEL` shows what a model becomes")
        return CompileOptions(threads=self.intra_op_num_threads or None)


@dataclass(slots=True)
class RunOptions:
    """What ONNX Runtime's RunOptions has; accepted without effect."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    entries: dict[str, str] = field(default_factory=dict[str, str])

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Kept, without effect."""
        self.entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """What was added under `key`. Raises KeyError."""
        return self.entries[key]


def _refused(what: str, hint: str = "") -> UnsupportedError:
    return UnsupportedError("InferenceSession", f"{what} cannot be had", hint=hint)
