"""Exact NMS in two launches: all overlaps as bits, then one program per image."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64  # boxes handled at a time


@triton.jit
def _load_corners(boxes, index, number):
    corner, mask = boxes + index * 4, index < number
    return (
        tl.load(corner, mask, 0.0),
        tl.load(corner + 1, mask, 0.0),
        tl.load(corner + 2, mask, 0.0),
        tl.load(corner + 3, mask, 0.0),
    )


@triton.jit
def _overlaps(boxes, group, bits, number, words, threshold, BLOCK: tl.constexpr):
    """Which better boxes overlap each box, as bits, 32 boxes per word: bits (images, rows, words).

    A program compares BLOCK rows with BLOCK columns; blocks right of the diagonal are skipped.
    """
    image, rows, columns = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    if columns > rows:
        return
    boxes += image * number * 4
    group += image * number
    inner = tl.arange(0, BLOCK)
    row, column = rows * BLOCK + inner[:, None], columns * BLOCK + inner[None, :]
    x1, y1, x2, y2 = _load_corners(boxes, row, number)
    u1, v1, u2, v2 = _load_corners(boxes, column, number)
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
def _suppress(bits, valid, kept, keep, number, words, BLOCK: tl.constexpr, WORDS: tl.constexpr):
    """Block by block, best boxes first. Boxes that a kept box of an earlier block overlaps are
    dropped; within the block the rule of `detector/nms.py` is repeated until nothing changes."""
    image = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(number, BLOCK)
    bits += image * blocks * BLOCK * words
    kept += image * words
    inner = tl.arange(0, BLOCK)
    each = tl.arange(0, WORDS)
    for block in range(blocks):
        row = block * BLOCK + inner
        first_word = block * (BLOCK // 32)  # first word of this block
        before = tl.load(kept + each, each < first_word, 0)
        overlaps_before = tl.load(
            bits + row[:, None] * words + each[None, :], each[None, :] < first_word, 0
        )
        hit = tl.max(((overlaps_before & before[None, :]) != 0).to(tl.int32), axis=1)
        alive = tl.load(valid + image * number + row, row < number, 0).to(tl.int32)
        alive = tl.where(hit > 0, 0, alive)

        word = tl.load(bits + row[:, None] * words + first_word + inner[None, :] // 32)
        within = (word >> (inner[None, :] % 32)) & 1  # (BLOCK, BLOCK)
        kept_now = alive
        changed = 1
        for _ in range(BLOCK):  # no chain is longer; Triton 3.4 cannot compile a `while` here
            if changed > 0:
                kept_next = tl.where(tl.max(within * kept_now[None, :], axis=1) > 0, 0, alive)
                changed = tl.max(tl.abs(kept_next - kept_now), axis=0)
                kept_now = kept_next
        tl.store(keep + image * number + row, kept_now.to(tl.int8), row < number)
        split = tl.reshape(kept_now, [BLOCK // 32, 32])
        packed = tl.sum(split << tl.arange(0, 32)[None, :], axis=1)
        tl.store(kept + first_word + tl.arange(0, BLOCK // 32), packed)
        tl.debug_barrier()  # the next block reads what other threads wrote


@torch.library.custom_op("mini::nms_by_kernel", mutates_args=())
def nms_by_kernel(boxes: Tensor, valid: Tensor, group: Tensor, threshold: float) -> Tensor:
    """Exact NMS: keep (B, N) bool of boxes (B, N, 4), best first, within each group (B, N).

    Boxes that are not `valid` neither suppress nor survive. N = 0 and B = 0 are fine.
    """
    images, number = valid.shape
    keep = torch.zeros_like(valid, dtype=torch.int8)
    if keep.numel():
        blocks = triton.cdiv(number, BLOCK)
        words = blocks * (BLOCK // 32)
        bits = torch.empty(images, blocks * BLOCK, words, dtype=torch.int32, device=boxes.device)
        kept = torch.zeros(images, words, dtype=torch.int32, device=boxes.device)
        boxes, group = boxes.contiguous(), group.to(torch.int32).contiguous()
        valid = valid.to(torch.int8).contiguous()
        # without fusion it rounds as torchvision does, so that ties are decided alike
        _overlaps[(images, blocks, blocks)](
            boxes, group, bits, number, words, threshold, BLOCK=BLOCK, enable_fp_fusion=False
        )
        padded = triton.next_power_of_2(words)
        _suppress[(images,)](bits, valid, kept, keep, number, words, BLOCK=BLOCK, WORDS=padded)
    return keep.bool()


@nms_by_kernel.register_fake
def _(boxes: Tensor, valid: Tensor, group: Tensor, threshold: float) -> Tensor:
    return torch.empty_like(valid)
