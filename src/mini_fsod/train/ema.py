"""Averaged weights: the teacher of the paper (section 3.3), or simply the better detector."""

from __future__ import annotations

from copy import deepcopy
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


def warmed_decay(step: int, decay: float, growth: float | None = 0.1) -> float:
    """The decay of step 0, 1, ...: min(decay, 1 - 1 / (growth step + 1)), protocol.md section 3.

    It starts at 0: the average is the model itself at first, and forgets its random start; its
    memory grows by `growth` iterations in each. None, for a start worth keeping: `decay` at once.
    """
    return decay if growth is None else min(decay, 1 - 1 / (growth * step + 1))


class Average(Generic[Model]):
    """A copy of a model whose weights and buffers trail the model's: a <- d a + (1 - d) m.

    What never learns is copied once. `decay` is a tensor on the device, so that a recorded step
    reads what it holds at the time.
    """

    def __init__(self, model: Model, device: torch.device) -> None:
        self.model = deepcopy(model).requires_grad_(False).eval()
        self.decay = torch.zeros((), device=device)
        parameters = zip(self.model.parameters(), model.parameters(), strict=True)
        buffers = zip(self.model.buffers(), model.buffers(), strict=True)
        pairs: list[tuple[Tensor, Tensor]] = [p for p in parameters if p[1].requires_grad]
        pairs += [b for b in buffers if b[1].is_floating_point()]
        self._own = [own for own, _ in pairs]
        self._theirs = [their for _, their in pairs]

    @torch.no_grad()
    def update(self) -> None:
        """In a few kernels over all tensors, without waiting for the device."""
        apart = torch._foreach_sub(self._theirs, self._own)
        torch._foreach_mul_(apart, 1 - self.decay)
        torch._foreach_add_(self._own, apart)
