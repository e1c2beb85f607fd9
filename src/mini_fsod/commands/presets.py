"""`mini presets`: the configurations with a name, and what each takes."""

from __future__ import annotations

import json
from itertools import groupby

from rich.table import Table

from mini_fsod import show
from mini_fsod.config import Config, resolve
from mini_fsod.keys import Training
from mini_fsod.presets import PRESETS


def run(as_json: bool) -> None:
    configs = {name: resolve(name) for name in PRESETS}
    if as_json:
        result = {
            name: {"about": PRESETS[name].about, "config": config.model_dump(mode="json")}
            for name, config in configs.items()
        }
        print(json.dumps(result, allow_nan=False))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("preset", "backbone", "pixels", "base", "transfer", "needs"):
        table.add_column(column)
    for n, (_, names) in enumerate(groupby(PRESETS, lambda name: PRESETS[name].about)):
        if n:
            table.add_row()
        for name in names:
            table.add_row(name, *_cells(configs[name]))
    show.table(table)
    for about, names in groupby(PRESETS, lambda name: PRESETS[name].about):
        group = list(names)
        first = group[0] + (f" ... {group[-1]}" if len(group) > 1 else "")
        show.out.print(f"\n[bold]{first}[/]\n{show.plain(about)}", soft_wrap=True)


def _cells(config: Config) -> tuple[str, ...]:
    """Backbone, sizes, budgets, and what a person has to bring."""
    short, weights = config.views.short, config.detector.weights
    norm = ", GroupNorm" if config.detector.norm == "group" else ""
    sizes = f"{min(short)} to {max(short)}" if len(short) > 1 else f"{short[0]}"
    needs = [
        *(["data.root"] if config.data.root is None else []),
        *([f"weights {weights}"] if weights else []),
    ]
    return (
        config.detector.backbone + norm,
        sizes,
        _budget(config.base),
        _budget(config.transfer),
        ", ".join(needs) or "nothing",
    )


def _budget(stage: Training) -> str:
    if stage.iterations is None:
        return f"{stage.minutes:g} min"
    return show.count(stage.iterations, "iteration")
