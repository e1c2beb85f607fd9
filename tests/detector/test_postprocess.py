from __future__ import annotations

import torch

from mini_fsod.detector.postprocess import select

A, A2, B = [0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 9.0], [50.0, 50.0, 60.0, 60.0]
NUMBERS = {"nms_iou": 0.5, "detections": 5, "candidates": 100}

# One image, three proposals, two classes, the same box for both classes.
BOXES = torch.tensor([[A, A2, B]])[:, :, None].repeat(1, 1, 2, 1)
SCORES = torch.tensor([[[0.6, 0.3], [0.7, 0.1], [0.2, 0.01]]])


def test_select_applies_nms_by_class_and_sorts() -> None:
    found = select(BOXES, SCORES, SCORES > 0.05, **NUMBERS)
    # Class 0: 0.7 (A2) suppresses 0.6 (A), 0.2 (B) stays; class 1: 0.3 (A) suppresses 0.1 (A2).
    assert found.valid.tolist() == [[True, True, True, False, False]]
    torch.testing.assert_close(found.scores, torch.tensor([[0.7, 0.3, 0.2, 0.0, 0.0]]))
    assert found.labels[0, :3].tolist() == [0, 1, 0]
    assert found.proposal[0, :3].tolist() == [1, 0, 2]
    assert found.boxes[0].tolist() == [A2, A, B, [0.0] * 4, [0.0] * 4]
    assert found.exact.all()


def test_select_ranks_allowed_pairs_by_other_scores() -> None:
    calibrated = SCORES.clone()
    calibrated[0, 0, 0] = 0.9  # A now beats A2
    calibrated[0, 2, 1] = 0.99  # but its raw score is below the cut
    found = select(BOXES, calibrated, SCORES > 0.05, **NUMBERS)
    assert found.proposal[0, :3].tolist() == [0, 0, 2]
    assert found.scores.max() == 0.9


def test_select_of_nothing_is_padding() -> None:
    nothing = torch.zeros_like(SCORES, dtype=torch.bool)
    found = select(BOXES, SCORES, nothing, **NUMBERS)
    assert not found.valid.any()
    assert found.exact.all()
    assert not found.boxes.any()
    found = select(BOXES, SCORES, nothing, **NUMBERS | {"candidates": None})
    assert found.valid.shape == (1, 0)


def test_select_drops_boxes_without_area() -> None:
    flat = BOXES.clone()
    flat[0, 1, :, 3] = 0.005
    found = select(flat, SCORES, SCORES > 0.05, **NUMBERS)
    assert 1 not in found.proposal[found.valid]


def test_select_flags_too_few_candidates() -> None:
    allowed = SCORES > 0.05
    few = NUMBERS | {"candidates": 2}  # 0.7 and 0.6, of which one survives
    assert not select(BOXES, SCORES, allowed, **few).exact.any()
    assert select(BOXES, SCORES, allowed, **few | {"detections": 1}).exact.all()
    assert select(BOXES, SCORES, allowed, **NUMBERS | {"candidates": 5}).exact.all()
