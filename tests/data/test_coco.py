from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helpers import tiny
from mini_fsod.data.read import read, read_with_problems
from mini_fsod.data.write import write_coco
from mini_fsod.errors import DataError, total
from mini_fsod.labels import LabelMap


@pytest.mark.parametrize(
    ("change", "kind", "record"),
    [
        (lambda c: c["annotations"][1].update(id=1), "id-duplicate", "annotation 1"),
        (lambda c: c["annotations"][1].update(id=True), "id-wrong", "annotations[1]"),
        (lambda c: c["annotations"][1].update(id="2"), "id-wrong", "annotations[1]"),
        (lambda c: c["annotations"][1].pop("id"), "key-missing", "annotations[1]"),
        (lambda c: c["annotations"][1].pop("bbox"), "key-missing", "annotation 2"),
        (lambda c: c["annotations"][1].update(bbox=[1, 2, 3]), "box-shape", "annotation 2"),
        (lambda c: c["annotations"][1].update(bbox=[1, 2, 3, True]), "box-shape", "annotation 2"),
        (lambda c: c["annotations"][1].update(image_id=77), "id-unknown", "annotation 2"),
        (lambda c: c["annotations"][1].update(category_id=77), "id-unknown", "annotation 2"),
        (lambda c: c["annotations"][1].update(category_id=False), "id-wrong", "annotation 2"),
        (lambda c: c["annotations"].append(3), "json-shape", "annotations[5]"),
        (lambda c: c["images"][1].update(id=1e308), "id-wrong", "images[1]"),
        (lambda c: c["images"][1].update(id=10), "id-duplicate", "image 10"),
        (lambda c: c["images"][1].pop("file_name"), "key-missing", "image 11"),
        (lambda c: c["images"][1].pop("width"), "size-missing", "image 11"),
        (lambda c: c["images"][1].update(file_name="\ud800.png"), "name-wrong", "image 11"),
        (lambda c: c["images"].append(dict(c["images"][1])), "record-duplicate", "image 11"),
        (lambda c: c["annotations"][1].update(iscrowd="0"), "flag-wrong", "annotation 2"),
        (lambda c: c["annotations"][1].update(ignore=2), "flag-wrong", "annotation 2"),
        (lambda c: c["annotations"][1].update(difficult=[]), "flag-wrong", "annotation 2"),
        (lambda c: c["annotations"][1].update(iscrowd=None), "flag-wrong", "annotation 2"),
        (lambda c: c["annotations"][1].update(area="x"), "area-wrong", "annotation 2"),
        (lambda c: c["annotations"][1].update(area=-1), "area-wrong", "annotation 2"),
        (lambda c: c["annotations"][1].update(area=True), "area-wrong", "annotation 2"),
        (lambda c: c["annotations"][1].update(area=float("nan")), "area-wrong", "annotation 2"),
        (lambda c: c["annotations"][1].update(area=10**400), "area-wrong", "annotation 2"),
        (lambda c: c["images"][1].update(height=0), "size-wrong", "image 11"),
        (lambda c: c["images"][1].update(width=60.5), "size-wrong", "image 11"),
        (lambda c: c["images"][1].update(file_name="../b.png"), "path-outside", "image 11"),
        (lambda c: c["images"][1].update(file_name="/b.png"), "path-outside", "image 11"),
        (lambda c: c["categories"][1].update(id=5), "id-duplicate", "category 5"),
        (lambda c: c["categories"][1].update(name=" "), "key-missing", "category 6"),
        (lambda c: c["categories"][1].update(name="c\ud800t"), "name-wrong", "category 6"),
        (lambda c: c["categories"][1].update(name="car"), "class-duplicate", "categories"),
        (lambda c: c.pop("categories"), "json-shape", ""),
        (lambda c: c.update(images=7), "json-shape", "images"),
    ],
)
def test_read_coco_reports_wrong_records(
    tmp_path: Path, change: object, kind: str, record: str
) -> None:
    content = tiny.coco()
    change(content)  # type: ignore[operator]
    path = tiny.write_coco(tmp_path, content)
    _, problems = read_with_problems(path)
    assert (kind, record) in [(p.kind, p.record) for p in problems]
    with pytest.raises(DataError):
        read(path)


