"""`mini run`: train and score a few-shot detector, from a preset to the last stage."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from typer import Argument, Option

from mini_fsod import console
from mini_fsod.commands.options import (
    ConfigSeed,
    ConfigShots,
    ConfigSplit,
    Sets,
    app,
    command_line,
    flag,
    out_option,
)
from mini_fsod.errors import brief

if TYPE_CHECKING:
    from mini_fsod.config.schema import Config

RARELY = 5.0  # times that base training shows each picture, and that teach little
MORE = (
    "Raise base.minutes or base.iterations, make views.short and views.test smaller, or use a GPU."
)


@app.command("run")
def run_command(
    config: Annotated[
        str,
        Argument(
            metavar="CONFIG",
            help="A preset (`mini presets` lists them), a YAML file, or the folder of a run. "
            "Example: voc-320-plus",
        ),
    ],
    sets: Sets = None,
    split: ConfigSplit = None,
    shots: ConfigShots = None,
    seed: ConfigSeed = None,
    first: Annotated[
        str | None,
        Option(
            "--from",
            metavar="STAGE",
            help="Compute this stage and later ones again. Example: --from base",
        ),
    ] = None,
    last: Annotated[
        str | None,
        Option("--to", metavar="STAGE", help="Stop after this stage. Example: --to base"),
    ] = None,
    only_novel: Annotated[
        bool, flag("--only-novel", "Make a detector of the novel classes alone (only_novel).")
    ] = False,
    out: Annotated[
        Path | None, out_option("The run's folder; default: runs/NAME.", "runs/first")
    ] = None,
    dry_run: Annotated[
        bool,
        flag(
            "--dry-run",
            "Only print the stages, which results would be reused, and estimated time and memory.",
        ),
    ] = False,
    anyway: Annotated[
        bool,
        flag(
            "--anyway",
            "Continue even if a stage failed to produce usable results (otherwise exit code 3).",
        ),
    ] = False,
) -> None:
    """Train a few-shot detector, stage by stage.

    Finished stages are reused, and an interrupted run resumes where it stopped. Results of stages
    are kept next to the run's folder, where other runs find them.
    Example: mini run voc-320 --set data.root=data/VOCdevkit --shots 5
    """
    from mini_fsod.config.load import resolve, run_folder

    source, default_out = run_folder(config)
    sets = [*(sets or []), *(["only_novel=true"] if only_novel else [])]
    settings = resolve(source, sets, split=split, shots=shots, seed=seed)
    out = out or default_out

    from mini_fsod.runs import stages  # torch: only imported for a valid configuration

    if dry_run:
        _print_estimate(settings, out, first, last)
        return
    results = stages.run(settings, out, first, last, command_line(), anyway=anyway)
    if not results:  # torchrun: another process prints
        return
    console.table(stage_table(results))
    console.note(f"results: {out / 'results.json'}")
    note_report(out)
    if "tune" in results["stages"]:
        console.note(f"try it: mini predict {shlex.quote(str(out))} IMAGES --draw drawn")


def _print_estimate(config: Config, out: Path, first: str | None, last: str | None) -> None:
    """What is kept of a run, and what the rest will take on this machine."""
    from mini_fsod.device import torch_device
    from mini_fsod.runs.estimate import estimate_run
    from mini_fsod.runs.stages import find_results

    data, found = find_results(config, out, first, last)
    todo = [stage for stage, folder in found.items() if folder is None]
    if todo:
        console.note("measuring the speed of this machine: about 20 seconds on two free cores")
    estimate = estimate_run(config, torch_device(config.device), todo, data)
    costs = {stage.stage: stage for stage in estimate.stages}
    iterations = costs["base"].iterations if "base" in costs else None
    if iterations is not None:
        shown = iterations * config.base.batch / len(data.base)
        if shown < RARELY:
            console.note(
                f"base: {console.count(iterations, 'iteration')} show each picture {shown:.1f} "
                f"times, which hardly teaches a detector anything. {MORE}"
            )
    table = console.columns("stage", "", ">iterations", ">img/s", ">scoring", ">time", ">memory")
    for stage, folder in found.items():
        if folder is not None:
            table.add_row(stage, f"kept in {console.plain(folder)}", *[""] * 5, style="dim")
            continue
        cost = costs[stage]
        speed, scoring = cost.images_per_second, 60 * cost.scoring
        table.add_row(
            stage,
            "to do",
            "" if cost.iterations is None else f"{cost.iterations:,}",
            "" if speed is None else f"{speed:,.{int(speed < 10)}f}",
            console.duration(scoring) if scoring else "",
            console.duration(60 * cost.minutes),
            console.size(cost.memory),
        )
    if estimate.decoding:
        decoding = console.duration(60 * estimate.decoding)
        table.add_row("", "decoding pictures, once", "", "", "", decoding, "")
    total = console.duration(60 * estimate.minutes)
    table.add_row("all", "", "", "", "", total, console.size(estimate.memory), style="bold")
    console.table(table)


def note_report(run: Path) -> None:
    """Write the report of a run that has ended, and a sheet of detections. What goes wrong there is
    no failure of the run.
    """
    from mini_fsod.report.detections_sheet import sheet_of_run
    from mini_fsod.report.doctor import diagnose
    from mini_fsod.report.page import write_report
    from mini_fsod.report.run_files import read_run

    try:
        console.note(f"report: {write_report(run)}")
        if sheet := sheet_of_run(run):
            console.note(f"test pictures with detections: {sheet}")
        if findings := diagnose(read_run(run)):
            number = console.count(len(findings), "finding")
            console.note(f"{number} on what to change: mini doctor {shlex.quote(str(run))}")
    except Exception as error:  # the run has its results: nothing about the report may hide that
        console.note(f"no report: {brief(str(error) or type(error).__name__)} (mini report {run})")


def stage_table(results: dict[str, Any]) -> Table:
    """One row per stage: AP, time and speed."""
    table = console.columns("stage", ">nAP50", ">bAP50", ">AP50", ">seconds", ">img/s")
    for stage, figures in results["stages"].items():
        values = [figures.get(key) for key in ("nAP50", "bAP50", "AP50", "seconds")]
        cells = ["-" if value is None else f"{value:,.1f}" for value in values]
        speed = figures.get("images_per_second")
        cells.append("-" if speed is None else f"{speed:,.{int(speed < 10)}f}")
        table.add_row(stage, *cells)
    return table
