"""`mini study`: many runs as one plan, shared by any number of workers, and their table."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from mini_fsod import console
from mini_fsod.config import load as settings
from mini_fsod.errors import UserError
from mini_fsod.files import is_file, is_folder, mode
from mini_fsod.files import lock
from mini_fsod.study import tables
from mini_fsod.study.estimate import Estimate, estimates
from mini_fsod.study.from_file import as_configured, find, refuse_axes
from mini_fsod.study.plan import Plan, Unit, join, known, merged, of_rows, plan
from mini_fsod.study.studies import Study, chosen_rows, narrowed
from mini_fsod.study.worker import work


def run(
    name: str,
    split: str | None,
    shots: str | None,
    seeds: str | None,
    rows: str | None,
    sets: Sequence[str],
    full: bool,
    out: Path,
    dry_run: bool,
) -> None:
    study = narrowed(find(name, settings.STAGES), split, shots, seeds, full)
    study = replace(study, sets=tuple(sets))
    refuse_axes(study)
    study = as_configured(study, settings.resolve)
    if mode(out) and not is_folder(out):
        raise UserError(f"{out}: is no folder.", "Choose another place for --out.")
    if is_file(out / "config.yaml"):
        raise UserError(f"{out}: a run lies here.", "Choose another folder with --out.")
    todo = plan(study, out, settings.resolve, settings.parts, settings.STAGES, settings.stages_of)
    if rows is not None:
        todo = of_rows(todo, chosen_rows(study, rows))
    _refuse_one_sample(study, todo)
    merged(out, study, todo.units)  # refuses a folder of other settings
    if dry_run:
        console.table(overview(todo.units, estimates(todo.units, known(out), out, _device(todo))))
        return
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "A study is not started by torchrun: its workers would all do the same run.",
            "Start one mini study for each GPU, with the same --out.",
        )
    for config in todo.configs.values():
        config.ready()
    failed = _work(study, todo, out)
    if failed:
        for unit, why in failed.items():
            console.note(f"{unit}: {why}")
        raise UserError(
            f"{len(failed)} of {console.count(len(todo.units), 'unit')} could not be finished.",
            f"{out / 'failed'} has the reasons; the same command tries them again.",
        )


def _work(study: Study, todo: Plan, out: Path) -> dict[str, str]:
    """Do what is left, and print the tables; the units that failed, with the reason."""
    from mini_fsod.runs import stages

    guard = out / "locks" / "study.lock"
    with lock(guard, wait=True):
        join(out, study, todo.units)
    command = shlex.join(["mini", *sys.argv[1:]])

    def write() -> str:
        # read and written under one lock: the newest table is never replaced by an older one
        with lock(guard, wait=True):
            return tables.write(out, study, known(out))

    failed = work(
        todo,
        out,
        lambda config, folder, last: stages.run(config, folder, last=last, command=command),
        finished=write,
    )
    console.out.print(write(), markup=False, soft_wrap=True, end="")
    names = ", ".join(str(out / f"study.{kind}") for kind in ("json", "md", "tex"))
    console.note(f"written: {names}")
    return failed


def overview(units: Sequence[Unit], times: Sequence[Estimate]) -> Table:
    """Each unit with its stages and time, in order, and what is left in all."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("unit")
    table.add_column("stages")
    table.add_column("time", justify="right")
    table.add_column("")
    for unit, time in zip(units, times, strict=True):
        seconds = "?" if time.seconds is None else console.duration(time.seconds)
        style = "dim" if time.how == "finished" else ""
        table.add_row(
            console.plain(unit.name), ", ".join(unit.stages), seconds, time.how, style=style
        )
    left = [time for time in times if time.how != "finished"]
    total = console.duration(sum(time.seconds or 0 for time in left))
    hows = {time.how for time in left}
    how = "at least" if "unknown" in hows else "rough" if "rough" in hows else ""
    done = len(times) - len(left)
    what = f"{console.count(len(left), 'unit')} to do" + (f", {done} finished" if done else "")
    table.add_row(what, "", total, how, style="bold")
    return table


def _device(todo: Plan) -> str:
    """ "cuda" or "cpu", as the runs would choose."""
    wanted = {config.device.partition(":")[0] for config in todo.configs.values()}
    if wanted == {"auto"}:
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"
    return "cuda" if "cuda" in wanted else "cpu"


def _refuse_one_sample(study: Study, todo: Plan) -> None:
    """A file of shots is one sample: seeds and K would change nothing but the cells' names."""
    given = [config.shots.file for config in todo.configs.values() if config.shots.file]
    if given and (len(study.seeds) > 1 or len(study.shots) > 1):
        raise UserError(
            f"shots.file: {given[0]} is one sample, and the study has "
            f"{console.count(len(study.shots), 'K')} and {console.count(len(study.seeds), 'seed')}.",
            "Leave shots.file out, so that shots are drawn or taken from official lists.",
        )
