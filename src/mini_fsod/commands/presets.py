"""`mini presets`: the presets, all keys of one, or the reference of all keys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from mini_fsod import console
from mini_fsod.commands.options import AsJson, ConfigSeed, ConfigShots, ConfigSplit, app, flag
from mini_fsod.errors import UserError

if TYPE_CHECKING:
    from mini_fsod.config.schema import Config

COMMENT_COLUMN = 36


@app.command()
def presets(
    source: Annotated[
        str | None,
        Argument(
            metavar="PRESET|FILE",
            help="Show every key of this preset or YAML file. Example: photos",
        ),
    ] = None,
    split: ConfigSplit = None,
    shots: ConfigShots = None,
    seed: ConfigSeed = None,
    keys: Annotated[bool, flag("--keys", "Explain all keys, in Markdown.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the presets, or show all keys of one. Example: mini presets voc-320 --shots 5"""
    options = {"--split": split, "--shots": shots, "--seed": seed}
    given = [name for name, value in options.items() if value is not None]
    if keys and (source or given):
        raise UserError("--keys explains all keys, not those of one preset.", "Use it alone.")
    if given and source is None:
        raise UserError(
            f"{given[0]} needs a preset or a file.", f"Type mini presets photos {given[0]} ..."
        )
    if keys:
        _show_reference(as_json)
    elif source is not None:
        from mini_fsod.config.load import resolve

        _show_config(source, resolve(source, (), split, shots, seed), as_json)
    else:
        _list_presets(as_json)


def _list_presets(as_json: bool) -> None:
    from mini_fsod.config.load import resolve
    from mini_fsod.config.presets import PRESETS

    if as_json:
        configs = {name: resolve(name).model_dump(mode="json") for name in PRESETS}
        result = {n: {"about": PRESETS[n].about, "config": c} for n, c in configs.items()}
        print(json.dumps(result, allow_nan=False))
        return
    table = console.columns("", "")
    for name, preset in PRESETS.items():
        table.add_row(f"[bold]{console.plain(name)}[/]", console.plain(preset.about))
    console.table(table)
    console.note("mini presets NAME shows every key of a preset; mini presets --keys explains all")


def _show_config(source: str, config: Config, as_json: bool) -> None:
    """Every key as YAML with its comment; what differs from the defaults in bold."""
    from mini_fsod.config.presets import PRESETS
    from mini_fsod.config.reference import key_comments

    if as_json:
        print(config.model_dump_json())
        return
    if source in PRESETS:
        console.out.print(f"[dim]# {console.plain(PRESETS[source].about)}[/]", soft_wrap=True)
    comments = key_comments()
    defaults = _lines_by_key(type(config)().to_yaml())
    for key, line in _lines_by_key(config.to_yaml()).items():
        text = console.plain(line)
        if line != defaults.get(key):
            text = f"[bold]{text}[/]"
        if key in comments:
            padding = " " * max(2, COMMENT_COLUMN - len(line))
            text += f"{padding}[dim]# {console.plain(comments[key])}[/]"
        console.out.print(text, soft_wrap=True)


def _lines_by_key(text: str) -> dict[str, str]:
    """The line of each key and section in a configuration as YAML."""
    lines: dict[str, str] = {}
    path: list[str] = []
    for line in text.splitlines():
        indented = line.lstrip()
        path = [*path[: (len(line) - len(indented)) // 2], indented.partition(":")[0]]
        lines[".".join(path)] = line
    return lines


def _show_reference(as_json: bool) -> None:
    from rich.markdown import Markdown

    from mini_fsod.config.reference import key_reference, markdown_reference

    if as_json:
        print(json.dumps([key._asdict() for key in key_reference()], allow_nan=False))
    elif console.out.is_terminal:
        console.out.print(Markdown(markdown_reference()))
    else:
        print(markdown_reference(), end="")
