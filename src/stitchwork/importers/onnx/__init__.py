"""ONNX models as graphs: `load` reads one, `compile` makes it an executable that takes every size the model allows.

The package `onnx` is needed to read the files, and only once a model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from stitchwork.errors import UnsupportedError

if TYPE_CHECKING:
    from stitchwork.importers.onnx.model import OnnxExecutable as OnnxExecutable
    from stitchwork.importers.onnx.model import OnnxModel as OnnxModel


def load(
    source: Any, *, constants: Mapping[str, Any] | None = None, sizes: Mapping[str, int] | None = None
) -> OnnxModel:
    """A model from a path, the bytes of a file or an `onnx.ModelProto`.

    constants: arrays for inputs that are the same in every run (a mode, a sampling rate): what depends on them alone
    is decided now. sizes: numbers for named dims, which then are fixed. Raises UnsupportedError for what cannot be
    expressed (all unknown ops in one message) or where `onnx` is not installed, PackageError for a damaged file, and
    OpError for a node that is not valid.
    """
    if find_spec("onnx") is None:
        raise UnsupportedError("onnx", "the package `onnx` is not installed", hint='pip install "stitchwork[onnx]"')
    from stitchwork.importers.onnx.model import load as load_model

    return load_model(source, constants=constants, sizes=sizes)


def __getattr__(name: str) -> Any:
    if name in ("OnnxModel", "OnnxExecutable"):
        from stitchwork.importers.onnx import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
