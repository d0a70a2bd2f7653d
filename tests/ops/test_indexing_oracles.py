"""Slices, gathers, scatters and other movers of elements against NumPy, ONNX's reference evaluator and JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitchwork.backends.reference.interpreter import Interpreter
from stitchwork.errors import OpError
from stitchwork.ir import dims, dtypes
from stitchwork.ir.graph import Module, Value
from stitchwork.ir.types import TensorType
from stitchwork.ops._build import F
from stitchwork.ops._op import building


def run(build: Callable[..., Any], *arrays: np.ndarray, symbolic: bool = False) -> Any:
    """The result of `build` applied to placeholders fed with `arrays`; their sizes are unknown where `symbolic`."""
    module = Module("oracle")
    sizes: dict[str, int] = {}

    def shape(array: np.ndarray) -> tuple[Any, ...]:
        if not symbolic:
            return array.shape
        names = [module.fresh_symbol() for _ in array.shape]
        sizes.update(zip(names, array.shape, strict=True))
        return tuple(map(dims.symbol, names))

    with building(module):
        inputs = [module.body.add_argument(TensorType(dtypes.as_dtype(a.dtype), shape(a))) for a in arrays]
        made = build(*inputs)
    module.body.results = tuple(made) if isinstance(made, tuple) else (made,)
    results = Interpreter(module, sizes).run(*arrays)
    assert [tuple(dims.evaluate(n, sizes) for n in v.shape) for v in module.body.results] == [r.shape for r in results]
    return results if isinstance(made, tuple) else results[0]


# --- square brackets against NumPy --------------------------------------------------------------------------------
bounds = st.none() | st.integers(-8, 8)
slices = st.builds(slice, bounds, bounds, st.none() | st.integers(-3, 3).filter(bool))
items = st.one_of(
    slices,
    st.integers(-3, 2),
    st.just(None),
    st.just(Ellipsis),
    st.lists(st.integers(-3, 2), min_size=1, max_size=4).map(np.array),
    st.just(np.array([[0, 1], [2, -1]])),
)


def is_valid(index: tuple[Any, ...], rank: int) -> bool:
    """Whether NumPy takes the index for what it is meant to be here."""
    shapes = [i.shape for i in index if isinstance(i, np.ndarray)]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    return sum(i is Ellipsis for i in index) <= 1 and sum(i is not None and i is not Ellipsis for i in index) <= rank


@pytest.mark.parametrize("symbolic", [False, True])
@given(index=st.lists(items, max_size=5).map(tuple).filter(lambda i: is_valid(i, 3)))
def test_getitem(symbolic: bool, index: tuple[Any, ...]) -> None:
    x = np.arange(3 * 4 * 5).reshape(3, 4, 5)
    np.testing.assert_array_equal(run(lambda v: v[index], x, symbolic=symbolic), x[index])


def test_getitem_with_tensors() -> None:
    x = np.arange(60).reshape(3, 4, 5)
    i, j = np.array([[0], [2]], np.int32), np.array([1, -1, 3])
    np.testing.assert_array_equal(run(lambda v, a, b: v[:, a, b], x, i, j), x[:, i, j])
    np.testing.assert_array_equal(run(lambda v, a, b: v[a, 1:, b], x, i, j), x[i, 1:, j])
    np.testing.assert_array_equal(run(lambda v, a: v[0, a[0, 0]], x, i), x[0, 0])
    np.testing.assert_array_equal(run(lambda v, a: v[a], x, np.array([9, -9])), np.zeros((2, 4, 5), np.int64))


@pytest.mark.parametrize(
    "index, why",
    [
        ((0, 0, 0, 0), "too many indices"),
        ((..., ...), "more than one Ellipsis"),
        (True, "a bool is no index"),
        (np.array([True, False]), "not an index"),
        (1.5, "not an index"),
        ("a", "not an index"),
        (7, "index 7 of dim 0 is outside"),
        (slice(0, 1, 0), "a stride is 0"),
    ],
)
def test_getitem_rejects(index: Any, why: str) -> None:
    with pytest.raises(OpError, match=why) as e:
        run(lambda v: v[index], np.zeros((3, 4, 5)))
    assert "test_indexing_oracles.py" in str(e.value)


def test_guard_for_an_index_into_an_unknown_size() -> None:
    module = Module("oracle")
    x = module.body.add_argument(TensorType(dtypes.float32, (dims.symbol("n"),)))
    with building(module):
        x[4]
    assert [str(g).split("  #")[0] for g in module.guards.values()] == ["guard slice: n - 5 >= 0"]


# --- sizes as tensors ---------------------------------------------------------------------------------------------
def test_sizes_are_followed() -> None:
    module = Module("oracle")
    n, m = dims.symbol("n"), dims.symbol("m")
    x = module.body.add_argument(TensorType(dtypes.float32, (n, 3, m)))
    with building(module):
        shape: Value = F.shape_of(x)
        assert shape.content == (n, 3, m)
        assert F.gather(shape, np.array([-1, 0])).content == (m, n)
        assert shape[1:].content == (3, m)
        assert F.concat([shape[:1], np.array([-1], np.int32)]).content == (n, -1)
        assert F.reshape(x, shape=F.concat([shape[:1], np.array([-1], np.int32)])).shape == (n, m * 3)
        assert F.squeeze(F.expand_dims(shape, axes=0), axes=0).content == (n, 3, m)
        assert F.reduction_product(shape).content == n * m * 3
        assert F.stack([shape[0], shape[2]]).content == (n, m)
        assert F.split(shape, split_sizes=(1, 2))[0].content is None  # several results are not followed
        assert F.broadcast(np.float32(1), shape=shape).shape == (n, 3, m)
        assert F.range(shape[0]).shape == (n,)
        assert F.tile(shape[:1], multiplier=2).content == (n, n)
        assert F.reverse(shape).content == (m, 3, n)


# --- gathers and scatters -----------------------------------------------------------------------------------------
def onnx_run(op: str, inputs: list[np.ndarray], **attributes: Any) -> Any:
    """One op by ONNX's reference evaluator."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    names = [f"x{k}" for k in range(len(inputs))]
    node = helper.make_node(op, names, ["y"], **attributes)
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for n, a in zip(names, inputs, strict=True)]  # fmt: skip
    out = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(inputs[0].dtype), None)
    model = helper.make_model(helper.make_graph([node], "g", infos, [out]), opset_imports=[helper.make_opsetid("", 18)])
    return ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))[0]


