"""A worker runs the cells of a plan that are neither finished nor run by another process.

Any number of processes may work in one folder. A cell is held by a lock of the operating system,
which ends with its process, however that ends. A finished cell is not run again.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from mini_fsod import console
from mini_fsod.config.schema import Config
from mini_fsod.errors import UserError
from mini_fsod.files import lock, read_bytes, write_bytes, write_json
from mini_fsod.limits import STATE_BYTES
from mini_fsod.runs.store import Busy, Figures
from mini_fsod.state_files import Kind, read_state_file
from mini_fsod.study.plan import Cell, StudyPlan

RunCell = Callable[[Config, Path, str], object]  # configuration, run folder, last stage
Finished = Callable[[], object]
MOST_PAUSES = 20  # between two looks at what other processes do
CELL = "cell.json"  # in a cell's folder: the key of the result in results.json


class _Results(Kind):
    stages: dict[str, Figures]
    device: str | None = None
    commit: str | None = None
    versions: dict[str, str] | None = None


class _Finished(Kind):
    key: str


def run_cells(
    plan: StudyPlan, folder: Path, run: RunCell, finished: Finished, pause: float = 1.0
) -> dict[str, str]:
    """Run the cells of the plan that are left; {name: reason} of those that failed.

    `finished` is called after each cell that this process has run. `run` raises Busy where another
    process computes a stage of the cell: the worker goes on with other cells and comes back later.
    A failed cell is not tried again by any process that is running now, only by later ones. If the
    exception says which stage failed (an attribute `stage`), nor are cells that need that stage.
    """
    return _Worker(plan, folder, run, finished, pause).work()


class _Worker:
    def __init__(
        self, plan: StudyPlan, folder: Path, run: RunCell, finished: Finished, pause: float
    ) -> None:
        self.plan, self.folder, self.run, self.finished = plan, folder, run, finished
        self.pause = pause
        self.done: set[str] = set()
        self.announced: set[str] = set()
        self.titles = {
            cell.name: f"[{n}/{len(plan.cells)}] {cell.name}"
            for n, cell in enumerate(plan.cells, 1)
        }
        records = {path for cell in plan.cells for path in self._failures(cell, cell.keys)}
        self.old_failures = {path: _changed(path) for path in records}

    def work(self) -> dict[str, str]:
        waited = 0
        while True:
            cells = [cell for cell in self.plan.cells if not self._is_done(cell)]
            failed = {cell.name: why for cell in cells if (why := self._failure(cell))}
            left = [cell for cell in cells if cell.name not in failed]
            if not left:
                return failed
            if self._run_next(left):
                waited = 0
                continue
            waited += 1
            if waited == 1:
                console.note(f"waiting for other processes: {console.count(len(left), 'run')} left")
            # to try a cell reads its data: longer and longer pauses
            sleep(self.pause * min(2 ** (waited - 1), MOST_PAUSES))

    def _run_next(self, left: list[Cell]) -> bool:
        """Run the first cell that is free; False if all wait for other processes."""
        busy: set[str] = set()  # keys of stages that other processes compute
        for cell in left:
            if busy.intersection(cell.keys.values()):
                continue
            with lock(self.folder / "locks" / f"{cell.name}.lock") as locked:
                if not locked:
                    continue
                # another process may have finished it since we looked
                if self._is_done(cell) or self._failure(cell):
                    return True
                stage = self._run(cell)
                if stage is None:
                    self.finished()
                    return True
                busy.add(cell.keys.get(stage, ""))
        return False

    def _run(self, cell: Cell) -> str | None:
        """Run one cell; the stage that another process computes, if it cannot be finished now."""
        title, out = self.titles[cell.name], self.folder / "cells" / cell.name
        for path in self._failures(cell, cell.keys):
            path.unlink(missing_ok=True)
        # results.json changes from here on
        (out / CELL).unlink(missing_ok=True)
        if cell.name not in self.announced:
            console.note(f"{title}: {', '.join(cell.keys)}")
            self.announced.add(cell.name)
        start = monotonic()
        failed_stage = None
        try:
            self.run(self.plan.configs[cell.name], out, cell.last)
        except Busy as busy:
            return str(busy.stage)
        except Exception as error:
            # one failure, out of memory for example, should not stop the other cells
            failed_stage, text = getattr(error, "stage", None), traceback.format_exc().strip()
            if isinstance(error, UserError):
                text = f"{error.what} {error.fix}".strip()
        else:
            figures = cell_results(self.folder, cell).get("stages", {}).get(cell.last)
            if figures is not None:
                write_json(out / CELL, {"key": cell.key})
                took = console.duration(monotonic() - start)
                console.note(f"{title}: {', '.join([*_scores(figures), took])}")
                return None
            text = f'the run ended without a result of stage "{cell.last}".'
        for path in self._failures(cell, [failed_stage] if failed_stage else []):
            write_bytes(path, f"{text}\n".encode(errors="backslashreplace"))
        console.note(f"{title}: failed: {text.splitlines()[-1]}")
        return None

    def _is_done(self, cell: Cell) -> bool:
        if cell.name not in self.done and is_cell_finished(self.folder, cell):
            self.done.add(cell.name)
        return cell.name in self.done

    def _failure(self, cell: Cell) -> str:
        """Why the cell, or a stage that it needs, failed since this process started; or ""."""
        for path in self._failures(cell, cell.keys):
            if _changed(path) not in (0, self.old_failures[path]):
                try:
                    text = read_bytes(path, STATE_BYTES).decode(errors="replace")
                except OSError:  # a process that started later tries it again
                    continue
                return (text.splitlines() or ["failed"])[-1]
        return ""

    def _failures(self, cell: Cell, stages: Iterable[str]) -> list[Path]:
        """The files that record that the cell has failed, or one of these stages."""
        names = [cell.name, *(f"{stage}-{cell.keys[stage]}" for stage in stages)]
        return [self.folder / "failed" / f"{name}.txt" for name in names]


def cell_results(folder: Path, cell: Cell) -> dict[str, Any]:
    """The content of results.json of a cell's run; empty if there is none, or a damaged one."""
    return _read(folder / "cells" / cell.name / "results.json", _Results)


def is_cell_finished(folder: Path, cell: Cell) -> bool:
    """Whether there is a result, with the settings of the plan."""
    recorded = _read(folder / "cells" / cell.name / CELL, _Finished).get("key")
    return recorded == cell.key and cell.last in cell_results(folder, cell).get("stages", {})


def _read(path: Path, kind: type[Kind]) -> dict[str, Any]:
    """The content of a cell's file; empty where it cannot be used: then the cell runs again, which
    takes a moment, because the results of its stages are kept elsewhere.
    """
    try:
        return read_state_file(path, kind, "") or {}
    except UserError:
        return {}


def _changed(path: Path) -> int:
    """When a file was written last, in nanoseconds; 0 if there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _scores(figures: dict[str, Any]) -> list[str]:
    return [f"{k} {figures[k]:.1f}" for k in ("nAP50", "bAP50") if figures.get(k) is not None]
