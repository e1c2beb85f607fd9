"""A study whose runs take a moment: real settings and plans, and a worker that can be killed.

`python fake_study.py FOLDER SECONDS [fork]` works in FOLDER until all cells are finished; a stage
takes SECONDS. FOLDER/log has a line "WORD NAME PID" for each event: "start CELL", "end CELL",
"stage STAGE-KEY" (computed), "repeat CELL" (run although it was finished), "child CELL".
Environment: FAIL names a cell or stage that fails, WORKERS how many wait for each other to start.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mini_fsod.config.schema import Config
from mini_fsod.errors import UserError
from mini_fsod.files import is_file, lock, write_json
from mini_fsod.runs.identity import static_keys
from mini_fsod.runs.store import Busy
from mini_fsod.study.plan import StudyPlan, plan_study
from mini_fsod.study.studies import Row, Study
from mini_fsod.study.worker import run_cells

ROWS = (Row("TFA"), Row("mined", ("mine.alpha=2",), "mine"))


def example_study(**changes: Any) -> Study:
    usual: dict[str, Any] = {
        "name": "example",
        "source": "voc-320",
        "rows": (Row("TFA"),),
        "shots": (1, 5),
        "seeds": (0,),
        "splits": (1,),
        "sets": ("data.root=voc",),
    }
    return Study(**usual | changes)


def workers_study() -> Study:
    """Two base detectors, eight few-shot detectors, sixteen cells."""
    return example_study(rows=ROWS, seeds=(0, 1), splits=(1, 2))


def finish_cells(
    folder: Path, plan: StudyPlan, stages: Mapping[str, Mapping[str, Any]], **about: Any
) -> None:
    """Give cells of a plan, by name, their results: the figures of each stage by its name."""

    def run(config: Config, out: Path, last: str) -> None:
        write_json(out / "results.json", {"stages": stages[out.name], **about})

    cells = tuple(cell for cell in plan.cells if cell.name in stages)
    assert len(cells) == len(stages)
    assert run_cells(replace(plan, cells=cells), folder, run, lambda: None) == {}


def log_event(folder: Path, word: str, name: str) -> None:
    handle = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{word} {name} {os.getpid()}\n".encode())
    os.close(handle)


def logged(folder: Path, word: str) -> list[tuple[str, int]]:
    """(name, process) of all events of a kind."""
    lines = (folder / "log").read_text().split("\n")[:-1] if (folder / "log").exists() else []
    found = [line.split() for line in lines]
    return [(name, int(pid)) for kind, name, pid in found if kind == word]


def compute_stages(folder: Path, config: Config, last: str, seconds: float, fail: str) -> None:
    """What a run does: stages that are in the store are reused, and one computes each of them."""
    for stage, key in static_keys(config, last).items():
        result = folder / "store" / f"{stage}-{key}"
        with lock(result.with_suffix(".lock")) as free:
            if not free:
                raise Busy(stage)
            if not is_file(result):
                time.sleep(seconds)
                if stage == fail:
                    error = UserError("the loss is not finite.", "Lower the rate.")
                    error.stage = stage  # type: ignore[attr-defined]
                    raise error
                log_event(folder, "stage", result.name)
                write_json(result, {})


def main(folder: Path, seconds: float, fork: bool) -> None:
    plan = plan_study(workers_study())
    fail = os.environ.get("FAIL", "")

    def run(config: Config, out: Path, last: str) -> None:
        finished = is_file(out / "results.json")
        log_event(folder, "repeat" if finished else "start", out.name)
        if fork and os.fork() == 0:  # as data loaders do
            log_event(folder, "child", out.name)
            time.sleep(60)
            os._exit(0)
        if out.name == fail:
            raise UserError("the disk is full.", "Free some space.")
        compute_stages(folder, config, last, seconds, fail)
        write_json(out / "results.json", {"stages": {last: {"nAP50": 10.0}}})
        log_event(folder, "end", out.name)

    log_event(folder, "ready", "worker")
    while len(logged(folder, "ready")) < int(os.environ.get("WORKERS", "1")):
        time.sleep(0.01)
    for name, why in run_cells(plan, folder, run, lambda: None, pause=0.02).items():
        print(f"{name}: {why}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), "fork" in sys.argv[3:])
