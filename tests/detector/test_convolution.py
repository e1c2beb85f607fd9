from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.ops import FrozenBatchNorm2d

from mini_fsod.detector.convolution import FoldedConv, conv_add_relu


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("with_coarse", [True, False])
def test_conv_add_relu_upsamples_the_coarse_map_before_the_relu(
    with_coarse: bool, relu: bool
) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3, padding=1)
    x, coarse = torch.randn(2, 3, 4, 6), torch.randn(2, 4, 2, 3) if with_coarse else None
    wanted = conv(x)
    if coarse is not None:
        wanted = wanted + F.interpolate(coarse, scale_factor=2.0, mode="nearest")
    found = conv_add_relu(conv, x, coarse, relu)
    torch.testing.assert_close(found, wanted.relu() if relu else wanted)


def test_folded_conv_has_the_gradients_of_convolution_and_norm() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, bias=False)
    norm = FrozenBatchNorm2d(6, eps=0.3)
    norm.running_var.uniform_(0.5, 2)
    norm.running_mean.normal_()
    norm.weight.uniform_(-1, 1)
    norm.bias.normal_()
    folded = FoldedConv(conv, norm)
    x = torch.randn(2, 4, 9, 9)
    wanted, found = norm(conv(x)), folded(x)
    torch.testing.assert_close(found, wanted)
    wanted.square().sum().backward()
    found.square().sum().backward()
    torch.testing.assert_close(folded.weight.grad, conv.weight.grad)
    assert [name for name, _ in folded.named_parameters()] == ["weight"]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_conv_add_relu_has_the_gradients_of_an_upsampled_sum(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3, padding=1)
    x = torch.randn(2, 3, 4, 6).to(memory_format=layout)
    coarse = torch.randn(2, 4, 2, 3).to(memory_format=layout)
    results = []
    for ours in (True, False):
        conv.zero_grad()
        inputs = [t.detach().requires_grad_() for t in (x, coarse)]
        if ours:
            out = conv_add_relu(conv, *inputs, relu=True)
        else:
            out = (conv(inputs[0]) + F.interpolate(inputs[1], scale_factor=2.0)).relu()
        (out * torch.arange(out.numel()).view_as(out)).sum().backward()
        results.append((*(t.grad for t in inputs), conv.weight.grad, conv.bias.grad))
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)


def test_folded_conv_changes_neither_its_input_nor_the_residual() -> None:
    torch.manual_seed(0)
    folded = FoldedConv(nn.Conv2d(4, 4, 1, bias=False), FrozenBatchNorm2d(4))
    x, residual = torch.randn(1, 4, 2, 2), torch.randn(1, 4, 2, 2)
    before = x.clone(), residual.clone()
    with torch.no_grad():
        folded(x, residual, relu=True)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])
