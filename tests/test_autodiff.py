"""Gradients of small programs agree with JAX's, by the reference backend and compiled, with known and unknown sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import stitchwork as sw
from stitchwork.backends.reference.interpreter import Interpreter
from stitchwork.errors import GraphError, OpError

Array = np.ndarray
Program = Callable[..., Any]

needs_jax = pytest.mark.needs("jax", reason="the oracle for gradients")


def jax_gradients(program: Program, arrays: Sequence[Array]) -> list[Array]:
    """Gradients of program(jax, *arrays) for the float arrays."""
    import jax

    numbers = tuple(k for k, a in enumerate(arrays) if a.dtype.kind in "fc")
    gradients = jax.jit(jax.grad(lambda *a: program(jax, *a), numbers))  # one compilation instead of one per primitive
    return [np.asarray(g) for g in gradients(*arrays)]


def our_gradients(program: Program, arrays: Sequence[Array], known: bool = True) -> tuple[sw.Graph, list[Any]]:
    """A graph of program(*placeholders) and its gradients for the float placeholders."""
    g = sw.Graph()
    inputs = [g.placeholder(a.shape if known else (None,) * a.ndim, a.dtype, f"x{k}") for k, a in enumerate(arrays)]
    return g, g.gradients(program(*inputs), [v for v in inputs if v.dtype.kind in "fc"])


def interpreted(g: sw.Graph, targets: Sequence[Any], arrays: Sequence[Array] = ()) -> list[Array]:
    """Values of targets by the reference backend."""
    g.module.body.results = tuple(targets)
    return Interpreter(g.module, {}).run(*arrays)


def compiled(g: sw.Graph, targets: Sequence[Any], arrays: Sequence[Array] = ()) -> list[Array]:
    """Values of targets by compiled code."""
    executable = g.compile(targets, feeds=g.module.body.arguments)
    return [t.numpy() for t in executable.run(list(arrays))]


def assert_near(got: Sequence[Array], want: Sequence[Array], tolerance: float = 2e-4) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        scale = max(1.0, float(np.max(np.abs(b), initial=0.0)))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)


def assert_gradients(ours: Program, theirs: Program, *arrays: Array) -> None:
    """Gradients of ours(*tensors) are those of theirs(jax, *arrays)."""
    want = jax_gradients(theirs, arrays)
    g, found = our_gradients(ours, arrays)
    assert_near(interpreted(g, found, arrays), want)
    assert_near(compiled(g, found, arrays), want)
    assert_near(compiled(*our_gradients(ours, arrays, known=False), arrays), want)


def floats(rng: np.random.Generator, *shape: int) -> Array:
    return rng.uniform(-1, 1, shape).astype(np.float32)


# --- ops --------------------------------------------------------------------------------------------------------------
@needs_jax
def test_mlp(rng: np.random.Generator) -> None:
    def ours(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        return sw.sum(sw.square(sw.relu(x @ w1 + b1) @ w2 + b2))

    def theirs(jax: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        return jax.numpy.sum((jax.nn.relu(x @ w1 + b1) @ w2 + b2) ** 2)

    shapes = ((6, 4), (4, 8), (8,), (8, 3), (3,))
    assert_gradients(ours, theirs, *(floats(rng, *s) for s in shapes))


@needs_jax
@pytest.mark.parametrize(
    "shapes", [((3, 4), (4,)), ((3, 1), (1, 4)), ((), (2, 3)), ((2, 1, 3), (5, 1)), ((1,), (1, 1))]
)
def test_broadcast(rng: np.random.Generator, shapes: tuple[tuple[int, ...], ...]) -> None:
    def ours(a: Any, b: Any) -> Any:
        return sw.sum(sw.exp(a * b) + a / (b + 3.0) - sw.maximum(a, b))

    def theirs(jax: Any, a: Any, b: Any) -> Any:
        return jax.numpy.sum(jax.numpy.exp(a * b) + a / (b + 3.0) - jax.numpy.maximum(a, b))

    assert_gradients(ours, theirs, *(floats(rng, *s) for s in shapes))


@needs_jax
def test_softmax_cross_entropy(rng: np.random.Generator) -> None:
    def ours(x: Any, w: Any, labels: Any) -> Any:
        return sw.softmax_cross_entropy(x @ w, sw.one_hot(labels, 5), axis=-1, reduction="mean")

    def theirs(jax: Any, x: Any, w: Any, labels: Any) -> Any:
        return jax.numpy.mean(-jax.numpy.sum(jax.nn.one_hot(labels, 5) * jax.nn.log_softmax(x @ w), -1))

    assert_gradients(ours, theirs, floats(rng, 7, 4), floats(rng, 4, 5), rng.integers(0, 5, 7).astype(np.int32))


@needs_jax
def test_convolution_pooling_and_normalization(rng: np.random.Generator) -> None:
    def ours(x: Any, w: Any, gamma: Any, beta: Any) -> Any:
        y = sw.conv2d(x, w, padding="same")
        mean = sw.mean(y, (0, 1, 2), keepdims=True)
        y = sw.normalize(y, mean, sw.variance(y, axes=(0, 1, 2), keepdims=True), gamma, beta, 1e-3)
        return sw.sum(sw.square(sw.max_pooling2d(sw.relu(y), (2, 2), strides=(2, 2))))

    def theirs(jax: Any, x: Any, w: Any, gamma: Any, beta: Any) -> Any:
        np_ = jax.numpy
        y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = (y - np_.mean(y, (0, 1, 2))) / np_.sqrt(np_.var(y, (0, 1, 2)) + 1e-3) * gamma + beta
        pooled = jax.lax.reduce_window(jax.nn.relu(y), -np_.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return np_.sum(pooled**2)

    arrays = (floats(rng, 2, 6, 6, 3), floats(rng, 3, 3, 3, 4), floats(rng, 4), floats(rng, 4))
    assert_gradients(ours, theirs, *arrays)


@needs_jax
def test_an_op_without_rule_is_decomposed(rng: np.random.Generator) -> None:
    def ours(x: Any, gamma: Any, beta: Any) -> Any:
        return sw.sum(sw.square(sw.layer_norm(x, gamma, beta, epsilon=1e-3)) * sw.tanh(x))

    def theirs(jax: Any, x: Any, gamma: Any, beta: Any) -> Any:
        np_ = jax.numpy
        y = (x - np_.mean(x, -1, keepdims=True)) / np_.sqrt(np_.var(x, -1, keepdims=True) + 1e-3) * gamma + beta
        return np_.sum(y**2 * np_.tanh(x))

    assert_gradients(ours, theirs, floats(rng, 5, 8), floats(rng, 8), floats(rng, 8))


@needs_jax
def test_embedding(rng: np.random.Generator) -> None:
    def ours(table: Any, w: Any, rows: Any) -> Any:
        return sw.sum(sw.square(sw.gather(table, rows, axis=0) @ w))

    def theirs(jax: Any, table: Any, w: Any, rows: Any) -> Any:
        return jax.numpy.sum((table[rows] @ w) ** 2)

    assert_gradients(ours, theirs, floats(rng, 10, 4), floats(rng, 4, 2), np.array([[1, 3, 1], [0, 9, 9]], np.int32))


@needs_jax
def test_several_results(rng: np.random.Generator) -> None:
    def ours(x: Any) -> Any:
        best, _ = sw.top_k(x, 2)
        first, second = sw.split_equal(x, num_splits=2, axis=1)
        return sw.sum(best * best) + sw.sum(first * 3.0) + sw.sum(sw.exp(second))

    def theirs(jax: Any, x: Any) -> Any:
        best, _ = jax.lax.top_k(x, 2)
        return jax.numpy.sum(best * best) + jax.numpy.sum(x[:, :3] * 3.0) + jax.numpy.sum(jax.numpy.exp(x[:, 3:]))

    assert_gradients(ours, theirs, floats(rng, 4, 6))


@needs_jax
def test_complex(rng: np.random.Generator) -> None:
    def ours(x: Any, y: Any) -> Any:
        return sw.sum(sw.absolute_square(x * sw.cast(y, sw.complex64) + sw.conjugate(x)))

    def theirs(jax: Any, x: Any, y: Any) -> Any:
        return jax.numpy.sum(jax.numpy.abs(x * y + jax.numpy.conj(x)) ** 2)

    z = (floats(rng, 3, 4) + 1j * floats(rng, 3, 4)).astype(np.complex64)
    assert_gradients(ours, theirs, z, floats(rng, 4))


# --- control flow -----------------------------------------------------------------------------------------------------
@needs_jax
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_if_else_with_captured_weights(rng: np.random.Generator, sign: float) -> None:
    def ours(p: Any, x: Any, w: Any, v: Any) -> Any:
        hidden = sw.tanh(x @ w)
        made = sw.if_else(
            sw.sum(p) > 0.0, lambda: [hidden @ v, sw.sum(w)], lambda: [x * 2.0 + sw.exp(hidden), sw.sum(v * v)]
        )
        return sw.sum(made[0] * made[0]) + made[1] + sw.sum(p)

    def theirs(jax: Any, p: Any, x: Any, w: Any, v: Any) -> Any:
        np_ = jax.numpy
        hidden = np_.tanh(x @ w)
        made = (hidden @ v, np_.sum(w)) if sign > 0 else (x * 2.0 + np_.exp(hidden), np_.sum(v * v))
        return np_.sum(made[0] * made[0]) + made[1] + np_.sum(p)

    arrays = [np.full((2,), sign, np.float32), *(floats(rng, 3, 3) for _ in range(3))]
    assert_gradients(ours, theirs, *arrays)


def recurrent(jax: Any, x: Any, w: Any, rounds: Any) -> Any:
    """What `test_for_loop` and others compute, unrolled."""
    h, total = x, x * 0.1
    for i in rounds:
        h, total = jax.numpy.tanh(h @ w + total) * (1.0 + 0.1 * i), total * 0.5 + h
    return jax.numpy.sum(h * h) + jax.numpy.sum(total)


def our_body(w: Any) -> Any:
    def body(i: Any, h: Any, total: Any) -> list[Any]:
        return [sw.tanh(h @ w + total) * (1.0 + 0.1 * sw.cast(i, sw.float32)), total * 0.5 + h]

    return body


@needs_jax
@pytest.mark.parametrize("bounds", [(0, 4, 1), (2, 9, 3), (5, 5, 1), (3, 1, 1), (0, 1, 7)])
def test_for_loop(rng: np.random.Generator, bounds: tuple[int, int, int]) -> None:
    lower, upper, step = bounds

    def ours(x: Any, w: Any) -> Any:
        h, total = sw.for_loop(None, [x, x * 0.1], our_body(w), lower=lower, upper=upper, step=step)
        return sw.sum(h * h) + sw.sum(total)

    arrays = floats(rng, 2, 3), floats(rng, 3, 3)
    assert_gradients(ours, lambda jax, x, w: recurrent(jax, x, w, range(*bounds)), *arrays)


@needs_jax
@pytest.mark.parametrize("n", [1, 5])
def test_for_loop_over_a_size(rng: np.random.Generator, n: int) -> None:
    """As many iterations as a tensor has rows, which one program learns when it runs."""

    def ours(xs: Any, h: Any, w: Any) -> Any:
        count = sw.shape_of(xs)[0]
        body: Any = lambda i, h: sw.tanh(h @ w + sw.gather(xs, i, axis=0))  # noqa: E731
        return sw.sum(sw.square(sw.for_loop(count, h, body)))

    def theirs(jax: Any, xs: Any, h: Any, w: Any) -> Any:
        for k in range(n):
            h = jax.numpy.tanh(h @ w + xs[k])
        return jax.numpy.sum(h * h)

    assert_gradients(ours, theirs, floats(rng, n, 3), floats(rng, 3), floats(rng, 3, 3))


@needs_jax
def test_nested_control_flow(rng: np.random.Generator) -> None:
    """An if in a for in a for, each with weights of its own and of the blocks around it."""

    def ours(x: Any, w: Any, v: Any) -> Any:
        def inner(i: Any) -> Any:
            def body(j: Any, h: Any) -> Any:
                doubled = w * 2.0
                odd = sw.equal((i + j) % 2, 1)
                return sw.if_else(odd, lambda: sw.tanh(h @ doubled), lambda: sw.sin(h * v) + sw.cast(j, sw.float32))

            return body

        def outer(i: Any, h: Any, scale: Any) -> list[Any]:
            return [sw.for_loop(3, h * scale, inner(i)) + x, scale * 0.9]

        h, scale = sw.for_loop(2, [x, sw.sum(v)], outer)
        return sw.sum(h * h) * scale

    def theirs(jax: Any, x: Any, w: Any, v: Any) -> Any:
        np_ = jax.numpy
        h, scale = x, np_.sum(v)
        for i in range(2):
            inner = h * scale
            for j in range(3):
                inner = np_.tanh(inner @ (w * 2.0)) if (i + j) % 2 else np_.sin(inner * v) + j
            h, scale = inner + x, scale * 0.9
        return np_.sum(h * h) * scale

    assert_gradients(ours, theirs, floats(rng, 2, 3), floats(rng, 3, 3), floats(rng, 3))


@needs_jax
def test_second_order(rng: np.random.Generator) -> None:
    """The gradient of a function of the gradient, through ops, an if and a loop."""

    def first(x: Any, w: Any) -> Any:
        h, total = sw.for_loop(3, [x, x * 0.1], our_body(w))
        return sw.if_else(sw.sum(w) > -100.0, lambda: sw.sum(h * h * h), lambda: sw.sum(x)) + sw.sum(sw.exp(total))

    def ours(x: Any, w: Any) -> Any:
        gx, gw = sw.gradients(first(x, w), [x, w])
        return sw.sum(gx * gx) + sw.sum(sw.sin(gw))

    def theirs(jax: Any, x: Any, w: Any) -> Any:
        def first(x: Any, w: Any) -> Any:
            h, total = x, x * 0.1
            for i in range(3):
                h, total = jax.numpy.tanh(h @ w + total) * (1.0 + 0.1 * i), total * 0.5 + h
            return jax.numpy.sum(h**3) + jax.numpy.sum(jax.numpy.exp(total))

        gx, gw = jax.grad(first, (0, 1))(x, w)
        return jax.numpy.sum(gx * gx) + jax.numpy.sum(jax.numpy.sin(gw))

    assert_gradients(ours, theirs, floats(rng, 2, 3), floats(rng, 3, 3))


@needs_jax
def test_gradients_inside_a_loop(rng: np.random.Generator) -> None:
    """Newton's steps inside the graph: the body takes gradients of a loss of the carried weights."""
    x, y, w = floats(rng, 8, 3), floats(rng, 8), floats(rng, 3)
    g = sw.Graph()
    tensors = [g.placeholder(a.shape) for a in (x, y, w)]

    def body(_: Any, w: Any) -> Any:
        loss = g.mean(g.square(g.tanh(g.sum(tensors[0] * w, -1)) - tensors[1]))
        return w - 0.5 * g.gradients(loss, [w])[0]

    trained = g.for_loop(10, tensors[2], body)

    import jax

    want = w
    for _ in range(10):
        want = want - 0.5 * jax.grad(lambda w: jax.numpy.mean((jax.numpy.tanh(x @ w) - y) ** 2))(want)
    assert_near(interpreted(g, [trained], (x, y, w)), [np.asarray(want)])
    assert_near(compiled(g, [trained], (x, y, w)), [np.asarray(want)])


