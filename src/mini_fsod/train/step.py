"""One training step - losses, gradients, update - in which the host never waits for the device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mini_fsod.capture import Captured
from mini_fsod.detector.batch import Targets
from mini_fsod.feed.resident import Batch


class Step:
    """Adds up the losses of `losses(images, sizes, targets, draw)`, a detector's, and updates.

    On CUDA the step of each canvas is recorded and replayed (`Captured`). Hence the optimiser's
    learning rate must be a tensor on the device: a number would be frozen into the recording.
    """

    def __init__(
        self,
        losses: Callable[..., dict[str, Tensor]],
        optimiser: torch.optim.Optimizer,
        device: torch.device,
        bf16: bool,
    ) -> None:
        self._losses = losses
        self._optimiser = optimiser
        self._device = device
        self._bf16 = bf16
        self._captured = Captured(self._run, device)
        self.names: tuple[str, ...] = ()

    def __call__(self, batch: Batch, draw: Tensor) -> Tensor:
        """(L,) the losses, named by `names`; overwritten by the next step of this canvas.

        `draw` () int64 numbers the step and decides what is sampled."""
        return self._captured(
            batch.images, batch.sizes, batch.boxes, batch.labels, batch.valid, draw
        )

    def _run(
        self,
        images: Tensor,
        sizes: Tensor,
        boxes: Tensor,
        labels: Tensor,
        valid: Tensor,
        draw: Tensor,
    ) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            losses = self._losses(images, sizes, Targets(boxes, labels, valid), draw)
        self.names = tuple(losses)
        values = torch.stack(list(losses.values()))
        self._optimiser.zero_grad(set_to_none=True)
        values.sum().backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        return values.detach()


def make_optimiser(
    model: nn.Module, device: torch.device, momentum: float, weight_decay: float
) -> torch.optim.SGD:
    """SGD over what learns, in one kernel, its learning rate a tensor on the device."""
    learning = [p for p in model.parameters() if p.requires_grad]
    rate = torch.zeros((), device=device)
    return torch.optim.SGD(
        learning, lr=rate, momentum=momentum, weight_decay=weight_decay, fused=True
    )
