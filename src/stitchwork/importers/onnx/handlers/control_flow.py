"""If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import GraphProto

from stitchwork.errors import GraphError
from stitchwork.importers.onnx import numbers
from stitchwork.importers.onnx.node import Node
from stitchwork.importers.onnx.registry import F, Results, onnx_op
from stitchwork.importers.onnx.scan import scan
from stitchwork.ir import dtypes
from stitchwork.ir.dims import Dim
from stitchwork.ir.graph import Value
from stitchwork.ops import control_flow
from stitchwork.ops._op import require_equal

_ENDLESS = 2**31 - 1  # trip counts from here on mean "until the condition says so"


@onnx_op("If")
def if_(node: Node) -> Results:
    """A known condition chooses now; one that only sizes decide is taken for granted where the branches differ."""
    found = node.elements(0)
    condition = None if found is None or found.size != 1 else found.reshape(-1)[0]
    if numbers.is_number(condition):
        return _branch(node, bool(condition))
    guards = dict(node.module.guards)
    try:
        made = control_flow.if_else(node[0], lambda: _branch(node, True), lambda: _branch(node, False))
        return [made] if isinstance(made, Value) else made
    except GraphError as e:
        if e.op != "if_else":
            raise
        node.module.guards = guards
        return _presumed(node, condition, e)


def _branch(node: Node, which: bool) -> list[Value]:
    return node.importer.subgraph(node.subgraph("then_branch" if which else "else_branch"), node.scope)


def _presumed(node: Node, condition: Any, why: GraphError) -> list[Value]:
    """The branch for equal sizes, with a guard: exporters write "if this dim is 1, take it away" where it always is."""
    relation = condition if isinstance(condition, numbers.Relation) and condition.symbol == "==" else None
    if relation is None or not require_equal(
        node.label, relation.a, relation.b, "the sizes that the condition compares", node.module
    ):
        raise node.unsupported(
            "the branches give tensors of different types, and the condition is not known when the model is compiled",
            got=f"{why.expected} and {why.got}" if why.expected else why.problem,
            hint="where the condition follows from an input that never changes, give it to load(..., constants={...})",
        )
    return _branch(node, not relation.negated)


# --- Loop -------------------------------------------------------------------------------------------------------------
class _Continues(Exception):  # noqa: N818  # not an error: the body turned out to have a condition
    """Raised while a counted loop is built whose body decides whether to go on."""


@onnx_op("Loop")
def loop(node: Node) -> Results:
    body = node.subgraph("body")
    carried = node.all_from(2)
    trips, condition = node.optional(0), node.optional(1)
    first = None if condition is None else node.array(1)
    limit = None if trips is None else node.elements(0)
    count: Any = None if limit is None else limit.reshape(-1)[0]
    stacked = len(body.output) - 1 - len(carried)
    counted = trips is not None and not (isinstance(count, int) and count >= _ENDLESS)
    if first is not None and not first.reshape(-1)[0]:
        if stacked:
            raise node.unsupported("a loop that never runs and stacks results")
        return carried
    if counted and (condition is None or first is not None):
        guards = dict(node.module.guards)
        try:
            return _counted(node, body, carried, count, stacked)
        except _Continues:
            node.module.guards = guards
    if stacked:
        raise node.unsupported(
            "a loop that stacks results and whose number of rounds is not known when the model is compiled"
        )
    return _conditional(node, body, carried, counted)


def _counted(node: Node, body: GraphProto, carried: list[Value], count: Any, stacked: int) -> list[Value]:
    truth = node.importer.constant(np.asarray(True))

    def step(i: Value, values: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        made = node.importer.subgraph(body, node.scope, [_counter(i, body), truth, *values])
        known = node.importer.follower.array(made[0])
        if known is None or not known.reshape(-1)[0]:
            raise _Continues
        return made[1 : 1 + len(carried)], made[1 + len(carried) :]

    if not stacked:

        def plain(i: Value, *values: Value) -> list[Value]:
            return step(i, values)[0]

        return control_flow.for_loop(F.reshape(node[0], shape=()), carried, plain)
    if not isinstance(count, int | Dim):
        raise node.unknown(0, "the number of rounds")
    finals, rows = scan(count, carried, [node.importer.constant(np.zeros(0, np.int64))][:0], lambda i, v, _: step(i, v))
    return [*finals, *rows]


def _counter(i: Value, body: GraphProto) -> Value:
    """The index as the body declares it: a scalar, or (in some files) a vector of one."""
    declared = len(body.input[0].type.tensor_type.shape.dim)
    made = F.cast(i, dtypes.int64)
    return F.reshape(made, shape=(1,)) if declared == 1 else made


def _conditional(node: Node, body: GraphProto, carried: list[Value], counted: bool) -> list[Value]:
    condition = node.optional(1)
    start = F.reshape(condition, shape=()) if condition is not None else node.importer.constant(np.asarray(True))
    limit = F.reshape(node[0], shape=()) if counted else None

    def before(i: Value, go: Value, *values: Value) -> tuple[Value, list[Value]]:
        more = go if limit is None else F.logical_and(go, F.less_than(i, limit))
        return more, [i, go, *values]

    def after(i: Value, go: Value, *values: Value) -> list[Value]:
        made = node.importer.subgraph(body, node.scope, [_counter(i, body), go, *values])
        return [F.addition(i, np.asarray(1, np.int64)), F.reshape(made[0], shape=()), *made[1:]]

    found = control_flow.while_loop([np.asarray(0, np.int64), start, *carried], before, after)
    return found[2:]


# --- Scan -------------------------------------------------------------------------------------------------------------
@onnx_op("Scan", since=9)
def scan_(node: Node) -> Results:
    body, count = node.subgraph("body"), node.int("num_scan_inputs")
    values = node.all()
    carried, inputs = values[: len(values) - count], values[len(values) - count :]
    results = len(body.output) - len(carried)
    moved = [_to_front(x, axis) for x, axis in zip(inputs, node.int_list("scan_input_axes", (0,) * count), strict=True)]
    backward = node.int_list("scan_input_directions", (0,) * count)
    moved = [F.reverse(x, axes=0) if back else x for x, back in zip(moved, backward, strict=True)]

    def step(_: Value, states: Sequence[Value], slices: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        made = node.importer.subgraph(body, node.scope, [*states, *slices])
        return made[: len(states)], made[len(states) :]

    if not moved:
        raise node.invalid("attribute `num_scan_inputs` is 0", expected="1 or more")
    finals, rows = scan(moved[0].shape[0], carried, moved, step)
    flipped = node.int_list("scan_output_directions", (0,) * results)
    rows = [F.reverse(y, axes=0) if back else y for y, back in zip(rows, flipped, strict=True)]
    rows = [
        _from_front(y, axis) for y, axis in zip(rows, node.int_list("scan_output_axes", (0,) * results), strict=True)
    ]
    return [*finals, *rows]


def _to_front(x: Value, axis: int) -> Value:
    axis %= x.rank
    return x if axis == 0 else F.permute(x, permutation=(axis, *(d for d in range(x.rank) if d != axis)))


def _from_front(x: Value, axis: int) -> Value:
    axis %= x.rank
    return x if axis == 0 else F.permute(x, permutation=(*range(1, axis + 1), 0, *range(axis + 1, x.rank)))
