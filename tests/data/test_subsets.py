"""Image sets, and the parts of the data that the paper names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import shapes, tiny
from helpers.run_data import run_data
from helpers.shapes import rewrite
from mini_fsod.data.dataset import NO_BOXES, Boxes, Dataset
from mini_fsod.data.read import read
from mini_fsod.data.subsets import (
    arranged,
    base_set,
    boxes_by_class,
    default_training_set,
    hidden_boxes,
    is_of,
    is_target,
    spread,
    training_part,
)
from mini_fsod.data.subsets import test_sample as sample_of  # not a test
from mini_fsod.data.subsets import testing_part as part_to_score
from mini_fsod.labels import LabelMap, split_by_novel


def sets_of(**counts: tuple[int, int]) -> Dataset:
    """Image sets with so many images, one after another, and boxes."""
    start, subsets, boxes = 0, {}, []
    for name, (images, with_boxes) in counts.items():
        subsets[name] = np.arange(start, start + images)
        boxes += list(range(start, start + with_boxes))
        start += images
    return Dataset(
        kind="coco",
        root=Path(),
        classes=("a",),
        category_ids=(1,),
        ids=tuple(range(start)),
        files=tuple(f"{n}.png" for n in range(start)),
        sizes=np.full((start, 2), 50),
        boxes=Boxes.of(boxes, [[1, 1, 5, 5]] * len(boxes), [0] * len(boxes)) if boxes else NO_BOXES,
        sources=("",) * start,
        subsets=subsets,
    )


@pytest.mark.parametrize(
    ("sets", "part"),
    [
        (["train", "val", "trainval", "test"], "trainval"),
        (["train", "val"], "train"),
        (["train2017", "val2017"], "train2017"),
        (["train2014", "train2017"], None),
        ([], None),
    ],
)
def test_training_part_prefers_trainval(sets: list[str], part: str | None) -> None:
    assert training_part(sets_of(**dict.fromkeys(sets, (1, 1)))) == part


def test_base_set_drops_novel_boxes_and_images_without_base_boxes(tmp_path: Path) -> None:
    data = read(tiny.write_coco(tmp_path))
    labels = split_by_novel(["bird"], data.classes)
    base = base_set(data, labels)
    assert tiny.boxes_of(base) == {box for box in tiny.EXPECTED if box[1] != "bird"}
    assert base.ids == (10, 12)
    assert hidden_boxes(data, labels) == {"bird": (2, 1)}


def test_boxes_by_class_has_each_class_and_its_boxes_in_order() -> None:
    data = replace(
        sets_of(train=(5, 5)),
        classes=("b", "none", "a", "b"),
        category_ids=(1, 2, 3, 4),
        boxes=Boxes.of(range(5), [[1, 1, 5, 5]] * 5, [3, 2, 0, 2, 0]),
    )
    found = boxes_by_class(data)
    assert {name: rows.tolist() for name, rows in found.items()} == {
        "b": [0, 2, 4], "none": [], "a": [1, 3],
    }  # fmt: skip
    for name, rows in found.items():
        assert rows.tolist() == np.flatnonzero(is_of(data, (name,))).tolist()
    nothing = replace(data, classes=(), category_ids=(), boxes=NO_BOXES)
    assert boxes_by_class(nothing) == {}


def test_arranged_orders_classes_by_the_label_map(tmp_path: Path) -> None:
    data = read(tiny.write_coco(tmp_path))
    wanted = LabelMap(("car", "boat"), ("bird",))
    part = arranged(data, wanted)
    assert part.classes == ("car", "boat", "bird")
    assert part.category_ids[0] == 7
    assert len(set(part.category_ids)) == 3
    assert tiny.boxes_of(part) == {box for box in tiny.EXPECTED if box[1] != "bus"}


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
def test_default_training_set_leaves_out_test_images(
    tmp_path: Path, lists: dict[str, str], name: str, stems: str
) -> None:
    found, data = default_training_set(read(voc_lists(tmp_path / "voc", **lists)))
    assert (found, [Path(file).stem for file in data.files]) == (name, list(stems))
    alone = run_data(tmp_path / "voc", data__novel=["bus"]).train
    assert alone.files == data.files


def test_default_training_set_takes_sets_of_any_name(tmp_path: Path) -> None:
    for parts, name, images in (
        (("monday", "tuesday", "val"), "all but val", 16),
        (("monday", "tuesday"), "all image sets", 16),
    ):
        found, data = default_training_set(read(shapes.write_data(tmp_path / name, parts)))
        assert (found, len(data)) == (name, images)


@pytest.mark.parametrize(
    ("counts", "part"),
    [
        ({}, None),
        ({"train": (3, 3)}, None),
        ({"train": (3, 3), "test": (2, 2)}, "test"),
        ({"train": (3, 3), "test": (2, 0), "val": (2, 2)}, "val"),  # a test without boxes
        ({"train": (3, 3), "test": (2, 2), "val": (2, 2)}, "test"),
        ({"train": (3, 3), "valid": (2, 1)}, "valid"),
        ({"train2017": (3, 3), "val2017": (2, 1)}, "val2017"),
        ({"train": (3, 3), "val2014": (2, 1), "val2017": (2, 1)}, None),  # who knows
    ],
)
def test_testing_part_needs_boxes(counts: dict[str, tuple[int, int]], part: str | None) -> None:
    assert part_to_score(sets_of(**counts)) == part


def test_is_target_excludes_boxes_outside_the_picture(tmp_path: Path) -> None:
    path = shapes.write_data(tmp_path / "data") / "annotations" / "train.json"
    boxes = [
        [-9, 5, 9, 9],
        [5, -9, 9, 9],
        [64, 5, 9, 9],
        [5, 64, 9, 9],
        [63, 63, 9, 9],
        [-8, -8, 9, 9],
    ]

    def move(content: Any) -> None:
        first = [a for a in content["annotations"] if a["category_id"] < 3]
        for annotation, box in zip(first, boxes, strict=False):
            annotation.update(bbox=box, image_id=1)
        content["annotations"] = first[: len(boxes)]

    rewrite(path, move)
    found = read(path)
    assert found.sizes[0].tolist() == [64, 64]
    assert is_target(found).tolist() == [False] * 4 + [True] * 2


# Samples


def many(images: int, rare: list[int]) -> Dataset:
    """Images with a box of class a each; those of `rare` also have one of class b."""
    boxes = Boxes.of(
        [*range(images), *rare],
        [[1, 1, 5, 5]] * (images + len(rare)),
        [0] * images + [1] * len(rare),
    )
    data = sets_of(test=(images, 0))
    return replace(data, classes=("a", "b", "c"), category_ids=(1, 2, 3), boxes=boxes)


def test_test_sample_is_fixed_and_has_rare_classes() -> None:
    data = many(200, rare=[7, 90])
    chosen = sample_of(data, 20)
    assert len(chosen) == 20
    assert {7, 90} <= {*chosen.tolist()}
    assert np.array_equal(chosen, np.unique(chosen))
    assert np.array_equal(chosen, sample_of(data, 20))
    spread_out = np.histogram(chosen, bins=4, range=(0, 200))[0]
    assert (spread_out > 0).all()  # not the first ones
    assert {*sample_of(data, 10).tolist()} & {7, 90}


def test_test_sample_knows_an_image_by_its_name() -> None:
    data = many(50, rare=[7])
    order = np.random.default_rng(0).permutation(50)
    names = {data.files[i] for i in sample_of(data, 9)}
    shuffled = data.select(order)
    assert {shuffled.files[i] for i in sample_of(shuffled, 9)} == names


@pytest.mark.parametrize(("most", "images"), [(None, 30), (30, 30), (99, 30), (1, 1), (2, 2)])
def test_test_sample_has_at_most_so_many(most: int | None, images: int) -> None:
    assert len(sample_of(many(30, rare=[3]), most)) == images


def test_test_sample_without_boxes_is_drawn_from_all() -> None:
    assert len(sample_of(sets_of(test=(30, 0)), 4)) == 4


def test_spread_prefers_images_with_boxes() -> None:
    data = sets_of(train=(40, 0), val=(10, 10))
    assert spread(data, 3).files == ("40.png", "44.png", "49.png")
    assert spread(sets_of(train=(40, 0)), 2).files == ("0.png", "39.png")
    assert len(spread(data, 100)) == 10
