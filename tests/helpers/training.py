"""A small model for the real training loop, and processes that train it and can be killed.

`Small` has everything a training state holds: trained weights, momentum, buffers, a frozen layer.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mini_fsod import device
from mini_fsod.config.schema import TimedTraining
from mini_fsod.train import state as states
from mini_fsod.train.distributed import Team, team
from mini_fsod.train.loop import Feed, Trained, train
from mini_fsod.train.step import Inputs, Losses

CPU = torch.device("cpu")
BATCH = 4
ITERATIONS = 23  # no multiple of the log interval

Hook = Callable[[int], None]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.norm = nn.BatchNorm1d(8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.last = nn.Linear(8, 2)
        rng = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in self.parameters():
                weight.copy_(0.3 * torch.randn(weight.shape, generator=rng))

    def losses(self, inputs: Inputs) -> dict[str, Tensor]:
        """Both losses are means over the images of a part."""
        x, y = inputs
        found = self.last(self.frozen(self.norm(self.first(x)).relu()))
        return {
            "loss_left": (found - y)[:, 0].square().mean(),
            "loss_right": found[:, 1].abs().mean(),
        }


def nothing(n: int) -> None:
    pass


def images_of(n: int) -> list[str]:
    return [f"{n}-{i}.jpg" for i in range(BATCH)]


def feed_of(before: Hook = nothing, ruined: Sequence[int] = (), accumulate: int = 1) -> Feed:
    """Random batches, each a function of its iteration; `before` is called with the iteration."""

    def batches(start: int) -> Generator[Sequence[Inputs]]:
        for n in count(start):
            before(n)
            rng = torch.Generator().manual_seed(n)
            x = torch.randn(BATCH, 3, generator=rng)
            y = torch.randn(BATCH, 2, generator=rng)
            if n in ruined:
                y[0, 0] = torch.nan
            yield list(zip(x.chunk(accumulate), y.chunk(accumulate), strict=True))

    return Feed(batches, images_of, "small")


def section_of(**changes: Any) -> TimedTraining:
    usual: dict[str, Any] = {
        "iterations": ITERATIONS,
        "batch": BATCH,
        "rate": 0.05,
        "warm_up": 4,
        "save_seconds": 0,
    }
    return TimedTraining(**usual | changes)


def train_small(
    losses: Losses,
    model: nn.Module,
    folder: Path,
    feed: Feed | None = None,
    team: Team | None = None,
    watch: Any = None,
    bf16: bool = False,
    ema: float | None = 0.9,
    ema_warm_up: float | None = 0.1,
    began: float | None = None,
    reserve: float = 0.0,
    **changes: Any,
) -> tuple[nn.Module, Trained]:
    """The real loop over batches of `feed_of`."""
    section = section_of(**changes)
    return train(
        model,
        losses,
        feed or feed_of(accumulate=section.accumulate),
        section,
        bf16,
        folder,
        "small",
        CPU,
        team,
        watch=watch,
        ema=ema,
        ema_warm_up=ema_warm_up,
        began=began,
        reserve=reserve,
    )


def run(
    folder: Path, before: Hook = nothing, ruined: Sequence[int] = (), **changes: Any
) -> tuple[nn.Module, Trained]:
    model, feed = Small(), feed_of(before, ruined, changes.get("accumulate", 1))
    return train_small(model.losses, model, folder, feed, **changes)


class StopError(Exception):
    pass


def stop_at(iteration: int) -> Hook:
    def hook(n: int) -> None:
        if n == iteration:
            raise StopError

    return hook


def stopped(folder: Path, iteration: int, **changes: Any) -> None:
    """Train until just before an iteration."""
    with suppress(StopError):
        run(folder, stop_at(iteration), **changes)


def assert_same(a: Path, b: Path) -> None:
    """The last states of two runs: bitwise the same weights, momentum and averages."""
    one, other = states.read_state(a), states.read_state(b)
    assert one is not None
    assert other is not None
    assert one["step"] == one["total"] == other["step"] == other["total"]
    assert one.keys() == other.keys()
    for key in ("weights", "momentum", "averaged"):
        if one[key] is None:
            assert other[key] is None
            continue
        assert one[key].keys() == other[key].keys()
        for name, value in one[key].items():
            assert torch.equal(value, other[key][name]), (key, name)


# Processes. A server that has imported torch once forks them, which takes no time.

PROCESSES = multiprocessing.get_context("forkserver")


@cache
def _server() -> None:
    """There is only one in a process, and decoding may have started it with little imported."""
    forkserver._forkserver._stop()
    PROCESSES.set_forkserver_preload(["mini_fsod.runs.data", "torch.utils.tensorboard.writer"])


def start(function: Callable[..., None], *values: Any) -> multiprocessing.process.BaseProcess:
    _server()
    process = PROCESSES.Process(target=function, args=values, daemon=True)
    process.start()
    return process


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port: int = free.getsockname()[1]
    return port


def in_team(world: int, function: Callable[..., None], *values: Any) -> list[int | None]:
    """Exit codes of processes that call `function(team, *values)` as under torchrun."""
    port = free_port()
    processes = [start(member, rank, world, port, function, *values) for rank in range(world)]
    for process in processes:
        process.join(60)
        process.kill()
        process.join()
    return [process.exitcode for process in processes]


def member(rank: int, world: int, port: int, function: Callable[..., None], *values: Any) -> None:
    os.environ |= {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
    }
    torch.set_num_threads(1)
    device.BF16_UNITS = ()  # float32, as in the tests' own process (conftest.py)
    with team(CPU) as own:
        assert own == Team(rank, world)
        function(own, *values)