def test_read_coco_of_boxes_whose_area_overflows_can_be_written(tmp_path: Path) -> None:
    content = tiny.coco()
    content["annotations"][0].update(bbox=[0, 0, 1e200, 1e200])
    content["annotations"][0].pop("area", None)
    data, _ = read_with_problems(tiny.write_coco(tmp_path, content))
    assert data.boxes.area.max() == sys.float_info.max
    write_coco(tmp_path / "out.json", data, LabelMap(data.classes, ()), {})
    assert "Infinity" not in (tmp_path / "out.json").read_text()


def test_read_coco_takes_flags_as_numbers_or_booleans(tmp_path: Path) -> None:
    content = tiny.coco()
    for annotation, flag in zip(content["annotations"], (0, 1, True, False, 1.0), strict=True):
        annotation["iscrowd"] = flag
    data = read(tiny.write_coco(tmp_path, content))
    assert data.boxes.crowd.tolist() == [False, True, True, False, True]


def test_read_coco_reports_all_problems_of_a_record(tmp_path: Path) -> None:
    content = tiny.coco()
    content["annotations"][0] = {"id": True, "bbox": [1], "iscrowd": "x", "area": "y"}
    content["images"][0] = {"id": "10"}
    content["categories"][2] = {}
    _, problems = read_with_problems(tiny.write_coco(tmp_path, content))
    reported = [(p.record, p.what) for p in problems]
    assert reported == [
        ("images[0]", 'id "10" is not an integer'),
        ("images[0]", '"file_name" is missing or empty'),
        ("images[0]", '"width" and "height" missing'),
        ("annotations[0]", "id true is not an integer"),
        ("annotations[0]", '"image_id" is missing'),
        ("annotations[0]", '"category_id" is missing'),
        ("annotations[0]", "bbox [1] is not four numbers"),
        ("annotations[0]", 'iscrowd is "x", not 0 or 1'),
        ("annotations[0]", 'area "y" is not a finite number >= 0'),
        ("categories[2]", '"id" is missing'),
        ("categories[2]", '"name" is missing or empty'),
        # no problems for the annotations of image 10
        ("annotation 2", "category id 7 is unknown"),
        ("annotation 4", "category id 7 is unknown"),
    ]


def test_read_coco_leaves_out_boxes_of_ambiguous_ids(tmp_path: Path) -> None:
    content = tiny.coco()
    content["images"][1]["id"] = 10  # a.png or b.png: boxes 1 and 2 may lie on either
    content["annotations"][2]["image_id"] = 12
    data, problems = read_with_problems(tiny.write_coco(tmp_path / "1", content))
    assert [(p.kind, p.record) for p in problems] == [("id-duplicate", "image 10")]
    assert data.files == ("c.png",)
    assert data.boxes.record.tolist() == [3, 4, 5]

    content = tiny.coco()
    content["categories"][1]["id"] = 7  # bus or car
    content["annotations"] = content["annotations"][:4]
    data, problems = read_with_problems(tiny.write_coco(tmp_path / "2", content))
    assert [(p.kind, p.record) for p in problems] == [("id-duplicate", "category 7")]
    assert data.boxes.record.tolist() == [1, 3]


def test_read_coco_keeps_one_of_equal_records(tmp_path: Path) -> None:
    content = tiny.coco()
    content["images"].append(dict(content["images"][0]))
    content["categories"].append(dict(content["categories"][0]))
    data, problems = read_with_problems(tiny.write_coco(tmp_path, content))
    assert [p.kind for p in problems] == ["record-duplicate", "record-duplicate"]
    assert tiny.boxes_of(data) == tiny.EXPECTED


def test_read_coco_limits_the_number_of_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mini_fsod.data.problems.PROBLEMS_KEPT", 3)
    content = tiny.coco()
    for annotation in content["annotations"]:
        annotation["image_id"] = 99
    _, problems = read_with_problems(tiny.write_coco(tmp_path, content))
    assert len(problems) == 4
    assert problems[-1].what == "2 more of this kind"
    assert total(problems) == 5
