"""What is confused with what, at each class's best threshold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.eval.errors import error_figures, judge_detections
from mini_fsod.labels import LabelMap

LABELS = LabelMap(("car", "cat"), ("owl",))
CAR, CAT, OWL = range(3)
Row = tuple[int, int, tuple[float, float, float, float]]


def data_of(rows: list[Row], images: int = 3, **flags: Any) -> Dataset:
    image, label, xywh = zip(*rows, strict=True) if rows else ((), (), np.zeros((0, 4)))
    boxes = Boxes.of(image, xywh, label, **flags)
    names = tuple(f"{n}.png" for n in range(images))
    sizes = np.full((images, 2), 100)
    classes = LABELS.classes
    return Dataset(
        "coco", Path(), classes, (1, 2, 3), tuple(range(images)), names, sizes, boxes, names
    )


def found_of(*rows: tuple[int, int, tuple[float, float, float, float], float]) -> DatasetDetections:
    image, label, xywh, score = zip(*rows, strict=True) if rows else ((), (), (), ())
    return DatasetDetections.of(image, label, np.array(xywh, dtype=float).reshape(-1, 4), score)


A, B, C = (0, 0, 20, 20), (40, 40, 20, 20), (70, 70, 20, 20)
BESIDE = (12, 0, 20, 20)  # overlaps A by an IoU of 0.25


def test_error_figures_says_what_objects_are_taken_for() -> None:
    data = data_of([(0, OWL, A), (0, OWL, B), (1, OWL, A), (2, OWL, C), (2, CAR, A)])
    found = found_of(
        (0, OWL, A, 0.9),  # right
        (0, CAT, B, 0.8),  # an owl is taken for a cat
        (1, OWL, BESIDE, 0.95),  # badly placed
        (2, OWL, A, 0.92),  # a car is taken for an owl
        (2, CAR, A, 0.9),
    )
    errors = error_figures(data, found, LABELS, "voc")
    owl = errors["classes"]["owl"]
    assert owl["boxes"] == 4
    assert owl["recall_any"] == 0.25
    assert (owl["detections"], owl["right"], owl["twice"]) == (3, 1, 0)
    assert owl["false_on"] == {"badly placed": 1, "car": 1}
    assert owl["missed_as"] == {"badly placed": 1, "background": 1, "cat": 1}
    assert errors["classes"]["car"]["best"]["f1"] == 1.0
    assert errors["classes"]["cat"]["best"] is None
    assert set(errors["interval95"]) == {"owl", "car", "nAP50", "bAP50"}


def test_error_figures_of_an_object_found_twice() -> None:
    errors = error_figures(
        data_of([(0, OWL, A), (1, OWL, A), (2, OWL, A)]),
        found_of((0, OWL, A, 0.9), (0, OWL, A, 0.8), (1, OWL, A, 0.7), (2, OWL, A, 0.6)),
        LABELS,
        "voc07",
    )
    assert errors["classes"]["owl"]["twice"] == 1
    assert errors["classes"]["owl"]["missed_as"] == {}


def test_error_figures_of_nothing() -> None:
    for data in (data_of([]), data_of([(0, OWL, A)])):
        owl = error_figures(data, found_of(), LABELS, "coco")["classes"]["owl"]
        assert owl["best"] is None
        assert owl["detections"] == 0
        assert owl["missed_as"] == ({"background": 1} if len(data.boxes) else {})


def test_judge_detections_forgives_difficult_boxes() -> None:
    data = data_of([(0, OWL, A), (1, OWL, A)], difficult=[True, True])
    judged = judge_detections(data, found_of((0, OWL, A, 0.9)), [0.5] * 3, LABELS)
    assert judged.kind.tolist() == [0]  # TRUE
    figures = error_figures(data, found_of((0, OWL, A, 0.9)), LABELS, "voc")["classes"]["owl"]
    assert (figures["boxes"], figures["missed_as"]) == (0, {})


def test_judge_detections_leaves_out_low_scores_and_crowds() -> None:
    data = data_of([(0, OWL, A), (0, OWL, B)], crowd=[False, True])
    found = found_of((0, OWL, A, 0.4), (0, CAR, C, 0.9))
    judged = judge_detections(data, found, [0.5] * 3, LABELS)
    assert judged.found.score.tolist() == [0.9]
    assert judged.matched.tolist() == [False, True]  # a crowd is neither found nor missed
