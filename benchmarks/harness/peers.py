"""The peers as they are used here: imported late, since any may be missing, and held to the same number of threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from harness.spec import Prepared


def threads() -> int:
    """How many threads every contender may use; the process that started this one has set it."""
    return int(os.environ["BENCHMARK_THREADS"])


def numpy_arrays(result: Any) -> list[Any]:
    """A result of any contender, one tensor or a sequence of them, as NumPy arrays."""
    many: Sequence[Any] = result if isinstance(result, list | tuple) else [result]
    return [x.numpy() if hasattr(x, "numpy") else np.asarray(x) for x in many]


def compiled(targets: Sequence[Any], graph: Any, feeds: Sequence[Any]) -> Prepared:
    """A graph of ours, run on arrays in the order of its placeholders."""
    executable = graph.compile(list(targets))
    given = list(feeds)
    kernels = executable.report().splitlines()[0]
    return Prepared(lambda _: executable.run(given), numpy_arrays, lambda: {"kernels": kernels})


def torch_cpu() -> Any:
    """The module `torch`, set to our number of threads and to record no gradients."""
    torch = import_module("torch")
    torch.set_num_threads(threads())
    torch.set_grad_enabled(False)
    return torch


def torch_prepared(make: Callable[[Any], Callable[..., Any]], feeds: Sequence[Any], compile_it: bool) -> Prepared:
    """A function of PyTorch tensors without gradients, eager or through torch.compile. make: from `torch` to it."""
    torch = torch_cpu()
    tensors = [torch.from_numpy(x) for x in feeds]
    call = torch.compile(make(torch)) if compile_it else make(torch)
    return Prepared(lambda _: call(*tensors), numpy_arrays)


def jax_prepared(make: Callable[[Any], Callable[..., Any]], feeds: Sequence[Any]) -> Prepared:
    """A function of JAX arrays under jit. make: from the module `jax` to it. JAX's threads are bound by affinity."""
    jax = import_module("jax")
    arrays = [jax.device_put(x) for x in feeds]
    call = jax.jit(make(jax))
    return Prepared(lambda _: jax.block_until_ready(call(*arrays)), numpy_arrays)


def onnxruntime_session(model: bytes, sizes: Mapping[str, int]) -> Any:
    """An ONNX Runtime session on the CPU. sizes: numbers for the model's named sizes."""
    ort = import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads()
    options.log_severity_level = 3
    for name, size in sizes.items():
        options.add_free_dimension_override_by_name(name, size)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def openvino_request(model: bytes, shapes: Mapping[str, Sequence[int]]) -> Any:
    """An OpenVINO request on the CPU in float32, tuned for latency. shapes: of the inputs."""
    ov = import_module("openvino")
    core = ov.Core()
    read = core.read_model(model)
    read.reshape({name: list(shape) for name, shape in shapes.items()})
    settings = {
        "INFERENCE_NUM_THREADS": str(threads()),
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    return core.compile_model(read, "CPU", settings).create_infer_request()
