"""Triton kernels for CUDA: RoIAlign on a channels-last pyramid, what follows a convolution, NMS.

They do what their plain counterparts in `atlas.py`, `backbone.py` and `nms.py` do; tests compare
them, without a GPU by Triton's interpreter. RoIAlign: torchvision's kernel wants float32, channels
first, and its backward scatters single numbers; here a program owns one bin of one RoI and moves
whole rows of channels. NMS: all overlaps first, packed into bits, then one program an image.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64  # boxes of NMS handled at a time


@triton.jit
def _axis(start, bin_size, bin_index, step: tl.constexpr, ratio: tl.constexpr, length):
    """A sample along one axis: the cells beside it, the weight of the second, whether inside."""
    at = start + bin_size * bin_index + (step + 0.5) * bin_size / ratio
    inside = (at >= -1.0) & (at <= length.to(tl.float32))
    at = tl.maximum(at, 0.0)
    low = tl.minimum(at.to(tl.int32), length - 1)
    high = tl.minimum(low + 1, length - 1)
    weight = tl.where(low >= length - 1, 0.0, at - low)
    return low, high, weight, inside


@triton.jit
def _pool_forward(
    cells, place, geometry, out, channels, SIZE: tl.constexpr, RATIO: tl.constexpr, C: tl.constexpr
):
    roi = tl.program_id(0)
    row = tl.program_id(1) // SIZE
    column = tl.program_id(1) % SIZE
    first = tl.load(place + roi * 3).to(tl.int64)
    height = tl.load(place + roi * 3 + 1).to(tl.int32)
    width = tl.load(place + roi * 3 + 2).to(tl.int32)
    x = tl.load(geometry + roi * 4)
    y = tl.load(geometry + roi * 4 + 1)
    bin_x = tl.load(geometry + roi * 4 + 2)
    bin_y = tl.load(geometry + roi * 4 + 3)
    channel = tl.arange(0, C)
    there = channel < channels
    total = tl.zeros([C], dtype=tl.float32)
    for sy in tl.static_range(RATIO):
        top, bottom, wy, in_y = _axis(y, bin_y, row, sy, RATIO, height)
        for sx in tl.static_range(RATIO):
            left, right, wx, in_x = _axis(x, bin_x, column, sx, RATIO, width)
            share = tl.where(in_y & in_x, 1.0 / (RATIO * RATIO), 0.0)
            upper = cells + (first + top * width) * channels + channel
            lower = cells + (first + bottom * width) * channels + channel
            a = tl.load(upper + left * channels, there, 0.0).to(tl.float32)
            b = tl.load(upper + right * channels, there, 0.0).to(tl.float32)
            c = tl.load(lower + left * channels, there, 0.0).to(tl.float32)
            d = tl.load(lower + right * channels, there, 0.0).to(tl.float32)
            total += share * ((1 - wy) * ((1 - wx) * a + wx * b) + wy * ((1 - wx) * c + wx * d))
    bins = SIZE * SIZE
    target = out + (roi.to(tl.int64) * bins + tl.program_id(1)) * channels + channel
    tl.store(target, total, there)


@triton.jit
def _pool_backward(
    grad, place, geometry, out, channels, SIZE: tl.constexpr, RATIO: tl.constexpr, C: tl.constexpr
):
    """Adds each bin's gradient to the cells it was read from: grad (cells, channels), float32."""
    roi = tl.program_id(0)
    row = tl.program_id(1) // SIZE
    column = tl.program_id(1) % SIZE
    first = tl.load(place + roi * 3).to(tl.int64)
    height = tl.load(place + roi * 3 + 1).to(tl.int32)
    width = tl.load(place + roi * 3 + 2).to(tl.int32)
    x = tl.load(geometry + roi * 4)
    y = tl.load(geometry + roi * 4 + 1)
    bin_x = tl.load(geometry + roi * 4 + 2)
    bin_y = tl.load(geometry + roi * 4 + 3)
    channel = tl.arange(0, C)
    there = channel < channels
    bins = SIZE * SIZE
    source = out + (roi.to(tl.int64) * bins + tl.program_id(1)) * channels + channel
    value = tl.load(source, there, 0.0).to(tl.float32) / (RATIO * RATIO)
    for sy in tl.static_range(RATIO):
        top, bottom, wy, in_y = _axis(y, bin_y, row, sy, RATIO, height)
        upper = grad + (first + top * width) * channels + channel
        lower = grad + (first + bottom * width) * channels + channel
        for sx in tl.static_range(RATIO):
            left, right, wx, in_x = _axis(x, bin_x, column, sx, RATIO, width)
            share = value * tl.where(in_y & in_x, 1.0, 0.0)
            tl.atomic_add(upper + left * channels, share * (1 - wy) * (1 - wx), there, "relaxed")
            tl.atomic_add(upper + right * channels, share * (1 - wy) * wx, there, "relaxed")
            tl.atomic_add(lower + left * channels, share * wy * (1 - wx), there, "relaxed")
            tl.atomic_add(lower + right * channels, share * wy * wx, there, "relaxed")


