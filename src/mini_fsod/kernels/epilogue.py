"""Bias, residual sum and ReLU after a convolution, in one pass over its output."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # elements a program handles at once
BLOCKS_PER_PROGRAM = 16  # summed up by one program in the backward pass
# what is added: nothing, a map of the output's size, or one of half its height and width
NOTHING, SAME_SIZE, HALF_SIZE = (tl.constexpr(number) for number in range(3))


@triton.jit
def _shift_add_relu(
    x, shift, other, out, pixels, width, channels,
    ADD: tl.constexpr, RELU: tl.constexpr, P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """x (pixels, channels) + shift (+ other), then ReLU if asked for: P pixels, C channels."""
    pixel = tl.program_id(0).to(tl.int64) * P + tl.arange(0, P)
    channel = tl.program_id(1) * C + tl.arange(0, C)
    mask = (pixel < pixels)[:, None] & (channel < channels)[None, :]
    offset = pixel[:, None] * channels + channel[None, :]
    value = tl.load(x + offset, mask, 0.0).to(tl.float32)
    value += tl.load(shift + channel, channel < channels, 0.0)[None, :]
    if ADD == SAME_SIZE:
        value += tl.load(other + offset, mask, 0.0).to(tl.float32)
    if ADD == HALF_SIZE:  # all images are one list of rows, an even number of them
        cell = pixel // width // 2 * (width // 2) + pixel % width // 2
        half_offset = cell[:, None] * channels + channel[None, :]
        value += tl.load(other + half_offset, mask, 0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(out + offset, value, mask)


@triton.jit
def _relu_backward(
    grad, out, relu_grad, sums, pixels, channels,
    RELU: tl.constexpr, BLOCKS_PER_PROGRAM: tl.constexpr, P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The ReLU's gradient (pixels, channels), and its sums over each program's pixels,
    (programs, channels)."""
    channel = tl.program_id(1) * C + tl.arange(0, C)
    total = tl.zeros((P, C), tl.float32)
    for block in range(BLOCKS_PER_PROGRAM):
        pixel = (tl.program_id(0).to(tl.int64) * BLOCKS_PER_PROGRAM + block) * P + tl.arange(0, P)
        mask = (pixel < pixels)[:, None] & (channel < channels)[None, :]
        offset = pixel[:, None] * channels + channel[None, :]
        value = tl.load(grad + offset, mask, 0.0).to(tl.float32)
        if RELU:
            value = tl.where(tl.load(out + offset, mask, 0.0) > 0, value, 0.0)
            tl.store(relu_grad + offset, value, mask)
        total += value
    tl.store(sums + tl.program_id(0) * channels + channel, tl.sum(total, 0), channel < channels)


def _tile_shape(x: Tensor) -> tuple[int, int, int, int]:
    """Pixels and channels of a map (B, C, H, W), and how many of each a program handles."""
    block_channels = min(triton.next_power_of_2(x.shape[1]), 256)
    return x.numel() // x.shape[1], x.shape[1], BLOCK // block_channels, block_channels


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


@torch.library.custom_op("mini::shift_add_relu", mutates_args=())
def shift_add_relu(x: Tensor, shift: Tensor, other: Tensor | None, relu: bool) -> Tensor:
    """x (B, C, H, W) + shift (C,) (+ other), then ReLU if `relu`; channels-last. B = 0 is fine.

    `other` has the shape of x, or half its height and width: then each cell is added to the 2 x 2
    pixels it covers.
    """
    x, add = _channels_last(x), NOTHING
    if other is not None:
        other, add = _channels_last(other), SAME_SIZE if other.shape == x.shape else HALF_SIZE
        assert add is SAME_SIZE or x.shape[2:] == (2 * other.shape[2], 2 * other.shape[3])
    out = torch.empty_like(x)
    pixels, channels, p, c = _tile_shape(x)
    if x.numel():
        arguments = (x, shift, x if other is None else other, out, pixels, x.shape[3], channels)
        _shift_add_relu[(triton.cdiv(pixels, p), triton.cdiv(channels, c))](
            *arguments, ADD=add.value, RELU=relu, P=p, C=c, enable_fp_fusion=True
        )
    return out


@torch.library.custom_op("mini::shift_add_relu_backward", mutates_args=())
def shift_add_relu_backward(grad: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gradient (B, C, H, W) of the ReLU with output `out`, and its sum over the pixels (C,).

    Without `out` there is no ReLU: the first result is empty, the gradient is `grad` itself.
    """
    grad = _channels_last(grad)
    relu_grad = grad.new_empty(0) if out is None else torch.empty_like(grad)
    pixels, channels, p, c = _tile_shape(grad)
    programs = triton.cdiv(pixels, p * BLOCKS_PER_PROGRAM)
    sums = torch.empty(programs, channels, device=grad.device)
    if grad.numel():
        constants = {"BLOCKS_PER_PROGRAM": BLOCKS_PER_PROGRAM, "P": p, "C": c}
        arguments = (grad, grad if out is None else out, relu_grad, sums, pixels, channels)
        _relu_backward[(programs, triton.cdiv(channels, c))](
            *arguments, RELU=out is not None, **constants, enable_fp_fusion=True
        )
    return relu_grad, sums.sum(0)


@shift_add_relu.register_fake
def _(x: Tensor, shift: Tensor, other: Tensor | None, relu: bool) -> Tensor:
    return torch.empty_like(x, memory_format=torch.channels_last)


@shift_add_relu_backward.register_fake
def _(grad: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor]:
    relu_grad = grad.new_empty(0) if out is None else torch.empty_like(out)
    return relu_grad, grad.new_empty(grad.shape[1], dtype=torch.float32)


def _setup(ctx, inputs, output):
    x, shift, other, relu = inputs
    ctx.added, ctx.half_size = other is not None, other is not None and other.shape != x.shape
    ctx.relu, ctx.dtype = relu, shift.dtype
    if relu:
        ctx.save_for_backward(output)


def _backward(ctx, grad):
    out = ctx.saved_tensors[0] if ctx.relu else None
    summed = None
    if ctx.needs_input_grad[1]:
        relu_grad, summed = shift_add_relu_backward(grad, out)
        grad, summed = grad if out is None else relu_grad, summed.to(ctx.dtype)
    elif out is not None:
        grad = torch.ops.aten.threshold_backward(grad, out, 0)
    other = F.avg_pool2d(grad, 2, divisor_override=1) if ctx.half_size else grad
    return grad, summed, other if ctx.added else None, None


shift_add_relu.register_autograd(_backward, setup_context=_setup)
