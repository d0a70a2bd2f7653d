"""Matrix products and Einstein sums."""

from __future__ import annotations

import string

from stitchwork.importers.onnx.node import Node
from stitchwork.importers.onnx.registry import F, Results, onnx_op
from stitchwork.ir import dtypes
from stitchwork.ir.graph import Value


@onnx_op("MatMul")
def matmul(node: Node) -> Results:
    return F.matmul(node[0], node[1])


@onnx_op("Gemm")
def gemm(node: Node) -> Results:
    a = F.transpose(node[0]) if node.int("transA", 0) else node[0]
    b = F.transpose(node[1]) if node.int("transB", 0) else node[1]
    alpha, beta, c = node.float("alpha", 1.0), node.float("beta", 1.0), node.optional(2)
    y = F.matmul(a, b)
    y = y if alpha == 1 else _scaled(y, alpha)
    if c is None or beta == 0:
        return y
    return F.addition(y, c if beta == 1 else _scaled(c, beta))


def _scaled(x: Value, factor: float) -> Value:
    return F.multiplication(x, factor if x.dtype.is_float else int(factor))


@onnx_op("MatMulInteger")
def matmul_integer(node: Node) -> Results:
    return integer_product(node[0], node[1], node.optional(2), node.optional(3))


def integer_product(a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Value:
    """(a - a_zero) @ (b - b_zero) in int32; zero points are scalars, or one per row of a and per column of b."""
    a, b = F.cast(a, dtypes.int32), F.cast(b, dtypes.int32)
    if a_zero is not None:
        zero = F.cast(a_zero, dtypes.int32)
        a = F.subtraction(a, F.expand_dims(zero, axes=-1) if zero.rank == 1 and zero.shape[0] != 1 else zero)
    if b_zero is not None:
        b = F.subtraction(b, F.cast(b_zero, dtypes.int32))
    return F.matmul(a, b)


# --- Einsum -------------------------------------------------------------------------------------------------------
@onnx_op("Einsum")
def einsum(node: Node) -> Results:
    terms, result = _parse(node)
    values = node.all()
    if len(terms) != len(values):
        raise node.invalid(
            "attribute `equation` does not have a term per operand", expected=str(len(values)), got=str(len(terms))
        )
    x, labels = _without_repeats(values[0], terms[0])
    for k in range(1, len(values)):
        y, other = _without_repeats(values[k], terms[k])
        needed = set(result).union(*terms[k + 1 :])
        x, labels = _product(x, labels, y, other, needed)
    x, labels = _sum_out(x, labels, set(result))
    order = [labels.index(c) for c in result]
    return x if order == sorted(order) else F.permute(x, permutation=tuple(order))


def _parse(node: Node) -> tuple[list[str], str]:
    """Labels of each operand and of the result; dims under an ellipsis get capital-like labels of their own."""
    equation = node.string("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    free = [c for c in string.ascii_letters if c not in equation]
    rank = 0
    for term, value in zip(terms, node.all(), strict=False):
        named = len(term.replace("...", ""))
        if named > value.rank or ("..." not in term and named != value.rank):
            raise node.invalid(
                "a term of `equation` does not fit its operand", expected=f"{value.rank} labels", got=term
            )
        rank = max(rank, value.rank - named if "..." in term else 0)
    dots = "".join(free[:rank])
    spelled = [
        t.replace("...", dots[rank - (v.rank - len(t.replace("...", ""))) :])
        for t, v in zip(terms, node.all(), strict=False)
    ]
    if not arrow:
        joined = left.replace(",", "").replace(".", "")
        right = ("..." if "..." in left else "") + "".join(sorted(c for c in set(joined) if joined.count(c) == 1))
    result = right.replace("...", dots)
    if len(set(result)) != len(result) or not set(result) <= set("".join(spelled)) | set(dots):
        raise node.invalid("the result of `equation` is not valid", got=equation)
    return spelled, result


def _without_repeats(x: Value, labels: str) -> tuple[Value, str]:
    """The diagonal where a label occurs twice in one term."""
    for c in dict.fromkeys(labels):
        while labels.count(c) > 1:
            i, j = labels.index(c), labels.rindex(c)
            shape = tuple(n if d in (i, j) else 1 for d, n in enumerate(x.shape))
            equal = F.equal(F.coordinate_along_axis(axis=i, shape=shape), F.coordinate_along_axis(axis=j, shape=shape))
            x = F.reduction_sum(F.multiplication(x, F.cast(equal, x.dtype)), axes=j)
            labels = labels[:j] + labels[j + 1 :]
    return x, labels


def _sum_out(x: Value, labels: str, needed: set[str]) -> tuple[Value, str]:
    gone = tuple(d for d, c in enumerate(labels) if c not in needed)
    if gone:
        x = F.reduction_sum(x, axes=gone)
    return x, "".join(c for c in labels if c in needed)


def _product(a: Value, a_labels: str, b: Value, b_labels: str, needed: set[str]) -> tuple[Value, str]:
    """Two operands multiplied, labels that nothing else needs summed over."""
    a, a_labels = _sum_out(a, a_labels, needed | set(b_labels))
    b, b_labels = _sum_out(b, b_labels, needed | set(a_labels))
    shared = [c for c in a_labels if c in b_labels]
    batch = [c for c in shared if c in needed]
    contracted = [c for c in shared if c not in needed]
    same = all(a.shape[a_labels.index(c)] == b.shape[b_labels.index(c)] for c in shared)
    if not contracted or not same:  # broadcast dims of size 1
        return _broadcast_product(a, a_labels, b, b_labels, needed)
    made = F.dot_general(
        a, b,
        contract_a=tuple(map(a_labels.index, contracted)), contract_b=tuple(map(b_labels.index, contracted)),
        batch_a=tuple(map(a_labels.index, batch)), batch_b=tuple(map(b_labels.index, batch)),
    )  # fmt: skip
    rest = [c for c in a_labels if c not in shared] + [c for c in b_labels if c not in shared]
    return made, "".join(batch + rest)


def _broadcast_product(a: Value, a_labels: str, b: Value, b_labels: str, needed: set[str]) -> tuple[Value, str]:
    labels = a_labels + "".join(c for c in b_labels if c not in a_labels)
    made = F.multiplication(_spread(a, a_labels, labels), _spread(b, b_labels, labels))
    return _sum_out(made, labels, needed)


def _spread(x: Value, labels: str, wanted: str) -> Value:
    """x with its dims in the order of `wanted`, and dims of size 1 for labels that it lacks."""
    kept = [c for c in wanted if c in labels]
    x = F.permute(x, permutation=tuple(labels.index(c) for c in kept))
    return (
        F.expand_dims(x, axes=tuple(d for d, c in enumerate(wanted) if c not in labels))
        if len(kept) < len(wanted)
        else x
    )
