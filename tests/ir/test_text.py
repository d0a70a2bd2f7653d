"""The text form of modules, both ways: printer and parser are inverse, and a wrong text is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.cases import CASES, Case, build, build_symbolic, by_op, each, make_operands
from stitchwork import pipeline
from stitchwork.ir import dims, dtypes
from stitchwork.ir.graph import Module
from stitchwork.ir.printer import _Printer, print_module
from stitchwork.ir.scanner import Scanner, TextError
from stitchwork.ir.types import TensorType
from stitchwork.ops._text import parse_module

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))
FIRST = list({c.cls: c for c in reversed(CASES)}.values())


def check(module: Module) -> None:
    """What is printed reads back as a module that prints alike, and resources come along unchanged."""
    resources: dict[str, np.ndarray] = {}
    text = print_module(module, resources)
    again: dict[str, np.ndarray] = {}
    assert print_module(parse_module(text, resources), again) == text
    assert {k: (v.dtype, v.shape, v.tobytes()) for k, v in again.items()} == {
        k: (v.dtype, v.shape, v.tobytes()) for k, v in resources.items()
    }


@pytest.mark.parametrize("cases", by_op(CASES))
def test_round_trip(cases: list[Case]) -> None:
    each(cases, lambda case: check(build(case, make_operands(case)).module))


@pytest.mark.parametrize("cases", by_op(CASES))
def test_round_trip_with_symbolic_sizes(cases: list[Case]) -> None:
    each(cases, lambda case: check(build_symbolic(case, make_operands(case)).module))


@pytest.mark.parametrize("case", FIRST, ids=str)
def test_round_trip_after_each_pass(case: Case) -> None:
    module = build(case, make_operands(case)).module
    for step in pipeline.PASSES:
        module = step.run(module).module
        check(module)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_golden_text_is_what_is_printed(path: Path) -> None:
    text = path.read_text()
    printed = print_module(parse_module(text))
    assert printed == "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    check(parse_module(text))


def test_a_read_module_is_complete() -> None:
    module = parse_module((GOLDEN[0].parent / "control_flow.txt").read_text())
    x, count = module.body.arguments
    assert (x.name, count.name) == ("x", "loop/count:0")
    assert x.shape == (dims.symbol("n"), 4)
    branch = next(o for o in module.body.operations if o.op.name == "if_else")
    assert branch.location == "model.py:4"
    assert [r.parent for r in branch.regions] == [module.body] * 2
    assert branch.regions[1].operations[2].regions[0].parent is branch.regions[1]
    assert module.variables["scale"].initial == np.float32(0.5)


def test_new_symbols_do_not_collide_with_those_of_the_text() -> None:
    module = parse_module("module main(%x: f32[d.7, n]) {\n  return %x\n}\n")
    assert module.fresh_symbol() == "d.8"


# --- attributes and arrays ------------------------------------------------------------------------------------
SIZES = st.sampled_from([dims.parse(t) for t in ("n", "n*m - 3", "floordiv(n, 2)", "min(max(n, m), 4) + a/b:0")])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(allow_nan=False),
    st.text(),
    SIZES,
    st.sampled_from([dtypes.float32, dtypes.bool_, dtypes.float8_e4m3]),
    st.just(TensorType(dtypes.int8, (dims.symbol("n"), 3))),
)
ATTRIBUTES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=12)


def same(a: Any, b: Any) -> bool:
    """Equal in type and value, nan included, 0 and -0 apart."""
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (repr(a) == repr(b))


def through_text(x: Any, resources: dict[str, np.ndarray] | None = None) -> Any:
    resources = {} if resources is None else resources
    text = _Printer(resources, True).attribute(x)
    assert "\n" not in text
    scanner = Scanner(text, "", resources)
    found = scanner.attribute()
    scanner.end()
    return found


@given(ATTRIBUTES.filter(lambda x: not isinstance(x, int) or abs(x) < 1 << 100))
def test_attributes(x: Any) -> None:
    if any(len(str(abs(i))) > 38 for i in _ints(x)):
        return
    assert same(through_text(x), x)


def _ints(x: Any) -> list[int]:
    return [i for e in x for i in _ints(e)] if isinstance(x, tuple) else [x] if isinstance(x, int) else []


@pytest.mark.parametrize("dtype", dtypes.GROUPS["any"], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (3, 5), (2, 9), (66, 1000)], ids=str)
def test_arrays(dtype: dtypes.DType, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    x = np.asarray(rng.integers(0, 2 if dtype.kind == "b" else 8, shape)).astype(dtype.numpy)
    if dtype.kind in "fc" and dtype.bits > 8:
        x = np.asarray(x / dtype.numpy.type(7)).astype(dtype.numpy)
    for array, is_splat in ((np.asarray(x), x.size <= 1), (np.zeros_like(x), True), (np.ones_like(x), True)):
        resources: dict[str, np.ndarray] = {}
        found = through_text(array, resources)
        assert found.dtype == array.dtype and found.shape == array.shape and found.tobytes() == array.tobytes()
        assert bool(resources) == (array.size > (1 << 16 if is_splat else 16))


def test_special_floats_keep_their_bits() -> None:
    bits = np.array([0x7FC00001, 0xFFC00000, 0x80000000, 0x7F800000, 1], np.uint32)
    assert through_text(bits.view(np.float32)).tobytes() == bits.tobytes()
    assert (
        through_text(np.array([-0.0, np.inf], np.float32)).tobytes() == np.array([-0.0, np.inf], np.float32).tobytes()
    )


def test_short_floats() -> None:
    assert _Printer({}, True).attribute(np.array([0.1, 1e-7], np.float32)) == "dense<f32[2]: 0.1, 1e-07>"


def test_one_array_is_one_resource() -> None:
    array = np.arange(100.0)
    printer = _Printer({}, True)
    assert printer.attribute((array, array)) == "(resource<c0: f64[100]>, resource<c0: f64[100]>)"
    assert printer.resources == {"c0": array}


# --- refusals -------------------------------------------------------------------------------------------------
def body(*lines: str, head: str = "%x: f32[n, 4]") -> str:
    return "\n".join([f"module main({head}) {{", *(f"  {line}" for line in lines), "}", ""])


REFUSALS = [
    ("", "unexpected text", 1),
    ("module main() {\n  return", "unexpected text", 2),
    (body(), "a block without its `return`", 2),
    (body("return %y"), "the value `%y` is not defined here", 2),
    (body("%x = identity(%x) : f32[n, 4]", "return %x"), "the value `%x` is defined twice", 2),
    (body("%y = nonsense(%x) : f32[n, 4]", "return %y"), "there is no op `nonsense`", 2),
    (body("", "%y = identity(%x) : f32[n, 5]", "return %y"), "identity: the results have other types", 3),
    (body("%y = identity(%x) : f64[n, 4]", "return %y"), "identity: the results have other types", 2),
    (body("%y = identity(%x) : f32[m, 4]", "return %y"), "a size is not known", 2),
    (body("%y = identity(%x) : f32[n, -4]", "return %y"), "a size is out of range", 2),
    (body("%y = identity(%x) : f32[n, 9999999999999999999]", "return %y"), "a size is out of range", 2),
    (body("%y = identity(%x) : f32[n, 4", "return %y"), "unexpected text", 2),
    (body("%y = identity(%x) : g32[n, 4]", "return %y"), "not a type", 2),
    (body("%y = identity(%x) : f32[floordiv(n, 0)]", "return %y"), "not a type", 2),
    (body("%y = identity([%x]) : f32[n, 4]", "return %y"), "the operand `x` of identity has the wrong form", 2),
    (body("%y = identity(none) : f32[n, 4]", "return %y"), "the operand `x` of identity has the wrong form", 2),
    (body("%y = identity() : f32[n, 4]", "return %y"), "unexpected text", 2),
    (
        body("%y = concat([%x, %x]) {axis=7, interleave=false} : f32[n, 8]", "return %y"),
        "concat: `axis` is out of range",
        2,
    ),
    (body('%y = concat([%x, %x]) {axis="q"} : f32[n, 8]', "return %y"), "concat: `axis` is not an integer", 2),
    (body("%y = concat([%x, %x]) {axes=1} : f32[n, 8]", "return %y"), "the attribute `axes` is none of concat's", 2),
    (body("%y = concat([%x, %x]) {axis=1, axis=1} : f32[n, 8]", "return %y"), "the attribute `axis` is given twice", 2),
    (body("%y = cast(%x) : f64[n, 4]", "return %y"), "cast: attribute `dtype` is missing", 2),
    (body("%y = reshape(%x) {shape=(<q>, 4)} : f32[n, 4]", "return %y"), "a size is not known", 2),
    (body('%y = identity(%x) : f32[n, 4] @"\\q"', "return %y"), "a string has a wrong escape", 2),
    (body("%y = constant() {value=dense<f32[2]: 1.0>} : f32[2]", "return %y"), "an array has another number", 2),
    (body("%y = constant() {value=dense<u8[1]: 256>} : u8[1]", "return %y"), "an element does not fit", 2),
    (body("%y = constant() {value=dense<f32[99999999]: splat 0.0>} : f32[99999999]", "return %y"), "another number", 2),
    (body("%y = constant() {value=resource<c0: f32[2]>} : f32[2]", "return %y"), "the resource `c0` is missing", 2),
    (body("%y = constant() {value=3} : f32[2]", "return %y"), "constant", 2),
    (body("%y = constant() {value=" + "(" * 5000 + "} : f32[2]", "return %y"), "nested too deeply", 2),
    (body('%y = read_variable([]) {variable="w", type=f32[]} : f32[]', "return %y"), "there is no such variable", 2),
    (body('variable "w": f32[3] = dense<f32[2]: 1.0, 2.0>', "return"), "differ in type", 2),
    (body("bound n <= 4", "return"), "the size `n` is bound twice", 2),
    (body('guard addition: n ~ 4 "x"', "return"), "a guard without a relation", 2),
    (body('guard addition: m == 4 "x"', "return"), "a size is not known", 3),
    (body("return %x", head="%x: f32[n + 1]"), "a size is not known", 2),
    (body("return %x") + "module more() {}", "unexpected text", 4),
]


@pytest.mark.parametrize("text, why, line", REFUSALS)
def test_refusals(text: str, why: str, line: int) -> None:
    with pytest.raises(TextError) as e:
        parse_module(text, source="model.txt")
    assert why in str(e.value)
    assert str(e.value).endswith(f"model.txt:{line}")


def test_resources_must_have_the_type_of_the_text() -> None:
    text = body("%y = constant() {value=resource<c0: f32[2]>} : f32[2]", "return %y")
    for wrong in (np.zeros(2), np.zeros(3, np.float32), np.zeros((2, 1), np.float32)):
        with pytest.raises(TextError, match="the resource `c0` has another type"):
            parse_module(text, {"c0": wrong})


REGIONS = """module main(%p: bool[], %x: f32[3], %k: i32[]) {
  %y = if_else(%p) : f32[3]
    region () {
      yield %x
    }
    region () {
      yield %x
    }
  %a, %b = while_loop([%x, %k]) : f32[3], i32[]
    region (%v: f32[3], %i: i32[]) {
      yield %p, %v, %i
    }
    region (%u: f32[3], %j: i32[]) {
      yield %u, %j
    }
  %z = for_loop(%k, %k, %k, [%x]) : f32[3]
    region (%n: i32[], %w: f32[3]) {
      yield %w
    }
  return %y, %a, %z
}
"""
IN_REGIONS = [
    ("if_else(%p)", "if_else(%x)", "`predicate` has rank 1"),
    ("yield %x\n", "yield %k\n", "the results of region 0"),
    ("yield %x\n", "yield\n", "the results of region 0"),
    ("    region () {\n      yield %x\n    }\n  %a", "  %a", "wrong number of regions"),
    ("yield %p, %v, %i", "yield %v, %v, %i", "does not begin with a predicate"),
    ("yield %p, %v, %i", "yield", "does not begin with a predicate"),
    ("(%v: f32[3], %i: i32[])", "(%v: f32[4], %i: i32[])", "the arguments of region 0"),
    ("yield %u, %j", "yield %j, %u", "the results of region 1"),
    ("(%n: i32[], %w", "(%n: i64[], %w", "the arguments of region 0"),
    ("for_loop(%k, %k, %k, [%x])", "for_loop(%k, %k, %k, [%k])", "the carried values change"),
    ("for_loop(%k, %k, %k, [%x])", "for_loop(%k, %k, %x, [%x])", "has dtype f32"),
    ("return %y, %a, %z", "return %w", "the value `%w` is not defined here"),
    ("%a, %b = while_loop([%x, %k]) : f32[3], i32[]", "%a = identity(%x) : f32[3]", "the op has no regions"),
]


def test_regions_are_read() -> None:
    check(parse_module(REGIONS))


@pytest.mark.parametrize("old, new, why", IN_REGIONS)
def test_wrong_regions_are_refused(old: str, new: str, why: str) -> None:
    assert old in REGIONS
    with pytest.raises(TextError, match="text:") as e:
        parse_module(REGIONS.replace(old, new, 1))
    assert why in str(e.value)


@given(
    st.sampled_from(GOLDEN), st.integers(0, 3000), st.integers(0, 12), st.text('%()[]{}<>=:,"\\ nf320xe-.@', max_size=4)
)
def test_damaged_text_is_read_or_refused(path: Path, start: int, length: int, put: str) -> None:
    text = path.read_text()
    start %= len(text)
    try:
        parse_module(text[:start] + put + text[start + length :])
    except TextError:
        pass


# --- sizes that only a run tells ------------------------------------------------------------------------------
TOLD = """module main(%x: f32[n]) {
  bound k.1 <= n
  bound k.2 <= k.1
  guard reduction_arg_maximum: -k.1 + 2147483648 >= 0 "positions fit into int32"
  %some = non_zero_indices(%x) {size=<k.1>} : i32[k.1, 1]
  %fewer = non_zero_indices(%some) {size=<k.2>} : i32[k.2, 2]
  %last = reduction_arg_maximum(%some) {axes=(0,), keepdims=false} : i32[1]
  return %fewer, %last
}
"""


def test_sizes_of_a_run_keep_their_names() -> None:
    module = parse_module(TOLD)
    assert print_module(module) == TOLD
    assert list(module.bounds) == ["k.1", "k.2"] and len(module.guards) == 1
    without_guards = "".join(line for line in TOLD.splitlines(keepends=True) if "guard" not in line)
    assert print_module(parse_module(without_guards), locations=False) == TOLD


@pytest.mark.parametrize(
    "old, new, why",
    [
        ("bound k.2 <= k.1\n", "bound k.2 <= n\n", "`size` is not one that the run tells"),
        ("size=<k.2>", "size=<k.1>", "`size` is not one that the run tells"),
        ("size=<k.1>", "size=none", "other types"),
        ("i32[k.1, 1]", "i32[n, 1]", "other types"),
        ("%last = reduction_arg_maximum(%some) {axes=(0,), keepdims=false} : i32[1]",
         "%last = non_zero_indices(%x) {size=<k.1>} : i32[k.1, 1]", "binds the size `k.1` a second time"),
        ("%some = non_zero_indices(%x) {size=<k.1>} : i32[k.1, 1]",
         "%some = coordinate_along_axis() {axis=0, shape=(<k.1>, 1), dtype=i32} : i32[k.1, 1]",
         "uses the size `k.1` where it is not known"),
    ],
)  # fmt: skip
def test_wrong_sizes_of_a_run_are_refused(old: str, new: str, why: str) -> None:
    assert old in TOLD
    with pytest.raises(TextError) as e:
        parse_module(TOLD.replace(old, new))
    assert why in str(e.value)
