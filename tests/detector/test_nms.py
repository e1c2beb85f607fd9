"""Bit for bit the boxes that torchvision's NMS keeps."""

from __future__ import annotations

import torch
import torchvision.ops
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.matrix_nms import nms_by_matrix
from mini_fsod.detector.nms import nms


def cluttered(images: int, n: int, clusters: int, seed: int, grid: float = 0.0) -> Tensor:
    """Boxes around a few centres, so that most overlap; on a grid, many IoUs are equal."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.rand(images, clusters, 2, generator=generator) * 200
    which = torch.randint(clusters, (images, n), generator=generator)
    middle = centre.gather(1, which[..., None].expand(-1, -1, 2))
    middle = middle + torch.randn(images, n, 2, generator=generator) * 8
    half = 5 + 30 * torch.rand(images, n, 2, generator=generator)
    boxes = torch.cat((middle - half, middle + half), -1)
    return (boxes / grid).round() * grid if grid else boxes


def kept_by_torchvision(boxes: Tensor, valid: Tensor, threshold: float) -> Tensor:
    keep = torch.zeros_like(valid)
    for i in range(len(boxes)):
        rows = torch.where(valid[i])[0]
        scores = -rows.float()  # sorted already
        keep[i, rows[torchvision.ops.nms(boxes[i, rows], scores, threshold)]] = True
    return keep


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(0, 150),
    clusters=st.integers(1, 6),
    threshold=st.sampled_from([0.1, 0.3, 0.5, 0.7]),
    grid=st.sampled_from([0.0, 5.0, 10.0]),
    seed=st.integers(0, 10_000),
)
def test_nms_equals_torchvision(
    n: int, clusters: int, threshold: float, grid: float, seed: int
) -> None:
    boxes = cluttered(2, n, clusters, seed, grid)
    valid = torch.rand(2, n, generator=torch.Generator().manual_seed(seed)) < 0.8
    wanted = kept_by_torchvision(boxes, valid, threshold)
    assert torch.equal(nms(boxes, valid, threshold), wanted)
    assert torch.equal(nms_by_matrix(boxes, valid, threshold, rounds=n), wanted)


def test_nms_suppresses_within_a_group_only() -> None:
    boxes = cluttered(2, 120, 3, seed=5)
    label = torch.randint(4, (2, 120), generator=torch.Generator().manual_seed(5))
    valid = torch.ones(2, 120, dtype=torch.bool)
    keep = nms(boxes, valid, 0.5, group=label)
    assert torch.equal(keep, nms_by_matrix(boxes, valid, 0.5, group=label))
    for c in range(4):
        alone = kept_by_torchvision(boxes, label == c, 0.5)
        assert torch.equal(keep & (label == c), alone)


def test_nms_skips_invalid_boxes() -> None:
    boxes = torch.tensor([[[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 9.0], [0.0, 0.0, 0.0, 0.0]]])
    keep = nms(boxes, torch.tensor([[False, True, True]]), 0.5)
    assert keep.tolist() == [[False, True, True]]
