"""Contact sheets of mined boxes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.pairs import LABELS, data_of, ground_truth
from mini_fsod.draw import NOVEL_COLOUR
from mini_fsod.labels import LabelMap
from mini_fsod.mining.audit import judge_candidates
from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.contact_sheet import (
    CELL,
    COLUMNS,
    FOOT,
    RIGHT_COLOUR,
    ROWS,
    SHOT_COLOUR,
    WRONG_COLOUR,
    class_sheet,
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


def test_class_sheet_colours_right_and_wrong_boxes(tmp_path: Path) -> None:
    data, found = data_of(tmp_path), found_of(3)
    kept = np.ones(3, dtype=bool)
    plain = class_sheet(data, found, kept, 0, LABELS)
    assert has(plain, NOVEL_COLOUR)
    assert not has(plain, RIGHT_COLOUR)
    judged = class_sheet(data, found, kept, 0, LABELS, judge_candidates(found, ground_truth(data)))
    assert has(judged, RIGHT_COLOUR)
    assert has(judged, WRONG_COLOUR)
    assert not has(judged, NOVEL_COLOUR)


def test_class_sheet_colours_found_shots(tmp_path: Path) -> None:
    data, found = data_of(tmp_path), found_of(3)
    kept = np.ones(3, dtype=bool)
    verdict = judge_candidates(found, ground_truth(data, data))  # every box is a shot
    seen = class_sheet(data, found, kept, 0, LABELS, verdict)
    assert has(seen, SHOT_COLOUR)
    assert not has(seen, RIGHT_COLOUR)
    only = np.array([True, False, False])  # and nothing else: no share of it is right
    assert has(class_sheet(data, found, only, 0, LABELS, verdict), SHOT_COLOUR)


def test_class_sheet_shows_the_pool_only(tmp_path: Path) -> None:
    data, found = data_of(tmp_path), found_of(2)
    right = class_sheet(
        data, found, np.array([True, False]), 0, LABELS, judge_candidates(found, ground_truth(data))
    )
    assert has(right, RIGHT_COLOUR)
    assert not has(right, WRONG_COLOUR)


def test_class_sheet_of_an_empty_pool_shows_the_best_candidates(tmp_path: Path) -> None:
    data, found = data_of(tmp_path), found_of(30)
    none = np.zeros(30, dtype=bool)
    assert has(class_sheet(data, found, none, 0, LABELS), NOVEL_COLOUR)
    judged = class_sheet(data, found, none, 0, LABELS, judge_candidates(found, ground_truth(data)))
    assert ROWS * CELL < judged.height < 2 * ROWS * CELL  # one grid, of the best
    assert has(judged, RIGHT_COLOUR)
    assert not has(class_sheet(data, found, none, 1, LABELS), NOVEL_COLOUR)  # there is no candidate


def test_class_sheet_fits_long_file_names(tmp_path: Path) -> None:
    """Only the end of the name is drawn, so names that differ there look different."""
    data, kept = data_of(tmp_path), np.ones(1, dtype=bool)
    sheets = []
    for name in ("x" * 90 + "-0042.png", "x" * 90 + "-0043.png", "y" * 90 + "-0042.png"):
        (tmp_path / name).write_bytes((tmp_path / "b.png").read_bytes())
        renamed = replace(data, files=(data.files[0], name, data.files[2]))
        sheets.append(class_sheet(renamed, found_of(1), kept, 0, LABELS))
    one, another, same_end = (np.asarray(picture) for picture in sheets)
    assert (one != another).any()
    assert (one != same_end).any()
    assert one[:, -1].tolist() == another[:, -1].tolist()  # nothing runs over the edge


@pytest.mark.parametrize("n", [2 * COLUMNS * ROWS, 2 * COLUMNS * ROWS + 1, 90])
def test_class_sheet_of_many_boxes_shows_the_best_and_the_worst(tmp_path: Path, n: int) -> None:
    picture = class_sheet(data_of(tmp_path), found_of(n), np.ones(n, dtype=bool), 0, LABELS)
    assert picture.width >= COLUMNS * CELL
    assert 2 * ROWS * CELL < picture.height < 3 * ROWS * (CELL + FOOT)


def test_write_sheets_writes_a_file_per_class_for_any_name_and_image(tmp_path: Path) -> None:
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
def test_class_sheet_draws_any_box(tmp_path: Path, box: tuple[float, ...]) -> None:
    found = found_of(1)
    found.xywh[0] = box
    assert class_sheet(data_of(tmp_path), found, np.ones(1, dtype=bool), 0, LABELS).height > CELL
