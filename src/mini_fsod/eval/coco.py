"""COCO's 12 metrics by faster-coco-eval, for each class. The results equal those of pycocotools.

Rules (cocodataset.org, "Detection evaluation", and pycocotools' cocoeval.py):

- detections on a crowd box are neither true nor false positives (their IoU with it is over their
  own area); an annotation's `ignore` has no effect: pycocotools overwrites it with `iscrowd`;
- the `area` of an annotation (of its mask, if it has one) makes it small, medium or large; that of
  a detection is width x height;
- the 100 highest scores of an image and class count; equal scores are ordered by image id, then as
  in the file.

COCO has no equivalent of VOC's `difficult`: such boxes count like any other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster

from mini_fsod.data.dataset import Dataset, Floats, Ints
from mini_fsod.eval.detections import DatasetDetections

# metric: (is it a precision, index of the IoU threshold or None for 0.5:0.95, size, limit)
FIGURES: dict[str, tuple[bool, int | None, int, int]] = {
    "AP50": (True, 0, 0, 2),
    "AP": (True, None, 0, 2),
    "AP75": (True, 5, 0, 2),
    "APs": (True, None, 1, 2),
    "APm": (True, None, 2, 2),
    "APl": (True, None, 3, 2),
    "AR1": (False, None, 0, 0),
    "AR10": (False, None, 0, 1),
    "AR100": (False, None, 0, 2),
    "ARs": (False, None, 1, 2),
    "ARm": (False, None, 2, 2),
    "ARl": (False, None, 3, 2),
}


def class_figures(dataset: Dataset, detections: DatasetDetections) -> dict[str, list[float | None]]:
    """{metric: its value (0 to 1) for each class}; None for a class without ground truth.

    The mean over classes is COCO's value: pycocotools averages over thresholds, recalls and classes
    at once, with equally many numbers for every class that has ground truth.
    """
    boxes = dataset.boxes
    labels = np.unique(boxes.label[~boxes.crowd])  # the others are None, and slow to evaluate
    result: dict[str, list[float | None]] = {
        name: [None] * len(dataset.classes) for name in FIGURES
    }
    if not len(labels):
        return result
    precision, recall = _evaluate(dataset, detections, labels)
    for name, (is_precision, threshold, size, limit) in FIGURES.items():
        values = precision[..., size, limit] if is_precision else recall[:, None, :, size, limit]
        values = values if threshold is None else values[[threshold]]
        for label, value in zip(labels.tolist(), values.mean(axis=(0, 1)).tolist(), strict=True):
            result[name][label] = value if value >= 0 else None  # -1: no box of this size
    return result


def _evaluate(
    dataset: Dataset, detections: DatasetDetections, labels: Ints
) -> tuple[Floats, Floats]:
    """Precision (T, R, K, A, M), recall (T, K, A, M): T IoU thresholds, R recalls, K = len(labels)
    classes, A sizes (all, small, medium, large), M limits (1, 10, 100)."""
    ids = dataset.ids
    rank = np.empty(len(ids), dtype=np.int64)  # images are evaluated in the order of their ids
    rank[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
    boxes = dataset.boxes.take(np.isin(dataset.boxes.label, labels))
    found = detections.take(np.isin(detections.label, labels))
    crowd = boxes.crowd.astype(np.int64)
    parts = (
        _records(rank[boxes.image], boxes.label, boxes.xywh, boxes.area, "iscrowd", crowd),
        _records(
            rank[found.image],
            found.label,
            found.xywh,
            found.xywh[:, 2] * found.xywh[:, 3],
            "score",
            found.score,
        ),
    )
    frame = {
        "images": [{"id": i} for i in range(len(ids))],
        "categories": [{"id": label} for label in labels.tolist()],
    }
    both = (COCO(frame | {"annotations": part}, print_function=_silent) for part in parts)
    evaluation = COCOeval_faster(*both, iouType="bbox", print_function=_silent)
    evaluation.evaluate()
    evaluation.accumulate()
    return evaluation.eval["precision"], evaluation.eval["recall"]


def _records(
    image: Ints, label: Ints, xywh: Floats, area: Floats, key: str, values: Ints | Floats
) -> list[dict[str, Any]]:
    """COCO's records of N boxes, with `values` (N,) under `key`."""
    # ids from 1: in COCO's evaluation, a match with id 0 counts as no match
    columns = zip(*(c.tolist() for c in (image, label, xywh, area, values)), strict=True)
    return [
        {"id": n, "image_id": i, "category_id": c, "bbox": b, "area": a, key: value}
        for n, (i, c, b, a, value) in enumerate(columns, 1)
    ]


def _silent(*_: object) -> None:
    pass
