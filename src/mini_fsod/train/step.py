"""One training step: losses, gradients, update. The host never waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mini_fsod.cuda_graph import Captured
from mini_fsod.detector.batch import Targets, class_box_weights
from mini_fsod.detector.matching import draw_number
from mini_fsod.detector.model import Detector
from mini_fsod.loader.resident import Batch
from mini_fsod.loader.schedule import Plan
from mini_fsod.train.ema import Average

MOMENTUM = 0.9  # of SGD

Inputs = tuple[Any, ...]  # of the losses: a NamedTuple of tensors, possibly nested
Losses = Callable[[Any], dict[str, Tensor]]  # takes such `Inputs`


class DetectorInputs(NamedTuple):
    """A batch as the losses of a detector take it."""

    images: Tensor  # (B, 3, H, W) uint8
    sizes: Tensor  # (B, 2) height, width of each image on the canvas
    targets: Targets
    draw: Tensor  # () int64: seeds the sampling of anchors and RoIs


class Step:
    """Adds up the losses of `losses(inputs)` and updates the parameters that are not frozen.

    Values whose name does not start with `loss` are metrics: logged, not trained on.

    On CUDA the step is recorded for every shape of its inputs and replayed (`Captured`), unless
    `recorded` is false. Therefore
    the learning rate and the EMA decay must be tensors on the device: a number would be frozen into
    the recording. The gradients of a batch in several parts (accumulation) are averaged; with
    several processes, `reduce` averages the gradients over them.
    """

    def __init__(
        self,
        losses: Losses,
        optimiser: torch.optim.Optimizer,
        device: torch.device,
        bf16: bool,
        clip: float | None = None,
        average: Average[Any] | None = None,
        reduce: Callable[[Sequence[Tensor]], None] | None = None,
        recorded: bool = True,
    ) -> None:
        self._losses, self._optimiser = losses, optimiser
        self._device, self._bf16, self._clip = device, bf16, clip
        self._average, self._reduce = average, reduce
        self._parameters = [p for group in optimiser.param_groups for p in group["params"]]
        where = device if recorded else torch.device("cpu")  # off CUDA, `Captured` simply calls
        self._step = Captured(self._full_step, where)
        self._accumulate = Captured(self._gradients, where)
        self._apply = Captured(self._update, where)
        self.names: tuple[str, ...] = ()

    def __call__(self, parts: Sequence[Inputs]) -> Tensor:
        """The losses (L,) called `names`, means over the parts; the next step overwrites them."""
        if len(parts) == 1 and self._reduce is None:
            return self._step(parts[0])
        for parameter in self._parameters:
            if parameter.grad is None:  # allocated once: recorded graphs add to it in place
                parameter.grad = torch.zeros_like(parameter)
        gradients: list[Tensor] = [p.grad for p in self._parameters if p.grad is not None]
        torch._foreach_zero_(gradients)
        values = torch.stack([self._accumulate(part).clone() for part in parts]).mean(0)
        if len(parts) > 1:
            torch._foreach_mul_(gradients, 1 / len(parts))
        if self._reduce is not None:
            self._reduce(gradients)
        self._apply()
        return values

    def _full_step(self, inputs: Inputs) -> Tensor:
        self._optimiser.zero_grad(set_to_none=True)
        values = self._gradients(inputs)
        self._update()
        return values

    def _gradients(self, inputs: Inputs) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            losses = self._losses(inputs)
        self.names = tuple(losses)
        values = torch.stack(list(losses.values()))
        trained = [value for name, value in losses.items() if is_loss(name)]
        torch.stack(trained).sum().backward()  # type: ignore[no-untyped-call]
        return values.detach()

    def _update(self) -> None:
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._clip, foreach=True)
        self._optimiser.step()
        if self._average is not None:
            self._average.update()


def is_loss(name: str) -> bool:
    return name.startswith("loss")


def draw_of(plan: Plan, device: torch.device) -> Tensor:
    """() int64: the `draw` of the losses on a plan's images, filled in without a copy."""
    number = draw_number(plan.step, plan.first)
    return torch.full((), number, dtype=torch.int64, device=device)


def inputs_of(batch: Batch, draw: Tensor) -> DetectorInputs:
    return DetectorInputs(batch.images, batch.sizes, batch.targets, draw)


def losses_of(detector: Detector, box_classes: int | None = None) -> Losses:
    """The losses of a detector on `DetectorInputs`.

    With `box_classes`, only the first so many classes have box losses.
    """

    def losses(inputs: DetectorInputs) -> dict[str, Tensor]:
        images, sizes, targets, draw = inputs
        targets = targets._replace(box_weights=class_box_weights(targets.labels, box_classes))
        return detector.losses(images, sizes, targets, draw)

    return losses


def make_optimiser(model: nn.Module, device: torch.device, weight_decay: float) -> torch.optim.SGD:
    """Fused SGD over what is not frozen, with the learning rate as a tensor on the device."""
    trained = [p for p in model.parameters() if p.requires_grad]
    rate = torch.zeros((), device=device)
    return torch.optim.SGD(trained, rate, MOMENTUM, weight_decay=weight_decay, fused=True)
