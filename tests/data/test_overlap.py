"""Overlaps and NMS over many images at once, against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_fsod.data.overlap import best_of_each, greedy_nms, iou, iou_of_two, nesting, pairs_within


def test_iou_of_hand_computed_pairs() -> None:
    a = np.array([[0, 0, 10, 10], [0, 0, 10, 10], [0, 0, 10, 10], [5, 5, 0, 0]], dtype=float)
    b = np.array([[0, 0, 10, 10], [5, 0, 10, 10], [10, 0, 5, 5], [5, 5, 0, 0]], dtype=float)
    assert iou(a, b).tolist() == pytest.approx([1, 1 / 3, 0, 0])
    assert [iou_of_two(*pair) for pair in zip(a, b, strict=True)] == iou(a, b).tolist()


def test_iou_of_boxes_whose_areas_overflow_is_zero() -> None:
    huge = np.array([[0.0, 0.0, 1e200, 1e200]])
    assert iou(huge, huge).tolist() == [0]


def test_nesting_of_hand_computed_pairs() -> None:
    """A part, the whole around it, half a box beside, nothing in common, no area."""
    a = np.array([[2, 2, 4, 4], [0, 0, 10, 10], [0, 0, 10, 10], [0, 0, 4, 4], [5, 5, 0, 0]])
    b = np.array([[0, 0, 10, 10], [2, 2, 4, 4], [5, 0, 10, 10], [6, 0, 4, 4], [0, 0, 9, 9]])
    assert nesting(a.astype(float), b.astype(float)).tolist() == pytest.approx([1, 1, 0.5, 0, 0])
    narrow, wide = np.array([[0.0, 0, 4, 10]]), np.array([[2.0, 0, 50, 10]])
    assert nesting(narrow, wide).tolist() == nesting(wide, narrow).tolist() == [0.5]


def test_best_of_each_takes_the_best_scores_of_every_group() -> None:
    """Groups in order, the earlier of equal scores first, and groups of fewer boxes as they are."""
    group = np.array([2, 0, 2, 2, 0, 5, 2])
    score = np.array([0.3, 0.1, 0.9, 0.3, 0.8, 0.2, 0.5])
    assert best_of_each(group, score, 1).tolist() == [4, 2, 5]
    assert best_of_each(group, score, 3).tolist() == [4, 1, 2, 6, 0, 5]
    assert best_of_each(group, score, 0).tolist() == []
    nothing = np.zeros(0, dtype=np.int64)
    assert best_of_each(nothing, nothing.astype(float), 3).tolist() == []


def test_pairs_within_gives_all_pairs_of_one_value() -> None:
    own, other = pairs_within(np.array([7, 3, 9]), np.array([3, 7, 3, 1]))
    assert list(zip(own.tolist(), other.tolist(), strict=True)) == [(0, 1), (1, 0), (1, 2)]
    none = np.zeros(0, dtype=np.int64)
    assert [len(part) for part in pairs_within(none, none)] == [0, 0]


def test_greedy_nms_keeps_boxes_that_overlap_by_exactly_the_threshold() -> None:
    xywh = np.array([[0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 10, 9]], dtype=float)  # IoU 0.5, 0.9
    kept = greedy_nms(xywh, np.zeros(3), 0.5, per_group=3)
    assert (kept.dtype, kept.tolist()) == (np.bool_, [True, True, False])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 60), st.floats(0.1, 0.9) | st.just(1.0))
def test_greedy_nms_equals_torchvision_in_each_group(seed: int, n: int, threshold: float) -> None:
    rng = np.random.default_rng(seed)
    group = np.sort(rng.integers(0, 4, n))
    xywh = np.concatenate([rng.uniform(0, 20, (n, 2)), rng.uniform(5, 20, (n, 2))], axis=1)
    expected = np.zeros(n, dtype=bool)
    xyxy = torch.tensor(np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1))
    for k in range(4):
        rows = np.flatnonzero(group == k)
        order = -torch.arange(len(rows)).double()
        expected[rows[torchvision.ops.nms(xyxy[rows], order, threshold).numpy()]] = True
    assert greedy_nms(xywh, group, threshold, per_group=n).tolist() == expected.tolist()
    few = greedy_nms(xywh, group, threshold, per_group=2)
    firsts = [np.flatnonzero(expected & (group == k))[:2] for k in range(4)]
    assert np.flatnonzero(few).tolist() == np.concatenate(firsts).tolist()
