"""No data set fills the memory or takes minutes: limits of size, records and problems."""

from __future__ import annotations

import json
import os
import resource
from collections import Counter
from pathlib import Path
from time import process_time

import pytest

from helpers import tiny
from mini_fsod.data.check import class_problems, file_problems
from mini_fsod.data.read import read_with_problems
from mini_fsod.errors import Problem, total
from mini_fsod.limits import (
    BOXES_PER_LABEL,
    CLASSES,
    LABEL_BYTES,
    LABEL_LINES,
    LIST_BYTES,
    PROBLEMS_KEPT,
)

SECONDS = 10  # of processor time for a hostile file
MEMORY = 500 * 2**20


def problems_of(path: Path) -> list[Problem]:
    """The problems, found within the limits of time and memory."""
    start, before = process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    problems = read_with_problems(path)[1]
    assert process_time() - start < SECONDS
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < MEMORY
    return problems


def kinds(problems: list[Problem]) -> Counter[str]:
    return Counter(
        {kind: total(p for p in problems if p.kind == kind) for kind in {p.kind for p in problems}}
    )


def sparse(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


def test_read_yolo_refuses_a_huge_label_file(tmp_path: Path) -> None:
    home = tiny.write_yolo(tmp_path / "data")
    sparse(home / "labels/train/a.txt", 3 << 30)
    (problem,) = problems_of(home)
    assert (problem.kind, problem.what) == ("label-broken", "cannot be read (larger than 16 MB)")


@pytest.mark.parametrize("link", [False, True])
def test_read_yolo_refuses_pipes_and_endless_devices(tmp_path: Path, link: bool) -> None:
    home = tiny.write_yolo(tmp_path / "data")
    path = home / "labels/train/a.txt"
    path.unlink()
    path.symlink_to("/dev/zero") if link else os.mkfifo(path)
    (problem,) = problems_of(home)
    assert problem.what == "cannot be read (not a regular file)"


def test_read_yolo_lists_some_wrong_lines_and_counts_the_others(tmp_path: Path) -> None:
    home = tiny.write_yolo(tmp_path / "data")
    (home / "labels/train/a.txt").write_text("x\n" * 300_000)
    problems = problems_of(home)
    assert len(problems) == PROBLEMS_KEPT + 1
    assert problems[-1].what == f"{300_000 - PROBLEMS_KEPT:,} more of this kind"
    assert kinds(problems) == {"label-broken": 300_000}


def test_read_yolo_limits_the_lines_of_a_label_file(tmp_path: Path) -> None:
    home = tiny.write_yolo(tmp_path / "data")
    (home / "labels/train/a.txt").write_text("x\n" * (LABEL_LINES + 9))
    assert kinds(problems_of(home)) == {"label-broken": LABEL_LINES + 1}


def test_read_yolo_limits_the_boxes_of_a_picture(tmp_path: Path) -> None:
    home = tiny.write_yolo(tmp_path / "data")
    line = "0 0.5 0.5 0.5 0.5\n"
    (home / "labels/train/a.txt").write_text(line * (LABEL_BYTES // len(line)))
    (problem,) = problems_of(home)
    assert problem.what.startswith(f"more than {BOXES_PER_LABEL:,} boxes")


@pytest.mark.parametrize("names", ["0: x", "a", "x0"])
def test_read_yolo_limits_the_number_of_classes(tmp_path: Path, names: str) -> None:
    home = tiny.write_yolo(tmp_path / "data")
    lines = {
        "0: x": "".join(f"  {n}: x{n}\n" for n in range(40_000)),
        "a": "  - a\n" * 40_000,
        "x0": "".join(f"  - x{n}\n" for n in range(40_000)),
    }[names]
    (home / "data.yaml").write_text(f"train: images/train\nnames:\n{lines}")
    problem, *_ = problems_of(home)
    assert problem.kind == ("yaml-broken" if names == "0: x" else "yaml-shape")


def test_read_yolo_reads_many_classes_in_a_moment(tmp_path: Path) -> None:
    home = tiny.write_yolo(tmp_path / "data")
    lines = "".join(f"  - x{n}\n" for n in range(CLASSES))
    (home / "data.yaml").write_text(f"train: images/train\nnames:\n{lines}")
    assert problems_of(home) == []
    start = process_time()
    assert class_problems(read_with_problems(home)[0]) == []
    assert process_time() - start < SECONDS


def test_read_yolo_refuses_a_huge_list_of_pictures(tmp_path: Path) -> None:
    home = tiny.write_yolo(tmp_path / "data")
    (home / "data.yaml").write_text("train: list.txt\nnames: [a, b, c]\n")
    sparse(home / "list.txt", LIST_BYTES + 1)
    (problem,) = problems_of(home)
    assert "larger than 64 MB" in problem.what


@pytest.mark.parametrize("name", ["Annotations/a.xml", "ImageSets/Main/test.txt"])
def test_read_voc_refuses_huge_files(tmp_path: Path, name: str) -> None:
    home = tiny.write_voc(tmp_path / "data")
    sparse(home / "VOC2007" / name, 3 << 30)
    (problem,) = problems_of(home)
    assert "cannot be read (larger than" in problem.what


def test_read_voc_limits_the_objects_of_a_picture(tmp_path: Path) -> None:
    home = tiny.write_voc(tmp_path / "data")
    path = home / "VOC2007" / "Annotations" / "a.xml"
    objects = "<object/>" * 10**6
    path.write_text(path.read_text().replace("</annotation>", f"{objects}</annotation>"))
    assert kinds(problems_of(home))["xml-shape"] == 1


@pytest.mark.parametrize("record", ["{}", "1", '{"id": 1}', '{"a%d": 1}', '{"id": 1, "id": 2}'])
@pytest.mark.parametrize("key", ["images", "annotations", "categories", "other"])
def test_read_coco_stops_at_wrong_files(tmp_path: Path, record: str, key: str) -> None:
    path = tmp_path / "annotations.json"
    many = ",".join(record % n if "%" in record else record for n in range(400_000))
    content = tiny.coco() | {key: [7]}
    path.write_text(json.dumps(content).replace("[7]", f"[{many}]"))
    tiny.write_pictures(tmp_path)
    problems = problems_of(path)
    assert len(problems) < 6 * PROBLEMS_KEPT
    assert problems or key == "other"


def test_read_coco_limits_the_keys_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "annotations.json"
    keys = ",".join(f'"k{n}": 1' for n in range(400_000))
    path.write_text(json.dumps(tiny.coco())[:-1] + f", {keys}}}")
    problems = problems_of(path)
    assert [p.what for p in problems] == ["more than 1,000 keys"]


@pytest.mark.parametrize(
    ("part", "old", "new", "record"),
    [
        ("bbox", '"bbox": [', '"bbox": [9, 9, 9, 9], "bbox": [', "annotations[0]"),
        ("file_name", '"file_name"', '"file_name": "b.png", "file_name"', "images[0]"),
        ("name", '"name": "bird"', '"name": "bird", "name": "cat"', "categories[0]"),
    ],
)
def test_read_coco_reports_a_key_given_twice(
    tmp_path: Path, part: str, old: str, new: str, record: str
) -> None:
    text = json.dumps(tiny.coco()).replace(old, new, 1)
    data, problems = read_with_problems(tiny.write_coco(tmp_path, text))
    assert [(p.kind, p.record) for p in problems] == [("key-duplicate", record)]
    assert problems[0].what == f'the key "{part}" is given twice'
    assert tiny.boxes_of(data) < tiny.EXPECTED


@pytest.mark.parametrize(("xml", "named"), [("b", "a"), ("a", "c"), ("c", "b")])
def test_file_problems_reports_two_xml_files_of_one_picture(
    tmp_path: Path, xml: str, named: str
) -> None:
    """The one that is named like the picture is right, whatever their order."""
    home = tiny.write_voc(tmp_path)
    path = home / "VOC2007" / "Annotations" / f"{xml}.xml"
    path.write_text(path.read_text().replace(f"{xml}.png", f"{named}.png"))
    (problem,) = file_problems(read_with_problems(home)[0])
    assert (problem.kind, problem.file) == ("filename-duplicate", f"VOC2007/Annotations/{xml}.xml")
    assert problem.what == f"VOC2007/Annotations/{named}.xml names the same picture"


def test_read_voc_stops_at_too_many_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mini_fsod.data.voc.CLASSES", 1)
    (problem,) = problems_of(tiny.write_voc(tmp_path / "data"))
    assert (problem.kind, problem.file) == ("data-too-large", "VOC2007/Annotations/a.xml")
