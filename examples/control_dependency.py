"""Control dependencies: a write that nobody reads still happens, and happens first.

python examples/control_dependency.py
"""

from __future__ import annotations

import numpy as np

import stitchwork as sw


def main() -> None:
    """Show both spellings, what happens without them, and that order is kept."""
    x = np.array([0.0, 1.0], np.float32)

    # A batch normalization that keeps statistics writes a variable whose new value no result of the run depends on.
    g = sw.Graph()
    p = g.placeholder(("n",), name="x")
    calls = g.variable(np.float32(0), name="calls")
    update = g.assign(calls, calls + 1.0)

    # 1. Without a control dependency the write is not part of the run, so it is left out.
    plain = g.compile([g.exp(p)])
    plain.run([x])
    print(f"an assign that nothing names:       calls = {calls.value}")

    # 2. First spelling: this tensor is only available once that write is done.
    guarded = g.control_dependency(g.exp(p), depends_on=[update])
    g.compile([guarded]).run([x])
    print(f"control_dependency(exp(x), [...]):  calls = {calls.value}")

    # 3. Second spelling: everything built inside the block comes after the write.
    with g.control_dependencies([update]):
        inside = g.exp(p)
    g.compile([inside]).run([x])
    print(f"with control_dependencies([...]):   calls = {calls.value}")

    # 4. Or name the write as a target of the compilation. It gives no result.
    results = g.compile([g.exp(p), update]).run([x])
    print(f"the assign as a target:             calls = {calls.value}, {len(results)} result")

    # Order: a read inside the block sees the write; one before it does not, even though both are in one run.
    h = sw.Graph()
    v = h.variable(np.float32(1), name="v")
    before = v.read()
    doubled = h.assign(v, before * 2.0)
    with h.control_dependencies([doubled]):
        after = v.read()
        tripled = h.assign(v, after * 3.0)  # a chain: this write comes after the first
    with h.control_dependencies([tripled]):
        last = v.read()
    first, second, third = (t.item() for t in h.compile([before, after, last]).run([]))
    print(f"reads before, between and after two writes: {first} {second} {third}")
    assert (calls.value, first, second, third) == (3.0, 1.0, 2.0, 6.0)


if __name__ == "__main__":
    main()
