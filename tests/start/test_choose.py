from __future__ import annotations

from pathlib import Path

import pytest

from helpers.photos import bolts, write_boxes, write_photos
from mini_fsod.config.load import resolve
from mini_fsod.start.choose import PRETRAINED, Choice, choose, preset_name
from mini_fsod.start.look import look
from mini_fsod.start.write import text_of


def keys_of(tmp_path: Path, photos: Path, *boxes, novel=(), gpu: bool = True) -> dict:
    found = look(photos, write_boxes(tmp_path / "b.json", *boxes), novel)
    return {choice.key: choice.value for choice in choose(found, gpu)}


def test_choose_takes_k_from_the_class_with_the_fewest_boxes(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    keys = keys_of(tmp_path, photos, *bolts(range(5)), (0, "nut", (1, 1, 60, 60)))
    assert keys["shots.k"] == 1
    assert keys["shots.root"] == str(photos)
    assert keys_of(tmp_path, photos, *bolts(range(5)))["shots.k"] == 5


def test_choose_takes_a_published_detector_where_there_are_no_labels(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    assert keys_of(tmp_path, photos, *bolts())["base.checkpoint"] == PRETRAINED
    write_boxes(photos / "annotations.json", (0, "car", (1, 1, 9, 9)))
    assert "base.checkpoint" not in keys_of(tmp_path, photos, *bolts())


def test_choose_lets_the_detector_forget_a_class_that_is_new(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    keys = keys_of(tmp_path, photos, (0, "Bird", (1, 1, 60, 60)), *bolts())
    assert keys["base.drop"] == ["bird"]


@pytest.mark.parametrize(
    ("size", "test", "short"),
    [((2000, 1500), None, None), ((427, 320), 416, [320, 352, 416]), ((64, 48), 32, [32])],
)
def test_choose_does_not_enlarge_small_photos(
    tmp_path: Path, size: tuple[int, int], test: int | None, short: list[int] | None
) -> None:
    photos = write_photos(tmp_path / "photos", size=size)
    boxes = write_boxes(tmp_path / "b.json", *bolts(box=(1, 1, 20, 20)), size=size)
    keys = {c.key: c.value for c in choose(look(photos, boxes, ()), gpu=True)}
    assert (keys.get("views.test"), keys.get("views.short")) == (test, short)


def test_preset_name_is_that_for_the_machine() -> None:
    assert preset_name(gpu=True) == "photos"
    assert preset_name(gpu=False) == "photos-cpu"


def test_text_of_is_read_back_as_it_is(tmp_path: Path) -> None:
    """Whatever the names: values are quoted where YAML needs it, comments stay comments."""
    names = ["no", "1.0", "hex, nut", "a: b # c", "Schraube ü", "it's", "- x"]
    choices = [
        Choice("preset", "photos", "there is a GPU"),
        Choice("data.root", "my photos: 2026 # new", "300 photos"),
        Choice("data.novel", names, "a reason " * 20),
        Choice("shots.k", 3, ""),
        Choice("shots.file", "b.json", "the boxes"),
        Choice("base.checkpoint", PRETRAINED, "no labels"),
        Choice("views.short", [320, 384], ""),
        Choice("seed", 7, "as in the former run"),
        Choice("online.mingle.rpn", False, "as in the former run"),
    ]
    path = tmp_path / "x.yaml"
    path.write_text(text_of(choices, "mini init 'a\nseed: 9'", "x.yaml"))
    config = resolve(path)
    assert config.data.novel == tuple(names)
    assert config.data.root == tmp_path / "my photos: 2026 # new"
    assert config.shots.k == 3
    assert config.views.short == (320, 384)
    assert config.seed == 7
    assert config.online.mingle.rpn is False
    assert max(map(len, path.read_text().splitlines())) <= 100
