"""A prediction in other forms: COCO, supervision, text, CSV."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mini_fsod.errors import UserError
from mini_fsod.labels import LabelMap
from mini_fsod.predict.prediction import Prediction
from mini_fsod.predict.records import coco_content, csv_text, to_json

LABELS = LabelMap(("car", "bus"), ("bird",))


def prediction(path: Path | None = Path("a.jpg"), frame: int | None = None) -> Prediction:
    return Prediction(
        path,
        (200, 100),
        np.array([[10, 20, 60, 50], [100, 30, 50, 40], [5, 5, 9, 9]], dtype=float),
        np.array([2, 0, 0]),
        np.array([0.91, 0.62, 0.30]),
        ("bird", "car", "car"),
        frame,
    )


NOTHING = Prediction(None, (9, 9), np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0), ())


def test_boxes_are_corners() -> None:
    assert prediction().boxes.tolist() == [[10, 20, 70, 70], [100, 30, 150, 70], [5, 5, 14, 14]]
    assert NOTHING.boxes.shape == (0, 4)


def test_repr_says_what_was_found() -> None:
    assert repr(prediction()) == "Prediction(a.jpg, 200 x 100: 1 bird, 2 car; best score 0.91)"
    assert repr(prediction(frame=3)).startswith("Prediction(a.jpg, frame 3, 200 x 100: ")
    assert repr(NOTHING) == "Prediction(9 x 9: nothing)"


def test_above_keeps_scores_of_at_least_the_threshold() -> None:
    kept = prediction(frame=3).above(0.62)
    assert (len(kept), kept.names, kept.frame) == (2, ("bird", "car"), 3)
    assert len(prediction().above(0.95)) == 0


def test_to_coco_counts_ids_from_the_first() -> None:
    first, *others = prediction().to_coco(image_id=7, first_id=5)
    assert first == {
        "id": 5, "image_id": 7, "category_id": 3, "bbox": [10.0, 20.0, 60.0, 50.0],
        "area": 3000.0, "iscrowd": 0, "score": 0.91, "category": "bird",
    }  # fmt: skip
    assert [other["id"] for other in others] == [6, 7]
    assert NOTHING.to_coco() == []


def test_to_supervision_has_the_same_detections() -> None:
    supervision = pytest.importorskip("supervision")
    found = prediction().to_supervision()
    assert isinstance(found, supervision.Detections)
    np.testing.assert_array_equal(found.xyxy, prediction().boxes)
    assert found.class_id.tolist() == [2, 0, 0]
    assert found.confidence.tolist() == pytest.approx([0.91, 0.62, 0.30])
    assert found.data["class_name"].tolist() == ["bird", "car", "car"]
    assert len(NOTHING.to_supervision()) == 0
    assert len(found[found.confidence > 0.5]) == 2


def test_to_supervision_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "supervision", None)
    with pytest.raises(UserError, match="supervision is not installed"):
        prediction().to_supervision()


def test_to_json_gives_coco_boxes() -> None:
    record = to_json(prediction())
    assert record["detections"][0] == {
        "category": "bird",
        "bbox": [10.0, 20.0, 60.0, 50.0],
        "score": 0.91,
    }
    assert "frame" not in record
    assert to_json(prediction(frame=0))["frame"] == 0


def test_coco_content_has_unique_ids_and_all_classes() -> None:
    frames = [prediction(frame=0), NOTHING, prediction(frame=2)]
    content = coco_content(frames, ["v.mp4", "b.jpg", "v.mp4"], LABELS)
    assert [i["id"] for i in content["images"]] == [1, 2, 3]
    assert [i.get("frame") for i in content["images"]] == [0, None, 2]
    assert [a["id"] for a in content["annotations"]] == [1, 2, 3, 4, 5, 6]
    assert [a["image_id"] for a in content["annotations"]] == [1, 1, 1, 3, 3, 3]
    assert content["categories"] == [
        {"id": 1, "name": "car"}, {"id": 2, "name": "bus"}, {"id": 3, "name": "bird"},
    ]  # fmt: skip


def test_csv_text_quotes_names() -> None:
    text = csv_text([prediction(), NOTHING, prediction(frame=1)], ["a,b.jpg", "c.jpg", "v.mp4"])
    lines = text.splitlines()
    assert lines[0] == "file,frame,category,score,x,y,width,height"
    assert lines[1] == '"a,b.jpg",,bird,0.91,10.0,20.0,60.0,50.0'
    assert lines[4] == "v.mp4,1,bird,0.91,10.0,20.0,60.0,50.0"
    assert len(lines) == 7
