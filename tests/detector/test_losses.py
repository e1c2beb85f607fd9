"""Values computed by hand; equality with torchvision is in test_convert.py."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, distributed

from mini_fsod.detector.batch import Regions, RoIOutputs, Samples, Targets
from mini_fsod.detector.losses import iou_loss, roi_losses, rpn_losses
from mini_fsod.detector.matching import Matches, sampled_regions

ONE = (1.0, 1.0, 1.0, 1.0)
BOX = [0.0, 0.0, 10.0, 10.0]


def targets(**weights: Tensor) -> Targets:
    """Image 0 has a box of class 1, image 1 has none; the second row is padding."""
    return Targets(
        torch.tensor([[BOX, [0.0] * 4], [[0.0] * 4] * 2]),
        torch.tensor([[1, 0], [0, 0]]),
        torch.tensor([[True, False], [False, False]]),
        **weights,
    )


def rpn_case(
    valid: list[list[bool]], logit: float = 0.0, **weights: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three anchors; the first of image 0 is positive, moved by one width: delta 1, 0, 0, 0.

    `logit` is that of the second anchor of image 0; the others are 0.
    """
    anchors = torch.tensor([[-10.0, 0.0, 0.0, 10.0], [50.0, 0.0, 60.0, 10.0], [0.0, 0.0, 9.0, 9.0]])
    logits = torch.tensor([[0, logit, 0], [0.0] * 3], requires_grad=True)
    deltas = torch.zeros(2, 3, 4, requires_grad=True)
    positive = torch.tensor([[True, False, False], [False] * 3])
    matches = Matches(torch.zeros(2, 3).long(), positive.float(), positive, ~positive)
    samples = Samples(torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor(valid))
    sampled = sampled_regions(anchors, matches, samples)
    losses = rpn_losses(logits, deltas, samples.rows, sampled, targets(**weights), 1 / 9)
    return *losses, logits, deltas


def test_rpn_losses_are_means_over_valid_samples() -> None:
    # Each entropy is log 2. The box error is |1| - beta / 2. Of six slots three are real.
    objectness, box, _, deltas = rpn_case([[True, True, False], [True, False, False]])
    assert objectness.item() == pytest.approx(math.log(2))
    assert box.item() == pytest.approx((1 - 1 / 18) / 3)
    box.backward()
    assert deltas.grad is not None
    assert deltas.grad[0, 0].tolist() == pytest.approx([-1 / 3, 0, 0, 0])
    assert not deltas.grad[1].any()


def test_rpn_losses_leave_out_what_is_not_sampled() -> None:
    sampled, *_ = rpn_case([[True, True, False], [False] * 3], logit=2.0)
    assert sampled.item() == pytest.approx((math.log(2) + math.log(1 + math.exp(2))) / 2)
    other, *_ = rpn_case([[True, False, True], [False] * 3], logit=2.0)
    assert other.item() == pytest.approx(math.log(2))


def test_rpn_losses_are_zero_without_samples() -> None:
    objectness, box, logits, deltas = rpn_case([[False] * 3] * 2)
    assert (objectness.item(), box.item()) == (0.0, 0.0)
    (objectness + box).backward()
    assert not logits.grad.any()
    assert not deltas.grad.any()


def test_rpn_losses_of_a_single_sample_are_its_own() -> None:
    objectness, box, _, _ = rpn_case([[True, False, False], [False] * 3])
    assert objectness.item() == pytest.approx(math.log(2))
    assert box.item() == pytest.approx(1 - 1 / 18)


@pytest.mark.parametrize(
    ("valid", "others", "expected"),
    [
        ([[True, True, False], [True, False, False]], 5, 3 * math.log(2) / 4),  # (3 + 5) / 2
        ([[True, False, False], [False] * 3], 0, 2 * math.log(2)),  # (1 + 0) / 2
        ([[False] * 3] * 2, 0, 0.0),
    ],
    ids=["both have samples", "only this one", "none"],
)
def test_losses_of_two_processes_are_divided_by_their_mean_number_of_samples(
    monkeypatch: pytest.MonkeyPatch, valid: list[list[bool]], others: int, expected: float
) -> None:
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "all_reduce", lambda number: number.add_(others))
    assert rpn_case(valid)[0].item() == pytest.approx(expected)


