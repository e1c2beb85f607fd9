"""Teacher and student: the student's losses on what the teacher finds in the weak view of the same
pictures (paper, section 3.3), and gauges that tell when self-training goes wrong.

All of it has fixed shapes and waits for nothing: it is part of the step that CUDA records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mini_fsod.detector.batch import Candidates, PaddedBoxes, Targets, joined
from mini_fsod.detector.model import Detector
from mini_fsod.labels import LabelMap
from mini_fsod.online.mingling import (
    SAME_OBJECT,
    Instances,
    apart_from,
    below,
    best_overlap,
    beyond,
    found_by_teacher,
    mingle,
    same_object,
    without_nested,
)
from mini_fsod.train.step import Losses


@dataclass(frozen=True, slots=True)
class Teaching:
    """How the teacher's instances become targets."""

    labels: LabelMap
    ignore_above: float | None = None  # what it finds between this and delta is no background
    nms_iou: float = 0.5
    join_proposals: bool = True  # H joins the teacher's proposals
    join_instances: bool = True  # H joins its instances
    by_class: bool = True
    use_iou: bool = True
    weight: float = 1.0  # of losses on mined boxes
    box_losses: Literal["all", "pool", "none"] = "all"  # on which mined boxes
    keep_pool: bool = False  # the teacher replaces none of the pool
    off_base: bool = False  # no mined boxes on base boxes
    # nor in or around better ones of their class; what lies in them is background, then
    drop_nested: bool = False
    instances: int = 32  # the most the teacher may find in an image
    truth_known: bool = False  # hidden boxes tell the gauges how many mined ones are right


def losses_with_teacher(
    student: Detector, teacher: Detector, how: Teaching, delta: Tensor
) -> Losses:
    """The student's losses on the strong view, and gauges, as a function of tensors alone.

    delta (C,) is the least score of what the teacher finds of each novel class, read at every call.
    Targets are ground truth - base boxes, and the K shots where they are among them - and the
    mingled instances that do not lie on a shot. Regions to ignore carry no background loss.
    """
    first = len(how.labels.base)

    def losses(
        weak: Tensor,
        strong: Tensor,
        sizes: Tensor,
        boxes: Tensor,
        labels: Tensor,
        valid: Tensor,
        mined: Tensor,
        mined_labels: Tensor,
        mined_valid: Tensor,
        mined_scores: Tensor,
        ignored: Tensor,
        ignored_labels: Tensor,
        ignored_valid: Tensor,
        hidden: Tensor,
        hidden_labels: Tensor,
        hidden_valid: Tensor,
        draw: Tensor,
    ) -> dict[str, Tensor]:
        pool = Instances(mined, mined_labels, mined_scores, mined_valid)
        truth = Targets(boxes, labels, valid)
        of_base = valid & (labels < first)
        with torch.no_grad():
            extra = PaddedBoxes(mined, mined_valid) if how.join_proposals else None
            seen = teacher.infer(weak, sizes, extra)  # Y of Eq. 6

            def at_least(score: float | Tensor) -> Instances:
                return found_by_teacher(seen, first, score, how.nms_iou, how.use_iou, how.instances)

            found = at_least(delta)
            drawn = valid if how.off_base else valid & ~of_base
            brought = pool._replace(valid=mined_valid & how.join_instances)
            online, offline = (apart_from(part, boxes, drawn) for part in (found, brought))
            taught, by_teacher = mingle(online, offline, how.nms_iou, how.by_class, how.keep_pool)
            if how.drop_nested:
                taught = without_nested(taught)
                by_teacher = by_teacher & taught.valid
            told = gauges(online, pool, taught, by_teacher, of_base, how.labels)
            told["confidence"] = confidence(seen)
            if how.truth_known:
                ones = torch.ones_like(hidden[..., 0])
                true = Instances(hidden, hidden_labels, ones, hidden_valid)
                told["right"] = same_object(taught, true).sum() / len(weak)
        once = torch.ones((), device=boxes.device, requires_grad=True)
        regions = Targets(ignored, ignored_labels, ignored_valid)
        if how.ignore_above is not None:
            # asked for by itself: of a class with a high delta these could crowd out what is sure
            unsure = below(at_least(how.ignore_above), first, delta)
            regions = joined(regions, Targets(unsure.boxes, unsure.labels, unsure.valid))
        placed = {"all": taught.valid, "pool": ~by_teacher, "none": ~taught.valid}[how.box_losses]
        weight = how.weight * once
        targets = with_mined(truth, taught, regions, weight, placed, how.drop_nested)
        learnt = student.losses(strong, sizes, targets, draw)
        return learnt | told | {"mined_loss": carried(learnt, once)}

    return losses


