import contextlib
import io
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mini_fsod.eval.coco import FIGURES, class_figures
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.eval.score import score
from mini_fsod.labels import LabelMap

CLASSES = ("cat", "bus", "dog", "owl")


CATEGORY_IDS = (9, 4, 2, 70)


ORDER = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


def pycocotools_figures(truth, found, names):
    """The 12 numbers in percent, None for pycocotools' -1, over the named classes."""
    with contextlib.redirect_stdout(io.StringIO()):
        gt, dt = COCO(), COCO()
        gt.dataset = truth
        gt.createIndex()
        if found:
            dt = gt.loadRes([dict(d) for d in found])
        else:  # loadRes cannot do without a first record
            dt.dataset = truth | {"annotations": []}
            dt.createIndex()
        evaluation = COCOeval(gt, dt, "bbox")
        evaluation.params.catIds = [c["id"] for c in truth["categories"] if c["name"] in names]
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return {k: None if v == -1 else 100 * v for k, v in zip(ORDER, evaluation.stats, strict=True)}


def random_case(seed, make_dataset):
    """The same random data as a Dataset with DatasetDetections and as COCO's JSON."""
    rng = np.random.default_rng(seed)
    images = int(rng.integers(1, 7))
    ids = rng.choice(1000, images, replace=False).tolist()
    g = int(rng.integers(0, 30))
    d = int(rng.choice([0, 10, 60, 500]))

    def place(n):
        sides = rng.choice([4, 20, 40, 90, 150], (n, 2)) + rng.integers(0, 3, (n, 2)) / 2
        return np.concatenate([rng.integers(0, 40, (n, 2)) / 2, sides], 1)

    gt_image, gt_label, gt_xywh = rng.integers(0, images, g), rng.integers(0, 3, g), place(g)
    # the mask's area is below the box's and may lie exactly on a border between sizes
    shrink = rng.choice([1.0, 0.7, 0.1], g)
    area = np.where(rng.random(g) < 0.1, 32.0**2, gt_xywh[:, 2] * gt_xywh[:, 3] * shrink)
    crowd, ignore = rng.random(g) < 0.15, rng.random(g) < 0.15
    image, label, xywh = rng.integers(0, images, d), rng.integers(0, 4, d), place(d)
    if g:
        near = rng.random(d) < 0.5
        source = rng.integers(0, g, d)
        moved = gt_xywh[source] + rng.choice([0, 0, 0.5, 3, -2], (d, 4))
        image = np.where(near, gt_image[source], image)
        label = np.where(near, gt_label[source], label)
        xywh = np.where(near[:, None], np.maximum(moved, 0), xywh)
    scores = rng.integers(0, 8, d) / 7

    dataset = make_dataset(
        ids,
        CLASSES,
        [(i, CLASSES[c], b) for i, c, b in zip(gt_image, gt_label, gt_xywh, strict=True)],
        CATEGORY_IDS,
        area=area,
        crowd=crowd,
        ignore=ignore,
    )
    truth = {
        "images": [{"id": i} for i in ids],
        "categories": [{"id": i, "name": n} for i, n in zip(CATEGORY_IDS, CLASSES, strict=True)],
        "annotations": [
            {
                "id": n + 1,
                "image_id": ids[gt_image[n]],
                "category_id": CATEGORY_IDS[gt_label[n]],
                "bbox": gt_xywh[n].tolist(),
                "area": float(area[n]),
                "iscrowd": int(crowd[n]),
                "ignore": int(ignore[n]),
            }
            for n in range(g)
        ],
    }
    found = [
        {
            "image_id": ids[image[n]],
            "category_id": CATEGORY_IDS[label[n]],
            "bbox": xywh[n].tolist(),
            "score": float(scores[n]),
        }
        for n in range(d)
    ]
    return dataset, DatasetDetections.of(image, label, xywh, scores), truth, found


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_score_equals_pycocotools_on_random_data(seed, make_dataset):
    dataset, detections, truth, found = random_case(seed, make_dataset)
    labels = LabelMap(("cat", "owl"), ("bus", "dog"))
    ours = score(dataset, detections, labels, "coco")
    for prefix, names in (("n", labels.novel), ("b", labels.base), ("", labels.classes)):
        expected = pycocotools_figures(truth, found, names)
        assert {k: ours[prefix + k] for k in ORDER} == pytest.approx(expected, abs=1e-6)
    for name in CLASSES:
        expected = pycocotools_figures(truth, found, [name])
        shown = {k: expected[k] for k in ("AP", "AP50", "AP75")}
        assert ours["per_class"][name] == pytest.approx(shown, abs=1e-6)


