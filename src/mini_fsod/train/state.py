"""The training state an interrupted run resumes from: weights, momentum, EMA, iteration."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from mini_fsod.detector.weights import is_in_memory, list_names
from mini_fsod.errors import UserError
from mini_fsod.files import is_folder, mode, open_regular, remove_leftovers, write_bytes
from mini_fsod.state_files import Count, Finite, Kind, check_kind
from mini_fsod.train.ema import Average

FILE = "progress.pt"

State = dict[str, Any]


class _StateFile(Kind):
    weights: dict[str, Tensor]
    momentum: dict[str, Tensor]
    averaged: dict[str, Tensor] | None
    step: Count  # iterations done
    total: Count | None
    seconds: Finite
    identity: str
    start: Finite = 0.0
    looked: Count = 0
    share: Finite = 0.0
    warm_up: Count | None = None


def snapshot(
    model: nn.Module, optimiser: torch.optim.Optimizer, average: Average[Any] | None
) -> State:
    """Copies in host memory; waits for the device. Frozen weights are left out: a stage loads them
    again from where it started.
    """
    momentum = {
        name: optimiser.state[p]["momentum_buffer"]
        for name, p in model.named_parameters()
        if "momentum_buffer" in optimiser.state.get(p, {})
    }
    return {
        "weights": _copies(_changing(model, model)),
        "momentum": _copies(momentum),
        "averaged": None if average is None else _copies(_changing(average.model, model)),
    }


def restore(
    state: Mapping[str, Any],
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    average: Average[Any] | None,
) -> None:
    """Restores a snapshot; a ValueError if it is of another model."""
    pairs = [(_changing(model, model), state["weights"])]
    if average is not None:
        pairs.append((_changing(average.model, model), state["averaged"] or {}))
    for tensors, saved in pairs:
        if _shapes(tensors) != _shapes(saved):
            raise ValueError("its weights are those of another model")
        for name, value in saved.items():
            tensors[name].copy_(value)
    momentum = _shapes(state["momentum"])
    if not momentum.items() <= _shapes(dict(model.named_parameters())).items():
        raise ValueError("its momentum is that of another model")
    for name, parameter in model.named_parameters():
        if momentum and parameter.requires_grad:
            buffer = torch.zeros_like(parameter)  # in the memory format that SGD itself uses
            if name in momentum:  # not those of weights that had no gradient
                buffer.copy_(state["momentum"][name])
            optimiser.state[parameter]["momentum_buffer"] = buffer


def read_state(folder: Path) -> State | None:
    """The training state in a stage's folder; None if there is none."""
    path = folder / FILE
    if not mode(path):
        return None
    try:
        with open_regular(path) as file:
            state: State = torch.load(file, map_location="cpu", weights_only=True)
        check_kind(state, _StateFile)
        for part in ("weights", "momentum", "averaged"):
            odd = [name for name, value in (state[part] or {}).items() if not is_in_memory(value)]
            if odd:
                raise ValueError(f"{part}: tensors without values: {list_names(odd)}")
        return state
    except Exception as error:  # a damaged file makes torch raise anything
        why = f": {error}" if isinstance(error, ValueError) else ""
        raise UserError(
            f"{path}: the training state cannot be read ({type(error).__name__}{why}).",
            "Delete the file to start the stage from the beginning.",
        ) from None


def delete_state(folder: Path) -> None:
    """Delete the state, which is of no use once the stage has finished."""
    if not is_folder(folder / FILE):
        (folder / FILE).unlink(missing_ok=True)


class StateWriter:
    """Writes states in a thread, atomically: a file is complete, or it is not there."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        remove_leftovers(folder.glob(f".{FILE}.*.part"))
        self._thread = ThreadPoolExecutor(1)
        self._last: Future[None] = self._thread.submit(lambda: None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Waits for the last state."""
        with self._thread:
            self._last.result()

    def write(self, state: State) -> None:
        """Waits for the previous write and raises its error, such as a full disk."""
        self._last.result()
        self._last = self._thread.submit(self._save, state)

    def _save(self, state: State) -> None:
        content = BytesIO()
        torch.save(state, content)
        write_bytes(self._path, content.getvalue())


def _changing(model: nn.Module, like: nn.Module) -> dict[str, Tensor]:
    """The tensors that training changes: weights that are not frozen in `like`, and buffers."""
    frozen = {name for name, p in like.named_parameters() if not p.requires_grad}
    return {name: value for name, value in model.state_dict().items() if name not in frozen}


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: (value.shape, value.dtype, value.layout) for name, value in tensors.items()}


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}
