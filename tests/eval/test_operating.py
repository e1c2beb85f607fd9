"""Thresholds by F1, and intervals of AP by resampling images."""

from __future__ import annotations

import numpy as np
import pytest

from mini_fsod.eval.operating import Ranked, ap_intervals, best_f1, resampled_ap
from mini_fsod.eval.voc import average_precision_07, average_precision_area


def ranked_of(score: list[float], tp: list[int], boxes: int, images: int = 4) -> Ranked:
    n = len(score)
    hit = np.array(tp, dtype=np.bool_)
    image = np.arange(n, dtype=np.int64) % images
    of_box = np.arange(boxes, dtype=np.int64) % images
    return Ranked(np.arange(n), image, np.array(score), hit, ~hit, of_box)


def test_best_f1_is_the_threshold_that_balances_precision_and_recall() -> None:
    best = best_f1(ranked_of([0.9, 0.8, 0.7, 0.6, 0.5], [1, 1, 0, 1, 0], boxes=4))
    assert best is not None
    assert best.score == pytest.approx(0.6)
    assert (best.precision, best.recall) == (0.75, 0.75)
    assert best.f1 == pytest.approx(0.75)


def test_best_f1_accepts_equal_scores_together() -> None:
    best = best_f1(ranked_of([0.9, 0.9, 0.9], [1, 0, 0], boxes=1))
    assert best is not None
    assert best.precision == pytest.approx(1 / 3)


def test_best_f1_rounds_the_threshold_so_that_its_own_box_passes() -> None:
    score = 0.123456789
    best = best_f1(ranked_of([score], [1], boxes=1))
    assert best is not None
    assert score - 1e-4 < best.score <= score


@pytest.mark.parametrize(
    ("scores", "tp", "boxes"), [([], [], 3), ([0.9], [0], 3), ([], [], 0), ([0.5], [0], 0)]
)
def test_best_f1_is_none_where_nothing_is_right(
    scores: list[float], tp: list[int], boxes: int
) -> None:
    assert best_f1(ranked_of(scores, tp, boxes)) is None


@pytest.mark.parametrize("metric", ["voc07", "voc"])
def test_resampled_ap_of_every_image_once_is_the_ap(metric: str) -> None:
    rng = np.random.default_rng(0)
    score = np.sort(rng.random(60))[::-1].tolist()
    one = ranked_of(score, rng.integers(0, 2, 60).tolist(), boxes=70)
    average = average_precision_07 if metric == "voc07" else average_precision_area
    weights = np.ones((3, 4), dtype=np.int64)
    ap = resampled_ap(one, weights, metric)
    assert ap == pytest.approx([average(one.tp, one.fp, 70)] * 3)


def test_resampled_ap_counts_an_image_as_often_as_it_is_drawn() -> None:
    one = ranked_of([0.9, 0.8], [1, 0], boxes=2, images=2)  # image 0 is right, image 1 wrong
    weights = np.array([[2, 0], [0, 2], [0, 0]])
    assert resampled_ap(one, weights, "voc")[:2].tolist() == [1.0, 0.0]
    assert np.isnan(resampled_ap(one, weights, "voc")[2])  # no box is drawn


def test_ap_intervals_hold_the_ap_and_narrow_with_more_images() -> None:
    def width(images: int) -> float:
        score = np.linspace(0.9, 0.1, images).tolist()
        one = ranked_of(score, [n % 3 != 0 for n in range(images)], images, images)
        found = ap_intervals(
            {"owl": one, "none": ranked_of([], [], 0)}, {"all": ("owl",)}, images, "voc"
        )
        assert set(found) == {"owl", "all"}
        assert found["owl"] == found["all"]
        low, high = found["owl"]
        assert low <= 100 * average_precision_area(one.tp, one.fp, images) <= high
        return high - low

    assert width(400) < width(25) / 2


def test_ap_intervals_of_no_images() -> None:
    assert ap_intervals({"owl": ranked_of([], [], 0)}, {"all": ("owl",)}, 0, "voc") == {}
