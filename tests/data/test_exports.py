"""Each export of a labelling tool holds the same boxes, as a folder and out of the zip."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import exports, tiny
from mini_fsod.data.read import read, read_with_problems
from mini_fsod.errors import UserError

WRITERS: dict[str, Callable[[Path], object]] = {
    "coco": tiny.write_coco,
    "voc": tiny.write_voc,
    "yolo": tiny.write_yolo,
    "cvat": exports.write_cvat,
    "label studio": exports.write_label_studio,
    "json-min": lambda folder: exports.write_label_studio(folder, exports.label_studio_min()),
    "fiftyone": exports.write_fiftyone,
    "darknet": exports.write_darknet,
    "label studio yolo": exports.write_label_studio_yolo,
    "labelimg": exports.write_labelimg,
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("inside", ["", "project-7/"])
def test_read_finds_boxes_and_pictures_in_every_zip(tmp_path: Path, name: str, inside: str) -> None:
    WRITERS[name](tmp_path / "data")
    archive = exports.zipped(tmp_path / "data", tmp_path / "export.zip", inside)
    data = read(archive)
    assert tiny.boxes_of(data) == tiny.EXPECTED
    assert all(data.path(i).is_file() for i in range(len(data)))
    assert tmp_path not in data.root.parents


@pytest.mark.parametrize("name", WRITERS)
def test_read_finds_boxes_and_pictures_in_every_folder(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / "data")
    data = read(tmp_path / "data")
    assert tiny.boxes_of(data) == tiny.EXPECTED
    assert all(data.path(i).is_file() for i in range(len(data)))


@pytest.mark.parametrize("name", WRITERS)
def test_read_finds_the_pictures_of_every_zip_in_another_folder(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / "data")
    for picture in (tmp_path / "data").rglob("*.png"):
        picture.unlink()
    tiny.write_pictures(tmp_path / "photos" / "monday")
    archive = exports.zipped(tmp_path / "data", tmp_path / "export.zip")
    data = read(archive, root=tmp_path / "photos")
    assert tiny.boxes_of(data) == tiny.EXPECTED
    assert {data.path(i) for i in range(len(data))} == {
        tmp_path / "photos" / "monday" / f"{stem}.png" for stem in tiny.SIZES
    }


@pytest.mark.parametrize(
    ("name", "file"),
    [("cvat", "annotations.xml"), ("label studio", "project-1.json"), ("fiftyone", "samples.json")],
)
def test_read_takes_the_file_of_an_export(tmp_path: Path, name: str, file: str) -> None:
    WRITERS[name](tmp_path / "data")
    data = read(tmp_path / "data" / file)
    assert tiny.boxes_of(data) == tiny.EXPECTED
    assert data.kind == name
    assert all(data.path(i).is_file() for i in range(len(data)))


def test_read_finds_uploaded_pictures_of_yolo_by_their_own_names(tmp_path: Path) -> None:
    exports.write_label_studio_yolo(tmp_path / "data", pictures=False)
    for label in (tmp_path / "data" / "labels").iterdir():
        label.rename(label.with_name(f"0a1b2c3d-{label.name}"))
    tiny.write_pictures(tmp_path / "photos")
    assert tiny.boxes_of(read(tmp_path / "data", root=tmp_path / "photos")) == tiny.EXPECTED


@pytest.mark.parametrize(
    "write", [exports.write_darknet, exports.write_label_studio_yolo, exports.write_labelimg]
)
def test_read_says_how_to_name_the_pictures_of_yolo(tmp_path: Path, write) -> None:
    write(tmp_path / "data", pictures=False)
    (problem,) = read_with_problems(tmp_path / "data")[1]
    assert problem.kind == "picture-missing"
    assert problem.what == "3 label files like it, but no pictures"
    assert "--root" in problem.fix


def test_read_says_which_label_files_of_yolo_have_no_picture(tmp_path: Path) -> None:
    exports.write_darknet(tmp_path / "data", pictures=False)
    tiny.write_pictures(tmp_path / "photos")
    (tmp_path / "photos" / "c.png").unlink()
    data, problems = read_with_problems(tmp_path / "data", root=tmp_path / "photos")
    assert len(data) == 2
    assert [(p.kind, p.file) for p in problems] == [("picture-missing", "obj_train_data/c.txt")]


def test_read_finds_the_pictures_of_labelimg_in_another_folder(tmp_path: Path) -> None:
    home = exports.write_labelimg(tmp_path / "data", pictures=False)
    tiny.write_pictures(tmp_path / "photos")
    assert tiny.boxes_of(read(home, root=tmp_path / "photos")) == tiny.EXPECTED
    assert tiny.boxes_of(read(exports.write_labelimg(tmp_path / "one"))) == tiny.EXPECTED


def test_read_does_not_take_other_text_files_for_boxes(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("cat\n")
    (tmp_path / "notes.txt").write_text("5 photos of 2026 in the garden\n")
    with pytest.raises(UserError, match="no annotations or pictures"):
        read(tmp_path)


def test_errors_name_the_zip_and_not_where_it_was_unpacked(tmp_path: Path) -> None:
    """Here of a FiftyOne export that does not name its pictures."""
    home = tmp_path / "export"
    tiny.write_pictures(home / "data")
    content = {"classes": ["bird"], "labels": {"a": [{"label": 0, "bounding_box": [0, 0, 1, 1]}]}}
    (home / "labels.json").write_text(json.dumps(content))
    archive = exports.zipped(home, tmp_path / "fo.zip")
    for path in (home, home / "labels.json", archive):
        with pytest.raises(UserError, match="FiftyOneImageDetectionDataset") as said:
            read(path)
        assert "COCODetectionDataset" in said.value.fix
    assert said.value.what.startswith(f"{archive}/labels.json: ")
    assert str(said.value) == said.value.what


def test_problems_name_the_zip_of_the_pictures(tmp_path: Path) -> None:
    home = exports.write_darknet(tmp_path / "data", pictures=False)
    tiny.write_pictures(tmp_path / "photos")
    (tmp_path / "photos" / "c.png").unlink()
    photos = exports.zipped(tmp_path / "photos", tmp_path / "photos.zip")
    _, problems = read_with_problems(home, root=photos)
    assert [p.what for p in problems] == [f"no picture of that name in {photos}"]
