"""Overlaps and NMS of boxes of many images at once, without a loop over images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mini_fsod.data.dataset import Bools, Floats, Ints

NESTED = 0.7  # share of the smaller box inside the other, above which it counts as nested


def iou(a: Floats, b: Floats) -> Floats:
    """(n,) IoU of boxes (n, 4) x, y, width, height, pair by pair; 0 for two boxes without area, and
    for boxes so large that their areas overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        common = intersection(a, b)
        return _share(common, a[:, 2] * a[:, 3] + b[:, 2] * b[:, 3] - common)


def iou_of_two(a: Sequence[float], b: Sequence[float]) -> float:
    """`iou` of two boxes, given as plain numbers."""
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    common = max(width, 0.0) * max(height, 0.0)
    union = a[2] * a[3] + b[2] * b[3] - common
    return common / union if union > 0 else 0.0


def nesting(a: Floats, b: Floats) -> Floats:
    """(n,) share of the smaller box of each pair that lies in the other; 0 where it has no area."""
    return _share(intersection(a, b), np.minimum(a[:, 2] * a[:, 3], b[:, 2] * b[:, 3]))


def intersection(a: Floats, b: Floats) -> Floats:
    """(n,) the area of the intersection of boxes (n, 4), pair by pair."""
    width = np.minimum(a[:, 0] + a[:, 2], b[:, 0] + b[:, 2]) - np.maximum(a[:, 0], b[:, 0])
    height = np.minimum(a[:, 1] + a[:, 3], b[:, 1] + b[:, 3]) - np.maximum(a[:, 1], b[:, 1])
    return np.asarray(np.maximum(width, 0.0) * np.maximum(height, 0.0))


def _share(part: Floats, whole: Floats) -> Floats:
    share = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
    return np.asarray(np.where(np.isnan(share), 0.0, share))


def best_of_each(group: Ints, score: Floats, count: int) -> Ints:
    """Indices of the `count` best of each group, group by group, best first; of n rows, maybe 0.

    Among equal scores the earlier ones win.
    """
    order = np.lexsort((-score, group))
    ordered = group[order]
    rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return np.asarray(order[rank < count])


def pairs_within(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Indices into a (n,) and into b (m,) of every pair with the same value, ordered by a, then b.

    Values stand for images, or for images and classes. Neither needs to be sorted; both may be
    empty.
    """
    order = np.argsort(b, kind="stable")
    ordered = b[order]
    first = np.searchsorted(ordered, a, side="left")
    count = np.searchsorted(ordered, a, side="right") - first
    left = np.repeat(np.arange(len(a)), count)
    # 0, 1, ... within each value of a
    within = np.arange(len(left)) - np.repeat(np.cumsum(count) - count, count)
    return left, order[np.repeat(first, count) + within]


def greedy_nms(
    xywh: Floats,
    group: Ints,
    threshold: float,
    per_group: int,
    overlap: Callable[[Floats, Floats], Floats] = iou,
) -> Bools:
    """(n,) which boxes survive NMS within their group: exact, at most `per_group` of a group.

    Boxes (n, 4) are sorted by group, and within a group best first; n may be 0. In each round every
    group keeps its best box and drops those that overlap it by more than the threshold. There are
    as many rounds as the largest group keeps boxes, each over fewer boxes than the one before.
    """
    kept = np.zeros(len(xywh), dtype=np.bool_)
    rows = np.arange(len(xywh))  # neither kept nor dropped yet
    for _ in range(per_group):
        if not len(rows):
            break
        is_best = np.ones(len(rows), dtype=np.bool_)
        is_best[1:] = group[rows[1:]] != group[rows[:-1]]
        kept[rows[is_best]] = True
        best = rows[is_best][np.cumsum(is_best) - 1]
        rows = rows[~is_best & (overlap(xywh[rows], xywh[best]) <= threshold)]
    return kept
