"""Pictures that lie beside the annotated ones, and that no annotation lists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from helpers import tiny
from helpers.photos import bolts, write_boxes, write_photos
from mini_fsod.data.read import read
from mini_fsod.data.unlisted import folder_of, unlisted, unlisted_notes, with_unlisted


def coco_of_some(folder: Path) -> Path:
    """images/ with 8 photos, three of which annotations/train.json lists."""
    write_photos(folder / "images")
    (folder / "annotations").mkdir()
    write_boxes(folder / "annotations" / "train.json", *bolts())
    return folder


def voc_of_some(folder: Path) -> Path:
    """8 photos, three of which have an XML file beside them."""
    write_photos(folder)
    for n in range(3):
        xml = tiny.voc_xml("a").replace("a.png", f"photo{n}.jpg")
        (folder / f"photo{n}.xml").write_text(xml)
    return folder


@pytest.mark.parametrize(("write", "images"), [(coco_of_some, "images"), (voc_of_some, ".")])
def test_unlisted_pictures_lie_beside_the_listed_ones(tmp_path: Path, write, images: str) -> None:
    folder = write(tmp_path / "data")
    (folder / "docs").mkdir()
    Image.new("RGB", (8, 8)).save(folder / "docs" / "figure.png")
    data = read(folder)
    files = unlisted(data)
    assert [Path(name).stem for name in files] == [f"photo{n}" for n in range(3, 8)]
    assert folder_of(data, files) == folder / images
    (note,) = unlisted_notes(data, folder)
    assert f"5 of 8 pictures in {folder / images} are not in the annotations" in note


@pytest.mark.parametrize("write", [tiny.write_coco, tiny.write_yolo, tiny.write_pictures])
def test_unlisted_is_empty_where_all_are_listed(tmp_path: Path, write) -> None:
    write(tmp_path)
    data = read(tmp_path)
    assert unlisted(data) == ()
    assert unlisted_notes(data, tmp_path) == []


def test_unlisted_leaves_out_what_image_sets_leave_out(tmp_path: Path) -> None:
    tiny.write_voc(tmp_path)
    pictures = tmp_path / "VOC2007" / "JPEGImages"
    Image.new("RGB", (8, 8)).save(pictures / "other.png")
    assert unlisted(read(tmp_path)) == ()


@pytest.mark.parametrize("write", [coco_of_some, voc_of_some])
def test_with_unlisted_adds_pictures_without_boxes(tmp_path: Path, write) -> None:
    data = read(write(tmp_path / "data"))
    whole = with_unlisted(data, None)
    assert len(whole) == len({*whole.ids}) == len({*whole.files}) == 8
    assert whole.boxes is data.boxes
    assert all(whole.path(i).is_file() for i in range(8))
    assert unlisted(whole) == ()
    assert {type(name) for name in whole.ids} == {type(name) for name in data.ids}


def test_with_unlisted_adds_them_to_the_training_images(tmp_path: Path) -> None:
    folder = coco_of_some(tmp_path / "data")
    test = write_boxes(tmp_path / "test.json", *bolts([6, 7]))
    (folder / "annotations" / "test.json").write_text(json.dumps(json.loads(test.read_text())))
    data = read(folder)
    whole = with_unlisted(data, "train")
    assert [len(whole.subset(name)) for name in ("train", "test")] == [6, 2]
    assert len({*whole.subset("train").ids}) == 6
