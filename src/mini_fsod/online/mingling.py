"""Adaptive mingling of the teacher's boxes and the offline pool (paper, Eq. 6 and 7)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mini_fsod.data.overlap import NESTED
from mini_fsod.detector.batch import ScoredProposals, Targets
from mini_fsod.detector.boxes import gather_rows, pairwise_iou
from mini_fsod.detector.nms import nms
from mini_fsod.detector.postprocess import select
from mini_fsod.loader.resident import ScoredBoxes

MAX_INSTANCES = 32  # the most boxes that the teacher may find in an image
IN_NMS = 16  # (proposal, class) pairs that enter NMS for each instance that may come out of it
NESTING_ROUNDS = 8  # chains of nested boxes are never longer in practice
SAME_OBJECT = 0.5  # IoU from which two boxes mean the same object
ACCEPTED = (
    2.0  # score in training of a pool's box that a person has accepted; others have at most 1
)


def found_by_teacher(
    candidates: ScoredProposals,
    base_classes: int,
    delta: float,
    nms_iou: float,
    use_iou: bool,
    most: int = MAX_INSTANCES,
) -> ScoredBoxes:
    """I of Eq. 6: the teacher's instances of novel classes with a score of at least delta.

    With `use_iou` the score is sqrt(s * iou), Eq. 7. NMS per class, then the best `most` boxes of
    each image. Without proposals, or with no score of at least delta, nothing is valid. NaN scores
    are dropped.
    """
    scores = candidates.scores[..., base_classes:]
    if use_iou:
        assert candidates.iou is not None
        scores = (scores * candidates.iou[..., None]).sqrt()
    allowed = (scores >= delta) & candidates.proposals.valid[..., None]
    found = _select(candidates.boxes[:, :, base_classes:], scores, allowed, nms_iou, most)
    return found._replace(labels=torch.where(found.valid, found.labels + base_classes, 0))


def base_objects_of_teacher(
    candidates: ScoredProposals,
    missing: Tensor,
    sure: float,
    nms_iou: float,
) -> ScoredBoxes:
    """The teacher's instances of base classes whose labels are missing (B, base classes) in an
    image, with a score of at least `sure`; otherwise as `found_by_teacher`.
    """
    base_classes = missing.shape[1]
    scores = candidates.scores[..., :base_classes]
    allowed = (scores >= sure) & candidates.proposals.valid[..., None] & missing[:, None, :]
    return _select(candidates.boxes[:, :, :base_classes], scores, allowed, nms_iou, MAX_INSTANCES)


def _select(
    boxes: Tensor, scores: Tensor, allowed: Tensor, nms_iou: float, most: int
) -> ScoredBoxes:
    found = select(
        boxes,
        scores,
        allowed,
        nms_iou=nms_iou,
        detections=most,
        candidates=IN_NMS * most,
    )
    return ScoredBoxes(found.boxes, found.labels, found.valid, found.scores)


def mingle(
    online: ScoredBoxes,
    offline: ScoredBoxes,
    nms_iou: float,
    by_class: bool,
    keep_pool: bool = False,
) -> tuple[ScoredBoxes, Tensor]:
    """I' = NMS([I, H]) of Eq. 6: the mined boxes that the student learns from, best first.

    The second result, (B, M) bool, marks the teacher's boxes; the other valid ones are the pool's.
    Of equal scores the teacher's box comes first. `by_class=False`: a better box of another class
    suppresses a mined one too. `keep_pool`: all of H ranks before all of I. Boxes that a person has
    accepted all stay, and suppress what overlaps them. Both parts may be empty.
    """
    boxes, labels, valid, scores = (
        torch.cat(pair, dim=1) for pair in zip(online[:4], offline[:4], strict=True)
    )
    rank = scores
    if keep_pool:  # the teacher's scores are at most 1, so every pool box ranks first
        rank = torch.cat([online.scores, 1 + offline.scores], dim=1)
    order = torch.where(valid, rank, -1.0).argsort(dim=1, descending=True, stable=True)
    boxes = gather_rows(boxes, order)
    labels, scores, valid = (t.gather(1, order) for t in (labels, scores, valid))
    accepted = valid & (scores >= ACCEPTED)
    same = labels[:, :, None] == labels[:, None, :] if by_class else True
    taken = ((pairwise_iou(boxes, boxes) > nms_iou) & same & accepted[:, None, :]).any(-1)
    kept = nms(boxes, valid & ~taken, nms_iou, labels if by_class else None)
    kept = kept | accepted  # taken boxes are those that overlap one, and these boxes themselves
    return ScoredBoxes(boxes, labels, kept, scores), kept & (order < online.valid.shape[1])


def without_nested(instances: ScoredBoxes) -> ScoredBoxes:
    """Drop boxes that lie inside, or around, a better kept box of their class.

    Boxes (B, M) must be sorted, best first, as `mingle` returns them; M may be 0. A dropped box
    suppresses nothing: of a bird, a box around it and a second bird, and that second bird, both
    birds stay. All boxes are kept at the start, and each round settles one more box of a chain.
    Boxes that a person has accepted stay.
    """
    boxes, labels = instances.boxes, instances.labels
    common, area, other_area = _shared_area(boxes, boxes)
    nested = common > NESTED * torch.minimum(area, other_area)  # (B, M, M)
    nested = (nested & (labels[:, :, None] == labels[:, None, :])).tril(-1)
    kept = instances.valid
    accepted = instances.scores >= ACCEPTED
    for _ in range(NESTING_ROUNDS):
        kept = instances.valid & (accepted | ~(nested & kept[:, None, :]).any(-1))
    return instances._replace(valid=kept)


def outside_objects(regions: Targets, objects: Targets) -> Tensor:
    """(B, N) which valid regions (B, N) do not lie inside a valid object (B, G) of their class.

    A region inside an object is a part of it, so it is background, as inside boxes that people
    drew: if it carried no loss, the detector could become as sure of a wheel as of a motorbike. A
    region around a mined box is no part: the mined box may be the wheel. N and G may be 0.
    """
    same = (regions.labels[:, :, None] == objects.labels[:, None, :]) & objects.valid[:, None, :]
    common, area, _ = _shared_area(regions.boxes, objects.boxes)
    return regions.valid & ~((common > NESTED * area) & same).any(-1)


def _shared_area(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For all pairs of boxes (B, N, 4) and (B, M, 4): the area of their intersection (B, N, M), and
    the areas of the boxes (B, N, 1) and of the others (B, 1, M).
    """
    corner = torch.maximum(boxes[:, :, None, :2], others[:, None, :, :2])
    common = (torch.minimum(boxes[:, :, None, 2:], others[:, None, :, 2:]) - corner).clamp(min=0)
    area, other_area = ((of[..., 2:] - of[..., :2]).prod(-1) for of in (boxes, others))
    return common.prod(-1), area[:, :, None], other_area[:, None, :]