@torch.library.custom_op("mini::pool_cells", mutates_args=())
def pool_cells(cells: Tensor, place: Tensor, geometry: Tensor, size: int, ratio: int) -> Tensor:
    """RoIAlign (R, size, size, C) on cells (N, C), all levels of all images in one list.

    place (R, 3) int64: first cell of the RoI's level, its height and width in cells. geometry
    (R, 4) float32: left, top, and the width and height of a bin, in cells.
    """
    out = cells.new_empty(len(place), size, size, cells.shape[1])
    if len(place):
        _pool_forward[(len(place), size * size)](
            cells,
            place,
            geometry,
            out,
            cells.shape[1],
            SIZE=size,
            RATIO=ratio,
            C=triton.next_power_of_2(cells.shape[1]),
            num_warps=1,
            enable_fp_fusion=True,
        )
    return out


@torch.library.custom_op("mini::pool_cells_backward", mutates_args=())
def pool_cells_backward(
    out: Tensor, place: Tensor, geometry: Tensor, cells: int, size: int, ratio: int
) -> Tensor:
    """Gradient (N, C), float32, of the cells for the gradient (R, size, size, C) of the output."""
    grad = torch.zeros(cells, out.shape[3], device=out.device)
    if len(place):
        _pool_backward[(len(place), size * size)](
            grad,
            place,
            geometry,
            out.contiguous(),
            out.shape[3],
            SIZE=size,
            RATIO=ratio,
            C=triton.next_power_of_2(out.shape[3]),
            num_warps=1,
            enable_fp_fusion=True,
        )
    return grad


@pool_cells.register_fake
def _(cells: Tensor, place: Tensor, geometry: Tensor, size: int, ratio: int) -> Tensor:
    return cells.new_empty(len(place), size, size, cells.shape[1])


@pool_cells_backward.register_fake
def _(out: Tensor, place: Tensor, geometry: Tensor, cells: int, size: int, ratio: int) -> Tensor:
    return out.new_empty(cells, out.shape[3], dtype=torch.float32)


def _setup(ctx, inputs, output):
    cells, place, geometry, size, ratio = inputs
    ctx.save_for_backward(place, geometry)
    ctx.cells, ctx.dtype, ctx.size, ctx.ratio = len(cells), cells.dtype, size, ratio


def _backward(ctx, grad):
    place, geometry = ctx.saved_tensors
    into = pool_cells_backward(grad, place, geometry, ctx.cells, ctx.size, ctx.ratio)
    return into.to(ctx.dtype), None, None, None, None


pool_cells.register_autograd(_backward, setup_context=_setup)


