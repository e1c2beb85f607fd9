"""RoIAlign on the whole pyramid in one call, with torchvision's results (MultiScaleRoIAlign).

All levels of all images are one list of cells, and a bin of a RoI is a weighted sum of a few of
them, so RoIs need not be sorted by level and no shape depends on the data. On CUDA it is a kernel
(`kernels/roi_align.py`), elsewhere an `embedding_bag`, whose backward pass uses all CPU cores.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mini_fsod.detector.anchors import STRIDES

CANONICAL_SIZE = 224  # a RoI of this side is pooled from P4 (FPN, Eq. 1)
CANONICAL_LEVEL = 4
FIRST_LEVEL = 2


def roi_levels(boxes: Tensor) -> Tensor:
    """Level (...) of boxes (..., 4), 0 (P2) to 3 (P5) (FPN, Eq. 1); 0 for boxes without area."""
    side = torch.sqrt((boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1]))
    level = torch.floor(CANONICAL_LEVEL + torch.log2(side / CANONICAL_SIZE) + 1e-6)
    level = level.nan_to_num().clamp(FIRST_LEVEL, FIRST_LEVEL + len(STRIDES) - 1)
    return level.to(torch.int64) - FIRST_LEVEL


def pool_rois(
    levels: Sequence[Tensor],
    boxes: Tensor,
    size: int,
    sampling_ratio: int,
    rows: Tensor | None = None,
) -> Tensor:
    """RoI features (B R, C, size, size) of boxes (B, R, 4) on P2 to P5, channels-last in memory.

    Boxes lie inside the canvas; zero boxes (padding) are pooled like any other; R = 0 is fine.
    With `rows` (n,) only these of the B R boxes are pooled. On CUDA features keep their precision,
    elsewhere they become float32.
    """
    cells, level_shapes, geometry = flatten_pyramid(levels, boxes, size)
    if rows is not None:
        level_shapes, geometry = level_shapes[rows], geometry[rows]
    if boxes.is_cuda:
        from mini_fsod.kernels.roi_align import pool_cells  # Triton comes with CUDA only

        pooled: Tensor = pool_cells(cells, level_shapes, geometry, size, sampling_ratio)
    else:
        pooled = pool_bags(cells, level_shapes, geometry, size, sampling_ratio)
    return pooled.permute(0, 3, 1, 2)


def flatten_pyramid(
    levels: Sequence[Tensor], boxes: Tensor, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The cells (N, C) of all levels and images, and the position of each of the B R boxes in them.

    level_shapes (B R, 3): first cell, height and width of the box's level; geometry (B R, 4): the
    box's corner x, y and the width and height of a bin, in cells.
    """
    cells = torch.cat([level.permute(0, 2, 3, 1).flatten(1, 2) for level in levels], dim=1)
    level = roi_levels(boxes)
    starts = [0]
    for feature_map in levels:
        starts.append(starts[-1] + feature_map.shape[2] * feature_map.shape[3])
    first = _lookup(level, starts[:-1]).long()
    first = first + torch.arange(len(boxes), device=boxes.device)[:, None] * starts[-1]
    height, width = (_lookup(level, [x.shape[d] for x in levels]).long() for d in (2, 3))
    scaled = boxes / _lookup(level, STRIDES)[..., None]
    side = (scaled[..., 2:] - scaled[..., :2]).clamp(min=1)  # as aligned=False does
    level_shapes = torch.stack((first, height, width), dim=-1)
    geometry = torch.cat((scaled[..., :2], side / size), dim=-1)
    return cells.flatten(0, 1), level_shapes.flatten(0, 1), geometry.flatten(0, 1)


def pool_bags(
    cells: Tensor, level_shapes: Tensor, geometry: Tensor, size: int, ratio: int
) -> Tensor:
    """RoI features (R, size, size, C) from what `flatten_pyramid` returns; not for CUDA.

    Each bin is the mean of ratio x ratio samples, each interpolated between four cells.
    """
    first, height, width = level_shapes.unbind(1)
    row, down = _taps(geometry[:, 1], geometry[:, 3], height, size, ratio)
    column, along = _taps(geometry[:, 0], geometry[:, 2], width, size, ratio)
    row = first[:, None, None] + row * width[:, None, None]
    index = row[:, :, None, :, None] + column[:, None, :, None, :]  # (R, size, size, taps, taps)
    weight = down[:, :, None, :, None] * along[:, None, :, None, :]
    pooled = F.embedding_bag(
        index.flatten(0, 2).flatten(1),
        cells.float(),
        mode="sum",
        per_sample_weights=weight.flatten(0, 2).flatten(1),
    )
    return pooled.view(len(level_shapes), size, size, cells.shape[1])


def _taps(
    start: Tensor, step: Tensor, length: Tensor, size: int, ratio: int
) -> tuple[Tensor, Tensor]:
    """Along one axis: the cells that each bin reads (R, size, 2 ratio), and their weights.

    A sample reads the two cells beside it, past the middle of the last cell only that one, and
    nothing past the edge of the map.
    """
    position = (torch.arange(size * ratio, device=start.device) + 0.5) / ratio
    position = start[:, None] + step[:, None] * position  # (R, size ratio)
    last = (length - 1)[:, None]
    low = torch.minimum(position.nan_to_num().clamp(min=0).long(), last)  # weights stay nan
    high = torch.minimum(low + 1, last)
    share = torch.where(low == last, 0.0, position - low)
    weight = torch.stack((1 - share, share), -1) * (position <= length[:, None])[..., None] / ratio
    cell = torch.stack((low, high), -1)
    return cell.view(-1, size, 2 * ratio), weight.view(-1, size, 2 * ratio)


def _lookup(level: Tensor, values: Sequence[int]) -> Tensor:
    """values[level] as float32, without a copy from the host as a lookup table would need."""
    out = torch.zeros_like(level, dtype=torch.float32)
    for i, value in enumerate(values):
        out = torch.where(level == i, float(value), out)
    return out
