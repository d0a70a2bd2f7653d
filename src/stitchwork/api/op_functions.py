"""Every op as a free function. `op_functions.pyi`, which scripts/make_docs.py generates, says their types."""

import stitchwork.ops as _ops

globals().update(_ops.FUNCTIONS)
