"""Scaled dot-product attention, made of two matrix products and a softmax."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stitchwork.ir import dims
from stitchwork.ir.dims import Size
from stitchwork.ir.dtypes import bool_, int32
from stitchwork.ir.graph import Value
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._op import Array, Op, Operand, Sample, broadcast_shapes, operand, require_equal, sample
from stitchwork.ops._values import convert, coordinates, size_scalar, wide
from stitchwork.ops._windows import Sizes
from stitchwork.ops._windows import wide as wide_array


class ScaledDotProductAttention(Op, name="scaled_dot_product_attention", aliases=("attention",)):
    """softmax(scale * query @ keyᵀ + mask) @ value.

    query [..., hq, nq, f], key [..., hk, nk, f], value [..., hv, nk, e] (also without heads), result [..., hq, nq, e].
    Fewer heads of key or value than of query serve as many query heads each (hq a multiple of hk and hv; grouped-query
    attention). scale: 1 / sqrt(f) unless given.

    mask, optional, broadcasts to [..., hq, nq, nk]: numbers are added to the scores; of a bool mask, false hides a key.
    causal: query i sees keys 0 to i; not together with a mask. sinks, optional, [hq]: for each head the score of one
    more key with value 0, so that weights add up to less than 1. A row with every key hidden gives NaN. The softmax of
    narrow floats is computed in float32.
    """

    query: Operand = operand("... m f", "float")
    key: Operand = operand("... k f", "float")  # pyright: ignore[reportIncompatibleMethodOverride]  # gone once declared
    value: Operand = operand("... k e", "float")
    mask: Operand = operand("...", "float bool", "", optional=True)
    sinks: Operand = operand("h", "float", optional=True)
    scale: float | None = None
    causal: bool = False

    def infer(
        self, query: TensorType, key: TensorType, value: TensorType, mask: TensorType | None, sinks: TensorType | None
    ) -> TensorType:
        heads = _heads(query.shape)
        for name, t in (("key", key), ("value", value)):
            own = _heads(t.shape)
            if (
                own != heads
                and own != 1
                and not require_equal(self.name, dims.mod(heads, own), 0, f"heads of query serve {name}")
            ):
                raise self.fail(
                    f"heads of `{name}` do not divide those of query", expected=f"a divisor of {heads}", got=str(t)
                )
        if mask is not None and self.causal:
            raise self.fail("both `mask` and `causal`", expected="one of them")
        if mask is not None and mask.dtype is not bool_ and mask.dtype is not query.dtype:
            raise self.fail(f"`mask` has dtype {mask.dtype}", expected=f"{query.dtype} or bool", got=str(mask))
        if sinks is not None and not require_equal(self.name, sinks.shape[0], heads, "one sink per head"):
            raise self.fail("`sinks` does not have one element per head", expected=f"[{heads}]", got=str(sinks))
        lead = broadcast_shapes(self.name, query.shape[:-3], key.shape[:-3], value.shape[:-3])
        scores = (*lead, *query.shape[-3:-2], query.shape[-2], key.shape[-2])
        if mask is not None and len(broadcast_shapes(self.name, scores, mask.shape)) != len(scores):
            raise self.fail(
                "`mask` has more dims than the scores", expected=f"rank {len(scores)} or less", got=str(mask)
            )
        return query.with_shape((*lead, *query.shape[-3:-1], value.shape[-1]))

    def numpy(self, query: Array, key: Array, value: Array, mask: Array | None, sinks: Array | None) -> Array:
        q, k, v = wide_array(query), wide_array(key), wide_array(value)
        if q.ndim > 2:
            repeat = [q.shape[-3] // (x.shape[-3] if x.ndim > 2 else 1) for x in (k, v)]
            k, v = (np.repeat(x, r, -3) if x.ndim > 2 else x for x, r in zip((k, v), repeat, strict=True))
        scale = 1 / math.sqrt(max(q.shape[-1], 1)) if self.scale is None else self.scale
        scores = np.matmul(q, np.swapaxes(k, -1, -2)) * np.asarray(scale, q.dtype)
        if self.causal:
            mask = np.tri(scores.shape[-2], scores.shape[-1], dtype=np.bool_)
        if mask is not None:
            scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + wide_array(mask)
        sink = None if sinks is None else wide_array(sinks).reshape(-1, 1, 1)
        top = scores.max(-1, keepdims=True, initial=-np.inf)
        top = top if sink is None else np.maximum(top, sink)
        weights = np.exp(scores - top)
        total = weights.sum(-1, keepdims=True)
        total = total if sink is None else total + np.exp(sink - top)
        return np.matmul((weights / total).astype(q.dtype), v).astype(query.dtype)

    def decompose(self, query: Value, key: Value, value: Value, mask: Value | None, sinks: Value | None) -> Value:
        weights = self._weights(query, key, mask, sinks)
        return _apart(F.batch_matmul(_grouped(convert(weights, value.dtype), value), value), query)

    def _weights(self, query: Value, key: Value, mask: Value | None, sinks: Value | None) -> Value:
        """[..., hq, nq, nk], wide."""
        scores = wide(_apart(F.batch_matmul(_grouped(query, key), key, transpose_b=True), query)) * self._scale(query)
        if self.causal:
            rows = coordinates(query, 0, (query.shape[-2], 1), int32)
            columns = coordinates(query, 1, (1, key.shape[-2]), int32)
            mask = F.less_than_or_equal_to(columns, rows)
        if mask is not None and mask.dtype is bool_:
            scores = F.select(mask, scores, -math.inf)
        elif mask is not None:
            scores = scores + wide(mask)
        top = F.reduction_maximum(scores, axes=-1, keepdims=True)
        sink = None if sinks is None else F.reshape(wide(sinks), (sinks.shape[0], 1, 1))
        top = top if sink is None else F.maximum(top, sink)
        weights = F.exp(scores - top)
        total = F.reduction_sum(weights, axes=-1, keepdims=True)
        return weights / (total if sink is None else total + F.exp(sink - top))

    def _scale(self, query: Value) -> Any:
        f = query.shape[-1]
        if self.scale is not None:
            return self.scale
        return 1 / math.sqrt(max(f, 1)) if isinstance(f, int) else F.rsqrt(size_scalar(query, f, wide(query).dtype))

    def vjp(
        self, ct: Value, query: Value, key: Value, value: Value, mask: Value | None, sinks: Value | None
    ) -> Sequence[Value | None]:
        weights = self._weights(query, key, mask, sinks)
        narrow = convert(weights, query.dtype)
        dvalue = F.batch_matmul(_grouped(narrow, value), _grouped(ct, value), transpose_a=True)
        dweights = wide(_apart(F.batch_matmul(_grouped(ct, value), value, transpose_b=True), query))
        seen = F.reduction_sum(dweights * weights, axes=-1, keepdims=True)
        dscores = weights * (dweights - seen)
        pulled = convert(dscores * self._scale(query), query.dtype)
        dquery = _apart(F.batch_matmul(_grouped(pulled, key), key), query)
        dkey = F.batch_matmul(_grouped(pulled, key), _grouped(query, key), transpose_a=True)
        dmask = convert(dscores, mask.dtype) if mask is not None and mask.dtype is not bool_ else None
        dsinks = None
        if sinks is not None:
            left = 1.0 - F.reduction_sum(weights, axes=-1, keepdims=True)
            each = -left * seen  # [..., h, nq, 1]
            axes = tuple(d for d in range(each.rank) if d != each.rank - 3)
            dsinks = convert(F.reduction_sum(each, axes=axes), sinks.dtype)
        return dquery, dkey, dvalue, dmask, dsinks

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 7))
        yield sample((4, 5), (6, 5), (6, 3), (4, 6), scale=0.3)
        yield sample((2, 6, 4, 3), (2, 2, 5, 3), (2, 3, 5, 3), (5,))
        yield sample((1, 4, 3, 2), (1, 1, 3, 2), (1, 1, 3, 2), None, (4,), causal=True)
        yield sample((2, 3, 4, 5), (1, 3, 4, 5), (2, 3, 4, 5), causal=True)
        hidden = np.array([[True, False, True], [True, True, False]])
        yield sample((2, 2, 4), (2, 3, 4), (2, 3, 4), hidden)
        yield Sample(((2, 4, 8), (2, 4, 8), (2, 4, 8)), {}, dtype="f16", grad=False, tolerance=2)

    @classmethod
    def rejects(cls) -> Iterator[tuple[str, Sample]]:
        yield "dimension `f` differs", sample((2, 3, 4), (2, 3, 5), (2, 3, 4))
        yield "heads of `key` do not divide", sample((4, 3, 4), (3, 3, 4), (4, 3, 4))
        yield "both `mask` and `causal`", sample((2, 3, 4), (2, 3, 4), (2, 3, 4), (3, 3), causal=True)
        yield "`sinks` does not have one element per head", sample((2, 3, 4), (2, 3, 4), (2, 3, 4), None, (3,))
        yield "more dims than the scores", sample((3, 4), (3, 4), (3, 4), (2, 3, 3))


def _heads(shape: Sizes) -> Size:
    return shape[-3] if len(shape) > 2 else 1


def _grouped(x: Value, server: Value) -> Value:
    """x [..., h, n, d] with the heads that one head of `server` serves joined: [..., hs, h / hs * n, d]."""
    own, other = _heads(x.shape), _heads(server.shape)
    if own == other or server.rank < 3:
        return x
    return F.reshape(x, (*x.shape[:-3], other, dims.floordiv(own, other) * x.shape[-2], x.shape[-1]))


def _apart(y: Value, query: Value) -> Value:
    """Undo `_grouped`: heads and rows as in query."""
    if query.rank < 3 or y.shape[-3:-1] == query.shape[-3:-1]:
        return y
    return F.reshape(y, (*y.shape[:-3], *query.shape[-3:-1], y.shape[-1]))


scaled_dot_product_attention = F.scaled_dot_product_attention
