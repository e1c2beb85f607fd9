"""What a review asks next."""

from __future__ import annotations

import numpy as np
import pytest

from mini_fsod.review.order import (
    benefit,
    fit_answers,
    probability_right,
    threshold_and_width,
)

SCORES = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
MINED = SCORES > 0.65
NONE = np.zeros(6, dtype=np.bool_)


def worth(decided: dict[int, bool] | None = None, mined: np.ndarray = MINED) -> list[int]:
    """The boxes, what is worth most first."""
    answers = decided or {}
    is_decided = np.array([n in answers for n in range(len(SCORES))])
    right = np.array([answers.get(n, False) for n in range(len(SCORES))])
    value = benefit(SCORES, mined, is_decided, right)
    assert (value[is_decided] == 0).all()
    return [n for n in np.argsort(-value, kind="stable").tolist() if n not in answers]


def test_threshold_lies_between_what_was_mined_and_what_was_not() -> None:
    middle, width = threshold_and_width(SCORES, MINED)
    assert middle == pytest.approx(0.65)
    assert width == pytest.approx(SCORES.std())
    assert threshold_and_width(SCORES, NONE)[0] > 0.9
    assert threshold_and_width(SCORES[MINED], MINED[MINED])[0] < 0.7
    assert threshold_and_width(SCORES[:0], MINED[:0]) == (0.0, 1.0)


def test_benefit_is_highest_next_to_the_threshold() -> None:
    """Mined ones from the least sure, candidates from the surest."""
    assert worth() in ([2, 3, 1, 4, 0, 5], [3, 2, 4, 1, 5, 0])


def test_benefit_follows_the_answers() -> None:
    """After wrong mined boxes, surer ones are in question; after right candidates, lower ones."""
    wrong = worth({2: False, 1: False, 3: False})
    assert wrong[0] == 0
    right = worth({2: True, 3: True, 4: True})
    assert right[0] == 5


def test_benefit_without_a_mined_box_begins_with_the_best_candidate() -> None:
    assert worth(mined=NONE) == [0, 1, 2, 3, 4, 5]


def test_benefit_is_higher_for_a_class_with_few_right_boxes() -> None:
    many = np.repeat(SCORES, 20)
    few_worth = benefit(SCORES, MINED, NONE, NONE).max()
    many_worth = benefit(many, np.repeat(MINED, 20), np.repeat(NONE, 20), np.repeat(NONE, 20))
    assert few_worth > 5 * many_worth.max()


def test_benefit_of_nothing_and_of_equal_scores() -> None:
    assert benefit(SCORES[:0], MINED[:0], NONE[:0], NONE[:0]).shape == (0,)
    equal = benefit(np.ones(3), np.ones(3, np.bool_), np.zeros(3, np.bool_), np.zeros(3, np.bool_))
    assert np.isfinite(equal).all()


def test_probability_right_is_a_half_at_the_threshold_and_grows_with_the_score() -> None:
    p = probability_right(SCORES, MINED, NONE, NONE)
    assert p[2] + p[3] == pytest.approx(1)
    assert (np.diff(p) < 0).all()
    decided = np.array([True, False, False, False, False, True])
    right = np.array([False, False, False, False, False, True])
    assert probability_right(SCORES, MINED, decided, right)[[0, 5]].tolist() == [0, 1]


def test_fit_answers_maximizes_the_posterior() -> None:
    distance, right = np.array([-1.0, 0.0, 0.5, 2.0]), np.array([True, False, True, True])

    def posterior(a: float, b: float) -> float:
        p = 1 / (1 + np.exp(-(a * distance + b)))
        return float(np.log(np.where(right, p, 1 - p)).sum()) - ((a - 1) ** 2 + b**2) / 2

    found = fit_answers(distance, right)
    grid = np.linspace(-2, 3, 101)
    assert posterior(*found) >= max(posterior(a, b) for a in grid for b in grid) - 1e-6
    assert fit_answers(distance[:0], right[:0]) == (1, 0)


def test_fit_answers_finds_that_scores_say_nothing() -> None:
    distance = np.linspace(-2, 2, 200)
    slope, shift = fit_answers(distance, np.arange(200) % 4 == 0)
    assert slope == pytest.approx(0, abs=0.1)
    assert 1 / (1 + np.exp(-shift)) == pytest.approx(0.25, abs=0.03)
    far = fit_answers(100 * distance, distance < 0)  # against all expectations
    assert far[0] == 0
    assert np.isfinite(far).all()
