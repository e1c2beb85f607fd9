"""What the re-trained detector learns from.

First as arrays, for the whole training: images, base boxes, the pool H, and regions to ignore. Then
as tensors, for a batch: the targets of the losses, and the losses of a training without a teacher.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mini_fsod.config.schema import Mine, Online
from mini_fsod.data.dataset import NO_BOXES, Bools, Boxes, Dataset, Floats, Ints
from mini_fsod.data.overlap import iou, pairs_within
from mini_fsod.data.subsets import is_of, is_target, united
from mini_fsod.detector.batch import Targets, join_targets
from mini_fsod.detector.model import Detector
from mini_fsod.files import real
from mini_fsod.labels import LabelMap
from mini_fsod.mining.base_objects import sort_out
from mini_fsod.mining.mined_images import MinedImages
from mini_fsod.mining.names import REVIEWED
from mini_fsod.mining.pool_io import Pool
from mini_fsod.online.mingling import ACCEPTED, SAME_OBJECT, outside_objects
from mini_fsod.train.step import Losses

# The training set


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSet:
    """Images with their annotated boxes, and further boxes of the same images."""

    data: Dataset  # classes in the order of the label map; no hidden object among its boxes
    mined: Boxes
    scores: Floats  # (n,) of the mined boxes; ACCEPTED where a person has accepted the box
    ignored: Boxes  # regions without background loss
    missing: Bools  # (I, B) whether boxes of each base class may be missing in each image
    rejected: Boxes = NO_BOXES  # places where a person has seen no object of that class


def training_images(
    images: MinedImages,
    labels: LabelMap,
    sure: float | None,
    ignore_candidates: bool,
    shots: Boxes = NO_BOXES,
) -> TrainingSet:
    """Base boxes and the pool; the hidden novel boxes of the data are left out.

    Where base labels are missing, the base detector's detections stand in for them: with a score of
    at least `sure` they are base boxes, unless the pool or a shot has the object. There is no
    background loss on the others, and on novel candidates in images without any label; with
    `ignore_candidates` on no candidate. Rejected places are background for their class all the
    same.
    """
    data, pool, first = images.data, images.pool, len(labels.base)
    mined = Boxes.of(pool.image, pool.xywh, pool.label + first)  # pools are sorted by image already
    rejected = replace(pool.rejected, label=pool.rejected.label + first)
    base, ignored = data.boxes.take(is_of(data, labels.base)), NO_BOXES
    if images.candidates is not None:
        found = images.candidates
        if not ignore_candidates:
            unlabelled = np.flatnonzero(images.missing.all(axis=1))
            found = found.take(np.isin(found.image, unlabelled))
        ignored = Boxes.of(found.image, found.xywh, found.label + first)
        ignored = _without_places(ignored, rejected)
    if images.base is not None:
        labelled, unsure = sort_out(images.base, images.missing, sure, mined.joined(shots))
        base, ignored = base.joined(labelled), ignored.joined(unsure)
    scores = _training_scores(pool)
    return TrainingSet(data.with_boxes(base), mined, scores, ignored, images.missing, rejected)


def _training_scores(pool: Pool) -> Floats:
    """(n,) the scores of a pool, with those of accepted boxes above all others."""
    return np.where(pool.score >= REVIEWED, ACCEPTED, pool.score)


def _without_places(boxes: Boxes, places: Boxes) -> Boxes:
    """The boxes that are not at one of these places of their class."""
    row, place = pairs_within(boxes.image, places.image)
    same = boxes.label[row] == places.label[place]
    same &= iou(boxes.xywh[row], places.xywh[place]) >= SAME_OBJECT
    kept = np.ones(len(boxes), dtype=np.bool_)
    kept[row[same]] = False
    return boxes.take(kept)


def oracle(data: Dataset, labels: LabelMap) -> TrainingSet:
    """All hidden novel boxes instead of the pool: an upper bound for mining."""
    novel = data.boxes.take(is_of(data, labels.novel))
    hidden = novel.take(novel.sound & ~novel.crowd & ~novel.ignore)
    base = data.with_boxes(data.boxes.take(is_of(data, labels.base)))
    missing = np.zeros((len(data), len(labels.base)), dtype=np.bool_)
    return TrainingSet(base, hidden, np.ones(len(hidden)), NO_BOXES, missing)


def with_shots(training: TrainingSet, shots: Dataset, labels: LabelMap) -> TrainingSet:
    """Add the K shots to the annotated boxes; mined boxes that repeat one are dropped. Those that a
    person has accepted are dropped only for a shot of their class: the object stays.

    A shot's image that is not in the data yet is added with all of its boxes: base ones, and those
    to ignore. Base labels are missing in it where they are anywhere. File names of both must be
    relative to the same folder (`data.subsets.renamed_as_in`).
    """
    data, boxes, first = training.data, shots.boxes, len(training.data)
    new = ~np.isin(shots.files, data.files)[boxes.image]
    added = boxes.take(boxes.sound & ~boxes.ignore & (is_of(shots, labels.novel) | new))
    both = united(data, shots.with_boxes(added))
    novel = both.boxes.take(is_of(both, labels.novel))
    mined, shot = pairs_within(training.mined.image, novel.image)
    repeats = np.zeros(len(training.mined), dtype=np.bool_)
    same = iou(training.mined.xywh[mined], novel.xywh[shot]) >= SAME_OBJECT
    same &= (training.scores[mined] < ACCEPTED) | (training.mined.label[mined] == novel.label[shot])
    repeats[mined[same]] = True
    unsure = united(data, shots.with_boxes(boxes.take(boxes.ignore & new))).boxes
    of_new = np.full((len(both) - first, len(labels.base)), training.missing.any())
    return TrainingSet(
        both,
        training.mined.take(~repeats),
        training.scores[~repeats],
        training.ignored.joined(unsure.take(unsure.image >= first)),
        np.concatenate([training.missing, of_new]),
        training.rejected,
    )


def boxes_in(shots: Dataset, data: Dataset) -> Boxes:
    """The boxes of the shots whose images are in the data, as boxes of these images."""
    index = {file: i for i, file in enumerate(data.files)}
    image = np.array([index.get(file, -1) for file in shots.files], dtype=np.int64)
    boxes = replace(shots.boxes, image=image[shots.boxes.image])
    boxes = boxes.take(boxes.image >= 0)
    return boxes.take(np.argsort(boxes.image, kind="stable"))


def with_extra(training: TrainingSet, extra: TrainingSet) -> TrainingSet:
    """Add the extra images in which something was mined, behind the others, under full paths.

    Extra images without a mined box are left out: they could only teach background and what is
    known, and a large set of them would leave few iterations to the annotated images.
    """
    data, first = training.data, len(training.data)
    shown = np.unique(extra.mined.image)
    new, mined, ignored, rejected = (
        extra.data.with_boxes(boxes).select(shown)
        for boxes in (extra.data.boxes, extra.mined, extra.ignored, extra.rejected)
    )

    def behind(boxes: Boxes) -> Boxes:
        return replace(boxes, image=boxes.image + first)

    both = replace(
        data,
        ids=(*data.ids, *(f"extra {id_}" for id_ in new.ids)),
        files=(*data.files, *(real(new.path(i)).as_posix() for i in range(len(new)))),
        sources=(*data.sources, *new.sources),
        sizes=np.concatenate([data.sizes, new.sizes]),
        boxes=data.boxes.joined(behind(new.boxes)),
        short_ids=(),
        subsets={},
    )
    return TrainingSet(
        both,
        training.mined.joined(behind(mined.boxes)),
        np.concatenate([training.scores, extra.scores]),
        training.ignored.joined(behind(ignored.boxes)),
        np.concatenate([training.missing, extra.missing[shown]]),
        training.rejected.joined(behind(rejected.boxes)),
    )


def epoch_images(training: TrainingSet, labels: LabelMap, online: Online) -> Ints:
    """The images of one epoch, by index: those with a mined box or a shot `online.repeat` times.

    `online.images: taught` leaves out images without a target, that is without a base box, a mined
    box and a shot, as mmdetection's `filter_empty_gt` does.
    """
    data = training.data
    shots = data.boxes.image[is_of(data, labels.novel)]
    novel = np.union1d(training.mined.image, shots)
    images = np.arange(len(data))
    if online.images == "taught":
        images = np.union1d(novel, data.boxes.image[is_target(data)])
    return np.concatenate([images, np.tile(novel, online.repeat - 1)])


# The targets of a batch


class MinedInputs(NamedTuple):
    """A batch of B images for `losses_with_mined`."""

    images: Tensor  # (B, 3, H, W)
    sizes: Tensor  # (B, 2)
    truth: Targets  # base boxes, and the shots where they are trained on
    mined: Targets  # the pool H
    ignored: Targets  # regions without background loss
    draw: Tensor  # () int64: decides which anchors and RoIs are sampled


def losses_with_mined(detector: Detector, online: Online, mine: Mine) -> Losses:
    """The detector's losses on ground truth and mined boxes, without a teacher."""

    def losses(inputs: MinedInputs) -> dict[str, Tensor]:
        mined = inputs.mined
        weight = torch.full((), online.mined_weight, device=mined.boxes.device)
        has_box_loss = mined.valid & (online.mined_boxes != "none")
        targets = with_mined(
            inputs.truth, mined, inputs.ignored, weight, has_box_loss, online, mine.drop_nested
        )
        return detector.losses(inputs.images, inputs.sizes, targets, inputs.draw)

    return losses


