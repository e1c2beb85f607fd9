from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.training import CPU, Small
from mini_fsod.train.ema import Average, warmed_decay


@pytest.mark.parametrize(
    ("step", "decay"),
    [(0, 0.0), (1, 1 / 11), (10, 0.5), (90, 0.9), (9989, 0.999), (9991, 0.999), (10**6, 0.999)],
)
def test_warmed_decay(step: int, decay: float) -> None:
    assert warmed_decay(step, 0.999) == pytest.approx(decay, abs=1e-6)


def test_warmed_decay_with_other_warm_ups() -> None:
    """At 1 it is the plain mean of all that was; without one a good start is kept."""
    assert [warmed_decay(n, 0.7, 1.0) for n in range(4)] == pytest.approx([0, 1 / 2, 2 / 3, 0.7])
    assert warmed_decay(0, 0.999, None) == 0.999


def test_average_update() -> None:
    model = nn.Linear(1, 1, bias=False)
    average = Average(model, CPU)
    seen = []
    # a <- d a + (1 - d) m
    for decay, weight in ((0.0, 8.0), (0.5, 4.0), (0.75, 2.0)):
        model.weight.data.fill_(weight)
        average.decay.fill_(decay)
        average.update()
        seen.append(average.model.weight.item())
    assert seen == [8.0, 6.0, 5.0]
    assert model.weight.item() == 2.0


def test_average_equals_a_loop_over_tensors() -> None:
    """Weights and buffers of floats; what is frozen stays what it was."""
    model = Small()
    average = Average(model, CPU)
    naive = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    rng = torch.Generator().manual_seed(0)
    for step in range(8):
        x, y = torch.randn(4, 3, generator=rng), torch.randn(4, 2, generator=rng)
        optimiser.zero_grad()
        sum(model.losses((x, y)).values()).backward()
        optimiser.step()
        decay = warmed_decay(step, 0.4)
        average.decay.fill_(decay)
        average.update()
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                naive[name] = decay * naive[name] + (1 - decay) * value
    own = average.model.state_dict()
    torch.testing.assert_close(own, naive)
    assert not torch.equal(own["norm.running_mean"], torch.zeros(8))
    assert torch.equal(own["frozen.weight"], model.frozen.weight)
    assert not any(p.requires_grad for p in average.model.parameters())
    assert not average.model.training
