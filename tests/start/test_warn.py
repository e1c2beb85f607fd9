from __future__ import annotations

from pathlib import Path

import pytest

from helpers.photos import Box, bolts, write_boxes, write_photos
from mini_fsod.config.load import resolve
from mini_fsod.runs.estimate import RunEstimate, StageEstimate
from mini_fsod.start.choose import choose
from mini_fsod.start.look import look
from mini_fsod.start.warn import cost_warnings, warnings
from mini_fsod.start.write import text_of


def lines_of(tmp_path: Path, *boxes: tuple[int, str, Box], photos: int = 80, novel=()) -> str:
    """What is said of so many photos with these boxes."""
    folder = write_photos(tmp_path / "photos", photos)
    found = look(folder, write_boxes(tmp_path / "b.json", *boxes), novel)
    (tmp_path / "x.yaml").write_text(text_of(choose(found, True), "mini init", "x.yaml"))
    return "\n".join(warnings(found, resolve(tmp_path / "x.yaml")))


@pytest.fixture
def usual(tmp_path: Path) -> str:
    return lines_of(tmp_path, *bolts())


def test_warnings_say_little_of_usual_photos(usual: str) -> None:
    assert usual.startswith("No test set, so no AP")


@pytest.mark.parametrize(
    ("boxes", "photos", "words"),
    [
        (bolts(range(3)), 3, "Nothing to mine"),
        (bolts(range(3)), 20, "Only 17 photos to mine in"),
        (bolts([0]), 80, 'Very few boxes: "bolt" has 1'),
        (bolts(box=(5, 5, 12, 12)), 80, "smaller than 64 pixels at the detector's scale"),
        ([*bolts(), (4, "nut", (1, 1, 90, 90))], 80, 'for each class: "bolt" 3, "nut" 1'),
        ([*bolts(), (4, "Bolts", (1, 1, 90, 90))], 80, '"bolt" and "Bolts" look like one class'),
    ],
)
def test_warnings_say_what_will_go_wrong(
    tmp_path: Path, boxes: list[tuple[int, str, Box]], photos: int, words: str
) -> None:
    assert words in lines_of(tmp_path, *boxes, photos=photos)


def test_cost_warnings_say_what_the_speed_means() -> None:
    config = resolve("photos", ["base.minutes=20", "online.minutes=5"])
    stages = (
        StageEstimate("base", 20, 0, 280, 3.0, 9 << 30),
        StageEstimate("transfer", 9, 0, 20, 3.0, 1 << 30),
        StageEstimate("scan", 5, 0, None, 3.0, 1 << 30),
        StageEstimate("online", 5, 0, 4_000, 3.0, 1 << 30),
    )
    lines = cost_warnings(RunEstimate(stages, 0), config, 8 << 30)
    assert len(lines) == 2
    assert "needs 9.0 GiB, this machine has 8.0 GiB" in lines[1]
    assert "280 iterations fit into 20 minutes" in lines[0]
    assert cost_warnings(RunEstimate(stages[1:], 0), config, 8 << 30) == []


def test_warnings_name_boxes_of_classes_that_are_not_new(tmp_path: Path) -> None:
    said = lines_of(tmp_path, *bolts(), (0, "washer", (150, 1, 90, 90)), novel=["bolt"])
    assert 'Not new classes, so their boxes are not used: "washer"' in said
