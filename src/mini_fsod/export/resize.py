"""Resizing inside the exported graph, with the results of decoding and of the loader's canvas.

A resized picture is W_y P W_x^T: the weights of a row or column are one matrix. Two matrix products
run on every ONNX runtime, while the operator Resize gives other results on each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def arange(end: Any) -> Tensor:
    """0 .. end - 1, where `end` is a tensor () int64: it stays one in a trace."""
    return torch.arange(end, device=end.device)


def fitted(size: Tensor, short: int, long: int) -> Tensor:
    """`loader.schedule.fit` of one size (2,) int64, as tensor operations."""
    low, high = size.min(), size.max()
    by_short = short * high <= long * low
    wanted = torch.where(by_short, short, long)
    given = torch.where(by_short, low, high)
    return torch.div(2 * size * wanted + given, 2 * given, rounding_mode="floor").clamp(min=1)


def canvas_size(size: Tensor, divisible: int) -> Tensor:
    """The size (2,) int64, rounded up to multiples of `divisible`."""
    return torch.div(size + divisible - 1, divisible, rounding_mode="floor") * divisible


def resize_weights(stored: Tensor, scaled: Tensor, length: Tensor) -> Tensor:
    """Weights (length, stored) float32 from `stored` pixels to `scaled`; all sizes are () int64.

    Bilinear between pixel centres. A reduction averages over all pixels that an output pixel
    covers, as Pillow does; an enlargement counts in float32, as `loader.resident` does. Rows from
    `scaled` on are zero: the empty part of the canvas.
    """
    row, pixel = arange(length), arange(stored)
    # in units of half a pixel / scaled, which are whole numbers: exact
    distance = ((2 * pixel + 1) * scaled - ((2 * row + 1) * stored)[:, None]).abs()
    reduced = (2 * stored - distance).clamp(min=0).float()
    centre = (row.float() + 0.5) * (stored / scaled)
    enlarged = (1 - (pixel.float() + 0.5 - centre[:, None]).abs()).clamp(min=0)
    weights = torch.where(scaled < stored, reduced, enlarged)
    inside = (row < scaled)[:, None]
    # a row of the empty part may have no pixel at all: not 0 / 0
    total = torch.where(inside, weights.sum(1, keepdim=True), 1.0)
    return torch.where(inside, weights / total, 0.0)


def resized_canvas(images: Tensor, scaled: Tensor, canvas: Tensor) -> Tensor:
    """Images (N, H, W, 3) uint8, resized to `scaled` (2,) on a canvas (N, 3, H', W') uint8.

    Reductions are rounded after each direction, as Pillow does it; enlargements once.
    """
    size = torch._shape_as_tensor(images)[1:3]
    across = resize_weights(size[1], scaled[1], canvas[1])
    down = resize_weights(size[0], scaled[0], canvas[0])
    pixels = images.permute(0, 3, 1, 2).float() @ across.t()
    pixels = torch.where(scaled[1] < size[1], torch.floor(pixels + 0.5), pixels)
    pixels = down @ pixels
    return torch.where(scaled[0] < size[0], torch.floor(pixels + 0.5), torch.round(pixels)).to(
        torch.uint8
    )
