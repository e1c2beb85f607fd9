"""A sheet replaces an earlier sheet of the same, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from mini_fsod.errors import UserError
from mini_fsod.sheet_files import write_sheet

RED, BLUE = (Image.new("RGB", (4, 4), colour) for colour in ((255, 0, 0), (0, 0, 255)))


def pixel(path: Path) -> object:
    with Image.open(path) as picture:
        return picture.convert("RGB").getpixel((0, 0))


def test_write_sheet_replaces_a_sheet_of_the_same(tmp_path: Path) -> None:
    path = tmp_path / "photos-check.png"
    assert write_sheet(path, RED, "a/photos \udcff") == path
    assert write_sheet(path, BLUE, "a/photos \udcff") == path
    assert pixel(path) == (0, 0, 255)
    assert len([*tmp_path.iterdir()]) == 1


def test_write_sheet_leaves_other_sheets_and_photos_alone(tmp_path: Path) -> None:
    path = tmp_path / "photos-check.png"
    BLUE.save(path)  # somebody's picture
    assert write_sheet(path, RED, "a/photos").name == "photos-check-2.png"
    assert write_sheet(path, RED, "b/photos").name == "photos-check-3.png"
    assert write_sheet(path, RED, "a/photos").name == "photos-check-2.png"
    assert pixel(path) == (0, 0, 255)


def test_write_sheet_to_a_chosen_name_refuses_what_is_no_sheet(tmp_path: Path) -> None:
    path = tmp_path / "look.png"
    assert write_sheet(path, RED, "a", chosen=True) == path
    assert write_sheet(path, BLUE, "b", chosen=True) == path  # the user chose it again
    assert pixel(path) == (0, 0, 255)
    other = tmp_path / "notes.txt"
    other.write_text("notes")
    with pytest.raises(UserError, match="not a sheet that mini wrote"):
        write_sheet(other, RED, "a", chosen=True)
    assert other.read_text() == "notes"
