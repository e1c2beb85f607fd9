"""Real worker processes that share a folder and are killed."""

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

from helpers import fake_study
from mini_fsod.errors import UserError
from mini_fsod.files import write_json
from mini_fsod.runs.store import Busy
from mini_fsod.study.plan import plan_study
from mini_fsod.study.worker import is_cell_finished, run_cells

CELLS = plan_study(fake_study.workers_study()).cells
STAGES = {f"{stage}-{key}" for cell in CELLS for stage, key in cell.keys.items()}
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start workers in tmp_path; those that still run when the test ends are killed."""
    running: list[subprocess.Popen[str]] = []

    def one(seconds: float, *words: str, fail: str = "", workers: int = 1) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [sys.executable, fake_study.__file__, str(tmp_path), str(seconds), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"FAIL": fail, "WORKERS": str(workers)},
        )
        running.append(worker)
        return worker

    yield one
    for worker in running:
        worker.kill()
        worker.communicate()


@pytest.fixture
def work_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Work in tmp_path, in this process; what the worker prints."""

    def work() -> str:
        fake_study.main(tmp_path, 0, fork=False)
        return capsys.readouterr().out

    return work


def wait_for(what: Callable[[], Any]) -> Any:
    for _ in range(600):
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError("nothing happened in 30 seconds")


def write_result(out: Path, last: str) -> None:
    write_json(out / "results.json", {"stages": {last: {}}})


def test_run_cells_computes_each_stage_once_in_three_processes(
    tmp_path: Path, start: Start
) -> None:
    workers = [start(0.05, workers=3) for _ in range(3)]
    for worker in workers:
        out, err = worker.communicate(timeout=60)
        assert (worker.returncode, out) == (0, ""), err
    ended = fake_study.logged(tmp_path, "end")
    assert sorted(name for name, _ in ended) == sorted(cell.name for cell in CELLS)
    stages = [name for name, _ in fake_study.logged(tmp_path, "stage")]
    assert (len(stages), set(stages)) == (len(STAGES), STAGES)
    assert len({pid for _, pid in ended}) > 1
    assert fake_study.logged(tmp_path, "repeat") == []


@pytest.mark.slow
def test_run_cells_loses_only_the_cell_of_a_killed_process(tmp_path: Path, start: Start) -> None:
    draw = random.Random(0)
    workers = [start(0.15) for _ in range(4)]
    killed: set[int] = set()
    for n in range(4):
        wait_for(lambda n=n: len(fake_study.logged(tmp_path, "start")) > n)
        time.sleep(draw.random() / 4)
        latest = fake_study.logged(tmp_path, "start")[-1][1]
        victim = next((w for w in workers if w.pid == latest), workers[draw.randrange(4)])
        workers.remove(victim)
        victim.kill()
        victim.communicate()
        killed.add(victim.pid)
        workers.append(start(0.15))
    for worker in workers:
        out, err = worker.communicate(timeout=60)
        assert (worker.returncode, out) == (0, ""), err
    assert all(is_cell_finished(tmp_path, cell) for cell in CELLS)
    computed = Counter(name for name, _ in fake_study.logged(tmp_path, "stage"))
    assert set(computed) == STAGES
    # a kill between the end of a run and its record costs a second look at most
    repeated = fake_study.logged(tmp_path, "repeat")
    assert len(repeated) <= len(killed)
    ends = Counter(name for name, _ in fake_study.logged(tmp_path, "end"))
    assert all(ends[cell.name] <= 1 + len(repeated) for cell in CELLS)
    died = {name for name, pid in fake_study.logged(tmp_path, "start") if pid in killed}
    assert died  # else this test shows nothing


def test_run_cells_is_not_blocked_by_children_of_a_killed_process(
    tmp_path: Path, start: Start
) -> None:
    first = start(60, "fork")
    name, child = wait_for(lambda: fake_study.logged(tmp_path, "child"))[0]
    first.kill()
    try:
        second = start(0)
        wait_for(lambda: (name, second.pid) in fake_study.logged(tmp_path, "end"))
        os.kill(child, 0)  # still running
    finally:
        os.kill(child, signal.SIGKILL)


def test_run_cells_records_a_failure_and_goes_on(
    tmp_path: Path, start: Start, work_here: Callable[[], str]
) -> None:
    bad = CELLS[-1].name
    workers = [start(0.02, fail=bad, workers=2) for _ in range(2)]
    for worker in workers:
        out, err = worker.communicate(timeout=60)
        assert out == f"{bad}: the disk is full. Free some space.\n", err
    record = tmp_path / "failed" / f"{bad}.txt"
    assert record.read_text() == "the disk is full. Free some space.\n"
    assert len(fake_study.logged(tmp_path, "end")) == len(CELLS) - 1
    assert Counter(name for name, _ in fake_study.logged(tmp_path, "start"))[bad] == 1
    # a later process tries it again, and nothing else
    assert work_here() == ""
    assert [name for name, _ in fake_study.logged(tmp_path, "end")][-1] == bad
    assert fake_study.logged(tmp_path, "repeat") == []
    assert not record.exists()