@pytest.mark.parametrize("n", [0, 1, 4])
def test_for_loop_over_a_size_that_may_be_zero(n: int) -> None:
    g = sw.Graph()
    rows, x = g.placeholder((None,)), g.placeholder((2,))
    y = g.for_loop(g.shape_of(rows)[0], x, lambda i, h: h * h)
    arrays = [np.zeros(n, np.float32), np.array([1.1, 0.9], np.float32)]
    want = 2.0**n * arrays[1] ** (2.0**n - 1)
    assert_near(compiled(g, g.gradients(g.sum(y), [x]), arrays), [want.astype(np.float32)])


# --- what a gradient is taken of and with respect to ------------------------------------------------------------------
def test_finite_differences(rng: np.random.Generator) -> None:
    """A program with all kinds of control flow, in float64, against differences of its own values."""
    g = sw.Graph()
    x = g.placeholder((3,), np.float64)

    def body(i: Any, h: Any) -> Any:
        return g.if_else(g.sum(h) > 0.0, lambda: g.sin(h) + x * x, lambda: h * x - g.cast(i, np.float64))

    loss = g.sum(g.square(g.for_loop(4, x * 2.0, body)))
    targets = [loss, *g.gradients(loss, [x])]
    point = rng.uniform(-1, 1, 3)
    gradient = interpreted(g, targets, [point])[1]
    for k in range(3):
        change = np.eye(3)[k] * 1e-6
        high, low = (interpreted(g, targets, [point + s * change])[0] for s in (1, -1))
        assert abs((high - low) / 2e-6 - gradient[k]) < 1e-5 * max(1.0, abs(gradient[k]))


