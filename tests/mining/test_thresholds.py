"""Equations 1 and 5, the limit N, ties and empty classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.pairs import random_pairs
from mini_fsod.mining.candidates import Candidates, select_candidates
from mini_fsod.mining.thresholds import (
    Threshold,
    adaptive_threshold,
    at_least,
    choose_pool,
    count_by_mean_score,
    few_mined_note,
    statistics,
)

SCORES = st.lists(st.floats(0, 1, width=32), max_size=30).map(lambda v: np.array(v, dtype=float))


def found_of(scores: list[float], label: int = 0) -> Candidates:
    n = len(scores)
    score = np.array(scores)
    image = np.arange(n)
    return Candidates(image, np.full(n, label), np.ones((n, 4)), score, score, None)


def test_adaptive_threshold_of_hand_computed_scores() -> None:
    scores = np.array([1, 3, 3, 5]) / 8  # mean 3 / 8, variance (4 + 4) / 4 / 64
    assert statistics(scores) == pytest.approx((0.375, 2**0.5 / 8))
    assert adaptive_threshold(scores, 1.5) == pytest.approx(0.375 + 1.5 * 2**0.5 / 8)
    assert at_least(scores, adaptive_threshold(scores, 1.0)).tolist() == [False, False, False, True]
    assert at_least(scores, adaptive_threshold(scores, 0.0)).tolist() == [False, True, True, True]


@pytest.mark.parametrize("score", [0.1, 0.3, 0.7, 1 / 3])
def test_adaptive_threshold_keeps_all_equal_scores(score: float) -> None:
    scores = np.full(7, score)  # a plain mean is above 0.1 due to rounding
    assert adaptive_threshold(scores, 1.5) == score
    assert at_least(scores, score).all()


def test_at_least_includes_the_threshold() -> None:
    assert at_least(np.array([0.7, 0.69, 0.71]), 0.7).tolist() == [True, False, True]


def test_at_least_takes_the_earlier_of_equal_scores_at_the_limit() -> None:
    scores = np.array([0.5, 0.9, 0.5, 0.5])
    assert at_least(scores, 0.5, 2).tolist() == [True, True, False, False]
    assert at_least(scores, 0.5, 3).tolist() == [True, True, True, False]
    assert at_least(scores, 0.5, 0).tolist() == [False] * 4


def test_boxes_are_ranked_in_a_fixed_order_among_many_equal_scores() -> None:
    scores = np.tile([0.5, 0.75], 500)  # so many that a fast sort changes their order
    first = np.flatnonzero(at_least(scores, 0.5, 700))
    assert first.tolist() == sorted([*range(1, 1000, 2), *range(0, 400, 2)])
    detector = np.where(np.arange(1000) < 200, 1.0, 0.0)  # 100 of the best 500
    assert count_by_mean_score(scores, detector, 1.0) == 100


def test_at_least_without_a_threshold_keeps_nothing() -> None:
    assert at_least(np.array([0.5, 0.9]), None).tolist() == [False, False]


def test_choose_pool_without_candidates() -> None:
    kept, table = choose_pool(found_of([]), ["bird"])
    assert kept.tolist() == []
    assert table["bird"].to_json() == {
        "mean": None,
        "deviation": None,
        "alpha": 1.5,
        "N": 300,
        "delta": None,
        "candidates": 0,
        "kept": 0,
    }


def test_choose_pool_with_a_fixed_threshold_ignores_n() -> None:
    kept, table = choose_pool(
        found_of([0.9, 0.7, 0.8, 0.6]), ["bird", "bus"], threshold=0.7, per_class=1
    )
    assert kept.tolist() == [True, True, True, False]
    bird, bus = table["bird"].to_json(), table["bus"].to_json()
    assert (bird["delta"], bird["alpha"], bird["N"], bird["kept"]) == (0.7, None, None, 3)
    assert bird["mean"] == pytest.approx(0.75)
    assert (bus["delta"], bus["mean"], bus["kept"]) == (0.7, None, 0)


def test_choose_pool_reports_delta_where_n_is_the_limit() -> None:
    _, table = choose_pool(found_of([0.1] * 8 + [0.8, 0.9]), ["bird"], alpha=1.0, per_class=1)
    bird = table["bird"]
    assert (bird.kept, bird.per_class) == (1, 1)
    assert bird.mean is not None
    assert bird.deviation is not None
    assert bird.delta == bird.mean + bird.deviation < 0.8


def test_count_by_mean_score_of_hand_computed_scores() -> None:
    scores = np.array([0.1, 0.9, 0.5, 0.7])  # best first: 0.9, 0.7, 0.5, 0.1
    sure = np.array([0.0, 0.8, 0.6, 0.4])  # means of the best: 0.8, 0.6, 0.6, 0.45
    assert [count_by_mean_score(scores, sure, e) for e in (0.9, 0.8, 0.6, 0.5, 0.45)] == [
        0,
        1,
        3,
        3,
        4,
    ]
    assert count_by_mean_score(np.zeros(0), np.zeros(0), 0.5) == 0


def test_choose_pool_by_mean_score_exceeds_n_and_delta() -> None:
    found = found_of([0.9, 0.8, 0.7, 0.6, 0.1, 0.1])
    plain, _ = choose_pool(found, ["bird"], alpha=1.0, per_class=1)
    more, table = choose_pool(found, ["bird"], alpha=1.0, per_class=1, mean_score=0.75)
    assert plain.tolist() == [True, False, False, False, False, False]
    assert more.tolist() == [True, True, True, True, False, False]  # 3.0 / 4
    assert (table["bird"].per_class, table["bird"].kept) == (4, 4)
    assert table["bird"].delta == adaptive_threshold(found.score, 1.0)
    # never fewer than Eq. 5 keeps; a fixed threshold ignores it
    assert (
        choose_pool(found, ["bird"], alpha=1.0, per_class=1, mean_score=0.95)[0].tolist()
        == plain.tolist()
    )
    fixed = choose_pool(found, ["bird"], 0.85, mean_score=0.5)
    assert fixed[0].tolist() == plain.tolist()
    assert fixed[1]["bird"].per_class is None


def test_choose_pool_counts_ineligible_candidates_in_the_statistics() -> None:
    found = found_of([0.9, 0.8, 0.7, 0.6, 0.1, 0.1])
    may = np.array([True, False, True, True, True, True])
    kept, table = choose_pool(found, ["bird"], alpha=0.5, per_class=2, eligible=may)
    assert kept.tolist() == [True, False, True, False, False, False]  # N are still chosen
    row = table["bird"]
    assert (row.kept, row.candidates, row.delta) == (2, 6, adaptive_threshold(found.score, 0.5))
    kept, _ = choose_pool(found, ["bird"], alpha=0.5, per_class=1, mean_score=0.75, eligible=may)
    assert kept.tolist() == [True, False, True, False, False, False]  # 1.6 / 2, then 2.2 / 3
    assert not choose_pool(found, ["bird"], 0.05, eligible=np.zeros(6, dtype=bool))[0].any()


@settings(max_examples=60, deadline=None)
@given(SCORES, st.floats(0, 3), st.integers(0, 10))
def test_at_least_keeps_the_best_up_to_the_limit(scores, alpha: float, limit: int) -> None:
    delta = adaptive_threshold(scores, alpha)
    free, bound = at_least(scores, delta), at_least(scores, delta, limit)
    assert bound.sum() == min(free.sum(), limit)
    assert not (bound & ~free).any()
    if bound.any():
        assert scores[bound].min() >= scores[free & ~bound].max(initial=-1)


@settings(max_examples=60, deadline=None)
@given(
    random_pairs(), st.sampled_from([0.25, 4.0, 16.0, 0.3, 7.0]), st.floats(0, 2), st.integers(1, 5)
)
def test_choose_pool_does_not_depend_on_tau(pairs, tau: float, alpha: float, limit: int) -> None:
    assume(pairs.products is not None)
    plain, scaled = (select_candidates(pairs, tau=t) for t in (1.0, tau))
    kept, table = choose_pool(plain, ["bird", "bus"], alpha=alpha, per_class=limit)
    near = [t.delta is not None and abs(plain.score - t.delta).min() < 1e-9 for t in table.values()]
    assume(not any(near) or tau in (4.0, 16.0, 0.25))  # square roots that are exact
    again, _ = choose_pool(scaled, ["bird", "bus"], alpha=alpha, per_class=limit)
    assert np.allclose(scaled.score, plain.score * tau**0.5)
    assert plain.take(kept).xywh.tolist() == scaled.take(again).xywh.tolist()


@pytest.mark.parametrize(
    ("kept", "start"),
    [
        ({"bird": 19, "sofa": 10}, ""),
        ({"bird": 19, "sofa": 4}, "few boxes were mined of sofa: "),
        ({"bird": 0, "bus": 300, "sofa": 4}, "few boxes were mined of bird, sofa: "),
        ({"bird": 0, "sofa": 0}, ""),
    ],
)
def test_few_mined_note_names_classes_with_few_boxes(kept: dict[str, int], start: str) -> None:
    note = few_mined_note({name: chosen(number) for name, number in kept.items()})
    assert note.startswith(start)
    assert bool(note) == bool(start)


def chosen(kept: int, candidates: int = 900, alpha: float | None = 1.5) -> Threshold:
    return Threshold(0.5, 0.1, alpha, 300, 0.65, candidates, kept)


@pytest.mark.parametrize(
    ("row", "impossible"),
    [
        (chosen(0, candidates=1), False),
        (chosen(0, candidates=2), True),
        (chosen(0, candidates=3), True),
        (chosen(0, candidates=4), False),
        (chosen(0, candidates=3, alpha=1.4), False),
        (chosen(0, candidates=3, alpha=None), False),  # one threshold for all
        (chosen(1, candidates=3), False),  # by mine.mean_score
    ],
)
def test_few_mined_note_says_where_no_candidate_can_be_kept(
    row: Threshold, impossible: bool
) -> None:
    note = few_mined_note({"bird": chosen(19), "sofa": row})
    assert ("Of sofa there are so few candidates" in note) == impossible
