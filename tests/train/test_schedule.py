from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_fsod.train.schedule import (
    LEAST_LOOKS,
    Look,
    TimeLimit,
    can_estimate,
    rate_at,
    seconds_each,
)

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


def test_rate_at_along_a_cosine() -> None:
    rates = [rate_at(n, 8, 0.2, 2, None) for n in range(8)]
    shares = [0.5, 0.961940, 0.853553, 0.691342, 0.5, 0.308658, 0.146447, 0.038060]
    assert rates == pytest.approx([0.2 * share for share in shares], rel=1e-4)
    assert rate_at(7, None, 0.2, 2, None) == 0.2  # the end is not known yet


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
    ("looks", "seconds"),
    [
        ([(0, 0), (6, 60)], 0.1),
        ([(0, 0), (4, 0), (5, 10), (6, 20)], 0.1),  # the slow start does not count
        ([(10, 70), (20, 170)], 0.1),  # a run that goes on
        ([(0, 0), (59, 5), (59.5, 10)], 0.1),
        ([(0, 0), (42, 50), (43, 100), (44, 150), (48, 200)], 0.02),  # the last wrote a state
    ],
)
def test_seconds_each(looks: list[Look], seconds: float) -> None:
    assert seconds_each(looks) == pytest.approx(seconds)


# A time limit


def test_time_limit_at_a_constant_speed_is_a_number_of_iterations() -> None:
    limit, looks = TimeLimit(60.0), [(0.0, 0)]
    for step in range(0, 600, 50):
        assert limit.total == (None if step < 200 else 600)
        for n in range(step, step + 50):
            at = limit.rate_at(n, 0.02, 4, THIRDS)
            assert at == pytest.approx(rate_at(n, limit.total, 0.02, 4, THIRDS))
            smooth = limit.rate_at(n, 0.02, 4, None)
            assert smooth == pytest.approx(rate_at(n, limit.total, 0.02, 4, None), abs=2e-4)
        looks.append(((step + 50) / 10, step + 50))
        limit.look(looks, 4)
    assert limit.share_at(600) == pytest.approx(1)


def test_time_limit_shortens_the_warm_up_once() -> None:
    limit = TimeLimit(60.0)
    limit.look([(0.0, 0), (20.0, 20)], 100)
    assert (limit.total, limit.warm_up) == (60, 20)
    looks = [(0.0, 0), (20.0, 20), (21.0, 40), (22.0, 60)]
    assert len(looks) == LEAST_LOOKS
    limit.look(looks, 100)
    assert (limit.total, limit.warm_up) == (60 + 38 * 20, 20)


def test_time_limit_keeps_its_fit_while_a_resumed_training_starts() -> None:
    """The first iterations of a process are slow."""
    limit = TimeLimit(60.0, total=600, step=300, share=0.5, warm_up=4)
    limit.look([(30.0, 300), (40.0, 301)], 4)
    assert (limit.total, limit.step) == (600, 300)
    limit.look([(30.0, 300), (40.0, 301), (40.1, 302), (40.2, 303)], 4)
    assert limit.total in (500, 501)
    assert limit.share == pytest.approx(40.2 / 60)


def test_time_limit_that_is_over_ends_the_training() -> None:
    limit = TimeLimit(60.0)
    limit.look([(0.0, 0), (70.0, 50)], 4)
    assert limit.total == 50
    resumed = TimeLimit(60.0, total=51, step=50, share=0.9, warm_up=4)
    resumed.look([(61.0, 50), (63.0, 51)], 4)
    assert resumed.total == 51


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.floats(0.1, 8), min_size=1, max_size=30),
    st.sampled_from([30.0, 300.0]),
    st.sampled_from([1, 5]),
)
def test_time_limit_ends_in_time_whatever_the_speed(
    speeds: list[float], seconds: float, log_every: int
) -> None:
    """Iterations take as long as `speeds` say, each for twenty iterations, again and again."""
    limit, rates = TimeLimit(seconds), []
    looks: list[Look] = [(0.0, 0)]
    now, step = 0.0, 0
    while limit.total is None or step < limit.total:
        rates.append(limit.rate_at(step, 1.0, 3, THIRDS))
        now += speeds[step // 20 % len(speeds)]
        step += 1
        if step % log_every == 0 or step == limit.total:
            looks.append((now, step))
            limit.look(looks, 3)
    slowest = max(speeds) * max(log_every, LEAST_LOOKS)
    assert now <= seconds + slowest
    assert now >= seconds - 2 * slowest
    assert all(then <= before for before, then in pairwise(rates[3:]))  # after the warm-up
    if slowest < seconds / 20:
        for rate in (1.0, 0.1, 0.01):  # every part of the schedule has its turn
            assert sum(at == pytest.approx(rate) for at in rates) > 0
