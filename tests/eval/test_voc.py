import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_fsod.data.dataset import Boxes
from mini_fsod.eval import voc
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.eval.voc import average_precision_07, average_precision_area, class_ap, match_class

SQUARE = [0, 0, 10, 10]


TP, FP, NEITHER = "true", "false", "neither"


# detections (image, xywh, score), boxes (image, xywh, difficult), answers by descending score
CASES = {
    "same box": ([(0, SQUARE, 1)], [(0, SQUARE, 0)], [TP]),
    "same box in another image": ([(1, SQUARE, 1)], [(0, SQUARE, 0)], [FP]),
    "image without boxes between others": (
        [(1, SQUARE, 1), (2, SQUARE, 0.5)],
        [(0, SQUARE, 0), (2, SQUARE, 0)],
        [FP, TP],
    ),
    "IoU exactly 0.5": ([(0, [0, 0, 10, 5], 1)], [(0, SQUARE, 0)], [FP]),
    "IoU just above 0.5": ([(0, [0, 0, 10, 5.001], 1)], [(0, SQUARE, 0)], [TP]),
    "nothing is added to widths": (  # 48 / 100; with + 1 on each side it would be 64 / 121
        [(0, [0, 0, 4.8, 10], 1)],
        [(0, SQUARE, 0)],
        [FP],
    ),
    "boxes that touch": ([(0, [10, 0, 10, 10], 1)], [(0, SQUARE, 0)], [FP]),
    "not clipped to the image": ([(0, [-20, 0, 30, 10], 1)], [(0, SQUARE, 0)], [FP]),
    "duplicate": ([(0, SQUARE, 1), (0, SQUARE, 0.5)], [(0, SQUARE, 0)], [TP, FP]),
    "score decides who is the duplicate": (
        [(0, SQUARE, 0.5), (0, [0, 0, 10, 9], 1)],
        [(0, SQUARE, 0)],
        [TP, FP],
    ),
    "a taken best box is not passed over for a free one": (
        [(0, SQUARE, 1), (0, [0, 0, 10, 9.5], 0.5)],
        [(0, SQUARE, 0), (0, [0, 0, 10, 8], 0)],
        [TP, FP],
    ),
    "two boxes, two detections": (
        [(0, [0, 0, 10, 8], 1), (0, SQUARE, 0.5)],
        [(0, SQUARE, 0), (0, [0, 0, 10, 8], 0)],
        [TP, TP],
    ),
    "difficult, twice": (
        [(0, SQUARE, 1), (0, SQUARE, 0.5)],
        [(0, SQUARE, 1)],
        [NEITHER, NEITHER],
    ),
    "far from a difficult box": ([(0, [0, 0, 10, 5], 1)], [(0, SQUARE, 1)], [FP]),
    "best box difficult, another one near": (
        [(0, SQUARE, 1)],
        [(0, [0, 0, 10, 8], 0), (0, SQUARE, 1)],
        [NEITHER],
    ),
    "equal IoU, first box easy": (
        [(0, SQUARE, 1), (0, SQUARE, 0.5)],
        [(0, SQUARE, 0), (0, SQUARE, 1)],
        [TP, FP],
    ),
    "equal IoU, first box difficult": (
        [(0, SQUARE, 1), (0, SQUARE, 0.5)],
        [(0, SQUARE, 1), (0, SQUARE, 0)],
        [NEITHER, NEITHER],
    ),
    "equal scores keep the order": (
        [(0, [0, 0, 10, 6], 0.5), (0, [50, 0, 10, 10], 0.5), (0, SQUARE, 0.5)],
        [(0, SQUARE, 0)],
        [TP, FP, FP],
    ),
    "negative scores": ([(0, SQUARE, -3), (0, SQUARE, -2)], [(0, SQUARE, 0)], [TP, FP]),
    "detection without area": ([(0, [3, 3, 0, 0], 1)], [(0, SQUARE, 0)], [FP]),
    "neither has an area": ([(0, [3, 3, 0, 0], 1)], [(0, [3, 3, 0, 0], 0)], [FP]),
    "absurd sizes": ([(0, [0, 0, 1e200, 1e200], 1)], [(0, [0, 0, 1e200, 1e200], 0)], [FP]),
    "no detections": ([], [(0, SQUARE, 0)], []),
    "no boxes": ([(0, SQUARE, 1)], [], [FP]),
    "nothing": ([], [], []),
}


def columns(rows, dtype):
    """Rows of (image, xywh, number) as arrays."""
    image, xywh, last = zip(*rows, strict=True) if rows else ((), (), ())
    return (
        np.array(image, dtype=np.int64),
        np.array(xywh, dtype=np.float64).reshape(-1, 4),
        np.array(last, dtype=dtype),
    )


@pytest.mark.parametrize("name", CASES)
def test_match_class_by_hand(name):
    detections, boxes, answers = CASES[name]
    tp, fp = match_class(*columns(detections, np.float64), *columns(boxes, np.bool_))
    assert tp.tolist() == [a == TP for a in answers]
    assert fp.tolist() == [a == FP for a in answers]


def bools(text):
    return np.array([c == "1" for c in text], dtype=np.bool_)


