"""The trained models inside the packages of tests/model-packages.txt, with inputs of several sizes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]


@dataclass(frozen=True)
class RealModel:
    """A file of a package, settings that never change, and feeds of three sizes."""

    name: str
    package: str
    file: str
    feeds: Callable[[], list[Feeds]]
    constants: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The file, found without importing its package."""
        spec = importlib.util.find_spec(self.package)
        assert spec is not None and spec.submodule_search_locations
        return Path(spec.submodule_search_locations[0]) / self.file


def page(height: int, width: int) -> Array:
    """A rendered page of text, [3, height, width] in 0 to 1."""
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    size = max(12, height // 4)
    for k, line in enumerate(("Stitchwork 2026", "kernels, fused", "one launch")):
        draw.text((4, 4 + k * (size + 4)), line, fill=(10 * k, 0, 40), font=ImageFont.load_default(size))
    return np.asarray(image, np.float32).transpose(2, 0, 1) / 255


def tones(batch: int, samples: int, rate: int) -> Array:
    """One chord per batch element, with a little noise."""
    t = np.arange(samples) / rate
    rows = [sum(np.sin(2 * np.pi * f * (k + 1) * t) for f in (110.0, 220.5, 331.0)) for k in range(batch)]
    noise = np.random.default_rng(0).normal(0, 0.01, (batch, samples))
    return (np.array(rows) * 0.2 + noise).astype(np.float32)


def _file_bytes() -> list[Feeds]:
    """The beginning and end of source files as magika sees them: 1024 bytes each, 256 where there is none."""
    files = [Path(__file__), *sorted(Path(__file__).parent.glob("*.py"))][:4]
    rows = np.full((len(files), 2048), 256, np.int32)
    for row, file in zip(rows, files, strict=True):
        content = np.frombuffer(file.read_bytes().strip(), np.uint8)
        begin, end = content[:1024], content[-1024:]
        row[: len(begin)], row[2048 - len(end) :] = begin, end
    return [{"bytes": rows[:n]} for n in (1, 2, 4)]


def _images(name: str, *sizes: tuple[int, int, int], centred: bool = True) -> Callable[[], list[Feeds]]:
    def make() -> list[Feeds]:
        pages = [np.stack([np.roll(page(h, w), 3 * k, axis=2) for k in range(n)]) for n, h, w in sizes]
        return [{name: x * 2 - 1 if centred else x} for x in pages]

    return make


def _frames(samples: int, rate: int) -> Callable[[], list[Feeds]]:
    def make() -> list[Feeds]:
        rng = np.random.default_rng(1)
        states = [rng.normal(0, 0.3, (2, n, 128)).astype(np.float32) for n in (1, 2, 5)]
        return [{"input": tones(s.shape[1], samples, rate), "state": s} for s in states]

    return make


def _sequences() -> list[Feeds]:
    """Consecutive frames of one signal: 64 samples of the frame before and 512 of its own."""
    made: list[Feeds] = []
    for steps in (1, 4, 9):
        signal = tones(1, 64 + 512 * steps, 16000)[0]
        frames = np.stack([signal[512 * k : 512 * k + 576] for k in range(steps)])
        state = np.zeros((1, 1, 128), np.float32)
        made.append({"input": frames, "h": state, "c": state})
    return made


OCR = "rapidocr_onnxruntime"
MODELS = [
    RealModel("magika", "magika", "models/standard_v3_3/model.onnx", _file_bytes),
    RealModel(
        "ocr-det", OCR, "models/ch_PP-OCRv4_det_infer.onnx", _images("x", (1, 64, 160), (1, 96, 96), (2, 64, 64))
    ),
    RealModel(
        "ocr-rec", OCR, "models/ch_PP-OCRv4_rec_infer.onnx", _images("x", (1, 48, 160), (2, 48, 96), (1, 48, 320))
    ),
    RealModel(
        "ocr-cls",
        OCR,
        "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        _images("x", (1, 48, 192), (3, 48, 192), (2, 48, 96)),
    ),
    RealModel(
        "nudenet", "nudenet", "320n.onnx", _images("images", (1, 64, 96), (2, 96, 64), (1, 160, 160), centred=False)
    ),
    RealModel("silero-vad-16k", "silero_vad", "data/silero_vad.onnx", _frames(576, 16000), {"sr": np.array(16000)}),
    RealModel("silero-vad-8k", "silero_vad", "data/silero_vad.onnx", _frames(288, 8000), {"sr": np.array(8000)}),
    RealModel("silero-vad-sequence", "silero_vad", "data/silero_vad_16k_sequence.onnx", _sequences),
]
