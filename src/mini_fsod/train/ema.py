"""Exponential moving average (EMA) of weights: the teacher of section 3.4."""

from __future__ import annotations

from copy import deepcopy
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


def warmed_decay(step: int, decay: float, warm_up: float | None = 0.1) -> float:
    """The EMA decay of iteration 0, 1, ...: min(decay, 1 - 1 / (warm_up step + 1)).

    It starts at 0, so the average starts as the model and forgets its random start: after n
    iterations it averages over about `warm_up` n of them. None: `decay` from the start, for a
    model that starts well.
    """
    return decay if warm_up is None else min(decay, 1 - 1 / (warm_up * step + 1))


class Average(Generic[Model]):
    """A copy of a model with averaged weights and buffers: a <- decay a + (1 - decay) m.

    Frozen weights are copied once. `decay` is a tensor on the device, so that a recorded CUDA graph
    reads its current value.
    """

    def __init__(self, model: Model, device: torch.device) -> None:
        self.model = deepcopy(model).requires_grad_(False).eval()
        self.decay = torch.zeros((), device=device)
        parameters = zip(self.model.parameters(), model.parameters(), strict=True)
        buffers = zip(self.model.buffers(), model.buffers(), strict=True)
        pairs: list[tuple[Tensor, Tensor]] = [p for p in parameters if p[1].requires_grad]
        pairs += [b for b in buffers if b[1].is_floating_point()]
        self._averaged = [averaged for averaged, _ in pairs]
        self._trained = [trained for _, trained in pairs]

    @torch.no_grad()
    def update(self) -> None:
        """Update all averages in a few kernels, without waiting for the device."""
        difference = torch._foreach_sub(self._trained, self._averaged)
        torch._foreach_mul_(difference, 1 - self.decay)
        torch._foreach_add_(self._averaged, difference)
