from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import shapes, tiny
from helpers.run_data import run_data
from helpers.shapes import rewrite
from mini_fsod.data.dataset import Dataset
from mini_fsod.errors import UserError
from mini_fsod.loader.schedule import Schedule
from mini_fsod.runs.run import inputs_from
from mini_fsod.train.distributed import Team

CPU = torch.device("cpu")


def stems(data: Dataset) -> list[str]:
    return [Path(file).stem for file in data.files]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return shapes.write_data(tmp_path / "data")


def test_labels_allows_commas_in_class_names(data: Path) -> None:
    labels = run_data(data).labels
    assert labels.base == ("red", "green")
    assert labels.novel == ("blue, light",)
    two = run_data(data, data__novel=["blue, light", "red"]).labels
    assert (two.base, two.novel) == (("green",), ("blue, light", "red"))


def test_check_refuses_unknown_classes(data: Path) -> None:
    with pytest.raises(UserError, match='No such class in the data: "rde"\\. Did you mean "red"'):
        run_data(data, data__novel=["rde"]).check(["base"])


def test_check_refuses_a_split_of_other_data(data: Path) -> None:
    with pytest.raises(UserError, match='not in split "voc-split1": "red"'):
        run_data(data, data__novel=[], data__split="voc-split1").check(["base"])


def test_labels_leaves_out_base_classes_without_boxes(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labelling sites export the name of the project as a class."""
    for path in (data / "annotations").iterdir():
        rewrite(path, lambda c: c["categories"].insert(0, {"id": 99, "name": "project"}))
    own = run_data(data)
    assert own.labels.base == ("red", "green")
    assert "classes without boxes left out: project" in capsys.readouterr().err
    assert own.shots.classes == shapes.CLASSES


def test_train_leaves_out_test_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_train_takes_image_sets_of_any_name(tmp_path: Path) -> None:
    own = run_data(shapes.write_data(tmp_path / "data", ("monday", "tuesday", "val")))
    assert len(own.train) == 16
    assert own.test is not None
    assert len(own.test) == 4


def test_base_has_base_boxes_only(data: Path) -> None:
    own = run_data(data)
    base = own.base
    assert base.classes == ("red", "green")
    assert len(base.boxes) == sum(own.train.boxes.label < 2)
    assert len(base) == len(np.unique(own.train.boxes.image[own.train.boxes.label < 2]))


def test_check_refuses_data_without_base_boxes(data: Path) -> None:
    own = run_data(data, data__novel=shapes.CLASSES)
    with pytest.raises(UserError, match="no boxes of base classes"):
        own.check(["base"])


def test_train_notes_unusable_boxes(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def spoil(content: dict[str, Any]) -> None:
        content["annotations"][0]["bbox"] = [5, 5, 0, 0]
        content["annotations"][1]["bbox"] = [1e6, 5, 10, 10]

    rewrite(data / "annotations" / "train.json", spoil)
    _ = run_data(data).train
    assert "2 boxes with no area or outside the picture left out" in capsys.readouterr().err


def test_feed_splits_a_batch_over_processes_and_parts(data: Path) -> None:
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
        assert [len(piece.images) for piece in pieces] == [1, 1, 1, 1]
        for name in ("images", "sizes"):
            joined = torch.cat([getattr(piece, name) for piece in pieces])
            assert torch.equal(joined, getattr(one, name))
        for name in ("boxes", "labels", "valid"):
            joined = torch.cat([getattr(piece.targets, name) for piece in pieces])
            assert torch.equal(joined, getattr(one.targets, name))
        assert [int(piece.draw) for piece in pieces] == [n + (first << 32) for first in range(4)]
    (resumed,), (third,) = next(whole.batches(2)), next(islice(whole.batches(0), 2, None))
    assert torch.equal(resumed.images, third.images)
    assert len(whole.images(0)) == 4
    assert set(whole.images(0)) <= set(own.base.files)


def move_a_box(root: Path) -> Path:
    path = root / "annotations" / "train.json"
    rewrite(path, lambda content: content["annotations"][0].update(bbox=[1, 1, 9, 9]))
    return root


def test_feed_identity_depends_on_boxes(tmp_path: Path) -> None:
    def identity(root: Path) -> str:
        run = run_data(root)
        batches, sizes = run.batches(run.base)
        schedule = Schedule(sizes, 4, (64,), 96, seed=0)
        return run.feed(run.base, schedule, inputs_from(batches, CPU), Team(), 1).identity

    first, copy, other = (shapes.write_data(tmp_path / name / "data") for name in "abc")
    assert identity(first) == identity(copy)
    assert identity(first) != identity(move_a_box(other))


@pytest.mark.parametrize("part", ["train", "base", "mined", "shots", "test"])
def test_digest_of_depends_on_content_alone(tmp_path: Path, part: str) -> None:
    first, copy, other = (shapes.write_data(tmp_path / name / "data") for name in "abc")
    (copy / "train" / "0.png").touch()
    digest = run_data(first).digest_of(part)
    assert digest == run_data(copy).digest_of(part)
    move_a_box(other)
    rewrite(
        other / "annotations" / "test.json",
        lambda content: content["annotations"][0].update(bbox=[1, 1, 9, 9]),
    )
    assert (digest == run_data(other, shots__seed=1).digest_of(part)) is False


def test_digest_of_shots_does_not_depend_on_their_folder(tmp_path: Path) -> None:
    digests = set()
    for name in "ab":
        root = shapes.write_data(tmp_path / name / "data")
        content = shapes.pictures(tmp_path / name / "mine", 3, seed=7)
        (tmp_path / name / "mine" / "shots.json").write_text(json.dumps(content))
        file = tmp_path / name / "mine" / "shots.json"
        digests.add(run_data(root, shots__file=file).digest_of("shots"))
    assert len(digests) == 1


def test_digest_of_a_missing_test_set_is_none(tmp_path: Path) -> None:
    data = run_data(shapes.write_data(tmp_path / "data", ("train",)))
    assert data.digest_of("test") is None


def test_check_notes_a_missing_test_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = run_data(shapes.write_data(tmp_path / "data", ("train",)))
    own.check(["base"])
    assert "no test set, so nothing will be scored" in capsys.readouterr().err


def test_leave_out_removes_images_of_a_novel_class_and_keeps_its_shots(data: Path) -> None:
    whole, without = run_data(data), run_data(data, data__leave_out=shapes.NOVEL)
    shown = whole.train.classes.index(shapes.NOVEL)
    images = {*whole.train.boxes.image[whole.train.boxes.label == shown].tolist()}
    left = [file for i, file in enumerate(whole.train.files) if i not in images]
    assert 0 < len(left) < len(whole.train)
    assert [*without.train.files] == [*without.mined.files] == left
    assert without.shots.digest == whole.shots.digest
    assert without.digest_of("base") != whole.digest_of("base")


def test_leave_out_refuses_a_class_that_is_not_novel(data: Path) -> None:
    with pytest.raises(UserError, match='"red" is not a novel class of this run'):
        run_data(data, data__leave_out="red").check(["base"])


# The test set


def test_test_most_scores_a_sample_that_is_not_trained_on(tmp_path: Path) -> None:
    """Test images outside of the sample are not trained on either."""
    root = shapes.write_data(tmp_path / "data")
    whole, some = run_data(root), run_data(root, data__test_most=2)
    assert whole.test is not None
    assert some.test is not None
    assert len(some.test) == 2 < len(whole.test)
    assert {*some.test.files} < {*whole.test.files}
    assert some.digest_of("test") != whole.digest_of("test")
    for part in ("train", "base", "mined"):
        assert some.digest_of(part) == whole.digest_of(part)
