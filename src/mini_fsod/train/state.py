"""What a killed run goes on from: weights, momentum, averaged weights, and the next iteration."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

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
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    buffers = {name for name, _ in model.named_buffers()}

    def weights(of: nn.Module) -> dict[str, Tensor]:
        state = of.state_dict()
        return {k: _copy(v) for k, v in state.items() if k in learning or k in buffers}

    momentum = [
        _copy(optimiser.state[p]["momentum_buffer"])
        for group in optimiser.param_groups
        for p in group["params"]
        if "momentum_buffer" in optimiser.state[p]
    ]
    averaged = None if average is None else weights(average.model)
    return {"weights": weights(model), "momentum": momentum, "averaged": averaged}


def restore(
    state: Mapping[str, Any],
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    average: Average[Any] | None,
) -> None:
    model.load_state_dict(state["weights"], strict=False)
    learning = [p for group in optimiser.param_groups for p in group["params"]]
    if state["momentum"]:
        for parameter, momentum in zip(learning, state["momentum"], strict=True):
            there = torch.empty_like(parameter)  # in the layout of the weights, as SGD makes it
            optimiser.state[parameter]["momentum_buffer"] = there.copy_(momentum)
    if average is not None:
        average.model.load_state_dict(state["averaged"], strict=False)


def read(folder: Path) -> State | None:
    """The state in a stage's folder, or None where it has not begun."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        state: State = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise UserError(
            f"{path}: the state of the run cannot be read: {error}.",
            "Delete the file to begin the stage again.",
        ) from error
    return state


class Writer:
    """Writes states beside the training: the file is complete under its name, or not there."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._thread = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def write(self, state: State) -> None:
        """Waits for the state before; a disk that is full shows here."""
        self.wait()
        self._last = self._thread.submit(self._save, state)

    def wait(self) -> None:
        if self._last is not None:
            self._last.result()

    def close(self) -> None:
        self.wait()
        self._thread.shutdown()

    def _save(self, state: State) -> None:
        content = BytesIO()
        torch.save(state, content)
        write_bytes(self._path, content.getvalue())


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)
