"""COCO's official folders, made: few images, with ids of the official lists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from mini_fsod.data.coco_2014 import arrange_coco
from mini_fsod.data.official_shots import coco_test_images
from mini_fsod.data.read import read
from mini_fsod.errors import UserError

TEST_IDS = sorted(coco_test_images())[:3]
IDS = {"train2014": [9, 25, 30], "val2014": [*TEST_IDS, 42, 73]}
WITHOUT_BOXES = (25, 73)


def write_official(home: Path, ids: dict[str, list[int]] = IDS) -> Path:
    (home / "annotations").mkdir(parents=True)
    for part, numbers in ids.items():
        (home / part).mkdir()
        images = []
        for number in numbers:
            name = f"COCO_{part}_{number:012}.jpg"
            Image.new("RGB", (40, 30)).save(home / part / name)
            images.append({"id": number, "file_name": name, "width": 40, "height": 30})
        boxes = [
            {"id": number, "image_id": number, "category_id": 16, "bbox": [1, 2, 9, 8]}
            | {"area": 50.5, "iscrowd": int(number == 30)}
            for number in numbers
            if number not in WITHOUT_BOXES
        ]
        categories = [{"id": 16, "name": "bird"}, {"id": 17, "name": "cat"}]
        content = {"images": images, "annotations": boxes, "categories": categories}
        (home / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
        (home / "annotations" / f"captions_{part}.json").write_text("{}")
    return home


def test_arrange_coco_writes_trainval_and_test(tmp_path: Path) -> None:
    done = arrange_coco(write_official(tmp_path / "coco"), tmp_path / "out")
    assert (done.trainval, done.test, done.missing) == (3, 3, 4_997)
    data = read(tmp_path / "out")
    assert {name: [data.ids[i] for i in images] for name, images in data.subsets.items()} == {
        "trainval": [9, 30, 42],  # 25 and 73 have no annotation; a crowd is one
        "test": TEST_IDS,
    }
    assert data.classes == ("bird", "cat")
    assert data.boxes.crowd.tolist().count(True) == 1
    assert set(data.boxes.area.tolist()) == {50.5}
    assert all(data.path(i).is_file() for i in range(len(data)))
    again = arrange_coco(tmp_path / "coco", tmp_path / "out")
    assert again == done


def test_arrange_coco_by_the_command(tmp_path: Path, mini) -> None:
    home, out = write_official(tmp_path / "coco"), tmp_path / "out"
    code, _, said = mini("data", "coco", home, "-o", out)
    assert code == 0
    assert "4,997 of the 5,000 test images are not in" in said
    assert "trainval 3 images, test 3 images" in said


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda home: (home / "annotations/instances_val2014.json").unlink(), "not found"),
        (lambda home: (home / "train2014").rename(home / "train2017"), "train2014: not found"),
    ],
)
def test_arrange_coco_refuses_incomplete_folders(tmp_path: Path, break_it, message: str) -> None:
    home = write_official(tmp_path / "coco")
    break_it(home)
    with pytest.raises(UserError, match=message):
        arrange_coco(home, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_arrange_coco_refuses_other_ids_and_its_own_folder(tmp_path: Path) -> None:
    home = write_official(tmp_path / "coco", {"train2014": [1], "val2014": [2]})
    with pytest.raises(UserError, match="none of the 5,000 test images"):
        arrange_coco(home, tmp_path / "out")
    with pytest.raises(UserError, match="lies in the official folder"):
        arrange_coco(home, home / "fewshot")
