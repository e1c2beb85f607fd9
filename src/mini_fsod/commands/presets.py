"""`mini presets`: the configurations with a name, and what each takes."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated

import typer

from mini_fsod import console
from mini_fsod.commands.options import AsJson, app
from mini_fsod.config.load import Config, resolve
from mini_fsod.config.presets import PRESETS
from mini_fsod.config.schema import Training
from mini_fsod.config.values import Section

NUMBER = r"(?<=split)\d+|\d+(?=shot)"
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
    groups = [list(names) for _, names in groupby(PRESETS, lambda name: PRESETS[name].about)]
    for names in sorted(groups, key=len):  # what people begin with comes first
        facts: dict[str, list[str]] = {}
        for name in names:
            facts.setdefault(_facts(configs[name]), []).append(name)
        console.out.print(f"[bold]{console.plain(_folded(names))}[/]", soft_wrap=True)
        console.out.print(console.plain(PRESETS[names[0]].about), soft_wrap=True)
        for line, own in facts.items():
            whose = f"{_folded(own)}: " if len(facts) > 1 else ""
            console.out.print(f"[dim]{console.plain(whose + line)}[/]", soft_wrap=True)
        console.out.print()
    console.note("mini presets NAME shows every key of one, and what it means")


def run_one(source: str, as_json: bool) -> None:
    """Every key of a preset or a configuration file, as YAML with what it means; what differs from
    the key's default stands out.
    """
    config, meanings = resolve(source), _meanings(Config)
    if as_json:
        print(config.model_dump_json())
        return
    if source in PRESETS:
        console.out.print(f"[dim]# {console.plain(PRESETS[source].about)}[/]", soft_wrap=True)
    path: list[str] = []
    usual = Config().to_yaml().splitlines()
    for line, default in zip(config.to_yaml().splitlines(), usual, strict=True):
        indented = line.lstrip()
        path = [*path[: (len(line) - len(indented)) // 2], indented.partition(":")[0]]
        text = console.plain(line) if line == default else f"[bold]{console.plain(line)}[/]"
        if meaning := meanings.get(".".join(path)):
            text += f"{' ' * max(2, COMMENTS - len(line))}[dim]# {console.plain(meaning)}[/]"
        console.out.print(text, soft_wrap=True)


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


def _folded(names: Sequence[str]) -> str:
    """voc-split{1,2,3}-{1,5}shot for names that differ in numbers alone."""
    numbers = [re.findall(NUMBER, name) for name in names]
    places = iter([*dict.fromkeys(column)] for column in zip(*numbers, strict=True))

    def fold(_: re.Match[str]) -> str:
        own = next(places)
        return f"{{{','.join(own)}}}" if len(own) > 1 else own[0]

    return re.sub(NUMBER, fold, names[0])


def _facts(config: Config) -> str:
    """Backbone, sizes, budgets, and what a person has to bring."""
    short, weights = config.views.short, config.detector.weights
    norm = " with GroupNorm" if config.detector.norm == "group" else ""
    sizes = f"{min(short)} to {max(short)}" if len(short) > 1 else f"{short[0]}"
    needs = [
        *(["data.root"] if config.data.root is None else []),
        *(["data.novel"] if config.data.split is None and not config.data.novel else []),
        *([f"weights {weights}"] if weights else []),
    ]
    return (
        f"{config.detector.backbone}{norm}, {sizes} pixels; base {_budget(config.base)}, "
        f"online {_budget(config.online)}; needs {', '.join(needs) or 'nothing'}"
    )


def _budget(stage: Training) -> str:
    if stage.iterations is None:
        return f"{stage.minutes:g} min"
    return console.count(stage.iterations, "iteration")


@app.command("presets")
def presets_command(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG",
            show_default=False,
            help="Show every key of this recipe or YAML file, with its meaning. Example: photos",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes, or show every key of one.

    Example: mini presets photos
    """
    run(as_json) if source is None else run_one(source, as_json)
