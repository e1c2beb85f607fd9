"""Eq. 6 and 7 on boxes computed by hand, and properties for any boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.novel_boxes import (
    BASE_CLASSES,
    EMPTY,
    FAR_A,
    HALF_A,
    NEAR_A,
    A,
    B,
    C,
    Row,
    candidates,
    instances,
    rows_of,
    targets,
)
from mini_fsod.data.overlap import NESTED, greedy_nms, nesting
from mini_fsod.detector.batch import ScoredProposals
from mini_fsod.loader.resident import ScoredBoxes
from mini_fsod.online.mingling import (
    ACCEPTED,
    found_by_teacher,
    mingle,
    outside_objects,
    same_object,
    without_known,
    without_nested,
    without_rejected,
)


def found(
    of: ScoredProposals, delta: float = 0.7, use_iou: bool = False, most: int = 5
) -> list[Row]:
    instances = found_by_teacher(of, BASE_CLASSES, delta, 0.5, use_iou, most)
    assert instances.boxes.shape[1] <= most
    return rows_of(instances)


# Eq. 6, the teacher's instances


def test_found_by_teacher_keeps_novel_classes_from_delta_on() -> None:
    scores = [
        [0.99, 0.0, 0.0, 0.0],  # a base class
        [0.0, 0.0, 0.75, 0.2],
        [0.0, 0.0, 0.74, 0.0],
        [0.0, 0.0, 0.0, 0.9],
    ]
    of = candidates(scores, [A, A, B, C])
    assert found(of, 0.75) == [(C, 3, 0.9), (A, 2, 0.75)]  # delta itself is enough
    assert found(of, 0.74) == [(C, 3, 0.9), (A, 2, 0.75), (B, 2, 0.74)]
    assert found(of, 0.91) == []


def test_found_by_teacher_suppresses_within_a_class() -> None:
    scores = [[0.0, 0.0, 0.8, 0.0], [0.0, 0.0, 0.9, 0.0], [0.0, 0.0, 0.0, 0.7]]
    of = candidates(scores, [A, NEAR_A, A])
    assert found(of) == [(NEAR_A, 2, 0.9), (A, 3, 0.7)]


def test_found_by_teacher_returns_at_most_so_many() -> None:
    scores = [[0.0, 0.0, 0.8, 0.0], [0.0, 0.0, 0.0, 0.95], [0.0, 0.0, 0.9, 0.0]]
    assert found(candidates(scores, [A, B, C]), most=2) == [(B, 3, 0.95), (C, 2, 0.9)]


def test_found_by_teacher_ranks_by_score_and_iou() -> None:
    """Eq. 7: sqrt(0.9 x 0.4) = 0.6; sqrt(0.64 x 1) = 0.8; sqrt(0.5 x 0.98) = 0.7."""
    scores = [[0.0, 0.0, 0.9, 0.0], [0.0, 0.0, 0.64, 0.0], [0.0, 0.0, 0.0, 0.5]]
    of = candidates(scores, [A, B, C], iou=[0.4, 1.0, 0.98])
    assert found(of, 0.69, use_iou=True) == [(B, 2, 0.8), (C, 3, 0.7)]
    assert found(of, 0.69) == [(A, 2, 0.9)]
    # NMS ranks by it too
    of = candidates([[0.0, 0.0, 0.9, 0.0], [0.0, 0.0, 0.8, 0.0]], [A, NEAR_A], iou=[0.6, 0.9])
    assert found(of, 0.7, use_iou=True) == [(NEAR_A, 2, 0.8485)]


@pytest.mark.parametrize(
    "of",
    [
        candidates([[0.0, 0.0, 0.9, 0.0]], [A], valid=[False]),
        candidates([[0.0, 0.0, float("nan"), 0.0]], [A]),
        candidates([[0.0, 0.0, 0.9, 0.0]], [[float("nan")] * 4]),
        candidates([[0.0, 0.0, 0.9, 0.0]], [EMPTY]),
    ],
    ids=["padding", "nan score", "nan box", "no area"],
)
def test_found_by_teacher_drops_invalid_rows(of: ScoredProposals) -> None:
    assert found(of, 0.1) == []


# Eq. 6, mingling


def mingled(online: list[Row], offline: list[Row], by_class: bool = True) -> list[tuple[Row, bool]]:
    kept, by_teacher = mingle(
        instances(online, width=2), instances(offline, width=2), 0.5, by_class
    )
    assert kept.valid.shape == by_teacher.shape
    marks = [bool(m) for m, v in zip(by_teacher[0], kept.valid[0], strict=True) if v]
    return list(zip(rows_of(kept), marks, strict=True))


@pytest.mark.parametrize(
    ("online", "offline", "wanted"),
    [
        ([], [], []),
        # at the start of training: only H
        ([], [(A, 2, 0.3)], [((A, 2, 0.3), False)]),
        ([(A, 2, 0.9)], [], [((A, 2, 0.9), True)]),
        # the teacher adds a missed instance
        ([(B, 2, 0.9)], [(A, 2, 0.5)], [((B, 2, 0.9), True), ((A, 2, 0.5), False)]),
        # all of H is replaced by better ones
        (
            [(NEAR_A, 2, 0.9), (B, 3, 0.8)],
            [(A, 2, 0.5), (B, 3, 0.7)],
            [((NEAR_A, 2, 0.9), True), ((B, 3, 0.8), True)],
        ),
        # all of I is replaced
        ([(NEAR_A, 2, 0.7)], [(A, 2, 0.8)], [((A, 2, 0.8), False)]),
        # the same box in both: the teacher's, unless H's has a higher score
        ([(A, 2, 0.8)], [(A, 2, 0.8)], [((A, 2, 0.8), True)]),
        ([(A, 2, 0.8)], [(A, 2, 0.81)], [((A, 2, 0.81), False)]),
        # equal scores, different boxes
        ([(NEAR_A, 2, 0.8)], [(A, 2, 0.8)], [((NEAR_A, 2, 0.8), True)]),
        # an IoU of 0.5 does not suppress
        ([(HALF_A, 2, 0.9)], [(A, 2, 0.8)], [((HALF_A, 2, 0.9), True), ((A, 2, 0.8), False)]),
        ([(FAR_A, 2, 0.9)], [(A, 2, 0.8)], [((FAR_A, 2, 0.9), True), ((A, 2, 0.8), False)]),
    ],
)
def test_mingle_keeps_the_better_box(
    online: list[Row], offline: list[Row], wanted: list[Any]
) -> None:
    assert mingled(online, offline) == wanted
    assert mingled(online, offline, by_class=False) == wanted


def test_mingle_suppresses_other_classes_only_if_agnostic() -> None:
    online: list[Row] = [(NEAR_A, 3, 0.9)]
    offline: list[Row] = [(A, 2, 0.6)]
    assert mingled(online, offline) == [((NEAR_A, 3, 0.9), True), ((A, 2, 0.6), False)]
    assert mingled(online, offline, by_class=False) == [((NEAR_A, 3, 0.9), True)]


def test_mingle_ranks_the_pool_first_with_keep_pool() -> None:
    online, offline = instances([(NEAR_A, 2, 0.9), (C, 3, 0.8)]), instances([(A, 2, 0.1)])
    kept, by_teacher = mingle(online, offline, 0.5, by_class=True, keep_pool=True)
    rows = list(zip(kept.boxes[0].tolist(), kept.scores[0].tolist(), strict=True))
    there = [row for row, valid in zip(rows, kept.valid[0].tolist(), strict=True) if valid]
    assert there == [(A, pytest.approx(0.1)), (C, pytest.approx(0.8))]
    assert by_teacher.sum() == 1
    # both stay if they have different classes
    online = instances([(NEAR_A, 3, 0.9)])
    assert mingle(online, offline, 0.5, by_class=True, keep_pool=True)[0].valid.sum() == 2


@pytest.mark.parametrize("keep_pool", [False, True])
@pytest.mark.parametrize("by_class", [False, True])
def test_mingle_keeps_every_accepted_box(keep_pool: bool, by_class: bool) -> None:
    """Whatever overlaps it: a surer box of the teacher, another of the pool, another accepted."""
    online = instances([(A, 2, 1.0), (B, 2, 0.9), (FAR_A, 2, 0.8)])
    offline = instances([(NEAR_A, 2, ACCEPTED), (A, 2, ACCEPTED), (A, 2, 0.9), (C, 3, 0.1)])
    kept, by_teacher = mingle(online, offline, 0.5, by_class, keep_pool)
    assert sorted(rows_of(kept)) == sorted(
        [(NEAR_A, 2, ACCEPTED), (A, 2, ACCEPTED), (B, 2, 0.9), (C, 3, 0.1)]
    )
    assert by_teacher.sum() == 1


def test_mingle_lets_an_accepted_box_suppress_its_class_alone() -> None:
    online, offline = instances([(A, 3, 0.9)]), instances([(A, 2, ACCEPTED)])
    assert mingle(online, offline, 0.5, by_class=True)[0].valid.sum() == 2
    assert rows_of(mingle(online, offline, 0.5, by_class=False)[0]) == [(A, 2, ACCEPTED)]


def test_mingle_treats_images_separately() -> None:
    online = instances([(A, 2, 0.9)], [])
    offline = instances([], [(NEAR_A, 2, 0.5)])
    kept, by_teacher = mingle(online, offline, 0.5, True)
    assert rows_of(kept, 0) == [(A, 2, 0.9)]
    assert rows_of(kept, 1) == [(NEAR_A, 2, 0.5)]
    assert by_teacher.sum(1).tolist() == [1, 0]


# Annotated, nested and equal boxes


def test_without_known_drops_boxes_on_annotated_ones() -> None:
    of = instances([(NEAR_A, 2, 0.9), (HALF_A, 2, 0.8), (B, 3, 0.8), (FAR_A, 3, 0.7)])
    drawn = torch.tensor([[A, B]])
    one, both = torch.tensor([[True, False]]), torch.tensor([[True, True]])
    assert rows_of(without_known(of, drawn, one)) == [(B, 3, 0.8), (FAR_A, 3, 0.7)]
    assert rows_of(without_known(of, drawn, both)) == [(FAR_A, 3, 0.7)]
    assert rows_of(without_known(of, drawn, ~both)) == rows_of(of)
    assert rows_of(without_known(of, drawn[:, :0], both[:, :0])) == rows_of(of)


def test_accepted_boxes_are_neither_known_nor_nested() -> None:
    whole = [0.0, 0.0, 20.0, 20.0]
    of = instances([(whole, 2, ACCEPTED), (A, 2, ACCEPTED), (A, 2, 0.9), (NEAR_A, 3, 0.9)])
    assert rows_of(without_nested(of)) == [
        (whole, 2, ACCEPTED), (A, 2, ACCEPTED), (NEAR_A, 3, 0.9),
    ]  # fmt: skip
    drawn, there = torch.tensor([[A]]), torch.tensor([[True]])
    assert rows_of(without_known(of, drawn, there)) == [(whole, 2, ACCEPTED), (A, 2, ACCEPTED)]


def test_without_rejected_drops_the_class_at_the_place() -> None:
    of = instances([(NEAR_A, 2, 0.9), (NEAR_A, 3, 0.8), (FAR_A, 2, 0.7)], [(A, 2, 0.9)], width=4)
    rejected = targets([(A, 2, 1.0)], [(C, 2, 1.0)], width=2)
    kept = without_rejected(of, rejected)
    assert rows_of(kept, 0) == [(NEAR_A, 3, 0.8), (FAR_A, 2, 0.7)]
    assert rows_of(kept, 1) == [(A, 2, 0.9)]
    nothing = targets([], [], width=0)
    assert rows_of(without_rejected(of, nothing), 0) == rows_of(of, 0)


def test_without_nested_keeps_the_best_of_nested_boxes() -> None:
    """The first wins, whatever its size; other classes and images, and half a box, do not count."""
    whole = [0.0, 0.0, 20.0, 20.0]
    of = instances(
        [(A, 2, 0.9), (whole, 2, 0.8), (A, 3, 0.7), (B, 2, 0.6)],
        [(whole, 2, 0.9), (A, 2, 0.8), (FAR_A, 2, 0.7)],
        [(A, 2, 0.9), (FAR_A, 2, 0.8)],
        width=5,
    )
    kept = without_nested(of)
    assert rows_of(kept, 0) == [(A, 2, 0.9), (A, 3, 0.7), (B, 2, 0.6)]
    assert rows_of(kept, 1) == [(whole, 2, 0.9)]
    assert rows_of(kept, 2) == [(A, 2, 0.9), (FAR_A, 2, 0.8)]
    gone = of._replace(valid=of.valid & (of.scores < 0.85))  # invalid boxes suppress nothing
    assert rows_of(without_nested(gone), 1) == [(A, 2, 0.8), (FAR_A, 2, 0.7)]
    assert not without_nested(instances([], width=0)).valid.numel()


def test_without_nested_ignores_dropped_boxes() -> None:
    both, three = [0.0, 0.0, 30.0, 10.0], [0.0, 0.0, 50.0, 10.0]  # around A and B, and C too
    chain = [(A, 2, 0.9), (both, 2, 0.8), (B, 2, 0.7), (three, 2, 0.6), (C, 2, 0.5)]
    assert rows_of(without_nested(instances(chain))) == [(A, 2, 0.9), (B, 2, 0.7), (C, 2, 0.5)]
    without_a = instances(chain)._replace(valid=torch.tensor([[False] + [True] * 4]))
    assert rows_of(without_nested(without_a)) == [(both, 2, 0.8), (C, 2, 0.5)]


def test_outside_objects_drops_parts_of_objects() -> None:
    """A region around an object, or of another class, is no part of it."""
    part, group = [0.0, 0.0, 10.0, 4.0], [0.0, 0.0, 30.0, 10.0]
    regions = targets(
        [(NEAR_A, 2, 1.0), (part, 2, 1.0), (group, 2, 1.0), (part, 3, 1.0), (FAR_A, 2, 1.0)],
        [(A, 2, 1.0)],
        width=6,
    )
    objects = targets([(A, 2, 1.0), (C, 3, 1.0)], [(B, 2, 1.0)], width=3)
    left = outside_objects(regions, objects)
    assert left[0].tolist() == [False, False, True, True, True, False]  # padding too
    assert left[1].tolist() == [True] + [False] * 5
    nothing = objects._replace(valid=torch.zeros_like(objects.valid))
    assert outside_objects(regions, nothing).tolist() == regions.valid.tolist()
    assert outside_objects(regions, targets([], [], width=0)).tolist() == regions.valid.tolist()
    assert outside_objects(targets([], [], width=0), objects).shape == (2, 0)


def test_same_object_needs_class_and_overlap() -> None:
    of = instances([(A, 2, 0.9), (B, 2, 0.9), (C, 3, 0.9)], [(A, 2, 0.9)])
    among = instances([(NEAR_A, 2, 1.0), (B, 3, 1.0), (C, 3, 1.0)], [], width=4)
    assert same_object(of, among).tolist() == [[True, False, True], [False] * 3]
    assert same_object(among, of).tolist() == [[True, False, True, False], [False] * 4]
    nothing = among._replace(valid=torch.zeros_like(among.valid))
    assert not same_object(of, nothing).any()
    assert not same_object(nothing, of).any()


# Properties

rows = st.lists(
    st.tuples(
        st.tuples(*(st.integers(0, 4),) * 2, *(st.integers(1, 3),) * 2).map(
            lambda b: [4.0 * b[0], 4.0 * b[1], 4.0 * (b[0] + b[2]), 4.0 * (b[1] + b[3])]
        ),
        st.integers(2, 3),
        st.integers(0, 8).map(lambda n: n / 8),
    ),
    max_size=7,
)


def overlap(a: list[float], b: list[float]) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    area = sum((x[2] - x[0]) * (x[3] - x[1]) for x in (a, b))
    return width * height / (area - width * height)


@given(rows, rows, st.booleans(), st.integers(0, 3))
def test_mingle_equals_its_definition(
    online: list[Row], offline: list[Row], by_class: bool, padding: int
) -> None:
    """Best first, the teacher's before the pool's, unless a kept box suppresses it; padding is
    ignored.
    """
    wanted: list[tuple[Row, bool]] = []
    marked = [(row, True) for row in online] + [(row, False) for row in offline]
    for row, teachers in sorted(marked, key=lambda pair: -pair[0][2]):
        if not any(
            overlap(row[0], kept[0]) > 0.5 and (row[1] == kept[1] or not by_class)
            for kept, _ in wanted
        ):
            wanted.append((row, teachers))
    kept, by_teacher = mingle(
        instances(online, width=len(online) + padding),
        instances(offline, width=len(offline) + padding),
        0.5,
        by_class,
    )
    marks = [bool(m) for m, v in zip(by_teacher[0], kept.valid[0], strict=True) if v]
    assert list(zip(rows_of(kept), marks, strict=True)) == wanted
    assert not (by_teacher & ~kept.valid).any()
    assert kept.valid.shape[1] == len(online) + len(offline) + 2 * padding


@given(rows, rows)
def test_mingle_adds_nothing_and_is_idempotent(online: list[Row], offline: list[Row]) -> None:
    once, _ = mingle(instances(online), instances(offline), 0.5, True)
    kept = rows_of(once)
    assert all(row in online + offline for row in kept)
    assert bool(kept) == bool(online or offline)
    empty: Tensor = torch.zeros(1, 0)
    none = ScoredBoxes(empty[..., None].expand(1, 0, 4), empty.long(), empty.bool(), empty)
    twice, by_teacher = mingle(none, once, 0.5, True)
    assert rows_of(twice) == kept
    assert not by_teacher.any()


@given(rows)
def test_without_nested_equals_greedy_nms_of_mining(found: list[Row]) -> None:
    """The teacher's boxes follow the same rule as the pool's."""
    ordered = sorted(found, key=lambda row: -row[2])
    wanted = []
    for label in (2, 3):
        of_class = [row for row in ordered if row[1] == label]
        boxes = np.reshape([[x, y, r - x, b - y] for (x, y, r, b), _, _ in of_class], (-1, 4))
        group = np.zeros(len(of_class), np.int64)
        stays = greedy_nms(boxes, group, NESTED, len(of_class), nesting)
        wanted += [row for row, keep in zip(of_class, stays, strict=True) if keep]
    assert sorted(rows_of(without_nested(instances(ordered)))) == sorted(wanted)