def test_gather_nd(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    for batch_dims, vector, outer in ((0, 2, (3,)), (1, 1, (2, 3)), (2, 1, (2, 3)), (1, 3, (2, 2))):
        limits = x.shape[batch_dims : batch_dims + vector]
        indices = np.stack([rng.integers(-n, n, outer) for n in limits], -1)
        made = run(lambda a, i, b=batch_dims: F.gather_nd(a, i, batch_dims=b), x, indices)
        wrapped = indices % np.array(limits)  # the evaluator does not wrap with batch dims
        np.testing.assert_array_equal(made, onnx_run("GatherND", [x, wrapped], batch_dims=batch_dims))


@pytest.mark.parametrize("mode, reduction", [("set", "none"), ("add", "add"), ("mul", "mul"), ("max", "max")])
def test_scatter_nd(rng: np.random.Generator, mode: str, reduction: str) -> None:
    data = rng.standard_normal((4, 5, 3)).astype(np.float32)
    indices = np.array([[0, 1], [3, 4], [2, 2]]) if mode == "set" else np.array([[0, 1], [3, 4], [0, 1]])
    updates = rng.standard_normal((3, 3)).astype(np.float32)
    made = run(lambda d, u, i: F.scatter_nd_with_data(d, u, i, mode=mode), data, updates, indices)
    expected = onnx_run("ScatterND", [data, indices, updates], reduction=reduction)
    np.testing.assert_allclose(made, expected, rtol=1e-6)


def test_along_axis(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 4, 5))
    for axis in range(3):
        shape = [3, 4, 5]
        shape[axis] = 2
        rows = np.broadcast_to(np.arange(x.shape[axis]), (*shape[:axis], *shape[axis + 1 :], x.shape[axis]))
        indices = rng.permuted(rows, axis=-1)[..., :2]
        indices = np.moveaxis(indices, -1, axis)
        made = run(lambda a, i, k=axis: F.gather_along_axis(a, i, axis=k), x, indices)
        np.testing.assert_array_equal(made, np.take_along_axis(x, indices, axis))
        updates = rng.standard_normal(shape)
        expected = x.copy()
        np.put_along_axis(expected, indices, updates, axis)
        made = run(
            lambda d, u, i, k=axis: F.scatter_along_axis_with_data(d, u, i, axis=k, mode="set"), x, updates, indices
        )
        np.testing.assert_array_equal(made, expected)


