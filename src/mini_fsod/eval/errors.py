"""What a detector gets wrong on a test set: which class or background it takes for which.

At each class's best threshold (`operating.best_f1`). Boxes and detections are matched by the rules
of the audit of mining (IoU 0.5, greedy by score), difficult boxes included.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_fsod.data.dataset import Bools, Dataset, Ints
from mini_fsod.data.overlap import iou, pairs_within
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.eval.operating import ap_intervals, best_f1, ranked
from mini_fsod.labels import LabelMap
from mini_fsod.mining.audit import (
    BACKGROUND,
    DUPLICATE,
    FALSE,
    LOOSE,
    LOOSE_IOU,
    MATCH_IOU,
    TRUE,
    GroundTruth,
    judge_candidates,
)
from mini_fsod.mining.candidates import Candidates

UNKNOWN_THRESHOLD = 0.5  # of a class whose best threshold is not known
OTHER_NAMES = {BACKGROUND: "background", LOOSE: "badly placed"}


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Detections above the thresholds of their classes, and the boxes they were matched with."""

    found: DatasetDetections  # (n,) those above the thresholds, by image
    kind: Any  # (n,) TRUE, DUPLICATE or FALSE
    on: Ints  # (n,) of false ones: the class the box is on, LOOSE or BACKGROUND
    matched: Bools  # (g,) which boxes of the data are found
    taken_for: Ints  # (g,) of boxes that are not found: as `on`


def thresholds_of(figures: dict[str, Any], labels: LabelMap) -> list[float]:
    """The threshold of each class by `error_figures`; a default where it is not known."""
    best = [figures["classes"].get(name, {}).get("best") for name in labels.classes]
    return [UNKNOWN_THRESHOLD if one is None else float(one["score"]) for one in best]


def judge_detections(
    data: Dataset, found: DatasetDetections, thresholds: list[float], labels: LabelMap
) -> Judged:
    """`data` has the classes of the label map; boxes without area, crowds and regions to ignore
    are neither found nor missed. Detections and boxes may be none.
    """
    above = np.flatnonzero(found.score >= np.array([*thresholds, 0.0])[found.label])
    above = above[np.lexsort((-found.score[above], found.image[above]))]
    kept = found.take(above)
    one_map = LabelMap((), labels.classes)
    boxes = data.boxes
    counts = boxes.sound & ~boxes.crowd & ~boxes.ignore
    truth = GroundTruth(boxes.take(counts), np.zeros(int(counts.sum()), np.bool_), one_map)
    as_candidates = Candidates(kept.image, kept.label, kept.xywh, kept.score, kept.score, None)
    verdict = judge_candidates(as_candidates, truth)

    row, box = pairs_within(kept.image, truth.boxes.image)
    overlap = iou(kept.xywh[row], truth.boxes.xywh[box])
    same = kept.label[row] == truth.boxes.label[box]
    hit = same & (overlap >= MATCH_IOU) & (verdict.kind[row] != FALSE)
    found_box = np.zeros(len(truth.boxes), dtype=np.bool_)
    found_box[box[hit]] = True
    taken = np.full(len(truth.boxes), BACKGROUND, dtype=np.int64)
    taken[box[same & (overlap >= LOOSE_IOU)]] = LOOSE
    wrong = np.flatnonzero(~same & (overlap >= MATCH_IOU))
    wrong = wrong[np.argsort(kept.score[row[wrong]], kind="stable")]  # the surest wins
    taken[box[wrong]] = kept.label[row[wrong]]

    matched = np.ones(len(boxes), dtype=np.bool_)
    matched[counts] = found_box
    taken_for = np.full(len(boxes), BACKGROUND, dtype=np.int64)
    taken_for[counts] = taken
    return Judged(kept, verdict.kind, verdict.on, matched, taken_for)


def error_figures(
    data: Dataset, found: DatasetDetections, labels: LabelMap, metric: str
) -> dict[str, Any]:
    """For each class: boxes, best threshold, recall at any score, and what is confused with what.

    {"classes": {name: {"boxes", "recall_any", "best": {"score", "precision", "recall", "f1"} or
    None, "detections", "right", "twice", "false_on": {name: n}, "missed_as": {name: n}}},
    "interval95": {"nAP50", "bAP50" or a class: [low, high]}}
    """
    of_class = {name: ranked(data, found, i) for i, name in enumerate(labels.classes)}
    best = {name: best_f1(one) for name, one in of_class.items()}
    table: dict[str, dict[str, Any]] = {
        name: {
            "boxes": len(one.boxes),
            "recall_any": round(one.tp.sum() / len(one.boxes), 4) if len(one.boxes) else None,
            "best": None if (chosen := best[name]) is None else chosen.to_json(),
        }
        for name, one in of_class.items()
    }
    judged = judge_detections(data, found, thresholds_of({"classes": table}, labels), labels)
    for i, name in enumerate(labels.classes):
        mine = judged.found.label == i
        missed = (data.boxes.label == i) & ~judged.matched & ~data.boxes.difficult
        table[name] |= {
            "detections": int(mine.sum()),
            "right": int((judged.kind[mine] == TRUE).sum()),
            "twice": int((judged.kind[mine] == DUPLICATE).sum()),
            "false_on": _names(judged.on[mine & (judged.kind == FALSE)], labels),
            "missed_as": _names(judged.taken_for[missed], labels),
        }
    groups = {"nAP50": labels.novel, "bAP50": labels.base}
    return {"classes": table, "interval95": ap_intervals(of_class, groups, len(data), metric)}


def _names(on: Ints, labels: LabelMap) -> dict[str, int]:
    """How often each class, the background or a badly placed box, most frequent first."""
    counts = Counter(on.tolist())
    return {
        OTHER_NAMES.get(k) or labels.classes[k]: n
        for k, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    }
