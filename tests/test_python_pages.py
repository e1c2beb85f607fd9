"""Every Python block of the README, docs/python.md and docs/deploy.md runs, one after another."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_run
from helpers.installed import readme_snippet
from helpers.shapes import NOVEL, write_data
from helpers.tiny_detector import LABELS, tiny_detector, write_photos
from mini_fsod import checkpoint
from mini_fsod.config.load import for_folder

DOCS = Path(__file__).resolve().parents[1] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the pages name: a run, pictures, a configuration."""
    monkeypatch.chdir(tmp_path)
    photos = write_photos(tmp_path / "photos")
    for name in "ab":
        shutil.copy(photos / f"{name}.png", tmp_path / f"{name}.jpg")
    saved = Path("runs/bolts/detector.safetensors")
    checkpoint.save(saved, tiny_detector(), LABELS, {"weights": None})
    config = tiny_run.config(write_data(Path("data")), **tiny_run.SHORT)
    Path("photos.yaml").write_text(for_folder(config, Path()).to_yaml())
    assert NOVEL in config.data.novel
    return tmp_path


def test_blocks_of_the_python_page_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("supervision")
    names: dict[str, Any] = {}
    first, fields, kinds, libraries, training = blocks("python.md")
    exec(first, names)
    assert "Prediction(a.jpg, 100 x 80: " in capsys.readouterr().out
    exec(fields, names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(names["found"]) > 0
    exec(kinds, names)
    assert len(names["both"]) == 2
    assert len(capsys.readouterr().out.splitlines()) == 5
    exec(libraries, names)
    assert len(names["detections"]) == len(names["records"])
    shutil.rmtree("runs/bolts")
    exec(training, names)
    assert Path("runs/bolts/results.json").exists()


def test_blocks_of_the_deployment_page_run(
    folder: Path, mini: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    assert mini("export", "runs/bolts", "-o", "bolts.onnx")[0] == 0
    onnx, openvino = blocks("deploy.md")
    names: dict[str, Any] = {}
    exec(onnx, names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == names["count"][0] > 0
    assert lines[0].split()[0] in LABELS.classes
    if find_spec("openvino"):
        exec(openvino, names)
        assert int(names["result"]["count"][0]) == names["count"][0]


def test_python_blocks_are_on_pages_that_are_run() -> None:
    pages = {path.name for path in DOCS.glob("*.md") if blocks(path.name)}
    assert pages == {"python.md", "deploy.md"}


def test_block_of_the_readme_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.move("runs/bolts", "runs/photos")
    Path("holiday").mkdir()
    shutil.move("a.jpg", "holiday")
    exec(readme_snippet(), {})
    assert "Prediction(holiday/a.jpg" in capsys.readouterr().out
