"""Detections on the test set beside the truth: which pictures went best and worst, and their
drawings.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from PIL import Image

from mini_fsod.data.dataset import Dataset, Ints
from mini_fsod.draw import BASE_COLOUR, MANY_BOXES, draw_boxes, read_fitted
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.eval.errors import OTHER_NAMES, Judged, judge_detections, thresholds_of
from mini_fsod.eval.kept_detections import read_kept_detections
from mini_fsod.labels import LabelMap
from mini_fsod.mining.audit import BACKGROUND, FALSE, LOOSE, TRUE
from mini_fsod.mining.contact_sheet import KINDS, RIGHT_COLOUR, WRONG_COLOUR
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


def best_and_worst(detected: Detected, best: int, worst: int) -> tuple[list[int], list[int]]:
    """Images in which all new objects are found and nothing else, and those with most errors.

    Errors are missed and wrong boxes of a new class; of any class where none is new. Each class
    gives its first image, then each its second, so that one class does not take all places.
    """
    data, judged = detected.data, detected.judged
    first = len(detected.labels.base) if detected.labels.novel else 0
    images, classes = len(data), len(detected.labels.classes)

    def counts(image: Ints, label: Ints) -> Ints:
        """(classes, images) how many of each."""
        flat = np.bincount(label * images + image, minlength=classes * images)
        return flat.reshape(classes, images)[first:]

    right = judged.kind == TRUE
    hits = counts(judged.found.image[right], judged.found.label[right])
    errors = counts(judged.found.image[~right], judged.found.label[~right])
    missed = ~judged.matched & ~data.boxes.difficult
    errors = errors + counts(data.boxes.image[missed], data.boxes.label[missed])
    clean = errors.sum(axis=0) == 0
    return _by_turns(hits * clean, best), _by_turns(errors, worst)


def _by_turns(figures: Ints, number: int) -> list[int]:
    """Images (n,) with the highest figures (classes, n) above 0: one of each class, and again."""
    chosen: dict[int, None] = {}
    # with equal figures of its own class, the image with more of all classes comes first
    queues = [
        [i for i in np.lexsort((-figures.sum(axis=0), -row)).tolist() if row[i] > 0]
        for row in figures
    ]
    for turn in range(max(map(len, queues), default=0)):
        for queue in queues:
            new = [i for i in queue[turn:] if i not in chosen]
            if new and len(chosen) < number:
                chosen[new[0]] = None
        if len(chosen) >= number:
            break
    return list(chosen)


def in_words(detected: Detected, image: int) -> str:
    """What was found, missed and wrong in an image."""
    data, judged, labels = detected.data, detected.judged, detected.labels
    novel = set(labels.novel or labels.classes)
    boxes = np.flatnonzero((data.boxes.image == image) & ~data.boxes.difficult)
    names = [labels.classes[k] for k in data.boxes.label[boxes].tolist()]
    words = []
    for b, name in zip(boxes.tolist(), names, strict=True):
        if name in novel and judged.matched[b]:
            words.append(f"found {name}")
        elif name in novel:
            words.append(f"missed {name}{_taken(int(judged.taken_for[b]), labels)}")
    rows = np.flatnonzero((judged.found.image == image) & (judged.kind == FALSE))
    wrong = [labels.classes[k] for k in judged.found.label[rows].tolist()]
    words += [f"wrong {name}" for name in wrong if name in novel]
    counts = Counter(sorted(words))
    return "; ".join(w if n == 1 else f"{n} x {w}" for w, n in counts.items()) or "nothing to find"


def _taken(on: int, labels: LabelMap) -> str:
    """What a missed box was detected as."""
    if on == BACKGROUND:
        return ""
    return f" ({OTHER_NAMES[LOOSE]})" if on == LOOSE else f" (detected as {labels.classes[on]})"


def draw_truth(detected: Detected, image: int, cell: tuple[int, int]) -> Image.Image:
    """The picture with its annotated boxes. New objects that were not found are dashed; difficult
    ones, which do not count, are pale.
    """
    data, judged, labels = detected.data, detected.judged, detected.labels
    picture, scale = read_fitted(data, image, cell)
    rows = np.arange(*data.offsets[image : image + 2])
    names = [labels.classes[k] for k in data.boxes.label[rows].tolist()]
    counts = judged.matched | ~data.boxes.difficult
    novel = [
        bool(counts[row]) and (name in labels.novel or not labels.novel)
        for name, row in zip(names, rows.tolist(), strict=True)
    ]
    missed = [
        new and not judged.matched[row] for new, row in zip(novel, rows.tolist(), strict=True)
    ]
    words = [f"missed {n}" if gone else n for n, gone in zip(names, missed, strict=True)]
    return draw_boxes(
        picture,
        data.boxes.xyxy[rows] * scale,
        _captions(names, novel, words),
        [
            BASE_COLOUR if not new else WRONG_COLOUR if gone else RIGHT_COLOUR
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