def test_scatter_example_of_the_original() -> None:
    """The worked example in the header of MPSGraph's scatterAlongAxis."""
    data = np.repeat(np.arange(4, dtype=np.float32)[:, None], 3, 1)
    updates, indices = np.array([[1, 2, 3], [4, 5, 6]], np.float32), np.array([[2, 1, 0], [1, 3, 2]], np.int32)
    made = run(lambda d, u, i: F.scatter_along_axis_with_data(d, u, i, axis=0), data, updates, indices)
    np.testing.assert_array_equal(made, [[0, 0, 3], [5, 3, 1], [3, 2, 8], [3, 8, 3]])


def test_the_last_of_equal_indices_stays() -> None:
    updates, indices = np.array([1.0, 2.0, 3.0]), np.array([0, 1, 0])
    np.testing.assert_array_equal(run(lambda u, i: F.scatter(u, i, shape=(2,), mode="set"), updates, indices), [3, 2])


GENERAL = [
    # x, indices, slice_sizes, offset_dims, collapsed, map, batching of x, batching of indices
    ((6, 5), (4, 1), (1, 5), (1,), (0,), (0,), (), ()),
    ((6, 5), (4, 2), (3, 2), (1, 2), (), (1, 0), (), ()),
    ((6, 5), (2, 3, 2), (1, 1), (), (0, 1), (0, 1), (), ()),
    ((6, 5), (2, 3, 1), (2, 3), (0, 2), (), (1,), (), ()),
    ((3, 6, 5), (3, 2, 1), (1, 2, 5), (2, 3), (), (1,), (0,), (0,)),
    ((6, 3, 5), (2, 3, 2), (2, 1, 1), (1,), (2,), (0, 2), (1,), (1,)),
]


@pytest.mark.needs("jax", reason="its gather and scatter are those of StableHLO")
@pytest.mark.parametrize("outside", ["clamp", "zero"])
@pytest.mark.parametrize("case", GENERAL, ids=str)
def test_gather_general(case: tuple[Any, ...], outside: str, rng: np.random.Generator) -> None:
    import jax

    shape, indices_shape, sizes, offset, collapsed, index_map, batching, indices_batching = case
    x = rng.standard_normal(shape).astype(np.float32)
    indices = rng.integers(-2, 7, indices_shape, dtype=np.int32)
    numbers = jax.lax.GatherDimensionNumbers(offset, collapsed, index_map, batching, indices_batching)
    mode = "clip" if outside == "clamp" else "fill"
    expected = jax.lax.gather(x, indices, numbers, sizes, mode=mode, fill_value=0)
    made = run(
        lambda a, i: F.gather_general(
            a, i, slice_sizes=sizes, offset_dims=offset, collapsed_slice_dims=collapsed, start_index_map=index_map,
            operand_batching_dims=batching, start_indices_batching_dims=indices_batching,
            index_vector_dim=len(indices_shape) - 1, outside=outside,
        ), x, indices,
    )  # fmt: skip
    np.testing.assert_array_equal(made, expected)


@pytest.mark.needs("jax", reason="its gather and scatter are those of StableHLO")
@pytest.mark.parametrize("outside", ["clamp", "drop"])
@pytest.mark.parametrize("mode", ["add", "mul", "min", "max"])
@pytest.mark.parametrize("case", GENERAL, ids=str)
def test_scatter_general(case: tuple[Any, ...], mode: str, outside: str, rng: np.random.Generator) -> None:
    import jax

    shape, indices_shape, sizes, window, inserted, index_map, batching, indices_batching = case
    x = rng.standard_normal(shape).astype(np.float32)
    indices = rng.integers(-2, 7, indices_shape, dtype=np.int32)
    kept = [n for d, n in enumerate(sizes) if d not in inserted and d not in batching]
    outer = list(indices_shape[:-1])
    rank = len(outer) + len(window)
    updates = rng.standard_normal([kept.pop(0) if d in window else outer.pop(0) for d in range(rank)]).astype(
        np.float32
    )
    numbers = jax.lax.ScatterDimensionNumbers(window, inserted, index_map, batching, indices_batching)
    scatter = {"add": jax.lax.scatter_add, "mul": jax.lax.scatter_mul, "min": jax.lax.scatter_min,
               "max": jax.lax.scatter_max}[mode]  # fmt: skip
    expected = scatter(x, indices, updates, numbers, mode="clip" if outside == "clamp" else "drop")
    made = run(
        lambda a, i, u: F.scatter_general(
            a, i, u, update_window_dims=window, inserted_window_dims=inserted, scatter_dims_to_operand_dims=index_map,
            input_batching_dims=batching, scatter_indices_batching_dims=indices_batching,
            index_vector_dim=len(indices_shape) - 1, mode=mode, outside=outside,
        ), x, indices, updates,
    )  # fmt: skip
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