def with_mined(
    truth: Targets,
    mined: Instances,
    unsure: Targets,
    weight: Tensor,
    placed: Tensor,
    drop_nested: bool,
) -> Targets:
    """Ground truth, mined boxes, and regions to ignore, as one set.

    `weight` () multiplies all losses of samples on mined boxes; those that are `placed` (B, M) well
    enough have box losses. What is `unsure` is ignored; with `drop_nested` only what is no part of
    the others (`beyond`). Any of the three may be empty.
    """
    known, some = torch.ones_like(truth.boxes[..., 0]), torch.ones_like(mined.boxes[..., 0])
    rest = torch.ones_like(unsure.boxes[..., 0])
    objects = joined(truth, Targets(mined.boxes, mined.labels, mined.valid))
    ignored = beyond(unsure, objects) if drop_nested else unsure.valid
    every = joined(objects, unsure._replace(valid=torch.zeros_like(unsure.valid)))
    return every._replace(
        ignore=torch.cat([torch.zeros_like(objects.valid), ignored], 1),
        weights=torch.cat([known, weight * some, rest], 1),
        box_weights=torch.cat([known, placed.float(), rest], 1),
    )


def carried(losses: Mapping[str, Tensor], once: Tensor) -> Tensor:
    """() how much of the losses' sum comes from samples on mined boxes.

    The sum is linear in the factor `once` () = 1 of their weights, so this is its derivative. Only
    the few steps between them are gone back, not the network.
    """
    total = torch.stack(list(losses.values())).sum()
    return torch.autograd.grad(total, once, retain_graph=True)[0]


def gauges(
    found: Instances,
    pool: Instances,
    taught: Instances,
    by_teacher: Tensor,
    of_base: Tensor,
    labels: LabelMap,
) -> dict[str, Tensor]:
    """What to watch: numbers of boxes an image, each () float32, so that means over iterations and
    processes, and quotients of such means, are what they seem to be.

    `mined` boxes that are taught, of them `online` ones of the teacher's and `offline` ones that
    are left of the pool; `base` boxes; what the teacher `found` off the boxes that nothing may be
    mined on, and of each class, before it was mingled; boxes of the `pool`, of them `agreed` ones
    that the teacher finds too, and how much of them its boxes `overlap` (IoU).
    """
    images = len(of_base)
    novel = torch.arange(len(labels.base), len(labels.classes), device=of_base.device)
    each = (found.labels[..., None] == novel) & found.valid[..., None]  # (B, M, classes)
    by_class = each.sum((0, 1)) / images
    overlap = best_overlap(pool, found)
    agreed = overlap >= SAME_OBJECT
    return {
        "mined": taught.valid.sum() / images,
        "online": by_teacher.sum() / images,
        "offline": (taught.valid & ~by_teacher).sum() / images,
        "base": of_base.sum() / images,
        "pool": pool.valid.sum() / images,
        "agreed": agreed.sum() / images,
        "overlap": (overlap * agreed).sum() / images,
        "found": found.valid.sum() / images,
        **{f"found_{name}": n for name, n in zip(labels.novel, by_class.unbind(), strict=True)},
    }


def confidence(seen: Candidates) -> Tensor:
    """() the highest score of any class in an image, mean over the images: near 0 for a teacher
    that takes everything for background.
    """
    scores = seen.scores.amax(-1).masked_fill(~seen.proposals.valid, 0.0)
    return scores.amax(-1).mean()
