"""SIGTERM or Ctrl-C during a training saves its state, and it resumes with equal bits."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from helpers import training as small
from helpers.training import ITERATIONS, assert_same, run, train_small
from mini_fsod.train import state as states
from mini_fsod.train.distributed import Team
from mini_fsod.train.terminate import TERMINATED, Terminated, stop_request


def terminate_at(iteration: int, number: signal.Signals = signal.SIGTERM) -> small.Hook:
    return lambda n: os.kill(os.getpid(), number) if n == iteration else None


@pytest.mark.parametrize(
    ("number", "error", "name"),
    [(signal.SIGTERM, Terminated, "SIGTERM"), (signal.SIGINT, KeyboardInterrupt, "Ctrl-C")],
)
@pytest.mark.parametrize("iteration", [0, 6, 21])
def test_signal_saves_the_state_of_the_iteration_and_resumes(
    tmp_path: Path,
    iteration: int,
    number: signal.Signals,
    error: type[BaseException],
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(tmp_path / "whole")
    with pytest.raises(error) as ended:
        run(tmp_path / "often", terminate_at(iteration, number), save_seconds=1000)
    assert getattr(ended.value, "code", TERMINATED) == TERMINATED == 143
    said = capsys.readouterr().err
    assert f"{name}; the training state of iteration {iteration + 1:,} is saved" in said
    assert "The same command resumes." in said
    state = states.read_state(tmp_path / "often")
    assert state is not None
    assert state["step"] == iteration + 1
    run(tmp_path / "often")
    assert_same(tmp_path / "often", tmp_path / "whole")


def terminate_one(own: Team, folder: Path) -> None:
    before = terminate_at(6) if own.rank == 1 else small.nothing
    model, feed = small.Small(), small.feed_of(before)
    train_small(model.losses, model, folder, feed, own, save_seconds=1000)


def test_sigterm_to_one_process_ends_all_at_the_same_iteration(tmp_path: Path) -> None:
    assert small.in_team(2, terminate_one, tmp_path) == [TERMINATED, TERMINATED]
    state = states.read_state(tmp_path)
    assert state is not None
    assert state["step"] == 7


def hang_at_7(folder: Path) -> None:
    def before(n: int) -> None:
        if n == 7:
            (folder / "7").touch()
            time.sleep(60)

    run(folder, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    process = small.start(hang_at_7, tmp_path)
    assert process.pid is not None
    while not (tmp_path / "7").exists():
        time.sleep(0.01)
    for _ in range(100):  # the first is received by now, or soon
        os.kill(process.pid, number)
        process.join(0.1)
        if process.exitcode is not None:
            break
    assert process.exitcode == -number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_request_restores_the_handlers(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    with stop_request() as request:
        assert not request.received
        os.kill(os.getpid(), number)
        assert request.received == number
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


def test_finished_training_does_not_end_the_run(tmp_path: Path) -> None:
    """SIGTERM in the last iteration: the state is saved, and the run ends too."""
    with pytest.raises(Terminated):
        run(tmp_path, terminate_at(ITERATIONS - 1))
    state = states.read_state(tmp_path)
    assert state is not None
    assert state["step"] == ITERATIONS
