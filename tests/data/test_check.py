from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from helpers import tiny
from mini_fsod.data.check import (
    box_problems,
    class_problems,
    duplicate_problems,
    empty_problems,
    file_problems,
    first_duplicate,
    picture_problems,
)
from mini_fsod.data.dataset import NO_BOXES, Boxes
from mini_fsod.data.read import read, read_with_problems
from mini_fsod.errors import DataError


def kinds(problems: list) -> list[str]:
    return [p.kind for p in problems]


@pytest.mark.parametrize(
    ("box", "kind"),
    [
        ([10, 20, 30, 40], None),
        ([70, 40, 30.4, 40.4], None),  # 0.4 px over the edge is rounding
        ([70, 40, 31, 40], "box-outside"),
        ([-1, 0, 10, 10], "box-outside"),
        ([500, 500, 10, 10], "box-outside"),
        ([10, 10, 0, 5], "box-no-area"),
        ([10, 10, -5, 5], "box-negative"),
        ([float("nan"), 10, 5, 5], "box-nan"),
        ([10, 10, float("inf"), 5], "box-nan"),
    ],
)
def test_boxes(tmp_path: Path, box: list[float], kind: str | None) -> None:
    content = tiny.coco()
    content["annotations"][0]["bbox"] = box
    data, problems = read_with_problems(tiny.write_coco(tmp_path, content))
    assert problems == []
    found = box_problems(data)
    assert kinds(found) == ([kind] if kind else [])
    if kind:
        assert found[0].file == "annotations.json"
        assert found[0].record == "annotation 1"


def test_boxes_of_voc_and_yolo_name_file_and_record(tmp_path: Path) -> None:
    tiny.write_voc(tmp_path / "voc")
    xml = tmp_path / "voc" / "VOC2007" / "Annotations" / "a.xml"
    xml.write_text(xml.read_text().replace("<xmax>70</xmax>", "<xmax>170</xmax>"))
    (problem,) = box_problems(read_with_problems(tmp_path / "voc")[0])
    assert str(problem).startswith("VOC2007/Annotations/a.xml, object 2: the box")

    tiny.write_yolo(tmp_path / "yolo")
    (tmp_path / "yolo" / "labels" / "val" / "c.txt").write_text(
        "0 0.5 0.5 0.1 0.1\n\n1 0.5 0.5 2 0.1\n"
    )
    (problem,) = box_problems(read_with_problems(tmp_path / "yolo")[0])
    assert str(problem).startswith("labels/val/c.txt, line 3: the box")


def test_boxes_that_are_there_twice(tmp_path: Path) -> None:
    """A label file whose lines are doubled. It can be read and trained on all the same."""
    labels = tiny.write_yolo(tmp_path) / "labels" / "train" / "a.txt"
    assert duplicate_problems(read_with_problems(tmp_path)[0]) == []
    labels.write_text(2 * labels.read_text())
    data = read(tmp_path)
    assert box_problems(data) == []
    first, second = duplicate_problems(data)
    assert (first.kind, first.file, first.record) == (
        "box-duplicate",
        "labels/train/a.txt",
        "line 3",
    )
    assert first.what == "the box x 10 y 20 w 30 h 40 is that of line 1 again"
    assert second.what.endswith("is that of line 2 again")


@pytest.mark.parametrize(
    "change",
    [
        {"bbox": [10, 20, 30, 40.001]},
        {"image_id": 11},
        {"category_id": 6},
        {"iscrowd": 1},  # a crowd may be around a single one of it
        {"bbox": [10, 20, 30, 0]},  # told as what it is
        {"bbox": [float("nan"), 20, 30, 40]},
    ],
)
def test_boxes_that_only_look_the_same(tmp_path: Path, change: dict) -> None:
    content = tiny.coco()
    again = content["annotations"][0] | {"id": 9}
    content["annotations"] += [again | change, again | change | {"id": 10}]
    data, _ = read_with_problems(tiny.write_coco(tmp_path, content))
    told = [p.record for p in duplicate_problems(data)]
    assert told == ([] if box_problems(data) else ["annotation 10"])  # of the one before it


def test_the_first_of_boxes_that_are_alike() -> None:
    assert first_duplicate(NO_BOXES).tolist() == []
    rows = [[3, 3, 9, 9], [1, 1, 5, 5], [3, 3, 9, 9], [-0.0, 1, 2, 2], [3, 3, 9, 9], [0, 1, 2, 2]]
    boxes = Boxes.of([0] * 6, rows, [0] * 6)
    assert first_duplicate(boxes).tolist() == [0, 1, 0, 3, 0, 3]


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
def test_wrong_coco_records(tmp_path: Path, change: object, kind: str, record: str) -> None:
    content = tiny.coco()
    change(content)  # type: ignore[operator]
    path = tiny.write_coco(tmp_path, content)
    _, problems = read_with_problems(path)
    assert (kind, record) in [(p.kind, p.record) for p in problems]
    with pytest.raises(DataError):
        read(path)


