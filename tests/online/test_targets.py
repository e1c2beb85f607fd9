"""What the re-trained detector learns from, worked by hand on the tiny data set.

Pictures a, b, c; "car" is base, "bird" and "bus" are novel (`mining.pairs`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mining.pairs import LABELS, data_of, raw_of
from torch import Tensor

from mini_fsod.data.dataset import NO_BOXES, Boxes, Dataset
from mini_fsod.data.subsets import arranged
from mini_fsod.detector.backbone import NARROW
from mini_fsod.detector.batch import Targets
from mini_fsod.detector.model import Detector, build
from mini_fsod.detector.settings import RoISettings, RPNSettings
from mini_fsod.mining.candidates import candidates
from mini_fsod.mining.pool_io import Pool
from mini_fsod.online.targets import (
    Extra,
    an_epoch,
    base_truth,
    losses_with_mined,
    oracle,
    with_extra,
    with_shots,
)

A_BIRD, A_CAR, B_BIRD, C_CAR, C_BUS = range(5)
BIRD, BUS = 0, 1  # places among the novel classes


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    return data_of(tmp_path / "data", "voc")


def pool_of(*rows: tuple[int, int, tuple[float, ...], float]) -> Pool:
    image, label, xywh, score = zip(*rows, strict=True) if rows else ([], [], [], [])
    return Pool(
        np.array(image, dtype=np.int64),
        np.array(label, dtype=np.int64),
        np.array(xywh, dtype=np.float64).reshape(-1, 4),
        np.array(score, dtype=np.float64),
        (),
    )


def rows_of(boxes: Boxes, data: Dataset) -> list[tuple[str, str, list[float]]]:
    return [
        (Path(data.files[i]).stem, LABELS.classes[k], box)
        for i, k, box in zip(
            boxes.image.tolist(), boxes.label.tolist(), boxes.xywh.tolist(), strict=True
        )
    ]


POOL = pool_of(
    (0, BUS, (10, 20, 30, 36), 0.8),  # the bird of a, nearly
    (0, BIRD, (70, 50, 20, 20), 0.3),
    (2, BUS, (40, 20, 50, 30), 0.9),
)


def test_base_truth_and_the_pool(data: Dataset) -> None:
    learnt = base_truth(data, LABELS, POOL, None)
    assert rows_of(learnt.data.boxes, data) == [
        ("a", "car", [50, 10, 20, 20]),
        ("c", "car", [5, 5, 10, 10]),
    ]
    assert learnt.data.files == data.files  # b has no base box, and is learnt from all the same
    assert rows_of(learnt.mined, data) == [
        ("a", "bus", [10, 20, 30, 36]),
        ("a", "bird", [70, 50, 20, 20]),
        ("c", "bus", [40, 20, 50, 30]),
    ]
    assert learnt.scores.tolist() == [0.8, 0.3, 0.9]
    assert len(learnt.ignored) == 0
    assert len(data.boxes) == 5  # as it was


def test_candidates_are_no_background(data: Dataset) -> None:
    raw = raw_of((2, BUS, 0.9, (40, 20, 50, 30)), (1, BIRD, 0.1, (0, 0, 9, 9)))
    learnt = base_truth(data, LABELS, pool_of(), candidates(raw, 0.05))
    assert len(learnt.mined) == len(learnt.scores) == 0
    assert rows_of(learnt.ignored, data) == [
        ("b", "bird", [0, 0, 9, 9]),
        ("c", "bus", [40, 20, 50, 30]),
    ]


def test_the_oracle_knows_all_but_crowds(data: Dataset) -> None:
    flags = np.zeros(5, dtype=np.bool_)
    flags[B_BIRD] = True
    hidden = [("a", "bird", [10, 20, 30, 40]), ("b", "bird", [0, 0, 60, 60])]
    hidden += [("c", "bus", [40, 20, 50, 30])]
    learnt = oracle(data, LABELS)
    assert rows_of(learnt.mined, data) == hidden
    assert learnt.scores.tolist() == [1, 1, 1]
    assert [row[1] for row in rows_of(learnt.data.boxes, data)] == ["car", "car"]
    for flag, there in (("difficult", 3), ("crowd", 2), ("ignore", 2)):
        flagged = data.with_boxes(replace(data.boxes, **{flag: flags}))
        assert len(oracle(flagged, LABELS).mined) == there


def shots_of(data: Dataset, *boxes: int) -> Dataset:
    """A balanced set of these boxes: what was not chosen is no annotation."""
    kept = data.with_boxes(data.boxes.take(np.array(boxes)))
    return arranged(kept.select(np.unique(kept.boxes.image)), LABELS)


def test_shots_in_images_that_are_there(data: Dataset) -> None:
    shots = shots_of(data, A_BIRD, C_CAR, C_BUS)
    learnt = with_shots(base_truth(data, LABELS, POOL, None), shots, LABELS)
    assert learnt.data.files == data.files
    assert rows_of(learnt.data.boxes, data) == [  # base boxes once
        ("a", "car", [50, 10, 20, 20]),
        ("a", "bird", [10, 20, 30, 40]),
        ("c", "car", [5, 5, 10, 10]),
        ("c", "bus", [40, 20, 50, 30]),
    ]
    # two of the pool repeat a shot, one of them as another class
    assert rows_of(learnt.mined, data) == [("a", "bird", [70, 50, 20, 20])]
    assert learnt.scores.tolist() == [0.3]


def test_shots_in_images_that_are_not(data: Dataset) -> None:
    """As with mine.images: base, where b is no image to mine."""
    mined = data.select([2, 0])
    pool = pool_of((0, BUS, (0, 0, 20, 20), 0.5), (1, BIRD, (70, 50, 20, 20), 0.3))
    learnt = with_shots(
        base_truth(mined, LABELS, pool, None), shots_of(data, A_BIRD, B_BIRD), LABELS
    )
    whole = learnt.data
    assert [Path(file).stem for file in whole.files] == ["c", "a", "b"]
    assert len(set(whole.ids)) == len(whole.ids) == len(whole.sources) == 3
    assert whole.sizes.tolist() == [[90, 50], [100, 80], [60, 60]]
    assert rows_of(whole.boxes, whole) == [
        ("c", "car", [5, 5, 10, 10]),
        ("a", "car", [50, 10, 20, 20]),
        ("a", "bird", [10, 20, 30, 40]),
        ("b", "bird", [0, 0, 60, 60]),
    ]
    assert rows_of(learnt.mined, whole) == [
        ("c", "bus", [0, 0, 20, 20]),
        ("a", "bird", [70, 50, 20, 20]),
    ]
    assert learnt.scores.tolist() == [0.5, 0.3]


def test_an_added_image_has_its_base_shots(data: Dataset) -> None:
    mined = data.select([1])
    learnt = with_shots(base_truth(mined, LABELS, pool_of(), None), shots_of(data, C_CAR), LABELS)
    assert rows_of(learnt.data.boxes, learnt.data) == [("c", "car", [5, 5, 10, 10])]
    assert learnt.data.boxes.image.tolist() == [1]


def test_two_added_images(data: Dataset) -> None:
    mined = data.select([1])
    shots = shots_of(data, A_CAR, C_BUS)
    learnt = with_shots(base_truth(mined, LABELS, pool_of(), None), shots, LABELS)
    assert rows_of(learnt.data.boxes, learnt.data) == [
        ("a", "car", [50, 10, 20, 20]),
        ("c", "bus", [40, 20, 50, 30]),
    ]


def test_images_without_annotations(data: Dataset, tmp_path: Path) -> None:
    """b is learnt from; a and c come from elsewhere, and nothing but a pool is known of them."""
    own, rest = data.select([1]), data.select([2, 0])
    rest = replace(rest, root=tmp_path / "data" / "." / "..", boxes=NO_BOXES)
    rest = replace(rest, files=tuple(f"data/{file}" for file in rest.files))
    pool = pool_of((0, BUS, (40, 20, 50, 30), 0.9), (1, BIRD, (70, 50, 20, 20), 0.3))
    unsure = Boxes.of([1, 0], [[50, 10, 20, 20], [5, 5, 10, 10]], [0, 0])
    candidate = candidates(raw_of((0, BIRD, 0.2, (0, 0, 9, 9))), 0.05)
    known = base_truth(own, LABELS, pool_of((0, BIRD, (0, 0, 60, 60), 0.7)), candidate)
    learnt = with_extra(known, Extra(rest, pool, unsure), LABELS)
    whole = learnt.data
    assert [whole.path(i) for i in (1, 2)] == [data.path(i).resolve() for i in (2, 0)]
    assert whole.path(0) == data.path(1)
    assert len(set(whole.ids)) == len(whole.ids) == len(whole.sources) == 3
    assert len(whole.boxes) == 0
    assert whole.sizes.tolist() == [[60, 60], [90, 50], [100, 80]]
    assert rows_of(learnt.mined, whole) == [
        ("b", "bird", [0, 0, 60, 60]),
        ("c", "bus", [40, 20, 50, 30]),
        ("a", "bird", [70, 50, 20, 20]),
    ]
    assert learnt.scores.tolist() == [0.7, 0.9, 0.3]
    assert rows_of(learnt.ignored, whole) == [
        ("b", "bird", [0, 0, 9, 9]),
        ("c", "car", [5, 5, 10, 10]),
        ("a", "car", [50, 10, 20, 20]),
    ]


@pytest.mark.parametrize(("image", "name"), [(1, "a"), (0, "c")])
def test_images_in_which_nothing_was_mined(data: Dataset, image: int, name: str) -> None:
    """They are left out, and so is what may be an object in them."""
    rest = replace(data.select([2, 0]), boxes=NO_BOXES)
    unsure = Boxes.of([0, 1], [[1, 1, 10, 10], [2, 2, 10, 10]], [0, 0])
    known = base_truth(data.select([1]), LABELS, pool_of(), None)
    pool = pool_of((image, BIRD, (70, 50, 20, 20), 0.3), (image, BUS, (0, 0, 20, 20), 0.2))
    learnt = with_extra(known, Extra(rest, pool, unsure), LABELS)
    assert [Path(file).stem for file in learnt.data.files] == ["b", name]
    boxes = [(name, "bird", [70, 50, 20, 20]), (name, "bus", [0, 0, 20, 20])]
    assert rows_of(learnt.mined, learnt.data) == boxes
    assert rows_of(learnt.ignored, learnt.data) == [(name, "car", [image + 1] * 2 + [10, 10])]
    nothing = with_extra(known, Extra(rest, pool_of(), unsure), LABELS)
    assert nothing.data.files == known.data.files
    assert len(nothing.mined) == len(nothing.ignored) == len(nothing.scores) == 0


def test_images_that_are_seen_more_often(data: Dataset) -> None:
    """c has two boxes of the pool and is one image; a has one and a shot; b has a shot alone."""
    two = pool_of((2, BUS, (40, 20, 50, 30), 0.9), (2, BIRD, (1, 1, 5, 5), 0.3))
    learnt = base_truth(data, LABELS, two, None)
    assert an_epoch(learnt, LABELS, 1).tolist() == [0, 1, 2]
    assert an_epoch(learnt, LABELS, 3).tolist() == [0, 1, 2, 2, 2]
    learnt = with_shots(base_truth(data, LABELS, POOL, None), shots_of(data, B_BIRD), LABELS)
    assert an_epoch(learnt, LABELS, 2).tolist() == [0, 1, 2, 0, 1, 2]
    learnt = with_shots(base_truth(data, LABELS, pool_of(), None), shots_of(data, B_BIRD), LABELS)
    assert an_epoch(learnt, LABELS, 2).tolist() == [0, 1, 2, 1]
    nothing = base_truth(data, LABELS, pool_of(), None)
    assert an_epoch(nothing, LABELS, 4).tolist() == [0, 1, 2]


# Losses


@pytest.fixture(scope="module")
def detector() -> Detector:
    torch.manual_seed(0)
    return build(
        3,
        NARROW,
        norm="group",
        channels=16,
        rpn=RPNSettings(
            anchor_sizes=((8,), (16,), (32,), (64,), (128,)),
            before_nms_train=60,
            after_nms_train=40,
            samples=64,
        ),
        roi=RoISettings(width=32, samples=32),
    )


DRAW = torch.tensor(7)
Truth = tuple[Tensor, Tensor, Tensor]  # boxes (2, G, 4), labels (2, G), valid (2, G)
NO_BOX: Truth = (
    torch.zeros(2, 1, 4),
    torch.zeros(2, 1, dtype=torch.int64),
    torch.zeros(2, 1).bool(),
)


def boxes_of(*rows: list[list[float]]) -> Tensor:
    """(2, G, 4): the boxes of two images, as many each."""
    return torch.tensor(rows, dtype=torch.float32)


def padded(boxes: Tensor, label: int) -> Truth:
    valid = (boxes[..., 2:] > boxes[..., :2]).all(-1)
    return boxes, torch.full(boxes.shape[:2], label), valid


DRAWN = padded(boxes_of([[4, 4, 30, 30]], [[0, 0, 0, 0]]), 0)
MINED = padded(boxes_of([[32, 8, 60, 40]], [[10, 10, 50, 50]]), 2)


@pytest.fixture(scope="module")
def pictures() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, 3, 64, 64), generator=rng).to(torch.uint8)
    return images, torch.tensor([[64, 64], [64, 64]])


def told(found: dict[str, Tensor]) -> dict[str, float]:
    return {name: loss.item() for name, loss in found.items()}


def joined(mined: Truth = MINED, region: Truth = NO_BOX) -> Targets:
    """All rows as one set of targets: what is drawn by chance depends on their number too."""
    return Targets(*(torch.cat(rows, 1) for rows in zip(DRAWN, mined, region, strict=True)))


def test_mined_boxes_are_targets_like_others(
    detector: Detector, pictures: tuple[Tensor, Tensor]
) -> None:
    found = losses_with_mined(detector, 1.0, True)(*pictures, *DRAWN, *MINED, *NO_BOX, DRAW)
    assert told(found) == pytest.approx(told(detector.losses(*pictures, joined(), DRAW)))
    # without any, what people drew is all there is
    found = losses_with_mined(detector, 1.0, True)(*pictures, *DRAWN, *NO_BOX, *NO_BOX, DRAW)
    alone = detector.losses(*pictures, joined(mined=NO_BOX), DRAW)
    assert told(found) == pytest.approx(told(alone))
    assert min(told(alone).values()) > 0


def test_the_weight_of_mined_boxes(detector: Detector, pictures: tuple[Tensor, Tensor]) -> None:
    """Losses are linear in it; the samples, and what they are divided by, stay."""

    def at(weight: float, boxes: bool = True) -> dict[str, float]:
        losses = losses_with_mined(detector, weight, boxes)
        return told(losses(*pictures, *DRAWN, *MINED, *NO_BOX, DRAW))

    none, once, twice = at(0.0), at(1.0), at(2.0)
    for name in once:
        assert none[name] < once[name]  # ... and so all of the four have a part on mined boxes
        assert twice[name] - once[name] == pytest.approx(once[name] - none[name], rel=1e-4)
    without = at(1.0, boxes=False)
    for name in ("loss_objectness", "loss_classifier"):
        assert without[name] == pytest.approx(once[name])
    for name in ("loss_rpn_box_reg", "loss_box_reg"):
        assert without[name] == pytest.approx(none[name])


def test_only_mined_boxes_without_box_losses(
    detector: Detector, pictures: tuple[Tensor, Tensor]
) -> None:
    found = losses_with_mined(detector, 1.0, False)(*pictures, *NO_BOX, *MINED, *NO_BOX, DRAW)
    assert found["loss_rpn_box_reg"].item() == found["loss_box_reg"].item() == 0
    assert found["loss_classifier"].item() > 0


def test_ignored_regions_are_no_background(
    detector: Detector, pictures: tuple[Tensor, Tensor]
) -> None:
    region = padded(detector.anchors(pictures[0])[0][::9].expand(2, -1, 4), 1)
    there = region[2]
    losses = losses_with_mined(detector, 1.0, True)
    both = joined(region=region)
    ignore = torch.cat([torch.zeros(2, 2, dtype=torch.bool), there], 1)
    targets = both._replace(valid=both.valid & ~ignore, ignore=ignore)
    found = told(losses(*pictures, *DRAWN, *MINED, *region, DRAW))
    assert found == pytest.approx(told(detector.losses(*pictures, targets, DRAW)))
    assert found != pytest.approx(
        told(losses(*pictures, *DRAWN, *MINED, *region[:2], ~there, DRAW)), rel=1e-4
    )


def test_parts_of_mined_boxes_are_background_by_option(
    detector: Detector, pictures: tuple[Tensor, Tensor]
) -> None:
    part = padded(boxes_of([[34, 10, 50, 30]], [[12, 12, 40, 30]]), 2)

    def at(drop_nested: bool, region: Truth) -> dict[str, float]:
        losses = losses_with_mined(detector, 1.0, True, drop_nested)
        return told(losses(*pictures, *DRAWN, *MINED, *region, DRAW))

    nothing = (*part[:2], torch.zeros_like(part[2]))
    assert at(True, part) == at(True, nothing) == at(False, nothing)
    assert at(False, part) != at(True, part)
    other = (part[0], torch.full_like(part[1], 1), part[2])  # of another class: not a part
    assert at(True, other) == at(False, other) == at(False, part)


def test_where_all_is_ignored_nothing_is_learnt(detector: Detector) -> None:
    """Regions on all anchors, and on what is seen of them, which is where proposals lie."""
    images, sizes = torch.zeros(1, 3, 64, 64, dtype=torch.uint8), torch.tensor([[64, 64]])
    none = (torch.zeros(1, 1, 4), torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1).bool())
    anchors = detector.anchors(images)[0]
    regions = torch.cat([anchors, anchors.clamp(0, 64)])[None]
    label = torch.zeros(regions.shape[:2], dtype=torch.int64)
    there = torch.ones(regions.shape[:2], dtype=torch.bool)
    losses = losses_with_mined(detector, 1.0, True)
    found = losses(images, sizes, *none, *none, regions, label, there, DRAW)
    assert set(told(found).values()) == {0.0}
    found = losses(images, sizes, *none, *none, regions, label, ~there, DRAW)
    assert found["loss_objectness"].item() > 0
    assert found["loss_classifier"].item() > 0
