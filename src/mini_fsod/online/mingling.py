"""Adaptive mingling: what the teacher finds now, and what was mined before (paper, Eq. 6 and 7)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mini_fsod.detector.batch import Candidates, Targets
from mini_fsod.detector.boxes import gather_rows, pairwise_iou
from mini_fsod.detector.nms import nms
from mini_fsod.detector.postprocess import select
from mini_fsod.mining.overlap import NESTED

IN_NMS = 16  # pairs of a proposal and a class that enter NMS, for each instance that may come out
CHAIN = 8  # in practice no row of boxes, each in or around the one before, is longer
SAME_OBJECT = 0.5  # IoU of two boxes that mean the same object


class Instances(NamedTuple):
    """Boxes of novel classes in B images, padded. Labels are those of the label map."""

    boxes: Tensor  # (B, M, 4)
    labels: Tensor  # (B, M) int64
    scores: Tensor  # (B, M)
    valid: Tensor  # (B, M) bool


def found_by_teacher(
    candidates: Candidates,
    base_classes: int,
    delta: float | Tensor,
    nms_iou: float,
    use_iou: bool,
    most: int,
) -> Instances:
    """I of Eq. 6: the teacher's instances of novel classes with a score of at least delta, M most.

    delta: a number, or (C,) one for each novel class. With `use_iou` the score is sqrt(s iou),
    Eq. 7. NMS by class; the best `most` of an image. Nothing at or above delta, or no proposal:
    nothing is valid. Scores that are not numbers are below any delta.
    """
    scores = candidates.scores[..., base_classes:]
    if use_iou:
        assert candidates.iou is not None
        scores = (scores * candidates.iou[..., None]).sqrt()
    found = select(
        candidates.boxes[:, :, base_classes:],
        scores,
        (scores >= delta) & candidates.proposals.valid[..., None],
        nms_iou=nms_iou,
        detections=most,
        candidates=IN_NMS * most,
        rounds=12,
    )
    labels = torch.where(found.valid, found.labels + base_classes, 0)
    return Instances(found.boxes, labels, found.scores, found.valid)


def below(instances: Instances, base_classes: int, delta: Tensor) -> Instances:
    """Those below delta (C,) of their class, M of them or fewer. M may be 0."""
    sure = instances.scores >= delta[(instances.labels - base_classes).clamp(min=0)]
    return instances._replace(valid=instances.valid & ~sure)


def mingle(
    online: Instances, offline: Instances, nms_iou: float, by_class: bool, keep_pool: bool = False
) -> tuple[Instances, Tensor]:
    """I' = NMS([I, H]) of Eq. 6: the mined instances that the student learns from, best first.

    The second result (B, M) bool: which of them are the teacher's; the other valid ones are the
    pool's. Of equal scores the teacher's box comes first, so that the same box in I and H is I's.
    `by_class` false: a better box of another class replaces a mined one too. `keep_pool`: all of H
    comes before all of I. Either part may be empty; all of H may be replaced, and all of I.
    """
    boxes, labels, scores, valid = (
        torch.cat(pair, dim=1) for pair in zip(online, offline, strict=True)
    )
    rank = scores
    if keep_pool:  # scores are at most 1
        rank = torch.cat([online.scores, 1 + offline.scores], dim=1)
    order = torch.where(valid, rank, -1.0).argsort(dim=1, descending=True, stable=True)
    boxes = gather_rows(boxes, order)
    labels, scores, valid = (t.gather(1, order) for t in (labels, scores, valid))
    kept, _ = nms(boxes, valid, nms_iou, labels if by_class else None)
    return Instances(boxes, labels, scores, kept), kept & (order < online.valid.shape[1])


def without_nested(instances: Instances) -> Instances:
    """Without the boxes that lie in one before them of their class that stays, or around it.

    Instances (B, M) are in order, the best first, as `mingle` gives them. M may be 0. What goes
    takes nothing with it: of a bird, a box around it and another bird, and that bird, both birds
    stay. From "all stay" each round is right for one more box of such a chain.
    """
    boxes, labels = instances.boxes, instances.labels
    common, one, two = _shared(boxes, boxes)
    nested = common > NESTED * torch.minimum(one, two)  # (B, M, M)
    nested = (nested & (labels[:, :, None] == labels[:, None, :])).tril(-1)
    stays = instances.valid
    for _ in range(CHAIN):
        stays = instances.valid & ~(nested & stays[:, None, :]).any(-1)
    return instances._replace(valid=stays)


def beyond(regions: Targets, objects: Targets) -> Tensor:
    """(B, N) which valid regions (B, N) may be something that is not known yet: they do not lie in
    a valid object (B, G) of their class. N and G may be 0.

    What does is a part of it: background, as in every box that people have drawn. Where that
    carries no loss, nothing keeps a detector from being as sure of a wheel as of a motorbike. What
    lies around a mined box is spared: it may be the motorbike.
    """
    same = (regions.labels[:, :, None] == objects.labels[:, None, :]) & objects.valid[:, None, :]
    common, area, _ = _shared(regions.boxes, objects.boxes)
    return regions.valid & ~((common > NESTED * area) & same).any(-1)


def _shared(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of every two boxes (B, N, 4), (B, M, 4): the area in common (B, N, M), and each one's own
    (B, N, 1), (B, 1, M).
    """
    corner = torch.maximum(boxes[:, :, None, :2], others[:, None, :, :2])
    common = (torch.minimum(boxes[:, :, None, 2:], others[:, None, :, 2:]) - corner).clamp(min=0)
    one, two = ((of[..., 2:] - of[..., :2]).prod(-1) for of in (boxes, others))
    return common.prod(-1), one[:, :, None], two[:, None, :]


def apart_from(instances: Instances, boxes: Tensor, valid: Tensor) -> Instances:
    """Without the instances that lie on one of these boxes (B, G, 4) where they are valid (B, G):
    what a person has drawn is known, whatever class was mined there. G may be 0.
    """
    on = (pairwise_iou(instances.boxes, boxes) >= SAME_OBJECT) & valid[:, None, :]
    return instances._replace(valid=instances.valid & ~on.any(-1))


def best_overlap(of: Instances, among: Instances) -> Tensor:
    """(B, M) the best IoU of each valid box with a valid one of its class among the others; 0 where
    either has none.
    """
    same = (of.labels[:, :, None] == among.labels[:, None, :]) & among.valid[:, None, :]
    known = same & of.valid[:, :, None]  # (B, M, G)
    overlap = torch.where(known, pairwise_iou(of.boxes, among.boxes), 0.0)
    return F.pad(overlap, (0, 1)).amax(-1)  # there may be none at all


def same_object(of: Instances, among: Instances) -> Tensor:
    """(B, M) which valid boxes have a valid one of their class among the others, at an IoU of at
    least 0.5. False where either has none.
    """
    return best_overlap(of, among) >= SAME_OBJECT
