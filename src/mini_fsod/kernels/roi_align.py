"""RoIAlign on a channels-last pyramid.

Torchvision's kernel needs float32, channels first, and its backward pass scatters single numbers.
Here a program computes one bin of one RoI and reads and writes whole rows of channels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _axis(start, bin_size, bin_index, step: tl.constexpr, ratio: tl.constexpr, length):
    """A sample along one axis: the two cells beside it, the second one's weight, whether inside."""
    position = start + bin_size * bin_index + (step + 0.5) * bin_size / ratio
    inside = (position >= -1.0) & (position <= length.to(tl.float32))
    position = tl.maximum(position, 0.0)
    low = tl.minimum(position.to(tl.int32), length - 1)
    high = tl.minimum(low + 1, length - 1)
    weight = tl.where(low >= length - 1, 0.0, position - low)
    return low, high, weight, inside


@triton.jit
def _bin(level_shapes, geometry, SIZE: tl.constexpr):
    """The program's bin: first cell, height and width of its level, the RoI's corner, the size of a
    bin, and the bin's row and column."""
    roi = tl.program_id(0)
    return (
        tl.load(level_shapes + roi * 3).to(tl.int64),
        tl.load(level_shapes + roi * 3 + 1).to(tl.int32),
        tl.load(level_shapes + roi * 3 + 2).to(tl.int32),
        tl.load(geometry + roi * 4),
        tl.load(geometry + roi * 4 + 1),
        tl.load(geometry + roi * 4 + 2),
        tl.load(geometry + roi * 4 + 3),
        tl.program_id(1) // SIZE,
        tl.program_id(1) % SIZE,
    )


@triton.jit
def _pool_forward(
    cells, level_shapes, geometry, out, channels,
    SIZE: tl.constexpr, RATIO: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    first, height, width, x, y, bin_x, bin_y, row, column = _bin(level_shapes, geometry, SIZE)
    channel = tl.arange(0, C)
    mask = channel < channels
    total = tl.zeros([C], dtype=tl.float32)
    for sy in tl.static_range(RATIO):
        top, bottom, wy, in_y = _axis(y, bin_y, row, sy, RATIO, height)
        for sx in tl.static_range(RATIO):
            left, right, wx, in_x = _axis(x, bin_x, column, sx, RATIO, width)
            share = tl.where(in_y & in_x, 1.0 / (RATIO * RATIO), 0.0)
            upper = cells + (first + top * width) * channels + channel
            lower = cells + (first + bottom * width) * channels + channel
            a = tl.load(upper + left * channels, mask, 0.0).to(tl.float32)
            b = tl.load(upper + right * channels, mask, 0.0).to(tl.float32)
            c = tl.load(lower + left * channels, mask, 0.0).to(tl.float32)
            d = tl.load(lower + right * channels, mask, 0.0).to(tl.float32)
            total += share * ((1 - wy) * ((1 - wx) * a + wx * b) + wy * ((1 - wx) * c + wx * d))
    number = tl.program_id(0).to(tl.int64) * SIZE * SIZE + tl.program_id(1)
    tl.store(out + number * channels + channel, total, mask)


@triton.jit
def _pool_backward(
    grad, level_shapes, geometry, out, channels,
    SIZE: tl.constexpr, RATIO: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Add each bin's gradient to the cells it was read from: grad (cells, channels), float32."""
    first, height, width, x, y, bin_x, bin_y, row, column = _bin(level_shapes, geometry, SIZE)
    channel = tl.arange(0, C)
    mask = channel < channels
    number = tl.program_id(0).to(tl.int64) * SIZE * SIZE + tl.program_id(1)
    value = tl.load(out + number * channels + channel, mask, 0.0).to(tl.float32) / (RATIO * RATIO)
    for sy in tl.static_range(RATIO):
        top, bottom, wy, in_y = _axis(y, bin_y, row, sy, RATIO, height)
        upper = grad + (first + top * width) * channels + channel
        lower = grad + (first + bottom * width) * channels + channel
        for sx in tl.static_range(RATIO):
            left, right, wx, in_x = _axis(x, bin_x, column, sx, RATIO, width)
            share = value * tl.where(in_y & in_x, 1.0, 0.0)
            tl.atomic_add(upper + left * channels, share * (1 - wy) * (1 - wx), mask, "relaxed")
            tl.atomic_add(upper + right * channels, share * (1 - wy) * wx, mask, "relaxed")
            tl.atomic_add(lower + left * channels, share * wy * (1 - wx), mask, "relaxed")
            tl.atomic_add(lower + right * channels, share * wy * wx, mask, "relaxed")


def _launch(kernel, cells: Tensor, level_shapes: Tensor, geometry: Tensor, out: Tensor, ratio: int):
    """A program for every bin of every RoI of `out` (R, size, size, C)."""
    rois, size, _, channels = out.shape
    if rois:
        settings = {"num_warps": 1, "enable_fp_fusion": True, "C": triton.next_power_of_2(channels)}
        arguments = (cells, level_shapes, geometry, out, channels)
        kernel[(rois, size * size)](*arguments, SIZE=size, RATIO=ratio, **settings)


@torch.library.custom_op("mini::pool_cells", mutates_args=())
def pool_cells(
    cells: Tensor, level_shapes: Tensor, geometry: Tensor, size: int, ratio: int
) -> Tensor:
    """RoIAlign (R, size, size, C) on cells (N, C), all levels of all images in one list.

    level_shapes (R, 3) int64: first cell of the RoI's level, its height and width in cells.
    geometry (R, 4) float32: left, top, and the width and height of a bin, in cells. R = 0 is fine.
    """
    out = cells.new_empty(len(level_shapes), size, size, cells.shape[1])
    _launch(_pool_forward, cells, level_shapes, geometry, out, ratio)
    return out


@torch.library.custom_op("mini::pool_cells_backward", mutates_args=())
def pool_cells_backward(
    out: Tensor, level_shapes: Tensor, geometry: Tensor, cells: int, size: int, ratio: int
) -> Tensor:
    """Gradient (N, C) of the cells, float32, from the gradient `out` (R, size, size, C)."""
    grad = torch.zeros(cells, out.shape[3], device=out.device)
    _launch(_pool_backward, grad, level_shapes, geometry, out.contiguous(), ratio)
    return grad


@pool_cells.register_fake
def _(cells: Tensor, level_shapes: Tensor, geometry: Tensor, size: int, ratio: int) -> Tensor:
    return cells.new_empty(len(level_shapes), size, size, cells.shape[1])


@pool_cells_backward.register_fake
def _(
    out: Tensor, level_shapes: Tensor, geometry: Tensor, cells: int, size: int, ratio: int
) -> Tensor:
    return out.new_empty(cells, out.shape[3], dtype=torch.float32)


def _setup(ctx, inputs, output):
    cells, level_shapes, geometry, size, ratio = inputs
    ctx.save_for_backward(level_shapes, geometry)
    ctx.cells, ctx.dtype, ctx.size, ctx.ratio = len(cells), cells.dtype, size, ratio


def _backward(ctx, grad):
    level_shapes, geometry = ctx.saved_tensors
    cells_grad = pool_cells_backward(grad, level_shapes, geometry, ctx.cells, ctx.size, ctx.ratio)
    return cells_grad.to(ctx.dtype), None, None, None, None


pool_cells.register_autograd(_backward, setup_context=_setup)
