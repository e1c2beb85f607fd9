"""From pairs to candidates: the population that thresholds are computed from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_fsod.data.dataset import Bools, Boxes, Floats, Ints
from mini_fsod.data.overlap import NESTED, greedy_nms, iou, nesting, pairs_within
from mini_fsod.mining.calibration import calibrated, prototype_calibrated
from mini_fsod.mining.pairs import Pairs

NMS_IOU = 0.5
PER_IMAGE = 100
ON_BASE_IOU = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """n candidates, by image and, within an image, best first."""

    image: Ints  # (n,) index of the image in the data set
    label: Ints  # (n,) index among the novel classes
    xywh: Floats  # (n, 4) in the image's own pixels
    score: Floats  # (n,) calibrated (Eq. 4); the detector's own without a discriminator
    score_detector: Floats  # (n,)
    cosine: Floats | None  # (n,) Eq. 3, clamped at 0; None without a discriminator

    def __len__(self) -> int:
        return len(self.image)

    def take(self, index: npt.NDArray[Any]) -> Candidates:
        """The candidates at these indices, or where this mask is true."""
        cosine = None if self.cosine is None else self.cosine[index]
        others = {n: getattr(self, n)[index] for n in self.__slots__ if n != "cosine"}
        return Candidates(**others, cosine=cosine)


def select_candidates(
    pairs: Pairs,
    tau: float = 1.0,
    on_base: Boxes | None = None,
    nms_iou: float = NMS_IOU,
    per_image: int = PER_IMAGE,
    whiten: bool = False,
    refine: int = 0,
    compete: float = 0.0,
    by_prototypes: bool = False,
) -> Candidates:
    """The inference results of Eq. 1, with the scores of Eq. 4; zero pairs give zero candidates.

    NMS by class, then the best `per_image` of an image, then without those on a box of `on_base`
    (IoU 0.5), base ground truth of the same images. That comes last: the second best box around a
    horse is no cow either, so what a dropped box suppressed does not come back.

    With features of crops, `whiten`, `refine` (compare with the mean of so many of the best) and
    `compete` (subtract that share of the similarity to another new class) say how they are
    compared; a box that is more like another new class has score 0. `by_prototypes`: the detector's
    score is DeFRCN's, its mean with the cosine; it needs one. Ties are broken by the detector's
    score, then class and box, so that the order of the pairs does not matter.
    """
    rows = np.flatnonzero((pairs.xywh[:, 2:] > 0).all(axis=1))
    image, label = pairs.image[rows].astype(np.int64), pairs.label[rows].astype(np.int64)
    score = pairs.score[rows].astype(np.float64)
    crops = pairs.crops.whitened() if pairs.crops is not None and whiten else pairs.crops
    cosine = None
    if pairs.products is not None:
        cosine = pairs.products.cosine(pairs.proposal[rows], label, tau)
    elif crops is not None:
        cosine = crops.similarity_to_shots(rows, label, tau)
    if by_prototypes:
        assert cosine is not None  # `check_mining`
        score = prototype_calibrated(score, cosine)
    found = Candidates(
        image,
        label,
        pairs.xywh[rows].astype(np.float64),
        score if cosine is None else calibrated(score, cosine),
        score,
        cosine,
    )
    group = _image_and_class(found)
    order = _best_first(found, group)
    kept = order[greedy_nms(found.xywh[order], group[order], nms_iou, per_image)]
    kept = kept[_best_first(found.take(kept), image[kept])]
    rank = np.arange(len(kept)) - np.searchsorted(image[kept], image[kept])
    kept = kept[rank < per_image]
    if on_base is not None:
        kept = kept[~_overlaps(found.take(kept), on_base)]
    found, rows = found.take(kept), rows[kept]
    if crops is not None and refine:
        if compete:
            cosine = crops.competing_similarity(
                rows, found.label, found.score_detector, refine, compete, tau
            )
        else:
            cosine = crops.similarity_to_best(rows, found.label, found.score, refine, tau)
        found = replace(found, score=calibrated(found.score_detector, cosine), cosine=cosine)
        found = found.take(_best_first(found, found.image))
    return found


def not_nested(found: Candidates) -> Bools:
    """(n,) which candidates are neither inside nor around a better one of their class.

    A wheel is no motorbike, nor is a flock a bird.
    """
    group = _image_and_class(found)
    order = _best_first(found, group)
    kept = greedy_nms(found.xywh[order], group[order], NESTED, len(found), nesting)
    mask = np.zeros(len(found), dtype=np.bool_)
    mask[order[kept]] = True
    return mask


def _image_and_class(found: Candidates) -> Ints:
    """(n,) the same number for candidates of one image and class."""
    return np.asarray(found.image * (found.label.max(initial=0) + 1) + found.label)


def _best_first(found: Candidates, group: Ints) -> Ints:
    """Indices that sort by group, then score, then whatever tells two candidates apart."""
    order = np.lexsort((-found.score, group))
    same = (np.diff(group[order]) == 0) & (np.diff(found.score[order]) == 0)
    tied = np.zeros(len(order), dtype=np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    # nearly all scores differ, and six more sort keys are slow for a million pairs
    few = order[tied]
    x, y, width, height = found.xywh[few].T
    keys = (height, width, y, x, found.label[few], -found.score_detector[few])
    order[tied] = few[np.lexsort((*keys, -found.score[few], group[few]))]
    return order


def _overlaps(found: Candidates, boxes: Boxes) -> Bools:
    """(n,) whether each candidate overlaps one of the boxes of its image."""
    boxes = boxes.take(boxes.sound)
    row, box = pairs_within(found.image, boxes.image)
    hit = iou(found.xywh[row], boxes.xywh[box]) >= ON_BASE_IOU
    mask = np.zeros(len(found), dtype=np.bool_)
    mask[row[hit]] = True
    return mask
