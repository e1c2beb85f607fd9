from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import tiny
from mini_fsod.data.check import picture_problems
from mini_fsod.data.read import read_with_problems
from mini_fsod.errors import UserError


@pytest.fixture
def stranger() -> Iterator[Path]:
    """A folder of somebody who may not read everything in it; root may, so another user looks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        if os.getuid() == 0:
            os.seteuid(0)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)


def give_up_rights() -> None:
    if os.geteuid() == 0:
        os.seteuid(65534)


def test_read_with_problems_reports_unreadable_json(stranger: Path) -> None:
    tiny.write_coco(stranger)
    (stranger / "b.json").write_text("{}")
    (stranger / "b.json").chmod(0)
    give_up_rights()
    assert [(p.file, p.what) for p in read_with_problems(stranger)[1]] == [
        ("b.json", "cannot be read (Permission denied)")
    ]


def test_read_with_problems_reports_unreadable_folders(stranger: Path) -> None:
    for name in ("voc", "plain"):
        (stranger / name).mkdir()
    tiny.write_voc(stranger / "voc")
    (stranger / "voc" / "VOC2007" / "JPEGImages").chmod(0)
    tiny.write_pictures(stranger / "plain" / "x")
    tiny.write_pictures(stranger / "plain" / "y")
    (stranger / "plain" / "x").chmod(0)
    (stranger / "closed").mkdir(mode=0)
    give_up_rights()
    assert [p.kind for p in read_with_problems(stranger / "voc")[1]] == ["folder-unreadable"]
    data, problems = read_with_problems(stranger / "plain")
    assert len(data) == 3
    assert [(p.kind, p.file) for p in problems] == [("folder-unreadable", "x")]
    with pytest.raises(UserError, match="cannot be read"):
        read_with_problems(stranger / "closed")
    with pytest.raises(UserError, match="no such file"):
        read_with_problems(stranger / "closed" / "below")


def test_read_with_problems_reports_unreadable_annotations(stranger: Path) -> None:
    tiny.write_voc(stranger / "voc")
    (stranger / "voc" / "VOC2007" / "Annotations" / "a.xml").chmod(0)
    (stranger / "voc" / "VOC2007" / "ImageSets" / "Main" / "test.txt").chmod(0)
    tiny.write_yolo(stranger / "yolo")
    (stranger / "yolo" / "labels" / "train" / "a.txt").chmod(0)
    (stranger / "yolo" / "images" / "val" / "c.png").chmod(0)
    give_up_rights()
    assert [p.kind for p in read_with_problems(stranger / "voc")[1]] == [
        "list-unreadable",
        "xml-broken",
    ]
    data, problems = read_with_problems(stranger / "yolo")
    assert [p.kind for p in problems] == ["label-broken"]
    assert [p.kind for p in picture_problems(data, False)[0]] == ["picture-unreadable"]
