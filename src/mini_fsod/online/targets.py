"""What the re-trained detector learns from: base ground truth, the pool H, and what to ignore."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mini_fsod.data.dataset import NO_BOXES, Boxes, Dataset, Floats, Ints
from mini_fsod.data.subsets import is_of, united
from mini_fsod.detector.batch import Targets
from mini_fsod.detector.model import Detector
from mini_fsod.files import real
from mini_fsod.labels import LabelMap
from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.overlap import iou, pairs_within
from mini_fsod.mining.pool_io import Pool
from mini_fsod.online.mingling import SAME_OBJECT, Instances
from mini_fsod.online.teacher import with_mined
from mini_fsod.train.step import Losses


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """Images with the boxes people drew, and further boxes of the same images."""

    data: Dataset  # classes in the order of the label map; no hidden box among its boxes
    mined: Boxes
    scores: Floats  # (n,) of the mined boxes
    ignored: Boxes  # regions that are not background for sure


@dataclass(frozen=True, slots=True, eq=False)
class Extra:
    """Images without annotations: all that is known of them is what was mined."""

    data: Dataset
    pool: Pool
    unsure: Boxes  # what may be an object there, of any class


def base_truth(
    data: Dataset, labels: LabelMap, pool: Pool, candidates: Candidates | None
) -> Learnt:
    """Base ground truth and the pool. Background on `candidates`, chosen or not, carries no loss.

    data has the classes of the label map and all boxes; novel ones are left out here.
    """
    first = len(labels.base)
    ignored = NO_BOXES
    if candidates is not None:
        ignored = Boxes.of(candidates.image, candidates.xywh, candidates.label + first)
    # Boxes.of sorts by image; so do pools
    return Learnt(
        data.with_boxes(data.boxes.take(is_of(data, labels.base))),
        Boxes.of(pool.image, pool.xywh, pool.label + first),
        pool.score,
        ignored,
    )


def oracle(data: Dataset, labels: LabelMap) -> Learnt:
    """All hidden novel boxes in place of the pool: the ceiling that mining is measured by."""
    novel = data.boxes.take(is_of(data, labels.novel))
    hidden = novel.take(novel.sound & ~novel.crowd & ~novel.ignore)
    base = data.with_boxes(data.boxes.take(is_of(data, labels.base)))
    return Learnt(base, hidden, np.ones(len(hidden)), NO_BOXES)


def with_shots(learnt: Learnt, shots: Dataset, labels: LabelMap) -> Learnt:
    """The K shots are targets too, in their images; mined boxes that repeat one are dropped.

    An image that is not among the others is added with its shots, and nothing else is known of it.
    Names are those of one root (`data.split.among`).
    """
    data, boxes = learnt.data, shots.boxes
    new = ~np.isin(shots.files, data.files)[boxes.image]
    own = boxes.take(boxes.sound & (is_of(shots, labels.novel) | new))
    joined = united(data, shots.with_boxes(own))
    drawn = joined.boxes.take(is_of(joined, labels.novel))
    mine, other = pairs_within(learnt.mined.image, drawn.image)
    repeats = np.zeros(len(learnt.mined), dtype=np.bool_)
    repeats[mine[iou(learnt.mined.xywh[mine], drawn.xywh[other]) >= SAME_OBJECT]] = True
    return replace(
        learnt, data=joined, mined=learnt.mined.take(~repeats), scores=learnt.scores[~repeats]
    )


def with_extra(learnt: Learnt, extra: Extra, labels: LabelMap) -> Learnt:
    """Images without annotations too, those that have a box in their pool.

    Nothing that may be an object there is background, of a base class neither (protocol.md,
    "external images"). All the others could teach background alone, and of a large set they would
    leave few iterations to base boxes. They follow the images that are there, under their full
    paths.
    """
    data, first = learnt.data, len(learnt.data)
    shown = np.unique(extra.pool.image)
    mined = Boxes.of(extra.pool.image, extra.pool.xywh, extra.pool.label + len(labels.base))
    new = extra.data.with_boxes(mined).select(shown)
    unsure = extra.data.with_boxes(extra.unsure).select(shown).boxes
    joined = replace(
        data,
        ids=(*data.ids, *(f"extra {id_}" for id_ in new.ids)),
        files=(*data.files, *(real(new.path(i)).as_posix() for i in range(len(new)))),
        sources=(*data.sources, *new.sources),
        sizes=np.concatenate([data.sizes, new.sizes]),
        short_ids=(),
        subsets={},
    )
    return Learnt(
        joined,
        learnt.mined.joined(replace(new.boxes, image=new.boxes.image + first)),
        np.concatenate([learnt.scores, extra.pool.score]),
        learnt.ignored.joined(replace(unsure, image=unsure.image + first)),
    )


def an_epoch(learnt: Learnt, labels: LabelMap, times: int) -> Ints:
    """The images of an epoch, by index: all, and those with a mined box or a shot so many times."""
    drawn = learnt.data.boxes.image[is_of(learnt.data, labels.novel)]
    shown = np.union1d(learnt.mined.image, drawn)
    return np.concatenate([np.arange(len(learnt.data)), np.tile(shown, times - 1)])


def losses_with_mined(
    detector: Detector, weight: float, box_losses: bool, drop_nested: bool = False
) -> Losses:
    """A detector's losses on ground truth and mined boxes, as a function of tensors alone.

    `weight` multiplies all losses of samples on mined boxes, `box_losses` says whether they have
    any. What overlaps an ignored region is no background, with `drop_nested` unless the region lies
    in a box of its class.
    """

    def losses(
        images: Tensor,
        sizes: Tensor,
        boxes: Tensor,
        labels: Tensor,
        valid: Tensor,
        mined: Tensor,
        mined_labels: Tensor,
        mined_valid: Tensor,
        ignored: Tensor,
        ignored_labels: Tensor,
        ignored_valid: Tensor,
        draw: Tensor,
    ) -> dict[str, Tensor]:
        sure = torch.ones_like(mined[..., 0])  # scores decide nothing without a teacher
        targets = with_mined(
            Targets(boxes, labels, valid),
            Instances(mined, mined_labels, sure, mined_valid),
            Targets(ignored, ignored_labels, ignored_valid),
            torch.full((), weight, device=boxes.device),
            mined_valid & box_losses,
            drop_nested,
        )
        return detector.losses(images, sizes, targets, draw)

    return losses