def test_flags_may_be_numbers_or_words(tmp_path: Path) -> None:
    content = tiny.coco()
    for annotation, flag in zip(content["annotations"], (0, 1, True, False, 1.0), strict=True):
        annotation["iscrowd"] = flag
    data = read(tiny.write_coco(tmp_path, content))
    assert data.boxes.crowd.tolist() == [False, True, True, False, True]


def test_all_that_is_wrong_with_a_record_is_told(tmp_path: Path) -> None:
    content = tiny.coco()
    content["annotations"][0] = {"id": True, "bbox": [1], "iscrowd": "x", "area": "y"}
    content["images"][0] = {"id": "10"}
    content["categories"][2] = {}
    _, problems = read_with_problems(tiny.write_coco(tmp_path, content))
    told = [(p.record, p.what) for p in problems]
    assert told == [
        ("images[0]", 'the id "10" is not an integer'),
        ("images[0]", '"file_name" is missing or empty'),
        ("images[0]", '"width" and "height" missing'),
        ("annotations[0]", "the id true is not an integer"),
        ("annotations[0]", '"image_id" is missing'),
        ("annotations[0]", '"category_id" is missing'),
        ("annotations[0]", "the bbox [1] is not four numbers"),
        ("annotations[0]", 'iscrowd is "x", which says neither yes nor no'),
        ("annotations[0]", 'the area "y" is not a finite number from 0'),
        ("categories[2]", '"id" is missing'),
        ("categories[2]", '"name" is missing or empty'),
        # the annotations of image 10 are not told again
        ("annotation 2", "category id 7 is unknown"),
        ("annotation 4", "category id 7 is unknown"),
    ]


def test_boxes_of_an_id_with_two_meanings_are_left_out(tmp_path: Path) -> None:
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


def test_the_same_record_twice_has_one_meaning(tmp_path: Path) -> None:
    content = tiny.coco()
    content["images"].append(dict(content["images"][0]))
    content["categories"].append(dict(content["categories"][0]))
    data, problems = read_with_problems(tiny.write_coco(tmp_path, content))
    assert kinds(problems) == ["record-duplicate", "record-duplicate"]
    assert tiny.boxes_of(data) == tiny.EXPECTED


def test_unknown_ids_are_told_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mini_fsod.data.coco.MOST_PROBLEMS", 3)
    content = tiny.coco()
    for annotation in content["annotations"]:
        annotation["image_id"] = 99
    _, problems = read_with_problems(tiny.write_coco(tmp_path, content))
    assert len(problems) == 4
    assert problems[-1].what == "2 more are wrong like these"


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("<annotation>", "<!DOCTYPE a [<!ENTITY e 'x'>]><annotation>", "xml-entities"),
        ("</annotation>", "", "xml-broken"),
        ("annotation>", "note>", "xml-shape"),
        ("<width>100</width>", "<width>0</width>", "size-wrong"),
        ("<width>100</width>", "", "size-wrong"),
        ("<name>bird</name>", "", "key-missing"),
        ("<xmin>11</xmin>", "<xmin>left</xmin>", "box-shape"),
        ("bndbox>", "box>", "key-missing"),
        ("a.png", "../../a.png", "path-outside"),
        ("<difficult>0", "<difficult>2", "flag-wrong"),
        ("<difficult>0", "<difficult>False", "flag-wrong"),
        ("<xmin>11", "<xmin>1_1", "box-shape"),
        ("<width>100", "<width>1_00", "size-wrong"),
        ("<width>100", "<width>100.5", "size-wrong"),
    ],
)
def test_wrong_voc_records(tmp_path: Path, old: str, new: str, kind: str) -> None:
    tiny.write_voc(tmp_path)
    xml = tmp_path / "VOC2007" / "Annotations" / "a.xml"
    xml.write_text(xml.read_text().replace(old, new))
    _, problems = read_with_problems(tmp_path)
    assert kind in kinds(problems)
    assert all(p.file == "VOC2007/Annotations/a.xml" for p in problems)


def test_listed_but_not_annotated(tmp_path: Path) -> None:
    tiny.write_voc(tmp_path)
    (tmp_path / "VOC2007" / "Annotations" / "c.xml").unlink()
    assert kinds(read_with_problems(tmp_path)[1]) == ["annotation-missing"]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("0 0.5 0.5 0.1", "label-broken"),
        ("0 0.5 0.5 0.1 0.1 0.9", "label-broken"),  # a sixth number: a detection with its score
        ("x 0.5 0.5 0.1 0.1", "label-broken"),
        ("0 0.5 0.5 0_1 0.1", "label-broken"),
        ("1_0 0.5 0.5 0.1 0.1", "label-broken"),
        ("3 0.5 0.5 0.1 0.1", "id-unknown"),
        ("0.5 0.5 0.5 0.1 0.1", "id-unknown"),
    ],
)
def test_wrong_yolo_lines(tmp_path: Path, line: str, kind: str) -> None:
    tiny.write_yolo(tmp_path)
    (tmp_path / "labels" / "train" / "b.txt").write_text(line)
    (problem,) = read_with_problems(tmp_path)[1]
    assert (problem.kind, problem.file, problem.record) == (kind, "labels/train/b.txt", "line 1")


