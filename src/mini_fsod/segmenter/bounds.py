"""From masks to boxes: where the object in a box ends, and when to believe it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mini_fsod.detector.boxes import paired_iou
from mini_fsod.segmenter.decoder import UPSAMPLED
from mini_fsod.segmenter.tiny_vit import STRIDE

CELL = STRIDE // UPSAMPLED  # canvas pixels along a side of a cell of a mask
MIN_SCORE = 0.7  # how well the mask is believed to fit its object
MIN_AGREEMENT = 0.35  # IoU of the mask's bounds with the box
MASKS_PER_PASS = 32  # each takes 5 MB at 1,024 pixels
EDGE = -1.0  # least logit inside; at 0 legs and tails are lost


def mask_bounds(logits: Tensor, sizes: Tensor, edge: float = EDGE) -> Tensor:
    """(n, 4) left, top, right, bottom of masks in pixels of the canvas; zeros for an empty mask.

    logits (n, h, w), above `edge` inside; sizes (n, 2) are heights and widths of the images: what
    lies beyond does not count. n may be 0.
    """
    parts = zip(
        torch.split(logits, MASKS_PER_PASS), torch.split(sizes, MASKS_PER_PASS), strict=True
    )
    return torch.cat(
        [logits.new_zeros(0, 4), *(_bounds(*part, edge) for part in parts if len(part[0]))]
    )


def _bounds(logits: Tensor, sizes: Tensor, edge: float) -> Tensor:
    fine = F.interpolate(logits[:, None].float(), scale_factor=CELL, mode="bilinear")[:, 0]
    row = torch.arange(fine.shape[1], device=fine.device) < sizes[:, :1]
    column = torch.arange(fine.shape[2], device=fine.device) < sizes[:, 1:]
    inside = (fine > edge) & row[:, :, None] & column[:, None]
    left, right = _ends(inside.any(1))
    top, bottom = _ends(inside.any(2))
    return torch.stack([left, top, right, bottom], 1).to(fine.dtype)


def _ends(inside: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) the first index where inside (n, L) is true, and one more than the last; else 0, 0."""
    length = inside.shape[1]
    at = torch.arange(length, device=inside.device)
    last = torch.where(inside, at + 1, 0).amax(1)
    first = torch.where(inside, at, length).amin(1)
    return torch.minimum(first, last), last


def believable(boxes: Tensor, bounds: Tensor, scores: Tensor) -> Tensor:
    """(n,) whether the bounds (n, 4) of a mask may replace its box (n, 4): its score (n,) is high
    enough, and mask and box agree. n may be 0.
    """
    return (scores >= MIN_SCORE) & (paired_iou(boxes, bounds).nan_to_num() >= MIN_AGREEMENT)