@pytest.mark.parametrize(
    ("tp", "fp", "positives", "eleven", "area"),
    [
        # precision 1 up to recall 0.5 (levels 0 to 5), then 2/3 (levels 6 to 10)
        ("101", "010", 2, (6 + 5 * 2 / 3) / 11, 0.5 + 0.5 * 2 / 3),
        # the same, with a detection that is neither in front, between and behind
        ("010010", "000100", 2, (6 + 5 * 2 / 3) / 11, 0.5 + 0.5 * 2 / 3),
        # precision 1/2, then 2/3: the later, higher one holds from the start
        ("011", "100", 2, 2 / 3, 2 / 3),
        # recall 1/4 is reached: levels 0, 0.1, 0.2
        ("1", "0", 4, 3 / 11, 1 / 4),
        ("00", "11", 3, 0, 0),
        ("00", "00", 3, 0, 0),
        ("", "", 3, 0, 0),
        ("00", "11", 0, None, None),
        ("", "", 0, None, None),
    ],
)
def test_average_precision_by_hand(tp, fp, positives, eleven, area):
    assert average_precision_07(bools(tp), bools(fp), positives) == pytest.approx(eleven)
    assert average_precision_area(bools(tp), bools(fp), positives) == pytest.approx(area)


@pytest.mark.parametrize("found", range(11))
def test_average_precision_07_has_exact_recall_levels(found):
    """3 of 10 reaches level 0.3, which 3 * 0.1 in floats does not."""
    tp = np.ones(found, dtype=np.bool_)
    assert average_precision_07(tp, ~tp, 10) == pytest.approx((found + 1) / 11 if found else 0)


def plain_voc(boxes, difficult, detections, classes, eleven):
    """The challenge's rule in plain loops, in its own coordinates: from 1, inclusive edges."""
    result = []
    for label in range(classes):
        mine = [i for i in range(len(boxes)) if boxes.label[i] == label]
        positives = sum(not difficult[i] for i in mine)
        ranked = [i for i in range(len(detections)) if detections.label[i] == label]
        ranked.sort(key=lambda i: -detections.score[i])
        taken, curve, true, false = set(), [], 0, 0
        for i in ranked:
            x, y, w, h = detections.xywh[i]
            left, top, right, bottom = x + 1, y + 1, x + w, y + h
            highest, best = -1.0, None
            for j in mine:
                if boxes.image[j] != detections.image[i]:
                    continue
                x, y, w, h = boxes.xywh[j]
                xmin, ymin, xmax, ymax = x + 1, y + 1, x + w, y + h
                wide = min(right, xmax) - max(left, xmin) + 1
                high = min(bottom, ymax) - max(top, ymin) + 1
                if wide > 0 and high > 0:
                    one = (right - left + 1) * (bottom - top + 1)
                    other = (xmax - xmin + 1) * (ymax - ymin + 1)
                    iou = wide * high / (one + other - wide * high)
                    if iou > highest:
                        highest, best = iou, j
            if highest > 0.5 and difficult[best]:
                continue
            if highest > 0.5 and best not in taken:
                taken.add(best)
                true += 1
            else:
                false += 1
            curve.append((true, true / (true + false)))
        if not positives:
            result.append(None)
        elif eleven:
            levels = [
                max([p for t, p in curve if 10 * t >= k * positives], default=0) for k in range(11)
            ]
            result.append(sum(levels) / 11)
        else:
            steps = [
                max(p for t, p in curve if t >= step) for step in range(1, true + 1)
            ]  # each is 1 / positives wide
            result.append(sum(steps) / positives)
    return result


def random_case(seed, classes=2, images=3):
    """Few places and few scores, so that ties, duplicates and IoU 0.5 are frequent."""
    rng = np.random.default_rng(seed)

    def some(n):
        xywh = np.concatenate([rng.integers(0, 4, (n, 2)), rng.integers(1, 6, (n, 2))], 1)
        return rng.integers(0, images, n), xywh, rng.integers(0, classes, n)

    g, d = rng.integers(0, 15), rng.integers(0, 40)
    flags = {f: rng.random(g) < 0.15 for f in ("difficult", "crowd", "ignore")}
    image, xywh, label = some(g)
    boxes = Boxes.of(image, xywh, label, **flags)
    image, xywh, label = some(d)
    return boxes, DatasetDetections.of(image, label, xywh, rng.integers(0, 6, d) / 5)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("eleven", [True, False])
def test_class_ap_equals_plain_loops(eleven, seed):
    boxes, detections = random_case(seed)
    hard = boxes.difficult | boxes.crowd | boxes.ignore
    expected = plain_voc(boxes, hard, detections, 3, eleven)
    assert class_ap(boxes, detections, 3, eleven_points=eleven) == pytest.approx(expected)


@pytest.mark.parametrize("pairs", [1, 2, 7, 50])
def test_best_boxes_does_not_depend_on_chunks(pairs, monkeypatch):
    for seed in range(20):
        boxes, found = random_case(seed)
        whole = voc.best_boxes(found.image, found.xywh, boxes.image, boxes.xywh)
        with monkeypatch.context() as patch:
            patch.setattr(voc, "PAIRS", pairs)
            parts = voc.best_boxes(found.image, found.xywh, boxes.image, boxes.xywh)
        assert parts[0].tolist() == whole[0].tolist()
        assert parts[1].tolist() == whole[1].tolist()
