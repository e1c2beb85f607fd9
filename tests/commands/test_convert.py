"""`mini convert`: from the files of other commands to those of tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny
from helpers.tiny_detector import LABELS, tiny_detector, write_photos
from mini_fsod import checkpoint
from mini_fsod.data.read import read


def test_detections_of_predict_become_tasks(tmp_path: Path, mini: Any) -> None:
    photos = write_photos(tmp_path / "photos")
    saved = tmp_path / "tiny.safetensors"
    checkpoint.save(saved, tiny_detector(), LABELS, {"weights": None})
    found = tmp_path / "found.json"
    assert mini("predict", saved, photos, "--coco", found, "--device", "cpu")[0] == 0
    words = ["--to", "label-studio", "--root", photos, "--score", "0.4"]
    code, _, err = mini("convert", found, tmp_path / "tasks.json", *words)
    assert code == 0, err
    kept = [a for a in json.loads(found.read_text())["annotations"] if a["score"] >= 0.4]
    assert 0 < len(kept) < len(json.loads(found.read_text())["annotations"])
    assert f"{len(kept)} with a score" in err
    back = read(tmp_path / "tasks.json", root=photos)
    assert sorted(back.boxes.score.tolist()) == sorted(a["score"] for a in kept)


def test_convert_refuses_an_unknown_format(tmp_path: Path, mini: Any) -> None:
    tiny.write_coco(tmp_path / "data")
    code, _, err = mini("convert", tmp_path / "data", tmp_path / "out", "--to", "labelstudio")
    assert code == 2
    assert 'Did you mean "label-studio"?' in err


@pytest.mark.parametrize("to", ["label-studio", "fiftyone", "yolo", "coco"])
def test_convert_says_that_the_pictures_are_not_there(tmp_path: Path, mini: Any, to: str) -> None:
    tiny.write_coco(tmp_path / "data")
    (file,) = (tmp_path / "data").rglob("*.json")
    alone = tmp_path / "elsewhere" / "some.json"
    alone.parent.mkdir()
    alone.write_bytes(file.read_bytes())
    suffix = ".json" if to in ("label-studio", "coco") else ""
    code, _, err = mini("convert", alone, tmp_path / f"out{suffix}", "--to", to)
    assert code == 0, err
    said = "name the folder of the images with --root" in " ".join(err.split())
    assert said == (to != "coco")  # which names pictures by any folder's name
    words = ["--to", to, "--root", tmp_path / "data"]
    code, _, err = mini("convert", alone, tmp_path / f"with-root{suffix}", *words)
    assert code == 0, err
    assert "--root" not in err
