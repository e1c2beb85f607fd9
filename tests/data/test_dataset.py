from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from helpers import tiny
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.read import read


def test_select_keeps_boxes_with_their_images(tmp_path: Path) -> None:
    data: Dataset = read(tiny.write_voc(tmp_path))
    turned = data.select([2, 0])
    assert turned.ids == ("c", "a")
    assert turned.boxes.image.tolist() == [0, 0, 1, 1]
    assert turned.subsets["trainval"].tolist() == [1]
    assert data.select([]).offsets.tolist() == [0]


def test_subset_has_short_ids(tmp_path: Path) -> None:
    for part in ("train", "valid"):
        tiny.write_pictures(tmp_path / part)
        (tmp_path / part / "_annotations.coco.json").write_text(json.dumps(tiny.coco()))
    data = read(tmp_path)
    assert data.ids[0] == "train/10"
    assert data.subset("valid").ids == (10, 11, 12) == read(tmp_path, subset="valid").ids


def test_digest_depends_on_classes_names_sizes_and_boxes(tmp_path: Path) -> None:
    data = read(tiny.write_coco(tmp_path / "a"))
    assert data.digest == read(tiny.write_coco(tmp_path / "b")).digest
    others = [
        replace(data, classes=("bird", "bus", "van")),
        replace(data, files=("x.png", *data.files[1:])),
        replace(data, sizes=data.sizes + 1),
        data.with_boxes(replace(data.boxes, xywh=data.boxes.xywh + 1)),
        data.with_boxes(replace(data.boxes, crowd=~data.boxes.crowd)),
        data.select([0, 1]),
    ]
    assert len({data.digest, *(other.digest for other in others)}) == len(others) + 1