def without_known(instances: ScoredBoxes, boxes: Tensor, valid: Tensor) -> ScoredBoxes:
    """Drop the instances that overlap one of the annotated boxes (B, G, 4) where `valid` (B, G).

    An annotated object is known, whatever class was mined there. Boxes that a person has accepted
    stay. G may be 0.
    """
    known = (pairwise_iou(instances.boxes, boxes) >= SAME_OBJECT) & valid[:, None, :]
    accepted = instances.scores >= ACCEPTED
    return instances._replace(valid=instances.valid & (accepted | ~known.any(-1)))


def without_rejected(instances: ScoredBoxes, rejected: Targets) -> ScoredBoxes:
    """Drop the teacher's instances at places (B, G) where a person has seen none of their class."""
    return instances._replace(valid=instances.valid & ~same_object(instances, rejected))


def best_overlap(boxes: ScoredBoxes, others: ScoredBoxes | Targets) -> Tensor:
    """(B, M) the highest IoU of each valid box with a valid other box of its class; else 0."""
    same = (boxes.labels[:, :, None] == others.labels[:, None, :]) & others.valid[:, None, :]
    comparable = same & boxes.valid[:, :, None]  # (B, M, G)
    overlap = torch.where(comparable, pairwise_iou(boxes.boxes, others.boxes), 0.0)
    return F.pad(overlap, (0, 1)).amax(-1)  # G may be 0


def same_object(boxes: ScoredBoxes, others: ScoredBoxes | Targets) -> Tensor:
    """(B, M) which valid boxes overlap a valid other box of their class by an IoU of 0.5."""
    return best_overlap(boxes, others) >= SAME_OBJECT
