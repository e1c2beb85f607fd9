"""`mini study`: many runs as one plan, shared by any number of processes, and the tables."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from mini_fsod import console
from mini_fsod.commands.options import Sets, app, command_line, flag, out_option
from mini_fsod.errors import UserError
from mini_fsod.files import CONFIG_FILE, is_file, is_folder, lock, mode, remove_leftovers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mini_fsod.study.estimate import Rates
    from mini_fsod.study.plan import StudyPlan
    from mini_fsod.study.studies import Study


@app.command()
def study(
    name: Annotated[
        str | None,
        Argument(
            metavar="NAME|FILE",
            help="A study that --list shows, or a YAML file. Example: tfa",
        ),
    ] = None,
    out: Annotated[
        Path | None, out_option("The study's folder; several processes may share it.", "runs/tfa")
    ] = None,
    split: Annotated[str | None, Option(help="VOC splits, by number. Example: --split 1,2")] = None,
    shots: Annotated[str | None, Option(help="Values of K. Example: --shots 1,5")] = None,
    seeds: Annotated[str | None, Option(help="Seeds of the shots. Example: --seeds 0..4")] = None,
    rows: Annotated[
        str | None, Option(help="Only these rows, by number. Example: --rows 1..4,8")
    ] = None,
    sets: Sets = None,
    full: Annotated[bool, flag("--full", "Use the paper's full schedule.")] = False,
    dry_run: Annotated[
        bool, flag("--dry-run", "Only print the runs and their estimated time.")
    ] = False,
    anyway: Annotated[
        bool,
        flag(
            "--anyway",
            "Continue a run even if a stage failed to produce usable results, as in mini run.",
        ),
    ] = False,
    figures: Annotated[
        bool, flag("--figures", "Draw the paper's figures as well; needs matplotlib.")
    ] = False,
    list_studies: Annotated[
        bool, flag("--list", "List the studies, their runs and time; with NAME, its rows.")
    ] = False,
) -> None:
    """Run many configurations and print a table of means and 95 % intervals.

    Resumes where it stopped. To use several GPUs, start the same command once for each of them.

    Example: mini study tfa --set data.root=VOCdevkit --seeds 0..4 -o runs/tfa
    """
    from mini_fsod.study import from_file, known, plan, studies

    if list_studies:
        if name:
            _list_rows(from_file.find_study(name))
        else:
            _list_studies(list(known.STUDIES.values()))
        return
    if name is None or out is None:
        raise UserError(
            "A study needs a name or a file, and a folder (--out).",
            "For example: mini study tfa -o runs/tfa. mini study --list lists the studies.",
        )
    chosen = studies.narrow(from_file.find_study(name), split, shots, seeds, full)
    chosen = from_file.fill_from_config(replace(chosen, sets=(*chosen.sets, *(sets or ()))))
    _refuse_folder(out)
    todo = plan.plan_study(chosen, studies.choose_rows(chosen, rows) if rows else None)
    _refuse_one_sample(chosen, todo)
    whole = plan.merge_plan(out, chosen, todo)
    if dry_run:
        _print_estimates(out, todo, whole)
        return
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "A study cannot be started by torchrun: each process computes whole runs by itself.",
            "Start one mini study for each GPU, with the same --out and --set device=cuda:N.",
        )
    for config in todo.configs.values():
        config.ready()
    failed = _run(chosen, todo, out, anyway)
    if figures:
        _draw(chosen, out)
    if failed:
        for cell, why in failed.items():
            console.note(f"{cell}: {why}")
        raise UserError(
            f"{len(failed)} of {console.count(len(todo.cells), 'run')} failed.",
            f"See {out / 'failed'} for the reasons; the same command tries them again.",
        )


def _run(chosen: Study, todo: StudyPlan, out: Path, anyway: bool) -> dict[str, str]:
    """Run what is left and print the tables; the failed cells with the reason."""
    from mini_fsod.runs import stages
    from mini_fsod.study.plan import read_plan, refuse_changed_plan, save_plan
    from mini_fsod.study.tables import write_tables
    from mini_fsod.study.worker import run_cells

    guard = out / "locks" / "study.lock"
    store = out.resolve().parent / ".stages"  # shared with the runs beside the study
    with lock(guard, wait=True):
        remove_leftovers(out.glob(".*.part"))  # written under this lock
        save_plan(out, chosen, todo)

    def write() -> str:
        # read and written under one lock: a newer table is never replaced by an older one
        with lock(guard, wait=True):
            refuse_changed_plan(out, todo)
            return write_tables(out, chosen, read_plan(out))

    failed = run_cells(
        todo,
        out,
        lambda config, folder, last: stages.run(
            config,
            folder,
            last=last,
            command=command_line(),
            results_store=store,
            wait=False,
            anyway=anyway,
        ),
        finished=write,
    )
    console.out.print(write(), markup=False, soft_wrap=True, end="")
    names = ", ".join(str(out / f"study.{kind}") for kind in ("json", "md", "tex"))
    console.note(f"written: {names}")
    return failed


def _draw(chosen: Study, out: Path) -> None:
    from mini_fsod.study.figures import FOLDER, draw_figures
    from mini_fsod.study.plan import read_plan
    from mini_fsod.study.tables import gather_results

    cells = read_plan(out)
    written = draw_figures(out, gather_results(out, chosen, cells), cells)
    names = dict.fromkeys(path.stem.rpartition("-")[0] for path in written)
    where = f"{out / FOLDER}: {', '.join(names)}" if names else "no figures: no run is finished"
    console.note(where)


def _list_studies(chosen: Sequence[Study]) -> None:
    """Each study with its runs, and the time that they take on the GPUs at hand."""
    from mini_fsod.study.estimate import ROUGH, estimate_cells, shared_seconds
    from mini_fsod.study.from_file import fill_from_config
    from mini_fsod.study.plan import plan_study

    plans = [plan_study(fill_from_config(one)) for one in chosen]
    device = _device(plans[0])
    gpus = _gpus() if device == "cuda" else 0
    more = [f">{gpus} GPUs"] if gpus > 1 else []
    alone = ">one GPU" if gpus else ">no GPU"
    table = console.columns("study", ">runs", alone, *more, "what it is about")
    for one, todo in zip(chosen, plans, strict=True):
        times = estimate_cells(todo, todo, Path(one.name), ROUGH[device], "rough")
        workers = [1, gpus] if more else [1]
        shown = [console.duration(shared_seconds(times, n)) for n in workers]
        name = f"[bold]{console.plain(one.name)}[/]"
        table.add_row(name, str(len(todo.cells)), *shown, console.plain(one.about))
    console.table(table)
    console.note(
        "times are rough; a run takes one GPU, and several processes share a study: start the same "
        "command once for each. mini study NAME --list shows the rows, mini study NAME -o FOLDER "
        "--dry-run each run"
    )


def _list_rows(one: Study) -> None:
    """The rows of a study with their number, settings and last stage."""
    axes = [("split", one.splits), ("K", one.shots), ("seed", one.seeds)]
    over = [f"{word} {', '.join(map(str, values))}" for word, values in axes if values]
    console.out.print(f"[bold]{console.plain(one.name)}[/]: {console.plain(one.about)}")
    console.out.print(console.plain("; ".join([one.source, *over, *one.sets])), soft_wrap=True)
    table = console.columns("", "row", "settings", "last stage")
    for number, row in enumerate(one.rows, 1):
        settings = "\n".join(map(console.plain, row.sets))
        table.add_row(str(number), console.plain(row.label), settings, row.last)
    console.table(table)


def _print_estimates(out: Path, todo: StudyPlan, whole: StudyPlan) -> None:
    """Each run with the stages that it computes and their time; the sum of what is left."""
    from mini_fsod.study.estimate import ROUGH, How, estimate_cells

    kind: How = "estimated"
    rates: Rates | None = _speed_of_this_machine(todo, out)
    if rates is None:
        console.note("set data.root for estimates: the speed is measured on your pictures")
        rates, kind = ROUGH[_device(todo)], "rough"
    times = estimate_cells(todo, whole, out, rates, kind)
    table = console.columns("run", "stages", ">time", "")
    for cell, time in zip(todo.cells, times, strict=True):
        style = "dim" if time.how == "finished" else ""
        duration = console.duration(time.seconds)
        row = (console.plain(cell.name), ", ".join(time.stages), duration, time.how)
        table.add_row(*row, style=style)
    left = [time for time in times if time.how != "finished"]
    how = next(
        (how for how in ("at least", "rough", "estimated") if how in {time.how for time in left}),
        "",
    )
    done = len(times) - len(left)
    what = f"{console.count(len(left), 'run')} to do" + (f", {done} finished" if done else "")
    total = console.duration(sum(time.seconds for time in left))
    table.add_row(what, "", total, how, style="bold")
    console.table(table)


def _speed_of_this_machine(todo: StudyPlan, out: Path) -> Rates | None:
    """Rates measured on the unfinished run with the most stages; None without the data."""
    from mini_fsod.study.worker import is_cell_finished

    left = [cell for cell in todo.cells if not is_cell_finished(out, cell)]
    if not left:
        return {}
    cell = max(left, key=lambda cell: len(cell.keys))
    config = todo.configs[cell.name]
    if config.data.root is None or not config.data.root.exists():
        return None
    from mini_fsod.device import torch_device
    from mini_fsod.runs.estimate import estimate_run
    from mini_fsod.study.estimate import estimated_rates

    console.note("measuring the speed of this machine: about 20 seconds on two free cores")
    estimate = estimate_run(config, torch_device(config.device), [*cell.keys])
    return estimated_rates(config, estimate)


def _device(todo: StudyPlan) -> str:
    """ "cuda" or "cpu", as the runs would choose."""
    wanted = {config.device.partition(":")[0] for config in todo.configs.values()}
    if wanted == {"auto"}:
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"
    return "cuda" if "cuda" in wanted else "cpu"


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _refuse_folder(out: Path) -> None:
    if mode(out) and not is_folder(out):
        raise UserError(f"{out}: not a folder.", "Choose another one with --out.")
    if is_file(out / CONFIG_FILE):
        raise UserError(f"{out}: contains a run.", "Choose another one with --out.")


def _refuse_one_sample(chosen: Study, todo: StudyPlan) -> None:
    """A file of shots is one sample: seeds and K would change only the names of the cells."""
    given = [config.shots.file for config in todo.configs.values() if config.shots.file]
    if given and (len(chosen.seeds) > 1 or len(chosen.shots) > 1):
        raise UserError(
            f"shots.file: {given[0]} is one sample, but the study has several K or seeds.",
            "Leave shots.file out, so that shots are sampled or taken from official lists.",
        )
