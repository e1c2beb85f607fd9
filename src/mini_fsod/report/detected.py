"""Detections on the test set beside the truth: which pictures went best and worst, and their
drawings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from mini_fsod.data.dataset import Dataset, Ints
from mini_fsod.draw import BASE_COLOUR, MANY_BOXES, NOVEL_COLOUR, draw_boxes, read_fitted
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.eval.errors import OTHER_NAMES, Judged, judge_detections, thresholds_of
from mini_fsod.eval.kept_detections import read_kept_detections
from mini_fsod.labels import LabelMap
from mini_fsod.mining.audit import BACKGROUND, FALSE, LOOSE, TRUE
from mini_fsod.mining.contact_sheet import KINDS, RIGHT_COLOUR
from mini_fsod.report.pictures import RunPictures
from mini_fsod.report.run_files import RunFiles


@dataclass(frozen=True, slots=True, eq=False)
class Detected:
    """The detections of the last scored stage, judged at the best threshold of each class."""

    data: Dataset
    labels: LabelMap
    everything: DatasetDetections  # at any score
    thresholds: list[float]  # of each class
    judged: Judged


def read_detected(run: RunFiles, pictures: RunPictures) -> Detected | None:
    """None where detections were not kept, or the data is not here; UserError where they do not
    fit it.
    """
    stage = run.last_scored
    if stage is None or run.errors is None or (path := run.stages[stage].detections) is None:
        return None
    data, labels = pictures.test, pictures.labels
    if data is None or labels is None:
        return None
    names = tuple(run.errors["classes"])
    if names != labels.classes:  # a base detector knows the base classes alone
        labels = LabelMap(tuple(n for n in labels.base if n in names), ())
        data = pictures.test_of(labels)
    found = None if data is None else read_kept_detections(path, data)
    if data is None or found is None:
        return None
    thresholds = thresholds_of(run.errors, labels)
    judged = judge_detections(data, found, thresholds, labels)
    return Detected(data, labels, found, thresholds, judged)


def best_and_worst(detected: Detected, best: int, worst: int) -> tuple[Ints, Ints]:
    """Images in which most new objects are found without an error, and those with most errors.

    Errors are missed and wrong boxes of new classes (of all classes where none is new); equal ones
    are ordered by the surest wrong box.
    """
    data, judged, first = detected.data, detected.judged, len(detected.labels.base)
    first = 0 if not detected.labels.novel else first
    images = len(data)
    truth = (data.boxes.label >= first) & ~data.boxes.difficult
    found = judged.found.label >= first
    hits = np.bincount(judged.found.image[found & (judged.kind == TRUE)], minlength=images)
    wrong_rows = found & (judged.kind != TRUE)
    wrong = np.bincount(judged.found.image[wrong_rows], minlength=images)
    missed = np.bincount(data.boxes.image[truth & ~judged.matched], minlength=images)
    surest = np.zeros(images)
    np.maximum.at(surest, judged.found.image[wrong_rows], judged.found.score[wrong_rows])
    errors = wrong + missed
    good = np.flatnonzero((errors == 0) & (hits > 0))
    good = good[np.argsort(-hits[good], kind="stable")][:best]
    bad = np.flatnonzero(errors > 0)
    bad = bad[np.lexsort((-surest[bad], -errors[bad]))][:worst]
    return good, bad


def in_words(detected: Detected, image: int) -> str:
    """What was found, missed and wrong in an image."""
    data, judged, labels = detected.data, detected.judged, detected.labels
    novel = set(labels.novel or labels.classes)
    boxes = np.flatnonzero((data.boxes.image == image) & ~data.boxes.difficult)
    names = [labels.classes[k] for k in data.boxes.label[boxes].tolist()]
    parts = []
    found = [n for n, ok in zip(names, judged.matched[boxes], strict=True) if ok and n in novel]
    if found:
        parts.append(f"found {_listed(found)}")
    for b, name in zip(boxes.tolist(), names, strict=True):
        if name in novel and not judged.matched[b]:
            on = int(judged.taken_for[b])
            word = OTHER_NAMES.get(on) or labels.classes[on]
            parts.append(f"missed {name}" + _taken(word))
    rows = np.flatnonzero((judged.found.image == image) & (judged.kind == FALSE))
    wrong = [labels.classes[k] for k in judged.found.label[rows].tolist()]
    wrong = [name for name in wrong if name in novel]
    if wrong:
        parts.append(f"wrong {_listed(wrong)}")
    return "; ".join(dict.fromkeys(parts)) or "nothing to find, nothing found"


def _taken(word: str) -> str:
    """What became of a box that was missed."""
    if word == OTHER_NAMES[BACKGROUND]:
        return ""
    return f" ({word})" if word == OTHER_NAMES[LOOSE] else f" (taken for {word})"


def _listed(names: list[str]) -> str:
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    return ", ".join(name if n == 1 else f"{n} {name}" for name, n in counts.items())


def draw_truth(detected: Detected, image: int, cell: tuple[int, int]) -> Image.Image:
    """The picture with its annotated boxes. New objects that were not found are dashed."""
    data, judged, labels = detected.data, detected.judged, detected.labels
    picture, scale = read_fitted(data, image, cell)
    rows = np.arange(*data.offsets[image : image + 2])
    names = [labels.classes[k] for k in data.boxes.label[rows].tolist()]
    novel = [name in labels.novel or not labels.novel for name in names]
    missed = [
        new and not judged.matched[row] for new, row in zip(novel, rows.tolist(), strict=True)
    ]
    words = [f"missed {n}" if gone else n for n, gone in zip(names, missed, strict=True)]
    return draw_boxes(
        picture,
        data.boxes.xyxy[rows] * scale,
        _captions(names, novel, words),
        [
            BASE_COLOUR if not new else NOVEL_COLOUR if gone else RIGHT_COLOUR
            for new, gone in zip(novel, missed, strict=True)
        ],
        missed,
    )


def draw_found(detected: Detected, image: int, cell: tuple[int, int]) -> Image.Image:
    """The picture with the boxes above the thresholds, and their scores. Wrong ones are dashed."""
    data, judged, labels = detected.data, detected.judged, detected.labels
    picture, scale = read_fitted(data, image, cell)
    rows = np.flatnonzero(judged.found.image == image)
    xywh = judged.found.xywh[rows]
    names = [labels.classes[k] for k in judged.found.label[rows].tolist()]
    novel = [name in labels.novel or not labels.novel for name in names]
    kinds = judged.kind[rows].tolist()
    scores = judged.found.score[rows].tolist()
    return draw_boxes(
        picture,
        np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1) * scale,
        _captions(names, novel, [f"{n} {s:.2f}" for n, s in zip(names, scores, strict=True)]),
        [KINDS[k][1] if new else BASE_COLOUR for new, k in zip(novel, kinds, strict=True)],
        [new and k == FALSE for new, k in zip(novel, kinds, strict=True)],
    )


def _captions(names: list[str], novel: list[bool], words: list[str]) -> list[str]:
    """Base boxes have captions only where there are few boxes."""
    few = len(names) < MANY_BOXES
    return [word if few or new else "" for word, new in zip(words, novel, strict=True)]
