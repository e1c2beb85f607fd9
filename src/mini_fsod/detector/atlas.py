"""RoIAlign on the whole pyramid in one call: nothing is sorted by level, no shape depends on data.

On CUDA our own kernel reads all levels as one list of cells. Elsewhere torchvision's RoIAlign works
on an atlas, the levels side by side in one tensor: P2 on the left, P3 to P5 below each other on its
right, every RoI moved into its level's place. Same result as torchvision's MultiScaleRoIAlign."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import roi_align

from mini_fsod.detector.anchors import STRIDES

CANONICAL_SIZE = 224  # a RoI of this side is pooled from P4 (FPN, Eq. 1)
CANONICAL_LEVEL = 4
FIRST_LEVEL = 2
# RoIs narrower than a cell are widened to one, so that samples reach past the right and lower edge:
# there a level repeats its last cells. Left of and above a level nothing is read.
BORDER = 2


def roi_levels(boxes: Tensor) -> Tensor:
    """Level (...) of each box, 0 for P2 to 3 for P5 (FPN, Eq. 1). Boxes without area: P2."""
    side = torch.sqrt((boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1]))
    level = torch.floor(CANONICAL_LEVEL + torch.log2(side / CANONICAL_SIZE) + 1e-6)
    return level.clamp(FIRST_LEVEL, FIRST_LEVEL + len(STRIDES) - 1).to(torch.int64) - FIRST_LEVEL


def build_atlas(levels: Sequence[Tensor]) -> tuple[Tensor, list[tuple[int, int]]]:
    """The levels P2 to P5 (B, C, h, w) in one float32 tensor, and each one's place in it (x, y)."""
    first, *others = [_with_border(level.float()) for level in levels]
    width = max(level.shape[3] for level in others)
    column = torch.cat([F.pad(level, (0, width - level.shape[3])) for level in others], dim=2)
    height = max(first.shape[2], column.shape[2])
    atlas = torch.cat(
        [F.pad(part, (0, 0, 0, height - part.shape[2])) for part in (first, column)], dim=3
    )
    places = [(0, 0)]
    y = 0
    for level in others:
        places.append((first.shape[3], y))
        y += level.shape[2]
    return atlas, places


def _with_border(level: Tensor) -> Tensor:
    # Not F.pad(mode="replicate"): its backward uses atomics, and inductor mistakes its strides.
    level = torch.cat((level, level[:, :, -1:].expand(-1, -1, BORDER, -1)), dim=2)
    return torch.cat((level, level[..., -1:].expand(-1, -1, -1, BORDER)), dim=3)


def pool(levels: Sequence[Tensor], boxes: Tensor, size: int, sampling_ratio: int) -> Tensor:
    """RoI features (B, R, C, size, size) of boxes (B, R, 4) on P2 to P5.

    Boxes lie inside the canvas; zero boxes (padding) are pooled like any other; R = 0 is fine.
    On CUDA our own kernel reads the levels as they are, and the result is channels-last.
    """
    if boxes.is_cuda:
        return pool_on_cells(levels, boxes, size, sampling_ratio)
    return pool_on_atlas(levels, boxes, size, sampling_ratio)


def pool_on_cells(
    levels: Sequence[Tensor], boxes: Tensor, size: int, sampling_ratio: int
) -> Tensor:
    """All levels of all images as one list of cells (N, C), in the levels' own precision."""
    from mini_fsod.detector.kernels.pool import pool_cells  # Triton is there where CUDA is

    cells = torch.cat([level.permute(0, 2, 3, 1).flatten(1, 2) for level in levels], dim=1)
    images, regions = boxes.shape[:2]
    level = roi_levels(boxes)
    starts = [0]
    for one in levels:
        starts.append(starts[-1] + one.shape[2] * one.shape[3])
    first = _pick(level, starts[:-1]).long()
    first = first + torch.arange(images, device=boxes.device)[:, None] * starts[-1]
    height, width = (_pick(level, [x.shape[d] for x in levels]).long() for d in (2, 3))
    scaled = boxes / _pick(level, STRIDES)[..., None]
    side = (scaled[..., 2:] - scaled[..., :2]).clamp(min=1)  # as aligned=False does
    pooled: Tensor = pool_cells(
        cells.flatten(0, 1),
        torch.stack((first, height, width), dim=-1).flatten(0, 1),
        torch.cat((scaled[..., :2], side / size), dim=-1).flatten(0, 1),
        size,
        sampling_ratio,
    )
    return pooled.permute(0, 3, 1, 2).view(images, regions, cells.shape[2], size, size)


def pool_on_atlas(
    levels: Sequence[Tensor], boxes: Tensor, size: int, sampling_ratio: int
) -> Tensor:
    """With torchvision's RoIAlign, in float32."""
    atlas, places = build_atlas(levels)
    images, regions = boxes.shape[:2]
    level = roi_levels(boxes)
    stride = _pick(level, STRIDES)[..., None]
    limit = torch.stack([_pick(level, [x.shape[d] for x in levels]) for d in (3, 2)], dim=-1)
    offset = torch.stack([_pick(level, [place[d] for place in places]) for d in (0, 1)], dim=-1)

    scaled = torch.minimum((boxes / stride).clamp(min=0), limit.repeat(1, 1, 2))
    corner = scaled[..., :2]
    side = (scaled[..., 2:] - corner).clamp(min=1)  # as aligned=False does, before digits are lost
    image = torch.arange(images, device=boxes.device, dtype=boxes.dtype)
    image = image.view(-1, 1, 1).expand(-1, regions, 1)
    rois = torch.cat((image, corner + offset, corner + offset + side), dim=-1).view(-1, 5)
    pooled: Tensor = roi_align(atlas, rois, size, 1.0, sampling_ratio, aligned=False)
    pooled = pooled.view(images, regions, atlas.shape[1], size, size)

    # Samples past the edge of their level count as zero in torchvision. Here they read the repeated
    # edge, as do the others of their bin, so that the share of samples inside is the exact factor.
    step = (torch.arange(size * sampling_ratio, device=boxes.device) + 0.5) / sampling_ratio
    sample = corner[..., None] + side[..., None] * (step / size)
    inside = (sample <= limit[..., None]).to(pooled.dtype)
    inside = inside.view(images, regions, 2, size, sampling_ratio).mean(-1)
    return pooled * inside[:, :, None, 1, :, None] * inside[:, :, None, 0, None, :]


def _pick(level: Tensor, values: Sequence[int]) -> Tensor:
    """values[level] as float32; a table on the device would cost a copy from the host."""
    out = torch.zeros_like(level, dtype=torch.float32)
    for i, value in enumerate(values):
        out = torch.where(level == i, float(value), out)
    return out