@triton.jit
def _finish(
    x,
    shift,
    residual,
    out,
    number,
    channels,
    ADD: tl.constexpr,
    RELU: tl.constexpr,
    N: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    there = at < number
    value = tl.load(x + at, there, 0.0).to(tl.float32) + tl.load(shift + at % channels, there, 0.0)
    if ADD:
        value += tl.load(residual + at, there, 0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(out + at, value, there)


@torch.library.custom_op("mini::finish", mutates_args=())
def finish(x: Tensor, shift: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    """x (B, C, H, W) + shift (C,) (+ residual) (, then ReLU), channels-last, in one pass."""
    x = x.contiguous(memory_format=torch.channels_last)
    if residual is not None:
        residual = residual.contiguous(memory_format=torch.channels_last)
    out = torch.empty_like(x)
    block = 2048
    _finish[(triton.cdiv(x.numel(), block),)](
        x,
        shift,
        x if residual is None else residual,
        out,
        x.numel(),
        x.shape[1],
        ADD=residual is not None,
        RELU=relu,
        N=block,
        enable_fp_fusion=True,
    )
    return out


@finish.register_fake
def _(x: Tensor, shift: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    return torch.empty_like(x, memory_format=torch.channels_last)


def _finish_setup(ctx, inputs, output):
    _, _, residual, relu = inputs
    ctx.added, ctx.relu = residual is not None, relu
    if relu:
        ctx.save_for_backward(output)


def _finish_backward(ctx, grad):
    if ctx.relu:
        grad = torch.ops.aten.threshold_backward(grad, ctx.saved_tensors[0], 0)
    return grad, None, grad if ctx.added else None, None


finish.register_autograd(_finish_backward, setup_context=_finish_setup)


@triton.jit
def _overlaps(boxes, group, bits, number, words, threshold, BLOCK: tl.constexpr):
    """Which better boxes overlap a box, 32 of them a word: bits (images, rows, words).

    A program looks at BLOCK rows and BLOCK columns; what is not left of the diagonal is not asked.
    """
    image, rows, columns = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    if columns > rows:
        return
    boxes += image * number * 4
    group += image * number
    inner = tl.arange(0, BLOCK)
    row = rows * BLOCK + inner[:, None]
    x1 = tl.load(boxes + row * 4, row < number, 0.0)
    y1 = tl.load(boxes + row * 4 + 1, row < number, 0.0)
    x2 = tl.load(boxes + row * 4 + 2, row < number, 0.0)
    y2 = tl.load(boxes + row * 4 + 3, row < number, 0.0)
    column = columns * BLOCK + inner[None, :]
    u1 = tl.load(boxes + column * 4, column < number, 0.0)
    v1 = tl.load(boxes + column * 4 + 1, column < number, 0.0)
    u2 = tl.load(boxes + column * 4 + 2, column < number, 0.0)
    v2 = tl.load(boxes + column * 4 + 3, column < number, 0.0)
    same = tl.load(group + row, row < number, -1) == tl.load(group + column, column < number, -2)
    width = tl.maximum(tl.minimum(x2, u2) - tl.maximum(x1, u1), 0.0)
    height = tl.maximum(tl.minimum(y2, v2) - tl.maximum(y1, v1), 0.0)
    shared = width * height
    union = (x2 - x1) * (y2 - y1) + (u2 - u1) * (v2 - v1) - shared
    over = (tl.div_rn(shared, union) > threshold) & same & (column < row)
    split = tl.reshape(over.to(tl.int32), [BLOCK, BLOCK // 32, 32])
    packed = tl.sum(split << tl.arange(0, 32)[None, None, :], axis=2)  # (BLOCK, BLOCK // 32)
    word = columns * (BLOCK // 32) + tl.arange(0, BLOCK // 32)[None, :]
    line = (image * tl.num_programs(1) * BLOCK + row) * words
    tl.store(bits + line + word, packed)


@triton.jit
def _settle(bits, valid, kept, keep, number, words, BLOCK: tl.constexpr, WORDS: tl.constexpr):
    """Block by block, best first: what a kept box of an earlier block overlaps is out; the block's
    own boxes follow the rule of nms.py, repeated until it stands still."""
    image = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(number, BLOCK)
    bits += image * blocks * BLOCK * words
    kept += image * words
    inner = tl.arange(0, BLOCK)
    each = tl.arange(0, WORDS)
    for block in range(blocks):
        row = block * BLOCK + inner
        own = block * (BLOCK // 32)  # the first word of this block
        before = tl.load(kept + each, each < own, 0)
        mine = tl.load(bits + row[:, None] * words + each[None, :], each[None, :] < own, 0)
        hit = tl.max(((mine & before[None, :]) != 0).to(tl.int32), axis=1)
        alive = tl.load(valid + image * number + row, row < number, 0).to(tl.int32)
        alive = tl.where(hit > 0, 0, alive)

        word = tl.load(bits + row[:, None] * words + own + inner[None, :] // 32)
        within = (word >> (inner[None, :] % 32)) & 1  # (BLOCK, BLOCK)
        now = alive
        changed = 1
        while changed > 0:
            then = tl.where(tl.max(within * now[None, :], axis=1) > 0, 0, alive)
            changed = tl.max(tl.abs(then - now), axis=0)
            now = then
        tl.store(keep + image * number + row, now.to(tl.int8), row < number)
        split = tl.reshape(now, [BLOCK // 32, 32])
        packed = tl.sum(split << tl.arange(0, 32)[None, :], axis=1)
        tl.store(kept + own + tl.arange(0, BLOCK // 32), packed)
        tl.debug_barrier()  # the next block reads what other threads wrote


@torch.library.custom_op("mini::suppress", mutates_args=())
def suppress(boxes: Tensor, valid: Tensor, group: Tensor, threshold: float) -> Tensor:
    """Exact NMS: keep (B, N) bool of boxes (B, N, 4), best first, within each group (B, N)."""
    images, number = valid.shape
    keep = torch.zeros_like(valid, dtype=torch.int8)
    if keep.numel():
        blocks = triton.cdiv(number, BLOCK)
        words = blocks * (BLOCK // 32)
        bits = torch.empty(images, blocks * BLOCK, words, dtype=torch.int32, device=boxes.device)
        kept = torch.zeros(images, words, dtype=torch.int32, device=boxes.device)
        _overlaps[(images, blocks, blocks)](
            boxes.contiguous(),
            group.to(torch.int32).contiguous(),
            bits,
            number,
            words,
            threshold,
            BLOCK=BLOCK,
            enable_fp_fusion=False,  # rounds like torchvision's, so that ties fall alike
        )
        _settle[(images,)](
            bits,
            valid.to(torch.int8).contiguous(),
            kept,
            keep,
            number,
            words,
            BLOCK=BLOCK,
            WORDS=triton.next_power_of_2(words),
        )
    return keep.bool()


@suppress.register_fake
def _(boxes: Tensor, valid: Tensor, group: Tensor, threshold: float) -> Tensor:
    return torch.empty_like(valid)
