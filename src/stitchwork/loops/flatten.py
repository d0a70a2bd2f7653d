"""Fewer, longer loops: axes of extent 1 dropped, adjacent axes that every access walks through as one merged."""

from __future__ import annotations

from stitchwork.ir import dims
from stitchwork.ir.dtypes import int64
from stitchwork.loops.affine import Affine, affine, collapse, flat_buffer, offset_of, row_major
from stitchwork.loops.expr import Axis, Buffer, Const, Expr, Load, Reduce, children, substitute, transform, walk
from stitchwork.loops.kernel import Stage


def flatten(stage: Stage, keep: Axis | None = None) -> Stage:
    """The same stage with flat accesses and as few axes as they allow; `keep` stays as it is."""
    stage = _drop_units(stage, keep)
    forms = {e: f for e in walk(stage.value) if isinstance(e, Load) and (f := _flat(e)) is not None}
    fixed = _axes_elsewhere(stage.value, set(forms)) | ({keep} if keep is not None else set[Axis]())
    target = _store_form(stage)
    if target is None:
        return stage
    merged = _merge(stage.axes, [*forms.values(), target], fixed)
    for reduce in (e for e in walk(stage.value) if isinstance(e, Reduce)):
        merged.update(_merge(reduce.axes, list(forms.values()), fixed))
    buffers: dict[Buffer, Buffer] = {}

    def leaf(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e in forms:
            flat = buffers.setdefault(e.buffer, flat_buffer(e.buffer))
            return Load(flat, (_renamed(forms[e], merged).to_expr(),))
        if isinstance(e, Reduce):
            return Reduce(e.kind, transform(e.body, leaf, memo), _unique(e.axes, merged))
        return None

    memo: dict[Expr, Expr] = {}
    value = transform(stage.value, leaf, memo)
    index = (_renamed(target, merged).to_expr(),)
    return Stage(flat_buffer(stage.buffer), _unique(stage.axes, merged), value, stage.name, index)


def _drop_units(stage: Stage, keep: Axis | None) -> Stage:
    units = [a for a in stage.axes if isinstance(a.extent, int) and a.extent == 1 and a is not keep]
    for e in walk(stage.value):
        if isinstance(e, Reduce):
            units += [a for a in e.axes if isinstance(a.extent, int) and a.extent == 1]
    if not units:
        return stage
    gone: dict[Expr, Expr] = dict.fromkeys(units, Const(0, int64))

    def leaf(e: Expr) -> Expr | None:
        if isinstance(e, Reduce) and any(a in gone for a in e.axes) and not e.kind.startswith("arg"):
            body = transform(e.body, leaf, memo)
            kept = tuple(a for a in e.axes if a not in gone)
            return Reduce(e.kind, body, kept) if kept else body
        if isinstance(e, Reduce):
            return Reduce(
                e.kind, transform(e.body, leaf, memo), tuple(a for a in e.axes if a not in gone) or e.axes[:1]
            )
        return gone.get(e)

    memo: dict[Expr, Expr] = {}
    if any(
        isinstance(e, Reduce) and e.kind.startswith("arg") and all(a in gone for a in e.axes) for e in walk(stage.value)
    ):
        gone = {a: z for a, z in gone.items() if a in stage.axes}
    value = transform(stage.value, leaf, memo)
    index = stage.index or stage.axes
    placed = tuple(substitute(i, gone) for i in index)
    return Stage(stage.buffer, tuple(a for a in stage.axes if a not in gone), value, stage.name, placed)


def _flat(load: Load) -> Affine | None:
    return None if load.boundary else offset_of(load)


def _store_form(stage: Stage) -> Affine | None:
    total = Affine({})
    for index, stride in zip(stage.index or stage.axes, row_major(stage.buffer.shape), strict=True):
        form = affine(index)
        if form is None:
            return None
        total = total + form.scaled(stride)
    return total


def _axes_elsewhere(value: Expr, flat: set[Load]) -> set[Axis]:
    """Axes that occur outside the indices of flat loads."""
    found: set[Axis] = set()
    seen: set[Expr] = set()

    def go(e: Expr) -> None:
        if e in seen or (isinstance(e, Load) and e in flat):
            return
        seen.add(e)
        if isinstance(e, Axis):
            found.add(e)
        for c in children(e):
            go(c)

    go(value)
    return found


def _merge(axes: tuple[Axis, ...], forms: list[Affine], fixed: set[Axis]) -> dict[Axis, Axis]:
    """For every axis, the axis that takes its place."""
    merged: dict[Axis, Axis] = {}
    for group in collapse(axes, forms, fixed):
        one = group[0] if len(group) == 1 else Axis(dims.product(a.extent for a in group), group[-1].name)
        merged.update(dict.fromkeys(group, one))
    return merged


def _unique(axes: tuple[Axis, ...], merged: dict[Axis, Axis]) -> tuple[Axis, ...]:
    return tuple(dict.fromkeys(merged[a] for a in axes))


def _renamed(form: Affine, merged: dict[Axis, Axis]) -> Affine:
    """The form over the new axes: the innermost coefficient of a group is that of its axis."""
    terms: dict[Axis, dims.Size] = {}
    inner: dict[Axis, Axis] = {}
    for old, new in merged.items():
        inner[new] = old  # axes come in order, so the last one of a group stays
    for new, old in inner.items():
        c = form.coefficient(old)
        if not (isinstance(c, int) and c == 0):
            terms[new] = c
    for axis, c in form.terms.items():
        if axis not in merged:
            terms[axis] = c
    return Affine(terms, form.constant)
