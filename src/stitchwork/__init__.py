"""Stitchwork: a tensor graph compiler. Build a graph or bring a model, compile it once, run it at any size."""

from stitchwork import errors as errors
from stitchwork.api.device import Device as Device
from stitchwork.api.device import devices as devices
from stitchwork.api.function import Function as Function
from stitchwork.api.function import function as function
from stitchwork.api.graph import Graph as Graph
from stitchwork.api.op_functions import *  # noqa: F403 - every op is also a free function
from stitchwork.api.variable import Variable as Variable
from stitchwork.autodiff import gradients as gradients
from stitchwork.ir.dtypes import bfloat16 as bfloat16
from stitchwork.ir.dtypes import bool_ as bool_
from stitchwork.ir.dtypes import complex64 as complex64
from stitchwork.ir.dtypes import complex128 as complex128
from stitchwork.ir.dtypes import float4_e2m1 as float4_e2m1
from stitchwork.ir.dtypes import float8_e4m3 as float8_e4m3
from stitchwork.ir.dtypes import float8_e4m3fnuz as float8_e4m3fnuz
from stitchwork.ir.dtypes import float8_e5m2 as float8_e5m2
from stitchwork.ir.dtypes import float8_e5m2fnuz as float8_e5m2fnuz
from stitchwork.ir.dtypes import float8_e8m0 as float8_e8m0
from stitchwork.ir.dtypes import float16 as float16
from stitchwork.ir.dtypes import float32 as float32
from stitchwork.ir.dtypes import float64 as float64
from stitchwork.ir.dtypes import int2 as int2
from stitchwork.ir.dtypes import int4 as int4
from stitchwork.ir.dtypes import int8 as int8
from stitchwork.ir.dtypes import int16 as int16
from stitchwork.ir.dtypes import int32 as int32
from stitchwork.ir.dtypes import int64 as int64
from stitchwork.ir.dtypes import uint2 as uint2
from stitchwork.ir.dtypes import uint4 as uint4
from stitchwork.ir.dtypes import uint8 as uint8
from stitchwork.ir.dtypes import uint16 as uint16
from stitchwork.ir.dtypes import uint32 as uint32
from stitchwork.ir.dtypes import uint64 as uint64
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType as TensorType
from stitchwork.ops.control_flow import for_loop as for_loop
from stitchwork.ops.control_flow import if_else as if_else
from stitchwork.ops.control_flow import while_loop as while_loop
from stitchwork.runtime.executable import Executable as Executable
from stitchwork.runtime.options import CompileOptions as CompileOptions
from stitchwork.runtime.queue import CommandQueue as CommandQueue
from stitchwork.runtime.queue import Pending as Pending
from stitchwork.runtime.tensor_data import TensorData as TensorData

Tensor = Value
__version__ = "0.1.0"
