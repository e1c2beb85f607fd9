"""What a killed run goes on from: weights, momentum, averaged weights, and the next iteration."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from mini_fsod.errors import UserError
from mini_fsod.files import write_bytes
from mini_fsod.train.ema import Average

FILE = "progress.pt"

State = dict[str, Any]


def gather(
    model: nn.Module, optimiser: torch.optim.Optimizer, average: Average[Any] | None
) -> State:
    """Copies in host memory; waits for the device. What never learns is left out: a stage builds it
    again from what it began with.
    """
    momentum = {
        name: optimiser.state[p]["momentum_buffer"]
        for name, p in model.named_parameters()
        if "momentum_buffer" in optimiser.state.get(p, {})
    }
    return {
        "weights": _copies(_moving(model, model)),
        "momentum": _copies(momentum),
        "averaged": None if average is None else _copies(_moving(average.model, model)),
    }


def restore(
    state: Mapping[str, Any],
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    average: Average[Any] | None,
) -> None:
    """What `gather` gave, put back. A ValueError says that it is another model's."""
    pairs = [(_moving(model, model), state["weights"])]
    if average is not None:
        pairs.append((_moving(average.model, model), state["averaged"] or {}))
    for own, kept in pairs:
        if _shapes(own) != _shapes(kept):
            raise ValueError("its weights are not those of this model")
        for name, value in kept.items():
            own[name].copy_(value)
    for name, parameter in model.named_parameters():
        if name in state["momentum"]:
            there = torch.empty_like(parameter)  # in the layout of the weights, as SGD's own
            optimiser.state[parameter]["momentum_buffer"] = there.copy_(state["momentum"][name])


def read(folder: Path) -> State | None:
    """The state in a stage's folder, or None where it has not begun."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        state: State = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever a damaged file leads it to
        raise UserError(
            f"{path}: the state of the run cannot be read ({type(error).__name__}).",
            "Delete the file to begin the stage again.",
        ) from error
    return state


class Writer:
    """Writes states beside the training: the file is complete under its name, or not there."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        for part in folder.glob(f".{FILE}.*.part"):  # of a run that was killed while it wrote
            part.unlink(missing_ok=True)
        self._thread = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The last state is complete then."""
        with self._thread:
            self._wait()

    def write(self, state: State) -> None:
        """Waits for the state before; a disk that is full shows here."""
        self._wait()
        self._last = self._thread.submit(self._save, state)

    def _wait(self) -> None:
        if self._last is not None:
            self._last.result()

    def _save(self, state: State) -> None:
        content = BytesIO()
        torch.save(state, content)
        write_bytes(self._path, content.getvalue())


def _moving(model: nn.Module, like: nn.Module) -> dict[str, Tensor]:
    """What training may change, where it lies: weights that learn in `like`, and buffers."""
    frozen = {name for name, p in like.named_parameters() if not p.requires_grad}
    return {name: value for name, value in model.state_dict().items() if name not in frozen}


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}
