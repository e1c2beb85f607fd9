"""Pictures of kinds that are not read: nobody should find out by counting. And turned ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from helpers import tiny
from mini_fsod.data.check import picture_problems
from mini_fsod.data.folder import unread_formats
from mini_fsod.data.pictures import picture_size
from mini_fsod.data.read import read, read_with_problems
from mini_fsod.errors import UserError

HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)


def test_they_are_counted_by_kind() -> None:
    assert unread_formats([]) == ()
    assert unread_formats(["x/IMG_1.HEIC"]) == (
        "1 file is a picture of a kind that is not read: 1 x .heic; save it as JPEG or PNG",
    )
    assert unread_formats(["a.heic", "b.GIF", "c.HEIC"]) == (
        "3 files are pictures of kinds that are not read: 1 x .gif, 2 x .heic; "
        "save them as JPEG or PNG",
    )


def test_they_are_noted_in_a_plain_folder(tmp_path: Path, mini: Any) -> None:
    tiny.write_pictures(tmp_path / "x")
    for name in ("x/1.HEIC", "x/.2.heic", "x/a.heic", "y.dng", "notes.txt", "film.mp4"):
        (tmp_path / name).write_bytes(HEIC)  # a.png was made of a.heic
    code, out, err = mini("check", tmp_path, "--no-sheet")
    assert code == 0
    assert "3 images" in out
    assert "NOTE 2 files are pictures of kinds that are not read: 1 x .dng, 1 x .heic; save" in err


def test_a_folder_of_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "1.heic").write_bytes(HEIC)
    with pytest.raises(UserError, match=r"neither annotations nor pictures .* 1 x \.heic; save"):
        read_with_problems(tmp_path)


def test_they_are_noted_in_the_folders_of_yolo(tmp_path: Path) -> None:
    home = tiny.write_yolo(tmp_path)
    text = (home / "data.yaml").read_text()
    (home / "data.yaml").write_text(text.replace("val: images/val", "val: images"))  # seen twice
    (home / "images" / "train" / "d.heic").write_bytes(HEIC)
    assert read(home).notes == unread_formats(["d.heic"])
    (home / "train.txt").write_text("images/train/a.png\nimages/train/d.heic\n")
    (home / "data.yaml").write_text(text.replace("images/train", "train.txt"))
    (problem,) = read_with_problems(home)[1]
    assert (problem.kind, problem.record) == ("list-broken", "line 2")
    assert "is a picture of a kind that is not read" in problem.what
    assert problem.fix == "save it as JPEG or PNG"


@pytest.mark.parametrize("kind", ["coco", "voc", "voc, named otherwise"])
def test_annotations_that_name_one(tmp_path: Path, kind: str) -> None:
    if kind == "coco":
        content = tiny.coco()
        content["images"][0]["file_name"] = "a.HEIC"
        path, pictures = tiny.write_coco(tmp_path, content), tmp_path
    else:
        path = tiny.write_voc(tmp_path)
        pictures = path / "VOC2007" / "JPEGImages"
        if kind == "voc":
            xml = path / "VOC2007" / "Annotations" / "a.xml"
            xml.write_text(xml.read_text().replace("a.png", "a.HEIC"))
    (pictures / "a.png").unlink()
    (pictures / "a.HEIC").write_bytes(HEIC)
    data, problems = read_with_problems(path)
    assert problems == []
    (problem,), sizes = picture_problems(data, decode=True)
    assert problem.kind == "picture-format"
    assert problem.record.endswith("a.HEIC")
    assert problem.what == "a picture of a kind that is not read (.heic)"
    assert problem.fix.startswith("save the picture as JPEG or PNG")
    assert set(sizes) == {1, 2}


@pytest.mark.parametrize("kind", ["coco", "voc"])
def test_what_can_be_read_where_it_is_named_is_no_problem(tmp_path: Path, kind: str) -> None:
    """An animation's first picture, for one."""
    if kind == "coco":
        content = tiny.coco()
        content["images"][0]["file_name"] = "a.gif"
        path, pictures = tiny.write_coco(tmp_path, content), tmp_path
    else:
        path = tiny.write_voc(tmp_path)
        pictures = path / "VOC2007" / "JPEGImages"
        (pictures / "a.png").unlink()
    Image.new("P", tiny.SIZES["a"]).save(pictures / "a.gif")
    data = read(path)
    assert data.files[0].endswith("a.gif")
    assert picture_problems(data, decode=True)[0] == []


def turned(path: Path) -> None:
    """80 x 100 as stored, 100 x 80 as seen."""
    picture = Image.new("RGB", (80, 100))
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(path, exif=exif)


def test_turned_pictures_may_be_declared_as_seen(tmp_path: Path) -> None:
    """A telephone's picture is stored lying and shown standing; annotations may mean either."""
    path = tiny.write_coco(tmp_path)
    turned(tmp_path / "a.png")  # declared as seen
    problems, sizes = picture_problems(read_with_problems(path)[0], decode=False)
    assert problems == []
    assert sizes[0] == (100, 80)
    alone = tmp_path / "alone"  # nobody has declared anything
    alone.mkdir()
    (tmp_path / "a.png").rename(alone / "a.png")
    assert picture_problems(read_with_problems(alone)[0], decode=False)[1] == {0: (100, 80)}


def test_tiff_is_turned_by_its_reader(tmp_path: Path) -> None:
    for name in ("a.tif", "a.png"):
        turned(tmp_path / name)
    assert picture_size(tmp_path / "a.tif", decode=True) == (100, 80, False)
    assert picture_size(tmp_path / "a.png", decode=True) == (80, 100, True)
