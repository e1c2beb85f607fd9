"""`mini doctor`: the likely causes of a low AP, from a run's files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument

from mini_fsod import console
from mini_fsod.commands.options import AsJson, app


@app.command("doctor")
def doctor_command(
    run: Annotated[Path, Argument(metavar="RUN", help="The folder of a run. Example: runs/first")],
    as_json: AsJson = False,
) -> None:
    """Say why the AP of a run may be low, and what to change.

    Reads the run's files only: no GPU, no data set. The most serious cause comes first.
    Example: mini doctor runs/first
    """
    from mini_fsod.report.doctor import NOTHING, diagnose
    from mini_fsod.report.run_files import read_run

    files = read_run(run)
    findings = diagnose(files)
    if as_json:
        rows = [asdict(finding) | {"rank": finding.rank} for finding in findings]
        print(json.dumps(rows, allow_nan=False))
        return
    for problem in files.problems:
        console.note(f"not read: {problem}")
    if not findings:
        console.out.print(f"[bold green]{NOTHING}[/]")
    for number, finding in enumerate(findings, start=1):
        space = "\n" if number > 1 else ""
        title = f"{space}[bold]{number}. {console.plain(finding.what)}[/]  [dim]{finding.rank}[/]"
        console.out.print(title, soft_wrap=True)
        console.out.print(f"   {console.plain(finding.evidence)}", soft_wrap=True)
        for change in finding.changes:
            console.out.print(f"   [dim]try:[/] {console.plain(change)}", soft_wrap=True)
