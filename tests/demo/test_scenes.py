"""The scenes of the embedded data set, and the files it is written to."""

from __future__ import annotations

import hashlib
import json
import os
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mini_fsod.demo import CLASSES, LABELS, NOVEL, digits, write_demo_data
from mini_fsod.demo.scenes import Scene, choose_digits, draw_scene
from mini_fsod.errors import UserError

pytest.importorskip("sklearn", reason="the demo extra is not installed")
pytest.importorskip("skimage", reason="the demo extra is not installed")

PARTS = ("train", "shots", "test")
TINY = 0.012  # 12 train scenes, 3 test scenes, and as many shots scenes as there are always


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "set"
    assert write_demo_data(out, TINY) is True
    return out


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[Scene]]:
    """Of each part as many scenes as the default shots part has."""
    return {
        part: [draw_scene(sources, part, number, seed=0) for number in range(150)]
        for part in PARTS
        for sources in [digits.material(part)]
    }


def read(out: Path, part: str) -> dict[str, Any]:
    coco: dict[str, Any] = json.loads((out / f"annotations/{part}.json").read_text())
    return coco


def test_write_demo_data_writes_consistent_files(tiny: Path) -> None:
    known: set[int] = set()
    for part, count in zip(PARTS, (12, 50, 3), strict=True):
        coco = read(tiny, part)
        assert [c["name"] for c in coco["categories"]] == list(CLASSES)
        assert [c["id"] for c in coco["categories"]] == list(range(1, 11))
        assert coco["info"]["label_map"] == LABELS.to_json()
        assert coco["info"]["counts"]["images"] == len(coco["images"]) == count
        assert coco["info"]["counts"]["boxes"] == len(coco["annotations"])
        assert sum(coco["info"]["counts"]["boxes_by_class"].values()) == len(coco["annotations"])
        sizes = {}
        for image in coco["images"]:
            with Image.open(tiny / image["file_name"]) as picture:
                assert picture.size == (image["width"], image["height"])
            sizes[image["id"]] = (image["width"], image["height"])
        for box in coco["annotations"]:
            x, y, w, h = box["bbox"]
            width, height = sizes[box["image_id"]]
            assert 0 <= x < x + w <= width
            assert 0 <= y < y + h <= height
            assert box["area"] == w * h
        ids = [record["id"] for record in coco["images"] + coco["annotations"]]
        assert len(set(sizes)) == count
        assert not known & set(sizes), "image ids are unique over the three files"
        known |= set(sizes)
        assert len({box["id"] for box in coco["annotations"]}) == len(ids) - count
    pictures = {path.relative_to(tiny).as_posix() for path in tiny.glob("*/*.jpg")}
    named = {image["file_name"] for part in PARTS for image in read(tiny, part)["images"]}
    assert pictures == named


@pytest.mark.slow
def test_draw_scene_draws_the_recorded_scenes(drawn: dict[str, list[Scene]]) -> None:
    """Recorded with Pillow 11.3 and 13.0. If this changes, increase RECIPE in scenes.py."""
    first = {part: list(zip(s[0].digits, s[0].boxes, strict=True)) for part, s in drawn.items()}
    assert first == {
        "train": [(6, (140, 82, 160, 108)), (0, (75, 105, 92, 130))],
        "shots": [(0, (104, 10, 147, 62))],
        "test": [
            (0, (140, 92, 156, 113)),
            (9, (72, 35, 111, 98)),
            (3, (91, 106, 128, 159)),
        ],
    }
    everything = [(s.picture.size, s.digits, s.boxes) for part in PARTS for s in drawn[part]]
    assert hashlib.sha256(json.dumps(everything).encode()).hexdigest()[:12] == "708e4b518782"


def test_write_demo_data_draws_the_same_scenes_at_any_scale(tiny: Path, tmp_path: Path) -> None:
    write_demo_data(tmp_path / "smaller", TINY / 2)
    few, many = read(tmp_path / "smaller", "train"), read(tiny, "train")
    assert len(few["images"]) == 6
    assert few["images"] == many["images"][:6]
    assert few["annotations"] == many["annotations"][: len(few["annotations"])]
    for image in few["images"]:
        name = image["file_name"]
        assert (tmp_path / "smaller" / name).read_bytes() == (tiny / name).read_bytes()


@pytest.mark.parametrize("seed", [0, 7])
def test_write_demo_data_has_five_shots_of_each_class_at_any_scale(
    tmp_path: Path, seed: int
) -> None:
    write_demo_data(tmp_path / "set", 0.001, seed)
    boxes = [box["category_id"] for box in read(tmp_path / "set", "shots")["annotations"]]
    assert np.bincount(boxes)[1:].min() >= 5


