"""Two programs on real photographs: a text detector from an ONNX file, and an edge glow written as a graph.

    python examples/showcase.py [folder]

Each is compiled once and run on photographs of different sizes. The pictures go to `build/showcase/`, with a report of
what was stitched into what. The model and the photographs are files of packages (examples/showcase-packages.txt).
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.table import Table

import stitchwork as sw
from stitchwork.backends.reference.interpreter import Interpreter
from stitchwork.importers import onnx

Array = np.ndarray[Any, Any]
LAPLACIAN = [[1, 2, 1], [2, -12, 2], [1, 2, 1]]
TINT = np.array([0.35, 0.8, 1.0], np.float32).reshape(3, 1, 1)
LEVEL, LEAST_SCORE, GROWTH = 0.3, 0.5, 1.6  # the settings that the detector comes with
SMALLEST = 10  # pixels that a side of a box has at least
RUNS = 5  # whose median is shown


@dataclass(frozen=True)
class Program:
    """A compiled program of one photograph, what its ops' definitions give, and how it went."""

    name: str
    run: Callable[[Array], Array]
    define: Callable[[Array], Array]
    report: str
    seconds: float  # to compile

    @property
    def kernels(self) -> str:
        """How many kernels there are, made of how many ops."""
        lines = [line for line in self.report.splitlines()[1:] if not line.startswith("note:")]
        return f"{len(lines)} ({sum(line.count(' + ') + 1 for line in lines)} ops)"


# --- the two programs -------------------------------------------------------------------------------------------------
def edge_glow() -> Program:
    """Laplacian -> tone curve -> blur, laid over the darkened photograph [3, height, width]; one kernel."""
    g = sw.Graph("edge_glow")
    photo = g.placeholder((3, "height", "width"), name="photo")
    luma = 0.299 * photo[0:1] + 0.587 * photo[1:2] + 0.114 * photo[2:3]
    edges = g.tanh(1.2 * g.abs(g.stencil(luma, LAPLACIAN, padding="same", boundary="clamp")))
    bell = np.exp(-0.5 * (np.arange(-3, 4, dtype=np.float32) / 1.8) ** 2)
    bell /= bell.sum()
    glow = edges
    for weights in (bell[None, :], bell[:, None]):
        glow = g.stencil(glow, weights, padding="same", boundary="clamp")
    picture = g.clamp(0.35 * photo + 1.1 * TINT * glow + 0.35 * edges, 0.0, 1.0)
    start = time.perf_counter()
    exe = g.compile([picture])
    seconds = time.perf_counter() - start
    g.module.body.results = (picture,)
    return Program("edge glow", lambda x: exe.run([x])[0].numpy(), lambda x: by_definition(g, x), exe.report(), seconds)


def text_detector() -> Program:
    """PP-OCRv4's text detector: image [1, 3, height, width] to the probability of text [1, 1, height, width]."""
    start = time.perf_counter()
    model = onnx.load(package_file("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx"))
    exe = model.compile()
    seconds = time.perf_counter() - start
    (source,), (result,) = exe.input_names, exe.output_names
    model.graph.module.body.results = (model.outputs[result],)
    return Program(
        "text detection",
        lambda x: exe.run({source: x})[result].numpy(),
        lambda x: by_definition(model.graph, x),
        exe.executable.report(),
        seconds,
    )


def by_definition(g: sw.Graph, x: Array) -> Array:
    """The graph's result by its ops' NumPy definitions: slow, and what is right."""
    (argument,) = g.module.body.arguments
    sizes = {str(d): n for d, n in zip(argument.shape, x.shape, strict=True) if not isinstance(d, int)}
    return Interpreter(g.module, sizes).run(x)[0]


