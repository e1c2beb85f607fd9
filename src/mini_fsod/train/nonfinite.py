"""A training that went wrong is stopped, and says where."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from mini_fsod.errors import UserError
from mini_fsod.train.step import is_loss


def refuse_nonfinite(
    losses: Tensor,
    names: Sequence[str],
    model: nn.Module,
    step: int,
    images: Callable[[int], Sequence[str]],
) -> None:
    """Stop at the first loss that is not finite, of the last n of `step` iterations; losses (n, L).

    An update that ruins the weights shows in the next iteration's loss. The last one's has no next
    yet, so the weights themselves are looked at: no state is written that cannot be gone on from.
    """
    wrong = (~losses.isfinite()).nonzero().tolist()
    if wrong:
        row, column = wrong[0]
        kind = "loss" if is_loss(names[column]) else "gauge"
        what, iteration = f"The {kind} is not a number any more: {names[column]}", row
    elif not _finite_weights(model):
        what, iteration = "The weights are not numbers any more: the update", len(losses) - 1
    else:
        return
    iteration += step - len(losses)
    raise UserError(
        f"{what} at iteration {iteration} (from 0), with the pictures "
        f"{', '.join(images(iteration))}.",
        "Look at these pictures and their boxes, lower the rate, or set a clip; the last good "
        "state is kept, and the same command goes on from it.",
    )


def _finite_weights(model: nn.Module) -> bool:
    learning = [p.detach() for p in model.parameters() if p.requires_grad]
    return bool(torch.stack(torch._foreach_norm(learning)).isfinite().all())
