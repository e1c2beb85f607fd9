from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.models.detection._utils import Matcher
from torchvision.ops import box_iou

from mini_fsod.detector.anchors import canvas_anchors
from mini_fsod.detector.batch import Targets, pad_targets
from mini_fsod.detector.matching import Matches, draw_number, draw_samples, match, random_keys

ANCHORS = canvas_anchors(
    (64, 96), ((16,), (32,), (48,), (64,), (96,)), (0.5, 1.0, 2.0), torch.device("cpu")
)


def truth(n: int, seed: int, whole: bool) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(n, 2, generator=generator) * 50
    side = torch.rand(n, 2, generator=generator) * 40 + 2
    boxes = torch.cat((corner, corner + side), -1)
    return boxes.round() if whole else boxes  # whole pixels make equal IoUs


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    seed=st.integers(0, 10_000),
    whole=st.booleans(),
    forced=st.booleans(),
)
def test_match_equals_torchvision(counts: list[int], seed: int, whole: bool, forced: bool) -> None:
    """Padding with garbage in it must not win a match, not even a forced one or a tie."""
    boxes = [truth(n, seed + i, whole) for i, n in enumerate(counts)]
    targets = pad_targets(boxes, [torch.zeros(n, dtype=torch.int64) for n in counts], width=7)
    targets.boxes[~targets.valid] = torch.tensor([0.0, 0.0, 96.0, 64.0])
    high, low = (0.7, 0.3) if forced else (0.5, 0.5)
    found = match(ANCHORS, None, targets, high, low, forced)
    matcher = Matcher(high, low, allow_low_quality_matches=forced)
    for i, n in enumerate(counts):
        wanted = matcher(box_iou(boxes[i], ANCHORS)) if n else torch.full((len(ANCHORS),), -1)
        assert torch.equal(found.positive[i], wanted >= 0)
        assert torch.equal(found.negative[i], wanted == Matcher.BELOW_LOW_THRESHOLD)
        assert torch.equal(found.box[i][wanted >= 0], wanted[wanted >= 0])


def one_image(boxes: list[list[float]], **flags: list[bool]) -> Targets:
    n = len(boxes)
    columns = {name: torch.tensor([row]) for name, row in flags.items()}
    columns.setdefault("valid", torch.ones(1, n, dtype=torch.bool))
    return Targets(torch.tensor([boxes]), torch.zeros(1, n, dtype=torch.int64), **columns)


def test_match_forces_the_best_candidate_of_each_box() -> None:
    candidates = torch.tensor(
        [
            [0.0, 0.0, 10.0, 10.0],  # IoU 0.25 with the box: its best, and so
            [10.0, 0.0, 20.0, 10.0],  # is this one, a tie
            [30.0, 0.0, 40.0, 10.0],  # nothing
        ]
    )
    targets = one_image([[5.0, 0.0, 15.0, 20.0]])  # 50 of 250 each
    found = match(candidates, None, targets, 0.7, 0.3, forced=True)
    assert found.positive.tolist() == [[True, True, False]]
    assert found.negative.tolist() == [[False, False, True]]
    torch.testing.assert_close(found.iou, torch.tensor([[0.2, 0.2, 0.0]]))
    found = match(candidates, None, targets, 0.7, 0.3, forced=False)
    assert not found.positive.any()
    assert found.negative.all()


def test_match_ignores_boxes_without_area() -> None:
    targets = one_image([[5.0, 5.0, 5.0, 20.0]])
    found = match(ANCHORS, None, targets, 0.7, 0.3, forced=True)
    assert not found.positive.any()
    assert found.negative.all()


def test_match_has_no_negatives_in_images_marked_so() -> None:
    """Positives stay; other images are unchanged."""
    boxes = torch.tensor([[16.0, 16.0, 48.0, 48.0]])
    targets = pad_targets([boxes] * 2, [torch.zeros(1, dtype=torch.int64)] * 2)
    plain = match(ANCHORS, None, targets, 0.7, 0.3, forced=True)
    marked = targets._replace(no_negatives=torch.tensor([True, False]))
    found = match(ANCHORS, None, marked, 0.7, 0.3, forced=True)
    assert not found.negative[0].any()
    assert torch.equal(found.negative[1], plain.negative[1])
    assert torch.equal(found.positive, plain.positive)
    assert plain.positive[0].any()
    assert plain.negative[0].any()


