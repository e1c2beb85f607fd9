from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from helpers import exports, tiny
from mini_fsod.data.read import read, read_with_problems


def result(task: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = task["annotations"][0]["result"]
    return found


def problems_of(folder: Path, content: Any) -> list[tuple[str, str]]:
    path = exports.write_label_studio(folder, content)
    return [(p.kind, p.what) for p in read_with_problems(path)[1]]


def test_read_label_studio_finds_pictures_without_the_prefix_of_the_upload(tmp_path: Path) -> None:
    data = read(exports.write_label_studio(tmp_path))
    assert sorted(data.files) == ["a.png", "b.png", "c.png"]


@pytest.mark.parametrize(
    "address",
    [
        "/data/local-files/?d=some%20photos/{}.png",
        "https://example.org/bucket/{}.png?X-Amz-Signature=0&x=1",
        "s3://bucket/photos/{}.png",
        "C:\\photos\\{}.png",
        "{}.png",
    ],
)
def test_read_label_studio_understands_addresses(tmp_path: Path, address: str) -> None:
    tasks = exports.label_studio()
    for task, stem in zip(tasks, tiny.SIZES, strict=True):
        task["data"] = {"id": "7", "image": address.format(stem), "who": "a person"}
    data = read(exports.write_label_studio(tmp_path, tasks))
    assert tiny.boxes_of(data) == tiny.EXPECTED
    assert all(data.path(i).is_file() for i in range(len(data)))


def test_read_label_studio_takes_the_picture_from_any_key(tmp_path: Path) -> None:
    tasks = exports.label_studio()
    for task in tasks:
        task["data"] = {"photo": task["data"]["image"], "caption": "two birds"}
    assert tiny.boxes_of(read(exports.write_label_studio(tmp_path, tasks))) == tiny.EXPECTED


def test_read_label_studio_refuses_rotated_boxes_and_pictures(tmp_path: Path) -> None:
    tasks = exports.label_studio()
    result(tasks[0])[0]["value"]["rotation"] = 12.5
    result(tasks[1])[0]["image_rotation"] = 90
    result(tasks[2])[0]["value"]["rotation"] = 360
    assert problems_of(tmp_path, tasks) == [
        ("box-rotated", "the box is rotated by 12.5 degrees"),
        ("box-rotated", "the picture is rotated by 90 degrees"),
    ]


def test_read_label_studio_reads_one_annotation_of_a_task(tmp_path: Path) -> None:
    tasks = exports.label_studio()
    second = deepcopy(tasks[0]["annotations"][0])
    second["result"] = second["result"][:1]
    tasks[0]["annotations"].append(second)
    cancelled = deepcopy(second) | {"was_cancelled": True}
    tasks[0]["annotations"].insert(0, cancelled)
    data, problems = read_with_problems(exports.write_label_studio(tmp_path / "first", tasks))
    assert problems == []
    assert tiny.boxes_of(data) == tiny.EXPECTED
    assert any("further annotations" in note for note in data.notes)
    second["ground_truth"] = True
    data, _ = read_with_problems(exports.write_label_studio(tmp_path / "marked", tasks))
    assert len(data.boxes) == len(tiny.EXPECTED) - 1


def test_read_label_studio_reads_a_task_of_json_min_once(tmp_path: Path) -> None:
    tasks = exports.label_studio_min()
    data = read(exports.write_label_studio(tmp_path, [*tasks, tasks[0]]))
    assert tiny.boxes_of(data) == tiny.EXPECTED


def test_read_label_studio_keeps_pictures_without_boxes(tmp_path: Path) -> None:
    tasks = exports.label_studio()
    tasks[0]["annotations"] = []
    data = read(exports.write_label_studio(tmp_path, tasks))
    assert len(data) == 3
    assert data.sizes.tolist()[0] == [0, 0]


def test_read_label_studio_takes_the_boxes_of_polygons_and_no_predictions(tmp_path: Path) -> None:
    tasks = exports.label_studio()
    polygon = {"points": [[10, 25], [40, 25], [20, 75]], "polygonlabels": ["bird"]}
    first = result(tasks[0])[0]
    result(tasks[0])[0] = first | {"value": polygon, "type": "polygonlabels"}
    tasks[1]["predictions"] = [{"result": deepcopy(result(tasks[0]))}]
    data = read(exports.write_label_studio(tmp_path, tasks))
    assert tiny.boxes_of(data) == tiny.EXPECTED  # the box around the points is the same


def test_read_label_studio_lists_damaged_regions(tmp_path: Path) -> None:
    tasks = exports.label_studio()
    result(tasks[0])[0]["value"]["width"] = "wide"
    result(tasks[0])[1]["value"]["rectanglelabels"] = []
    for part in result(tasks[2]):
        del part["original_width"]
    kinds = [kind for kind, _ in problems_of(tmp_path, tasks)]
    assert kinds == ["box-shape", "key-missing", "size-missing", "size-missing"]


def test_read_takes_json_min_without_its_annotators(tmp_path: Path) -> None:
    """Scripts that merge or thin out exports keep the boxes alone."""
    tasks = exports.label_studio_min()
    content = [{key: task[key] for key in ("image", "id", "label")} for task in tasks]
    exports.write_label_studio(tmp_path, content)
    assert tiny.boxes_of(read(tmp_path)) == tiny.EXPECTED
