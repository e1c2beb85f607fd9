"""Pairs of detections, and what counts as equal."""

from __future__ import annotations

import numpy as np
import pytest

from mini_fsod.export.compare import OWN_REDUCTION, compare
from mini_fsod.predict.prediction import Prediction


def found(*rows: tuple[float, float, int]) -> Prediction:
    """Rows of left edge, score, label; boxes are 10 pixels large."""
    xywh = np.array([[left, 5, 10, 10] for left, _, _ in rows], dtype=float).reshape(-1, 4)
    labels = np.array([label for *_, label in rows], dtype=np.int64)
    scores = np.array([score for _, score, _ in rows], dtype=float)
    return Prediction(None, (99, 99), xywh, labels, scores, tuple("abc"[k] for k in labels))


def lone(first: Prediction, second: Prediction, threshold: float = 0.05, most: int = 100) -> int:
    return compare([first], [second], threshold, most).lone


def test_compare_pairs_what_differs_in_the_last_bits() -> None:
    first = found((0, 0.9, 0), (0, 0.8, 1), (30, 0.8, 0))
    second = found((0.2, 0.9004, 0), (30, 0.8003, 0), (0.1, 0.8001, 1))  # in another order
    result = compare([first], [second], 0.05, 100)
    assert (result.pictures, result.detections, result.lone, result.equal) == (1, 3, 0, True)
    assert result.box == pytest.approx(0.2)
    assert result.score == pytest.approx(0.0004)


@pytest.mark.parametrize(
    "other",
    [found((0.6, 0.9, 0)), found((0, 0.902, 0)), found((0, 0.9, 1)), found()],
    ids=["box", "score", "class", "missing"],
)
def test_compare_finds_what_has_no_partner(other: Prediction) -> None:
    first = found((0, 0.9, 0))
    assert lone(first, other) == 1 + len(other)
    assert lone(other, first) == 1 + len(other)
    assert not compare([first], [other], 0.05, 100).equal


def test_compare_uses_each_partner_once() -> None:
    assert lone(found((0, 0.9, 0), (0.1, 0.9, 0)), found((0, 0.9, 0))) == 1


def test_compare_forgives_what_is_cut_off_by_a_hair() -> None:
    assert lone(found((0, 0.9, 0), (30, 0.0505, 0)), found((0, 0.9, 0))) == 0  # by the threshold
    first, second = found((0, 0.9, 0), (30, 0.6, 0)), found((0, 0.9, 0), (60, 0.6003, 0))
    assert lone(first, second, most=2) == 0  # by the number of detections
    assert lone(first, second, most=3) == 2


def test_comparison_allows_one_of_a_hundred() -> None:
    rows = [(20.0 * n, 0.9, 0) for n in range(100)]
    first = found(*rows)
    assert compare([first], [found(*rows[:99])], 0.05, 1000).equal
    assert not compare([first], [found(*rows[:98])], 0.05, 1000).equal
    assert compare([found()], [found()], 0.05, 100).equal


def test_comparison_where_the_file_reduces_allows_five_of_a_hundred() -> None:
    first = found(*((20.0 * n, 0.9, 0) for n in range(100)))
    second = found(*((20.0 * n + 0.9, 0.892, 0) for n in range(100)))
    assert not compare([first], [second], 0.05, 1000).equal
    result = compare([first], [second], 0.05, 1000, OWN_REDUCTION)
    assert (result.lone, result.equal) == (0, True)
    rows = [(20.0 * n, 0.9, 0) for n in range(100)]
    assert compare([first], [found(*rows[:95])], 0.05, 1000, OWN_REDUCTION).equal
    assert not compare([first], [found(*rows[:94])], 0.05, 1000, OWN_REDUCTION).equal
