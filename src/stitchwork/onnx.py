"""ONNX models, for code of one's own and for code written for onnxruntime.

    import stitchwork.onnx as ort  # in place of: import onnxruntime as ort

    session = ort.InferenceSession("model.onnx")
    outputs = session.run(None, {session.get_inputs()[0].name: x})

Needs the package `onnx`.
"""

from stitchwork.importers.onnx import load as load
from stitchwork.importers.onnx.model import OnnxExecutable as OnnxExecutable
from stitchwork.importers.onnx.model import OnnxModel as OnnxModel
from stitchwork.importers.onnx.session import InferenceSession as InferenceSession
from stitchwork.importers.onnx.session import ModelMetadata as ModelMetadata
from stitchwork.importers.onnx.session import NodeArg as NodeArg
from stitchwork.importers.onnx.session import get_all_providers as get_all_providers
from stitchwork.importers.onnx.session import get_available_providers as get_available_providers
from stitchwork.importers.onnx.session import get_device as get_device
from stitchwork.importers.onnx.session import set_default_logger_severity as set_default_logger_severity
from stitchwork.importers.onnx.session_options import ExecutionMode as ExecutionMode
from stitchwork.importers.onnx.session_options import ExecutionOrder as ExecutionOrder
from stitchwork.importers.onnx.session_options import GraphOptimizationLevel as GraphOptimizationLevel
from stitchwork.importers.onnx.session_options import RunOptions as RunOptions
from stitchwork.importers.onnx.session_options import SessionOptions as SessionOptions
