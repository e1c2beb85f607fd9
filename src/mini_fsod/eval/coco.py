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

from mini_fsod.data.dataset import Boxes, Dataset, Floats, Ints
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
    frame = {
        "images": [{"id": i} for i in range(len(ids))],
        "categories": [{"id": label} for label in labels.tolist()],
    }
    truth = COCO(
        frame | {"annotations": _truth(dataset.boxes, rank, labels)}, print_function=_silent
    )
    found = COCO(frame | {"annotations": _found(detections, rank, labels)}, print_function=_silent)
    evaluation = COCOeval_faster(truth, found, iouType="bbox", print_function=_silent)
    evaluation.evaluate()
    evaluation.accumulate()
    return evaluation.eval["precision"], evaluation.eval["recall"]


def _truth(boxes: Boxes, rank: Ints, labels: Ints) -> list[dict[str, Any]]:
    boxes = boxes.take(np.isin(boxes.label, labels))
    columns = zip(
        rank[boxes.image].tolist(),
        boxes.label.tolist(),
        boxes.xywh.tolist(),
        boxes.area.tolist(),
        boxes.crowd.astype(int).tolist(),
        strict=True,
    )
    # ids from 1: in COCO's evaluation, a match with id 0 counts as no match
    return [
        {"id": n, "image_id": i, "category_id": c, "bbox": b, "area": a, "iscrowd": crowd}
        for n, (i, c, b, a, crowd) in enumerate(columns, 1)
    ]


def _found(detections: DatasetDetections, rank: Ints, labels: Ints) -> list[dict[str, Any]]:
    kept = np.flatnonzero(np.isin(detections.label, labels))
    xywh = detections.xywh[kept]
    columns = zip(
        rank[detections.image[kept]].tolist(),
        detections.label[kept].tolist(),
        xywh.tolist(),
        (xywh[:, 2] * xywh[:, 3]).tolist(),
        detections.score[kept].tolist(),
        strict=True,
    )
    return [
        {"id": n, "image_id": i, "category_id": c, "bbox": b, "area": a, "score": s}
        for n, (i, c, b, a, s) in enumerate(columns, 1)
    ]


def _silent(*_: object) -> None:
    pass
