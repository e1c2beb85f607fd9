"""From a test set: the best score threshold of each class, and how sure its AP is.

Pure functions over one class's detections in descending order of score, matched at IoU 0.5 as in
`voc.match_class`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_fsod.data.dataset import Bools, Dataset, Floats, Ints
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.eval.voc import match_class

RESAMPLES = 200
INSIDE = (2.5, 97.5)  # percentiles: the 95 % interval
NUMBERS = 1 << 20  # of a block of resamples


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """The D detections of one class, best first, and its G boxes that count (not difficult)."""

    rows: Ints  # (D,) indices of the detections
    image: Ints  # (D,)
    score: Floats  # (D,)
    tp: Bools  # (D,)
    fp: Bools  # (D,) neither: on a difficult box
    boxes: Ints  # (G,) image of each box


@dataclass(frozen=True, slots=True)
class Operating:
    """A score threshold, and what the detector does with it."""

    score: float
    precision: float
    recall: float
    f1: float

    def to_json(self) -> dict[str, float]:
        return {name: round(getattr(self, name), 4) for name in self.__slots__}


def ranked(data: Dataset, found: DatasetDetections, label: int) -> Ranked:
    """The detections of a class, matched with its boxes. Both may be none."""
    boxes = data.boxes
    truth = np.flatnonzero(boxes.label == label)
    difficult = (boxes.difficult | boxes.crowd | boxes.ignore)[truth]
    rows = np.flatnonzero(found.label == label)
    rows = rows[np.argsort(-found.score[rows], kind="stable")]
    tp, fp = match_class(
        found.image[rows],
        found.xywh[rows],
        found.score[rows],
        boxes.image[truth],
        boxes.xywh[truth],
        difficult,
    )
    return Ranked(
        rows, found.image[rows], found.score[rows], tp, fp, boxes.image[truth][~difficult]
    )


def precision_and_recall(of_class: Ranked) -> tuple[Floats, Floats]:
    """(D,) precision and recall of the detections up to each; 0 and 0 without boxes."""
    true, wrong = np.cumsum(of_class.tp), np.cumsum(of_class.fp)
    precision = true / np.maximum(true + wrong, 1)
    return precision, true / max(len(of_class.boxes), 1)


def best_f1(of_class: Ranked) -> Operating | None:
    """The threshold with the best F1, the highest of equal ones; None where nothing is right."""
    precision, recall = precision_and_recall(of_class)
    both = precision + recall
    f1 = np.divide(2 * precision * recall, both, out=np.zeros_like(both), where=both > 0)
    # equal scores are accepted together
    last = np.append(of_class.score[1:] < of_class.score[:-1], True)[: len(f1)]
    f1 = np.where(last, f1, 0.0)
    if not f1.any():
        return None
    n = int(np.argmax(f1))
    score = np.floor(of_class.score[n] * 1e4) / 1e4  # rounded down, so that this one passes
    return Operating(float(score), float(precision[n]), float(recall[n]), float(f1[n]))


def ap_intervals(
    classes: Mapping[str, Ranked], groups: Mapping[str, tuple[str, ...]], images: int, metric: str
) -> dict[str, list[float]]:
    """95 % intervals in percent of each class's AP50, and of the mean over each group of classes.

    Test images are drawn again with replacement (bootstrap, seed 0). That covers the chance of the
    test set, not of the shots or the training. Classes without boxes are left out.
    """
    rng = np.random.default_rng(0)
    weights = rng.multinomial(images, np.full(images, 1 / images), RESAMPLES) if images else None
    known = {name: one for name, one in classes.items() if len(one.boxes)}
    if weights is None:
        return {}
    values = {name: resampled_ap(one, weights, metric) for name, one in known.items()}
    for group, names in groups.items():
        parts = [values[name] for name in names if name in values]
        if parts:
            stack = np.stack(parts)
            drawn = (~np.isnan(stack)).sum(axis=0)  # classes with a box in each resample
            mean = np.nansum(stack, axis=0) / np.maximum(drawn, 1)
            values[group] = np.where(drawn > 0, mean, np.nan)
    return {
        name: np.round(100 * np.nanpercentile(ap, INSIDE), 2).tolist()
        for name, ap in values.items()
        if not np.isnan(ap).all()
    }


def resampled_ap(of_class: Ranked, weights: Any, metric: str) -> Floats:
    """(R,) AP of a class where image i counts weights[r, i] times; NaN where no box is drawn."""
    result = np.full(len(weights), np.nan)
    step = max(1, NUMBERS // max(len(of_class.image), 1))
    for start in range(0, len(weights), step):
        part = weights[start : start + step]
        positives = part[:, of_class.boxes].sum(axis=1)
        counts = part[:, of_class.image]
        true = np.cumsum(counts * of_class.tp, axis=1)
        all_ = np.cumsum(counts * (of_class.tp | of_class.fp), axis=1)
        precision = true / np.maximum(all_, 1)
        best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        some = np.maximum(positives, 1)
        if metric == "voc07":
            # the best precision from recall k / 10 on, in integers to avoid rounding errors
            levels = [10 * true >= k * some[:, None] for k in range(11)]
            ap = np.mean([np.where(at, best, 0.0).max(axis=1, initial=0.0) for at in levels], 0)
        else:
            ap = (np.diff(true, axis=1, prepend=0) * best).sum(axis=1) / some
        result[start : start + step] = np.where(positives > 0, ap, np.nan)
    return result
