"""A process that ends or hangs is named in one line by the others."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from helpers import training as small
from helpers.training import train_small
from mini_fsod.errors import UserError
from mini_fsod.train import heartbeat
from mini_fsod.train.distributed import Team


def ends_alone(own: Team, folder: Path, how: signal.Signals) -> None:
    def before(n: int) -> None:
        if own.rank == 1 and n == 5:
            os.kill(os.getpid(), how)

    model, feed = small.Small(), small.feed_of(before)
    train_small(model.losses, model, folder, feed, own)


def member(folder: Path, seconds: float, rank: int, world: int, port: int, *values: Any) -> None:
    """A process of a team, with its error in a file; it hangs after so many seconds."""
    heartbeat.HANGS, heartbeat.EVERY = seconds, seconds / 5
    error = os.open(folder / f"{rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(error, 2)
    try:
        small.member(rank, world, port, ends_alone, folder, *values)
    except UserError as found:
        os.write(2, f"UserError {found.what} {found.fix}".encode())
        os._exit(2)


def start_two(folder: Path, how: signal.Signals, seconds: float = 60.0) -> list[Any]:
    port = small.free_port()
    return [small.start(member, folder, seconds, rank, 2, port, how) for rank in range(2)]


def test_lost_process_is_one_line(tmp_path: Path) -> None:
    first, second = start_two(tmp_path, signal.SIGKILL)
    first.join(60)
    second.join(60)
    assert (first.exitcode, second.exitcode) == (2, -signal.SIGKILL)
    text = (tmp_path / "0.txt").read_text()
    assert "UserError Another process of this training ended" in text
    assert "resumes from the last saved state" in text
    assert "Traceback" not in text


def test_hung_process_is_named_and_ends_the_run(tmp_path: Path) -> None:
    first, second = start_two(tmp_path, signal.SIGSTOP, seconds=2.0)
    first.join(60)
    assert first.exitcode == 2
    second.kill()
    text = (tmp_path / "0.txt").read_text()
    assert "Error Process 1 of 2 (on " in text
    assert "has given no sign of life for 2 seconds" in text
