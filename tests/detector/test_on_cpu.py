"""Products by oneDNN, and heads that see no padding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mini_fsod.detector.on_cpu import linear, product
from mini_fsod.detector.roi import BoxHead


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 1, 1), (7, 12, 5), (130, 64, 3)])
def test_product_is_that_of_the_rows(rows: int, inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    a, b, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    torch.testing.assert_close(product(a, b, bias), a @ b.T + bias)
    torch.testing.assert_close(product(a, b), a @ b.T)
    turned = torch.randn(inputs, rows).T  # not contiguous
    torch.testing.assert_close(product(turned, b), turned @ b.T)


@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8), (0, 8)])
def test_linear_has_the_result_and_gradients_of_the_layer(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 5), torch.randn(shape)
    results = []
    for way in (layer, lambda x: linear(layer, x)):
        layer.zero_grad()
        x = x.detach().requires_grad_()
        out = way(x)
        torch.relu_(out)  # as the box head does
        out.square().sum().backward()
        results.append((out.detach(), x.grad, layer.weight.grad, layer.bias.grad))
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)


def test_linear_leaves_a_frozen_layer_without_gradients() -> None:
    layer = nn.Linear(4, 3).requires_grad_(False)
    x = torch.randn(2, 4, requires_grad=True)
    linear(layer, x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(2, 4))
    assert layer.weight.grad is None


def test_linear_follows_autocast() -> None:
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(layer, x).dtype == torch.bfloat16
    assert BoxHead(4, 2, 0, 2, 3)(torch.randn(5, 4, 2, 2)).dtype == torch.float32
