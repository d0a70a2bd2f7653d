"""Loading a model, compiling it, running it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from stitchwork.api.graph import Graph
from stitchwork.errors import FeedError, PackageError, StitchworkError
from stitchwork.importers.onnx import handlers as handlers  # fills the table of ops
from stitchwork.importers.onnx.importer import Importer
from stitchwork.importers.onnx.proto import Tensors, read_model
from stitchwork.ir.graph import Value
from stitchwork.runtime.executable import Executable
from stitchwork.runtime.options import CompileOptions
from stitchwork.runtime.tensor_data import TensorData


class OnnxExecutable:
    """A compiled model: `run` takes and gives tensors by the model's own names. Thread-safe."""

    def __init__(self, executable: Executable, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self.executable = executable
        self.input_names, self.output_names = list(inputs), list(outputs)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, TensorData]:
        """The outputs for these inputs, by name. Raises FeedError for inputs that do not fit."""
        missing = [n for n in self.input_names if n not in inputs]
        stray = [n for n in inputs if n not in self.input_names]
        if missing or stray:
            raise FeedError(
                "run",
                "the inputs are not the model's",
                expected=", ".join(self.input_names),
                got=", ".join([*(f"no {n}" for n in missing), *(f"also {n}" for n in stray)]),
            )
        results = self.executable.run([inputs[n] for n in self.input_names])
        return dict(zip(self.output_names, results, strict=True))


class OnnxModel:
    """A model as a graph, with its inputs (placeholders) and outputs by name; more ops can be built onto them."""

    def __init__(self, graph: Graph, inputs: dict[str, Value], outputs: dict[str, Value]) -> None:
        self.graph, self.inputs, self.outputs = graph, inputs, outputs

    def compile(
        self, options: CompileOptions | None = None, *, device: str = "cpu", outputs: Sequence[str] | None = None
    ) -> OnnxExecutable:
        """Compile for all outputs, or those named. Raises CompileError, and FeedError for an unknown name."""
        chosen = list(self.outputs) if outputs is None else list(outputs)
        stray = [n for n in chosen if n not in self.outputs]
        if stray:
            raise FeedError(
                "compile",
                "`outputs` names something that is no output",
                expected=", ".join(self.outputs),
                got=", ".join(stray),
            )
        targets = [self.outputs[n] for n in chosen]
        executable = self.graph.compile(targets, list(self.inputs.values()), device=device, options=options)
        return OnnxExecutable(executable, list(self.inputs), chosen)


def load(
    source: Any, *, constants: Mapping[str, Any] | None = None, sizes: Mapping[str, int] | None = None
) -> OnnxModel:
    """See `stitchwork.importers.onnx.load`."""
    return import_model(*read_model(source), constants=constants, sizes=sizes)


def import_model(
    proto: ModelProto,
    tensors: Tensors,
    *,
    constants: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> OnnxModel:
    """As `load`, of what `read_model` gave."""
    arrays = {name: np.asarray(x) for name, x in (constants or {}).items()}
    try:
        importer = Importer(proto, tensors, arrays, sizes or {})
        inputs, outputs = importer.run()
    except StitchworkError:
        raise
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as e:
        # A field that holds what no writer of ONNX puts there, such as a name that is no text.
        raise PackageError("onnx", "the model breaks ONNX's rules", got=f"{type(e).__name__}: {e}") from e
    return OnnxModel(importer.graph, inputs, outputs)
