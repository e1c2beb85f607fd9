"""What the re-trained detector learns from, computed by hand on the tiny data set.

Pictures a, b, c; "car" is base, "bird" and "bus" are novel.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import tiny
from helpers.mined_boxes import candidates_with, pool_with
from mini_fsod.config.schema import Online
from mini_fsod.data.dataset import NO_BOXES, Boxes, Dataset
from mini_fsod.data.read import read
from mini_fsod.data.subsets import arranged
from mini_fsod.labels import LabelMap
from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.mined_images import MinedImages
from mini_fsod.mining.pool_io import Pool
from mini_fsod.online.mingling import ACCEPTED
from mini_fsod.online.targets import (
    TrainingSet,
    boxes_in,
    epoch_images,
    oracle,
    training_images,
    with_extra,
    with_shots,
)

LABELS = LabelMap(("car",), ("bird", "bus"))
A_BIRD, A_CAR, B_BIRD, C_CAR, C_BUS = range(5)
BIRD, BUS = 0, 1  # indices among the novel classes


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    return arranged(read(tiny.write_voc(tmp_path / "data")), LABELS)


def base_and_pool(data: Dataset, labels: LabelMap, pool: Pool, found: Any) -> TrainingSet:
    """A training set of images whose base labels are complete; no candidate is background."""
    missing = np.zeros((len(data), len(labels.base)), dtype=np.bool_)
    return training_images(MinedImages(data, pool, missing, found), labels, 0.7, True)


def unlabelled(
    data: Dataset, pool: Pool, candidates: Candidates, base: Candidates, sure: float | None = 0.7
) -> TrainingSet:
    """The same where nobody has labelled base objects."""
    missing = np.ones((len(data), 1), dtype=np.bool_)
    return training_images(MinedImages(data, pool, missing, candidates, base), LABELS, sure, False)


def rows_of(boxes: Boxes, data: Dataset) -> list[tuple[str, str, list[float]]]:
    return [
        (Path(data.files[i]).stem, LABELS.classes[k], box)
        for i, k, box in zip(
            boxes.image.tolist(), boxes.label.tolist(), boxes.xywh.tolist(), strict=True
        )
    ]


POOL = pool_with(
    (0, BUS, (10, 20, 30, 36), 0.8),  # almost the bird of a
    (0, BIRD, (70, 50, 20, 20), 0.3),
    (2, BUS, (40, 20, 50, 30), 0.9),
)


def test_training_images_drop_hidden_boxes(data: Dataset) -> None:
    training = base_and_pool(data, LABELS, POOL, None)
    assert rows_of(training.data.boxes, data) == [
        ("a", "car", [50, 10, 20, 20]),
        ("c", "car", [5, 5, 10, 10]),
    ]
    assert training.data.files == data.files  # b has no base box and stays
    assert rows_of(training.mined, data) == [
        ("a", "bus", [10, 20, 30, 36]),
        ("a", "bird", [70, 50, 20, 20]),
        ("c", "bus", [40, 20, 50, 30]),
    ]
    assert training.scores.tolist() == [0.8, 0.3, 0.9]
    assert len(training.ignored) == 0
    assert len(data.boxes) == 5  # the argument is unchanged


def test_training_images_ignore_candidates(data: Dataset) -> None:
    candidates = candidates_with((2, BUS, (40, 20, 50, 30), 0.9), (1, BIRD, (0, 0, 9, 9), 0.1))
    training = base_and_pool(data, LABELS, pool_with(), candidates)
    assert len(training.mined) == len(training.scores) == 0
    assert rows_of(training.ignored, data) == [
        ("b", "bird", [0, 0, 9, 9]),
        ("c", "bus", [40, 20, 50, 30]),
    ]


def test_training_images_know_what_a_person_has_decided(data: Dataset) -> None:
    """Accepted boxes rank above all others; rejected candidates are background."""
    rejected = Boxes.of([2], [[41, 20, 50, 30]], [BUS])
    pool = replace(pool_with((0, BUS, (10, 20, 30, 36), 1.0), (0, BIRD, (70, 50, 20, 20), 0.9)),
                   rejected=rejected)  # fmt: skip
    candidates = candidates_with((2, BUS, (40, 20, 50, 30), 0.9), (2, BIRD, (40, 20, 50, 30), 0.1))
    training = base_and_pool(data, LABELS, pool, candidates)
    assert training.scores.tolist() == [ACCEPTED, 0.9]
    assert rows_of(training.ignored, data) == [("c", "bird", [40, 20, 50, 30])]
    assert rows_of(training.rejected, data) == [("c", "bus", [41, 20, 50, 30])]


def test_with_shots_keeps_accepted_boxes_but_on_shots_of_their_class(data: Dataset) -> None:
    accepted = pool_with((0, BUS, (10, 20, 30, 36), 1.0), (2, BUS, (40, 20, 50, 30), 1.0))
    shots = shots_of(data, A_BIRD, C_BUS)
    training = with_shots(base_and_pool(data, LABELS, accepted, None), shots, LABELS)
    # the bus of c is taught by its shot; of the bird of a, a person has said that it is a bus
    assert rows_of(training.mined, data) == [("a", "bus", [10, 20, 30, 36])]
    assert training.scores.tolist() == [ACCEPTED]


def test_oracle_has_all_hidden_boxes_but_crowds(data: Dataset) -> None:
    flags = np.zeros(5, dtype=np.bool_)
    flags[B_BIRD] = True
    hidden = [("a", "bird", [10, 20, 30, 40]), ("b", "bird", [0, 0, 60, 60])]
    hidden += [("c", "bus", [40, 20, 50, 30])]
    training = oracle(data, LABELS)
    assert rows_of(training.mined, data) == hidden
    assert training.scores.tolist() == [1, 1, 1]
    assert [row[1] for row in rows_of(training.data.boxes, data)] == ["car", "car"]
    for flag, there in (("difficult", 3), ("crowd", 2), ("ignore", 2)):
        flagged = data.with_boxes(replace(data.boxes, **{flag: flags}))
        assert len(oracle(flagged, LABELS).mined) == there


def shots_of(data: Dataset, *boxes: int) -> Dataset:
    """A balanced set of these boxes; the others are not annotated."""
    kept = data.with_boxes(data.boxes.take(np.array(boxes)))
    return arranged(kept.select(np.unique(kept.boxes.image)), LABELS)


def test_with_shots_replaces_mined_boxes_on_shots(data: Dataset) -> None:
    shots = shots_of(data, A_BIRD, C_CAR, C_BUS)
    training = with_shots(base_and_pool(data, LABELS, POOL, None), shots, LABELS)
    assert training.data.files == data.files
    assert rows_of(training.data.boxes, data) == [  # base boxes once
        ("a", "car", [50, 10, 20, 20]),
        ("a", "bird", [10, 20, 30, 40]),
        ("c", "car", [5, 5, 10, 10]),
        ("c", "bus", [40, 20, 50, 30]),
    ]
    # two of the pool repeat a shot, one of them as another class
    assert rows_of(training.mined, data) == [("a", "bird", [70, 50, 20, 20])]
    assert training.scores.tolist() == [0.3]


def test_with_shots_adds_missing_images(data: Dataset) -> None:
    """As with mine.images: base, where b is not mined."""
    mined = data.select([2, 0])
    pool = pool_with((0, BUS, (0, 0, 20, 20), 0.5), (1, BIRD, (70, 50, 20, 20), 0.3))
    training = with_shots(
        base_and_pool(mined, LABELS, pool, None), shots_of(data, A_BIRD, B_BIRD), LABELS
    )
    whole = training.data
    assert [Path(file).stem for file in whole.files] == ["c", "a", "b"]
    assert len(set(whole.ids)) == len(whole.ids) == len(whole.sources) == 3
    assert whole.sizes.tolist() == [[90, 50], [100, 80], [60, 60]]
    assert rows_of(whole.boxes, whole) == [
        ("c", "car", [5, 5, 10, 10]),
        ("a", "car", [50, 10, 20, 20]),
        ("a", "bird", [10, 20, 30, 40]),
        ("b", "bird", [0, 0, 60, 60]),
    ]
    assert rows_of(training.mined, whole) == [
        ("c", "bus", [0, 0, 20, 20]),
        ("a", "bird", [70, 50, 20, 20]),
    ]
    assert training.scores.tolist() == [0.5, 0.3]


def test_with_shots_keeps_base_shots_of_added_images(data: Dataset) -> None:
    mined = data.select([1])
    training = with_shots(
        base_and_pool(mined, LABELS, pool_with(), None), shots_of(data, C_CAR), LABELS
    )
    assert rows_of(training.data.boxes, training.data) == [("c", "car", [5, 5, 10, 10])]
    assert training.data.boxes.image.tolist() == [1]


def test_with_shots_adds_several_images(data: Dataset) -> None:
    mined = data.select([1])
    shots = shots_of(data, A_CAR, C_BUS)
    training = with_shots(base_and_pool(mined, LABELS, pool_with(), None), shots, LABELS)
    assert rows_of(training.data.boxes, training.data) == [
        ("a", "car", [50, 10, 20, 20]),
        ("c", "bus", [40, 20, 50, 30]),
    ]


def test_with_shots_takes_regions_to_ignore_of_added_images(data: Dataset) -> None:
    """c is added; that it has a car is not sure. In a, which is there, it does not matter."""
    boxes = data.boxes
    flagged = replace(boxes, ignore=np.isin(np.arange(5), [A_CAR, C_CAR]))
    shots = shots_of(data.with_boxes(flagged), A_BIRD, A_CAR, C_CAR, C_BUS)
    mined = data.select([0])
    known = base_and_pool(mined, LABELS, pool_with(), None)
    training = with_shots(known, shots, LABELS)
    assert rows_of(training.ignored, training.data) == [("c", "car", [5, 5, 10, 10])]
    assert ("c", "car", [5, 5, 10, 10]) not in rows_of(training.data.boxes, training.data)
    assert training.missing.tolist() == [[False], [False]]
    none = candidates_with((0, BIRD, (0, 0, 9, 9), 0.1))
    training = with_shots(unlabelled(mined, pool_with(), none, none), shots, LABELS)
    assert training.missing.tolist() == [[True], [True]]


def test_boxes_in_finds_the_images_of_shots(data: Dataset) -> None:
    shots = shots_of(data, A_BIRD, B_BIRD, C_BUS)
    mined = data.select([2, 0])
    assert rows_of(boxes_in(shots, mined), mined) == [
        ("c", "bus", [40, 20, 50, 30]),
        ("a", "bird", [10, 20, 30, 40]),
    ]


# Images without base labels


FOUND = (
    (0, 0, (50, 10, 20, 20), 0.9),  # the car of a
    (0, 0, (10, 20, 30, 40), 0.8),  # a bird, which looks like a car
    (1, 0, (0, 0, 30, 30), 0.3),
    (2, 0, (5, 5, 10, 10), 0.7),  # just sure
)


def test_training_images_take_sure_detections_for_base_labels(data: Dataset) -> None:
    bare = data.with_boxes(NO_BOXES)
    candidates = candidates_with((0, BIRD, (10, 20, 30, 40), 0.9), (1, BUS, (9, 9, 9, 9), 0.1))
    pool = pool_with((0, BIRD, (10, 20, 30, 38), 0.9))
    training = unlabelled(bare, pool, candidates, candidates_with(*FOUND))
    assert rows_of(training.data.boxes, data) == [
        ("a", "car", [50, 10, 20, 20]),  # not the bird, which was mined
        ("c", "car", [5, 5, 10, 10]),
    ]
    assert rows_of(training.ignored, data) == [
        ("a", "bird", [10, 20, 30, 40]),
        ("b", "bus", [9, 9, 9, 9]),
        ("b", "car", [0, 0, 30, 30]),
    ]
    assert training.missing.all()
    nothing_sure = unlabelled(bare, pool, candidates, candidates_with(*FOUND), sure=None)
    assert len(nothing_sure.data.boxes) == 0
    assert len(nothing_sure.ignored) == 5


def test_training_images_do_not_take_a_shot_for_a_base_object(data: Dataset) -> None:
    bare, found = data.with_boxes(NO_BOXES), candidates_with(*FOUND)
    images = MinedImages(bare, pool_with(), np.ones((3, 1), dtype=np.bool_), None, found)
    shots = boxes_in(shots_of(data, A_BIRD), data)
    training = training_images(images, LABELS, 0.7, False, shots)
    assert rows_of(training.data.boxes, data) == [
        ("a", "car", [50, 10, 20, 20]),
        ("c", "car", [5, 5, 10, 10]),
    ]


def test_training_images_keep_to_labels_where_there_are_some(data: Dataset) -> None:
    """a and c are labelled, b is not."""
    missing = np.array([[False], [True], [False]])
    candidates = candidates_with((0, BUS, (9, 9, 9, 9), 0.1), (1, BUS, (9, 9, 9, 9), 0.1))
    base = candidates_with(*FOUND, (1, 0, (40, 40, 20, 20), 0.95))
    images = MinedImages(data, pool_with(), missing, candidates, base)
    training = training_images(images, LABELS, 0.7, ignore_candidates=False)
    assert rows_of(training.data.boxes, data) == [
        ("a", "car", [50, 10, 20, 20]),
        ("b", "car", [40, 40, 20, 20]),
        ("c", "car", [5, 5, 10, 10]),
    ]
    assert rows_of(training.ignored, data) == [
        ("b", "bus", [9, 9, 9, 9]),
        ("b", "car", [0, 0, 30, 30]),
    ]


# Extra images


def extra_set(data: Dataset, pool: Pool, *found: tuple[int, int, tuple[float, ...], float]) -> Any:
    base = candidates_with(*found)
    return unlabelled(data.with_boxes(NO_BOXES), pool, base.take(np.zeros(0, np.int64)), base)


def test_with_extra_adds_images_with_full_paths(data: Dataset, tmp_path: Path) -> None:
    """b is a training image; a and c are extra images, of which nobody has labelled anything."""
    own, rest = data.select([1]), data.select([2, 0])
    rest = replace(rest, root=tmp_path / "data" / "." / "..")
    rest = replace(rest, files=tuple(f"data/{file}" for file in rest.files))
    pool = pool_with((0, BUS, (40, 20, 50, 30), 0.9), (1, BIRD, (70, 50, 20, 20), 0.3))
    extra = extra_set(rest, pool, (1, 0, (50, 10, 20, 20), 0.8), (0, 0, (5, 5, 10, 10), 0.2))
    candidate = candidates_with((0, BIRD, (0, 0, 9, 9), 0.2))
    known = base_and_pool(own, LABELS, pool_with((0, BIRD, (0, 0, 60, 60), 0.7)), candidate)
    training = with_extra(known, extra)
    whole = training.data
    assert [whole.path(i) for i in (1, 2)] == [data.path(i).resolve() for i in (2, 0)]
    assert whole.path(0) == data.path(1)
    assert len(set(whole.ids)) == len(whole.ids) == len(whole.sources) == 3
    assert rows_of(whole.boxes, whole) == [("a", "car", [50, 10, 20, 20])]  # it is sure
    assert whole.sizes.tolist() == [[60, 60], [90, 50], [100, 80]]
    assert rows_of(training.mined, whole) == [
        ("b", "bird", [0, 0, 60, 60]),
        ("c", "bus", [40, 20, 50, 30]),
        ("a", "bird", [70, 50, 20, 20]),
    ]
    assert training.scores.tolist() == [0.7, 0.9, 0.3]
    assert rows_of(training.ignored, whole) == [
        ("b", "bird", [0, 0, 9, 9]),
        ("c", "car", [5, 5, 10, 10]),
    ]
    assert training.missing.tolist() == [[False], [True], [True]]


def test_with_extra_has_the_decisions_about_extra_images(data: Dataset) -> None:
    rest = replace(data.select([2, 0]), boxes=NO_BOXES)
    rejected = Boxes.of([0, 1], [[5, 5, 10, 10], [0, 0, 9, 9]], [BUS, BIRD])
    pool = replace(pool_with((1, BIRD, (70, 50, 20, 20), 1.0)), rejected=rejected)
    own = replace(pool_with(), rejected=Boxes.of([0], [[1, 1, 9, 9]], [BIRD]))
    known = base_and_pool(data.select([1]), LABELS, own, None)
    training = with_extra(known, base_and_pool(rest, LABELS, pool, None))
    assert training.scores.tolist() == [ACCEPTED]
    assert rows_of(training.rejected, training.data) == [
        ("b", "bird", [1, 1, 9, 9]), ("a", "bird", [0, 0, 9, 9]),
    ]  # fmt: skip


@pytest.mark.parametrize(("image", "name"), [(1, "a"), (0, "c")])
def test_with_extra_leaves_out_images_without_a_mined_box(
    data: Dataset, image: int, name: str
) -> None:
    rest = data.select([2, 0])
    found = (0, 0, (1, 1, 10, 10), 0.2), (1, 0, (2, 2, 10, 10), 0.2)
    known = base_and_pool(data.select([1]), LABELS, pool_with(), None)
    pool = pool_with((image, BIRD, (70, 50, 20, 20), 0.3), (image, BUS, (0, 0, 20, 20), 0.2))
    training = with_extra(known, extra_set(rest, pool, *found))
    assert [Path(file).stem for file in training.data.files] == ["b", name]
    boxes = [(name, "bird", [70, 50, 20, 20]), (name, "bus", [0, 0, 20, 20])]
    assert rows_of(training.mined, training.data) == boxes
    assert rows_of(training.ignored, training.data) == [(name, "car", [image + 1] * 2 + [10, 10])]
    nothing = with_extra(known, extra_set(rest, pool_with(), *found))
    assert nothing.data.files == known.data.files
    assert len(nothing.mined) == len(nothing.ignored) == len(nothing.scores) == 0


def epoch(training: TrainingSet, **keys: Any) -> list[int]:
    return epoch_images(training, LABELS, Online(**keys)).tolist()


def test_epoch_images_repeats_images_with_novel_boxes(data: Dataset) -> None:
    """c has two boxes of the pool and is one image; a has one and a shot; b has only a shot."""
    two = pool_with((2, BUS, (40, 20, 50, 30), 0.9), (2, BIRD, (1, 1, 5, 5), 0.3))
    training = base_and_pool(data, LABELS, two, None)
    assert epoch(training) == [0, 1, 2]
    assert epoch(training, repeat=3) == [0, 1, 2, 2, 2]
    training = with_shots(base_and_pool(data, LABELS, POOL, None), shots_of(data, B_BIRD), LABELS)
    assert epoch(training, repeat=2) == [0, 1, 2, 0, 1, 2]
    empty = base_and_pool(data, LABELS, pool_with(), None)
    assert epoch(with_shots(empty, shots_of(data, B_BIRD), LABELS), repeat=2) == [0, 1, 2, 1]
    assert epoch(empty, repeat=4) == [0, 1, 2]


def test_epoch_images_leaves_out_images_without_a_target_if_taught(data: Dataset) -> None:
    """Only b has no base box."""
    empty = base_and_pool(data, LABELS, pool_with(), None)
    assert epoch(empty, images="taught") == [0, 2]
    mined = base_and_pool(data, LABELS, pool_with((1, BUS, (0, 0, 9, 9), 0.3)), None)
    assert epoch(mined, images="taught") == [0, 1, 2]
    assert epoch(mined, images="taught", repeat=2) == [0, 1, 2, 1]
    shot = with_shots(empty, shots_of(data, B_BIRD), LABELS)
    assert epoch(shot, images="taught") == [0, 1, 2]
    for images in ("all", "no_background"):
        assert epoch(empty, images=images) == [0, 1, 2]


def test_epoch_images_does_not_count_boxes_that_are_no_targets(data: Dataset) -> None:
    """The only base box of c is a crowd; candidates are no targets either."""
    crowd = np.arange(5) == C_CAR
    candidates = candidates_with((1, BIRD, (0, 0, 9, 9), 0.2), (2, BUS, (0, 0, 9, 9), 0.2))
    with_crowd = data.with_boxes(replace(data.boxes, crowd=crowd))
    training = base_and_pool(with_crowd, LABELS, pool_with(), candidates)
    assert epoch(training, images="taught") == [0]


def test_epoch_images_treats_an_oracle_alike(data: Dataset) -> None:
    """Its hidden boxes are targets; b without its bird has none."""
    assert epoch(oracle(data, LABELS), images="taught", repeat=2) == [0, 1, 2, 0, 1, 2]
    without = data.with_boxes(data.boxes.take(np.arange(5) != B_BIRD))
    assert epoch(oracle(without, LABELS), images="taught") == [0, 2]
    assert epoch(oracle(without, LABELS)) == [0, 1, 2]
