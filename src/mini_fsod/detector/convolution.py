"""Convolutions with bias, sum and ReLU: one pass over the output on CUDA, in place elsewhere."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from mini_fsod.detector.on_cpu import eager_on_cpu


def conv_add_relu(conv: Any, x: Tensor, coarse: Tensor | None = None, relu: bool = False) -> Tensor:
    """conv(x), plus `coarse` (B, C, H / 2, W / 2) upsampled twofold, then ReLU if `relu`.

    conv is an nn.Conv2d, its output (B, C, H, W).
    """
    if x.is_cuda:
        from mini_fsod.kernels.epilogue import shift_add_relu  # Triton comes with CUDA only

        x = F.conv2d(x, conv.weight, None, conv.stride, conv.padding)
        finished: Tensor = shift_add_relu(x, conv.bias, coarse, relu)
        return finished
    out: Tensor = conv(x)
    if coarse is not None:
        if not eager_on_cpu(out):
            out = add_upsampled(out, coarse)
        else:
            out = _AddUpsampled.apply(out, coarse)
    return F.relu(out, inplace=True) if relu else out


def add_upsampled(fine: Tensor, coarse: Tensor) -> Tensor:
    """fine (B, C, 2h, 2w) plus coarse (B, C, h, w) upsampled to its size (nearest neighbour).

    Unlike `F.interpolate`, it stores no upsampled map and keeps the precision under autocast.
    """
    images, channels, height, width = coarse.shape
    blocks = fine.view(images, channels, height, 2, width, 2)
    return (blocks + coarse[:, :, :, None, :, None]).flatten(4, 5).flatten(2, 3)


class _AddUpsampled(torch.autograd.Function):
    """`add_upsampled` in place, for CPUs; sums over the blocks in one pass in the backward pass."""

    @staticmethod
    def forward(ctx: Any, fine: Tensor, coarse: Tensor) -> Tensor:
        ctx.mark_dirty(fine)
        images, channels, height, width = coarse.shape
        blocks = fine.view(images, channels, height, 2, width, 2)
        blocks.add_(coarse[:, :, :, None, :, None])
        return fine

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, F.avg_pool2d(grad, 2, divisor_override=1)


class FoldedConv(nn.Module):
    """A convolution followed by frozen BatchNorm, optionally a residual sum and ReLU.

    Each call multiplies the weight by the norm's scale, so the weight's gradient is that of
    convolution and norm in sequence.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d | FrozenBatchNorm2d) -> None:
        super().__init__()
        scale, shift = norm_factors(norm)
        self.weight = nn.Parameter(conv.weight.detach().clone(), conv.weight.requires_grad)
        self.register_buffer("scale", scale.view(-1, 1, 1, 1))
        self.register_buffer("shift", shift)
        self.stride, self.padding, self.groups = conv.stride, conv.padding, conv.groups

    def forward(self, x: Tensor, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        weight = self.weight * self.scale
        if x.is_cuda:
            from mini_fsod.kernels.epilogue import shift_add_relu  # Triton comes with CUDA only

            x = F.conv2d(x, weight, None, self.stride, self.padding, groups=self.groups)
            finished: Tensor = shift_add_relu(x, self.shift, residual, relu)
            return finished
        x = F.conv2d(x, weight, self.shift, self.stride, self.padding, groups=self.groups)
        if residual is not None:
            x = x.add_(residual)
        return F.relu(x, inplace=True) if relu else x


def norm_factors(norm: nn.BatchNorm2d | FrozenBatchNorm2d) -> tuple[Tensor, Tensor]:
    """Scale (C,) and shift (C,) of a BatchNorm that uses its running statistics."""
    mean, var = norm.running_mean, norm.running_var
    assert mean is not None
    assert var is not None
    scale = norm.weight.detach() * (var + norm.eps).rsqrt()
    return scale, norm.bias.detach() - mean * scale
