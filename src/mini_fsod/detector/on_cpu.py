"""What is done otherwise on a CPU: shapes that depend on data, and matrix products in float32."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def eager_on_cpu(x: Tensor) -> bool:
    """Whether shapes may depend on the values of x: on a CPU there is no device to wait for.

    Not in a trace for ONNX, which knows the usual layers only.
    """
    return x.device.type == "cpu" and not torch.onnx.is_in_onnx_export()


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """layer(x) of rows x (..., in), with `product` where that is faster."""
    slow = x.dtype == torch.float32 and not torch.is_autocast_enabled(x.device.type)
    if eager_on_cpu(x) and slow and x.numel() and layer.bias is not None:
        rows: Tensor = _Linear.apply(x.reshape(-1, x.shape[-1]), layer.weight, layer.bias)
        return rows.view(*x.shape[:-1], -1)
    out: Tensor = layer(x)
    return out


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a (n, k) times the transpose of b (m, k), plus bias (m,): (n, m). n must not be 0.

    It is a 1 x 1 convolution, for which PyTorch calls oneDNN. For linear layers in float32 it calls
    MKL, which leaves AVX-512 unused on CPUs of AMD and takes twice as long there.
    """
    pixels = a.contiguous()[None, :, None].permute(0, 3, 1, 2)  # (1, k, n, 1), channels-last
    out = F.conv2d(pixels, b.contiguous()[:, :, None, None], bias)
    return out.permute(0, 2, 3, 1).flatten(0, 2)


class _Linear(torch.autograd.Function):
    """A linear layer whose gradients are computed by `product` too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias).clone()  # a view could not be changed in place later

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            product(grad, weight.t()) if of_x else None,
            product(grad.t(), x.t()) if of_weight else None,
            grad.sum(0) if of_bias else None,
        )
