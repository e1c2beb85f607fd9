"""Hand-made boxes of novel classes, and what a teacher says of them.

Classes 0 and 1 are base, 2 and 3 novel. A, B, C and D are boxes of 10 x 10.
"""

from __future__ import annotations

from typing import Any

import torch

from mini_fsod.detector.batch import Proposals, ScoredProposals, Targets
from mini_fsod.loader.resident import ScoredBoxes

BASE_CLASSES = 2

A, B, C, D = ([20.0 * n, 0.0, 20.0 * n + 10, 10.0] for n in range(4))
NEAR_A, FAR_A = [2.0, 0.0, 12.0, 10.0], [5.0, 0.0, 15.0, 10.0]  # IoU with A: 0.67 and 0.33
HALF_A = [0.0, 0.0, 10.0, 5.0]  # IoU with A: exactly 0.5
EMPTY = [0.0, 0.0, 0.0, 0.0]

Row = tuple[list[float], int, float]  # box, label, score


def instances(*images: list[Row], width: int | None = None) -> ScoredBoxes:
    """Padded as a batch is: empty boxes that are not valid, with a score of 1."""
    rows = max([width or 0, *map(len, images)])
    boxes, labels = torch.zeros(len(images), rows, 4), torch.zeros(len(images), rows).long()
    scores, valid = torch.ones(len(images), rows), torch.zeros(len(images), rows).bool()
    for i, image in enumerate(images):
        for k, (box, label, score) in enumerate(image):
            boxes[i, k], labels[i, k] = torch.tensor(box), label
            scores[i, k], valid[i, k] = score, True
    return ScoredBoxes(boxes, labels, valid, scores)


def targets(*images: list[Row], width: int | None = None) -> Targets:
    return Targets(*instances(*images, width=width)[:3])


def rows_of(boxes: ScoredBoxes, image: int = 0) -> list[Row]:
    """The valid rows of an image."""
    valid = boxes.valid[image].tolist()
    columns = (boxes.boxes[image].tolist(), boxes.labels[image].tolist())
    scores = boxes.scores[image].tolist()
    return [
        (box, label, round(score, 4))
        for box, label, score, keep in zip(*columns, scores, valid, strict=True)
        if keep
    ]


def candidates(scores: Any, boxes: Any, iou: Any = None, valid: Any = None) -> ScoredProposals:
    """One image: scores (P, 4), a box for each proposal whatever the class, IoU (P,)."""
    score, box = torch.tensor(scores).view(1, -1, 4), torch.tensor(boxes).view(1, -1, 4)
    is_valid = torch.ones(box.shape[:2]).bool() if valid is None else torch.tensor([valid])
    proposals = Proposals(box, torch.zeros(box.shape[:2]), is_valid)
    by_class = box[:, :, None].expand(-1, -1, 4, -1)
    return ScoredProposals(proposals, score, by_class, None if iou is None else torch.tensor([iou]))
