"""Anchors of a canvas, cached per canvas size, in torchvision's order and rounding."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from mini_fsod.errors import UserError

STRIDES = (4, 8, 16, 32)  # of P2 to P5; P6 takes every second cell of P5


def grid_sizes(canvas: tuple[int, int]) -> list[tuple[int, int]]:
    """Rows and columns of P2 to P6 on a canvas (height, width)."""
    height, width = canvas
    if height % STRIDES[-1] or width % STRIDES[-1]:
        raise UserError(
            f"The canvas is {height} x {width}; its sides must be multiples of {STRIDES[-1]}.",
            "Pad the images to the next multiple.",
        )
    levels = [(height // s, width // s) for s in STRIDES]
    rows, columns = levels[-1]
    return [*levels, ((rows + 1) // 2, (columns + 1) // 2)]


def level_counts(canvas: tuple[int, int], per_cell: int) -> list[int]:
    """Number of anchors of each level, with `per_cell` anchors per cell."""
    return [rows * columns * per_cell for rows, columns in grid_sizes(canvas)]


def canvas_anchors(
    canvas: tuple[int, int],
    sizes: tuple[tuple[float, ...], ...],
    ratios: tuple[float, ...],
    device: torch.device,
) -> Tensor:
    """Anchors (A, 4) of all levels, ordered by level, row, column, ratio, size.

    The step between cells is canvas // grid, as in torchvision: on a canvas of 352, whose P6 has 6
    columns, it is 58 and not 64.
    """
    height, width = canvas
    levels = []
    for (rows, columns), level_sizes in zip(grid_sizes(canvas), sizes, strict=True):
        y = torch.arange(rows, device=device) * (height // rows)
        x = torch.arange(columns, device=device) * (width // columns)
        y, x = torch.meshgrid(y, x, indexing="ij")
        corner = torch.stack((x, y, x, y), dim=-1).view(-1, 1, 4)
        levels.append((corner + cell_anchors(level_sizes, ratios, device)).view(-1, 4))
    return torch.cat(levels)


# Never freed: a captured CUDA graph reads its anchors at their address. The paper's recipe has 66
# canvas sizes.
cached_anchors = cache(canvas_anchors)


def cell_anchors(
    sizes: tuple[float, ...], ratios: tuple[float, ...], device: torch.device
) -> Tensor:
    """Anchors (len(ratios) * len(sizes), 4) around the origin, rounded to whole pixels."""
    height = torch.tensor(ratios, device=device).sqrt()
    scale = torch.tensor(sizes, dtype=torch.float32, device=device)
    h = (height[:, None] * scale).flatten()
    w = ((1 / height)[:, None] * scale).flatten()
    return (torch.stack((-w, -h, w, h), dim=1) / 2).round()