# --- photographs ------------------------------------------------------------------------------------------------------
def package_file(package: str, file: str) -> Path:
    """A file of an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"The package {package} is not installed; `make run` installs it.")
    return Path(spec.submodule_search_locations[0]) / file


def photograph(name: str) -> Image.Image:
    """One of the sample photographs that scikit-image brings."""
    return Image.open(package_file("skimage", f"data/{name}")).convert("RGB")


def with_sign(photo: Image.Image) -> Image.Image:
    """A photograph with a sign put up in it, a little askew."""
    sign = Image.new("RGBA", (254, 124), (250, 214, 60, 0))  # a clear margin: turning it smooths the border
    draw = ImageDraw.Draw(sign)
    draw.rectangle((2, 2, 251, 121), fill=(250, 214, 60, 255))
    draw.rectangle((7, 7, 246, 116), outline=(30, 30, 30), width=3)
    for text, size, y in (("STITCHWORK", 32, 16), ("one kernel per launch", 19, 56), ("KEEP CLEAR", 22, 84)):
        draw.text((127, y), text, fill=(30, 30, 30), font=ImageFont.load_default(size), anchor="ma")
    turned = sign.rotate(5, Image.Resampling.BICUBIC, expand=True)
    made = photo.copy()
    made.paste(turned, (60, 130), turned)
    return made


def to_array(image: Image.Image) -> Array:
    """[3, height, width] in 0 to 1."""
    return np.ascontiguousarray(np.asarray(image, np.float32).transpose(2, 0, 1) / 255)


def to_image(x: Array) -> Image.Image:
    """The inverse of `to_array`."""
    return Image.fromarray(np.round(x.transpose(1, 2, 0) * 255).astype(np.uint8))


def for_detector(image: Image.Image) -> Array:
    """What the detector takes: sides of a multiple of 32, blue first, -1 to 1."""
    width, height = (max(32, round(n / 32) * 32) for n in image.size)
    return np.ascontiguousarray(to_array(image.resize((width, height)))[None, ::-1] * 2 - 1)


# --- from probabilities to boxes --------------------------------------------------------------------------------------
Box = tuple[float, float, float, float]


def regions(mask: Array) -> Array:
    """The number of its connected region for every pixel of a mask [height, width]; 0 outside, 1, 2, ... inside."""
    parents = [0]

    def root(k: int) -> int:
        while parents[k] != k:
            parents[k] = parents[parents[k]]
            k = parents[k]
        return k

    found = np.zeros(mask.shape, np.int32)
    above: list[tuple[int, int, int]] = []
    for y, row in enumerate(mask):
        edges = np.flatnonzero(np.diff(row, prepend=False, append=False))
        runs: list[tuple[int, int, int]] = []
        for start, end in edges.reshape(-1, 2).tolist():
            touching = [root(k) for s, e, k in above if s <= end and start <= e]  # corners count
            label = min(touching, default=len(parents))
            if not touching:
                parents.append(label)
            for k in touching:
                parents[k] = label
            runs.append((start, end, label))
            found[y, start:end] = label
        above = runs
    return np.unique([root(k) for k in range(len(parents))], return_inverse=True)[1][found]


def text_boxes(probability: Array) -> list[Box]:
    """Boxes (left, top, right, bottom), as fractions of the image, around text in a map [height, width]."""
    height, width = probability.shape
    numbers = regions(probability > LEVEL)
    boxes: list[Box] = []
    for k in range(1, int(numbers.max()) + 1):
        ys, xs = np.nonzero(numbers == k)
        top, bottom, left, right = ys.min(), ys.max() + 1, xs.min(), xs.max() + 1
        # The network is trained to mark the middle of a line of text only.
        grow = GROWTH * len(ys) / (2 * (bottom - top + right - left))
        if min(bottom - top, right - left) + 2 * grow < SMALLEST or probability[ys, xs].mean() < LEAST_SCORE:
            continue
        boxes.append(
            (
                float(max(left - grow, 0) / width),
                float(max(top - grow, 0) / height),
                float(min(right + grow, width) / width),
                float(min(bottom + grow, height) / height),
            )
        )
    return boxes


def annotated(image: Image.Image, boxes: list[Box]) -> Image.Image:
    """The image with the boxes drawn on it."""
    made = image.copy()
    draw = ImageDraw.Draw(made)
    for left, top, right, bottom in boxes:
        corners = (left * image.width, top * image.height, right * image.width, bottom * image.height)
        draw.rectangle(corners, outline=(235, 50, 70), width=2)
    return made


# --- the show ---------------------------------------------------------------------------------------------------------
def milliseconds(program: Program, x: Array) -> float:
    """Median time of a run."""
    times: list[float] = []
    for _ in range(RUNS):
        start = time.perf_counter()
        program.run(x)
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3


def disagreement(program: Program, x: Array) -> float:
    """The largest difference from the definition on the middle of an input, cut to 96 rows and 160 columns."""
    top, left = ((n - m) // 2 // 32 * 32 for n, m in zip(x.shape[-2:], (96, 160), strict=True))
    part = np.ascontiguousarray(x[..., top : top + 96, left : left + 160])
    return float(np.abs(program.run(part) - program.define(part)).max())


def show(program: Program, photos: list[tuple[str, Array]], table: Table) -> list[Array]:
    """Run a program on photographs, add a line for each to the table, and return the results."""
    results = [program.run(x) for _, x in photos]
    for k, (name, x) in enumerate(photos):
        once = (program.name, program.kernels, f"{program.seconds:.2f} s") if not k else ("", "", "")
        size = "x".join(map(str, x.shape[-2:]))
        table.add_row(*once, f"{name} {size}", f"{milliseconds(program, x):.1f} ms", f"{disagreement(program, x):.0e}")
    return results


def main(folder: Path) -> None:
    """Compile, run, write the pictures and print what happened."""
    folder.mkdir(parents=True, exist_ok=True)
    table = Table("program", "kernels", "compiled", "photograph", "a run", "error", title="Each program, compiled once")

    glow = edge_glow()
    names = ("rocket", "cat")
    pictures = [to_array(photograph(file)) for file in ("rocket.jpg", "chelsea.png")]
    for name, result in zip(names, show(glow, list(zip(names, pictures, strict=True)), table), strict=True):
        to_image(result).save(folder / f"{name}_edge_glow.png")

    detector = text_detector()
    page = photograph("page.png")
    scenes = {"sign": with_sign(photograph("rocket.jpg")), "page": page.resize((page.width * 2, page.height * 2))}
    inputs = [(name, for_detector(image)) for name, image in scenes.items()]
    counts: list[str] = []
    for (name, image), result in zip(scenes.items(), show(detector, inputs, table), strict=True):
        boxes = text_boxes(result[0, 0])
        counts.append(f"{len(boxes)} pieces of text on the {name}")
        annotated(image, boxes).save(folder / f"{name}_text.png")

    reports = [f"# {p.name}\n{p.report}\n" for p in (glow, detector)]
    (folder / "report.txt").write_text("\n".join(reports), encoding="utf-8")
    console = Console()
    console.print(table)
    console.print(
        f"Found {' and '.join(counts)}. Pictures and the full report are in {folder}/.\n"
        "error: the largest difference from what the ops' NumPy definitions give, on a part of the photograph.",
        highlight=False,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/showcase"))
