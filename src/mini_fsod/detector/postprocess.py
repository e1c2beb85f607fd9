"""From scores and boxes of every proposal and class to the final detections."""

from __future__ import annotations

import torch
from torch import Tensor

from mini_fsod.detector.batch import Detections
from mini_fsod.detector.boxes import gather_rows, top
from mini_fsod.detector.nms import nms

SMALLEST_SIDE = 1e-2  # of a detection, in pixels


def select(
    boxes: Tensor,
    scores: Tensor,
    allowed: Tensor,
    *,
    nms_iou: float,
    detections: int,
    candidates: int | None,
) -> Detections:
    """NMS within each class, then the best `detections` of all classes.

    boxes (B, P, C, 4), scores (B, P, C), allowed (B, P, C) bool: the pairs that may become
    detections, for example those above the score threshold. The threshold may be on other scores
    than these, which only rank (Eq. 7). Nothing allowed gives zero detections, all padding.

    NMS gets the best `candidates` pairs. That is exact when no more are allowed, or when they
    already give all detections, since only better boxes suppress a box; the flag `exact` says
    whether it was. None takes as many as any image has, which waits for the device.
    """
    classes = scores.shape[2]
    sides = boxes[..., 2:] - boxes[..., :2]
    allowed = (allowed & (sides >= SMALLEST_SIDE).all(-1)).flatten(1)
    number = allowed.sum(1)
    width = min(allowed.shape[1], int(number.max()) if candidates is None else candidates)

    ranked, rows = top(scores.flatten(1).masked_fill(~allowed, -torch.inf), width)
    valid = ranked > -torch.inf
    best = gather_rows(boxes.flatten(1, 2), rows)
    label = rows % classes
    keep = nms(best, valid, nms_iou, group=label)
    exact = (number <= width) | (keep.sum(1) >= detections)

    # Already sorted: kept boxes move to the front in their order, padding fills the rest.
    out = min(detections, width)
    order = torch.argsort((~keep).to(torch.int32), dim=1, stable=True)[:, :out]
    found = keep.gather(1, order)
    return Detections(
        boxes=gather_rows(best, order) * found[..., None],
        scores=torch.where(found, ranked.gather(1, order), 0.0),
        labels=torch.where(found, label.gather(1, order), 0),
        valid=found,
        proposal=torch.where(found, rows.gather(1, order) // classes, 0),
        exact=exact,
    )
