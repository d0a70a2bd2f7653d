from stitchwork.ops import _reduce_window
