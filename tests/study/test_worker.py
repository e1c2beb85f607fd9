"""Workers as they are: processes that share a folder, and are killed. Takes about 10 seconds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mini_fsod.errors import UserError
from mini_fsod.files import lock
from mini_fsod.study.worker import work
from study import fake

WORKER = Path(__file__).with_name("fake.py")
UNITS = 2 + 2 * 2 * 3  # a base for each split; splits x seeds x shots
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path):
    """Start workers in tmp_path; what still runs when the test ends is killed."""
    running: list[subprocess.Popen[str]] = []

    def one(seconds: float, *words: str, fail: str = "") -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [sys.executable, str(WORKER), str(tmp_path), str(seconds), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"FAIL": fail},
        )
        running.append(worker)
        return worker

    yield one
    for worker in running:
        worker.kill()
        worker.communicate()


def wait_for(what: Callable[[], Any]) -> Any:
    for _ in range(600):
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError("waited 30 seconds in vain")


def test_four_workers_do_every_unit_once(tmp_path: Path, start: Start) -> None:
    workers = [start(0.1) for _ in range(4)]
    for worker in workers:
        out, err = worker.communicate(timeout=60)
        assert (worker.returncode, out) == (0, ""), err
    started, ended = fake.told(tmp_path, "start"), fake.told(tmp_path, "end")
    assert len(started) == UNITS
    assert sorted(started) == sorted(ended)
    assert set(Counter(name for name, _ in ended).values()) == {1}
    assert len({pid for _, pid in ended}) > 1
    # what is shared came first
    order = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    for unit in fake.planned(tmp_path).units:
        for need in unit.needs:
            ends = [n for n, line in enumerate(order) if line[:2] == ["end", need]]
            begins = [n for n, line in enumerate(order) if line[:2] == ["start", unit.name]]
            assert ends < begins


@pytest.mark.slow
def test_killed_workers_leave_nothing_behind(tmp_path: Path, start: Start) -> None:
    draw = random.Random(0)
    workers = [start(0.15) for _ in range(4)]
    killed: set[int] = set()
    for round_ in range(8):
        wait_for(lambda n=round_: len(fake.told(tmp_path, "start")) > n)
        time.sleep(draw.random() / 4)
        victim = workers.pop(draw.randrange(4))
        victim.kill()
        victim.communicate()
        killed.add(victim.pid)
        workers.append(start(0.15))
    for worker in workers:
        out, err = worker.communicate(timeout=60)
        assert (worker.returncode, out) == (0, ""), err
    assert fake.told(tmp_path, "again") == []
    names = {unit.name for unit in fake.planned(tmp_path, fake.study(shots=(1, 2, 5))).units}
    starts: dict[str, list[int]] = {}
    for name, pid in fake.told(tmp_path, "start"):
        starts.setdefault(name, []).append(pid)
    assert names < set(starts)
    assert len(starts) == UNITS
    for name, pids in starts.items():  # begun a second time only after a death
        assert set(pids[:-1]) <= killed, name
        folder = "shared" if name.startswith("base-") else "cells"
        assert (tmp_path / folder / name / "results.json").exists()
    assert killed & {pid for pids in starts.values() for pid in pids[:-1]}  # else nothing is shown


def test_children_of_a_killed_worker_hold_no_lock(tmp_path: Path, start: Start) -> None:
    first = start(60, "fork")
    name, child = wait_for(lambda: fake.told(tmp_path, "child"))[0]
    first.kill()
    try:
        second = start(0)
        wait_for(lambda: (name, second.pid) in fake.told(tmp_path, "end"))
        os.kill(child, 0)  # still there
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_failure_is_told_and_the_rest_goes_on(tmp_path: Path, start: Start) -> None:
    bad = "tfa-split1-2shot-seed0"
    workers = [start(0.05, fail=bad) for _ in range(2)]
    for worker in workers:
        out, err = worker.communicate(timeout=60)
        assert out == f"{bad}: the disk is full. Buy another.\n", err
    assert (tmp_path / "failed" / f"{bad}.txt").read_text() == "the disk is full. Buy another.\n"
    assert len(fake.told(tmp_path, "end")) == UNITS - 1
    assert Counter(name for name, _ in fake.told(tmp_path, "start"))[bad] == 1
    # who begins later tries it again, and nothing else
    out, _ = start(0).communicate(timeout=60)
    assert out == ""
    assert fake.told(tmp_path, "end")[-1][0] == bad
    assert len(fake.told(tmp_path, "start")) == UNITS + 1
    assert not (tmp_path / "failed" / f"{bad}.txt").exists()


def test_what_needs_a_failed_unit_is_not_begun(tmp_path: Path) -> None:
    todo = fake.planned(tmp_path, fake.study(splits=(1, 2)))
    base, one, five, other, *rest = (unit.name for unit in todo.units)
    begun: list[str] = []

    def run(config: Any, out: Path, last: str) -> None:
        begun.append(out.name)
        if out.name == base:
            raise MemoryError("no room")  # not foreseen: recorded like any other
        fake.finish(out, {last: {}})

    failed = work(todo, tmp_path, run, finished=lambda: None)
    needs = f"needs {base}"
    assert failed == {base: "MemoryError: no room", one: needs, five: needs}
    assert begun == [base, other, *rest]
    assert "Traceback" in (tmp_path / "failed" / f"{base}.txt").read_text()


def test_a_run_without_its_result_has_failed(tmp_path: Path) -> None:
    todo = fake.planned(tmp_path, fake.study(shots=(1,)))
    failed = work(todo, tmp_path, lambda config, out, last: None, finished=lambda: None)
    assert list(failed) == [unit.name for unit in todo.units]
    assert failed[todo.units[0].name] == 'the run ended without a result of stage "base".'


def test_another_worker_is_waited_for(
    tmp_path: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    todo = fake.planned(tmp_path, fake.study(shots=(1, 2, 5), seeds=(0, 1), splits=(1,)))
    start(1)
    wait_for(lambda: fake.told(tmp_path, "start"))
    begun: list[str] = []

    def run(config: Any, out: Path, last: str) -> None:
        begun.append(out.name)
        fake.finish(out, {last: {}})

    assert work(todo, tmp_path, run, finished=lambda: None, pause=0.05) == {}
    assert todo.units[0].name not in begun  # the other had it
    assert len(begun) >= 4
    assert capsys.readouterr().err.count("waiting for other processes: 7 units left") == 1


def test_what_was_ended_between_the_look_and_the_lock_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = fake.planned(tmp_path)
    folders = {unit.name: tmp_path / unit.folder for unit in todo.units}
    last = {unit.name: unit.last for unit in todo.units}

    @contextmanager
    def late(path: Path) -> Iterator[bool]:
        fake.finish(folders[path.stem], {last[path.stem]: {}})  # by another process
        yield True

    monkeypatch.setattr("mini_fsod.study.worker.lock", late)
    begun: list[Path] = []
    assert work(todo, tmp_path, lambda _, out, __: begun.append(out), lambda: None) == {}
    assert begun == []


def test_a_place_that_cannot_be_locked(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"), lock(tmp_path / "locks" / "a.lock"):
        pass
