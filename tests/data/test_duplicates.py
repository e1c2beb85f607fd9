"""Duplicate pictures, within an image set and across image sets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.duplicates import copy_notes, leak_problems, same_content
from mini_fsod.data.read import read


def leaks_and_notes(data: Dataset) -> tuple[list[tuple[str, str]], list[str]]:
    """(record, what) of each leak, and the notes."""
    groups = same_content([data.path(i) for i in range(len(data))])
    problems = leak_problems(data, groups)
    assert {p.kind for p in problems} <= {"set-leak"}
    return [(p.record, p.what) for p in problems], copy_notes(data, groups)


def test_same_content_groups_equal_files(tmp_path: Path) -> None:
    contents = {"a": b"xy", "b": b"xz", "c": b"xy", "d": b"xyz", "e": b"xz", "f": b"xy"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    paths = [tmp_path / name for name in (*contents, "missing", "a" * 300, "a\0b")]
    assert same_content(paths) == [[0, 2, 5], [1, 4]]
    assert same_content(paths[2:4]) == same_content([]) == []


def test_leak_problems_finds_training_pictures_in_val(tmp_path: Path) -> None:
    home = tiny.write_yolo(tmp_path)
    assert leaks_and_notes(read(home)) == ([], [])
    pictures = home / "images"
    shutil.copy(pictures / "train" / "a.png", pictures / "val" / "a.png")
    shutil.copy(pictures / "train" / "b.png", pictures / "val" / "other.png")
    assert leaks_and_notes(read(home)) == (
        [
            (
                "image images/val/a: images/val/a.png",
                "the picture is in val and in train, as images/train/a.png",
            ),
            (
                "image images/val/other: images/val/other.png",
                "the picture is in val and in train, as images/train/b.png",
            ),
        ],
        [],
    )


def test_leak_problems_finds_a_picture_in_two_image_sets(tmp_path: Path) -> None:
    """The same file, by data.yaml or by two COCO files."""
    home = tiny.write_yolo(tmp_path / "yolo")
    text = (home / "data.yaml").read_text()
    (home / "data.yaml").write_text(text.replace("val: images/val", "val: images"))
    what = "the picture is in val and in train"
    assert leaks_and_notes(read(home)) == (
        [(f"image {s}: images/train/{s}.png", what) for s in "ab"],
        [],
    )
    tiny.write_pictures(tmp_path / "coco")
    for part in ("train", "test"):
        content = tiny.coco()
        content["images"] = content["images"][: 2 if part == "train" else 1]
        content["annotations"] = content["annotations"][:2]
        (tmp_path / "coco" / f"{part}.json").write_text(json.dumps(content))
    leaks, notes = leaks_and_notes(read(tmp_path / "coco"))
    assert leaks == [("image test/10: a.png", "the picture is in test and in train")]
    assert notes == []


@pytest.mark.parametrize(
    ("lists", "leaks"),
    [
        ({"train": "a", "val": "b", "trainval": "ab", "test": "c"}, ""),  # VOC's sets
        ({"train": "ab", "val": "c", "trainval": "abc"}, ""),  # val is tested, not trained on
        ({"trainval": "abc", "test": "c"}, "c"),
        ({"train": "ab", "val": "bc"}, "b"),
        ({"trainval": "ab"}, ""),
        ({"test": "abc"}, ""),
        ({}, ""),
    ],
)
def test_leak_problems_allows_overlap_of_voc_lists(
    tmp_path: Path, lists: dict[str, str], leaks: str
) -> None:
    home = tiny.write_voc(tmp_path) / "VOC2007" / "ImageSets" / "Main"
    for old in home.iterdir():
        old.unlink()
    for name, stems in lists.items():
        (home / f"{name}.txt").write_text("\n".join(stems))
    found, notes = leaks_and_notes(read(tmp_path))
    assert [record.split(":")[0] for record, _ in found] == [f"image {stem}" for stem in leaks]
    assert notes == []


@pytest.mark.parametrize("parts", [("trainval", "val"), ("trainval", "val", "test")])
def test_leak_problems_allows_val_inside_trainval_of_coco(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    for part in parts:
        content = tiny.coco()
        place = {"trainval": slice(0, 2), "val": slice(1, 2), "test": slice(2, 3)}[part]
        content["images"] = content["images"][place]
        kept = {image["id"] for image in content["images"]}
        content["annotations"] = [a for a in content["annotations"] if a["image_id"] in kept]
        tiny.write_coco(tmp_path, content).rename(tmp_path / f"{part}.json")
    data = read(tmp_path)
    assert set(data.subsets) == {*parts}
    assert leaks_and_notes(data) == ([], [])


def test_leak_problems_finds_copies_in_a_scored_val(tmp_path: Path) -> None:
    home = tiny.write_voc(tmp_path) / "VOC2007"
    (home / "ImageSets" / "Main" / "test.txt").rename(home / "ImageSets" / "Main" / "val.txt")
    (home / "ImageSets" / "Main" / "trainval.txt").write_text("a\nb\nc\n")
    shutil.copy(home / "JPEGImages" / "a.png", home / "JPEGImages" / "c.png")
    (leak,), _ = leaks_and_notes(read(tmp_path))
    assert leak[1] == "the picture is in val and in trainval, as VOC2007/JPEGImages/a.png"


def test_copy_notes_counts_copies_within_a_set(tmp_path: Path) -> None:
    home = tiny.write_yolo(tmp_path / "yolo")
    train, val = (home / "images" / part for part in ("train", "val"))
    shutil.copy(train / "a.png", train / "d.png")
    assert leaks_and_notes(read(home)) == (
        [],
        ["1 picture is a copy of another: images/train/d.png of images/train/a.png"],
    )
    shutil.copy(train / "a.png", val / "e.png")  # which is a leak, and no copy once more
    leaks, notes = leaks_and_notes(read(home))
    assert len(leaks) == len(notes) == 1
    tiny.write_pictures(tmp_path / "plain")
    for n in range(5):
        shutil.copy(tmp_path / "plain" / "c.png", tmp_path / "plain" / f"d{n}.png")
    (note,) = leaks_and_notes(read(tmp_path / "plain"))[1]
    assert note.startswith("5 pictures are copies of another: d0.png of c.png, d1.png of c.png, d2")
    assert note.endswith("d2.png of c.png and 2 more")


def test_check_command_compares_pictures_when_it_decodes(tmp_path: Path, mini: Any) -> None:
    home = tiny.write_yolo(tmp_path / "photos")
    pictures = home / "images"
    shutil.copy(pictures / "train" / "b.png", pictures / "val" / "d.png")
    shutil.copy(pictures / "train" / "a.png", pictures / "train" / "e.png")
    (pictures / "val" / "f.png").write_bytes(b"no picture")
    (pictures / "train" / "f.png").write_bytes(b"no picture")  # reported as unreadable
    words = ["check", home, "--no-sheet"]
    text = (home / "data.yaml").read_text()
    for val in ("images", "images/val"):
        (home / "data.yaml").write_text(text.replace("val: images/val", f"val: {val}"))
        assert "set-leak" not in mini(*words)[2]
    _, out, err = mini(*words, "--images", "--json")
    result = json.loads(out)
    assert [p["kind"] for p in result["problems"]] == [*["picture-unreadable"] * 2, "set-leak"]
    copies = [note for note in result["notes"] if "copy of another" in note]
    assert copies == ["1 picture is a copy of another: images/train/e.png of images/train/a.png"]
    _, _, err = mini(*words, "--fix", tmp_path / "out")
    assert "1 x set-leak: not repaired: decide which image set the picture belongs to" in err
    assert "NOTE 1 picture is a copy" in err
    (pictures / "val" / "f.png").unlink()
    (pictures / "train" / "f.png").unlink()
    code, _, err = mini(*words, "--images")
    assert code == 2
    assert "1 problem in photos\n" in err  # --fix is not offered for it