def test_variables_sum_their_reads(rng: np.random.Generator) -> None:
    g = sw.Graph()
    w, unused = g.variable(floats(rng, 3), name="w"), g.variable(floats(rng, 2), name="unused")
    x = g.placeholder((3,))
    inside = g.for_loop(3, x * w, lambda i, h: h * w)
    chosen = g.if_else(g.sum(x) > -100.0, lambda: g.sum(w * w), lambda: g.sum(w))
    loss = g.sum(inside) + chosen
    one_read = w.read()
    both = g.gradients(loss + g.sum(one_read * x), [w, unused, one_read])
    x_array = floats(rng, 3)
    v = w.value
    want = [4 * x_array * v**3 + 2 * v + x_array, np.zeros(2, np.float32), x_array]
    assert_near(interpreted(g, both, [x_array]), want)
    assert_near(compiled(g, both, [x_array]), want)


def test_seed_and_intermediate_tensors() -> None:
    g = sw.Graph()
    x = g.placeholder((2, 3))
    h = x * 2.0
    y = h * h
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = g.gradients(y, [x, h, y], seed=np.array([1, 2, 3], np.float32))
    want = [array * 8 * [1, 2, 3], array * 4 * [1, 2, 3], np.tile([1, 2, 3], (2, 1))]
    assert_near(compiled(g, found, [array]), [w.astype(np.float32) for w in want])


