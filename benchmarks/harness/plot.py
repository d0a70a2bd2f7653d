"""A picture of the results: for each benchmark, every contender's time as a multiple of ours."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any


def plot(results: dict[str, Any], path: Path) -> None:
    """Write a picture; its kind follows from the name (.svg, .png, .pdf). Raises ImportError without matplotlib."""
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    labels: list[str] = []
    values: list[float] = []
    for benchmark in results["benchmarks"]:
        for c in benchmark["contenders"]:
            if c.get("ours_as_multiple") and c["name"] != benchmark["ours"]:
                labels.append(f"{benchmark['name']}: {c['name']}")
                values.append(1 / c["ours_as_multiple"]["median"])
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.28 * len(labels)), layout="constrained")
    bars = axes.barh(labels, [v - 1 for v in values], left=1, color=["#3a7" if v > 1 else "#c63" for v in values])
    axes.bar_label(bars, [f"{v:.2g}x" if v < 10 else f"{v:.0f}x" for v in values], padding=3, fontsize=8)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("time as a multiple of Stitchwork's (right of the line: slower than Stitchwork)")
    axes.set_title(f"{results['machine']['cpu']}, {results['threads']} threads", fontsize=9)
    figure.savefig(path)
    pyplot.close(figure)