def test_classes_under_two_spellings(tmp_path: Path) -> None:
    content = tiny.coco()
    content["categories"].append({"id": 9, "name": "Bird"})
    (problem,) = class_problems(read_with_problems(tiny.write_coco(tmp_path, content))[0])
    assert '"bird" and "Bird" (numbers 5, 9)' in problem.what


def test_a_picture_under_two_ids(tmp_path: Path) -> None:
    content = tiny.coco()
    assert file_problems(read_with_problems(tiny.write_coco(tmp_path, content))[0]) == []
    content["images"] += [content["images"][0] | {"id": n} for n in (20, 21)]
    content["annotations"][1]["image_id"] = 20
    path = tiny.write_coco(tmp_path, content)
    found = file_problems(read_with_problems(path)[0])
    assert [(p.kind, p.record) for p in found] == [
        ("picture-duplicate", "image 20: a.png"),
        ("picture-duplicate", "image 21: a.png"),
    ]
    assert "the picture is that of image 10 too" in found[0].what
    assert len(read(path)) == 5  # it can be read as before


def test_a_picture_of_two_files_is_not_one_under_two_ids(tmp_path: Path) -> None:
    tiny.write_coco(tmp_path)
    (tmp_path / "test.json").write_text((tmp_path / "annotations.json").read_text())
    assert file_problems(read_with_problems(tmp_path)[0]) == []


def test_empty_sets(tmp_path: Path) -> None:
    content = tiny.coco() | {"annotations": []}
    data, _ = read_with_problems(tiny.write_coco(tmp_path / "1", content))
    assert "not a single box" in empty_problems(data, "x")[0].what
    data, _ = read_with_problems(
        tiny.write_coco(tmp_path / "2", {"images": [], "annotations": [], "categories": []})
    )
    assert "no images" in empty_problems(data, "x")[0].what


def test_pictures(tmp_path: Path) -> None:
    path = tiny.write_coco(tmp_path)
    data, _ = read_with_problems(path)
    assert picture_problems(data, decode=True) == ([], {0: (100, 80), 1: (60, 60), 2: (90, 50)})

    (tmp_path / "a.png").unlink()
    (tmp_path / "b.png").write_text("no picture")
    Image.new("RGB", (91, 50)).save(tmp_path / "c.png")
    problems, sizes = picture_problems(data, decode=False)
    assert kinds(problems) == ["picture-missing", "picture-unreadable", "size-wrong"]
    assert problems[2].record == "image 12: c.png"
    assert sizes == {2: (91, 50)}


@pytest.mark.parametrize("name", ["a" * 300 + ".png", "pipe.png", "loop.png", "folder.png"])
def test_names_of_no_picture(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    (tmp_path / "folder.png").mkdir()
    content = tiny.coco()
    content["images"][0]["file_name"] = name
    problems, sizes = picture_problems(
        read_with_problems(tiny.write_coco(tmp_path, content))[0], decode=True
    )
    assert [p.kind for p in problems] == [
        "picture-missing" if name[0] == "a" else "picture-unreadable"
    ]
    assert str(tmp_path) not in problems[0].what
    assert set(sizes) == {1, 2}


def test_boxes_beyond_all_numbers_raise_no_warning(tmp_path: Path) -> None:
    content = tiny.coco()
    for annotation in content["annotations"]:
        annotation.update(bbox=[1e308, 1e308, 1e308, 1e308])
        del annotation["area"]
    data, problems = read_with_problems(tiny.write_coco(tmp_path, content))
    assert problems == []
    assert kinds(box_problems(data)) == ["box-outside"] * 5


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".avif", ".webp"])
def test_truncated_pictures_are_found_by_decoding(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"noise{suffix}"
    Image.effect_noise((200, 150), 90).convert("RGB").save(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    problems, _ = picture_problems(read_with_problems(tmp_path)[0], decode=True)
    assert kinds(problems)[0] in ("picture-truncated", "picture-unreadable")


def test_decompression_bombs_are_not_unpacked(tmp_path: Path) -> None:
    Image.new("1", (30_000, 20_000)).save(tmp_path / "bomb.png")
    problems, _ = picture_problems(read_with_problems(tmp_path)[0], decode=True)
    assert kinds(problems) == ["picture-too-large"]
