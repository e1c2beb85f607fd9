"""`mini presets`: the configurations with a name, and what each takes."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from itertools import groupby

from rich.table import Table

from mini_fsod import show
from mini_fsod.config import Config, resolve
from mini_fsod.keys import Training
from mini_fsod.presets import PRESETS
from mini_fsod.values import Section

Cells = tuple[str, ...]
SPLIT = r"(?<=split)\d+"
COMMENTS = 36  # the column in which they begin


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
        rows = {name: _cells(configs[name]) for name in names}
        for folded, cells in _folded(rows).items():
            table.add_row(show.plain(folded), *cells)
    show.table(table)
    for about, names in groupby(PRESETS, lambda name: PRESETS[name].about):
        group = list(names)
        first = group[0] + (f" ... {group[-1]}" if len(group) > 1 else "")
        show.out.print(f"\n[bold]{first}[/]\n{show.plain(about)}", soft_wrap=True)


def run_one(source: str, as_json: bool) -> None:
    """Every key of a preset or a configuration file, as YAML with what it means; what differs from
    the key's default stands out.
    """
    config, meanings = resolve(source), _meanings(Config)
    if as_json:
        print(config.model_dump_json())
        return
    if source in PRESETS:
        show.out.print(f"[dim]# {show.plain(PRESETS[source].about)}[/]", soft_wrap=True)
    path: list[str] = []
    usual = Config().to_yaml().splitlines()
    for line, default in zip(config.to_yaml().splitlines(), usual, strict=True):
        indented = line.lstrip()
        path = [*path[: (len(line) - len(indented)) // 2], indented.partition(":")[0]]
        text = show.plain(line) if line == default else f"[bold]{show.plain(line)}[/]"
        if meaning := meanings.get(".".join(path)):
            text += f"{' ' * max(2, COMMENTS - len(line))}[dim]# {show.plain(meaning)}[/]"
        show.out.print(text, soft_wrap=True)


def _meanings(section: type[Section], prefix: str = "") -> dict[str, str]:
    """What stands beside or above each key in keys.py: the one place that says it."""
    found: dict[str, str] = {}
    for owner in reversed(section.__mro__[: section.__mro__.index(Section)]):
        above: list[str] = []
        for line in inspect.getsource(owner).splitlines():
            key = re.match(r"    (\w+): [^#]*(?:  # (.*))?$", line)
            if line.startswith("    # "):
                above.append(line[6:])
            elif key and key[1] in section.model_fields:
                said = " ".join([*above, *filter(None, [key[2]])])
                found[prefix + key[1]] = said or found.get(prefix + key[1], "")
            if not line.startswith("    # "):
                above = []
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found |= _meanings(field.annotation, f"{prefix}{name}.")
    return found


def _folded(rows: Mapping[str, Cells]) -> dict[str, Cells]:
    """Presets that differ in the number of their split alone, as one row."""
    splits: dict[tuple[str, Cells], list[str]] = {}
    for name, cells in rows.items():
        number = re.search(SPLIT, name)
        splits.setdefault((re.sub(SPLIT, "", name), cells), []).append(number[0] if number else "")
    return {
        name.replace("split", f"split{{{','.join(of)}}}") if len(of) > 1 else name: cells
        for (name, cells), of in splits.items()
    }


def _cells(config: Config) -> Cells:
    """Backbone, sizes, budgets, and what a person has to bring."""
    short, weights = config.views.short, config.detector.weights
    norm = ", GroupNorm" if config.detector.norm == "group" else ""
    sizes = f"{min(short)} to {max(short)}" if len(short) > 1 else f"{short[0]}"
    needs = [
        *(["data.root"] if config.data.root is None else []),
        *(["data.novel"] if config.data.split is None and not config.data.novel else []),
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
