"""A process that ends or hangs is named in one line by the others, whatever they were doing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from helpers import lost, shapes
from helpers.mining_run import mining_run

WORK = [lost.training, lost.scan, lost.scoring_of_a_detector]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the two processes, with a few-shot detector and decoded pictures."""
    data = shapes.write_data(tmp_path / "data")
    run = mining_run(data, tmp_path / "alone")
    run.data.batches(run.data.mined)
    return tmp_path


@pytest.mark.parametrize("work", WORK)
def test_lost_process_is_one_line(work: lost.Work, folder: Path) -> None:
    first, second = lost.start_two(work, folder, signal.SIGKILL)
    first.join(60)
    second.join(60)
    assert (first.exitcode, second.exitcode) == (2, -signal.SIGKILL)
    text = (folder / "0.txt").read_text()
    assert "UserError Another process of this run ended" in text
    assert "The same command goes on" in text
    assert "Traceback" not in text


def test_process_without_the_others_ends(tmp_path: Path) -> None:
    alone = lost.start_alone(tmp_path, seconds=3.0)
    alone.join(60)
    assert alone.exitcode == 2
    text = (tmp_path / "0.txt").read_text()
    assert "Error Process 0 has not found the others in 3 seconds." in text


@pytest.mark.parametrize("work", WORK)
def test_hung_process_is_named_and_ends_the_run(work: lost.Work, folder: Path) -> None:
    first, second = lost.start_two(work, folder, signal.SIGSTOP, seconds=5.0)
    first.join(60)
    assert first.exitcode == 2
    second.kill()
    text = (folder / "0.txt").read_text()
    assert "Error Process 1 of 2 (on " in text
    assert "has given no sign of life for 5 seconds" in text


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_lost_machine_of_the_first_process_ends_the_others(
    tmp_path: Path, how: signal.Signals
) -> None:
    """The store in which signs of life are given is on that machine."""
    member, host = lost.start_with_store(tmp_path, how, seconds=3.0)
    member.join(30)
    host.kill()
    assert member.exitcode == 2
    text = (tmp_path / "1.txt").read_text()
    assert "Error Process 0 of 2 (on 127.0.0.1) has given no sign of life for 3 seconds." in text
