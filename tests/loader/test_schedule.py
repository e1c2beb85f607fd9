"""The order of batches: complete, pure, and the same everywhere."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.schedules import plans_of
from mini_fsod.data.dataset import Ints
from mini_fsod.errors import UserError
from mini_fsod.loader.schedule import (
    Plan,
    Schedule,
    each_once,
    fit,
    group_canvases,
    permutation,
    random_words,
    reduced,
    uniform,
    zoomed,
)


def some_sizes(count: int, seed: int = 0) -> Ints:
    """Heights and widths: mostly landscape, some portrait."""
    u = uniform(random_words(2 * count, 99, seed)).reshape(count, 2)
    short, long = 300 + 40 * u[:, 0], 400 + 200 * u[:, 1]
    sizes = np.stack([short, long], 1).astype(np.int64)
    sizes[::4] = sizes[::4, ::-1]
    return sizes


SIZES = st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("size", "short", "long", "fitted"),
    [
        ((320, 448), 320, 1333, (320, 448)),  # the short side fits already
        ((375, 500), 320, 1333, (320, 427)),  # 426.67
        ((500, 375), 320, 1333, (427, 320)),
        ((480, 640), 800, 1333, (800, 1067)),
        ((400, 1000), 800, 1333, (533, 1333)),  # the long side binds: 533.2
        ((2, 5), 3, 100, (3, 8)),  # 7.5 rounds up
        ((1, 5000), 320, 640, (1, 640)),  # no side vanishes
    ],
)
def test_fit(size: tuple[int, int], short: int, long: int, fitted: tuple[int, int]) -> None:
    assert tuple(fit(np.array(size), short, long).tolist()) == fitted


@given(SIZES, st.integers(8, 900), st.integers(0, 900))
def test_reduced_gives_the_largest_scale_exactly(
    sizes: list[tuple[int, int]], short: int, more: int
) -> None:
    own = np.array(sizes)
    long = short + more
    kept, goal = reduced(own, short, long), fit(own, short, long)
    larger = (goal < own).any(-1)
    assert (kept <= own).all()
    assert (kept[larger] == goal[larger]).all()  # so no second resampling is needed
    assert (kept[~larger] == own[~larger]).all()
    assert (goal.max(-1) <= long).all()


def test_group_canvases_merges_where_it_wastes_least() -> None:
    need = np.array([[320, 448]] * 10 + [[320, 480]] * 10 + [[448, 320]] * 10)
    # the two landscape canvases differ by one column of cells
    assert group_canvases(need, 2, 1).tolist() == [0] * 20 + [1] * 10
    assert len(set(group_canvases(need, 3, 1).tolist())) == 3
    # a single portrait image cannot have a canvas of its own when ten images are asked for
    need = np.array([[320, 448]] * 10 + [[448, 320]])
    assert group_canvases(need, 6, 10).tolist() == [0] * 11


@settings(deadline=None, max_examples=40)
@given(SIZES, st.integers(1, 8), st.integers(1, 6), st.integers(0, 3))
def test_plan_uses_every_image_once_per_epoch(
    sizes: list[tuple[int, int]], batch: int, epochs: int, seed: int
) -> None:
    own = np.array(sizes)
    schedule = Schedule(own, batch, (320,), 640, seed, most_canvases=3)
    plans = list(plans_of(schedule, 0, schedule.steps_before(epochs)))
    assert all(p.epoch < epochs for p in plans)
    seen = Counter(i for p in plans for i in p.images.tolist())
    assert max(seen.values(), default=epochs) <= epochs
    waiting = [i for i in range(len(own)) if seen[i] < epochs]
    assert all(seen[i] >= epochs - 1 - batch // len(own) for i in waiting)
    missing = epochs * len(own) - sum(seen.values())
    assert missing < batch * 3  # fewer than a batch for each canvas
    # what waits opens the next batches of its canvas
    if missing and len(schedule.canvases) == 1:
        coming = schedule.plan(len(plans)).images.tolist()
        assert Counter(coming[:missing]) == Counter({i: epochs - seen[i] for i in waiting})


def test_plan_starts_an_epoch_with_the_images_left_over() -> None:
    """Five images, batches of two: epochs of 2, 3, 2, 3 ... batches, none dropped."""
    schedule = Schedule(np.full((5, 2), 320), 2, (320,), 640, seed=1)
    assert [schedule.steps_before(e) for e in range(5)] == [0, 2, 5, 7, 10]
    rows = [schedule.plan(n).images.tolist() for n in range(5)]
    flat = [i for row in rows for i in row]
    assert sorted(flat[:5]) == [0, 1, 2, 3, 4]  # the third batch starts with the fifth image
    assert sorted(flat[5:]) == [0, 1, 2, 3, 4]
    assert [schedule.plan(n).epoch for n in range(5)] == [0, 0, 1, 1, 1]


def test_plan_draws_canvases_in_proportion() -> None:
    sizes = some_sizes(400)
    schedule = Schedule(sizes, 8, (320,), 640, seed=0)
    plans = list(plans_of(schedule, 0, schedule.steps_before(1)))
    used = Counter(p.canvas for p in plans)
    assert sorted(used) == schedule.canvases
    assert 1 < len(used) <= 6
    portrait = sum(n for c, n in used.items() if c[0] > c[1])
    assert abs(portrait / len(plans) - 0.25) < 0.03
    assert len({p.canvas for p in plans[:12]}) > 1  # mixed, not one after another
    for p in plans:
        assert (p.sizes <= p.canvas).all()
        assert all(side % 32 == 0 for side in p.canvas)
        assert (p.sizes == fit(sizes[p.images], 320, 640)).all()


def test_plan_has_one_scale_per_batch_and_few_canvases() -> None:
    shorts = tuple(range(480, 801, 32))
    schedule = Schedule(some_sizes(300), 4, shorts, 2000, seed=0, most_canvases=3)
    plans = list(plans_of(schedule, 0, 300))
    assert {int(p.sizes.min(1).max()) for p in plans} == set(shorts)
    assert all(len(set(p.sizes.min(1).tolist())) == 1 for p in plans)
    assert {p.canvas for p in plans} <= set(schedule.canvases)
    assert len(schedule.canvases) <= 3 * len(shorts)
    flips = np.concatenate([p.flip for p in plans])
    assert abs(flips.mean() - 0.5) < 0.05


def test_plan_without_flips() -> None:
    schedule = Schedule(some_sizes(20), 4, (320,), 640, seed=0, flip=False)
    assert not any(p.flip.any() for p in plans_of(schedule, 0, 10))


def same(a: Plan, b: Plan) -> bool:
    arrays = (a.images, b.images), (a.sizes, b.sizes), (a.flip, b.flip)
    return (a.step, a.epoch, a.canvas) == (b.step, b.epoch, b.canvas) and all(
        np.array_equal(x, y) for x, y in arrays
    )


def test_plans_resume_in_the_middle_of_an_epoch() -> None:
    def fresh(seed: int = 3) -> Schedule:
        return Schedule(some_sizes(103), 4, (256, 320), 640, seed)

    through = list(plans_of(fresh(), 0, 80))
    permutation.cache_clear()
    rest = list(plans_of(fresh(), 37, 80))
    assert len(rest) == 43
    assert all(same(a, b) for a, b in zip(rest, through[37:], strict=True))
    assert fresh().identity == fresh().identity != fresh(seed=4).identity
    assert not all(same(a, b) for a, b in zip(plans_of(fresh(4), 37, 80), rest, strict=True))


def test_plans_are_the_same_for_any_number_of_ranks() -> None:
    schedule = Schedule(some_sizes(50), 8, (256, 320), 640, seed=0)
    whole = schedule.plan(5)
    for world in (1, 2, 4, 8):
        parts = [next(plans_of(schedule, 5, 6, rank, world)) for rank in range(world)]
        assert np.concatenate([p.images for p in parts]).tolist() == whole.images.tolist()
        assert np.concatenate([p.flip for p in parts]).tolist() == whole.flip.tolist()
        assert {p.canvas for p in parts} == {whole.canvas}
        assert [p.first for p in parts] == [r * 8 // world for r in range(world)]


def test_plan_is_the_same_on_every_machine() -> None:
    """Golden values: another order would be another experiment."""
    schedule = Schedule(some_sizes(1000), 4, (256, 288, 320), 640, seed=7)
    plan = schedule.plan(12_347)
    assert (plan.epoch, plan.canvas) == (49, (320, 576))
    assert plan.images.tolist() == [222, 117, 437, 994]
    assert plan.flip.tolist() == [False, True, True, True]


def test_schedule_takes_some_images_and_repeats() -> None:
    chosen = np.array([2, 5, 5, 9])
    schedule = Schedule(some_sizes(10), 2, (320,), 640, seed=0, images=chosen)
    seen = Counter(i for p in plans_of(schedule, 0, 20) for i in p.images.tolist())
    assert seen == {2: 10, 5: 20, 9: 10}


def test_schedule_refuses_an_empty_set() -> None:
    with pytest.raises(UserError, match="no images"):
        Schedule(some_sizes(3), 2, (320,), 640, 0, images=np.array([], dtype=np.int64))


@pytest.mark.parametrize("count", [1, 7, 8, 100])
def test_each_once_uses_every_image_once(count: int) -> None:
    plans = each_once(some_sizes(count), 8, 320, 640)
    meant = [i for p in plans for i in p.images[: p.count].tolist()]
    assert sorted(meant) == list(range(count))
    assert all(len(p.images) == 8 and not p.flip.any() for p in plans)
    assert [p.step for p in plans] == list(range(len(plans)))
    part = plans[-1].part(1, 2)  # the second rank's share of a batch that is not full
    assert part.count == max(plans[-1].count - 4, 0)


def test_random_words_depend_on_the_key_alone() -> None:
    assert random_words(2, 1, 2).tolist() == random_words(5, 1, 2)[:2].tolist()
    assert random_words(2, 1, 2).tolist() != random_words(2, 2, 1).tolist()
    u = uniform(random_words(10_000, 0))
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.01


def test_zoomed_sizes_and_windows() -> None:
    fitted, canvas = np.array([[100, 150], [100, 150], [100, 150]]), (128, 160)
    chances = np.array([[0.0, 0.5, 0.5], [0.999, 0.0, 0.999], [0.5, 0.0, 0.0]])
    scaled, seen, shift = zoomed(fitted, canvas, (0.5, 1.5), chances)
    assert scaled.tolist() == [[50, 75], [150, 225], [100, 150]]
    assert seen.tolist() == [[50, 75], [128, 160], [100, 150]]
    assert shift.tolist() == [[0, 0], [0, 65], [0, 0]]  # the last window ends at 225


def test_plan_keeps_zoomed_images_on_their_canvas() -> None:
    sizes = np.tile([[300, 400], [400, 300], [320, 480]], (20, 1))
    plain = Schedule(sizes, 4, (320,), 640, 0)
    zooming = Schedule(sizes, 4, (320,), 640, 0, zoom=(0.5, 1.5))
    factors = []
    for step in range(40):
        a, b = plain.plan(step), zooming.plan(step)
        assert a.canvas == b.canvas
        assert a.images.tolist() == b.images.tolist()
        assert a.flip.tolist() == b.flip.tolist()
        assert (b.sizes <= np.array(b.canvas)).all()
        assert (b.shift >= 0).all()
        assert (b.shift + b.sizes <= b.scaled).all()
        factors += (b.scaled[:, 0] / a.scaled[:, 0]).tolist()
    assert 0.5 <= min(factors) < 0.6
    assert 1.4 < max(factors) <= 1.51
    assert zooming.identity != plain.identity
