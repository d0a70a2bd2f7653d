"""A session with ONNX Runtime's interface."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto

from stitchwork.errors import FeedError, UnsupportedError
from stitchwork.importers.onnx.importer import Importer
from stitchwork.importers.onnx.model import OnnxExecutable, OnnxModel, import_model
from stitchwork.importers.onnx.proto import read_model
from stitchwork.importers.onnx.session_options import RunOptions, SessionOptions
from stitchwork.importers.onnx.settings import deciding_settings, possible_settings
from stitchwork.ir.graph import Array, Value
from stitchwork.runtime.cache import BoundedCache

CPU = "CPUExecutionProvider"
_PROGRAMS = 16  # programs that a session keeps, one for each set of settings


@dataclass(frozen=True)
class NodeArg:
    """An input or output: its name, its type as text, and its sizes (a number, a name, or None where unknown)."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    """What a model says about itself."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict[str, str])


class InferenceSession:
    """A compiled ONNX model behind the interface of onnxruntime.InferenceSession.

    The model is compiled for every size it allows when the session is made. A model whose shapes, or whose choice of a
    branch, depend on what a small input holds (at most one dim: a sampling rate, a mode, a size) is compiled once per
    value of those inputs, when it first comes up. Runs may overlap.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        """path_or_bytes: a model's path or content. providers: names, or pairs of name and options; those that are
        not here are left out with a warning, as onnxruntime does. provider_options and further arguments that
        onnxruntime knows have no effect.

        Raises UnsupportedError, PackageError and OpError as `load` does, UnsupportedError for options that ask for
        what there is not, and where none of the providers is here.
        """
        stray = [k for k in kwargs if k not in ("disabled_optimizers", "enable_fallback", "read_config_from_model")]
        if stray:
            raise FeedError("InferenceSession", "unknown arguments", got=", ".join(stray))
        _check_providers(providers)
        self._options = sess_options or SessionOptions()
        self._compile_options = self._options.compile_options()
        self._proto, self._tensors = read_model(path_or_bytes)
        graph = self._proto.graph
        initialized = {t.name for t in graph.initializer}
        self._inputs = [_described(i) for i in graph.input if i.name not in initialized]
        self._overridable = [_described(i) for i in graph.input if i.name in initialized]
        self._outputs = [_described(o) for o in graph.output]
        self._programs: BoundedCache[tuple[Any, ...], OnnxExecutable] = BoundedCache(_PROGRAMS)
        self._settings = deciding_settings(graph)
        self._prepare()

    def _prepare(self) -> None:
        """Compile now, or find the inputs whose values have to be known first."""
        Importer(self._proto, self._tensors, {}, {}).check_supported()
        if self._settings:
            return
        try:
            model = self._import({})
            self._programs.put((), model.compile(self._compile_options))
            self._outputs = [_refined(o, model.outputs[o.name]) for o in self._outputs]
        except UnsupportedError:
            self._settings = possible_settings(self._proto.graph)
            if not self._settings:
                raise

    def _import(self, settings: Mapping[str, Array]) -> OnnxModel:
        return import_model(self._proto, self._tensors, constants=settings, sizes=self._options.sizes)

    def _program(self, feed: Mapping[str, Any]) -> OnnxExecutable:
        settings = {name: np.asarray(feed[name]) for name in self._settings}
        key = tuple((a.dtype.str, a.shape, a.tobytes()) for a in settings.values())
        return self._programs.get_or_make(key, lambda: self._import(settings).compile(self._compile_options))

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Array]:
        """The outputs named, or all of them for None. Raises FeedError for names or inputs that do not fit, and what
        `load` raises where settings come up for the first time."""
        known = [o.name for o in self._outputs]
        wanted = list(output_names) if output_names else known
        _check_names("outputs", wanted, known)
        names = [i.name for i in self._inputs]
        _check_names("inputs", list(input_feed), names)
        missing = [n for n in names if n not in input_feed]
        if missing:
            raise FeedError("run", "inputs are missing", expected=", ".join(names), got=f"no {', '.join(missing)}")
        program = self._program(input_feed)
        made = program.run({n: input_feed[n] for n in program.input_names})
        return [made[n].numpy() for n in wanted]

    def get_inputs(self) -> list[NodeArg]:
        """What `run` takes."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """What `run` gives."""
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that the model lists among its inputs. They cannot be fed: they are part of the program."""
        return list(self._overridable)

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says about itself."""
        return _metadata(self._proto)

    def get_session_options(self) -> SessionOptions:
        """The options the session was made with."""
        return self._options

    def get_providers(self) -> list[str]:
        """What runs the model, by onnxruntime's name for it."""
        return [CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Options per provider: none."""
        return {CPU: {}}

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Check that one of the providers is here; the session stays what it is. Raises UnsupportedError."""
        _check_providers(providers)

    def disable_fallback(self) -> None:
        """Without effect: there is nothing to fall back to."""

    def enable_fallback(self) -> None:
        """Without effect: there is nothing to fall back to."""


def get_available_providers() -> list[str]:
    """What can run models, by onnxruntime's names."""
    return [CPU]


get_all_providers = get_available_providers


def get_device() -> str:
    """The kind of device, as onnxruntime writes it."""
    return "CPU"


def set_default_logger_severity(severity: int) -> None:
    """Without effect: nothing is logged."""


def _check_providers(providers: Sequence[Any] | None) -> None:
    names = [p if isinstance(p, str) else str(p[0]) for p in providers or [CPU]]
    absent = [n for n in names if n != CPU]
    if CPU not in names:
        raise UnsupportedError(
            "InferenceSession", "none of the providers is here", expected=CPU, got=", ".join(absent) or "none"
        )
    if absent:
        warnings.warn(f"providers that are not here: {', '.join(absent)}; using {CPU}", stacklevel=3)


def _check_names(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    stray = [n for n in given if n not in known]
    if stray:
        raise FeedError(
            "run", f"the model has no such {what}", expected=", ".join(known), got=", ".join(map(str, stray))
        )


_TYPE_NAMES = {
    "FLOAT8E4M3FN": "float8e4m3fn",
    "FLOAT8E5M2": "float8e5m2",
    **{n: n.lower() for n in ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "BOOL", "STRING", "COMPLEX64", "COMPLEX128")},
    **{f"{u}INT{bits}": f"{u}int{bits}".lower() for u in ("", "U") for bits in (4, 8, 16, 32, 64)},
}


def _described(info: ValueInfoProto) -> NodeArg:
    tensor = info.type.tensor_type
    names = {number: name for name, number in TensorProto.DataType.items()}
    kind = _TYPE_NAMES.get(names.get(tensor.elem_type, ""), "undefined")
    return NodeArg(info.name, f"tensor({kind})", [_size(d) for d in tensor.shape.dim])


def _size(dim: Any) -> int | str | None:
    kind = dim.WhichOneof("value")
    if kind == "dim_value":
        return dim.dim_value if dim.dim_value > 0 else None
    return dim.dim_param or None


def _refined(declared: NodeArg, value: Value) -> NodeArg:
    """An output with the numbers that are known of its shape in place of names."""
    if len(declared.shape) != value.rank:
        return declared
    sizes = [n if isinstance(n, int) else d for d, n in zip(declared.shape, value.shape, strict=True)]
    return replace(declared, shape=sizes)


def _metadata(model: ModelProto) -> ModelMetadata:
    return ModelMetadata(
        model.producer_name,
        model.graph.name,
        model.domain,
        model.doc_string,
        model.graph.doc_string,
        model.model_version if model.HasField("model_version") else 2**63 - 1,
        {p.key: p.value for p in model.metadata_props},
    )