def test_hessian_vector_product() -> None:
    g = sw.Graph()
    x = g.placeholder((3,))
    (first,) = g.gradients(g.sum(x * x * x), [x])
    (product,) = g.gradients(first, [x], seed=[1.0, 0.0, 2.0])
    assert_near(compiled(g, [product], [np.array([1, 2, 3], np.float32)]), [np.array([6, 0, 36], np.float32)])


def test_no_influence_gives_zeros() -> None:
    g = sw.Graph()
    x, y = g.placeholder((2,)), g.placeholder((None, 3))
    stopped = g.stop_gradient(x * 3.0)
    whole = g.cast(g.cast(x, sw.int32), sw.float32)
    found = g.gradients(g.sum(stopped * whole) + 1.0, [x, y])
    arrays = [np.ones(2, np.float32), np.ones((4, 3), np.float32)]
    assert_near(compiled(g, found, arrays), [np.zeros(2, np.float32), np.zeros((4, 3), np.float32)])


def test_through_control_dependencies() -> None:
    g = sw.Graph()
    x, count = g.placeholder((2,)), g.variable(0.0)
    bump = g.assign(count, count + 1.0)
    with g.control_dependencies([bump]):
        loss = g.sum(g.square(x))
    found = g.gradients(loss, [x])
    assert_near(compiled(g, found, [np.array([1, 2], np.float32)]), [np.array([2, 4], np.float32)])
    assert_near(compiled(g, [*found, loss], [np.array([1, 2], np.float32)])[:1], [np.array([2, 4], np.float32)])
    assert count.value >= 1