def test_losses_scale_with_the_weights_of_their_boxes() -> None:
    weights = torch.tensor([[3.0, 9.0], [9.0, 9.0]])
    valid = [[True, True, False], [True, False, False]]
    objectness, box, *_ = rpn_case(valid, weights=weights)
    assert objectness.item() == pytest.approx(math.log(2) * (3 + 1 + 1) / 3)
    assert box.item() == pytest.approx(3 * (1 - 1 / 18) / 3)
    objectness, box, *_ = rpn_case(valid, weights=weights, box_weights=weights * 0)
    assert objectness.item() == pytest.approx(math.log(2) * 5 / 3)
    assert box.item() == 0.0


def roi_case() -> tuple[RoIOutputs, Regions]:
    """Image 0: the ground truth itself, a background RoI, padding. Image 1: one background RoI."""
    nothing = [0.0] * 4
    rois = torch.tensor(
        [[BOX, [50.0, 0.0, 60.0, 10.0], nothing], [nothing, [9.0, 9.0, 20.0, 20.0], nothing]]
    )
    positive = torch.tensor([[True, False, False], [False, False, False]])
    valid = torch.tensor([[True, True, False], [False, True, False]])
    outputs = RoIOutputs(
        torch.zeros(2, 3, 3, requires_grad=True),
        torch.full((2, 3, 2, 4), 0.5, requires_grad=True),
        torch.zeros(2, 3, requires_grad=True),
    )
    return outputs, Regions(rois, torch.zeros(2, 3).long(), torch.zeros(2, 3), positive, valid)


def test_roi_losses_of_known_outputs() -> None:
    outputs, regions = roi_case()
    classifier, box_reg = roi_losses(outputs, regions, targets(), ONE, 0.1)
    assert classifier.item() == pytest.approx(math.log(3))  # three real samples, three rows each
    assert box_reg.item() == pytest.approx(4 * (0.5 - 0.05) / 3)  # beta 0.1, deltas 0.5, wanted 0
    (classifier + box_reg).backward()
    assert outputs.logits.grad is not None
    # Label 1 is row 2 of the classifier; the background is row 0.
    assert outputs.logits.grad[0, 0].tolist() == pytest.approx([1 / 9, 1 / 9, -2 / 9])
    assert outputs.logits.grad[0, 1].tolist() == pytest.approx([-2 / 9, 1 / 9, 1 / 9])
    assert not outputs.logits.grad[~regions.valid].any()
    assert outputs.deltas.grad is not None
    assert outputs.deltas.grad.abs().sum((0, 1, 3)).tolist() == pytest.approx([0, 4 / 3])
    assert torch.isfinite(outputs.deltas.grad).all()


def test_roi_losses_put_classes_behind_the_rows_of_negatives() -> None:
    """With one negative, label 1 is row 3 of the classifier."""
    outputs, regions = roi_case()
    logits = torch.zeros(2, 3, 4, requires_grad=True)
    outputs = outputs._replace(logits=logits)
    roi_losses(outputs, regions, targets(), ONE, 0.1, negatives=1)[0].backward()
    assert logits.grad is not None
    assert logits.grad[0, 0].tolist() == pytest.approx([1 / 12, 1 / 12, 1 / 12, -1 / 4])
    assert logits.grad[0, 1].tolist() == pytest.approx([-1 / 4, 1 / 12, 1 / 12, 1 / 12])


