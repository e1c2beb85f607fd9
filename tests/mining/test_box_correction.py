"""Box corrections of a class, and how they are chosen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_fsod.mining.box_correction import CORRECTIONS, best_correction, corrected_boxes

SIZES = np.array([[200, 100]])  # width, height


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        ((1, 1, 0.5), [50, 40, 40, 20]),
        ((1.5, 1, 0.5), [40, 40, 60, 20]),  # evenly to both sides
        ((1, 1.5, 0.0), [50, 40, 40, 30]),  # downwards
        ((1, 1.5, 1.0), [50, 30, 40, 30]),  # upwards
        ((0.5, 0.5, 0.5), [60, 45, 20, 10]),
        ((6, 1, 0.5), [0, 40, 190, 20]),  # -50 to 190: cut at the edge
        ((1, 20, 0.5), [50, 0, 40, 100]),
    ],
)
def test_corrected_boxes_of_hand_computed_corrections(
    correction: tuple[float, ...], expected: list[float]
) -> None:
    found = corrected_boxes(np.array([[50.0, 40.0, 40.0, 20.0]]), np.array([correction]), SIZES)
    assert found.tolist() == [pytest.approx(expected)]


def test_corrected_boxes_of_no_boxes() -> None:
    none = corrected_boxes(np.zeros((0, 4)), np.zeros((0, 3)), np.zeros((0, 2), dtype=np.int64))
    assert none.shape == (0, 4)


def test_corrections_start_with_none_and_differ() -> None:
    assert CORRECTIONS[0].tolist()[:2] == [1, 1]
    assert len(np.unique(CORRECTIONS, axis=0)) == len(CORRECTIONS) == 30


@given(st.integers(0, len(CORRECTIONS) - 1), st.floats(0, 150), st.floats(0, 80))
def test_corrected_boxes_stay_in_their_image(which: int, x: float, y: float) -> None:
    box = np.array([[x, y, 200 - x - 10, 100 - y - 10]])
    found = corrected_boxes(box, CORRECTIONS[which : which + 1], SIZES)[0]
    assert (found >= 0).all()
    assert found[0] + found[2] <= 200 + 1e-9
    assert found[1] + found[3] <= 100 + 1e-9


SHOT = np.array([1.0, 0.0, 0.0])


def crops(n: int, angles: list[float], spread: float = 0.05) -> np.ndarray:
    """(n, T, 3) features of boxes; correction t is `angles[t]` radians away from the shot."""
    rng = np.random.default_rng(0)
    off = rng.normal(0, spread, (n, 1)) + rng.normal(0, spread, (n, len(angles)))
    turned = np.array(angles) + off
    third = rng.normal(0, 0.3, (n, 1)) * np.ones(len(angles))
    return np.stack([np.cos(turned), np.sin(turned), third], axis=-1)


def test_best_correction_must_help_the_whole_class() -> None:
    # uncorrected boxes are at 0.9 radians, with some spread
    assert best_correction(crops(100, [0.9, 0.9, 0.9]), SHOT) == 0
    some = crops(100, [0.9, 0.9, 0.9])
    some[:10, 1] = crops(10, [0.2])[:, 0]
    assert best_correction(some, SHOT) == 0  # ten of a hundred do not count


def test_best_correction_must_approach_both_references() -> None:
    # uncorrected boxes point anywhere around 0.5; the corrections bring them together
    wild = crops(200, [0.5, 0.3, 0.0], spread=0.0)
    wild[:, 0] = crops(200, [0.5], spread=0.8)[:, 0]
    assert best_correction(wild, SHOT) == 1  # nearest to the middle of the boxes and to the shot
    # a correction towards the shot, but away from the mean of the uncorrected boxes
    tight = crops(200, [0.9, 0.2], spread=0.01)
    assert best_correction(tight, SHOT) == 0
    # one towards that mean, but away from the shot
    apart = crops(200, [0.5, 0.6], spread=0.0)
    apart[:, 0] = crops(200, [0.5], spread=0.8)[:, 0]
    assert best_correction(apart, np.array([0.0, -1.0, 0.0])) == 0


def test_best_correction_ignores_a_small_gain() -> None:
    wild = crops(5000, [0.0, 0.0], spread=0.0)
    wild[:, 0] = crops(5000, [0.0], spread=0.05)[:, 0]
    assert best_correction(wild, SHOT) == 0  # significant, but by 0.002


def test_best_correction_of_few_boxes_is_none() -> None:
    assert best_correction(np.zeros((0, 3, 2)), SHOT[:2]) == 0
    assert best_correction(np.array([[[0.0, 1.0], [1.0, 0.0]]]), SHOT[:2]) == 0
    assert best_correction(np.zeros((5, 3, 2)), SHOT[:2]) == 0  # no box has a feature