def test_a_block_with_an_assign_is_not_run_again() -> None:
    g = sw.Graph()
    x, count = g.placeholder((2,)), g.variable(0.0)

    def then() -> Any:
        with g.control_dependencies([g.assign(count, g.sum(x))]):
            return g.exp(x)

    y = g.if_else(g.sum(x) > 0.0, then, lambda: x)
    loss = g.sum(y)
    found = compiled(g, [*g.gradients(loss, [x]), loss], [np.array([1, 2], np.float32)])
    assert_near(found[:1], [np.exp(np.array([1, 2], np.float32))])
    assert count.value == 3


def test_narrow_floats_keep_their_dtype() -> None:
    g = sw.Graph()
    x = g.placeholder((4,), sw.float16)
    found = g.gradients(g.sum(g.cast(x, sw.float32) * 2.0) + g.cast(g.sum(x * x), sw.float32), [x])
    assert_near(compiled(g, found, [np.ones(4, np.float16)]), [np.full(4, 4, np.float16)], 1e-2)


# --- mistakes ---------------------------------------------------------------------------------------------------------
def assert_refused(error: type[Exception], fragment: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error) as e:
        call()
    assert fragment in str(e.value)
    assert "test_autodiff.py" in str(e.value)


def test_refusals() -> None:
    g, other = sw.Graph(), sw.Graph()
    x, n = g.placeholder((3,)), g.placeholder((), sw.int32)
    y = x * 2.0
    assert_refused(GraphError, "`primary` is not one real number", lambda: g.gradients(y, [x]))
    assert_refused(GraphError, "`wrt[0]` has no gradient", lambda: g.gradients(g.sum(y), [n]))
    assert_refused(GraphError, "`primary` has no gradient", lambda: g.gradients(n, [x]))
    assert_refused(GraphError, "another graph", lambda: g.gradients(g.sum(y), [other.placeholder((3,))]))
    assert_refused(GraphError, "another graph", lambda: g.gradients(g.sum(y), [other.variable(1.0)]))
    assert_refused(GraphError, "another graph", lambda: other.gradients(g.sum(y), [x]))
    assert_refused(GraphError, "is no tensor of the graph", lambda: g.gradients(g.sum(y), [3.0]))
    assert_refused(OpError, "do not broadcast", lambda: g.gradients(y, [x], seed=np.ones(2, np.float32)))
    assert_refused(OpError, "nextafter: the op has no gradient", lambda: g.gradients(g.sum(g.nextafter(y, y)), [x]))


