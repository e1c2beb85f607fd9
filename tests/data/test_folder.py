from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from helpers import tiny
from mini_fsod.data.folder import unread_formats
from mini_fsod.data.read import read, read_with_problems
from mini_fsod.errors import UserError

HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)


def test_read_folder_finds_pictures_below(tmp_path: Path) -> None:
    tiny.write_pictures(tmp_path / "x", ".jpg")
    tiny.write_pictures(tmp_path / "y" / "z")
    data = read(tmp_path)
    assert data.kind == "folder"
    assert len(data) == 6
    assert data.ids[0] == "x/a"
    assert len(data.boxes) == 0


def test_read_folder_notes_unknown_annotations(tmp_path: Path, mini) -> None:
    tiny.write_pictures(tmp_path / "img")
    assert read(tmp_path).notes == ()
    (tmp_path / "readme.txt").write_text("x")
    assert read(tmp_path).notes == ()
    for name in ("ann/a.png.json", "ann/x.xml", "img/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    code, _, err = mini("check", tmp_path, "--no-sheet")
    assert code == 0
    assert "NOTE not read as annotations: 1 x .json, 1 x .txt, 1 x .xml; supported layouts" in err
    code, out, _ = mini("check", tmp_path, "--no-sheet", "--json")
    assert code == 0
    files, labels = json.loads(out)["notes"]
    assert files.startswith("not read as annotations")
    assert labels.startswith("3 images without labels can all be mined")


def test_read_folder_reports_names_that_are_not_unicode(tmp_path: Path) -> None:
    tiny.write_pictures(tmp_path)
    try:
        Image.new("RGB", (5, 5)).save(os.fsencode(tmp_path) + b"/\xff.png")
    except OSError:
        pytest.skip("this file system takes text alone")
    data, problems = read_with_problems(tmp_path)
    assert len(data) == 3
    assert [(p.kind, p.file) for p in problems] == [("name-wrong", '"\\udcff.png"')]


def test_unread_formats_counts_by_suffix() -> None:
    assert unread_formats([]) == ()
    assert unread_formats(["x/IMG_1.HEIC"]) == (
        "1 picture has an unsupported format: 1 x .heic; save as JPEG or PNG",
    )
    assert unread_formats(["a.heic", "b.GIF", "c.HEIC"]) == (
        "3 pictures have an unsupported format: 1 x .gif, 2 x .heic; save as JPEG or PNG",
    )


def test_read_folder_notes_unsupported_formats(tmp_path: Path, mini: Any) -> None:
    tiny.write_pictures(tmp_path / "x")
    for name in ("x/1.HEIC", "x/.2.heic", "x/a.heic", "y.dng", "notes.txt", "film.mp4"):
        (tmp_path / name).write_bytes(HEIC)  # a.png was made of a.heic
    code, out, err = mini("check", tmp_path, "--no-sheet")
    assert code == 0
    assert "3 images" in out
    assert "NOTE 2 pictures have an unsupported format: 1 x .dng, 1 x .heic; save" in err


def test_read_refuses_a_folder_of_unsupported_formats(tmp_path: Path) -> None:
    (tmp_path / "1.heic").write_bytes(HEIC)
    with pytest.raises(UserError, match=r"no annotations or pictures .* 1 x \.heic; save"):
        read_with_problems(tmp_path)


def test_read_yolo_notes_unsupported_formats(tmp_path: Path) -> None:
    home = tiny.write_yolo(tmp_path)
    text = (home / "data.yaml").read_text()
    (home / "data.yaml").write_text(text.replace("val: images/val", "val: images"))  # seen twice
    (home / "images" / "train" / "d.heic").write_bytes(HEIC)
    assert read(home).notes == unread_formats(["d.heic"])
    (home / "train.txt").write_text("images/train/a.png\nimages/train/d.heic\n")
    (home / "data.yaml").write_text(text.replace("images/train", "train.txt"))
    (problem,) = read_with_problems(home)[1]
    assert (problem.kind, problem.record) == ("list-broken", "line 2")
    assert "has an unsupported picture format" in problem.what
    assert problem.fix == "save it as JPEG or PNG"
