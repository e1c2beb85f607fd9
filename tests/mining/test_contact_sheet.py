"""Sheets of mined boxes: what is on them, and that nothing keeps them from being made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mining.pairs import LABELS, data_of, no_shots
from PIL import Image

from mini_fsod.draw import NOVEL_COLOUR
from mini_fsod.fonts import font_for
from mini_fsod.labels import LabelMap
from mini_fsod.mining.audit import judge
from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.contact_sheet import (
    CELL,
    COLUMNS,
    FOOT,
    RIGHT_COLOUR,
    ROWS,
    SHOWN_COLOUR,
    WRONG_COLOUR,
    _ending,
    sheet,
    write_sheets,
)


def has(picture: Image.Image, colour: tuple[int, int, int]) -> bool:
    return bool((np.asarray(picture) == colour).all(axis=-1).any())


def found_of(n: int) -> Candidates:
    """So many birds: right ones in image 1, then wrong ones in image 2."""
    image = np.array([1 + (k > 0) for k in range(n)], dtype=np.int64)
    score = np.linspace(0.9, 0.5, n)
    xywh = np.tile([0.0, 0.0, 58.0, 48.0], (n, 1))
    return Candidates(image, np.zeros(n, dtype=np.int64), xywh, score, score, None)


def test_right_and_wrong_are_told_apart_where_it_is_known(tmp_path: Path) -> None:
    data, found = data_of(tmp_path), found_of(3)
    kept = np.ones(3, dtype=bool)
    plain = sheet(data, found, kept, 0, LABELS)
    assert has(plain, NOVEL_COLOUR)
    assert not has(plain, RIGHT_COLOUR)
    judged = sheet(data, found, kept, 0, LABELS, judge(found, data, no_shots(data), LABELS))
    assert has(judged, RIGHT_COLOUR)
    assert has(judged, WRONG_COLOUR)
    assert not has(judged, NOVEL_COLOUR)


def test_a_shot_that_is_found_again_is_called_one(tmp_path: Path) -> None:
    data, found = data_of(tmp_path), found_of(3)
    kept = np.ones(3, dtype=bool)
    verdict = judge(found, data, data, LABELS)  # every box is a shot
    seen = sheet(data, found, kept, 0, LABELS, verdict)
    assert has(seen, SHOWN_COLOUR)
    assert not has(seen, RIGHT_COLOUR)
    only = np.array([True, False, False])  # and nothing else: no share of it is right
    assert has(sheet(data, found, only, 0, LABELS, verdict), SHOWN_COLOUR)


def test_only_what_is_kept_is_shown(tmp_path: Path) -> None:
    data, found = data_of(tmp_path), found_of(2)
    right = sheet(
        data, found, np.array([True, False]), 0, LABELS, judge(found, data, no_shots(data), LABELS)
    )
    assert has(right, RIGHT_COLOUR)
    assert not has(right, WRONG_COLOUR)


def test_of_a_class_without_mined_boxes_its_best_candidates(tmp_path: Path) -> None:
    data, found = data_of(tmp_path), found_of(30)
    none = np.zeros(30, dtype=bool)
    assert has(sheet(data, found, none, 0, LABELS), NOVEL_COLOUR)
    judged = sheet(data, found, none, 0, LABELS, judge(found, data, no_shots(data), LABELS))
    assert ROWS * CELL < judged.height < 2 * ROWS * CELL  # one grid, of the best
    assert has(judged, RIGHT_COLOUR)
    assert not has(sheet(data, found, none, 1, LABELS), NOVEL_COLOUR)  # there is no candidate


def test_a_box_can_be_found_again_by_its_files_name() -> None:
    font = font_for(14)
    assert _ending("2008_003120.jpg", font) == "2008_003120.jpg"
    long = _ending("x" * 90 + "-0042.jpg", font)
    assert long.startswith("...")
    assert long.endswith("-0042.jpg")
    assert CELL - 30 < font.getlength(long) <= CELL


@pytest.mark.parametrize("n", [2 * COLUMNS * ROWS, 2 * COLUMNS * ROWS + 1, 90])
def test_of_many_the_best_and_the_worst(tmp_path: Path, n: int) -> None:
    picture = sheet(data_of(tmp_path), found_of(n), np.ones(n, dtype=bool), 0, LABELS)
    assert picture.width >= COLUMNS * CELL
    assert 2 * ROWS * CELL < picture.height < 3 * ROWS * (CELL + FOOT)


def test_a_file_a_class_whatever_its_name_and_the_pictures(tmp_path: Path) -> None:
    data, found = data_of(tmp_path / "data"), found_of(3)
    (tmp_path / "data" / "c.png").write_text("no picture")
    odd = LabelMap(("car",), ("a/b", "a b"))
    written = write_sheets(tmp_path / "sheets", data, found, np.ones(3, dtype=bool), odd)
    assert [p.name for p in written] == ["1-a-b.png", "2-a-b.png"]
    with Image.open(written[0]) as picture:
        assert has(picture.convert("RGB"), NOVEL_COLOUR)


@pytest.mark.parametrize(
    "box", [(0, 0, 60, 60), (58, 58, 2, 2), (-30, -30, 500, 9), (70, 70, 5, 5)]
)
def test_any_box_can_be_drawn(tmp_path: Path, box: tuple[float, ...]) -> None:
    found = found_of(1)
    found.xywh[0] = box
    assert sheet(data_of(tmp_path), found, np.ones(1, dtype=bool), 0, LABELS).height > CELL
