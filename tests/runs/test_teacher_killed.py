"""The stage `online` with a teacher, killed and started again: it goes on by bits."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from mini_fsod.runs import stages
from runs import small
from runs.taught import config, lines, settings, weights
from helpers.training import start

ADAPTING = {"online__adapt_delta": "true"}  # what is seen changes how the run goes on
Moment = tuple[str, int, bool]  # a file, the how-manieth time it is written, before or after


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_data(tmp_path_factory.mktemp("small") / "data")


@pytest.fixture(scope="module")
def mined(data: Path) -> Path:
    """A run up to the pool. Not to be changed: see `copied`."""
    out = data.parent / "mined"
    stages.run(config(data), out, last="mine")
    return out


@pytest.fixture
def copied(mined: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(mined, tmp_path / "copied"))


def until(data: Path, out: Path, moment: Moment | None) -> None:
    """A process that kills itself at a moment, or ends."""
    torch.set_num_threads(1)
    count, rename = 0, Path.replace

    def renaming(self: Path, target: Path) -> Path:
        nonlocal count
        assert moment is not None
        file, number, before = moment
        count += str(target).endswith(f"online/{file}")
        if count == number and before:
            os.kill(os.getpid(), signal.SIGKILL)
        done = rename(self, target)
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    if moment is not None:
        Path.replace = renaming  # type: ignore[method-assign]
    stages.run(config(data, **ADAPTING), out, last="online")


def ended(process: Any) -> int | None:
    process.join(120)
    process.kill()
    process.join()
    code: int | None = process.exitcode
    return code


@pytest.fixture(scope="module")
def unbroken(data: Path, mined: Path) -> Path:
    """Of a process like those that are killed: the number of threads may change the last bit."""
    out = Path(shutil.copytree(mined, data.parent / "unbroken"))
    assert ended(start(until, data, out, None)) == 0
    return out


def started_again(data: Path, out: Path, unbroken: Path, *moments: Moment) -> None:
    for moment in moments:
        assert ended(start(until, data, out, moment)) == -signal.SIGKILL
    assert ended(start(until, data, out, None)) == 0
    assert weights(out) == weights(unbroken)
    for one, other in zip(lines(out), lines(unbroken), strict=True):
        for name in {*one} - {"seconds", "images_per_second"}:
            assert one[name] == other[name], name
    assert len({line[f"delta_{small.NOVEL}"] for line in lines(out)}) == len(lines(out))
    assert not (out / "online" / "progress.pt").exists()


@pytest.mark.slow
def test_killed_with_student_and_teacher_apart(data: Path, copied: Path, unbroken: Path) -> None:
    started_again(data, copied, unbroken, ("progress.pt", 1, False))


@pytest.mark.slow
@pytest.mark.parametrize(
    "moments",
    [
        [("progress.pt", 1, True), ("progress.pt", 2, True)],
        [("progress.pt", 2, False), ("progress.pt", 1, True)],
        [("checkpoint.safetensors", 1, True), ("metrics.json", 1, True)],
        [("checkpoint.safetensors", 1, False)],
    ],
    ids=["first", "second", "figures", "checkpoint"],
)
def test_killed_at_any_moment(
    data: Path, copied: Path, unbroken: Path, moments: list[Moment]
) -> None:
    started_again(data, copied, unbroken, *moments)


@pytest.mark.slow
def test_killed_from_outside_again_and_again(data: Path, mined: Path, tmp_path: Path) -> None:
    """With shots, iterations in two parts and pictures decoded on the way."""
    more = {
        **ADAPTING,
        "online__iterations": 60,
        "online__accumulate": 2,
        "online__shots": "true",
        "data__feed": "stream",
    }
    places = [Path(shutil.copytree(mined, tmp_path / name)) for name in ("whole", "often")]
    whole, often = (
        small.words(data, out, "--to", "online", **settings(data, **more)) for out in places
    )
    done = small.process(whole)
    assert done.returncode == 0, done.stderr
    moments, state = Random(0), places[1] / "online" / "progress.pt"
    for _ in range(3):
        small.kill_soon(often, state, moments.uniform(0, 0.2))
    assert small.process(often).returncode == 0
    assert weights(places[0]) == weights(places[1])
