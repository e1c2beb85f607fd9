"""`mini runs`: which results are kept, how large they are, and who uses them; `mini runs prune`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer import Argument
from typer.core import TyperGroup

from mini_fsod import console
from mini_fsod.commands.options import AsJson, app, flag
from mini_fsod.errors import UserError
from mini_fsod.files import is_folder

if TYPE_CHECKING:
    from mini_fsod.runs.store import Kept

DAY = 24 * 3600


class ListByDefault(TyperGroup):
    """`mini runs [DIR]` is `mini runs list [DIR]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


group = typer.Typer(
    cls=ListByDefault,
    subcommand_metavar="[DIR] | prune [DIR]",
    help="List the results that runs keep, or delete unused ones.\n\nExample: mini runs prune",
)
app.add_typer(group, name="runs")

Runs = Annotated[
    Path, Argument(metavar="DIR", help="The folder that holds the runs. Example: runs")
]


@group.command("list")
def list_command(folder: Runs = Path("runs"), as_json: AsJson = False) -> None:
    """List kept results, and the runs that use them.

    Example: mini runs
    """
    results = _kept(folder)
    if as_json:
        print(json.dumps([asdict(result) for result in results], default=str))
        return
    if not results:
        console.note(f"{folder}: no results of runs")
        return
    console.table(results_table(results))
    console.out.print()
    console.table(runs_table(results))
    unused = _unused(results)
    if unused:
        console.note(f"{_amount(unused)} not used by any run: mini runs prune {folder}")


@group.command("prune")
def prune_command(
    folder: Runs = Path("runs"),
    yes: Annotated[bool, flag("--yes", "Delete without asking.")] = False,
) -> None:
    """Delete the results that no run uses.

    Lists them first, and asks. Without a terminal and without --yes, nothing is deleted.
    Example: mini runs prune --yes
    """
    unused = _unused(_kept(folder))
    if not unused:
        console.note(f"{folder}: every result is used by a run")
        return
    console.table(results_table(unused))
    if not yes:
        if not sys.stdin.isatty():
            console.note(f"{_amount(unused)} would be deleted; add --yes to delete")
            return
        if not typer.confirm(f"Delete {_amount(unused)}?", err=True):
            console.note("nothing was deleted")
            return
    from mini_fsod.runs import store

    store.prune(folder, unused)
    deleted = [result for result in unused if not result.folder.exists()]
    console.note(f"deleted: {_amount(deleted)}")
    if len(deleted) < len(unused):
        console.note(f"{_amount([r for r in unused if r not in deleted])} came into use meanwhile")


def _kept(folder: Path) -> list[Kept]:
    if not is_folder(folder):
        raise UserError(f"{folder}: no such folder.", "Give the folder that holds your runs.")
    from mini_fsod.runs import store

    return store.kept(folder)


def _unused(results: Sequence[Kept]) -> list[Kept]:
    return [result for result in results if not result.used_by and not result.busy]


def _amount(results: Sequence[Kept]) -> str:
    total = sum(result.bytes for result in results)
    return f"{console.count(len(results), 'result')}, {console.size(total)}"


def results_table(results: Sequence[Kept]) -> Table:
    """One row per kept result of a stage."""
    table = console.columns("result", ">size", ">changed", "used by")
    for result in results:
        users = ", ".join(result.used_by) or "-"
        state = "running" if result.busy else "" if result.finished else "unfinished"
        table.add_row(
            console.plain(result.name),
            console.size(result.bytes),
            _age(result.folder),
            console.plain(f"{users} ({state})" if state else users),
            style="" if result.used_by or result.busy else "dim",
        )
    return table


def runs_table(results: Sequence[Kept]) -> Table:
    """One row per run: its stages, their size, and how much of it other runs use too."""
    table = console.columns("run", ">size", ">shared", "stages")
    for run in sorted({name for result in results for name in result.used_by}):
        used = [result for result in results if run in result.used_by]
        shared = [result for result in used if len(result.used_by) > 1]
        table.add_row(
            console.plain(run),
            console.size(sum(result.bytes for result in used)),
            console.size(sum(result.bytes for result in shared)),
            ", ".join(result.stage for result in used),
        )
    return table


def _age(folder: Path) -> str:
    """How long ago a folder changed: 12 s, 3:05 min, 2:10 h, 5 days."""
    seconds = max(time.time() - folder.stat().st_mtime, 0)
    age = console.duration(seconds) if seconds < DAY else console.count(int(seconds // DAY), "day")
    return f"{age} ago"
