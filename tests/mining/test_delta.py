"""A delta for each class, moved by how many of it the teacher finds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mini_fsod.mining.delta import MOST, PACE, Deltas, adapted, expected_objects
from mini_fsod.online.health import Look, Normal, Watch

RATE = st.floats(0, 10)


def test_scores_add_up_to_objects() -> None:
    found = expected_objects(np.array([0.9, 0.6, 0.25]), np.array([2, 0, 2]), 4)
    assert found.tolist() == [0.6, 0.0, 1.15, 0.0]
    assert expected_objects(np.zeros(0), np.zeros(0, np.int64), 2).tolist() == [0.0, 0.0]


def test_worked_by_hand() -> None:
    """Three and one a hundred images, seen in 100: (0.03 + 0.01) / (0.01 + 0.01) = 2."""
    moved = adapted(0.5, 0.03, 0.01, images=100, iterations=50)
    assert math.log(moved / (1 - moved)) == pytest.approx(PACE * 50 * math.log(2))
    back = adapted(moved, 0.01, 0.03, images=100, iterations=50)
    assert back == pytest.approx(0.5)
    assert adapted(0.7, 0.02, 0.02, images=100, iterations=50) == pytest.approx(0.7)


def test_a_class_that_is_never_found_and_one_that_is_everywhere() -> None:
    """Each look moves a delta by so much at most, whatever the numbers."""
    most = PACE * 50
    for found, sign in ((0.0, -1), (1e6, 1)):
        moved = adapted(0.6, found, 0.5, images=800, iterations=50)
        assert math.log(moved / (1 - moved)) == pytest.approx(math.log(0.6 / 0.4) + sign * most)


@given(st.floats(0, 0.999), RATE, RATE, RATE, st.integers(1, 5_000))
def test_more_finds_never_lower_it(
    delta: float, found: float, more: float, right: float, iterations: int
) -> None:
    once = adapted(delta, found, right, 16 * iterations, iterations)
    again = adapted(delta, found + more, right, 16 * iterations, iterations)
    assert 0 < once <= again <= MOST


def deltas(start: float = 0.7) -> Deltas:
    return Deltas(torch.zeros(2), {"cow": 0.1, "bus": 0.1}, batch=16, start=start)


def test_each_class_goes_its_own_way() -> None:
    of = deltas()
    of.begin({})
    assert of.value.tolist() == pytest.approx([0.7, 0.7])
    told: dict[str, float] = {}
    for _ in range(100):
        told = of.look(50, told, {"found_cow": 0.0, "found_bus": 5.0})
    assert told == {"delta_cow": 0.7, "delta_bus": MOST}
    assert of.value.tolist() == pytest.approx([0.7, MOST])
    of.begin({"found_cow": 1.0, "delta_cow": 0.75, "delta_bus": 0.8})
    assert of.value.tolist() == pytest.approx([0.75, 0.8])


def test_one_that_has_risen_comes_back_to_where_it_began() -> None:
    of, told = deltas(), {"delta_cow": 0.8, "delta_bus": 0.7}
    once = of.look(50, told, {"found_cow": 0.0, "found_bus": 0.0})
    assert 0.7 < once["delta_cow"] < 0.8
    assert once["delta_bus"] == 0.7
    for _ in range(20):
        once = of.look(50, once, {"found_cow": 0.0, "found_bus": 0.0})
    assert once == {"delta_cow": 0.7, "delta_bus": 0.7}


def test_a_watch_moves_them_and_a_killed_run_goes_on_with_them() -> None:
    fine = {"mined": 1.0, "base": 2.0, "pool": 1.0, "confidence": 0.9, "found": 1.0}
    means = fine | {"found_cow": 0.5, "found_bus": 0.2}
    normal = Normal(batch=16, instances=32, pool={})
    whole = Watch(normal, [], deltas())
    whole.begin(0)
    told = [whole.look(50 * n, means) for n in range(1, 4)]
    assert told[0]["delta_cow"] < told[1]["delta_cow"] < told[2]["delta_cow"] < MOST
    assert told[0]["delta_bus"] < told[1]["delta_bus"] < told[2]["delta_bus"] < told[2]["delta_cow"]
    logged = [Look(50 * n, means | line) for n, line in enumerate(told, start=1)]
    again = Watch(normal, logged, deltas())
    again.begin(100)  # the third look was beyond the last state
    assert again.deltas is not None
    assert again.deltas.value.tolist() == pytest.approx([*told[1].values()][-2:])
    assert again.look(150, means) == told[2]
