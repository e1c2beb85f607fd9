import json
import subprocess
import sys

import pytest

from mini_fsod.errors import UserError
from mini_fsod.eval import coco
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.eval.score import COCO_ALONE, NAMES, score
from mini_fsod.labels import LabelMap

BOX = [0, 0, 10, 10]


FIGURES = ("AP50", "AP", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


@pytest.fixture
def scene(make_dataset):
    """cat found, dog missed, owl without ground truth, bus found in one image of two; the label map
    also knows a class "ufo" that the data does not have."""
    dataset = make_dataset(
        ["a", "b", "c"],
        ["cat", "dog", "owl", "bus"],
        [(0, "cat", BOX), (0, "dog", BOX), (0, "bus", BOX), (1, "bus", BOX)],
    )
    found = DatasetDetections.of([0, 1, 0, 2], [0, 3, 2, 2], [BOX] * 4, [0.9, 0.8, 0.7, 0.6])
    return dataset, found, LabelMap(("cat", "dog", "owl"), ("bus", "ufo"))


@pytest.mark.parametrize(("metric", "bus"), [("voc07", 100 * 6 / 11), ("voc", 50.0)])
def test_score_of_voc_by_hand(metric, bus, scene):
    assert score(*scene, metric) == {
        "metric": metric,
        "nAP50": pytest.approx(bus),
        "bAP50": pytest.approx(50),  # cat 100, dog 0, owl left out
        "AP50": pytest.approx((bus + 100) / 3),
        "per_class": {
            "cat": {"AP50": pytest.approx(100)},
            "dog": {"AP50": 0},
            "owl": {"AP50": None},
            "bus": {"AP50": pytest.approx(bus)},
            "ufo": {"AP50": None},
        },
        "images": 3,
        "detections": 4,
    }


def test_score_of_coco_has_12_metrics_three_times(scene):
    result = score(*scene, "coco")
    bus = 100 * 51 / 101  # recall levels 0 to 0.5
    assert list(result) == [
        "metric",
        *(prefix + figure for figure in FIGURES for prefix in ("n", "b", "")),
        "per_class",
        "images",
        "detections",
    ]
    assert result["nAP"] == pytest.approx(bus)
    assert result["bAP75"] == pytest.approx(50)
    assert result["AP"] == pytest.approx((bus + 100) / 3)
    assert result["APl"] is None
    assert result["per_class"]["cat"] == pytest.approx({"AP50": 100, "AP": 100, "AP75": 100})
    assert result["per_class"]["owl"] == {"AP50": None, "AP": None, "AP75": None}


@pytest.mark.parametrize("metric", ["voc07", "voc", "coco"])
def test_score_has_no_nan_in_json(metric, make_dataset):
    none = DatasetDetections.of([], [], [], [])
    empty = make_dataset([], [])
    truthless = make_dataset([1], ["cat"])
    for dataset in (empty, truthless):
        result = score(dataset, none, LabelMap(("cat",), ()), metric)
        assert (result["AP50"], result["nAP50"]) == (None, None)
        json.dumps(result, allow_nan=False)


def test_score_counts_difficult_boxes_for_coco_only(make_dataset):
    dataset = make_dataset(["a"], ["cat"], [(0, "cat", BOX)], difficult=[1])
    none = DatasetDetections.of([], [], [], [])
    labels = LabelMap(("cat",), ())
    assert score(dataset, none, labels, "voc07")["AP50"] is None
    assert score(dataset, none, labels, "coco")["AP50"] == 0


def test_score_refuses_unknown_metrics(scene):
    with pytest.raises(UserError, match='no metric "voc7"') as caught:
        score(*scene, "voc7")  # type: ignore[arg-type]
    assert 'Did you mean "voc07"?' in str(caught.value)


def test_class_ap_does_not_import_the_coco_library():
    code = """
import sys
from mini_fsod.data.dataset import NO_BOXES
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.eval import score, voc
voc.class_ap(NO_BOXES, DatasetDetections.of([], [], [], []), 1, eleven_points=True)
sys.exit("faster_coco_eval" in sys.modules or "torch" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_lists_all_scores() -> None:
    assert ("AP50", *COCO_ALONE) == FIGURES == tuple(coco.FIGURES)
    assert len({*NAMES}) == 3 * len(FIGURES)
