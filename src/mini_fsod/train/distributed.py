"""Several processes that share every batch (torchrun): each has a part, gradients are averaged."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from mini_fsod.errors import UserError

# The leader tests alone while the others wait; torchrun ends them all where one of them died.
PATIENCE = timedelta(days=1)
TOLD = ("RANK", "MASTER_ADDR", "MASTER_PORT")  # by torchrun, to every process


@dataclass(frozen=True, slots=True)
class Team:
    """This process's place among those that train together; (0, 1) where it is alone."""

    rank: int = 0
    world: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes the files and speaks to the user."""
        return self.rank == 0


@contextmanager
def team(device: torch.device) -> Iterator[Team]:
    """The processes that torchrun started, on one or many machines; alone without it."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield Team()
        return
    if missing := [name for name in TOLD if name not in os.environ]:
        raise UserError(
            f"WORLD_SIZE speaks of several processes, but {', '.join(missing)} is not set.",
            "Start with torchrun, or unset WORLD_SIZE.",
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield Team(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def own_device(device: torch.device) -> torch.device:
    """The GPU of this process, where torchrun started one for each."""
    if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return device


def mean_of_all(tensors: Sequence[Tensor]) -> None:
    """Tensors of one kind replaced by their mean over the processes, in one message."""
    flat = torch.cat([t.flatten() for t in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for tensor in tensors:
        tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
        at += tensor.numel()


def told_by_leader(value: int, team: Team, device: torch.device) -> int:
    """The first process's value, in every process."""
    if team.world == 1:
        return value
    told = torch.tensor(value, device=device)
    dist.broadcast(told, 0)
    return int(told.item())


def refuse_unequal_parts(batch: int, accumulate: int, team: Team) -> None:
    parts = team.world * accumulate
    if batch % parts:
        raise UserError(
            f"A batch of {batch} images cannot be cut into {parts} equal parts "
            f"({team.world} processes, an accumulation of {accumulate}).",
            f"Take a batch size that is a multiple of {parts}.",
        )


def refuse_different_starts(step: int, folder: Path, team: Team, device: torch.device) -> None:
    """All processes must have found the same state, or their batches would not belong together."""
    if told_by_leader(step, team, device) != step:
        raise UserError(
            f"{folder}: process {team.rank} does not find the state there that the first one does.",
            "Give a folder that all machines share.",
        )


def wait_for_all(team: Team) -> None:
    if team.world > 1:
        dist.barrier()
