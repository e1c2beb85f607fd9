"""Two processes that work together, of which the second one is killed or stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from time import sleep
from types import ModuleType
from typing import Any

import torch.distributed as dist

from helpers import training as small
from helpers.mining_run import mining_run
from mini_fsod.errors import UserError
from mini_fsod.loader.resident import Batch
from mini_fsod.loader.schedule import Plan
from mini_fsod.mining import scan as mining
from mini_fsod.runs import scoring
from mini_fsod.runs.data import Batches
from mini_fsod.runs.detectors import load_detector
from mini_fsod.train import distributed, heartbeat
from mini_fsod.train.distributed import Team

Work = Callable[[Team, Path, signal.Signals], None]


def training(own: Team, folder: Path, how: signal.Signals) -> None:
    def before(n: int) -> None:
        if own.rank == 1 and n == 5:
            os.kill(os.getpid(), how)

    model, feed = small.Small(), small.feed_of(before)
    small.train_small(model.losses, model, folder, feed, own)


def scan(own: Team, folder: Path, how: signal.Signals) -> None:
    _lose_after_a_batch(mining, own, how)
    run = mining_run(folder / "data", folder / "out", team=own)
    mining.scan(run, run.folder("scan"))


def scoring_of_a_detector(own: Team, folder: Path, how: signal.Signals) -> None:
    _lose_after_a_batch(scoring, own, how)
    run = mining_run(folder / "data", folder / "out", team=own)
    saved = load_detector(run, "transfer")
    scoring.score_test_set(run.config, run.data, saved.detector, saved.labels, False, None, own)


def _lose_after_a_batch(module: ModuleType, own: Team, how: signal.Signals) -> None:
    counted = module.counted

    def lost(batches: Batches, report: Callable[..., None]) -> Batches:
        def source(plans: Iterable[Plan]) -> Iterator[Batch]:
            for batch in counted(batches, report)(plans):
                if own.rank == 1:
                    os.kill(os.getpid(), how)
                yield batch

        return source

    module.counted = lost  # type: ignore[attr-defined]


def start_two(work: Work, folder: Path, how: signal.Signals, seconds: float = 60.0) -> list[Any]:
    """The processes; what the first one prints as an error is in 0.txt. Silent for so many seconds,
    a process counts as hung.
    """
    port = small.free_port()
    return [small.start(_member, work, folder, seconds, rank, port, how) for rank in range(2)]


def start_alone(folder: Path, seconds: float) -> Any:
    """The first of two processes, whose partner never comes."""
    return small.start(_alone, folder, seconds, small.free_port())


def start_with_store(folder: Path, how: signal.Signals, seconds: float) -> tuple[Any, Any]:
    """A process that only waits, and the one that holds the store, which gets the signal."""
    port, (answer, ready) = small.free_port(), Pipe(duplex=False)
    host = small.start(_hold_store, port, ready)
    assert answer.recv()
    member = small.start(_wait_in_heartbeat, folder, seconds, port, ready)
    assert answer.recv()
    os.kill(host.pid, how)
    return member, host


def _hold_store(port: int, ready: Connection) -> None:
    store = dist.TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)
    ready.send(True)
    for n in count():  # the sign of life of process 0
        store.set("mini/beat/0", f"{n} here")
        sleep(0.1)


def _wait_in_heartbeat(folder: Path, seconds: float, port: int, ready: Connection) -> None:
    heartbeat.HANGS, heartbeat.EVERY = seconds, seconds / 5
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.dup2(os.open(folder / "1.txt", os.O_WRONLY | os.O_CREAT), 2)
    with heartbeat.heartbeat(1, 2):
        ready.send(True)
        sleep(60)


def _alone(folder: Path, seconds: float, port: int) -> None:
    distributed.JOIN = seconds
    _member(training, folder, 60.0, 0, port, signal.SIGTERM)


def _member(
    work: Work, folder: Path, seconds: float, rank: int, port: int, how: signal.Signals
) -> None:
    heartbeat.HANGS, heartbeat.EVERY = seconds, seconds / 5
    error = os.open(folder / f"{rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(error, 2)
    try:
        small.member(rank, 2, port, work, folder, how)
    except UserError as found:
        os.write(2, f"UserError {found.what} {found.fix}".encode())
        os._exit(2)
