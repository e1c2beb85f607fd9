"""Which readings of the gauges are a warning, and which stop the training."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_fsod.errors import HopelessError, UserError
from mini_fsod.online.health import (
    LONG_WINDOW,
    MIN_READINGS,
    HealthCheck,
    Reading,
    Setup,
    find_collapse,
    find_warnings,
    latest,
    now_and_best,
    ratios,
    readings_of,
    windows,
)

# 0.02 boxes an image of each class: some 160 in 500 iterations of 16 images
SETUP = Setup(batch=16, instances=32, pool={"cow": 0.02, "bus": 0.02})
FINE = {
    "loss_classifier": 0.4,
    "loss_box_reg": 0.6,
    "mined": 0.3,
    "online": 0.2,
    "offline": 0.1,
    "base": 2.0,
    "pool": 0.3,
    "agreed": 0.15,
    "overlap": 0.12,
    "found": 0.25,
    "found_cow": 0.15,
    "found_bus": 0.1,
    "right": 0.2,
    "confidence": 0.9,
    "mined_loss": 0.1,
}
EVERY = 50  # iterations between readings


def readings(*parts: tuple[int, dict[str, float]]) -> list[Reading]:
    """Of each part so many readings of a healthy training, with these changes."""
    found: list[Reading] = []
    for number, changes in parts:
        for _ in range(number):
            found.append(Reading(EVERY * (len(found) + 1), FINE | changes))
    return found


def without(name: str) -> list[Reading]:
    """A long training without this gauge."""
    means = {key: value for key, value in FINE.items() if key != name}
    return [Reading(EVERY * (n + 1), means) for n in range(30)]


GOOD: tuple[int, dict[str, float]] = (20, {})
LOST_COW = {"found_cow": 0.0, "found": 0.1}
LOST_BOTH = {"found_cow": 0.0, "found_bus": 0.0, "found": 0.0}


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ([(1, {})], set()),
        ([(60, {})], set()),
        ([(2, {"mined": 50.0})], set()),  # too early
        ([(3, {"mined": 50.0})], {"many"}),
        ([GOOD, (3, {"mined": 6.1, "right": 4.0})], {"many"}),  # three per base box
        ([GOOD, (3, {"mined": 5.9, "right": 4.0})], set()),
        ([GOOD, (2, {"mined": 6.1, "right": 4.0})], set()),  # not for long enough
        ([GOOD, (3, {"mined": 2.9, "right": 2.0, "base": 0.1})], set()),
        ([GOOD, (3, {"mined": 3.1, "right": 2.0, "base": 0.1})], {"many"}),
        ([GOOD, (3, {"mined_loss": 0.51})], {"share"}),
        ([GOOD, (3, {"mined_loss": 0.49})], set()),
        ([(9, {"mined": 0.0, "right": 0.0})], set()),
        ([(10, {"mined": 0.0, "right": 0.0})], {"nothing"}),
        ([(9, {"mined": 0.0, "right": 0.0}), (1, {})], set()),
        ([GOOD, (10, {"mined": 0.0, "right": 0.0})], {"nothing"}),
        ([GOOD, (10, {"agreed": 0.07, "overlap": 0.06})], {"agreement"}),  # 0.23, was 0.5
        ([GOOD, (10, {"agreed": 0.08, "overlap": 0.07})], set()),
        ([GOOD, (4, {"agreed": 0.0, "overlap": 0.0})], set()),
        # it never was high
        ([(20, {"agreed": 0.05, "overlap": 0.04}), (10, {"agreed": 0.0})], set()),
        ([GOOD, (10, {"agreed": 0.0, "pool": 0.01})], set()),  # 80 boxes are too few
        ([GOOD, (10, {"overlap": 0.1})], {"placement"}),  # 0.67, was 0.8
        ([GOOD, (10, {"overlap": 0.103})], set()),
        ([GOOD, (10, {"right": 0.12})], {"precision"}),  # 0.4, was 0.67
        ([GOOD, (10, {"right": 0.14})], set()),
        ([(62, {"found_bus": 0.0})], set()),  # 992 boxes in 3,100 iterations
        ([(63, {"found_bus": 0.0})], {"unfound bus"}),
        ([(62, {"found_bus": 0.0}), (1, {})], set()),
        # a class is lost
        ([GOOD, (10, LOST_COW)], {"lost cow"}),
        ([GOOD, (9, LOST_COW)], set()),
        ([GOOD, (9, LOST_COW), (1, {"found_cow": 0.001})], set()),
        ([(60, LOST_COW)], set()),  # it was never found
        ([(40, LOST_COW), (10, {}), (10, LOST_COW)], {"lost cow"}),
        ([(20, {"found_cow": 0.003}), (10, LOST_COW)], set()),  # hardly ever found before
    ],
)
def test_find_warnings(parts: list[tuple[int, dict[str, float]]], names: set[str]) -> None:
    """With a reading every 50 iterations, a short window has 3 readings and a long one has 10."""
    found = find_warnings(readings(*parts), SETUP)
    assert {*found} == names
    for text in found.values():
        assert re.search(r"online\.|mine\.", text)  # advice


def test_find_warnings_has_shorter_windows_in_a_short_training() -> None:
    """Precision falls half way through 300 iterations with batches of 8."""
    lengths = (None, 18_000, 1_000, 300, 3)
    assert [Setup.of(8, 32, {}, n).long_window for n in lengths] == [500, 500, 200, 100, 100]
    means = [FINE | {"right": 0.2 if n < 30 else 0.1} for n in range(60)]
    given = [Reading(5 * (n + 1), each) for n, each in enumerate(means)]
    assert {*find_warnings(given, Setup.of(8, 32, {}, 300))} == {"precision"}
    assert find_warnings(given, Setup.of(8, 32, {}, None)) == {}


def test_find_warnings_needs_readings_of_a_gauge() -> None:
    assert find_warnings(without("right"), SETUP) == {}
    assert find_warnings([], SETUP) == {}
    assert find_collapse([], SETUP) is None


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([(60, {})], None),
        # everything background
        ([GOOD, (3, {"confidence": 0.04})], "everything for background"),
        ([GOOD, (1, {"confidence": 0.04})], None),
        ([GOOD, (3, {"confidence": 0.06})], None),
        ([(59, {"confidence": 0.01})], None),  # untrained so far,
        (
            [(60, {"confidence": 0.01})],
            "everything for background",
        ),  # but by now it should find something
        ([(57, {"confidence": 0.01}), (3, {"confidence": 0.2})], None),
        # everything novel
        ([GOOD, (3, {"found": 26.0, "mined": 26.0})], "finds 26 novel objects in every image"),
        # the gauge of right boxes does not matter
        ([GOOD, (3, {"found": 26.0, "mined": 26.0, "right": 20.0})], "finds 26 novel objects"),
        ([GOOD, (3, {"found": 25.0, "mined": 25.0})], None),
        ([(2, {"found": 32.0, "mined": 32.0})], None),
        # all classes are lost; a single one is only a warning
        ([GOOD, (10, LOST_BOTH)], "found no cow and no bus in the last 500 iterations"),
        ([GOOD, (9, LOST_BOTH)], None),
        ([GOOD, (9, LOST_BOTH), (1, {"found_cow": 0.001, "found": 0.001})], None),
        ([GOOD, (20, LOST_COW)], None),
        ([GOOD, (10, LOST_COW), (10, LOST_BOTH)], "found no cow and no bus in the last"),
        ([(60, LOST_BOTH)], None),  # nothing was ever found
        ([(40, LOST_BOTH), (10, {}), (10, LOST_BOTH)], "found no cow and no bus in the last"),
    ],
)
def test_find_collapse(parts: list[tuple[int, dict[str, float]]], why: str | None) -> None:
    found = find_collapse(readings(*parts), SETUP)
    if why is None:
        assert found is None
    else:
        assert found is not None
        assert why in found[0]
        assert "online." in found[1]


def test_find_collapse_needs_enough_boxes_of_a_class() -> None:
    rare = Setup(16, 32, {"cow": 0.01})  # 80 boxes in 500 iterations
    assert find_collapse(readings(GOOD, (20, LOST_BOTH)), rare) is None
    assert find_warnings(readings(GOOD, (20, LOST_COW)), rare) == {}


def test_find_collapse_allows_many_boxes_where_they_are_plausible() -> None:
    given = [Reading(reading.step, reading.means | {"found": 30.0}) for reading in without("right")]
    assert find_collapse(given, SETUP) is not None
    assert find_collapse(given, Setup(16, 100, SETUP.pool)) is None
    assert find_collapse(given, Setup(16, 32, SETUP.pool | {"cow": 6.0})) is None  # crowded images


def test_ratios() -> None:
    assert ratios(FINE) == pytest.approx(
        {"agreement": 0.5, "placement": 0.8, "precision": 2 / 3, "mined_share": 0.1}
    )
    nothing = dict.fromkeys(FINE, 0.0)
    assert ratios(nothing) == {}
    assert "precision" not in ratios({k: v for k, v in FINE.items() if k != "right"})


def test_now_and_best_skips_windows_with_few_boxes() -> None:
    pair = ("agreed", "pool")
    given = readings(
        (10, {"agreed": 0.24}), (10, {"agreed": 0.3, "pool": 0.012}), (10, {"agreed": 0.03})
    )
    assert now_and_best(given, pair, SETUP) == pytest.approx((0.1, 0.8))  # the middle: 96 boxes
    assert now_and_best(given, pair, replace(SETUP, batch=17)) == pytest.approx((0.1, 25.0))
    assert now_and_best(given[:20], pair, SETUP) == (1.0, 0.0)
    assert now_and_best(given[:9], pair, SETUP) == (1.0, 0.0)
    assert now_and_best([], pair, SETUP) == (1.0, 0.0)


@given(st.lists(st.integers(1, 700), max_size=30), st.sampled_from([100, LONG_WINDOW]))
def test_latest_and_windows_cover_the_iterations(steps: list[int], iterations: int) -> None:
    given, step = [], 0
    for more in steps:
        step += more
        given.append(Reading(step, {}))
    found = latest(given, iterations)
    if found:
        assert [*found] == given[-len(found) :]
        assert len(found) >= MIN_READINGS
        assert sum(steps[-len(found) :]) >= iterations
        assert (
            len(found) == MIN_READINGS or sum(steps[1 - len(found) :]) < iterations
        )  # no more of them
    else:
        assert len(given) < MIN_READINGS or step < iterations
    parts = [r for part in reversed(windows(given, LONG_WINDOW)) for r in part]
    assert parts == given[len(given) - len(parts) :]


# HealthCheck


def check(*parts: tuple[int, dict[str, float]]) -> None:
    health = HealthCheck(SETUP)
    for step, means in readings(*parts):
        assert health.look(step, means) == ratios(means)


def test_health_check_prints_each_warning_once(capsys: pytest.CaptureFixture[str]) -> None:
    check((40, {"mined": 20.0, "right": 15.0}))
    printed = capsys.readouterr().err
    assert printed.count("warning") == 1
    wanted = "warning, at iteration 150: 20.0 mined boxes per image, against 2.0 base boxes."
    assert wanted in printed


def test_health_check_stops_a_collapsed_training() -> None:
    with pytest.raises(
        HopelessError, match="collapsed: at iteration 1150, it takes everything"
    ) as stop:
        check(GOOD, (10, {"confidence": 0.0}))
    assert "online.rate" in stop.value.fix
    assert "run again" in stop.value.fix
    assert "--anyway" in stop.value.fix


def test_health_check_goes_on_anyway(capsys: pytest.CaptureFixture[str]) -> None:
    health = HealthCheck(SETUP, anyway=True)
    for step, means in readings(GOOD, (10, {"confidence": 0.0, "mined": 20.0})):
        assert health.look(step, means) == ratios(means)
    assert "warning" in capsys.readouterr().err


def as_lines(given: list[Reading]) -> list[dict[str, Any]]:
    return [{"step": step, "loss": 1.0, **means, "rate": 0.02} for step, means in given]


def test_health_check_resumes_with_the_readings_of_the_log() -> None:
    """Readings after the training state are dropped: they come again."""
    before = readings_of(as_lines(readings(GOOD, (2, {"confidence": 0.0}))))
    assert ratios(before[0].means) == ratios(FINE)  # "loss", the sum, is not counted twice
    health = HealthCheck(SETUP, before)
    health.begin(1000)
    health.look(1050, FINE | {"confidence": 0.0})
    assert [reading.step for reading in health.readings] == [EVERY * n for n in range(1, 22)]
    health.look(1100, FINE | {"confidence": 0.0})
    with pytest.raises(UserError, match="iteration 1150"):
        health.look(1150, FINE | {"confidence": 0.0})
    assert len(health.readings) == 23
