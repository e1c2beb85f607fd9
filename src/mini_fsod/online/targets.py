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
from mini_fsod.data.dataset import NO_BOXES, Boxes, Dataset, Floats, Ints
from mini_fsod.data.subsets import is_of, is_target, united
from mini_fsod.detector.batch import Targets, join_targets
from mini_fsod.detector.model import Detector
from mini_fsod.files import real
from mini_fsod.labels import LabelMap
from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.extra import MinedExtra
from mini_fsod.mining.names import REVIEWED
from mini_fsod.mining.overlap import iou, pairs_within
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
    rejected: Boxes = NO_BOXES  # places where a person has seen no object of that class


def base_and_pool(
    data: Dataset, labels: LabelMap, pool: Pool, candidates: Candidates | None
) -> TrainingSet:
    """Base boxes and the pool. There is no background loss on `candidates`, chosen or not; but on
    rejected ones, which are background.

    `data` has the classes of the label map and all boxes; novel ones are left out here.
    """
    first = len(labels.base)
    ignored = NO_BOXES
    rejected = _of_novel(pool.rejected, first)
    if candidates is not None:
        ignored = Boxes.of(candidates.image, candidates.xywh, candidates.label + first)
        ignored = _without_places(ignored, rejected)
    return TrainingSet(
        data.with_boxes(data.boxes.take(is_of(data, labels.base))),
        Boxes.of(pool.image, pool.xywh, pool.label + first),  # pools are sorted by image already
        _training_scores(pool),
        ignored,
        rejected,
    )


def _of_novel(boxes: Boxes, first: int) -> Boxes:
    """Boxes with labels of the label map, whose novel classes begin at `first`."""
    return replace(boxes, label=boxes.label + first)


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
    return TrainingSet(base, hidden, np.ones(len(hidden)), NO_BOXES)


def with_shots(training: TrainingSet, shots: Dataset, labels: LabelMap) -> TrainingSet:
    """Add the K shots to the annotated boxes; mined boxes that repeat one are dropped. Those that a
    person has accepted are dropped only for a shot of their class: the object stays.

    A shot's image that is not in the data yet is added with all of its shots, base ones included.
    File names of both must be relative to the same folder (`data.subsets.renamed_as_in`).
    """
    data, boxes = training.data, shots.boxes
    new = ~np.isin(shots.files, data.files)[boxes.image]
    added = boxes.take(boxes.sound & (is_of(shots, labels.novel) | new))
    both = united(data, shots.with_boxes(added))
    novel = both.boxes.take(is_of(both, labels.novel))
    mined, shot = pairs_within(training.mined.image, novel.image)
    repeats = np.zeros(len(training.mined), dtype=np.bool_)
    same = iou(training.mined.xywh[mined], novel.xywh[shot]) >= SAME_OBJECT
    same &= (training.scores[mined] < ACCEPTED) | (training.mined.label[mined] == novel.label[shot])
    repeats[mined[same]] = True
    return replace(
        training, data=both, mined=training.mined.take(~repeats), scores=training.scores[~repeats]
    )


def with_extra(training: TrainingSet, extra: MinedExtra, labels: LabelMap) -> TrainingSet:
    """Add the extra images in which something was mined, behind the others, under full paths.

    Nobody has annotated them, base objects included, so nothing that may be an object there is
    taught as background. Extra images without a mined box are left out: they could only teach
    background, and a large set of them would leave few iterations to the annotated images.
    """
    data, first = training.data, len(training.data)
    shown = np.unique(extra.pool.image)
    mined = Boxes.of(extra.pool.image, extra.pool.xywh, extra.pool.label + len(labels.base))
    new = extra.data.with_boxes(mined).select(shown)
    rejected = _of_novel(extra.pool.rejected, len(labels.base))
    unsure = extra.data.with_boxes(_without_places(extra.unsure, rejected)).select(shown).boxes
    rejected = extra.data.with_boxes(rejected).select(shown).boxes
    both = replace(
        data,
        ids=(*data.ids, *(f"extra {id_}" for id_ in new.ids)),
        files=(*data.files, *(real(new.path(i)).as_posix() for i in range(len(new)))),
        sources=(*data.sources, *new.sources),
        sizes=np.concatenate([data.sizes, new.sizes]),
        short_ids=(),
        subsets={},
    )
    return TrainingSet(
        both,
        training.mined.joined(replace(new.boxes, image=new.boxes.image + first)),
        np.concatenate([training.scores, _training_scores(extra.pool)]),
        training.ignored.joined(replace(unsure, image=unsure.image + first)),
        training.rejected.joined(replace(rejected, image=rejected.image + first)),
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
    ignore = outside_objects(ignored, objects) if drop_nested else ignored.valid
    rows = join_targets(objects, ignored._replace(valid=torch.zeros_like(ignored.valid)))
    empty = ~objects.valid.any(1)
    return rows._replace(
        ignore=torch.cat([torch.zeros_like(objects.valid), ignore], 1),
        weights=torch.cat([ones, weight * ones_mined, ones_ignored], 1),
        box_weights=torch.cat([ones, has_box_loss.float(), ones_ignored], 1),
        no_negatives=empty if online.images == "no_background" else None,
    )