def test_write_demo_data_has_the_recorded_number_of_pictures_at_scale_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is drawn in them is recorded above."""
    counts: dict[str, int] = {}

    def none(folder: Path, part: str, count: int, seed: int) -> list[Any]:
        counts[part] = count
        return []

    monkeypatch.setattr("mini_fsod.demo.scenes._write_pictures", none)
    write_demo_data(tmp_path / "set")
    assert counts == {"train": 1000, "shots": 150, "test": 250}
    info = read(tmp_path / "set", "train")["info"]
    assert info["fingerprint"] == "f3a6f4310a154342"


@pytest.mark.slow
def test_draw_scene_depends_on_the_seed(drawn: dict[str, list[Scene]]) -> None:
    other = draw_scene(digits.material("shots"), "shots", 0, seed=1)
    assert other.boxes != drawn["shots"][0].boxes


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_draw_scene_has_tight_boxes_and_visible_digits(
    drawn: dict[str, list[Scene]], part: str
) -> None:
    for scene in drawn[part]:
        assert 1 <= len(scene.digits) <= 5
        assert all(144 <= side <= 176 for side in scene.picture.size)
        top = len(scene.digits) - 1  # nothing covers the last one
        rows, columns = np.nonzero(scene.owner == top)
        edges = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        assert scene.boxes[top] == edges
        grey = np.asarray(scene.picture.convert("L"), dtype=np.float64)
        for k, (left, upper, right, lower) in enumerate(scene.boxes):
            assert 20 <= lower - upper <= 70
            assert right - left >= 8
            ink = scene.owner == k
            assert ink.sum() >= 0.85 * scene.ink[k]
            region = np.zeros_like(ink)
            region[upper:lower, left:right] = True
            ground = grey[region & (scene.owner < 0)]
            step = abs(grey[ink].mean() - ground.mean())
            assert step > 12 or grey[ink].std() > 25, "it stands out, or its outline does"


@pytest.mark.slow
def test_draw_scene_overlaps_digits_a_little(drawn: dict[str, list[Scene]]) -> None:
    touching = 0
    for scene in (scene for part in PARTS for scene in drawn[part]):
        for a, b in combinations(np.array(scene.boxes), 2):
            sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
            shared = sides.clip(0).prod()
            areas = [(c[2:] - c[:2]).prod() for c in (a, b)]
            assert shared / (sum(areas) - shared) <= 0.2
            assert shared / min(areas) <= 0.4
            touching += bool(shared)
    assert touching > 50


def test_choose_digits_puts_novel_digits_beside_base_ones_in_train() -> None:
    novel = {CLASSES.index(name) for name in NOVEL}
    chosen = [set(choose_digits(random.Random(n), "train", n)) for n in range(1000)]
    holding = [digits for digits in chosen if digits & novel]
    assert 0.35 <= len(holding) / len(chosen) <= 0.5
    assert all(digits - novel for digits in holding)


@pytest.mark.slow
def test_choose_digits_gives_30_shots_of_each_class(drawn: dict[str, list[Scene]]) -> None:
    counts = np.bincount([digit for scene in drawn["shots"] for digit in scene.digits])
    assert len(counts) == 10
    assert counts.min() >= 30


def test_write_demo_data_keeps_an_existing_set(tiny: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tiny.rglob("*")}
    assert write_demo_data(tiny, TINY) is False
    assert {path: path.stat().st_mtime_ns for path in tiny.rglob("*")} == before


def test_write_demo_data_fills_an_empty_folder_and_reports_progress(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    assert write_demo_data(tmp_path, 0.001, progress=lambda *step: steps.append(step)) is True
    assert steps == [(n, 52) for n in range(1, 53)]
    assert len(list(tmp_path.glob("*/*.jpg"))) == 52


def a_file(out: Path) -> None:
    out.write_text("text")


def a_folder_of_other_things(out: Path) -> None:
    (out / "annotations").mkdir(parents=True)
    (out / "annotations/train.json").write_text('{"info": {}}')


def a_set_of_another_size(out: Path) -> None:
    write_demo_data(out, 0.002)


def a_set_with_a_picture_removed(out: Path) -> None:
    write_demo_data(out, 0.001)
    (out / "test/00001.jpg").unlink()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (a_file, "is a file"),
        (a_folder_of_other_things, "not empty"),
        (a_set_of_another_size, "another size"),
        (a_set_with_a_picture_removed, "without some of its test files"),
    ],
)
def test_write_demo_data_rejects_other_content(tmp_path: Path, what: Any, message: str) -> None:
    out = tmp_path / "out"
    what(out)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=message):
        write_demo_data(out, 0.001)
    assert sorted(tmp_path.rglob("*")) == before


def test_write_demo_data_removes_what_killed_processes_left(tmp_path: Path) -> None:
    (tmp_path / ".demo.4194305.partial").mkdir()  # no process has a number so high
    other = tmp_path / f".demo.{os.getppid()}.partial"
    other.mkdir()
    write_demo_data(tmp_path / "demo", TINY)
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.name, "demo"]


def test_write_demo_data_rejects_a_loop_of_links(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="cannot be written"):
        write_demo_data(tmp_path / "loop" / "out", TINY)


def test_write_demo_data_leaves_nothing_when_interrupted(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_demo_data(tmp_path / "out", 0.001, progress=stop)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scale", [0, -1, float("nan"), 51])
def test_write_demo_data_rejects_impossible_scales(tmp_path: Path, scale: float) -> None:
    with pytest.raises(UserError, match="times as many"):
        write_demo_data(tmp_path / "out", scale)
