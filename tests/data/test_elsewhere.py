from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers import tiny
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.elsewhere import with_pictures_in
from mini_fsod.data.read import read_with_problems


def named(folder: Path, name: str) -> Dataset:
    """The tiny data set, in which picture a has another name."""
    content = tiny.coco()
    content["images"][0]["file_name"] = name
    folder.mkdir(exist_ok=True)
    (folder / "a.json").write_text(json.dumps(content))
    return read_with_problems(folder / "a.json")[0]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a.png", "a.png"),
        ("images/train/a.png", "a.png"),
        ("images\\train\\a.png", "a.png"),
        ("sub/one.png", "deep/sub/one.png"),
        ("3f2a9c01-a.png", "a.png"),
        ("nowhere.png", "nowhere.png"),
        pytest.param("x/" * 200_000 + "sub/one.png", "deep/sub/one.png", id="200,000 folders"),
    ],
)
def test_pictures_are_found_by_their_names(tmp_path: Path, name: str, found: str) -> None:
    photos = tmp_path / "photos"
    tiny.write_pictures(photos)
    (photos / "deep" / "sub").mkdir(parents=True)
    (photos / "a.png").rename(photos / "deep" / "sub" / "one.png")
    tiny.write_pictures(photos)
    data, problems = with_pictures_in(named(tmp_path / "coco", name), photos)
    assert (data.files[0], problems) == (found, [])
    assert data.root == photos


def test_a_name_of_several_pictures_is_a_problem(tmp_path: Path) -> None:
    for part in ("one", "two"):
        tiny.write_pictures(tmp_path / "photos" / part)
    data = named(tmp_path / "coco", "two/a.png")
    moved, problems = with_pictures_in(data, tmp_path / "photos")
    assert moved.files[0] == "two/a.png"
    assert [p.kind for p in problems] == ["picture-ambiguous"] * 2
    assert "2 pictures in" in problems[0].what
    assert '"one/b.png", "two/b.png"' in problems[0].what


def test_no_pictures_in_an_empty_data_set(tmp_path: Path) -> None:
    data = named(tmp_path / "coco", "a.png").select([])
    assert with_pictures_in(data, tmp_path)[0].files == ()
