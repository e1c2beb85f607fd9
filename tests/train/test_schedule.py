from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_fsod.train.schedule import can_estimate, iterations_in_budget, rate_at

THIRDS = (2 / 3, 8 / 9)


@pytest.mark.parametrize(
    ("step", "total", "rate"),
    [
        (0, 90, 0.005),  # a quarter of the warm-up's four iterations
        (1, 90, 0.010),
        (3, 90, 0.020),
        (4, 90, 0.020),
        (59, 90, 0.020),
        (60, 90, 0.002),  # two thirds are done
        (79, 90, 0.002),
        (80, 90, 0.0002),  # eight ninths
        (89, 90, 0.0002),
        (80, None, 0.020),  # the end is not known yet
        (0, 9, 0.02 / 3),  # a third of a short run is the most that warms up
        (2, 9, 0.020),
        (0, 3, 0.020),
        (2, 3, 0.002),
        (1, None, 0.010),
    ],
)
def test_rate_at(step: int, total: int | None, rate: float) -> None:
    assert rate_at(step, total, 0.02, 4, THIRDS) == pytest.approx(rate)


def test_rate_at_without_warm_up_and_decay() -> None:
    assert [rate_at(n, 9, 0.3, 0, ()) for n in (0, 8)] == [0.3, 0.3]


@given(st.integers(1, 500), st.integers(0, 50), st.integers(0, 499))
def test_rate_at_only_falls_after_the_warm_up(total: int, warm_up: int, step: int) -> None:
    now, then = (rate_at(n, total, 1.0, warm_up, THIRDS) for n in (step, step + 1))
    assert 0 < now <= 1
    assert then <= now or step < warm_up


@pytest.mark.parametrize(
    ("minutes", "seconds", "may"),
    [
        (10, 59.9, False),  # a tenth of the budget
        (10, 60, True),
        (2, 19.9, False),  # at least twenty seconds
        (2, 20, True),
        (0.1, 2.9, False),  # but no more than half of the budget
        (0.1, 3, True),
    ],
)
def test_can_estimate(minutes: float, seconds: float, may: bool) -> None:
    assert can_estimate(minutes, seconds) is may


@pytest.mark.parametrize(
    ("looks", "fits"),
    [
        ([(0, 0), (6, 60)], 600),  # ten a second for sixty seconds
        ([(0, 0), (4, 0), (5, 10), (6, 20)], 560),  # the slow start does not count: 20 + 54 * 10
        ([(10, 70), (20, 170)], 570),  # a run that goes on: 170 + 40 * 10
        ([(0, 0), (59, 5), (59.5, 10)], 15),
        ([(0, 0), (42, 50), (43, 100), (44, 150), (48, 200)], 800),  # the last waited for a graph
        ([(0, 0), (70, 50)], 51),  # over the budget already: it ends at once
    ],
)
def test_iterations_in_budget(looks: list[tuple[float, int]], fits: int) -> None:
    assert iterations_in_budget(1, looks) == fits
