"""Eq. 6 and 7 on boxes worked by hand, and what holds for any."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mini_fsod.detector.batch import Candidates, Proposals, Targets
from mini_fsod.mining.overlap import NESTED, greedy_nms, nesting
from mini_fsod.online.mingling import (
    Instances,
    apart_from,
    below,
    beyond,
    found_by_teacher,
    mingle,
    same_object,
    without_nested,
)

BASE = 2  # classes 0 and 1 are base, 2 and 3 novel

# Boxes of 10 x 10 in a row; `near` ones have an IoU of 8/12 = 0.67 with theirs, `far` ones of 1/3
A, B, C = ([20.0 * n, 0.0, 20.0 * n + 10, 10.0] for n in range(3))
NEAR_A, FAR_A = [2.0, 0.0, 12.0, 10.0], [5.0, 0.0, 15.0, 10.0]
HALF_A = [0.0, 0.0, 10.0, 5.0]  # an IoU of exactly 0.5
NOWHERE = [0.0, 0.0, 0.0, 0.0]

Row = tuple[list[float], int, float]  # box, label, score


def instances(*images: list[Row], width: int | None = None) -> Instances:
    """Padded as a feed does: zero boxes that are not valid, with a score of 1."""
    rows = max([width or 0, *map(len, images)])
    boxes, labels = torch.zeros(len(images), rows, 4), torch.zeros(len(images), rows).long()
    scores, valid = torch.ones(len(images), rows), torch.zeros(len(images), rows).bool()
    for i, image in enumerate(images):
        for k, (box, label, score) in enumerate(image):
            boxes[i, k], labels[i, k] = torch.tensor(box), label
            scores[i, k], valid[i, k] = score, True
    return Instances(boxes, labels, scores, valid)


def rows_of(of: Instances, image: int = 0) -> list[Row]:
    keep = of.valid[image].tolist()
    columns = (of.boxes[image].tolist(), of.labels[image].tolist(), of.scores[image].tolist())
    return [(b, k, round(s, 4)) for b, k, s, on in zip(*columns, keep, strict=True) if on]


def candidates(scores: Any, boxes: Any, iou: Any = None, valid: Any = None) -> Candidates:
    """One image: scores (P, 4), a box for each proposal whatever the class, IoU (P,)."""
    score, box = torch.tensor(scores).view(1, -1, 4), torch.tensor(boxes).view(1, -1, 4)
    there = torch.ones(box.shape[:2]).bool() if valid is None else torch.tensor([valid])
    proposals = Proposals(box, torch.zeros(box.shape[:2]), there, torch.ones(1).bool())
    every = box[:, :, None].expand(-1, -1, 4, -1)
    return Candidates(proposals, score, every, None if iou is None else torch.tensor([iou]))


def found(
    of: Candidates, delta: float | Tensor = 0.7, use_iou: bool = False, most: int = 5
) -> list[Row]:
    told = found_by_teacher(of, BASE, delta, 0.5, use_iou, most)
    assert told.boxes.shape[1] <= most
    return rows_of(told)


# Eq. 6, the teacher's instances


def test_at_least_delta_and_novel_classes_alone() -> None:
    scores = [
        [0.99, 0.0, 0.0, 0.0],  # a base object, however sure
        [0.0, 0.0, 0.75, 0.2],
        [0.0, 0.0, 0.74, 0.0],
        [0.0, 0.0, 0.0, 0.9],
    ]
    of = candidates(scores, [A, A, B, C])
    assert found(of, 0.75) == [(C, 3, 0.9), (A, 2, 0.75)]  # 0.75 is enough
    assert found(of, 0.74) == [(C, 3, 0.9), (A, 2, 0.75), (B, 2, 0.74)]
    assert found(of, 0.91) == []


def test_nms_is_by_class() -> None:
    scores = [[0.0, 0.0, 0.8, 0.0], [0.0, 0.0, 0.9, 0.0], [0.0, 0.0, 0.0, 0.7]]
    of = candidates(scores, [A, NEAR_A, A])
    assert found(of) == [(NEAR_A, 2, 0.9), (A, 3, 0.7)]


def test_the_best_where_there_is_no_room_for_all() -> None:
    scores = [[0.0, 0.0, 0.8, 0.0], [0.0, 0.0, 0.0, 0.95], [0.0, 0.0, 0.9, 0.0]]
    assert found(candidates(scores, [A, B, C]), most=2) == [(B, 3, 0.95), (C, 2, 0.9)]


def test_the_iou_branch_corrects_the_score() -> None:
    """Eq. 7: sqrt(0.9 x 0.4) = 0.6; sqrt(0.64 x 1) = 0.8; sqrt(0.5 x 0.98) = 0.7."""
    scores = [[0.0, 0.0, 0.9, 0.0], [0.0, 0.0, 0.64, 0.0], [0.0, 0.0, 0.0, 0.5]]
    of = candidates(scores, [A, B, C], iou=[0.4, 1.0, 0.98])
    assert found(of, 0.69, use_iou=True) == [(B, 2, 0.8), (C, 3, 0.7)]
    assert found(of, 0.69) == [(A, 2, 0.9)]
    # it ranks, too: of two boxes of one object the better one stays
    of = candidates([[0.0, 0.0, 0.9, 0.0], [0.0, 0.0, 0.8, 0.0]], [A, NEAR_A], iou=[0.6, 0.9])
    assert found(of, 0.7, use_iou=True) == [(NEAR_A, 2, 0.8485)]


@pytest.mark.parametrize(
    "of",
    [
        candidates([[0.0, 0.0, 0.9, 0.0]], [A], valid=[False]),
        candidates([[0.0, 0.0, float("nan"), 0.0]], [A]),
        candidates([[0.0, 0.0, 0.9, 0.0]], [[float("nan")] * 4]),
        candidates([[0.0, 0.0, 0.9, 0.0]], [NOWHERE]),
    ],
    ids=["padding", "no number", "no place", "no area"],
)
def test_what_is_no_instance(of: Candidates) -> None:
    assert found(of, 0.1) == []


# Eq. 6, mingling


def mingled(online: list[Row], offline: list[Row], by_class: bool = True) -> list[tuple[Row, bool]]:
    told, by_teacher = mingle(
        instances(online, width=2), instances(offline, width=2), 0.5, by_class
    )
    assert told.valid.shape == by_teacher.shape
    marks = [bool(m) for m, v in zip(by_teacher[0], told.valid[0], strict=True) if v]
    return list(zip(rows_of(told), marks, strict=True))


@pytest.mark.parametrize(
    ("online", "offline", "wanted"),
    [
        ([], [], []),
        # the beginning: only H
        ([], [(A, 2, 0.3)], [((A, 2, 0.3), False)]),
        ([(A, 2, 0.9)], [], [((A, 2, 0.9), True)]),
        # a missed instance joins
        ([(B, 2, 0.9)], [(A, 2, 0.5)], [((B, 2, 0.9), True), ((A, 2, 0.5), False)]),
        # all of H is replaced by better ones
        (
            [(NEAR_A, 2, 0.9), (B, 3, 0.8)],
            [(A, 2, 0.5), (B, 3, 0.7)],
            [((NEAR_A, 2, 0.9), True), ((B, 3, 0.8), True)],
        ),
        # and all of I
        ([(NEAR_A, 2, 0.7)], [(A, 2, 0.8)], [((A, 2, 0.8), False)]),
        # the same box in both: the teacher's, if H's is not better
        ([(A, 2, 0.8)], [(A, 2, 0.8)], [((A, 2, 0.8), True)]),
        ([(A, 2, 0.8)], [(A, 2, 0.81)], [((A, 2, 0.81), False)]),
        # equal scores, not the same place
        ([(NEAR_A, 2, 0.8)], [(A, 2, 0.8)], [((NEAR_A, 2, 0.8), True)]),
        # an overlap of 0.5 is not too much, nor is 1/3
        ([(HALF_A, 2, 0.9)], [(A, 2, 0.8)], [((HALF_A, 2, 0.9), True), ((A, 2, 0.8), False)]),
        ([(FAR_A, 2, 0.9)], [(A, 2, 0.8)], [((FAR_A, 2, 0.9), True), ((A, 2, 0.8), False)]),
    ],
)
def test_mingling(online: list[Row], offline: list[Row], wanted: list[Any]) -> None:
    assert mingled(online, offline) == wanted
    assert mingled(online, offline, by_class=False) == wanted


def test_another_class_at_the_same_place() -> None:
    online: list[Row] = [(NEAR_A, 3, 0.9)]
    offline: list[Row] = [(A, 2, 0.6)]
    assert mingled(online, offline) == [((NEAR_A, 3, 0.9), True), ((A, 2, 0.6), False)]
    assert mingled(online, offline, by_class=False) == [((NEAR_A, 3, 0.9), True)]


def test_the_pool_comes_first_by_option() -> None:
    online, offline = instances([(NEAR_A, 2, 0.9), (C, 3, 0.8)]), instances([(A, 2, 0.1)])
    kept, by_teacher = mingle(online, offline, 0.5, by_class=True, keep_pool=True)
    rows = list(zip(kept.boxes[0].tolist(), kept.scores[0].tolist(), strict=True))
    there = [row for row, valid in zip(rows, kept.valid[0].tolist(), strict=True) if valid]
    assert there == [(A, pytest.approx(0.1)), (C, pytest.approx(0.8))]
    assert by_teacher.sum() == 1
    # with another class at the same place both stay
    online = instances([(NEAR_A, 3, 0.9)])
    assert mingle(online, offline, 0.5, by_class=True, keep_pool=True)[0].valid.sum() == 2


def test_images_do_not_touch_each_other() -> None:
    online = instances([(A, 2, 0.9)], [])
    offline = instances([], [(NEAR_A, 2, 0.5)])
    told, by_teacher = mingle(online, offline, 0.5, True)
    assert rows_of(told, 0) == [(A, 2, 0.9)]
    assert rows_of(told, 1) == [(NEAR_A, 2, 0.5)]
    assert by_teacher.sum(1).tolist() == [1, 0]


# What people drew, and the same object


def test_mined_boxes_on_drawn_ones_go() -> None:
    of = instances([(NEAR_A, 2, 0.9), (HALF_A, 2, 0.8), (B, 3, 0.8), (FAR_A, 3, 0.7)])
    drawn = torch.tensor([[A, B]])
    one, both = torch.tensor([[True, False]]), torch.tensor([[True, True]])
    assert rows_of(apart_from(of, drawn, one)) == [(B, 3, 0.8), (FAR_A, 3, 0.7)]
    assert rows_of(apart_from(of, drawn, both)) == [(FAR_A, 3, 0.7)]
    assert rows_of(apart_from(of, drawn, ~both)) == rows_of(of)
    assert rows_of(apart_from(of, drawn[:, :0], both[:, :0])) == rows_of(of)


def test_the_best_of_nested_boxes_stays() -> None:
    """First comes first, whatever its size; other classes, images and half a box do not count."""
    whole = [0.0, 0.0, 20.0, 20.0]
    of = instances(
        [(A, 2, 0.9), (whole, 2, 0.8), (A, 3, 0.7), (B, 2, 0.6)],
        [(whole, 2, 0.9), (A, 2, 0.8), (FAR_A, 2, 0.7)],
        [(A, 2, 0.9), (FAR_A, 2, 0.8)],
        width=5,
    )
    told = without_nested(of)
    assert rows_of(told, 0) == [(A, 2, 0.9), (A, 3, 0.7), (B, 2, 0.6)]
    assert rows_of(told, 1) == [(whole, 2, 0.9)]
    assert rows_of(told, 2) == [(A, 2, 0.9), (FAR_A, 2, 0.8)]
    gone = of._replace(valid=of.valid & (of.scores < 0.85))  # what is not valid suppresses nothing
    assert rows_of(without_nested(gone), 1) == [(A, 2, 0.8), (FAR_A, 2, 0.7)]
    assert not without_nested(instances([], width=0)).valid.numel()


def test_a_nested_box_that_goes_takes_nothing_with_it() -> None:
    both, three = [0.0, 0.0, 30.0, 10.0], [0.0, 0.0, 50.0, 10.0]  # around A and B, and C too
    chain = [(A, 2, 0.9), (both, 2, 0.8), (B, 2, 0.7), (three, 2, 0.6), (C, 2, 0.5)]
    assert rows_of(without_nested(instances(chain))) == [(A, 2, 0.9), (B, 2, 0.7), (C, 2, 0.5)]
    without_a = instances(chain)._replace(valid=torch.tensor([[False] + [True] * 4]))
    assert rows_of(without_nested(without_a)) == [(both, 2, 0.8), (C, 2, 0.5)]


def targets(*images: list[Row], width: int | None = None) -> Targets:
    of = instances(*images, width=width)
    return Targets(of.boxes, of.labels, of.valid)


def test_what_is_no_part_of_an_object() -> None:
    """Nor the object itself; what lies around it may be more, and another class another thing."""
    part, group = [0.0, 0.0, 10.0, 4.0], [0.0, 0.0, 30.0, 10.0]
    regions = targets(
        [(NEAR_A, 2, 1.0), (part, 2, 1.0), (group, 2, 1.0), (part, 3, 1.0), (FAR_A, 2, 1.0)],
        [(A, 2, 1.0)],
        width=6,
    )
    objects = targets([(A, 2, 1.0), (C, 3, 1.0)], [(B, 2, 1.0)], width=3)
    left = beyond(regions, objects)
    assert left[0].tolist() == [False, False, True, True, True, False]  # and padding is nothing
    assert left[1].tolist() == [True] + [False] * 5
    nothing = objects._replace(valid=torch.zeros_like(objects.valid))
    assert beyond(regions, nothing).tolist() == regions.valid.tolist()
    assert beyond(regions, targets([], [], width=0)).tolist() == regions.valid.tolist()
    assert beyond(targets([], [], width=0), objects).shape == (2, 0)


def test_below_delta() -> None:
    whole = instances([(A, 2, 0.9), (B, 3, 0.7), (C, 2, 0.3)], width=4)
    rest = below(whole, BASE, torch.tensor([0.7, 0.7]))
    assert rest.valid.tolist() == [[False, False, True, False]]  # padding is none
    rest = below(whole, BASE, torch.tensor([0.2, 0.8]))  # each class has its own
    assert rest.valid.tolist() == [[False, True, False, False]]
    assert not below(instances([], width=0), BASE, torch.tensor([0.7, 0.7])).valid.numel()


def test_the_same_object() -> None:
    of = instances([(A, 2, 0.9), (B, 2, 0.9), (C, 3, 0.9)], [(A, 2, 0.9)])
    among = instances([(NEAR_A, 2, 1.0), (B, 3, 1.0), (C, 3, 1.0)], [], width=4)
    assert same_object(of, among).tolist() == [[True, False, True], [False] * 3]
    assert same_object(among, of).tolist() == [[True, False, True, False], [False] * 4]
    nothing = among._replace(valid=torch.zeros_like(among.valid))
    assert not same_object(of, nothing).any()
    assert not same_object(nothing, of).any()


# Whatever is mingled

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
def test_mingling_keeps_the_best_and_only_the_best(
    online: list[Row], offline: list[Row], by_class: bool, padding: int
) -> None:
    """By the definition: best first, the teacher's before the pool's, unless a kept one covers it;
    and padding says nothing.
    """
    wanted: list[tuple[Row, bool]] = []
    marked = [(row, True) for row in online] + [(row, False) for row in offline]
    for row, teachers in sorted(marked, key=lambda pair: -pair[0][2]):
        if not any(
            overlap(row[0], kept[0]) > 0.5 and (row[1] == kept[1] or not by_class)
            for kept, _ in wanted
        ):
            wanted.append((row, teachers))
    told, by_teacher = mingle(
        instances(online, width=len(online) + padding),
        instances(offline, width=len(offline) + padding),
        0.5,
        by_class,
    )
    marks = [bool(m) for m, v in zip(by_teacher[0], told.valid[0], strict=True) if v]
    assert list(zip(rows_of(told), marks, strict=True)) == wanted
    assert not (by_teacher & ~told.valid).any()
    assert told.valid.shape[1] == len(online) + len(offline) + 2 * padding


@given(rows, rows)
def test_nothing_is_made_up_and_mingling_again_changes_nothing(
    online: list[Row], offline: list[Row]
) -> None:
    told, _ = mingle(instances(online), instances(offline), 0.5, True)
    kept = rows_of(told)
    assert all(row in online + offline for row in kept)
    assert bool(kept) == bool(online or offline)
    empty: Tensor = torch.zeros(1, 0)
    none = Instances(empty[..., None].expand(1, 0, 4), empty.long(), empty, empty.bool())
    again, by_teacher = mingle(none, told, 0.5, True)
    assert rows_of(again) == kept
    assert not by_teacher.any()


@given(rows)
def test_nested_finds_go_as_nested_candidates_do(found: list[Row]) -> None:
    """The teacher's by the same rule as the pool's, one after another from the best."""
    ordered = sorted(found, key=lambda row: -row[2])
    wanted = []
    for label in (2, 3):
        own = [row for row in ordered if row[1] == label]
        boxes = np.reshape([[x, y, r - x, b - y] for (x, y, r, b), _, _ in own], (-1, 4))
        kept = greedy_nms(boxes, np.zeros(len(own), np.int64), NESTED, len(own), nesting)
        wanted += [row for row, stays in zip(own, kept, strict=True) if stays]
    told = rows_of(without_nested(instances(ordered)))
    assert sorted(told) == sorted(wanted)
