"""Stretches that a whole class shares, and boxes that follow them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_fsod.mining.box_correction import STRETCHES, best_stretch, stretched

SIZES = np.array([[200, 100]])  # width, height


@pytest.mark.parametrize(
    ("stretch", "wanted"),
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
def test_stretched_by_hand(stretch: tuple[float, ...], wanted: list[float]) -> None:
    found = stretched(np.array([[50.0, 40.0, 40.0, 20.0]]), np.array([stretch]), SIZES)
    assert found.tolist() == [pytest.approx(wanted)]


def test_nothing_to_stretch() -> None:
    none = stretched(np.zeros((0, 4)), np.zeros((0, 3)), np.zeros((0, 2), dtype=np.int64))
    assert none.shape == (0, 4)


def test_the_first_changes_nothing_and_no_two_are_alike() -> None:
    assert STRETCHES[0].tolist()[:2] == [1, 1]
    assert len(np.unique(STRETCHES, axis=0)) == len(STRETCHES) == 30


@given(st.integers(0, len(STRETCHES) - 1), st.floats(0, 150), st.floats(0, 80))
def test_a_box_in_its_picture_stays_there(which: int, x: float, y: float) -> None:
    box = np.array([[x, y, 200 - x - 10, 100 - y - 10]])
    found = stretched(box, STRETCHES[which : which + 1], SIZES)[0]
    assert (found >= 0).all()
    assert found[0] + found[2] <= 200 + 1e-9
    assert found[1] + found[3] <= 100 + 1e-9


SHOT = np.array([1.0, 0.0, 0.0])


def looks(n: int, angles: list[float], spread: float = 0.05) -> np.ndarray:
    """(n, T, 3) boxes that a stretch turns to so many radians from the shot, each a little off."""
    rng = np.random.default_rng(0)
    off = rng.normal(0, spread, (n, 1)) + rng.normal(0, spread, (n, len(angles)))
    turned = np.array(angles) + off
    third = rng.normal(0, 0.3, (n, 1)) * np.ones(len(angles))
    return np.stack([np.cos(turned), np.sin(turned), third], axis=-1)


def test_a_stretch_must_help_the_class() -> None:
    # the boxes as they are lie at 0.9, and spread to both sides of it
    assert best_stretch(looks(100, [0.9, 0.9, 0.9]), SHOT) == 0
    some = looks(100, [0.9, 0.9, 0.9])
    some[:10, 1] = looks(10, [0.2])[:, 0]
    assert best_stretch(some, SHOT) == 0  # ten of a hundred are no class


def test_two_witnesses_must_agree() -> None:
    # as they are the boxes point anywhere around 0.5; the second stretch brings them together
    wild = looks(200, [0.5, 0.3, 0.0], spread=0.0)
    wild[:, 0] = looks(200, [0.5], spread=0.8)[:, 0]
    assert best_stretch(wild, SHOT) == 1  # nearest to the middle of the boxes and to the shot
    # a stretch that makes them like the shot, and unlike one another before
    tight = looks(200, [0.9, 0.2], spread=0.01)
    assert best_stretch(tight, SHOT) == 0
    # one that makes them like one another, and unlike the shot
    apart = looks(200, [0.5, 0.6], spread=0.0)
    apart[:, 0] = looks(200, [0.5], spread=0.8)[:, 0]
    assert best_stretch(apart, np.array([0.0, -1.0, 0.0])) == 0


def test_what_is_not_worth_it_is_left() -> None:
    wild = looks(5000, [0.0, 0.0], spread=0.0)
    wild[:, 0] = looks(5000, [0.0], spread=0.05)[:, 0]
    assert best_stretch(wild, SHOT) == 0  # sure, but by 0.002


def test_few_boxes_or_none_stay_as_they_are() -> None:
    assert best_stretch(np.zeros((0, 3, 2)), SHOT[:2]) == 0
    assert best_stretch(np.array([[[0.0, 1.0], [1.0, 0.0]]]), SHOT[:2]) == 0
    assert best_stretch(np.zeros((5, 3, 2)), SHOT[:2]) == 0  # nothing could be seen
