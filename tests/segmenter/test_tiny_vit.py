"""The image encoder: shapes, windows, and folded BatchNorm."""

from __future__ import annotations

import pytest
import torch

from helpers.tiny_segmenter import TINY, tiny_segmenter
from mini_fsod.segmenter.tiny_vit import ConvNorm, TinyViT, distances, from_windows, to_windows


@pytest.mark.parametrize(("height", "width"), [(32, 64), (48, 16), (240, 224)])
def test_tiny_vit_takes_any_multiple_of_its_stride(height: int, width: int) -> None:
    net = TinyViT(TINY).eval()
    assert net(torch.rand(2, 3, height, width)).shape == (2, 16, height // 16, width // 16)


@pytest.mark.parametrize(("height", "width"), [(7, 14), (5, 9), (8, 1)])
def test_from_windows_undoes_to_windows(height: int, width: int) -> None:
    cells = torch.rand(2, height, width, 3)
    parts = to_windows(cells, 7)
    assert parts.shape == (2 * -(-height // 7) * -(-width // 7), 49, 3)
    assert torch.equal(from_windows(parts, 7, height, width), cells)
    assert parts.sum().item() == pytest.approx(cells.sum().item(), rel=1e-5)  # the rest is zero


def test_to_windows_keeps_neighbours_together() -> None:
    cells = torch.arange(16.0).view(1, 4, 4, 1)
    assert to_windows(cells, 2)[1, :, 0].tolist() == [2, 3, 6, 7]


def test_distances_of_a_window() -> None:
    table = distances(3)
    assert table.shape == (9, 9)
    assert torch.equal(table, table.T)
    assert table[0].tolist() == list(range(9))  # from the corner
    assert table[4].tolist() == [4, 3, 4, 1, 0, 1, 4, 3, 4]  # from the middle


def test_tiny_vit_mixes_cells_within_windows_and_their_neighbours_alone() -> None:
    """A change at one end of a long image does not reach the other end."""
    net = tiny_segmenter().image_encoder
    images = torch.rand(1, 3, 32, 1024)
    other = images.clone()
    other[..., :32] = 0
    change = (net(images) - net(other)).abs().amax(1)[0]
    assert change[0, 0] > 0
    assert change[-1, -1] == 0


def test_conv_norm_fold_changes_no_result() -> None:
    torch.manual_seed(0)
    layer = ConvNorm(4, 6, 3, 2).eval()
    assert isinstance(layer.bn, torch.nn.BatchNorm2d)
    for name in ("running_mean", "running_var", "weight", "bias"):
        getattr(layer.bn, name).data.uniform_(0.5, 2)
    images = torch.rand(2, 4, 8, 8)
    before = layer(images)
    layer.fold()
    torch.testing.assert_close(layer(images), before)
    layer.fold()
    torch.testing.assert_close(layer(images), before)
