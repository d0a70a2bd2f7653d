"""Tensors outside a graph: what an executable takes and gives."""

from __future__ import annotations

from typing import Any

import numpy as np

from stitchwork.ir.dtypes import DType, as_dtype
from stitchwork.ir.graph import Array


class TensorData:
    """A tensor in memory, which it shares with NumPy (`np.asarray(x)`) and DLPack consumers; never copies by itself."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    @property
    def dtype(self) -> DType:
        return as_dtype(self._array.dtype)

    @property
    def device(self) -> str:
        return "cpu"

    def numpy(self) -> Array:
        """The tensor as a NumPy array, without a copy."""
        return self._array

    def item(self) -> Any:
        """The only element of a tensor with one element, as a Python number. Raises ValueError for more."""
        return self._array.item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype=dtype, copy=copy)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        return self._array[index]

    def __float__(self) -> float:
        return float(self._array.item())

    def __int__(self) -> int:
        return int(self._array.item())

    def __bool__(self) -> bool:
        return bool(self._array.item())

    def __repr__(self) -> str:
        return f"TensorData({self._array!r})"