def test_roi_losses_with_gamma_are_focal() -> None:
    """(1 - p)^gamma x cross-entropy: p is 1/3 for every sample, as in the case above."""
    outputs, regions = roi_case()
    classifier, box_reg = roi_losses(outputs, regions, targets(), ONE, 0.1, gamma=1.5)
    assert classifier.item() == pytest.approx((2 / 3) ** 1.5 * math.log(3))
    assert box_reg.item() == pytest.approx(4 * (0.5 - 0.05) / 3)
    sure = outputs._replace(logits=torch.zeros(2, 3, 3).index_fill(2, torch.tensor(0), 200.0))
    sure.logits[0, 0] = torch.tensor([0.0, 0.0, 200.0])
    sure.logits.requires_grad_()
    loss = roi_losses(sure, regions, targets(), ONE, 0.1, gamma=0.5)[0]  # all p are exactly 1
    loss.backward()
    assert loss.item() == 0
    assert sure.logits.grad is not None
    assert sure.logits.grad.isfinite().all()


def test_iou_loss_of_known_outputs() -> None:
    """Image 0: one positive, whose final box has IoU 0.5 with the truth, and as many negatives,
    the first of two, of IoU 0.2. Image 1 has no positive, so none of its negatives counts.
    """
    outputs, regions = roi_case()
    outputs = outputs._replace(deltas=torch.zeros(2, 3, 2, 4))
    half = [0.0, 0.0, 10.0, 5.0]
    regions = regions._replace(
        rois=torch.tensor([[half, BOX, BOX]] * 2),
        iou=torch.tensor([[0.9, 0.2, 0.3]] * 2),
        valid=torch.ones(2, 3, dtype=torch.bool),
    )
    loss = iou_loss(outputs, regions, targets(), torch.tensor([[50, 50]] * 2), ONE)
    assert loss.item() == pytest.approx(((0.5 - 0.5) ** 2 + (0.5 - 0.2) ** 2) / 2)
    loss.backward()
    assert outputs.iou is not None
    assert outputs.iou.grad is not None
    assert (outputs.iou.grad != 0).tolist() == [[False, True, False], [False] * 3]


def test_iou_loss_has_no_gradient_through_its_target() -> None:
    """The IoU of the predicted box is a constant target: the box predictor learns nothing here."""
    outputs, regions = roi_case()
    half = [0.0, 0.0, 10.0, 5.0]
    regions = regions._replace(rois=torch.tensor([[half, BOX, BOX]] * 2))
    iou_loss(outputs, regions, targets(), torch.tensor([[50, 50]] * 2), ONE).backward()
    assert outputs.deltas.requires_grad
    assert outputs.deltas.grad is None
    assert outputs.iou.grad[0, 0] != 0


def test_iou_loss_applies_box_weights() -> None:
    """The positive's final box has IoU 0.25, the negative 0.2; both are predicted as 0.5."""
    outputs, regions = roi_case()
    outputs = outputs._replace(deltas=torch.zeros(2, 3, 2, 4))
    quarter = [0.0, 0.0, 5.0, 5.0]
    regions = regions._replace(
        rois=torch.tensor([[quarter, BOX, BOX]] * 2),
        iou=torch.tensor([[0.9, 0.2, 0.3]] * 2),
        valid=torch.ones(2, 3, dtype=torch.bool),
    )
    sizes = torch.tensor([[50, 50]] * 2)
    for weight, box_weight in ((1.0, 1.0), (2.0, 1.0), (1.0, 0.0), (0.0, 1.0)):
        known = targets(
            weights=torch.full((2, 2), weight), box_weights=torch.full((2, 2), box_weight)
        )
        loss = iou_loss(outputs, regions, known, sizes, ONE)
        wanted = (weight * box_weight * 0.25**2 + 0.3**2) / 2
        assert loss.item() == pytest.approx(wanted)


def test_iou_loss_is_zero_without_positives() -> None:
    outputs, regions = roi_case()
    regions = regions._replace(positive=torch.zeros(2, 3, dtype=torch.bool))
    loss = iou_loss(outputs, regions, targets(), torch.tensor([[9, 9]] * 2), ONE)
    assert loss.item() == 0.0
    loss.backward()
    assert not outputs.iou.grad.any()
