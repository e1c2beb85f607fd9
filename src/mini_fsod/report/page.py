"""`report.html` of a run, put together from its sections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from mini_fsod.errors import UserError
from mini_fsod.files import write_bytes
from mini_fsod.report.compare import compare_section
from mini_fsod.report.detected import Detected, read_detected
from mini_fsod.report.doctor import diagnose
from mini_fsod.report.html import Html, join, page, tag
from mini_fsod.report.mined import Mined, read_mined
from mini_fsod.report.oracle import oracle_of
from mini_fsod.report.pictures import RunPictures
from mini_fsod.report.run_files import RunFiles, read_run
from mini_fsod.report.sections_mining import mining_section, shots_section
from mini_fsod.report.sections_results import findings_section, headline, results_section
from mini_fsod.report.sections_test import confusion_section, operating_section, pictures_section
from mini_fsod.report.sections_training import config_section, cost_section, training_section

REPORT = "report.html"
CONTENTS = {
    "doctor": "What to change",
    "compare": "Other runs",
    "results": "Results",
    "operating": "Thresholds",
    "confusion": "Confusions",
    "pictures": "Test pictures",
    "shots": "Shots",
    "mining": "Mining",
    "training": "Training",
    "cost": "Cost",
    "config": "Configuration",
}

T = TypeVar("T")


def write_report(run: Path, others: Sequence[Path] = (), out: Path | None = None) -> Path:
    """Write the report of a run, beside `others` if there are any; returns its path."""
    files = read_run(run)
    compared = [read_run(other) for other in others]
    path = out or run / REPORT
    pictures = RunPictures(files)
    write_bytes(path, report_of(files, pictures, compared).encode())
    return path


def report_of(run: RunFiles, pictures: RunPictures, others: Sequence[RunFiles] = ()) -> str:
    """The page. What cannot be read is said in its place; the rest is shown."""
    oracle = oracle_of(run)
    mined: Mined | None
    detected: Detected | None
    mined, no_mined = _or_why(lambda: read_mined(run, pictures))
    detected, no_detected = _or_why(lambda: read_detected(run, pictures))
    sections: dict[str, Html | None] = {
        "doctor": findings_section(run, diagnose(run)),
        "compare": compare_section([run, *others]) if others else None,
        "results": results_section(run, oracle),
        "operating": operating_section(run, detected),
        "confusion": confusion_section(run),
        "pictures": pictures_section(pictures, detected, no_detected),
        "shots": shots_section(run, pictures),
        "mining": mining_section(run, pictures, mined, no_mined),
        "training": training_section(run),
        "cost": cost_section(run),
        "config": config_section(run),
    }
    shown = {name: content for name, content in sections.items() if content is not None}
    links = [tag("li", tag("a", CONTENTS[name], href=f"#{name}")) for name in shown]
    body = join(
        tag("a", "Skip to content", href="#content", class_="skip"),
        headline(run, oracle),
        tag("nav", tag("ul", links), aria_label="Contents"),
        tag("main", *shown.values(), id="content"),
        tag("footer", f"mini report, {run.folder}"),
    )
    return page(f"{run.folder.resolve().name}: report", body)


def _or_why(read: Callable[[], T | None]) -> tuple[T | None, str]:
    """What is read, or why it cannot be."""
    try:
        return read(), ""
    except UserError as error:
        return None, f"{error.what} {error.fix}".strip()
