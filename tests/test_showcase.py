"""The showcase: its own code against SciPy's, and the whole of it on the real model and photographs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

_FILE = Path(__file__).parents[1] / "examples" / "showcase.py"


@pytest.fixture(scope="module")
def showcase() -> ModuleType:
    for package in ("onnx", "PIL"):
        pytest.importorskip(package, reason="the showcase reads ONNX files and images")
    spec = importlib.util.spec_from_file_location("showcase", _FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["showcase"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("density", [0.0, 0.2, 0.45, 0.6, 1.0])
def test_regions_are_those_of_scipy(showcase: ModuleType, rng: np.random.Generator, density: float) -> None:
    label = pytest.importorskip("scipy.ndimage", reason="the oracle").label
    for shape in ((1, 1), (3, 40), (40, 37)):
        mask = rng.random(shape) < density
        ours, (theirs, count) = showcase.regions(mask), label(mask, np.ones((3, 3)))
        assert ours.max() == count
        pairs = set(zip(ours.ravel().tolist(), theirs.ravel().tolist(), strict=True))
        assert len(pairs) == count + bool((~mask).any()), "each number means one region"


def test_boxes_lie_around_what_is_probable(showcase: ModuleType) -> None:
    probability = np.zeros((64, 128), np.float32)
    probability[20:30, 32:96] = 0.9
    probability[50:60, 10:40] = 0.4  # above the level of the mask, below that of a box
    probability[5:7, 5:7] = 1.0  # too small
    ((left, top, right, bottom),) = showcase.text_boxes(probability)
    assert 0 < left < 32 / 128 and 96 / 128 < right < 1
    assert 0 < top < 20 / 64 and 30 / 64 < bottom < 45 / 64


@pytest.mark.needs("rapidocr_onnxruntime", reason="brings the model (examples/showcase-packages.txt)")
@pytest.mark.needs("skimage", reason="brings the photographs (examples/showcase-packages.txt)")
def test_the_whole_show(showcase: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    showcase.main(tmp_path)
    told = capsys.readouterr().out
    assert "3 pieces of text on the sign and 7 pieces of text on the page" in " ".join(told.split())
    pictures = {"rocket_edge_glow.png", "cat_edge_glow.png", "sign_text.png", "page_text.png"}
    assert {f.name for f in tmp_path.iterdir()} == {*pictures, "report.txt"}
    assert (tmp_path / "report.txt").read_text().startswith("# edge glow\n1 kernels\n")
    for program, shape in ((showcase.edge_glow(), (3, 96, 160)), (showcase.text_detector(), (1, 3, 96, 160))):
        image = showcase.to_array(showcase.photograph("page.png"))[:, :96, :160].reshape(shape)
        assert showcase.disagreement(program, image) < 1e-3
