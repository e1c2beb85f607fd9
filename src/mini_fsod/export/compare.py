"""Whether an ONNX file finds what the detector finds: exports are known to lose accuracy silently.

Two programs that compute the same network differ in the last bits. Rarely that decides whether a
box passes a threshold of NMS, so a few of the detections may have no partner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mini_fsod.predict.prediction import Prediction


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What counts as equal."""

    box: float  # largest difference of coordinates of a pair, in pixels
    score: float  # largest difference of scores of a pair
    lone: float  # largest share of detections without a partner


SAME_PIXELS = Tolerance(box=0.5, score=1e-3, lone=0.01)
# Where the graph reduces the picture itself: single pixels differ from Pillow's by one step of 255.
# Of a detector of the demo's digits and one with random weights, sound files had no detection
# without a partner within this; without Pillow's filter, or half a pixel aside, 25 % had none.
OWN_REDUCTION = Tolerance(box=1.0, score=1e-2, lone=0.05)


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """Detections of two models in the same pictures."""

    pictures: int
    detections: int  # of the first model
    lone: int  # detections of either model that the other one should have, but has not
    box: float  # largest difference of coordinates of a pair, in pixels
    score: float  # largest difference of scores of a pair
    tolerance: Tolerance

    @property
    def equal(self) -> bool:
        return self.lone <= self.tolerance.lone * self.detections


def compare(
    first: Sequence[Prediction],
    second: Sequence[Prediction],
    threshold: float,
    most: int,
    tolerance: Tolerance = SAME_PIXELS,
) -> ModelComparison:
    """Pair the detections of two models, picture by picture.

    Partners have the same class, and boxes and scores within the tolerance. Detections whose score
    is as near to what cuts the list, the threshold or the last of `most` detections, need none.
    """
    detections, lone, box, score = 0, 0, 0.0, 0.0
    for a, b in zip(first, second, strict=True):
        partner, box_difference, score_difference = _partners(a, b, tolerance)
        paired = partner >= 0
        detections += len(a)
        box = max([box, *box_difference[paired].tolist()])
        score = max([score, *score_difference[paired].tolist()])
        without_partner = np.ones(len(b), dtype=np.bool_)
        without_partner[partner[paired]] = False
        for found, alone in ((a, ~paired), (b, without_partner)):
            full = len(found) == most
            cut = max(threshold, float(found.scores[-1]) if full else 0.0)
            lone += int((found.scores[alone] > cut + tolerance.score).sum())
    return ModelComparison(len(first), detections, lone, box, score, tolerance)


def _partners(
    a: Prediction, b: Prediction, tolerance: Tolerance
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each detection of a: the row in b or -1, and the differences of box and score.

    Each row of b is used once, by the best of a first.
    """
    partner = np.full(len(a), -1, dtype=np.int64)
    box, score = np.full(len(a), np.inf), np.full(len(a), np.inf)
    if len(a) and len(b):
        boxes = np.abs(a.boxes[:, None] - b.boxes[None]).max(-1)
        scores = np.abs(a.scores[:, None] - b.scores[None])
        fits = (boxes <= tolerance.box) & (scores <= tolerance.score)
        fits &= a.labels[:, None] == b.labels
        for row in range(len(a)):
            if fits[row].any():
                best = int(np.where(fits[row], boxes[row], np.inf).argmin())
                partner[row], box[row], score[row] = best, boxes[row, best], scores[row, best]
                fits[:, best] = False
    return partner, box, score
