"""`mini mine`: the stage `mine` alone, in a run that is there."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from mini_fsod import console
from mini_fsod.commands.run import run_into
from mini_fsod.config.load import STAGES, Config, resolve
from mini_fsod.errors import UserError
from mini_fsod.files import is_file


def run(place: Path, sets: Sequence[str], extra: Path | None = None) -> None:
    from mini_fsod.mining.extra import EXTRA
    from mini_fsod.runs import again, cleared, folder

    source = place / folder.CONFIG
    if not is_file(source):
        raise UserError(
            f"{place}: not the folder of a run (no {folder.CONFIG} in it).",
            "`mini run` makes one; it needs the stages base and transfer.",
        )
    for text in sets:
        key = text.partition("=")[0].strip()
        if not key.startswith("mine."):
            raise UserError(
                f"--set {text}: only keys of mining can be changed here, such as choose.alpha.",
                f"mini run {source} -o {place} --set {text} --from the stage it concerns.",
            )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("mini mine is one process.", "Start it without torchrun.")
    more = [] if extra is None else [f"mine.extra={json.dumps(str(extra))}"]
    with folder.held(place):  # nobody else works there, or this says so
        again.settle(place)  # which may bring back another config.yaml
        cleared.settle(place)
        config = resolve(str(source), [*sets, *more])
        _look_before(config, place)
        with again.aside(place):
            run_into(config, place, "mine", "mine", aside=True)
        cleared.drop(place)  # what lies there was made of a former pool
    for part in (place / "mine", place / "mine" / EXTRA):
        if is_file(part / "thresholds.json"):
            console.table(class_table(part))
            console.note(f"{part}: pool.json, candidates.json, thresholds.json")
    console.note(f"to go on: mini run {shlex.quote(str(source))} -o {shlex.quote(str(place))}")


def _look_before(config: Config, place: Path) -> None:
    """What would stop the stage stops it before anything is moved."""
    import torch

    from mini_fsod.mining import choose, extra
    from mini_fsod.runs import folder
    from mini_fsod.runs.data import RunData

    folder.to_do(place, "mine", STAGES[: STAGES.index("mine") + 1])
    folder.refuse_stale(place, config, "mine")
    choose.ready(config.mine)
    material = RunData(config, torch.device("cpu"))
    material.check(["mine"])
    if config.mine.extra is not None:
        extra.extra_images(material, config.mine.extra)


def class_table(place: Path) -> Table:
    """A row a class: candidates, threshold, what was kept, how much of it is right, its sheet."""
    thresholds, known = _load(place / "thresholds.json"), _load(place / "audit.json")
    heads = ["candidates", "delta", "kept"] + (["precision", "recall"] if known else [])
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("class")
    for head in heads:
        table.add_column(head, justify="right")
    table.add_column("sheet")
    for n, (name, row) in enumerate(thresholds["classes"].items(), start=1):
        sheet = next((path.name for path in place.glob(f"{n}-*.png")), "-")
        figures = row | (known["classes"][name] if known else {})
        table.add_row(console.plain(name), *(_cell(figures[head]) for head in heads), sheet)
    if known and len(thresholds["classes"]) > 1:
        total = known["pool"] | {"delta": None}
        table.add_row("all", *(_cell(total[head]) for head in heads), "")
    return table


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def _load(path: Path) -> dict[str, Any]:
    """The content of a file that the stage has left; nothing if it has not."""
    content: dict[str, Any] = json.loads(path.read_bytes()) if is_file(path) else {}
    return content