# --- the rest -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["constant", "reflect", "symmetric", "edge", "wrap"])
def test_pad(mode: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 4))
    width = ((2, 7), (0, 5))
    np.testing.assert_array_equal(run(lambda v: F.pad(v, width, mode=mode), x), np.pad(x, width, mode=mode))


def test_antiperiodic_pad() -> None:
    made = run(lambda v: F.pad(v, ((3, 5),), mode="antiperiodic"), np.array([1.0, 2.0]))
    np.testing.assert_array_equal(made, [2, -1, -2, 1, 2, -1, -2, 1, 2, -1])


@pytest.mark.parametrize("shuffle, mode", [(False, "DCR"), (True, "CRD")])
def test_depth_to_space(shuffle: bool, mode: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 12, 3, 5)).astype(np.float32)
    axes = {"height_axis": 2, "width_axis": 3, "depth_axis": 1, "block_size": 2, "use_pixel_shuffle_order": shuffle}
    made = run(lambda v: F.depth_to_space2d(v, **axes), x)
    np.testing.assert_array_equal(made, onnx_run("DepthToSpace", [x], blocksize=2, mode=mode))
    np.testing.assert_array_equal(run(lambda v: F.space_to_depth2d(v, **axes), made), x)


def test_space_to_batch_example_of_tensorflow() -> None:
    x = np.arange(1, 17, dtype=np.float32).reshape(1, 4, 4, 1)
    made = run(lambda v: F.space_to_batch(v, spatial_axes=(1, 2), block_dimensions=(2, 2)), x)
    assert made[..., 0].tolist() == [[[1, 3], [9, 11]], [[2, 4], [10, 12]], [[5, 7], [13, 15]], [[6, 8], [14, 16]]]
    np.testing.assert_array_equal(run(lambda v: F.batch_to_space(v, (1, 2), (2, 2)), made), x)


@given(
    x=st.lists(st.sampled_from([0.0, 1.0, -1.0, 2.0, float("inf"), float("-inf"), float("nan")]), max_size=40),
    descending=st.booleans(),
)
def test_sort(x: list[float], descending: bool) -> None:
    array = np.array(x)
    order = run(lambda v: F.arg_sort(v, descending=descending), array)
    keys = [(v != v, -v if descending else v) if v == v else (True, 0.0) for v in x]
    assert order.tolist() == sorted(range(len(x)), key=lambda i: keys[i])
    np.testing.assert_array_equal(run(lambda v: F.sort(v, descending=descending), array), array[order])


def test_top_k_and_sort_together(rng: np.random.Generator) -> None:
    x = rng.integers(0, 9, (4, 30)).astype(np.float32)
    values, indices = run(lambda v: F.top_k(v, k=7), x)
    expected = np.argsort(-x, axis=-1, kind="stable")[:, :7]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, -1))
    a, b, c = rng.integers(0, 3, (3, 50))
    made = run(lambda *v: F.sort_together(list(v), num_keys=2), a, b, c)
    order = np.lexsort((b, a))
    for got, wanted in zip(made, (a[order], b[order], c[order]), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("mode", ["sum", "product", "maximum", "minimum"])
def test_scans(mode: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 6))
    ufunc = {"sum": np.add, "product": np.multiply, "maximum": np.maximum, "minimum": np.minimum}[mode]
    scan = getattr(F, f"cumulative_{mode}")
    np.testing.assert_allclose(run(lambda v: scan(v, axis=1), x), ufunc.accumulate(x, axis=1))
    backwards = ufunc.accumulate(x[::-1], axis=0)[::-1]
    np.testing.assert_allclose(run(lambda v: scan(v, reverse=True), x), backwards)
    np.testing.assert_allclose(run(lambda v: scan(v, exclusive=True)[1:], x), ufunc.accumulate(x, axis=0)[:-1])


def test_ranges() -> None:
    for args in ((7,), (2, 11, 3), (11, 2, -4), (0.5, 3.0, 0.5)):
        np.testing.assert_allclose(run(lambda a=args: F.range(*a)), np.arange(*args))
