"""The same RoI features as torchvision's MultiScaleRoIAlign."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.poolers import LevelMapper

from mini_fsod.detector.roi_align import pool_rois, roi_levels


def pyramid(images: int, canvas: tuple[int, int], channels: int = 3) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(images, channels, canvas[0] // s, canvas[1] // s) for s in (4, 8, 16, 32)]


def regions(n: int, canvas: tuple[int, int], seed: int) -> Tensor:
    """Boxes of all sizes inside the canvas; a third are slivers, many of them at its edges."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.tensor([canvas[1], canvas[0]]).float()
    side = size * torch.rand(n, 2, generator=generator) ** 3
    side[::3, 0] *= 0.01
    corner = (size - side) * torch.rand(n, 2, generator=generator)
    corner[::6] = (size - side)[::6]  # lower right corner
    return torch.cat((corner, corner + side), -1)


def torchvisions(levels: list[Tensor], boxes: Tensor, canvas: tuple[int, int]) -> Tensor:
    align = MultiScaleRoIAlign(["0", "1", "2", "3"], 7, 2)
    maps = OrderedDict((str(i), level) for i, level in enumerate(levels))
    return align(maps, list(boxes), [canvas] * len(boxes)).view(*boxes.shape[:2], -1, 7, 7)


@pytest.mark.parametrize("canvas", [(320, 448), (96, 64), (64, 640)])
def test_pool_rois_equals_torchvision(canvas: tuple[int, int]) -> None:
    levels = pyramid(2, canvas)
    boxes = torch.stack([regions(200, canvas, seed) for seed in (1, 2)])
    wanted = torchvisions(levels, boxes, canvas)
    assert (wanted[:, ::6] == 0).any()  # samples past the edge are among them
    torch.testing.assert_close(
        pool_rois(levels, boxes, 7, 2), wanted.flatten(0, 1), atol=2e-4, rtol=0
    )


def test_pool_rois_has_the_gradients_of_torchvision() -> None:
    canvas = (96, 128)
    ours = [level.requires_grad_() for level in pyramid(1, canvas)]
    theirs = [level.detach().clone().requires_grad_() for level in ours]
    boxes = regions(60, canvas, 3)[None]
    weight = torch.randn(60, 3, 7, 7, generator=torch.Generator().manual_seed(4))
    (pool_rois(ours, boxes, 7, 2) * weight).sum().backward()
    (torchvisions(theirs, boxes, canvas) * weight).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-3, rtol=0)


def test_roi_levels_equal_torchvision() -> None:
    side = torch.tensor([0.0, 1.0, 111.9, 112.0, 112.1, 223.9, 224.0, 447.0, 448.0, 5000.0])
    boxes = torch.stack((side * 0, side * 0, side, side), -1)
    assert roi_levels(boxes).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    boxes = regions(500, (1333, 800), 5)
    assert torch.equal(roi_levels(boxes), LevelMapper(2, 5)([boxes]))


def test_pool_rois_of_padding_of_nothing_and_of_nan() -> None:
    levels = pyramid(2, (64, 64))
    assert torch.isfinite(pool_rois(levels, torch.zeros(2, 3, 4), 7, 2)).all()
    assert pool_rois(levels, torch.zeros(2, 0, 4), 7, 2).shape == (0, 3, 7, 7)
    # nan must stay nan, so that the training loop notices it
    assert not torch.isfinite(pool_rois(levels, torch.full((2, 3, 4), torch.nan), 7, 2)).any()


def test_pool_rois_computes_in_float32() -> None:
    levels = [level.bfloat16() for level in pyramid(1, (64, 64))]
    boxes = regions(20, (64, 64), 1)[None]
    found = pool_rois(levels, boxes, 7, 2)
    assert found.dtype == torch.float32
    assert torch.equal(found, pool_rois([level.float() for level in levels], boxes, 7, 2))
