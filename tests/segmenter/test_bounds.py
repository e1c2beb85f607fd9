"""Boxes from masks, of rectangles whose ends are known."""

from __future__ import annotations

import pytest
import torch

from mini_fsod.segmenter.bounds import believable, mask_bounds


def mask_of(left: int, top: int, right: int, bottom: int) -> torch.Tensor:
    """(1, 16, 16) logits above 0 in these cells."""
    mask = torch.full((1, 16, 16), -10.0)
    mask[:, top:bottom, left:right] = 10.0
    return mask


@pytest.mark.parametrize("ends", [(2, 3, 9, 12), (0, 0, 16, 16), (15, 0, 16, 1)])
def test_mask_bounds_of_a_rectangle(ends: tuple[int, int, int, int]) -> None:
    found = mask_bounds(mask_of(*ends), torch.tensor([[64, 64]]))
    assert found.tolist() == [[4 * end for end in ends]]


def test_mask_bounds_of_empty_masks_and_without_masks() -> None:
    assert mask_bounds(mask_of(0, 0, 0, 0), torch.tensor([[64, 64]])).tolist() == [[0, 0, 0, 0]]
    assert mask_bounds(torch.zeros(0, 16, 16), torch.zeros(0, 2)).shape == (0, 4)


def test_mask_bounds_end_with_the_image() -> None:
    both = mask_bounds(mask_of(2, 3, 9, 12).repeat(2, 1, 1), torch.tensor([[20, 64], [40, 30]]))
    assert both.tolist() == [[8, 12, 36, 20], [8, 12, 30, 40]]


def test_mask_bounds_of_many_masks() -> None:
    ends = [(n % 8, n % 5, 9 + n % 4, 12) for n in range(70)]
    masks = torch.cat([mask_of(*each) for each in ends])
    found = mask_bounds(masks, torch.tensor([[64, 64]]).expand(70, 2))
    assert found.tolist() == [[4 * end for end in each] for each in ends]


def test_believable_needs_score_and_agreement() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10]]).repeat(4, 1)
    bounds = torch.tensor([[0.0, 0, 10, 9], [0, 0, 10, 9], [8, 8, 20, 20], [0, 0, 0, 0]])
    scores = torch.tensor([0.95, 0.3, 0.95, 0.95])
    assert believable(boxes, bounds, scores).tolist() == [True, False, False, False]
    assert believable(boxes[:0], bounds[:0], scores[:0]).shape == (0,)
