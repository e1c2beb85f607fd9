"""COCO's 12 figures by faster-coco-eval, for each class.

Rules: cocodataset.org, "Detection evaluation", and pycocotools' cocoeval.py, whose numbers these
are:

- a crowd box is a region in which detections count neither way (IoU is over the detection's own
  area there); an annotation's `ignore` has no effect: pycocotools overwrites it with `iscrowd`;
- `area` of the annotation (of the mask, where there is one) decides between small, medium and
  large; of detections, width x height;
- the 100 highest scores of an image and class count; equal scores are ordered by image id, then as
  in the file.

VOC's `difficult` has no counterpart in COCO: such boxes count like any other here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster

from mini_fsod.data.dataset import Boxes, Dataset, Floats, Ints
from mini_fsod.eval.detections import Detections

# figure: (is it a precision, index of the IoU threshold or None for 0.5:0.95, size, limit)
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


def class_figures(dataset: Dataset, detections: Detections) -> dict[str, list[float | None]]:
    """Each figure (0 to 1) of each class, by label; None where no box counts.

    The mean over classes is COCO's figure: pycocotools averages over thresholds, recalls and
    classes at once, and every class with ground truth brings equally many numbers.
    """
    boxes = dataset.boxes
    labels = np.unique(boxes.label[~boxes.crowd])  # the others are undefined, and slow to find so
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


def _evaluate(dataset: Dataset, detections: Detections, labels: Ints) -> tuple[Floats, Floats]:
    """Precision (T, R, K, A, M), recall (T, K, A, M): T IoU thresholds, R recalls, K = len(labels)
    classes, A sizes (all, small, medium, large), M limits (1, 10, 100)."""
    ids = dataset.ids
    rank = np.empty(len(ids), dtype=np.int64)  # images count in the order of their ids
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
    # own ids from 1: in COCO's evaluation a match with id 0 counts as no match
    return [
        {"id": n, "image_id": i, "category_id": c, "bbox": b, "area": a, "iscrowd": crowd}
        for n, (i, c, b, a, crowd) in enumerate(columns, 1)
    ]


def _found(detections: Detections, rank: Ints, labels: Ints) -> list[dict[str, Any]]:
    mine = np.flatnonzero(np.isin(detections.label, labels))
    xywh = detections.xywh[mine]
    columns = zip(
        rank[detections.image[mine]].tolist(),
        detections.label[mine].tolist(),
        xywh.tolist(),
        (xywh[:, 2] * xywh[:, 3]).tolist(),
        detections.score[mine].tolist(),
        strict=True,
    )
    return [
        {"id": n, "image_id": i, "category_id": c, "bbox": b, "area": a, "score": s}
        for n, (i, c, b, a, s) in enumerate(columns, 1)
    ]


def _silent(*_: object) -> None:
    pass
