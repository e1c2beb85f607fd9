"""PASCAL VOC's average precision at IoU 0.5: the 11-point mean of 2007 and the area since 2010.

Rules: VOC2007 development kit, sections 3.4.1 (AP) and 4.4 (detection); Everingham et al., IJCV
2010, section 4.2. Three details:

- The IoU must be greater than 0.5, as in the challenge's text and in common Python code. The Matlab
  kit's code uses >=.
- VOC's width is xmax - xmin + 1, in coordinates from 1. Our boxes have exclusive right and bottom
  edges, so their width includes that 1.
- A detection is matched with the box of highest IoU, even if that is taken or difficult: a second
  detection of a box is a false positive even if it also overlaps a free one.
"""

from __future__ import annotations

import numpy as np

from mini_fsod.data.dataset import Bools, Boxes, Floats, Ints
from mini_fsod.data.overlap import iou
from mini_fsod.eval.detections import DatasetDetections

IOU = 0.5
PAIRS = 1 << 20  # pairs of detection and box at a time, about 0.3 GB


def class_ap(
    boxes: Boxes, detections: DatasetDetections, classes: int, *, eleven_points: bool
) -> list[float | None]:
    """AP (0 to 1) of each class; None for a class without ground truth.

    Crowd and ignore boxes, which VOC does not have, count as difficult.
    """
    average_precision = average_precision_07 if eleven_points else average_precision_area
    difficult = boxes.difficult | boxes.crowd | boxes.ignore
    result = []
    for label in range(classes):
        truth = boxes.label == label
        found = detections.label == label
        tp, fp = match_class(
            detections.image[found],
            detections.xywh[found],
            detections.score[found],
            boxes.image[truth],
            boxes.xywh[truth],
            difficult[truth],
        )
        result.append(average_precision(tp, fp, int((truth & ~difficult).sum())))
    return result


def match_class(
    image: Ints, xywh: Floats, score: Floats, gt_image: Ints, gt_xywh: Floats, gt_difficult: Bools
) -> tuple[Bools, Bools]:
    """True and false positives among D detections of one class, given its G boxes.

    image, score (D,), xywh (D, 4); gt_image (G,) ascending, gt_xywh (G, 4), gt_difficult (G,).
    Returns tp (D,), fp (D,), highest score first, equal scores in the given order. A detection
    whose best box is difficult is neither. D and G may be 0.
    """
    order = np.argsort(-score, kind="stable")
    best, iou = best_boxes(image[order], xywh[order], gt_image, gt_xywh)
    hit = np.flatnonzero(iou > IOU)
    neither = np.zeros(len(order), dtype=np.bool_)
    neither[hit] = gt_difficult[best[hit]]
    hit = hit[~neither[hit]]
    # the detection with the highest score takes the box; others of the same box are false positives
    _, first = np.unique(best[hit], return_index=True)
    tp = np.zeros(len(order), dtype=np.bool_)
    tp[hit[first]] = True
    return tp, ~tp & ~neither


def best_boxes(image: Ints, xywh: Floats, gt_image: Ints, gt_xywh: Floats) -> tuple[Ints, Floats]:
    """For each of D detections, the box of its image with the highest IoU and that IoU.

    gt_image (G,) is ascending. Returns (D,) index of the box, the first of equal ones, -1 in an
    image without boxes; and (D,) IoU, 0 there. Works on about PAIRS pairs at a time.
    """
    begin = np.searchsorted(gt_image, image, side="left")
    count = np.searchsorted(gt_image, image, side="right") - begin
    best = np.full(len(image), -1, dtype=np.int64)
    highest = np.zeros(len(image))
    rows = np.flatnonzero(count)
    ends = np.cumsum(count[rows])
    cuts = np.searchsorted(ends, np.arange(PAIRS, ends[-1] if len(ends) else 0, PAIRS))
    for part in np.split(rows, cuts):
        if not len(part):
            continue
        n = count[part]  # part's detections have n boxes each: sum(n) pairs, one run per detection
        start = np.cumsum(n) - n
        gt = np.repeat(begin[part] - start, n) + np.arange(n.sum())
        overlap = iou(np.repeat(xywh[part], n, axis=0), gt_xywh[gt])
        top = np.maximum.reduceat(overlap, start)
        tops = np.flatnonzero(overlap == np.repeat(top, n))
        best[part] = gt[tops[np.searchsorted(tops, start)]]  # the first top of each run
        highest[part] = top
    return best, highest


def average_precision_07(tp: Bools, fp: Bools, positives: int) -> float | None:
    """Mean over recall levels k/10, k = 0..10, of the highest precision at that recall or beyond.

    tp, fp (D,) in descending order of score. None without positives, 0 without detections.
    """
    if positives == 0:
        return None
    true, precision = _curve(tp, fp)
    # recall = true / positives >= k / 10, in integers to avoid rounding errors
    first = np.searchsorted(10 * true, np.arange(11) * positives)
    return float(np.append(precision, 0.0)[first].sum()) / 11


def average_precision_area(tp: Bools, fp: Bools, positives: int) -> float | None:
    """Area under the precision-recall curve made monotone (VOC2010 kit, section 3.4.1).

    tp, fp (D,) in descending order of score. None without positives, 0 without detections.
    """
    if positives == 0:
        return None
    true, precision = _curve(tp, fp)
    # recall rises by 1 / positives at every true positive
    return float(precision[np.diff(true, prepend=0) > 0].sum()) / positives


def _curve(tp: Bools, fp: Bools) -> tuple[Ints, Floats]:
    """True positives so far, and the highest precision from here on, at each counted detection."""
    counted = tp | fp
    true = np.cumsum(tp[counted], dtype=np.int64)
    precision = true / np.arange(1, len(true) + 1)
    return true, np.maximum.accumulate(precision[::-1])[::-1]
