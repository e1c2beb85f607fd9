from __future__ import annotations

from pathlib import Path

import pytest

import tiny
from mini_fsod.data.check import box_problems, class_problems, picture_problems
from mini_fsod.data.read import look, read
from mini_fsod.data.repair import repaired, write_repaired
from mini_fsod.errors import UserError
from mini_fsod.labels import LabelMap


def fix(path: Path, out: Path) -> None:
    data, _ = look(path)
    good = repaired(data, picture_problems(data, decode=True)[1])
    write_repaired(out, good, LabelMap(good.classes, ()))


def test_all_that_can_be_repaired(tmp_path: Path) -> None:
    content = tiny.coco()
    content["annotations"] += [
        {"id": 20, "image_id": 10, "category_id": 5, "bbox": [90, 70, 50, 50]},  # clipped
        {"id": 21, "image_id": 10, "category_id": 5, "bbox": [300, 70, 50, 50]},  # nothing left
        {"id": 22, "image_id": 10, "category_id": 5, "bbox": [1, 1, 0, 5]},
        {"id": 23, "image_id": 10, "category_id": 5, "bbox": [1, 1, -4, 5]},
        {"id": 24, "image_id": 10, "category_id": 5, "bbox": [float("nan"), 1, 4, 5]},
        {"id": 24, "image_id": 10, "category_id": 9, "bbox": [3, 4, 5, 6]},  # id twice, "Bird"
        {"id": 25, "image_id": 99, "category_id": 5, "bbox": [3, 4, 5, 6]},
    ]
    content["categories"].append({"id": 9, "name": "Bird"})
    content["images"][1]["width"] = 61
    source = tmp_path / "source"
    path = tiny.write_coco(source, content)
    (source / "c.png").write_text("no picture")
    before = {p.name: p.read_bytes() for p in source.iterdir()}

    fix(path, tmp_path / "out")

    assert {p.name: p.read_bytes() for p in source.iterdir()} == before
    data = read(tmp_path / "out")
    assert box_problems(data) + class_problems(data) + picture_problems(data, True)[0] == []
    assert tiny.boxes_of(data) == {box for box in tiny.EXPECTED if box[0] != "c"} | {
        ("a", "bird", (90.0, 70.0, 10.0, 10.0)),
        ("a", "bird", (3.0, 4.0, 5.0, 6.0)),
    }
    assert data.sizes[1].tolist() == [60, 60]


def test_image_sets_stay_apart(tmp_path: Path) -> None:
    tiny.write_voc(tmp_path / "source")
    fix(tmp_path / "source", tmp_path / "out")
    data = read(tmp_path / "out")
    assert {n: len(part) for n, part in data.subsets.items()} == {"trainval": 2, "test": 1}
    assert len(set(data.ids)) == 3
    assert tiny.boxes_of(data) == tiny.EXPECTED
    assert read(tmp_path / "out", subset="test").boxes.difficult.tolist() == [True, False]


def test_places_a_copy_may_not_go_to(tmp_path: Path) -> None:
    path = tiny.write_coco(tmp_path / "source")
    with pytest.raises(UserError, match="inside the data set"):
        fix(path, tmp_path / "source" / "fixed")
    with pytest.raises(UserError, match="not empty"):
        fix(path, tmp_path / "source")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]
