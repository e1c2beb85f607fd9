from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

import tiny
from mini_fsod.data.check import box_problems, class_problems, empty_problems, picture_problems
from mini_fsod.data.read import look


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
    data, problems = look(tiny.write_coco(tmp_path, content))
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
    (problem,) = box_problems(look(tmp_path / "voc")[0])
    assert str(problem).startswith("VOC2007/Annotations/a.xml, object 2: the box")

    tiny.write_yolo(tmp_path / "yolo")
    (tmp_path / "yolo" / "labels" / "val" / "c.txt").write_text(
        "0 0.5 0.5 0.1 0.1\n\n1 0.5 0.5 2 0.1\n"
    )
    (problem,) = box_problems(look(tmp_path / "yolo")[0])
    assert str(problem).startswith("labels/val/c.txt, line 3: the box")


@pytest.mark.parametrize(
    ("change", "kind", "record"),
    [
        (lambda c: c["annotations"][1].update(id=1), "id-twice", "annotation 1"),
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
        (lambda c: c["images"][1].update(id=10), "id-twice", "image 10"),
        (lambda c: c["images"][1].pop("file_name"), "key-missing", "image 11"),
        (lambda c: c["images"][1].pop("width"), "key-missing", "image 11"),
        (lambda c: c["images"][1].update(height=0), "size-wrong", "image 11"),
        (lambda c: c["images"][1].update(width=60.5), "size-wrong", "image 11"),
        (lambda c: c["images"][1].update(file_name="../b.png"), "path-outside", "image 11"),
        (lambda c: c["images"][1].update(file_name="/b.png"), "path-outside", "image 11"),
        (lambda c: c["categories"][1].update(id=5), "id-twice", "category 5"),
        (lambda c: c["categories"][1].update(name=" "), "key-missing", "category 6"),
        (lambda c: c.pop("categories"), "json-shape", ""),
        (lambda c: c.update(images=7), "json-shape", "images"),
    ],
)
def test_wrong_coco_records(tmp_path: Path, change: object, kind: str, record: str) -> None:
    content = tiny.coco()
    change(content)  # type: ignore[operator]
    _, problems = look(tiny.write_coco(tmp_path, content))
    assert (kind, record) in [(p.kind, p.record) for p in problems]


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("<annotation>", "<!DOCTYPE a [<!ENTITY e 'x'>]><annotation>", "xml-bomb"),
        ("</annotation>", "", "xml-broken"),
        ("annotation>", "note>", "xml-shape"),
        ("<width>100</width>", "<width>0</width>", "size-wrong"),
        ("<width>100</width>", "", "size-wrong"),
        ("<name>bird</name>", "", "key-missing"),
        ("<xmin>11</xmin>", "<xmin>left</xmin>", "box-shape"),
        ("bndbox>", "box>", "key-missing"),
        ("a.png", "../../a.png", "path-outside"),
    ],
)
def test_wrong_voc_records(tmp_path: Path, old: str, new: str, kind: str) -> None:
    tiny.write_voc(tmp_path)
    xml = tmp_path / "VOC2007" / "Annotations" / "a.xml"
    xml.write_text(xml.read_text().replace(old, new))
    _, problems = look(tmp_path)
    assert kind in kinds(problems)
    assert all(p.file == "VOC2007/Annotations/a.xml" for p in problems)


def test_listed_but_not_annotated(tmp_path: Path) -> None:
    tiny.write_voc(tmp_path)
    (tmp_path / "VOC2007" / "Annotations" / "c.xml").unlink()
    assert kinds(look(tmp_path)[1]) == ["annotation-missing"]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("0 0.5 0.5 0.1", "label-broken"),
        ("0 0.5 0.5 0.1 0.1 0.9", "label-broken"),  # a sixth number: a detection with its score
        ("x 0.5 0.5 0.1 0.1", "label-broken"),
        ("3 0.5 0.5 0.1 0.1", "id-unknown"),
        ("0.5 0.5 0.5 0.1 0.1", "id-unknown"),
    ],
)
def test_wrong_yolo_lines(tmp_path: Path, line: str, kind: str) -> None:
    tiny.write_yolo(tmp_path)
    (tmp_path / "labels" / "train" / "b.txt").write_text(line)
    (problem,) = look(tmp_path)[1]
    assert (problem.kind, problem.file, problem.record) == (kind, "labels/train/b.txt", "line 1")


def test_classes_under_two_spellings(tmp_path: Path) -> None:
    content = tiny.coco()
    content["categories"].append({"id": 9, "name": "Bird"})
    (problem,) = class_problems(look(tiny.write_coco(tmp_path, content))[0])
    assert '"bird" and "Bird" (numbers 5, 9)' in problem.what


def test_empty_sets(tmp_path: Path) -> None:
    content = tiny.coco() | {"annotations": []}
    data, _ = look(tiny.write_coco(tmp_path / "1", content))
    assert "not a single box" in empty_problems(data, "x")[0].what
    data, _ = look(
        tiny.write_coco(tmp_path / "2", {"images": [], "annotations": [], "categories": []})
    )
    assert "no images" in empty_problems(data, "x")[0].what


def test_pictures(tmp_path: Path) -> None:
    path = tiny.write_coco(tmp_path)
    data, _ = look(path)
    assert picture_problems(data, decode=True) == ([], {0: (100, 80), 1: (60, 60), 2: (90, 50)})

    (tmp_path / "a.png").unlink()
    (tmp_path / "b.png").write_text("no picture")
    Image.new("RGB", (91, 50)).save(tmp_path / "c.png")
    problems, sizes = picture_problems(data, decode=False)
    assert kinds(problems) == ["picture-missing", "picture-unreadable", "size-wrong"]
    assert problems[2].record == "image 12: c.png"
    assert sizes == {2: (91, 50)}


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".avif", ".webp"])
def test_truncated_pictures_are_found_by_decoding(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"noise{suffix}"
    Image.effect_noise((200, 150), 90).convert("RGB").save(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    problems, _ = picture_problems(look(tmp_path)[0], decode=True)
    assert kinds(problems)[0] in ("picture-truncated", "picture-unreadable")


def test_decompression_bombs_are_not_unpacked(tmp_path: Path) -> None:
    Image.new("1", (30_000, 20_000)).save(tmp_path / "bomb.png")
    problems, _ = picture_problems(look(tmp_path)[0], decode=True)
    assert kinds(problems) == ["picture-bomb"]


def test_turned_pictures_may_be_declared_as_seen(tmp_path: Path) -> None:
    """A telephone's picture is stored lying and shown standing; annotations may mean either."""
    path = tiny.write_coco(tmp_path)
    picture = Image.new("RGB", (80, 100))
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(tmp_path / "a.png", exif=exif)  # seen: 100 x 80, as declared
    problems, sizes = picture_problems(look(path)[0], decode=False)
    assert problems == []
    assert sizes[0] == (100, 80)
