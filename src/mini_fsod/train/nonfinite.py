"""Stops a training whose losses or weights are no longer finite, and says where it happened."""

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
    """Stops at the first non-finite one of the losses (n, L) of the last n of `step` iterations.

    An update that ruins the weights shows in the loss of the next iteration. The last update has no
    next iteration yet, so the weights are checked too: every saved state can be resumed.
    """
    wrong = (~losses.isfinite()).nonzero().tolist()
    if wrong:
        row, column = wrong[0]
        kind = "loss" if is_loss(names[column]) else "metric"
        what, iteration = f"The {kind} {names[column]} is not finite", row
    elif not _finite_weights(model):
        what, iteration = "The weights are not finite after the update", len(losses) - 1
    else:
        return
    iteration += step - len(losses)
    raise UserError(
        f"{what} at iteration {iteration} (from 0), with the pictures "
        f"{', '.join(images(iteration))}.",
        "Check these pictures and their boxes, lower the learning rate, or set clip; the last good "
        "state is saved, and the same command resumes from it.",
    )


def _finite_weights(model: nn.Module) -> bool:
    trained = [p.detach() for p in model.parameters() if p.requires_grad]
    return bool(torch.stack(torch._foreach_norm(trained)).isfinite().all())
