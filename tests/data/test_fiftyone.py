from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers import exports, tiny
from mini_fsod.data.read import read, read_with_problems
from mini_fsod.errors import UserError


def written(folder: Path, content: Any) -> Path:
    exports.write_fiftyone(folder)
    (folder / "samples.json").write_text(json.dumps(content))
    return folder


def test_read_fiftyone_takes_sizes_from_the_pictures_where_there_is_no_metadata(
    tmp_path: Path,
) -> None:
    data = read(exports.write_fiftyone(tmp_path, metadata=False))
    assert tiny.boxes_of(data) == tiny.EXPECTED
    assert data.sizes.tolist() == [list(size) for size in tiny.SIZES.values()]
    assert data.boxes.area.tolist() == [w * h for _, _, (_, _, w, h) in tiny.BOXES]


def test_read_fiftyone_reads_the_only_field_with_boxes(tmp_path: Path) -> None:
    content = exports.fiftyone()
    for sample in content["samples"]:
        sample["mine"] = sample.pop("ground_truth")
    assert tiny.boxes_of(read(written(tmp_path, content))) == tiny.EXPECTED


def test_read_fiftyone_prefers_ground_truth_and_refuses_to_guess(tmp_path: Path) -> None:
    content = exports.fiftyone()
    for sample in content["samples"]:
        sample["predictions"] = sample["ground_truth"]
    assert len(read(written(tmp_path, content)).boxes) == len(tiny.BOXES)
    for sample in content["samples"]:
        sample["other"] = sample.pop("ground_truth")
    with pytest.raises(UserError, match="several fields hold boxes"):
        read(written(tmp_path, content))


def test_read_fiftyone_takes_image_sets_from_tags(tmp_path: Path) -> None:
    content = exports.fiftyone()
    for sample, tag in zip(content["samples"], ("train", "train", "validation"), strict=True):
        sample["tags"] = [tag, "good"]
    data = read(written(tmp_path, content))
    assert {name: len(part) for name, part in data.subsets.items()} == {
        "train": 2,
        "validation": 1,
    }


def test_read_fiftyone_lists_damaged_samples(tmp_path: Path) -> None:
    content = exports.fiftyone()
    first, second, third = content["samples"]
    first["ground_truth"]["detections"][0]["bounding_box"] = [0, 1, 2]
    del second["filepath"]
    third["ground_truth"]["detections"][0]["label"] = None
    kinds = [p.kind for p in read_with_problems(written(tmp_path, content))[1]]
    assert kinds == ["box-shape", "key-missing", "key-missing"]