def test_run_cells_tries_a_failed_stage_once_for_all_cells_that_need_it(
    tmp_path: Path, work_here: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "base")
    assert work_here() == "".join(
        f"{cell.name}: the loss is not finite. Lower the rate.\n" for cell in CELLS
    )
    started = [name for name, _ in fake_study.logged(tmp_path, "start")]
    assert started == ["tfa-split1-1shot-seed0", "tfa-split2-1shot-seed0"]
    monkeypatch.delenv("FAIL")
    assert work_here() == ""
    assert all(is_cell_finished(tmp_path, cell) for cell in CELLS)


def test_run_cells_records_unexpected_errors_with_traceback(tmp_path: Path) -> None:
    plan = plan_study(fake_study.example_study())
    first, second = (cell.name for cell in plan.cells)

    def run(config: Any, out: Path, last: str) -> None:
        if out.name == first:
            raise MemoryError("no memory left")
        write_result(out, last)

    failed = run_cells(plan, tmp_path, run, lambda: None)
    assert failed == {first: "MemoryError: no memory left"}
    assert "Traceback" in (tmp_path / "failed" / f"{first}.txt").read_text()
    assert (tmp_path / "cells" / second / "results.json").exists()


def test_run_cells_counts_a_run_without_a_result_as_failed(tmp_path: Path) -> None:
    plan = plan_study(fake_study.example_study(shots=(1,)))
    failed = run_cells(plan, tmp_path, lambda config, out, last: None, lambda: None)
    assert [*failed.values()] == ['the run ended without a result of stage "transfer".']


def test_run_cells_turns_to_other_work_while_a_stage_is_busy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_study(fake_study.example_study(splits=(1, 2)))
    tried: list[str] = []

    def run(config: Any, out: Path, last: str) -> None:
        tried.append(out.name)
        if config.data.split == "voc-split1" and len(tried) <= 4:
            raise Busy("base")
        write_result(out, last)

    finished: list[int] = []
    failed = run_cells(plan, tmp_path, run, lambda: finished.append(len(tried)), pause=0.01)
    one, two, three, four = (cell.name for cell in plan.cells)
    # cells that need the busy base detector are not even tried
    assert tried == [one, three, one, four, one, two]
    assert (failed, finished) == ({}, [2, 4, 5, 6])
    said = capsys.readouterr().err
    assert said.count(f"[1/4] {one}: base, transfer") == 1


def test_run_cells_waits_for_other_processes(
    tmp_path: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_study(fake_study.example_study(rows=fake_study.ROWS, shots=(1,)))
    start(1.5)
    wait_for(lambda: fake_study.logged(tmp_path, "start"))
    tried: list[str] = []

    def run(config: Any, out: Path, last: str) -> None:
        tried.append(out.name)
        fake_study.compute_stages(tmp_path, config, last, 0, "")
        write_result(out, last)

    assert run_cells(plan, tmp_path, run, lambda: None, pause=0.05) == {}
    assert plan.cells[0].name not in tried  # the other process had it
    assert "waiting for other processes: 2 runs left" in capsys.readouterr().err


def test_run_cells_does_not_repeat_a_cell_finished_before_its_lock_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_study(fake_study.example_study(shots=(1,)))
    (cell,) = plan.cells

    @contextmanager
    def late(path: Path) -> Iterator[bool]:
        # by another process
        write_json(tmp_path / "cells" / cell.name / "results.json", {"stages": {cell.last: {}}})
        write_json(tmp_path / "cells" / cell.name / "cell.json", {"key": cell.key})
        yield True

    monkeypatch.setattr("mini_fsod.study.worker.lock", late)
    tried: list[Path] = []
    assert run_cells(plan, tmp_path, lambda _, out, __: tried.append(out), lambda: None) == {}
    assert tried == []


@pytest.mark.parametrize("name", ["cell.json", "results.json"])
@pytest.mark.parametrize(
    "content", ["[]", '{"key": 3}', '{"stages": []}', '{"stages": {"transfer": 3}}', "[" * 100_000]
)
def test_run_cells_runs_a_cell_with_damaged_files_again(
    tmp_path: Path, name: str, content: str
) -> None:
    tried: list[str] = []

    def run(config: Any, out: Path, last: str) -> None:
        tried.append(out.name)
        write_result(out, last)

    plan = plan_study(fake_study.example_study(shots=(1,)))
    for _ in range(2):
        run_cells(plan, tmp_path, run, lambda: None)
        assert is_cell_finished(tmp_path, plan.cells[0])
        (tmp_path / "cells" / plan.cells[0].name / name).write_text(content)
        assert not is_cell_finished(tmp_path, plan.cells[0])
    assert len(tried) == 2


@pytest.mark.parametrize("change", ["transfer.rate=0.5", "data.metric=voc"])
def test_run_cells_runs_a_finished_cell_again_with_other_settings(
    tmp_path: Path, change: str
) -> None:
    tried: list[str] = []

    def run(config: Any, out: Path, last: str) -> None:
        tried.append(out.name)
        write_result(out, last)

    for sets in (("seed=0",), ("seed=0", "device=cpu"), (change,), ("seed=0",)):
        plan = plan_study(fake_study.example_study(shots=(1,), sets=sets))
        run_cells(plan, tmp_path, run, lambda: None)
        assert is_cell_finished(tmp_path, plan.cells[0])
    assert len(tried) == 3  # the device has no effect


def test_run_cells_needs_a_folder_it_can_lock(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("a file")
    plan = plan_study(fake_study.example_study())
    with pytest.raises(UserError, match="cannot be written"):
        run_cells(plan, tmp_path, lambda _, __, ___: None, lambda: None)
