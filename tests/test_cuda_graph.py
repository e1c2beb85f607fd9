from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from mini_fsod.cuda_graph import EAGER_CALLS, Captured, flatten, unflatten


class Pair(NamedTuple):
    left: Tensor
    right: Tensor | None = None


class Nested(NamedTuple):
    pair: Pair
    value: Tensor
    more: tuple[Pair, ...] = ()


def test_captured_calls_the_function_off_cuda() -> None:
    calls = []

    def double(pair: Pair) -> Tensor:
        calls.append(pair)
        return 2 * pair.left

    captured = Captured(double, torch.device("cpu"))
    for n in range(5):
        assert captured(Pair(torch.tensor(n))).item() == 2 * n
    assert len(calls) == 5


def test_unflatten_restores_nested_tuples() -> None:
    a, b, c, d = (torch.tensor(n) for n in range(4))
    nested = (Nested(Pair(a), b, (Pair(c, d),)), (c, None))
    leaves = flatten(nested)
    assert [None if leaf is None else int(leaf) for leaf in leaves] == [0, None, 1, 2, 3, 2, None]
    rebuilt = unflatten(nested, leaves)
    assert rebuilt == nested
    assert isinstance(rebuilt[0], Nested)
    assert isinstance(rebuilt[0].more[0], Pair)


def test_flatten_rejects_what_is_no_tensor() -> None:
    with pytest.raises(TypeError, match="must be tensors"):
        flatten((torch.tensor(1), [torch.tensor(2)]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_captured_replays_the_function_for_each_shape() -> None:
    calls = []
    device = torch.device("cuda")
    weight = torch.ones((), device=device)

    def scaled(inputs: Nested) -> Tensor:
        calls.append(inputs.value.shape)
        return weight * (inputs.value + inputs.pair.left)

    captured = Captured(scaled, device)
    for n in range(6):
        for size in (2, 3):
            weight.fill_(n)
            value = torch.full((size,), 1.0, device=device)
            out = captured(Nested(Pair(2 * value), value))
            assert out.tolist() == [3.0 * n] * size
    assert len(calls) == 2 * (EAGER_CALLS + 1)
