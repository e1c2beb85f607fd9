"""The targets of a batch, and the losses of a training without a teacher."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.novel_boxes import A, B, C, D, targets
from mini_fsod.config.schema import Mine, Online
from mini_fsod.detector.backbone import NARROW
from mini_fsod.detector.batch import Targets, join_targets
from mini_fsod.detector.model import Detector, build
from mini_fsod.detector.settings import RoISettings, RPNSettings
from mini_fsod.loader.resident import ScoredBoxes
from mini_fsod.online.retrain import regions_to_ignore
from mini_fsod.online.targets import MinedInputs, losses_with_mined, with_mined


def test_with_mined_joins_truth_mined_and_ignored() -> None:
    truth = targets([(A, 1, 1.0)], width=2)
    mined = targets([(B, 2, 1.0), (C, 3, 1.0)])
    ignored = Targets(torch.tensor([[D, D]]), torch.tensor([[3, 0]]), torch.tensor([[True, False]]))
    both = torch.tensor([[True, True]])
    to = with_mined(truth, mined, ignored, torch.tensor(2.0), both, Online(), drop_nested=True)
    assert to.boxes[0].tolist() == [A, [0.0] * 4, B, C, D, D]
    assert to.labels.tolist() == [[1, 0, 2, 3, 3, 0]]
    assert to.valid.tolist() == [[True, False, True, True, False, False]]
    assert to.ignore.tolist() == [[False] * 4 + [True, False]]
    assert to.weights.tolist() == [[1, 1, 2, 2, 1, 1]]
    assert to.box_weights.tolist() == [[1] * 6]
    assert to.no_negatives is None
    second = torch.tensor([[False, True]])
    one = torch.ones(())
    to = with_mined(truth, mined, ignored, one, second, Online(), drop_nested=False)
    assert to.box_weights.tolist() == [[1, 1, 0, 1, 1, 1]]
    inside = ignored._replace(boxes=torch.tensor([[C, C]]))
    for drop_nested in (True, False):
        to = with_mined(truth, mined, inside, one, both, Online(), drop_nested)
        assert to.ignore.any().item() != drop_nested
    empty, nowhere = (Targets(*(t[:, :0] for t in of[:3])) for of in (mined, ignored))
    to = with_mined(truth, empty, nowhere, one, both[:, :0], Online(), drop_nested=True)
    assert to.boxes[0].tolist() == [A, [0.0] * 4]


def test_with_mined_ignores_what_the_view_cuts_off() -> None:
    cut = targets([(A, 1, 1.0)])
    truth = cut._replace(valid=~cut.valid, ignore=cut.valid)
    mined, ignored = targets([(B, 2, 1.0)]), targets([(C, 3, 1.0)])
    to = with_mined(truth, mined, ignored, torch.ones(()), mined.valid, Online(), False)
    assert to.valid.tolist() == [[False, True, False]]
    assert to.ignore is not None
    assert to.ignore.tolist() == [[True, False, True]]


def test_regions_to_ignore_are_candidates_and_boxes_that_the_view_cuts_off() -> None:
    yes, no = torch.tensor([[True]]), torch.tensor([[False]])
    (pool, candidates) = (
        ScoredBoxes(t.boxes, t.labels, t.valid, torch.ones(1, 1), no)
        for t in (targets([(A, 1, 1.0)]), targets([(B, 2, 1.0)]))
    )
    assert regions_to_ignore(pool, candidates).valid.tolist() == [[False, True]]
    both = regions_to_ignore(
        pool._replace(valid=no, cut=yes), candidates._replace(valid=no, cut=yes)
    )
    assert both.valid.tolist() == [[True, True]]
    assert both.boxes[0].tolist() == [A, B]
    assert both.labels.tolist() == [[1, 2]]


def test_with_mined_marks_images_without_a_target() -> None:
    """A base box, a mined box, a region to ignore, nothing: a region is no target."""
    truth = targets([(A, 1, 1.0)], [], [], [], width=1)
    mined = targets([], [(B, 2, 1.0)], [], [], width=1)
    ignored = targets([], [], [(C, 2, 1.0)], [], width=1)
    for images in ("all", "taught", "no_background"):
        online = Online(images=images)
        one = torch.ones(())
        marked = with_mined(truth, mined, ignored, one, mined.valid, online, False).no_negatives
        if images == "no_background":
            assert marked.tolist() == [False, False, True, True]
        else:
            assert marked is None


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
SIZES = torch.tensor([[64, 64], [64, 64]])


@pytest.fixture(scope="module")
def pictures() -> Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, 3, 64, 64), generator=rng).to(torch.uint8)


def padded(first: list[float], second: list[float], label: int) -> Targets:
    """One box in each of two images; four zeros are no box."""
    boxes = torch.tensor([[first], [second]])
    valid = (boxes[..., 2:] > boxes[..., :2]).all(-1)
    return Targets(boxes, torch.full((2, 1), label), valid)


NOTHING = [0.0] * 4
NO_BOX = padded(NOTHING, NOTHING, 0)
TRUTH = padded([4.0, 4.0, 30.0, 30.0], NOTHING, 0)
MINED = padded([32.0, 8.0, 60.0, 40.0], [10.0, 10.0, 50.0, 50.0], 2)


def values(losses: dict[str, Tensor]) -> dict[str, float]:
    return {name: loss.item() for name, loss in losses.items()}


def losses_of(
    detector: Detector,
    pictures: Tensor,
    truth: Targets = TRUTH,
    mined: Targets = MINED,
    ignored: Targets = NO_BOX,
    drop_nested: bool = False,
    **keys: Any,
) -> dict[str, float]:
    losses = losses_with_mined(detector, Online(**keys), Mine(drop_nested=drop_nested))
    inputs = MinedInputs(pictures, SIZES[: len(pictures)], truth, mined, ignored, DRAW)
    return values(losses(inputs))


def rows(truth: Targets, mined: Targets, ignored: Targets = NO_BOX) -> Targets:
    """All rows as one set: the random samples depend on the number of rows too."""
    return join_targets(join_targets(truth, mined), ignored)


def test_losses_with_mined_are_those_of_the_same_targets(
    detector: Detector, pictures: Tensor
) -> None:
    wanted = values(detector.losses(pictures, SIZES, rows(TRUTH, MINED), DRAW))
    assert losses_of(detector, pictures) == pytest.approx(wanted)
    wanted = values(detector.losses(pictures, SIZES, rows(TRUTH, NO_BOX), DRAW))
    assert losses_of(detector, pictures, mined=NO_BOX) == pytest.approx(wanted)
    assert min(wanted.values()) > 0


def test_losses_with_mined_are_linear_in_the_weight(detector: Detector, pictures: Tensor) -> None:
    """The samples, and their number, stay."""
    none, once, twice = (
        losses_of(detector, pictures, mined_weight=weight) for weight in (0.0, 1.0, 2.0)
    )
    for name in once:
        assert none[name] < once[name]  # each of the four has a part on mined boxes
        assert twice[name] - once[name] == pytest.approx(once[name] - none[name], rel=1e-4)
    without = losses_of(detector, pictures, mined_boxes="none")
    for name in ("loss_objectness", "loss_classifier"):
        assert without[name] == pytest.approx(once[name])
    for name in ("loss_rpn_box_reg", "loss_box_reg"):
        assert without[name] == pytest.approx(none[name])


def test_losses_with_mined_have_no_box_loss_with_mined_boxes_none(
    detector: Detector, pictures: Tensor
) -> None:
    found = losses_of(detector, pictures, truth=NO_BOX, mined_boxes="none")
    assert found["loss_rpn_box_reg"] == found["loss_box_reg"] == 0
    assert found["loss_classifier"] > 0


def test_losses_with_mined_have_no_background_loss_on_ignored_regions(
    detector: Detector, pictures: Tensor
) -> None:
    boxes = detector.anchors(pictures)[0][::9].expand(2, -1, 4)
    valid = torch.ones(boxes.shape[:2], dtype=torch.bool)
    region = Targets(boxes, torch.ones(boxes.shape[:2], dtype=torch.int64), valid)
    all_rows = rows(TRUTH, MINED, region)
    ignore = torch.cat([torch.zeros(2, 2, dtype=torch.bool), valid], 1)
    wanted = all_rows._replace(valid=all_rows.valid & ~ignore, ignore=ignore)
    found = losses_of(detector, pictures, ignored=region)
    assert found == pytest.approx(values(detector.losses(pictures, SIZES, wanted, DRAW)))
    without = losses_of(detector, pictures, ignored=region._replace(valid=~valid))
    assert found != pytest.approx(without, rel=1e-4)


def test_losses_with_mined_take_parts_of_objects_as_background_with_drop_nested(
    detector: Detector, pictures: Tensor
) -> None:
    part = padded([34.0, 10.0, 50.0, 30.0], [12.0, 12.0, 40.0, 30.0], 2)

    def at(drop_nested: bool, region: Targets) -> dict[str, float]:
        return losses_of(detector, pictures, ignored=region, drop_nested=drop_nested)

    nothing = part._replace(valid=torch.zeros_like(part.valid))
    assert at(True, part) == at(True, nothing) == at(False, nothing)
    assert at(False, part) != at(True, part)
    other = part._replace(labels=torch.ones_like(part.labels))  # of another class: not a part
    assert at(True, other) == at(False, other) == at(False, part)


def test_losses_with_mined_are_zero_where_everything_is_ignored(detector: Detector) -> None:
    """Regions on all anchors, and on what is visible of them, where proposals lie."""
    images = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    none = Targets(*(t[:1] for t in NO_BOX[:3]))
    anchors = detector.anchors(images)[0]
    boxes = torch.cat([anchors, anchors.clamp(0, 64)])[None]
    valid = torch.ones(boxes.shape[:2], dtype=torch.bool)
    region = Targets(boxes, torch.zeros(boxes.shape[:2], dtype=torch.int64), valid)
    found = losses_of(detector, images, none, none, region)
    assert set(found.values()) == {0.0}
    found = losses_of(detector, images, none, none, region._replace(valid=~valid))
    assert found["loss_objectness"] > 0
    assert found["loss_classifier"] > 0


# online.images: no_background


def test_losses_with_mined_are_zero_without_a_target_with_no_background(
    detector: Detector, pictures: Tensor
) -> None:
    empty = {"truth": NO_BOX, "mined": NO_BOX}
    found = losses_of(detector, pictures, **empty, images="no_background")
    assert found == dict.fromkeys(found, 0.0)
    for images in ("all", "taught"):  # negatives of both kinds
        found = losses_of(detector, pictures, **empty, images=images)
        assert found["loss_objectness"] > 0
        assert found["loss_classifier"] > 0


@pytest.mark.parametrize("kind", ["truth", "mined"])
def test_losses_with_mined_come_from_images_with_a_target_with_no_background(
    detector: Detector, pictures: Tensor, kind: str
) -> None:
    """The second image has no target: losses are those of the first one alone, with its negatives.

    A base box and a box of the pool, or of an oracle in its place, are targets alike.
    """
    boxes = {"truth": NO_BOX, "mined": NO_BOX} | {kind: TRUTH}
    first = {name: Targets(*(t[:1] for t in of[:3])) for name, of in boxes.items()}
    no_region = Targets(*(t[:1] for t in NO_BOX[:3]))
    alone = losses_of(detector, pictures[:1], ignored=no_region, **first)
    found = losses_of(detector, pictures, images="no_background", **boxes)
    assert found == pytest.approx(alone, rel=1e-4)
    assert found != pytest.approx(losses_of(detector, pictures, **boxes), rel=1e-2)


def test_losses_with_mined_are_equal_where_all_images_have_a_target(
    detector: Detector, pictures: Tensor
) -> None:
    found = losses_of(detector, pictures)
    assert losses_of(detector, pictures, images="no_background") == found
    assert losses_of(detector, pictures, images="taught") == found
