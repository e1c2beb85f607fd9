"""`mini report`: one page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from mini_fsod import console
from mini_fsod.commands.options import app, out_option


@app.command("report")
def report_command(
    run: Annotated[Path, Argument(metavar="RUN", help="The folder of a run. Example: runs/first")],
    compare: Annotated[
        list[Path] | None,
        Option(
            metavar="RUN",
            help="Show another run beside it; repeatable. Example: --compare runs/second",
        ),
    ] = None,
    out: Annotated[
        Path | None, out_option("The file; default: RUN/report.html.", "report.html")
    ] = None,
) -> None:
    """Write a page about a run: report.html in its folder.

    What to change first, results, mined boxes, test pictures and ground truth, confusions,
    thresholds to use, training, cost. Needs no GPU; the page needs no network.
    Example: mini report runs/first --compare runs/second
    """
    from mini_fsod.report.page import write_report

    path = write_report(run, compare or (), out)
    console.note(f"report: {path}, {console.size(path.stat().st_size)}")
