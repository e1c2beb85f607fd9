"""`mini run`: from a configuration to a trained, scored detector."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from mini_fsod import console
from mini_fsod.config.load import Config, resolve


def run(
    source: str, sets: Sequence[str], first: str | None, last: str | None, out: Path | None
) -> None:
    config = resolve(source, sets)
    place = out or Path("runs") / Path(source).stem
    results = run_into(config, place, first, last)
    if results:
        console.table(stage_table(results))
        console.note(f"{place}: {', '.join(results['stages'])}, results.json")


def run_into(
    config: Config,
    out: Path,
    first: str | None = None,
    last: str | None = None,
    aside: bool = False,
) -> dict[str, Any]:
    from mini_fsod.runs.stages import run as run_stages

    return run_stages(config, out, first, last, shlex.join(["mini", *sys.argv[1:]]), aside)


def stage_table(results: dict[str, Any]) -> Table:
    """A row a stage: figures, time, speed."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("stage")
    for name in ("nAP50", "bAP50", "AP50", "seconds", "img/s"):
        table.add_column(name, justify="right")
    for stage, figures in results["stages"].items():
        speed = figures.get("images_per_second")
        cells = [
            "-" if figures.get(key) is None else f"{figures[key]:,.{digits}f}"
            for key, digits in (
                ("nAP50", 1),
                ("bAP50", 1),
                ("AP50", 1),
                ("seconds", 1),
                ("images_per_second", 0 if speed and speed >= 10 else 1),
            )
        ]
        table.add_row(stage, *cells)
    return table
