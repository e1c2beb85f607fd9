"""A stopped or killed training resumes and ends with equal bits."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import training as small
from helpers.training import ITERATIONS, assert_same, run, stopped, train_small
from mini_fsod.errors import UserError
from mini_fsod.train import log, loop
from mini_fsod.train import state as states


@pytest.mark.parametrize("ema", [None, 0.9])
@pytest.mark.parametrize("clip", [None, pytest.param(0.1, marks=pytest.mark.slow)])
def test_resumed_run_ends_bit_equal(tmp_path: Path, ema: float | None, clip: float | None) -> None:
    """States are written after 5, 10, 15, 20 and 23 iterations."""
    whole, _ = run(tmp_path / "whole", ema=ema, clip=clip)
    for iteration in (3, 5, 8, 13, 20, 22):
        folder = tmp_path / str(iteration)
        stopped(folder, iteration, ema=ema, clip=clip)
        state = states.read_state(folder)
        assert (0 if state is None else state["step"]) == iteration // 5 * 5
        learned, trained = run(folder, ema=ema, clip=clip)
        assert trained.iterations == ITERATIONS
        assert_same(folder, tmp_path / "whole")
        for a, b in zip(learned.state_dict().values(), whole.state_dict().values(), strict=True):
            assert torch.equal(a, b)


def test_run_resumed_many_times_ends_bit_equal(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    for iteration in (1, 6, 7, 11, 12, 18, 22):
        stopped(tmp_path / "often", iteration)
    run(tmp_path / "often")
    assert_same(tmp_path / "often", tmp_path / "whole")
    lines = log.read_log(tmp_path / "often" / log.FILE)
    assert [line["step"] for line in lines] == [5, 10, 15, 20, 23]


def test_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    whole, first = run(tmp_path)
    again, second = run(tmp_path, small.stop_at(ITERATIONS))
    torch.testing.assert_close(again.state_dict(), whole.state_dict(), rtol=0, atol=0)
    assert second == first


def test_save_seconds_does_not_change_the_result(tmp_path: Path) -> None:
    run(tmp_path / "often", save_seconds=0)
    run(tmp_path / "once", save_seconds=1000)
    stopped(tmp_path / "never", 20, save_seconds=1000)
    assert_same(tmp_path / "often", tmp_path / "once")
    assert states.read_state(tmp_path / "never") is None


def test_resume_refuses_another_feed(tmp_path: Path) -> None:
    stopped(tmp_path, 7)
    model, feed = small.Small(), small.feed_of()
    other = loop.Feed(feed.batches, feed.images, "other")
    with pytest.raises(UserError, match="cannot resume: its data, seed"):
        train_small(model.losses, model, tmp_path, other)


@pytest.mark.parametrize("ema", [0.9, None])
def test_resume_refuses_another_model(tmp_path: Path, ema: float | None) -> None:
    stopped(tmp_path, 7, ema=None)
    model = small.Small()
    if ema is None:
        model.last.requires_grad_(False)
    with pytest.raises(UserError, match="its weights are those of another model"):
        train_small(model.losses, model, tmp_path, ema=ema)


# kill -9


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_before(folder: Path, iteration: int) -> None:
    run(folder, lambda n: kill() if n == iteration else None)


def die_writing(folder: Path, number: int, share: float) -> None:
    """Killed when so much of the state of that number was written; 1: just after its renaming."""
    writes = []

    def write(path: Path, content: bytes) -> None:
        writes.append(path)
        if len(writes) == number and share < 1:
            part = path.with_name(f".{path.name}.0123abcd.part")
            part.write_bytes(content[: int(share * len(content))])
            kill()
        write_bytes(path, content)
        if len(writes) == number:
            kill()

    write_bytes, states.write_bytes = states.write_bytes, write
    run(folder)


def run_slowly(folder: Path) -> None:
    run(folder, lambda n: time.sleep(0.01))


def wait_for(process: Any, seconds: float = 60) -> int | None:
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
    code: int | None = process.exitcode
    return code


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, by a process of its own."""
    folder = tmp_path_factory.mktemp("unbroken")
    assert wait_for(small.start(run_slowly, folder)) == 0
    return folder


@pytest.mark.parametrize("iteration", [0, 4, 5, 14, 22])
def test_resume_after_a_kill_before_an_iteration(
    tmp_path: Path, unbroken: Path, iteration: int
) -> None:
    assert wait_for(small.start(die_before, tmp_path, iteration)) == -signal.SIGKILL
    run(tmp_path)
    assert_same(tmp_path, unbroken)
    assert [line["step"] for line in log.read_log(tmp_path / log.FILE)] == [5, 10, 15, 20, 23]


@pytest.mark.parametrize(
    ("number", "share"), [(1, 0.5), (1, 1), (3, 0), (3, 0.9), (5, 0.5), (5, 1)]
)
def test_resume_after_a_kill_during_a_save(
    tmp_path: Path, unbroken: Path, number: int, share: float
) -> None:
    assert wait_for(small.start(die_writing, tmp_path, number, share)) == -signal.SIGKILL
    assert len(list(tmp_path.glob("*.part"))) == (share < 1)
    run(tmp_path)
    assert_same(tmp_path, unbroken)
    assert not list(tmp_path.glob("*.part"))
    assert [line["step"] for line in log.read_log(tmp_path / log.FILE)] == [5, 10, 15, 20, 23]


@pytest.mark.slow
def test_resume_after_many_kills(tmp_path: Path, unbroken: Path) -> None:
    """At random moments, until one start runs to its end."""
    draw = random.Random(0)
    kills = 0
    for longest in range(1, 60):
        process = small.start(run_slowly, tmp_path)
        process.join(draw.uniform(0, 0.05 * longest))
        if not process.is_alive():
            break
        process.kill()
        process.join()
        kills += 1
    assert process.exitcode == 0
    assert kills > 1
    assert_same(tmp_path, unbroken)
    assert [line["step"] for line in log.read_log(tmp_path / log.FILE)] == [5, 10, 15, 20, 23]