def test_match_makes_ignored_regions_neither_positive_nor_negative() -> None:
    candidates = torch.tensor([[[0.0, 0.0, 10.0, 10.0], [50.0, 0.0, 60.0, 10.0]]])
    region = [0.0, 0.0, 10.0, 8.0]  # IoU 0.8 with the first
    targets = one_image([region, region], valid=[False, False], ignore=[True, False])
    found = match(candidates, None, targets, 0.5, 0.5, forced=False)
    assert not found.positive.any()
    assert found.negative.tolist() == [[False, True]]


def test_match_skips_invalid_candidates() -> None:
    candidates = torch.tensor([[[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 0.0, 0.0]]])
    valid = torch.tensor([[False, False]])
    found = match(candidates, valid, one_image([[0.0, 0.0, 10.0, 10.0]]), 0.5, 0.5, forced=False)
    assert not (found.positive | found.negative).any()


def test_match_without_boxes_makes_all_negative() -> None:
    none = Targets(torch.zeros(2, 0, 4), torch.zeros(2, 0).long(), torch.zeros(2, 0).bool())
    found = match(ANCHORS, None, none, 0.7, 0.3, forced=True)
    assert found.negative.all()
    assert not found.positive.any()
    assert torch.equal(found.iou, torch.zeros(2, len(ANCHORS)))


def labelled(positive: Tensor, negative: Tensor) -> Matches:
    return Matches(torch.zeros_like(positive).long(), positive.float(), positive, negative)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 80),
    number=st.integers(1, 60),
    share=st.sampled_from([0.25, 0.5, 1.0]),
    positive=st.floats(0, 1),
    seed=st.integers(0, 10_000),
)
def test_draw_samples_has_the_numbers_of_torchvision(
    n: int, number: int, share: float, positive: float, seed: int
) -> None:
    """As many of each kind as BalancedPositiveNegativeSampler takes, each once, never another."""
    draw = torch.rand(3, n, generator=torch.Generator().manual_seed(seed))
    is_positive, is_negative = draw < positive / 2, draw > 0.6
    keys = random_keys(torch.tensor(seed), 0, 3, n)
    found = draw_samples(labelled(is_positive, is_negative), number, share, keys)
    for i in range(3):
        rows = found.rows[i][found.valid[i]]
        assert len(rows.unique()) == len(rows)
        n_positive = min(int(is_positive[i].sum()), int(number * share))
        n_negative = min(int(is_negative[i].sum()), number - n_positive)
        assert is_positive[i, rows].sum() == n_positive
        assert is_negative[i, rows].sum() == n_negative
        assert len(rows) == n_positive + n_negative
        assert is_positive[i, rows[:n_positive]].all()  # positives first


def test_draw_samples_is_uniform() -> None:
    kind = torch.ones(400, 20, dtype=torch.bool)
    keys = random_keys(torch.tensor(7), 1, 400, 20)
    found = draw_samples(labelled(~kind, kind), 5, 0.5, keys)
    often = torch.bincount(found.rows.flatten(), minlength=20)
    assert often.sum() == 2000
    assert (often - 100).abs().max() < 35  # four deviations


def test_random_keys_are_fixed_and_differ_by_draw_stream_and_position() -> None:
    keys = random_keys(torch.tensor(5), 0, 2, 3)
    assert keys.dtype == torch.int32
    assert keys.tolist() == [
        [1841988112, 126079451, 1843720590],
        [172265546, 1964103903, 1220952462],
    ]
    later = random_keys(torch.tensor(draw_number(12345, 3)), 1, 1, 3)
    assert later.tolist() == [[1245303686, 1590261653, 250293654]]
    draws = [random_keys(torch.tensor(d), s, 2, 3).flatten() for d in (5, 6) for s in (0, 1)]
    assert len(torch.cat(draws).unique()) == 24
    assert (torch.cat(draws) >= 0).all()


def test_random_keys_of_a_part_equal_those_of_the_whole_batch() -> None:
    whole = random_keys(torch.tensor(draw_number(9)), 1, 4, 5)
    part = random_keys(torch.tensor(draw_number(9, first=2)), 1, 2, 5)
    assert part.tolist() == whole[2:].tolist()


@pytest.mark.parametrize("number", [10, 3])
def test_draw_samples_of_too_few_candidates_leaves_invalid_slots(number: int) -> None:
    found = draw_samples(
        labelled(torch.tensor([[True, False]]), torch.tensor([[False, False]])),
        number,
        0.5,
        random_keys(torch.tensor(0), 0, 1, 2),
    )
    assert found.rows[found.valid].tolist() == [0]
