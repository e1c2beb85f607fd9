"""What follows a convolution - a shift, a sum, a ReLU - in one pass over its output."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # numbers a program looks at at once
TURNS = 16  # blocks that a program sums up
# what may be added: a map as large as the output, or one of half its height and width
NOTHING, ALIKE, HALVED = (tl.constexpr(number) for number in range(3))


@triton.jit
def _finish(
    x, shift, other, out, pixels, width, channels,
    ADD: tl.constexpr, RELU: tl.constexpr, P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """P pixels, C channels of x (pixels, channels) + shift (+ other) (, then ReLU)."""
    pixel = tl.program_id(0).to(tl.int64) * P + tl.arange(0, P)
    channel = tl.program_id(1) * C + tl.arange(0, C)
    there = (pixel < pixels)[:, None] & (channel < channels)[None, :]
    at = pixel[:, None] * channels + channel[None, :]
    value = tl.load(x + at, there, 0.0).to(tl.float32)
    value += tl.load(shift + channel, channel < channels, 0.0)[None, :]
    if ADD == ALIKE:
        value += tl.load(other + at, there, 0.0).to(tl.float32)
    if ADD == HALVED:  # rows of all images in a row: their number is even
        cell = pixel // width // 2 * (width // 2) + pixel % width // 2
        near = cell[:, None] * channels + channel[None, :]
        value += tl.load(other + near, there, 0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(out + at, value, there)


@triton.jit
def _learn(
    grad, out, through, sums, pixels, channels,
    RELU: tl.constexpr, TURNS: tl.constexpr, P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """What of a gradient (pixels, channels) goes through the ReLU, and its sums over the pixels of
    a program, (programs, channels)."""
    channel = tl.program_id(1) * C + tl.arange(0, C)
    total = tl.zeros((P, C), tl.float32)
    for turn in range(TURNS):
        pixel = (tl.program_id(0).to(tl.int64) * TURNS + turn) * P + tl.arange(0, P)
        there = (pixel < pixels)[:, None] & (channel < channels)[None, :]
        at = pixel[:, None] * channels + channel[None, :]
        value = tl.load(grad + at, there, 0.0).to(tl.float32)
        if RELU:
            value = tl.where(tl.load(out + at, there, 0.0) > 0, value, 0.0)
            tl.store(through + at, value, there)
        total += value
    tl.store(sums + tl.program_id(0) * channels + channel, tl.sum(total, 0), channel < channels)


def _tiles(x: Tensor) -> tuple[int, int, int, int]:
    """Pixels and channels of a map (B, C, H, W), and how many of both a program takes."""
    wide = min(triton.next_power_of_2(x.shape[1]), 256)
    return x.numel() // x.shape[1], x.shape[1], BLOCK // wide, wide


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


@torch.library.custom_op("mini::finish", mutates_args=())
def finish(x: Tensor, shift: Tensor, other: Tensor | None, relu: bool) -> Tensor:
    """x (B, C, H, W) + shift (C,) (+ other) (, then ReLU), channels-last, in one pass.

    Of another map of half the height and width each cell is added to the 2 x 2 pixels it covers.
    """
    x, add = _channels_last(x), NOTHING
    if other is not None:
        other, add = _channels_last(other), ALIKE if other.shape == x.shape else HALVED
        assert add is ALIKE or x.shape[2:] == (2 * other.shape[2], 2 * other.shape[3])
    out = torch.empty_like(x)
    pixels, channels, p, c = _tiles(x)
    if x.numel():
        _finish[(triton.cdiv(pixels, p), triton.cdiv(channels, c))](
            x,
            shift,
            x if other is None else other,
            out,
            pixels,
            x.shape[3],
            channels,
            ADD=add.value,
            RELU=relu,
            P=p,
            C=c,
            enable_fp_fusion=True,
        )
    return out


@torch.library.custom_op("mini::finish_learn", mutates_args=())
def learn(grad: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradient (B, C, H, W) that a ReLU with this output lets through, and its sums (C,).

    Without an output there is no ReLU: all goes through, and the first of the two is empty.
    """
    grad = _channels_last(grad)
    through = grad.new_empty(0) if out is None else torch.empty_like(grad)
    pixels, channels, p, c = _tiles(grad)
    programs = triton.cdiv(pixels, p * TURNS)
    sums = torch.empty(programs, channels, device=grad.device)
    if grad.numel():
        _learn[(programs, triton.cdiv(channels, c))](
            grad,
            grad if out is None else out,
            through,
            sums,
            pixels,
            channels,
            RELU=out is not None,
            TURNS=TURNS,
            P=p,
            C=c,
            enable_fp_fusion=True,
        )
    return through, sums.sum(0)


@finish.register_fake
def _(x: Tensor, shift: Tensor, other: Tensor | None, relu: bool) -> Tensor:
    return torch.empty_like(x, memory_format=torch.channels_last)


@learn.register_fake
def _(grad: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor]:
    through = grad.new_empty(0) if out is None else torch.empty_like(out)
    return through, grad.new_empty(grad.shape[1], dtype=torch.float32)


def _setup(ctx, inputs, output):
    x, shift, other, relu = inputs
    ctx.added, ctx.halved = other is not None, other is not None and other.shape != x.shape
    ctx.relu, ctx.dtype = relu, shift.dtype
    if relu:
        ctx.save_for_backward(output)


def _backward(ctx, grad):
    out = ctx.saved_tensors[0] if ctx.relu else None
    summed = None
    if ctx.needs_input_grad[1]:
        through, summed = learn(grad, out)
        grad, summed = grad if out is None else through, summed.to(ctx.dtype)
    elif out is not None:
        grad = torch.ops.aten.threshold_backward(grad, out, 0)
    other = F.avg_pool2d(grad, 2, divisor_override=1) if ctx.halved else grad
    return grad, summed, other if ctx.added else None, None


finish.register_autograd(_backward, setup_context=_setup)
