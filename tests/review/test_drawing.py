"""The first boxes of new classes, drawn on photos."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from helpers import shapes
from helpers.tiny_run import config
from mini_fsod.data.layout import is_sample
from mini_fsod.data.read import read
from mini_fsod.errors import UserError
from mini_fsod.review.drawing import GOAL, drawing
from mini_fsod.review.items import PAGE, DecisionRequest
from mini_fsod.runs.data import RunData

BOX = [3.0, 4.0, 20.0, 15.5]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    shapes.pictures(tmp_path / "photos", PAGE + 2, seed=0)
    return tmp_path / "photos"


def draw(item: int, name: str, box: list[float] = BOX) -> DecisionRequest:
    return DecisionRequest.model_validate({"item": item, "do": "draw", "class": name, "box": box})


def test_drawing_writes_a_file_of_shots_at_each_box(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "five.json"
    with drawing(photos, ["bolt", "nut"], out) as review:
        page = review.page(None)
        assert (page["class"], len(page["items"])) == ("bolt", PAGE)
        first, second, *_ = page["items"]
        review.decide([draw(first["id"], "bolt"), draw(first["id"], "nut", [30, 30, 10, 10])])
        assert len(read(out, root=photos).boxes) == 2
        review.decide([draw(second["id"], "bolt")])
        shots = read(out, root=photos)  # while it goes on
        assert is_sample(out)
        assert shots.classes == ("bolt", "nut")
        assert {*shots.files} == {first["picture"], second["picture"]}
        assert sorted(shots.sizes.tolist()) == sorted([[*first["size"]], [*second["size"]]])
        assert review.progress()[0] == {"name": "bolt", "accepted": 2, "goal": GOAL}
        # pictures with a box are not offered again, and the others in another order than by name
        left = [item["picture"] for item in review.page(None)["items"]]
        assert not {first["picture"], second["picture"]} & {*left}
        assert left != sorted(left)
    with drawing(photos, ["bolt", "nut"], out) as again:
        assert len(again.drawn()) == 3
        again.undo()
    assert len(read(out, root=photos).boxes) == 2


def test_drawn_boxes_are_shots_of_a_run(tmp_path: Path) -> None:
    """A new class that the data does not have."""
    data = shapes.write_data(tmp_path / "data")
    out = tmp_path / "shots.json"
    with drawing(data, ["bolt"], out) as review:
        for item in review.page(None)["items"][:3]:
            review.decide([draw(item["id"], "bolt")])
    run_data = RunData(config(data, data__novel='["bolt"]', shots__file=out), torch.device("cpu"))
    assert run_data.labels.novel == ("bolt",)
    assert run_data.shots_per_class == 3
    bolts = run_data.shots.boxes.label == run_data.shots.classes.index("bolt")
    assert run_data.shots.boxes.xywh[bolts].tolist() == [BOX] * 3


def test_drawing_begins_with_the_training_pictures(tmp_path: Path) -> None:
    data = shapes.write_data(tmp_path / "data")
    with drawing(data, ["bolt"], tmp_path / "shots.json") as review:
        names = {item["picture"] for item in review.page(None)["items"]}
    content = json.loads((data / "annotations" / "train.json").read_text())
    assert names == {f"train/{image['file_name']}" for image in content["images"]}


def test_drawing_overwrites_no_other_file(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "five.json"
    out.write_text('{"made_by": "somebody"}')
    with (
        pytest.raises(UserError, match=r"exists without five\.jsonl"),
        drawing(photos, ["bolt"], out),
    ):
        pass
    assert out.read_text() == '{"made_by": "somebody"}'


def test_drawing_needs_pictures(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError), drawing(tmp_path / "empty", ["bolt"], tmp_path / "five.json"):
        pass


def test_whole_pictures_are_not_decided_about(photos: Path, tmp_path: Path) -> None:
    with drawing(photos, ["bolt"], tmp_path / "five.json") as review:
        item = review.page(None)["items"][0]["id"]
        with pytest.raises(UserError, match="whole picture"):
            review.decide([DecisionRequest.model_validate({"item": item, "do": "accept"})])
        assert review.journal.decisions == []
