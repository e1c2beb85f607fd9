"""Box arithmetic over whole batches, with the formulas of torchvision's BoxCoder and box_iou."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# A predicted side is at most 1000 / 16 times its reference's, so that exp() cannot overflow.
LARGEST_LOG_RATIO = math.log(1000.0 / 16)

Weights = tuple[float, float, float, float]

UNIT = (1.0, 1.0, 1.0, 1.0)  # the RPN's


def encode_boxes(boxes: Tensor, references: Tensor, weights: Weights = UNIT) -> Tensor:
    """Deltas (..., 4) that move the references onto the boxes (Faster R-CNN, Eq. 2).

    A reference or box without area gives inf or nan: mask such pairs afterwards.
    """
    cx, cy, w, h = _centres(references)
    tx, ty, tw, th = _centres(boxes)
    wx, wy, ww, wh = weights
    dx, dy = wx * (tx - cx) / w, wy * (ty - cy) / h
    return torch.stack((dx, dy, ww * torch.log(tw / w), wh * torch.log(th / h)), dim=-1)


def decode_boxes(deltas: Tensor, references: Tensor, weights: Weights = UNIT) -> Tensor:
    """The references moved by the deltas (..., 4); the inverse of `encode_boxes`."""
    cx, cy, w, h = _centres(references)
    dx, dy, dw, dh = deltas.unbind(-1)
    wx, wy, ww, wh = weights
    x = dx / wx * w + cx
    y = dy / wy * h + cy
    half_w = 0.5 * (torch.exp((dw / ww).clamp(max=LARGEST_LOG_RATIO)) * w)
    half_h = 0.5 * (torch.exp((dh / wh).clamp(max=LARGEST_LOG_RATIO)) * h)
    return torch.stack((x - half_w, y - half_h, x + half_w, y + half_h), dim=-1)


def clip(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Boxes (B, ..., 4) clipped to their image; sizes (B, 2) are height, width."""
    limit = sizes.flip(1).repeat(1, 2).to(boxes.dtype)
    limit = limit.view(-1, *[1] * (boxes.dim() - 2), 4)
    return torch.minimum(boxes.clamp(min=0), limit)


def box_area(boxes: Tensor) -> Tensor:
    """Areas (...) of boxes (..., 4)."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def paired_iou(a: Tensor, b: Tensor) -> Tensor:
    """IoU (...) of boxes pair by pair; shapes broadcast. Two boxes without area give nan."""
    width = torch.minimum(a[..., 2], b[..., 2]) - torch.maximum(a[..., 0], b[..., 0])
    height = torch.minimum(a[..., 3], b[..., 3]) - torch.maximum(a[..., 1], b[..., 1])
    inter = width.clamp(min=0) * height.clamp(min=0)
    return inter / (box_area(a) + box_area(b) - inter)


def pairwise_iou(a: Tensor, b: Tensor) -> Tensor:
    """IoU (..., N, M) of every box of a (..., N, 4) with every box of b (..., M, 4)."""
    return paired_iou(a.unsqueeze(-2), b.unsqueeze(-3))


def top(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of values (B, N), best first, and their indices, both (B, k).

    On the CPU equal values keep their order, which is that of ONNX's TopK too; CUDA has none.
    """
    if values.is_cuda:
        best = values.topk(k)
        return best.values, best.indices
    ordered, indices = values.sort(dim=1, descending=True, stable=True)
    return ordered[:, :k], indices[:, :k]


def gather_rows(values: Tensor, index: Tensor) -> Tensor:
    """Rows of values (B, N, ...) at index (B, S): (B, S, ...)."""
    shape = index.shape + (1,) * (values.dim() - 2)
    return values.gather(1, index.view(shape).expand(*index.shape, *values.shape[2:]))


def _centres(boxes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    w = boxes[..., 2] - boxes[..., 0]
    h = boxes[..., 3] - boxes[..., 1]
    return boxes[..., 0] + 0.5 * w, boxes[..., 1] + 0.5 * h, w, h
