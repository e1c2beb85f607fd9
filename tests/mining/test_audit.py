"""The audit of a few boxes: true, duplicate, or on something else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.pairs import LABELS, data_of, ground_truth, pairs_of
from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.subsets import arranged
from mini_fsod.mining.audit import (
    BACKGROUND,
    DUPLICATE,
    FALSE,
    LOOSE,
    SHOT,
    TRUE,
    audit,
    judge_candidates,
    judge_with_pool,
    reached_by_size,
    seem_complete,
    why_not_judged,
)
from mini_fsod.mining.candidates import Candidates, select_candidates

CAR, BIRD, BUS = 0, 1, 2


def truth_of(folder: Path, *boxes: tuple[int, int, tuple[int, ...]], **flags: object) -> Dataset:
    image, label, xywh = zip(*boxes, strict=True) if boxes else ((), (), ())
    return data_of(folder).with_boxes(Boxes.of(image, np.reshape(xywh, (-1, 4)), label, **flags))


def found_of(*rows: tuple[int, int, float, tuple[float, ...]]) -> Candidates:
    """(image, novel label, score, box)."""
    image, label, score, xywh = (np.array(c) for c in zip(*rows, strict=True))
    return Candidates(image, label, xywh.astype(float), score, score, None)


def test_judge_candidates_of_every_kind(tmp_path: Path) -> None:
    truth = truth_of(
        tmp_path,
        (0, BIRD, (0, 0, 20, 20)),
        (0, CAR, (50, 0, 20, 20)),
        (0, BUS, (50, 50, 20, 20)),
        (1, BIRD, (0, 0, 20, 20)),
        difficult=[False, False, False, True],
    )
    cases = [
        ((0, 0, 0.5, (1, 0, 20, 20)), DUPLICATE, LOOSE),  # the bird is taken by the next line
        ((0, 0, 0.9, (2, 0, 20, 20)), TRUE, LOOSE),
        ((0, 0, 0.8, (0, 0, 9, 20)), FALSE, LOOSE),  # IoU 0.45
        ((0, 0, 0.7, (52, 0, 20, 20)), FALSE, CAR),
        ((0, 0, 0.6, (52, 52, 20, 20)), FALSE, BUS),  # a novel class, and another one
        ((0, 1, 0.4, (0, 0, 20, 20)), FALSE, BIRD),
        ((0, 0, 0.3, (30, 30, 10, 10)), FALSE, BACKGROUND),
        ((1, 0, 0.2, (0, 0, 20, 20)), TRUE, LOOSE),  # difficult boxes count as true
        ((2, 0, 0.1, (0, 0, 20, 20)), FALSE, BACKGROUND),
    ]
    verdict = judge_candidates(found_of(*(row for row, _, _ in cases)), ground_truth(truth))
    assert verdict.kind.tolist() == [kind for _, kind, _ in cases]
    assert verdict.on.tolist() == [on for _, _, on in cases]


def test_judge_candidates_takes_the_free_box_of_two(tmp_path: Path) -> None:
    truth = truth_of(tmp_path, (0, BIRD, (0, 0, 20, 20)), (0, BIRD, (4, 0, 20, 20)))
    found = found_of((0, 0, 0.9, (1, 0, 20, 20)), (0, 0, 0.8, (1, 0, 20, 20)))
    assert judge_candidates(found, ground_truth(truth)).kind.tolist() == [TRUE, TRUE]


def test_judge_candidates_takes_the_best_fitting_box(tmp_path: Path) -> None:
    """The first fits both, and the first bird better; the second fits that bird alone."""
    truth = truth_of(tmp_path, (0, BIRD, (0, 0, 20, 20)), (0, BIRD, (6, 0, 20, 20)))
    found = found_of((0, 0, 0.9, (1, 0, 20, 20)), (0, 0, 0.8, (-3, 0, 20, 20)))
    assert judge_candidates(found, ground_truth(truth)).kind.tolist() == [TRUE, DUPLICATE]


def test_judge_candidates_accepts_an_iou_of_one_half(tmp_path: Path) -> None:
    truth = truth_of(tmp_path, (0, BIRD, (0, 0, 20, 20)))
    found = found_of((0, 0, 0.9, (0, 0, 10, 20)))
    assert judge_candidates(found, ground_truth(truth)).kind.tolist() == [TRUE]


def test_judge_with_pool_ignores_ineligible_candidates(tmp_path: Path) -> None:
    """The second candidate is on the second bird and nested in the first; the third is chosen."""
    truth = truth_of(tmp_path, (0, BIRD, (0, 0, 60, 60)), (0, BIRD, (40, 0, 30, 40)))
    rows = ((0, 0, 0.9, (0, 0, 60, 60)), (0, 0, 0.8, (35, 0, 26, 40)), (0, 0, 0.7, (48, 0, 22, 40)))
    found, kept = found_of(*rows), np.array([True, False, True])
    row = audit(found, kept, ground_truth(truth))["classes"]["bird"]
    assert (row["true_positives"], row["duplicates"], row["precision"]) == (2, 0, 1)
    assert (row["candidates"], row["candidates_true"]) == (3, 2)
    among_all = judge_candidates(found, ground_truth(truth))
    assert among_all.kind.tolist() == [TRUE, TRUE, DUPLICATE]
    both = judge_with_pool(among_all, found, kept, ground_truth(truth))
    assert both.kind.tolist() == [TRUE, TRUE, TRUE]


def test_audit_ignores_crowds(tmp_path: Path) -> None:
    truth = truth_of(tmp_path, (0, BIRD, (0, 0, 20, 20)), crowd=[True])
    found = found_of((0, 0, 0.9, (0, 0, 20, 20)))
    row = audit(found, np.array([True]), ground_truth(truth))["classes"]["bird"]
    assert (row["hidden"], row["true_positives"], row["recall"]) == (0, 0, None)


def test_audit_of_hand_computed_figures(tmp_path: Path) -> None:
    """15 birds hide in image 0; of the 12 best candidates only the third is wrong, then 8 are."""
    birds = [(0, BIRD, (30 * k, 0, 20, 20)) for k in range(15)]
    truth = truth_of(tmp_path, *birds, (1, CAR, (0, 0, 20, 20)))
    rows = [(0, 0, 0.9 - k / 100, (30 * k, 100 * (k == 2), 20, 20)) for k in range(12)]
    rows += [(1, 0, 0.5 - k / 100, (40 * k, 0, 20, 20)) for k in range(8)]
    found = found_of(*rows)
    kept = found.score >= 0.5  # twelve of image 0, and one on the car
    without = (found.take(kept), np.ones(13, dtype=bool))
    result = audit(found, kept, ground_truth(truth), without)
    bird = result["classes"]["bird"]
    plain = bird.pop("without_co_mining")
    assert bird.pop("without_segmenter") is None
    assert bird == {
        "hidden": 15,
        "kept": 13,
        "on_shots": 0,
        "true_positives": 11,
        "duplicates": 0,
        "precision": pytest.approx(11 / 13, abs=1e-6),
        "recall": pytest.approx(11 / 15, abs=1e-6),
        "false_on": {"background": 1, "badly_placed": 0, "classes": {"car": 1}},
        "placement": {"mean_iou": 1, "badly_placed": 0},
        "candidates": 20,
        "candidates_true": 11,
        "candidates_recall": pytest.approx(11 / 15, abs=1e-6),
        "precision_by_rank": dict.fromkeys(("30", "100", "300", "600", "1000")) | {"10": 0.9},
        "by_size": {
            "small": {"hidden": 15, "candidates": 11},
            "medium": {"hidden": 0, "candidates": 0},
            "large": {"hidden": 0, "candidates": 0},
        },
    }
    assert plain["candidates"] == 13
    assert plain["true_positives"] == 11
    bus = result["classes"]["bus"]
    assert (bus["hidden"], bus["kept"], bus["precision"], bus["recall"]) == (0, 0, None, None)
    total = result["pool"]
    assert (total["kept"], total["true_positives"], total["hidden"]) == (13, 11, 15)
    assert total["precision_by_rank"]["10"] == 0.9
    json.dumps(result, allow_nan=False)


def test_reached_by_size_counts_hidden_objects_whatever_takes_them(tmp_path: Path) -> None:
    boxes = [(0, 0, 10, 10), (50, 0, 32, 32), (100, 0, 50, 200), (0, 300, 40, 40)]
    truth = truth_of(tmp_path, *((0, BIRD, box) for box in boxes), (0, BUS, (200, 0, 9, 9)))
    shots = arranged(truth.with_boxes(truth.boxes.take(np.array([3]))), LABELS).select([0])
    found = found_of(
        (0, 0, 0.9, (0, 0, 10, 10)),
        (0, 0, 0.8, (1, 0, 10, 10)),  # again
        (0, 1, 0.8, (50, 0, 32, 32)),  # as another class
        (0, 0, 0.2, (100, 0, 50, 180)),
        (0, 0, 0.2, (0, 300, 40, 40)),  # the shot is not hidden
    )
    assert reached_by_size(found, ground_truth(truth, shots), 0) == {
        "small": {"hidden": 1, "candidates": 1},
        "medium": {"hidden": 1, "candidates": 0},
        "large": {"hidden": 1, "candidates": 1},
    }
    nothing = reached_by_size(found.take(np.zeros(5, dtype=np.bool_)), ground_truth(truth), 1)
    assert nothing["small"] == {"hidden": 1, "candidates": 0}


def test_audit_says_how_boxes_lie(tmp_path: Path) -> None:
    """Of two birds one is half found, then as a whole; a third box lies badly on the other."""
    truth = truth_of(tmp_path, (0, BIRD, (0, 0, 20, 20)), (0, BIRD, (50, 0, 20, 20)))
    half = (0, 0, 0.9, (0, 0, 10, 20))
    before = found_of(half, (0, 0, 0.8, (50, 0, 8, 20)), (1, 0, 0.7, (0, 0, 9, 9)))
    after = found_of((0, 0, 0.9, (0, 0, 16, 20)), (0, 0, 0.8, (50, 0, 8, 20)))
    everything = (before, np.ones(3, dtype=bool))
    found = audit(after, np.ones(2, dtype=bool), ground_truth(truth), as_found=everything)
    bird = found["classes"]["bird"]
    assert bird["placement"] == {"mean_iou": 0.8, "badly_placed": 0.5}
    assert bird["without_segmenter"]["placement"] == {
        "mean_iou": 0.5,
        "badly_placed": pytest.approx(1 / 3, abs=1e-6),
    }
    assert found["classes"]["bus"]["placement"] == {"mean_iou": None, "badly_placed": None}


def test_audit_counts_shots_as_neither_right_nor_wrong(tmp_path: Path) -> None:
    """Nor are they hidden. A second box on one is a duplicate, another class is wrong."""
    birds = [(0, BIRD, (30 * k, 0, 20, 20)) for k in range(4)]
    truth = truth_of(tmp_path, *birds, (1, BIRD, (0, 0, 20, 20)))
    shots = arranged(truth.with_boxes(truth.boxes.take(np.array([0, 4]))), LABELS).select([1, 0])
    found = found_of(
        (0, 0, 0.9, (0, 0, 20, 20)),  # a shot
        (0, 0, 0.8, (1, 0, 20, 20)),  # and again
        (0, 1, 0.7, (0, 0, 20, 20)),  # as a bus
        (0, 0, 0.6, (30, 0, 20, 20)),
        (1, 0, 0.5, (0, 0, 20, 20)),  # the other shot
    )
    kinds = [SHOT, DUPLICATE, FALSE, TRUE, SHOT]
    assert judge_candidates(found, ground_truth(truth, shots)).kind.tolist() == kinds
    bird = audit(found, np.ones(5, dtype=bool), ground_truth(truth, shots))["classes"]["bird"]
    assert (bird["hidden"], bird["kept"], bird["on_shots"]) == (3, 4, 2)
    assert (bird["precision"], bird["recall"]) == (0.5, pytest.approx(1 / 3, abs=1e-6))
    assert len(ground_truth(truth, shots).hidden) == 3
    assert len(ground_truth(truth).hidden) == 5
    elsewhere = replace(shots, files=("elsewhere/1.png", "elsewhere/0.png"))
    assert len(ground_truth(truth, elsewhere).hidden) == 5


@pytest.mark.parametrize(
    ("objects", "mined", "complete"),
    [
        (0, 0, False),
        (0, 5, False),
        (1, 0, True),
        (3, 86, False),
        (21, 86, False),
        (22, 86, True),
        (6139, 1500, True),
    ],
)
def test_seem_complete_needs_a_quarter_of_the_mined_boxes(
    objects: int, mined: int, complete: bool
) -> None:
    assert seem_complete(objects, mined) is complete


def test_why_not_judged_tells_no_annotations_from_few() -> None:
    assert why_not_judged(0, 12, 0).startswith("The hidden objects are not annotated")
    assert why_not_judged(172, 706, 121) == (
        "Only 172 hidden objects are annotated for 706 mined boxes; 121 match. Either most objects "
        "are not annotated, or most mined boxes are wrong: the precision is not known."
    )
    assert why_not_judged(1, 5, 1).startswith("Only 1 hidden object is annotated for 5 mined")


def test_audit_without_candidates(tmp_path: Path) -> None:
    truth = data_of(tmp_path)
    nothing = np.zeros(0, dtype=bool)
    result = audit(select_candidates(pairs_of()), nothing, ground_truth(truth))
    assert result["pool"]["hidden"] == 3
    assert result["pool"]["recall"] == 0
    assert result["pool"]["precision"] is None
    assert result["pool"]["without_co_mining"] is None


def test_judge_candidates_depends_on_better_ones_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = data_of(tmp_path)
    n = 300
    label, image = rng.integers(0, 2, n), np.sort(rng.integers(0, 3, n))
    near = np.array([[10, 20, 30, 40], [0, 0, 60, 60], [40, 20, 50, 30]])[image]
    xywh = near * rng.normal(1, 0.15, (n, 4))
    found = Candidates(image, label, xywh, rng.random(n), rng.random(n), None)
    whole = judge_candidates(found, ground_truth(truth))
    best = found.score > 0.4
    part = judge_candidates(found.take(best), ground_truth(truth))
    assert part.kind.tolist() == whole.kind[best].tolist()
    assert set(whole.kind.tolist()) == {TRUE, DUPLICATE, FALSE}
    shuffled = rng.permutation(n)
    again = judge_candidates(found.take(shuffled), ground_truth(truth))
    assert again.kind.tolist() == whole.kind[shuffled].tolist()
