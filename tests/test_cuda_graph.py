from __future__ import annotations

import pytest
import torch

from mini_fsod.cuda_graph import ORDINARY_CALLS, Captured


def test_off_cuda_the_function_is_simply_called() -> None:
    calls = []

    def double(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return 2 * x

    captured = Captured(double, torch.device("cpu"))
    for n in range(5):
        assert captured(torch.tensor(n)).item() == 2 * n
    assert len(calls) == 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_replay_is_the_function() -> None:
    calls = []
    device = torch.device("cuda")
    weight = torch.ones((), device=device)

    def scaled(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape)
        return weight * x

    captured = Captured(scaled, device)
    for n in range(6):
        for size in (2, 3):
            weight.fill_(n)
            out = captured(torch.full((size,), 3.0, device=device))
            assert out.tolist() == [3.0 * n] * size
    assert len(calls) == 2 * (ORDINARY_CALLS + 1)
