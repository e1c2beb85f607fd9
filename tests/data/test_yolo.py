"""YOLO folders as tools write them, and as people break them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers import tiny
from mini_fsod.data.check import (
    picture_problems,
)
from mini_fsod.data.read import read, read_with_problems
from mini_fsod.limits import YAML_BYTES


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("0 0.5 0.5 0.1", "label-broken"),
        ("0 0.5 0.5 0.1 0.1 0.9", "label-broken"),  # a sixth number: a detection with its score
        ("x 0.5 0.5 0.1 0.1", "label-broken"),
        ("0 0.5 0.5 0_1 0.1", "label-broken"),
        ("1_0 0.5 0.5 0.1 0.1", "label-broken"),
        ("3 0.5 0.5 0.1 0.1", "id-unknown"),
        ("0.5 0.5 0.5 0.1 0.1", "id-unknown"),
    ],
)
def test_read_yolo_reports_wrong_lines(tmp_path: Path, line: str, kind: str) -> None:
    tiny.write_yolo(tmp_path)
    (tmp_path / "labels" / "train" / "b.txt").write_text(line)
    (problem,) = read_with_problems(tmp_path)[1]
    assert (problem.kind, problem.file, problem.record) == (kind, "labels/train/b.txt", "line 1")


def test_read_yolo_accepts_export_paths_and_polygons(tmp_path: Path) -> None:
    tiny.write_yolo(tmp_path)
    text = (tmp_path / "data.yaml").read_text()
    (tmp_path / "data.yaml").write_text(
        text.replace("images/train", "../images/train").replace(
            "val: images", "path: /elsewhere\nval: images"
        )
    )
    (tmp_path / "labels" / "val" / "c.txt").write_text("1 0.1 0.2 0.5 0.2 0.3 0.8\n")
    data = read(tmp_path)
    assert len(data) == 3
    last = data.boxes.xywh[-1]
    assert np.allclose(last, [9, 10, 36, 30])


def test_read_yolo_reports_a_broken_config_once(tmp_path: Path) -> None:
    tiny.write_yolo(tmp_path)
    for text in ("names: [a", "- a list"):
        (tmp_path / "data.yaml").write_text(text)
        assert len(read_with_problems(tmp_path)[1]) == 1


SETS = "train: images/train\nval: images/val\n"


def configured(folder: Path, text: str) -> Path:
    if not folder.exists():
        tiny.write_yolo(folder)
    (folder / "data.yaml").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("names", "classes", "numbers"),
    [
        ("[bird, bus, car]", ("bird", "bus", "car"), (0, 1, 2)),
        ("{'0': bird, '1': bus, '2': car}", ("bird", "bus", "car"), (0, 1, 2)),
        ("{2: car, 0: bird, 1: bus, 7: cow}", ("bird", "bus", "car", "cow"), (0, 1, 2, 7)),
        ("[no, 1.0, 08]", ("no", "1.0", "08"), (0, 1, 2)),  # words, whatever else YAML sees
    ],
)
def test_read_yolo_numbers_classes_by_names(
    tmp_path: Path, names: str, classes: tuple[str, ...], numbers: tuple[int, ...]
) -> None:
    data = read(configured(tmp_path / "y", f"{SETS}names: {names}\n"))
    assert (data.classes, data.category_ids) == (classes, numbers)
    assert data.boxes.label.tolist() == [0, 2, 0, 2, 1]


def test_read_yolo_allows_numbers_from_one(tmp_path: Path) -> None:
    tiny.write_yolo(tmp_path / "y")
    for file in (tmp_path / "y" / "labels").rglob("*.txt"):
        lines = [line.split(" ", 1) for line in file.read_text().splitlines()]
        file.write_text("".join(f"{int(n) + 1} {rest}\n" for n, rest in lines))
    data = read(configured(tmp_path / "y", f"{SETS}names: {{1: bird, 2: bus, 3: car}}\n"))
    assert tiny.boxes_of(data) == tiny.EXPECTED
    assert data.category_ids == (1, 2, 3)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (SETS + "names: &a [bird, *a]\n", "yaml-broken"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nnames: [*b]\n" + SETS, "yaml-broken"),
        (SETS + "names: [bird]\n#" + "x" * YAML_BYTES, "yaml-broken"),
        (SETS + "names: {0: bird, 0: bus}\n", "yaml-broken"),
        (SETS + "names: [bird, bird, car]\n", "class-duplicate"),
        (SETS + "names: [bird, [], car]\n", "name-wrong"),
        (SETS + "names: [bird, , car]\n", "yaml-broken"),
        (SETS + 'names: [bird, "b\\ud800s", car]\n', "name-wrong"),
        (SETS + "names: {a: bird}\n", "yaml-shape"),
        (SETS + "names: bird\n", "yaml-shape"),
        (SETS + "names: [bird, bus, car]\nnc: 4\n", "yaml-shape"),
        ("train: " + "x" * 400 + "\nnames: [bird]\n", "set-missing"),
        ('train: "im\\0ages"\nnames: [bird]\n', "set-missing"),
        ('train: "im\\ud800ages"\nnames: [bird]\n', "set-missing"),
        ("train: ..\nnames: [bird]\n", "set-missing"),
        ("train: {a: b}\nnames: [bird]\n", "yaml-shape"),
        ("train: images/train/a.png\nnames: [bird]\n", "yaml-shape"),
        ("train: binary.txt\nnames: [bird]\n", "yaml-shape"),
        ("train: data.yaml\nnames: [bird]\n", "list-broken"),
        ("train: pipe\nnames: [bird]\n", "set-missing"),
        ("train:\nnames: [bird]\n", "yaml-shape"),
    ],
)
def test_read_yolo_reports_wrong_configs(tmp_path: Path, text: str, kind: str) -> None:
    tiny.write_yolo(tmp_path / "y")
    (tmp_path / "y" / "binary.txt").write_bytes(b"\xff\xfe\0")
    os.mkfifo(tmp_path / "y" / "pipe")
    _, problems = read_with_problems(configured(tmp_path / "y", text))
    assert kind in [p.kind for p in problems]
    assert all(len(p.what) < 200 for p in problems)


def test_read_yolo_reads_lists_of_pictures(tmp_path: Path) -> None:
    home = tiny.write_yolo(tmp_path / "y")
    (home / "train.txt").write_text("\ufeffimages/train/a.png\n./images/train/b.png\n", "utf-8")
    (home / "data.yaml").write_text("train: train.txt\nval: images/val\nnames: [bird, bus, car]")
    label = home / "labels" / "train" / "a.txt"
    label.write_text("\ufeff" + label.read_text(), "utf-8")
    data = read(home)
    assert tiny.boxes_of(data) == tiny.EXPECTED
    (home / "train.txt").write_text("../a.png\nnotes.txt\n")
    assert [p.record for p in read_with_problems(home)[1]] == ["line 1", "line 2"]


def test_read_yolo_makes_ids_unique(tmp_path: Path) -> None:
    home = tiny.write_yolo(tmp_path / "y")
    for kind, suffix in (("images", "png"), ("labels", "txt")):
        (home / kind / "val" / f"c.{suffix}").rename(home / kind / "val" / f"a.{suffix}")
    data = read(home)
    assert data.ids == ("images/train/a", "images/train/b", "images/val/a")
    assert data.subset("val").ids == ("a",) == read(home, subset="val").ids
    assert read(home, subset="train").ids == ("a", "b")


def test_read_yolo_applies_exif_rotation(tmp_path: Path) -> None:
    """Stored 80 x 100, seen 100 x 80: the shares in the text are of the latter."""
    home = tiny.write_yolo(tmp_path / "y")
    picture = Image.new("RGB", (80, 100))
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(home / "images" / "train" / "a.png", exif=exif)
    data = read(home)
    assert data.sizes[0].tolist() == [100, 80]
    assert np.allclose(data.boxes.xywh[0], [10, 20, 30, 40])
    assert picture_problems(data, decode=True)[0] == []


def test_read_yolo_reads_polygons_as_boxes(tmp_path: Path) -> None:
    home = tiny.write_yolo(tmp_path / "y")
    assert read(home).unread == ()
    (home / "labels" / "val" / "c.txt").write_text("1 0.1 0.2 0.5 0.2 0.3 0.8\n")
    assert read(home).unread == ("polygons (their boxes are)",)


def test_read_yolo_notes_pictures_without_labels(tmp_path: Path, mini: Any) -> None:
    """YOLO's rule: they show nothing. It may also be a folder that got lost."""
    home = tiny.write_yolo(tmp_path / "y")
    (home / "labels" / "train" / "b.txt").write_text("")  # said: there is nothing
    assert read(home).notes == ()
    (home / "labels" / "train" / "b.txt").unlink()
    data, problems = read_with_problems(home)
    assert (len(data), len(data.boxes), problems) == (3, 4, [])
    assert data.notes == (
        "1 of 3 pictures have no label file, so no objects; "
        '"images/train/b.png" would have "labels/train/b.txt"',
    )
    code, _, err = mini("check", home, "--no-sheet")
    assert (code, "NOTE 1 of 3 pictures have no label file" in err) == (0, True)
    for file in (home / "labels").rglob("*.txt"):
        file.unlink()
    code, _, err = mini("check", home, "--no-sheet")
    assert (code, "3 of 3 pictures" in err, "no boxes" in err) == (2, True, True)


def test_read_yolo_suggests_a_folder_for_a_typo(tmp_path: Path, mini: Any) -> None:
    """It is not repaired away: a copy would have nothing to train on."""
    home = tmp_path / "y"
    tiny.write_yolo(home)
    text = (home / "data.yaml").read_text()
    (home / "data.yaml").write_text(text.replace("images/train", "images/trian"))
    code, _, err = mini("check", home, "--fix", tmp_path / "copy")
    assert code == 2
    assert 'Did you mean "images/train"?' in err
    assert "A copy would have no training images" in err
    assert not (tmp_path / "copy").exists()
