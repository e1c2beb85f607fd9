"""Data sets and detections in the formats of tools, and back through the readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import tiny
from mini_fsod.data.convert import FORMATS, convert
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.read import read
from mini_fsod.errors import UserError

SCORED = ("coco", "cvat", "label-studio", "fiftyone")
NAMES = {"coco": "out.json", "cvat": "out.xml", "label-studio": "out.json"}


@pytest.fixture
def annotated(tmp_path: Path) -> Dataset:
    tiny.write_coco(tmp_path / "data")
    return read(tmp_path / "data")


@pytest.fixture
def detected(annotated: Dataset) -> Dataset:
    """The same boxes with scores, as a pool has them."""
    boxes = annotated.boxes
    scores = np.linspace(0.25, 0.9, len(boxes))
    return annotated.with_boxes(type(boxes)(**{
        name: scores if name == "score" else getattr(boxes, name) for name in boxes.__slots__
    }))  # fmt: skip


def rows(data: Dataset) -> list[tuple[Any, ...]]:
    """Comparable rows of usable boxes: file, class, box, score."""
    boxes = data.boxes
    kept = boxes.sound & ~boxes.crowd & ~boxes.ignore
    return sorted(
        (
            Path(data.files[i]).name,
            data.classes[label],
            *np.round(box, 1).tolist(),
            None if np.isnan(score) else round(float(score), 5),
        )
        for i, label, box, score in zip(
            boxes.image[kept].tolist(), boxes.label[kept].tolist(), boxes.xywh[kept],
            boxes.score[kept], strict=True,
        )
    )  # fmt: skip


@pytest.mark.parametrize("to", FORMATS)
def test_annotations_come_back_from_every_format(
    annotated: Dataset, tmp_path: Path, to: str
) -> None:
    out = tmp_path / "converted" / NAMES.get(to, "out")
    convert(annotated, out, to)
    back = read(out, root=annotated.root if to in SCORED else None)
    assert rows(back) == rows(annotated)
    assert len(rows(back)) > 2
    assert len(back) == len(annotated)
    for i in range(len(back)):
        assert back.path(i).read_bytes() == annotated.path(i).read_bytes()


@pytest.mark.parametrize("to", SCORED)
def test_scores_come_back(detected: Dataset, tmp_path: Path, to: str) -> None:
    out = tmp_path / "converted" / NAMES.get(to, "out")
    convert(detected, out, to)
    back = read(out, root=detected.root)
    assert rows(back) == rows(detected)
    assert all(row[-1] is not None for row in rows(back))


@pytest.mark.parametrize("to", ["yolo", "voc"])
def test_formats_without_scores_refuse_them(detected: Dataset, tmp_path: Path, to: str) -> None:
    with pytest.raises(UserError, match="cannot store scores"):
        convert(detected, tmp_path / "out", to)
    assert not (tmp_path / "out").exists()


def test_label_studio_gets_scored_boxes_as_predictions(detected: Dataset, tmp_path: Path) -> None:
    convert(detected, tmp_path / "tasks.json", "label-studio")
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    with_boxes = [task for task in tasks if "predictions" in task]
    assert with_boxes
    assert all("annotations" not in task for task in with_boxes)
    regions = [r for task in with_boxes for r in task["predictions"][0]["result"]]
    assert len({region["id"] for region in regions}) == len(regions)
    for region in regions:
        assert 0 <= region["value"]["x"] <= 100
        assert region["value"]["rectanglelabels"][0] in detected.classes


def test_convert_writes_the_same_bytes_again(detected: Dataset, tmp_path: Path) -> None:
    for to in ("cvat", "label-studio"):
        suffix = Path(NAMES[to]).suffix
        for name in "ab":
            convert(detected, tmp_path / f"{name}{suffix}", to)
        first, second = (tmp_path / f"{name}{suffix}" for name in "ab")
        assert first.read_bytes() == second.read_bytes()


def test_convert_never_overwrites(annotated: Dataset, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("before")
    with pytest.raises(UserError, match="exists already"):
        convert(annotated, tmp_path / "a.json", "coco")
    with pytest.raises(UserError, match=r"cvat is a \.xml file"):
        convert(annotated, tmp_path / "a.txt", "cvat")
    assert (tmp_path / "a.json").read_text() == "before"


@pytest.mark.parametrize("to", ["cvat", "voc"])
def test_convert_refuses_names_that_xml_cannot_hold(tmp_path: Path, to: str) -> None:
    content = tiny.coco()
    content["categories"][0]["name"] = "a\x1bb"
    data = read(tiny.write_coco(tmp_path / "data", content))
    with pytest.raises(UserError, match="control character"):
        convert(data, tmp_path / ("out.xml" if to == "cvat" else "out"), to)
    assert not list(tmp_path.glob("out*"))
