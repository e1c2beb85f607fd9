"""Which images a run trains on by itself, in data sets with several image sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import shapes, tiny
from helpers.run_data import run_data
from mini_fsod.data.read import read
from mini_fsod.data.subsets import default_training_set


def voc_lists(root: Path, **lists: str) -> Path:
    home = tiny.write_voc(root) / "VOC2007" / "ImageSets" / "Main"
    for old in home.iterdir():
        old.unlink()
    for name, stems in lists.items():
        (home / f"{name}.txt").write_text("\n".join(stems))
    return root


@pytest.mark.parametrize(
    ("lists", "name", "stems"),
    [
        ({"trainval": "ab", "test": "c"}, "trainval", "ab"),
        ({"train": "a", "val": "b", "trainval": "ab", "test": "c"}, "trainval", "ab"),
        ({"train": "ab", "val": "c", "trainval": "abc"}, "trainval without val", "ab"),
        ({"train": "ab", "test": "bc"}, "train without test", "a"),
        ({"train": "abc"}, "train", "abc"),
        ({"test": "abc"}, "all but test", ""),
        ({}, "", "abc"),
    ],
)
def test_the_images_that_are_trained_on(
    tmp_path: Path, lists: dict[str, str], name: str, stems: str
) -> None:
    found, data = default_training_set(read(voc_lists(tmp_path / "voc", **lists)))
    assert (found, [Path(file).stem for file in data.files]) == (name, list(stems))
    own = run_data(tmp_path / "voc", data__novel=["bus"]).train
    assert own.files == data.files


def test_sets_without_a_usual_name(tmp_path: Path) -> None:
    for parts, name, images in (
        (("monday", "tuesday", "val"), "all but val", 16),
        (("monday", "tuesday"), "all image sets", 16),
    ):
        found, data = default_training_set(read(shapes.write_data(tmp_path / name, parts)))
        assert (found, len(data)) == (name, images)
