"""Several processes (torchrun) that share every batch: each takes a part of it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mini_fsod.errors import UserError
from mini_fsod.train.heartbeat import heartbeat

Item = TypeVar("Item")

# Rank 0 mines alone while the others wait. If one process dies, torchrun ends them all.
TIMEOUT = timedelta(days=1)
JOIN = 300.0  # seconds until all processes must have found each other
VARIABLES = ("RANK", "MASTER_ADDR", "MASTER_PORT")  # that torchrun sets in every process


@dataclass(frozen=True, slots=True)
class Team:
    """The process group: this process's rank, and the number of processes; (0, 1) if alone."""

    rank: int = 0
    world: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes the files and prints the notes."""
        return self.rank == 0

    def part(self, items: Sequence[Item]) -> Sequence[Item]:
        """This process's part of a sequence. The parts of all, by rank, are the whole sequence, so
        that results that are put together keep their order.
        """
        n = len(items)
        return items[n * self.rank // self.world : n * (self.rank + 1) // self.world]


ALONE = Team()


@contextmanager
def team(device: torch.device) -> Iterator[Team]:
    """Joins the processes that torchrun started, on one or more machines; alone without it.

    `device` is the one that the run was given: see `device_of_process`.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield Team()
        return
    if missing := [name for name in VARIABLES if name not in os.environ]:
        raise UserError(
            f"WORLD_SIZE asks for several processes, but {', '.join(missing)} is not set.",
            "Start with torchrun, or unset WORLD_SIZE.",
        )
    if device.type == "cuda":
        torch.cuda.set_device(device_of_process(device))
    try:
        with _ended_if_late():
            dist.init_process_group(backend_for(device), timeout=TIMEOUT)
        joined = Team(dist.get_rank(), dist.get_world_size())
        try:
            with heartbeat(joined.rank, joined.world):
                yield joined
        finally:
            dist.destroy_process_group()
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise UserError(
            "Another process of this run ended, or cannot be reached.",
            "Its own message says why. The same command goes on from what is saved.",
        ) from None


@contextmanager
def _ended_if_late() -> Iterator[None]:
    """Ends this process where the processes do not find each other: torchrun starts all again.

    PyTorch waits as long as for a collective. It was seen to wait for ever after a restart.
    """

    def end() -> None:
        print(
            f"Error Process {os.environ['RANK']} has not found the others in {JOIN:.0f} seconds. "
            "The run ends; the same command goes on from what is saved.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(UserError.exit_code)

    timer = threading.Timer(JOIN, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def device_of_process(device: torch.device) -> torch.device:
    """The GPU of this process, where torchrun started one process per GPU; more take turns."""
    if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
        rank, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        return torch.device("cuda", rank % gpus if gpus else rank)
    return device


def backend_for(device: torch.device) -> str:
    """What the processes of a run on `device`, as it was given, talk through: NCCL, which refuses
    two processes on one GPU, or gloo.
    """
    if device.type != "cuda":
        return "gloo"
    gpus = torch.cuda.device_count() if device.index is None else 1
    return "gloo" if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > gpus else "nccl"


def may_record(team: Team) -> bool:
    """Whether training steps may be recorded (`Captured`). Not with gloo: its threads copy
    gradients through the host, which must not happen while CUDA records.
    """
    return team.world == 1 or dist.get_backend() != "gloo"


def average_over_processes(tensors: Sequence[Tensor]) -> None:
    """Replaces tensors of one dtype by their mean over the processes, in one all-reduce."""
    flat = torch.cat([t.flatten() for t in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for tensor in tensors:
        tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
        at += tensor.numel()


def largest_over_processes(value: int, device: torch.device) -> int:
    """The largest value of all processes, in every process."""
    tensor = torch.tensor(value, device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return int(tensor.item())


def broadcast_from_leader(value: int, team: Team, device: torch.device) -> int:
    """The value of rank 0, in every process."""
    if team.world == 1:
        return value
    tensor = torch.tensor(value, device=device)
    dist.broadcast(tensor, 0)
    return int(tensor.item())


def gather(value: Item, team: Team) -> list[Item]:
    """The values of all processes by rank, in every process. They are pickled on the way."""
    if team.world == 1:
        return [value]
    found: list[Any] = [None] * team.world
    dist.all_gather_object(found, value)
    return found


def refuse_unequal_parts(batch: int, accumulate: int, team: Team) -> None:
    parts = team.world * accumulate
    if batch % parts:
        raise UserError(
            f"A batch of {batch} images cannot be split into {parts} equal parts "
            f"({team.world} processes, accumulate: {accumulate}).",
            f"Use a batch size that is a multiple of {parts}.",
        )


def refuse_different_starts(step: int, folder: Path, team: Team, device: torch.device) -> None:
    """All processes must resume from the same state, or their batches would not match."""
    if broadcast_from_leader(step, team, device) != step:
        raise UserError(
            f"{folder}: process {team.rank} does not find the training state of the first process.",
            "Use a folder that all machines share.",
        )


def wait_for_all(team: Team) -> None:
    if team.world > 1:
        dist.barrier()
