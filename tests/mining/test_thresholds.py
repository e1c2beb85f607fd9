"""Equations 1 and 5, the limit N, ties and empty classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mining.pairs import raws

from mini_fsod.mining.candidates import Candidates, candidates
from mini_fsod.mining.thresholds import adaptive, as_many, chosen, pool, statistics

SCORES = st.lists(st.floats(0, 1, width=32), max_size=30).map(lambda v: np.array(v, dtype=float))


def found_of(scores: list[float], label: int = 0) -> Candidates:
    n = len(scores)
    score = np.array(scores)
    image = np.arange(n)
    return Candidates(image, np.full(n, label), np.ones((n, 4)), score, score, None)


def test_adaptive_by_hand() -> None:
    scores = np.array([1, 3, 3, 5]) / 8  # mean 3 / 8, variance (4 + 4) / 4 / 64
    assert statistics(scores) == pytest.approx((0.375, 2**0.5 / 8))
    assert adaptive(scores, 1.5) == pytest.approx(0.375 + 1.5 * 2**0.5 / 8)
    assert chosen(scores, adaptive(scores, 1.0)).tolist() == [False, False, False, True]
    assert chosen(scores, adaptive(scores, 0.0)).tolist() == [False, True, True, True]


@pytest.mark.parametrize("score", [0.1, 0.3, 0.7, 1 / 3])
def test_equal_scores_are_all_kept(score: float) -> None:
    scores = np.full(7, score)  # a plain mean is above 0.1 by rounding
    assert adaptive(scores, 1.5) == score
    assert chosen(scores, score).all()


def test_what_equals_the_threshold_is_kept() -> None:
    assert chosen(np.array([0.7, 0.69, 0.71]), 0.7).tolist() == [True, False, True]


def test_of_equal_scores_at_the_last_place_the_earlier_is_taken() -> None:
    scores = np.array([0.5, 0.9, 0.5, 0.5])
    assert chosen(scores, 0.5, 2).tolist() == [True, True, False, False]
    assert chosen(scores, 0.5, 3).tolist() == [True, True, True, False]
    assert chosen(scores, 0.5, 0).tolist() == [False] * 4


def test_a_class_without_candidates() -> None:
    kept, table = pool(found_of([]), ["bird"])
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


def test_a_fixed_threshold_knows_no_limit_and_keeps_its_number() -> None:
    kept, table = pool(found_of([0.9, 0.7, 0.8, 0.6]), ["bird", "bus"], threshold=0.7, most=1)
    assert kept.tolist() == [True, True, True, False]
    bird, bus = table["bird"].to_json(), table["bus"].to_json()
    assert (bird["delta"], bird["alpha"], bird["N"], bird["kept"]) == (0.7, None, None, 3)
    assert bird["mean"] == pytest.approx(0.75)
    assert (bus["delta"], bus["mean"], bus["kept"]) == (0.7, None, 0)


def test_delta_is_told_where_n_binds() -> None:
    _, table = pool(found_of([0.1] * 8 + [0.8, 0.9]), ["bird"], alpha=1.0, most=1)
    bird = table["bird"]
    assert (bird.kept, bird.most) == (1, 1)
    assert bird.mean is not None
    assert bird.deviation is not None
    assert bird.delta == bird.mean + bird.deviation < 0.8


def test_as_many_as_are_expected_right() -> None:
    scores = np.array([0.1, 0.9, 0.5, 0.7])  # best first: 0.9, 0.7, 0.5, 0.1
    sure = np.array([0.0, 0.8, 0.6, 0.4])  # means of the best: 0.8, 0.6, 0.6, 0.45
    assert [as_many(scores, sure, e) for e in (0.9, 0.8, 0.6, 0.5, 0.45)] == [0, 1, 3, 3, 4]
    assert as_many(np.zeros(0), np.zeros(0), 0.5) == 0


def test_expected_ones_are_kept_beyond_n_and_below_delta() -> None:
    found = found_of([0.9, 0.8, 0.7, 0.6, 0.1, 0.1])
    plain, _ = pool(found, ["bird"], alpha=1.0, most=1)
    more, table = pool(found, ["bird"], alpha=1.0, most=1, expected=0.75)
    assert plain.tolist() == [True, False, False, False, False, False]
    assert more.tolist() == [True, True, True, True, False, False]  # 3.0 / 4
    assert (table["bird"].most, table["bird"].kept) == (4, 4)
    assert table["bird"].delta == adaptive(found.score, 1.0)
    # never fewer than the paper's rule keeps, and nothing to do with a fixed threshold
    assert pool(found, ["bird"], alpha=1.0, most=1, expected=0.95)[0].tolist() == plain.tolist()
    fixed = pool(found, ["bird"], 0.85, expected=0.5)
    assert fixed[0].tolist() == plain.tolist()
    assert fixed[1]["bird"].most is None


def test_who_may_not_be_chosen_counts_in_the_statistics_all_the_same() -> None:
    found = found_of([0.9, 0.8, 0.7, 0.6, 0.1, 0.1])
    may = np.array([True, False, True, True, True, True])
    kept, table = pool(found, ["bird"], alpha=0.5, most=2, eligible=may)
    assert kept.tolist() == [True, False, True, False, False, False]  # N are chosen still
    told = table["bird"]
    assert (told.kept, told.candidates, told.delta) == (2, 6, adaptive(found.score, 0.5))
    kept, _ = pool(found, ["bird"], alpha=0.5, most=1, expected=0.75, eligible=may)
    assert kept.tolist() == [True, False, True, False, False, False]  # 1.6 / 2, then 2.2 / 3
    assert not pool(found, ["bird"], 0.05, eligible=np.zeros(6, dtype=bool))[0].any()


@settings(max_examples=60, deadline=None)
@given(SCORES, st.floats(0, 3), st.integers(0, 10))
def test_what_is_kept_is_best_and_no_more_than_n(scores, alpha: float, most: int) -> None:
    delta = adaptive(scores, alpha)
    free, bound = chosen(scores, delta), chosen(scores, delta, most)
    assert bound.sum() == min(free.sum(), most)
    assert not (bound & ~free).any()
    if bound.any():
        assert scores[bound].min() >= scores[free & ~bound].max(initial=-1)


@settings(max_examples=60, deadline=None)
@given(raws(), st.sampled_from([0.25, 4.0, 16.0, 0.3, 7.0]), st.floats(0, 2), st.integers(1, 5))
def test_tau_rescales_scores_and_keeps_the_same(raw, tau: float, alpha: float, most: int) -> None:
    assume(raw.dots is not None)
    plain, scaled = (candidates(raw, 0.05, tau=t) for t in (1.0, tau))
    kept, table = pool(plain, ["bird", "bus"], alpha=alpha, most=most)
    near = [t.delta is not None and abs(plain.score - t.delta).min() < 1e-9 for t in table.values()]
    assume(not any(near) or tau in (4.0, 16.0, 0.25))  # roots that are exact
    again, _ = pool(scaled, ["bird", "bus"], alpha=alpha, most=most)
    assert np.allclose(scaled.score, plain.score * tau**0.5)
    assert plain.take(kept).xywh.tolist() == scaled.take(again).xywh.tolist()
