"""Python's square brackets on tensors: ints, slices, None, Ellipsis and integer tensors, as in NumPy.

Ints and slices become `slice`, None becomes `expand_dims`, integer tensors become gathers. An int outside its dim is an
error where the size is known and a checked guard where it is not; tensor indices outside read 0, as every gather does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from stitchwork.errors import OpError
from stitchwork.ir.dims import Dim, Size
from stitchwork.ir.graph import OPERATORS, Value
from stitchwork.ops._build import F
from stitchwork.ops._contents import known
from stitchwork.ops._op import Array, building


@dataclass
class _Plan:
    """An index taken apart."""

    starts: list[Size | None] = field(default_factory=list["Size | None"])
    ends: list[Size | None] = field(default_factory=list["Size | None"])
    strides: list[int] = field(default_factory=list[int])
    squeeze: int = 0
    tensors: list[tuple[int, Any]] = field(default_factory=list[tuple[int, Any]])  # (dim after slicing, indices)
    new: list[int] = field(default_factory=list[int])  # dims of size 1, as positions after slicing
    places: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # (item, dim) of ints and tensors

    def take(self, start: Size | None, end: Size | None, stride: int = 1, squeezed: bool = False) -> None:
        self.squeeze |= squeezed << len(self.starts)
        self.starts.append(start)
        self.ends.append(end)
        self.strides.append(stride)


def getitem(x: Value, index: Any) -> Value:
    """x[index]: see the head of this file. Raises OpError for booleans, floats and too many indices."""
    items = cast("tuple[Any, ...]", index) if isinstance(index, tuple) else (index,)
    with building(x.module):
        plan = _plan(_expanded(items, x.rank))
        made = x
        if any(n is not None for n in (*plan.starts, *plan.ends)) or any(k != 1 for k in plan.strides):
            made = F.slice(x, plan.starts, plan.ends, plan.strides, squeeze_mask=plan.squeeze)
        if plan.new:
            made = F.expand_dims(made, axes=plan.new)
        return _gathered(made, plan) if plan.tensors else made


def _expanded(items: tuple[Any, ...], rank: int) -> list[Any]:
    """The items with Ellipsis and missing dims spelled out as whole slices."""
    used = sum(i is not None and i is not Ellipsis for i in items)
    dots = [k for k, i in enumerate(items) if i is Ellipsis]
    if used > rank:
        raise OpError("getitem", "too many indices", expected=f"{rank} or fewer", got=str(used))
    if len(dots) > 1:
        raise OpError("getitem", "more than one Ellipsis", expected="at most one")
    whole = [slice(None)] * (rank - used)
    at = dots[0] if dots else len(items)
    return [*items[:at], *whole, *items[at + 1 :]]


def _plan(items: list[Any]) -> _Plan:
    plan = _Plan()
    dim = 0  # of the sliced tensor
    for k, item in enumerate(items):
        if item is None:
            plan.new.append(dim)
            dim += 1
        elif isinstance(item, slice):
            start, end, stride = _slice_parts(cast("Any", item))
            plan.take(start, end, stride)
            dim += 1
        else:
            indices = _indices(item)
            plan.places.append((k, dim))
            if isinstance(indices, int | Dim):
                plan.take(indices, None, squeezed=True)
            else:
                plan.take(None, None)
                plan.tensors.append((dim, indices))
                dim += 1
    return plan


def _slice_parts(item: Any) -> tuple[Size | None, Size | None, int]:
    start, end, stride = (known("getitem", k, getattr(item, k)) for k in ("start", "stop", "step"))
    return start, end, 1 if stride is None else stride


def _indices(item: Any) -> Any:
    """An int or size, or an integer tensor or array."""
    if isinstance(item, bool | np.bool_):
        raise OpError("getitem", "a bool is no index", hint="use select to choose elements by a condition")
    if isinstance(item, Value):
        if not item.dtype.is_integer:
            raise _unusable(str(item.dtype))
        return item.content if item.rank == 0 and item.content is not None else item
    if isinstance(item, Dim):
        return item
    if hasattr(item, "__index__") and not isinstance(item, np.ndarray):
        return int(item.__index__())
    try:
        array: Array = np.asarray(cast("Any", item))
    except (TypeError, ValueError):
        raise _unusable(type(cast("Any", item)).__name__) from None
    if array.dtype.kind not in "iu" and array.size:
        raise _unusable(str(array.dtype))
    return array.astype(np.int64)


def _unusable(what: str) -> OpError:
    return OpError(
        "getitem",
        "not an index",
        expected="ints, slices, None, Ellipsis or integer tensors",
        got=what,
        hint="use select to choose elements by a condition",
    )


def _gathered(x: Value, plan: _Plan) -> Value:
    """Gather along the dims that tensors index; the tensors' dims go where NumPy puts them."""
    axes = [d for d, _ in plan.tensors]
    items = [k for k, _ in plan.places]
    together = items == list(range(items[0], items[-1] + 1))
    target = plan.places[0][1] if together else 0  # separated by slices: in front
    if len(axes) == 1 and axes[0] == target:
        return F.gather(x, plan.tensors[0][1], axis=axes[0])
    rest = [d for d in range(x.rank) if d not in axes]
    front = F.permute(x, permutation=(*axes, *rest))
    indices = F.stack([i for _, i in plan.tensors], axis=-1)
    made = F.gather_nd(front, indices)
    wide = indices.rank - 1
    order = [*range(wide, wide + target), *range(wide), *range(wide + target, made.rank)]
    return F.permute(made, permutation=order) if target else made


OPERATORS["getitem"] = getitem
