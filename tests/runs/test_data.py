from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import shapes, tiny
from helpers.run_data import run_data
from helpers.shapes import rewrite
from mini_fsod.data.dataset import NO_BOXES, Boxes, Dataset
from mini_fsod.data.subsets import testing_part as scored_part
from mini_fsod.errors import UserError
from mini_fsod.loader.schedule import Schedule
from mini_fsod.runs import data as room
from mini_fsod.runs.data import inputs_from
from mini_fsod.train.distributed import Team

CPU = torch.device("cpu")
NOVEL = shapes.NOVEL


def stems(data: Dataset) -> list[str]:
    return [Path(file).stem for file in data.files]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return shapes.write_data(tmp_path / "data")


# Classes


def test_a_name_with_a_comma_is_one_class(data: Path) -> None:
    labels = run_data(data).labels
    assert labels.base == ("red", "green")
    assert labels.novel == ("blue, light",)
    two = run_data(data, data__novel=["blue, light", "red"]).labels
    assert (two.base, two.novel) == (("green",), ("blue, light", "red"))


def test_a_class_that_is_not_there(data: Path) -> None:
    with pytest.raises(UserError, match='No such class in the data: "rde"\\. Did you mean "red"'):
        run_data(data, data__novel=["rde"]).check(["base"])


def test_a_split_of_other_data(data: Path) -> None:
    with pytest.raises(UserError, match='split "voc-split1" does not know: red'):
        run_data(data, data__novel=[], data__split="voc-split1").check(["base"])


def test_a_base_class_without_a_box_is_left_out(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labelling sites export the name of the project as a class."""
    for path in (data / "annotations").iterdir():
        rewrite(path, lambda c: c["categories"].insert(0, {"id": 99, "name": "project"}))
    own = run_data(data)
    assert own.labels.base == ("red", "green")
    assert "without a single box, left out: project" in capsys.readouterr().err
    assert own.shots.classes == shapes.CLASSES


# Image sets


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
def test_the_image_set_to_score_on(counts: dict[str, tuple[int, int]], part: str | None) -> None:
    assert scored_part(sets_of(**counts)) == part


def test_nothing_that_is_tested_is_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """VOC2012 alone: its test has no boxes, and trainval holds val."""
    root = tiny.write_voc(tmp_path / "voc", "VOC2012")
    lists = root / "VOC2012" / "ImageSets" / "Main"
    (lists / "test.txt").unlink()
    (lists / "trainval.txt").write_text("a\nb\nc\n")
    (lists / "train.txt").write_text("a\nb\n")
    (lists / "val.txt").write_text("c\n")
    own = run_data(root, data__novel=["bus"])
    assert own.test is not None
    assert stems(own.test) == ["c"]
    assert stems(own.train) == ["a", "b"]
    own = run_data(root, data__novel=["bus"], data__train="trainval")
    assert stems(own.train) == ["a", "b", "c"]
    assert "trainval shares 1 image with the test set" in capsys.readouterr().err


def test_image_sets_without_a_usual_name(tmp_path: Path) -> None:
    own = run_data(shapes.write_data(tmp_path / "data", ("monday", "tuesday", "val")))
    assert len(own.train) == 16
    assert own.test is not None
    assert len(own.test) == 4


def test_the_base_set(data: Path) -> None:
    own = run_data(data)
    base = own.base
    assert base.classes == ("red", "green")
    assert len(base.boxes) == sum(own.train.boxes.label < 2)
    assert len(base) == len(np.unique(own.train.boxes.image[own.train.boxes.label < 2]))


def test_no_base_class(data: Path) -> None:
    own = run_data(data, data__novel=shapes.CLASSES)
    with pytest.raises(UserError, match="not a single box of a base class"):
        own.check(["base"])


# Targets


def test_boxes_that_cannot_be_learnt_are_told(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(content: dict[str, Any]) -> None:
        content["annotations"][0]["bbox"] = [5, 5, 0, 0]
        content["annotations"][1]["bbox"] = [1e6, 5, 10, 10]

    rewrite(data / "annotations" / "train.json", spoil)
    _ = run_data(data).train
    assert "2 boxes without area or outside of the picture left out" in capsys.readouterr().err


def test_what_lies_outside_its_picture_is_no_target(data: Path) -> None:
    path = data / "annotations" / "train.json"
    boxes = [
        [-9, 5, 9, 9],
        [5, -9, 9, 9],
        [64, 5, 9, 9],
        [5, 64, 9, 9],
        [63, 63, 9, 9],
        [-8, -8, 9, 9],
    ]

    def move(content: Any) -> None:
        own = [a for a in content["annotations"] if a["category_id"] < 3]
        for annotation, box in zip(own, boxes, strict=False):
            annotation.update(bbox=box, image_id=1)
        content["annotations"] = own[: len(boxes)]

    rewrite(path, move)
    found = run_data(data).train
    assert found.sizes[0].tolist() == [64, 64]
    assert room.is_target(found).tolist() == [False] * 4 + [True] * 2


# Batches


def test_one_batch_is_cut_for_processes_and_parts(data: Path) -> None:
    own = run_data(data)
    batches, sizes = own.batches(own.base)
    schedule = Schedule(sizes, 4, (64,), 96, seed=0)
    inputs = inputs_from(batches, CPU)
    whole = own.feed(own.base, schedule, inputs, Team(), 1)
    halves = [own.feed(own.base, schedule, inputs, Team(rank, 2), 2) for rank in (0, 1)]
    for n, ((one,), *parts) in islice(
        enumerate(zip(whole.batches(0), *(half.batches(0) for half in halves), strict=True)), 3
    ):
        pieces = [piece for part in parts for piece in part]
        assert [len(piece[0]) for piece in pieces] == [1, 1, 1, 1]
        for place in range(len(one) - 1):
            assert torch.equal(torch.cat([piece[place] for piece in pieces]), one[place])
        assert [int(piece[-1]) for piece in pieces] == [n + (first << 32) for first in range(4)]
    again = next(whole.batches(2))[0]
    assert torch.equal(again[0], next(islice(whole.batches(0), 2, None))[0][0])
    assert len(whole.images(0)) == 4
    assert set(whole.images(0)) <= set(own.base.files)


def test_other_boxes_are_other_batches(data: Path) -> None:
    def identity() -> str:
        own = run_data(data)
        batches, sizes = own.batches(own.base)
        schedule = Schedule(sizes, 4, (64,), 96, seed=0)
        return own.feed(own.base, schedule, inputs_from(batches, CPU), Team(), 1).identity

    before = identity()
    assert identity() == before
    room._read.cache_clear()  # as a later process would read it
    path = data / "annotations" / "train.json"
    rewrite(path, lambda content: content["annotations"][0].update(bbox=[1, 1, 9, 9]))
    assert identity() != before


def test_no_image_set_for_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = run_data(shapes.write_data(tmp_path / "data", ("train",)))
    own.check(["base"])
    assert "no image set for tests (data.test): nothing will be scored" in capsys.readouterr().err
