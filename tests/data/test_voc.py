"""VOC folders beyond the devkit's own habits."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import tiny
from mini_fsod.data.read import read, read_with_problems
from mini_fsod.errors import UserError


def listed(tmp_path: Path, line: str, stem: str) -> None:
    home = tiny.write_voc(tmp_path / "voc") / "VOC2007"
    for folder, suffix in (("Annotations", "xml"), ("JPEGImages", "png")):
        (home / folder / f"c.{suffix}").rename(home / folder / f"{stem}.{suffix}")
    (home / "ImageSets" / "Main" / "test.txt").write_text(f"{line}\n\n")
    assert read(tmp_path / "voc", subset="test").ids == (stem,)


@pytest.mark.parametrize(
    ("line", "stem"),
    [
        ("my photo", "my photo"),
        ("my photo 1", "my photo 1"),  # there is such a file
        ("c  -1", "c"),
        ("c 1", "c"),
        ("\ufeffc", "c"),
        (" my photo 0 ", "my photo"),
    ],
)
def test_a_line_of_a_list_is_an_id(tmp_path: Path, line: str, stem: str) -> None:
    listed(tmp_path, line, stem)


def test_years_may_share_ids(tmp_path: Path) -> None:
    tiny.write_voc(tmp_path, "VOC2007")
    tiny.write_voc(tmp_path, "VOC2012")
    data = read(tmp_path)
    assert data.ids[0] == "VOC2007/a"
    assert data.subset("VOC2012/test").ids == ("c",)
    assert read(tmp_path, subset="VOC2012/test").ids == ("c",)
    assert read(tmp_path, subset="test").ids == ("VOC2007/c", "VOC2012/c")


def test_what_is_not_kept_is_said(tmp_path: Path) -> None:
    tiny.write_voc(tmp_path)
    xml = tmp_path / "VOC2007" / "Annotations" / "a.xml"
    xml.write_text(xml.read_text().replace("</name>", "</name><pose>Left</pose>"))
    assert read(tmp_path).unread == ("<pose> of objects",)


def test_long_names_and_words_stay_out_of_messages(tmp_path: Path) -> None:
    tiny.write_voc(tmp_path)
    xml = tmp_path / "VOC2007" / "Annotations" / "a.xml"
    xml.write_text(f"<{'x' * 5000}/>")
    (problem,) = read_with_problems(tmp_path)[1]
    assert len(problem.what) < 100


def test_loops_of_links(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "loop", tmp_path / ("a" * 300), tmp_path / "a\0b"):
        with pytest.raises(UserError, match="no such file"):
            read_with_problems(path)
