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
def test_box_problems_finds_bad_coordinates(
    tmp_path: Path, box: list[float], kind: str | None
) -> None:
    content = tiny.coco()
    content["annotations"][0]["bbox"] = box
    data, problems = read_with_problems(tiny.write_coco(tmp_path, content))
    assert problems == []
    found = box_problems(data)
    assert kinds(found) == ([kind] if kind else [])
    if kind:
        assert found[0].file == "annotations.json"
        assert found[0].record == "annotation 1"


def test_box_problems_names_file_and_record_of_voc_and_yolo(tmp_path: Path) -> None:
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


def test_duplicate_problems_finds_doubled_lines(tmp_path: Path) -> None:
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
    assert first.what == "the box x 10 y 20 w 30 h 40 duplicates line 1"
    assert second.what.endswith("duplicates line 2")


@pytest.mark.parametrize(
    "change",
    [
        {"bbox": [10, 20, 30, 40.001]},
        {"image_id": 11},
        {"category_id": 6},
        {"iscrowd": 1},  # a crowd may be around a single one of it
        {"bbox": [10, 20, 30, 0]},  # reported as box-no-area
        {"bbox": [float("nan"), 20, 30, 40]},
    ],
)
def test_duplicate_problems_ignores_boxes_that_differ(tmp_path: Path, change: dict) -> None:
    content = tiny.coco()
    again = content["annotations"][0] | {"id": 9}
    content["annotations"] += [again | change, again | change | {"id": 10}]
    data, _ = read_with_problems(tiny.write_coco(tmp_path, content))
    records = [p.record for p in duplicate_problems(data)]
    assert records == ([] if box_problems(data) else ["annotation 10"])  # of the one before it


def test_first_duplicate_compares_exactly() -> None:
    assert first_duplicate(NO_BOXES).tolist() == []
    rows = [[3, 3, 9, 9], [1, 1, 5, 5], [3, 3, 9, 9], [-0.0, 1, 2, 2], [3, 3, 9, 9], [0, 1, 2, 2]]
    boxes = Boxes.of([0] * 6, rows, [0] * 6)
    assert first_duplicate(boxes).tolist() == [0, 1, 0, 3, 0, 3]


def test_class_problems_finds_spellings_of_one_class(tmp_path: Path) -> None:
    content = tiny.coco()
    content["categories"].append({"id": 9, "name": "Bird"})
    (problem,) = class_problems(read_with_problems(tiny.write_coco(tmp_path, content))[0])
    assert '"bird" and "Bird" (numbers 5, 9)' in problem.what


def test_file_problems_finds_a_picture_with_several_ids(tmp_path: Path) -> None:
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
    assert "image 10 has the same picture" in found[0].what
    assert len(read(path)) == 5  # it can be read as before


def test_file_problems_allows_a_picture_in_two_files(tmp_path: Path) -> None:
    tiny.write_coco(tmp_path)
    (tmp_path / "test.json").write_text((tmp_path / "annotations.json").read_text())
    assert file_problems(read_with_problems(tmp_path)[0]) == []


def test_empty_problems_reports_no_images_and_no_boxes(tmp_path: Path) -> None:
    content = tiny.coco() | {"annotations": []}
    data, _ = read_with_problems(tiny.write_coco(tmp_path / "1", content))
    assert "no boxes" in empty_problems(data, "x")[0].what
    data, _ = read_with_problems(
        tiny.write_coco(tmp_path / "2", {"images": [], "annotations": [], "categories": []})
    )
    assert "no images" in empty_problems(data, "x")[0].what


def test_picture_problems_finds_missing_unreadable_and_wrong_size(tmp_path: Path) -> None:
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
def test_picture_problems_handles_paths_that_are_no_files(tmp_path: Path, name: str) -> None:
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


def test_box_problems_does_not_overflow(tmp_path: Path) -> None:
    content = tiny.coco()
    for annotation in content["annotations"]:
        annotation.update(bbox=[1e308, 1e308, 1e308, 1e308])
        del annotation["area"]
    data, problems = read_with_problems(tiny.write_coco(tmp_path, content))
    assert problems == []
    assert kinds(box_problems(data)) == ["box-outside"] * 5


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".avif", ".webp"])
def test_picture_problems_finds_truncated_pictures_by_decoding(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"noise{suffix}"
    Image.effect_noise((200, 150), 90).convert("RGB").save(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    problems, _ = picture_problems(read_with_problems(tmp_path)[0], decode=True)
    assert kinds(problems)[0] in ("picture-truncated", "picture-unreadable")


def test_picture_problems_does_not_decode_huge_pictures(tmp_path: Path) -> None:
    Image.new("1", (30_000, 20_000)).save(tmp_path / "bomb.png")
    problems, _ = picture_problems(read_with_problems(tmp_path)[0], decode=True)
    assert kinds(problems) == ["picture-too-large"]