def with_mined(
    truth: Targets,
    mined: Targets,
    ignored: Targets,
    weight: Tensor,
    has_box_loss: Tensor,
    online: Online,
    drop_nested: bool,
) -> Targets:
    """Ground truth, mined boxes and regions to ignore as one set of targets. Each may be empty.

    `weight` () multiplies all losses of samples on mined boxes; `has_box_loss` (B, M) says which of
    these have box losses too. With `drop_nested` a region inside a target of its class is not
    ignored (`outside_objects`). With `online.images: no_background` an image without any target in
    this batch, visible base box, shot or mined box, has no negatives: a region to ignore could not
    do that, because it ignores by IoU, which small boxes have little of with a whole image.
    """
    ones, ones_mined = torch.ones_like(truth.boxes[..., 0]), torch.ones_like(mined.boxes[..., 0])
    ones_ignored = torch.ones_like(ignored.boxes[..., 0])
    objects = join_targets(truth, mined)
    cut = torch.zeros_like(objects.valid) if objects.ignore is None else objects.ignore
    ignore = outside_objects(ignored, objects) if drop_nested else ignored.valid
    rows = join_targets(objects, ignored._replace(valid=torch.zeros_like(ignored.valid)))
    empty = ~objects.valid.any(1)
    return rows._replace(
        ignore=torch.cat([cut, ignore], 1),
        weights=torch.cat([ones, weight * ones_mined, ones_ignored], 1),
        box_weights=torch.cat([ones, has_box_loss.float(), ones_ignored], 1),
        no_negatives=empty if online.images == "no_background" else None,
    )
