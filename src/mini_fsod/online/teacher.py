"""Teacher and student (paper, section 3.4).

The teacher finds novel objects in the weak view of a batch, the student learns from them in the
strong view. All shapes are fixed and nothing waits for the device, so CUDA can record the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mini_fsod.config.schema import Mine, Online
from mini_fsod.detector.batch import PaddedBoxes, ScoredProposals, Targets, join_targets
from mini_fsod.detector.model import Detector
from mini_fsod.labels import LabelMap
from mini_fsod.loader.resident import ScoredBoxes
from mini_fsod.online.mingling import (
    SAME_OBJECT,
    base_objects_of_teacher,
    best_overlap,
    found_by_teacher,
    mingle,
    same_object,
    without_known,
    without_nested,
    without_rejected,
)
from mini_fsod.online.targets import with_mined
from mini_fsod.train.step import Losses


class TeacherInputs(NamedTuple):
    """A batch of B images for `losses_with_teacher`."""

    weak: Tensor  # (B, 3, H, W) the teacher's view
    strong: Tensor  # (B, 3, H, W) the student's view, with the same geometry
    sizes: Tensor  # (B, 2)
    truth: Targets  # base boxes, and the shots where they are trained on
    pool: ScoredBoxes  # H
    ignored: Targets  # regions without background loss
    hidden: Targets  # the hidden novel objects, for the gauge `right` alone
    rejected: Targets  # places of the review without an object of that class
    draw: Tensor  # () int64: decides which anchors and RoIs are sampled
    # (B, base classes) bool: whether labels of each base class are missing in each image, so that
    # the teacher's own detections join them; None: nowhere
    missing: Tensor | None = None


def losses_with_teacher(
    student: Detector,
    teacher: Detector,
    labels: LabelMap,
    online: Online,
    mine: Mine,
    nms_iou: float,
    truth_known: bool,
    sure: float | None = None,
) -> Losses:
    """The student's losses on the strong view, and gauges of the self-training.

    Targets are the ground truth and the mingled boxes (Eq. 6) that do not lie on a shot. Where base
    labels are missing, base objects that the teacher finds with a score of at least `sure` join the
    ground truth.
    `truth_known`: the hidden objects are annotated, so a gauge can count the right mined boxes.
    """
    base_classes = len(labels.base)

    def losses(inputs: TeacherInputs) -> dict[str, Tensor]:
        truth, pool = inputs.truth, inputs.pool
        is_base = truth.valid & (truth.labels < base_classes)
        with torch.no_grad():
            extra = PaddedBoxes(pool.boxes, pool.valid) if online.mingle.rpn else None
            candidates = teacher.infer(inputs.weak, inputs.sizes, extra)  # Y of Eq. 6
            found = found_by_teacher(
                candidates, base_classes, online.delta, nms_iou, online.iou_branch
            )
            found = without_rejected(found, inputs.rejected)
            known = truth.valid if mine.drop_on_base else truth.valid & ~is_base
            from_pool = pool._replace(valid=pool.valid & online.mingle.rcnn)
            found, from_pool = (
                without_known(boxes, truth.boxes, known) for boxes in (found, from_pool)
            )
            mined, by_teacher = mingle(
                found,
                from_pool,
                nms_iou,
                by_class=online.mingle.nms == "class",
                keep_pool=online.mingle.keep_pool,
            )
            if mine.drop_nested:
                mined = without_nested(mined)
                by_teacher = by_teacher & mined.valid
            if inputs.missing is not None and sure is not None:
                others = base_objects_of_teacher(candidates, inputs.missing, sure, nms_iou)
                for known_boxes in (truth, mined):
                    others = without_known(others, known_boxes.boxes, known_boxes.valid)
                truth = join_targets(truth, Targets(*others[:3]))
                is_base = truth.valid & (truth.labels < base_classes)
            watched = gauges(found, pool, mined, by_teacher, is_base, labels)
            watched["confidence"] = confidence(candidates)
            if truth_known:
                right = same_object(mined, inputs.hidden)
                watched["right"] = right.sum() / len(inputs.weak)
        one = torch.ones((), device=truth.boxes.device, requires_grad=True)
        has_box_loss = {"all": mined.valid, "pool": ~by_teacher, "none": ~mined.valid}
        targets = with_mined(
            truth,
            Targets(*mined[:3]),
            inputs.ignored,
            online.mined_weight * one,
            has_box_loss[online.mined_boxes],
            online,
            mine.drop_nested,
        )
        learnt = student.losses(inputs.strong, inputs.sizes, targets, inputs.draw)
        return learnt | watched | {"mined_loss": loss_on_mined(learnt, one)}

    return losses


def loss_on_mined(losses: Mapping[str, Tensor], one: Tensor) -> Tensor:
    """() the part of the losses' sum that samples on mined boxes contribute.

    `one` () = 1 is a factor of their weights and the sum is linear in it, so this is the derivative
    of the sum. Computing it does not go back through the network.
    """
    total = torch.stack(list(losses.values())).sum()
    return torch.autograd.grad(total, one, retain_graph=True)[0]


def gauges(
    found: ScoredBoxes,
    pool: ScoredBoxes,
    mined: ScoredBoxes,
    by_teacher: Tensor,
    is_base: Tensor,
    labels: LabelMap,
) -> dict[str, Tensor]:
    """Numbers of boxes per image, each () float32: means over iterations and processes, and ratios
    of such means, are exact.

    `mined` boxes that are trained on, of which `online` are the teacher's and `offline` the pool's;
    `base` boxes; boxes that the teacher `found` before mingling, also per class; boxes of the
    `pool`, of which the teacher finds `agreed` too, and the sum of these pairs' IoU, `overlap`.
    """
    images = len(is_base)
    novel = torch.arange(len(labels.base), len(labels.classes), device=is_base.device)
    is_class = (found.labels[..., None] == novel) & found.valid[..., None]  # (B, M, classes)
    by_class = is_class.sum((0, 1)) / images
    overlap = best_overlap(pool, found)
    agreed = overlap >= SAME_OBJECT
    return {
        "mined": mined.valid.sum() / images,
        "online": by_teacher.sum() / images,
        "offline": (mined.valid & ~by_teacher).sum() / images,
        "base": is_base.sum() / images,
        "pool": pool.valid.sum() / images,
        "agreed": agreed.sum() / images,
        "overlap": (overlap * agreed).sum() / images,
        "found": found.valid.sum() / images,
        **{f"found_{name}": n for name, n in zip(labels.novel, by_class.unbind(), strict=True)},
    }


def confidence(candidates: ScoredProposals) -> Tensor:
    """() the highest score of any class in an image, mean over the images; near 0 where the teacher
    takes everything for background.
    """
    scores = candidates.scores.amax(-1).masked_fill(~candidates.proposals.valid, 0.0)
    return scores.amax(-1).mean()
