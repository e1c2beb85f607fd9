"""Which gauges are a warning, and which the end."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_fsod.errors import UserError
from mini_fsod.online.health import (
    LONG,
    LOOKS,
    Look,
    Normal,
    Watch,
    collapse,
    looks_of,
    now_and_best,
    recent,
    shares,
    warnings,
    windows,
)

# 0.02 boxes an image of each class: some 160 in 500 iterations of 16 images
NORMAL = Normal(batch=16, instances=32, pool={"cow": 0.02, "bus": 0.02})
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
EVERY = 50  # iterations


def looks(*parts: tuple[int, dict[str, float]]) -> list[Look]:
    """So many looks each, with these changes."""
    told: list[Look] = []
    for number, changes in parts:
        for _ in range(number):
            told.append(Look(EVERY * (len(told) + 1), FINE | changes))
    return told


def without(name: str) -> list[Look]:
    """Long, and nobody knows it."""
    means = {key: value for key, value in FINE.items() if key != name}
    return [Look(EVERY * (n + 1), means) for n in range(30)]


GOOD: tuple[int, dict[str, float]] = (20, {})
LOST_COW = {"found_cow": 0.0, "found": 0.1}
LOST_BOTH = {"found_cow": 0.0, "found_bus": 0.0, "found": 0.0}


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ([(1, {})], set()),
        ([(60, {})], set()),
        ([(2, {"mined": 50.0})], set()),  # not yet
        ([(3, {"mined": 50.0})], {"many"}),
        ([GOOD, (3, {"mined": 6.1, "right": 4.0})], {"many"}),  # three for each base box
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
        ([GOOD, (10, {"agreed": 0.07, "overlap": 0.06})], {"agreement"}),  # 0.23 after 0.5
        ([GOOD, (10, {"agreed": 0.08, "overlap": 0.07})], set()),
        ([GOOD, (4, {"agreed": 0.0, "overlap": 0.0})], set()),
        # it never was worth much
        ([(20, {"agreed": 0.05, "overlap": 0.04}), (10, {"agreed": 0.0})], set()),
        ([GOOD, (10, {"agreed": 0.0, "pool": 0.01})], set()),  # 80 boxes are too few to say
        ([GOOD, (10, {"overlap": 0.1})], {"placement"}),  # 0.67 after 0.8
        ([GOOD, (10, {"overlap": 0.103})], set()),
        ([GOOD, (10, {"right": 0.12})], {"precision"}),  # 0.4 after 0.67
        ([GOOD, (10, {"right": 0.14})], set()),
        ([(62, {"found_bus": 0.0})], set()),  # 3,100 iterations have shown 992
        ([(63, {"found_bus": 0.0})], {"unfound bus"}),
        ([(62, {"found_bus": 0.0}), (1, {})], set()),
        # a class is gone
        ([GOOD, (10, LOST_COW)], {"lost cow"}),
        ([GOOD, (9, LOST_COW)], set()),
        ([GOOD, (9, LOST_COW), (1, {"found_cow": 0.001})], set()),
        ([(60, LOST_COW)], set()),  # it never was there
        ([(40, LOST_COW), (10, {}), (10, LOST_COW)], {"lost cow"}),
        ([(20, {"found_cow": 0.003}), (10, LOST_COW)], set()),  # nearly never
    ],
)
def test_warnings(parts: list[tuple[int, dict[str, float]]], names: set[str]) -> None:
    """Looks of 50 iterations: 2 are some, 10 are long; the least are 3."""
    found = warnings(looks(*parts), NORMAL)
    assert {*found} == names
    for text in found.values():
        assert re.search(r"online\.|mine\.", text)  # what to do


def test_a_short_run_is_not_silent_to_its_end() -> None:
    """Precision falls half way through 300 iterations, 8 images each."""
    lengths = (None, 18_000, 1_000, 300, 3)
    assert [Normal.of(8, 32, {}, n).long for n in lengths] == [500, 500, 200, 100, 100]
    means = [FINE | {"right": 0.2 if n < 30 else 0.1} for n in range(60)]
    told = [Look(5 * (n + 1), each) for n, each in enumerate(means)]
    assert {*warnings(told, Normal.of(8, 32, {}, 300))} == {"precision"}
    assert warnings(told, Normal.of(8, 32, {}, None)) == {}


def test_what_nobody_knows_is_no_warning() -> None:
    assert warnings(without("right"), NORMAL) == {}
    assert warnings([], NORMAL) == {}
    assert collapse([], NORMAL) is None


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([(60, {})], None),
        # everything is background
        ([GOOD, (3, {"confidence": 0.04})], "everything for background"),
        ([GOOD, (1, {"confidence": 0.04})], None),
        ([GOOD, (3, {"confidence": 0.06})], None),
        ([(59, {"confidence": 0.01})], None),  # it has seen nothing yet,
        ([(60, {"confidence": 0.01})], "everything for background"),  # and never will
        ([(57, {"confidence": 0.01}), (3, {"confidence": 0.2})], None),
        # everything is novel
        ([GOOD, (3, {"found": 26.0, "mined": 26.0})], "finds 26 novel objects in every image"),
        # what is hidden is for gauges: it saves nobody
        ([GOOD, (3, {"found": 26.0, "mined": 26.0, "right": 20.0})], "finds 26 novel objects"),
        ([GOOD, (3, {"found": 25.0, "mined": 25.0})], None),
        ([(2, {"found": 32.0, "mined": 32.0})], None),
        # all that was found is gone; one class is no reason to stop for the others
        ([GOOD, (10, LOST_BOTH)], "finds no cow and no bus any more, in 500 iterations"),
        ([GOOD, (9, LOST_BOTH)], None),
        ([GOOD, (9, LOST_BOTH), (1, {"found_cow": 0.001, "found": 0.001})], None),
        ([GOOD, (20, LOST_COW)], None),
        ([GOOD, (10, LOST_COW), (10, LOST_BOTH)], "finds no cow and no bus any more"),
        ([(60, LOST_BOTH)], None),  # nothing ever was there
        ([(40, LOST_BOTH), (10, {}), (10, LOST_BOTH)], "finds no cow and no bus any more"),
    ],
)
def test_collapses(parts: list[tuple[int, dict[str, float]]], why: str | None) -> None:
    found = collapse(looks(*parts), NORMAL)
    if why is None:
        assert found is None
    else:
        assert found is not None
        assert why in found[0]
        assert "online." in found[1]


def test_a_rare_class_is_not_missed() -> None:
    rare = Normal(16, 32, {"cow": 0.01})  # 80 boxes in 500 iterations
    assert collapse(looks(GOOD, (20, LOST_BOTH)), rare) is None
    assert warnings(looks(GOOD, (20, LOST_COW)), rare) == {}


def test_many_are_no_collapse_where_nobody_knows_better_and_there_is_room() -> None:
    told = [Look(look.step, look.means | {"found": 30.0}) for look in without("right")]
    assert collapse(told, NORMAL) is not None
    assert collapse(told, Normal(16, 100, NORMAL.pool)) is None
    assert collapse(told, Normal(16, 32, NORMAL.pool | {"cow": 6.0})) is None  # a crowd


def test_shares() -> None:
    assert shares(FINE) == pytest.approx(
        {"agreement": 0.5, "placement": 0.8, "precision": 2 / 3, "mined_share": 0.1}
    )
    nothing = dict.fromkeys(FINE, 0.0)
    assert shares(nothing) == {}
    assert "precision" not in shares({k: v for k, v in FINE.items() if k != "right"})


def test_shares_are_of_windows_with_enough_boxes() -> None:
    pair = ("agreed", "pool")
    told = looks(
        (10, {"agreed": 0.24}), (10, {"agreed": 0.3, "pool": 0.012}), (10, {"agreed": 0.03})
    )
    assert now_and_best(told, pair, NORMAL) == pytest.approx((0.1, 0.8))  # the middle: 96 boxes
    assert now_and_best(told, pair, replace(NORMAL, batch=17)) == pytest.approx((0.1, 25.0))
    assert now_and_best(told[:20], pair, NORMAL) == (1.0, 0.0)
    assert now_and_best(told[:9], pair, NORMAL) == (1.0, 0.0)
    assert now_and_best([], pair, NORMAL) == (1.0, 0.0)


@given(st.lists(st.integers(1, 700), max_size=30), st.sampled_from([100, LONG]))
def test_recent_looks(steps: list[int], iterations: int) -> None:
    told, step = [], 0
    for more in steps:
        step += more
        told.append(Look(step, {}))
    found = recent(told, iterations)
    if found:
        assert [*found] == told[-len(found) :]
        assert len(found) >= LOOKS
        assert sum(steps[-len(found) :]) >= iterations
        assert len(found) == LOOKS or sum(steps[1 - len(found) :]) < iterations  # no more of them
    else:
        assert len(told) < LOOKS or step < iterations
    parts = [look for part in reversed(windows(told, LONG)) for look in part]
    assert parts == told[len(told) - len(parts) :]


# Watching


def watched(*parts: tuple[int, dict[str, float]], before: Any = ()) -> Watch:
    watch = Watch(NORMAL, [*before])
    for look in looks(*parts):
        assert watch.look(look.step, look.means) == shares(look.means)
    return watch


def test_each_warning_once(capsys: pytest.CaptureFixture[str]) -> None:
    watched((40, {"mined": 20.0, "right": 15.0}))
    said = capsys.readouterr().err
    assert said.count("warning") == 1
    assert "warning, at iteration 150: 20.0 mined boxes an image, beside 2.0 base boxes." in said


def test_a_collapse_stops_and_says_where() -> None:
    with pytest.raises(
        UserError, match="collapsed: at iteration 1150, it takes everything"
    ) as stop:
        watched(GOOD, (10, {"confidence": 0.0}))
    assert "--from online" in stop.value.fix
    assert "online.rate" in stop.value.fix


def as_lines(told: list[Look]) -> list[dict[str, Any]]:
    return [{"step": look.step, "loss": 1.0, **look.means, "rate": 0.02} for look in told]


def test_a_run_that_goes_on_remembers() -> None:
    """The log's looks, but not those beyond the state that it goes on from."""
    before = looks_of(as_lines(looks(GOOD, (2, {"confidence": 0.0}))))
    assert shares(before[0].means) == shares(FINE)  # the sum of the losses is not one of them
    watch = Watch(NORMAL, before)
    watch.begin(1000)
    watch.look(1050, FINE | {"confidence": 0.0})
    assert [look.step for look in watch.looks] == [EVERY * n for n in range(1, 22)]
    watch.look(1100, FINE | {"confidence": 0.0})
    with pytest.raises(UserError, match="iteration 1150"):
        watch.look(1150, FINE | {"confidence": 0.0})
    assert len(watch.looks) == 23