def test_loops_without_gradient() -> None:
    g = sw.Graph()
    x, n = g.placeholder((3,)), g.placeholder((), sw.int32)
    counted = g.for_loop(n, x, lambda i, h: h * 2.0)
    repeated = g.while_loop(x, lambda h: (g.sum(h) < 10.0, h), lambda h: h * 2.0)
    assert_refused(OpError, "for_loop: the number of iterations is not known", lambda: g.gradients(g.sum(counted), [x]))
    assert_refused(OpError, "while_loop: a while loop has no gradient", lambda: g.gradients(g.sum(repeated), [x]))
    free = g.while_loop(g.stop_gradient(x), lambda h: (g.sum(h) < 10.0, h), lambda h: h * 2.0)
    found = compiled(g, g.gradients(g.sum(free * x), [x]), [np.full(3, 1, np.float32), np.array(0, np.int32)])
    assert_near(found, [np.full(3, 4, np.float32)])


def test_a_loop_that_overwrites_what_its_gradient_reads() -> None:
    g = sw.Graph()
    x, w = g.placeholder((3,)), g.variable(np.ones(3, np.float32))

    def body(i: Any, h: Any) -> Any:
        with g.control_dependencies([g.assign(w, h)]):
            return h * w

    y = g.for_loop(3, x, body)
    assert_refused(GraphError, "the block assigns to `variable_0`", lambda: g.gradients(g.sum(y), [x]))