def figures(dataset, *detections):
    """Of the first class, for detections (image, xywh, score)."""
    image, xywh, scores = zip(*detections, strict=True) if detections else ((), (), ())
    found = DatasetDetections.of(image, [0] * len(image), xywh, scores)
    return {name: values[0] for name, values in class_figures(dataset, found).items()}


def test_class_figures_of_one_box_with_iou_0_82(make_dataset):
    """Right at the 7 thresholds 0.5 to 0.8, wrong at 0.85, 0.9, 0.95; the box is small."""
    dataset = make_dataset([1, 2], ["cat"], [(0, "cat", [0, 0, 10, 10])])
    found = figures(dataset, (0, [0, 0, 10, 8.2], 0.9))
    assert found.pop("AP50") == pytest.approx(1)
    assert found.pop("AP75") == pytest.approx(1)
    assert [found.pop(k) for k in ("APm", "APl", "ARm", "ARl")] == [None] * 4
    assert found == pytest.approx(dict.fromkeys(("AP", "APs", "AR1", "AR10", "AR100", "ARs"), 0.7))


def test_class_figures_of_a_false_positive_first(make_dataset):
    """Precision 1/2 at recall 1; the one detection an image that AR1 allows is the false one."""
    dataset = make_dataset([1], ["cat"], [(0, "cat", [0, 0, 10, 10])])
    found = figures(dataset, (0, [0, 0, 10, 10], 0.5), (0, [50, 50, 10, 10], 0.9))
    assert found["AP"] == pytest.approx(0.5)
    assert (found["AR1"], found["AR10"]) == (0, pytest.approx(1))


@pytest.mark.parametrize(("crowd", "ap"), [(1, 1), (0, 51 / 101 / 3)])
def test_class_figures_ignores_detections_in_a_crowd(crowd, ap, make_dataset):
    """Two detections inside the crowd box, before the true one. As an ordinary box it is missed
    (IoU 0.04) and they are wrong: precision 1/3 at recall 1/2 over 51 of 101 levels."""
    dataset = make_dataset(
        [1],
        ["cat"],
        [(0, "cat", [0, 0, 10, 10]), (0, "cat", [100, 0, 50, 50])],
        crowd=[0, crowd],
    )
    inside = [(0, [100 + i, 5, 10, 10], 0.9) for i in range(2)]
    found = figures(dataset, *inside, (0, [0, 0, 10, 10], 0.5))
    assert found["AP"] == pytest.approx(ap)


def test_class_figures_counts_ignore_without_crowd(make_dataset):
    box = [(0, "cat", [0, 0, 10, 10])]
    assert figures(make_dataset([1], ["cat"], box, ignore=[1]))["AP"] == 0


def test_class_figures_takes_the_size_from_area(make_dataset):
    dataset = make_dataset([1], ["cat"], [(0, "cat", [0, 0, 100, 100])], area=[50.0])
    found = figures(dataset, (0, [0, 0, 100, 100], 1))
    assert found["APs"] == pytest.approx(1)
    assert found["APl"] is None


def test_class_figures_counts_100_detections(make_dataset):
    dataset = make_dataset([1], ["cat"], [(0, "cat", [0, 0, 10, 10])])
    wrong = [(0, [50, 50, 5, 5], 0.9)] * 99
    right = (0, [0, 0, 10, 10], 0.5)
    assert figures(dataset, *wrong, right)["AR100"] == pytest.approx(1)
    assert figures(dataset, *wrong, wrong[0], right)["AR100"] == 0


def test_class_figures_without_boxes_or_detections(make_dataset):
    crowd_only = make_dataset([1], ["cat"], [(0, "cat", [0, 0, 10, 10])], crowd=[1])
    for dataset in (make_dataset([1], ["cat"]), make_dataset([], ["cat"]), crowd_only):
        assert figures(dataset) == dict.fromkeys(FIGURES)
    empty = figures(make_dataset([1], ["cat"], [(0, "cat", [0, 0, 10, 10])]))
    assert (empty["AP"], empty["AR100"], empty["APm"]) == (0, 0, None)


def test_class_figures_prints_nothing(make_dataset, capfd, caplog):
    dataset = make_dataset([1], ["cat"], [(0, "cat", [0, 0, 10, 10])])
    with caplog.at_level(logging.DEBUG):
        figures(dataset, (0, [0, 0, 10, 10], 1))
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
