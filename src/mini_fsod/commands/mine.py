"""`mini mine`: mine in an existing run with other settings."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

from rich.table import Table
from typer import Argument, Option

from mini_fsod import console
from mini_fsod.commands.options import Sets, app, command_line
from mini_fsod.errors import UserError
from mini_fsod.files import CONFIG_FILE, is_file

SECTIONS = ("mine.", "discriminator.")  # the keys that `mini mine` may change
EXTRA = "extra"  # the subfolder of `mine` with the pool of mine.extra
NO_AUDIT = {"precision": None, "recall": None}


@app.command("mine")
def mine_command(
    run: Annotated[Path, Argument(metavar="RUN", help="The folder of a run. Example: runs/first")],
    sets: Sets = None,
    extra: Annotated[
        Path | None,
        Option(
            metavar="FOLDER",
            help="Also mine in images without annotations (mine.extra). Example: --extra photos",
        ),
    ] = None,
) -> None:
    """Mine again in a run, with other settings.

    --set takes keys of mine and discriminator. Another choice of boxes takes seconds: the scan is
    reused. The run's configuration changes, and earlier results are kept.
    Example: mini mine runs/first --set mine.alpha=2
    """
    from mini_fsod.config.load import resolve

    source = run / CONFIG_FILE
    if not is_file(source):
        raise UserError(
            f"{run}: not the folder of a run (it has no {CONFIG_FILE}).",
            "Create a run with `mini run` first.",
        )
    changes = list(sets or [])
    for text in changes:
        if not text.strip().startswith(SECTIONS):
            raise UserError(
                f"--set {text}: mini mine only changes keys of mine and discriminator.",
                f"Change it with: mini run {shlex.quote(str(run))} --set {shlex.quote(text)}",
            )
    if extra is not None:
        changes.append(f"mine.extra={json.dumps(str(extra))}")
    config = resolve(str(source), changes)

    from mini_fsod.runs import stages  # torch: only imported for a valid configuration

    # anyway: to choose boxes takes seconds, whatever the base detector is worth
    if not stages.run(config, run, last="mine", command=command_line(), anyway=True):
        return  # torchrun: another process prints
    for folder in (run / "mine", run / "mine" / EXTRA):
        if is_file(folder / "thresholds.json"):
            console.table(mined_table(folder))
            console.note(f"sheets, candidates and thresholds: {folder}")
    console.note(f"mined boxes, which you may correct before training: {run / 'pool.json'}")
    console.note(f"to train on them: mini run {shlex.quote(str(run))}")


def mined_table(folder: Path) -> Table:
    """One row per novel class: candidates, threshold, kept boxes, contact sheet.

    Precision and recall too, where the annotations of novel classes are known (audit.json).
    """
    from mini_fsod.mining.pool_io import read_thresholds

    thresholds, audit = read_thresholds(folder)
    columns = ["candidates", "delta", "kept"] + (["precision", "recall"] if audit else [])
    table = console.columns("class", *(f">{column}" for column in columns), "sheet")
    for n, (name, row) in enumerate(thresholds["classes"].items(), start=1):
        sheet = next((path.name for path in folder.glob(f"{n}-*.png")), "-")
        figures = row | (audit["classes"].get(name, NO_AUDIT) if audit else {})
        table.add_row(console.plain(name), *(_cell(figures[column]) for column in columns), sheet)
    if audit and len(thresholds["classes"]) > 1:
        total = audit["pool"] | {"delta": None}
        table.add_row("all", *(_cell(total[column]) for column in columns), "")
    return table


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
