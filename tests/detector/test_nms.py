"""Bit for bit the boxes that torchvision's NMS keeps."""

from __future__ import annotations

import pytest
import torch
import torchvision.ops
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import mini_fsod.detector.nms as module
from mini_fsod.detector.nms import by_matrix, nms


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
    for way in (by_matrix, nms):
        keep, settled = way(boxes, valid, threshold, rounds=None)
        assert settled.all()
        assert torch.equal(keep, kept_by_torchvision(boxes, valid, threshold))


@pytest.mark.parametrize("clusters", [3, 40])
def test_by_matrix_settles_a_thousand_crowded_boxes(clusters: int) -> None:
    boxes = cluttered(2, 1000, clusters, seed=clusters)
    valid = torch.ones(2, 1000, dtype=torch.bool)
    keep, settled = by_matrix(boxes, valid, 0.7)
    assert settled.all()
    assert torch.equal(keep, kept_by_torchvision(boxes, valid, 0.7))


def test_by_matrix_flags_a_chain_longer_than_its_rounds() -> None:
    # Each box overlaps only the one before (IoU 6 / 14): 0, 2, 4 ... survive, found one by one.
    x = torch.arange(8.0) * 4
    boxes = torch.stack((x, torch.zeros(8), x + 10, torch.full((8,), 10.0)), -1)[None]
    valid = torch.ones(1, 8, dtype=torch.bool)
    wanted = [True, False] * 4
    keep, settled = by_matrix(boxes, valid, 0.4, rounds=8)
    assert (keep[0].tolist(), settled.tolist()) == (wanted, [True])
    keep, settled = by_matrix(boxes, valid, 0.4, rounds=3)
    assert (keep[0].tolist() == wanted, settled.tolist()) == (False, [False])
    keep, settled = by_matrix(boxes, valid, 0.4, rounds=None)
    assert (keep[0].tolist(), settled.tolist()) == (wanted, [True])


def test_nms_suppresses_within_a_group_only() -> None:
    boxes = cluttered(2, 120, 3, seed=5)
    label = torch.randint(4, (2, 120), generator=torch.Generator().manual_seed(5))
    valid = torch.ones(2, 120, dtype=torch.bool)
    keep, _ = nms(boxes, valid, 0.5, group=label)
    assert torch.equal(keep, by_matrix(boxes, valid, 0.5, group=label)[0])
    for c in range(4):
        alone = kept_by_torchvision(boxes, label == c, 0.5)
        assert torch.equal(keep & (label == c), alone)


def test_nms_skips_invalid_boxes() -> None:
    boxes = torch.tensor([[[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 9.0], [0.0, 0.0, 0.0, 0.0]]])
    keep, _ = nms(boxes, torch.tensor([[False, True, True]]), 0.5)
    assert keep.tolist() == [[False, True, True]]


def test_by_matrix_in_chunks_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes, valid = cluttered(5, 60, 2, seed=1), torch.ones(5, 60, dtype=torch.bool)
    whole, _ = by_matrix(boxes, valid, 0.5, group=valid.long())
    monkeypatch.setattr(module, "LARGEST_MATRIX", 2 * 60 * 60)
    parts, settled = by_matrix(boxes, valid, 0.5, group=valid.long())
    assert torch.equal(parts, whole)
    assert settled.shape == (5,)
