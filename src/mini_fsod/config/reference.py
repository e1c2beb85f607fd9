"""The reference of all keys, made of the types and comments in inputs.py and schema.py."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from mini_fsod.config.load import KEYS, SECTIONS, SHARED
from mini_fsod.config.presets import PRESETS
from mini_fsod.config.schema import Config
from mini_fsod.config.values import Section
from mini_fsod.plain_yaml import format_yaml

ALL_SECTIONS: Mapping[str, type[Section]] = {"": Config, **SECTIONS}
WORDS = {"integer": "whole number", "number": "number", "string": "text"}
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
LIMITS |= {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
LARGEST = 1 << 53  # the limit of all whole numbers, which is not worth a word

HEAD = """\
# Keys of a configuration

Generated from the types in `src/mini_fsod/config/` by `mini presets --keys > docs/keys.md`.

A configuration is a preset or a YAML file; `--set KEY=VALUE` changes a key. A file may start from a
preset with the line `preset: NAME`. `auto` stands for a value that depends on the number of shots:
`mini presets NAME --shots 5` shows it."""


class Key(NamedTuple):
    name: str
    values: str
    default: str
    meaning: str
    change: str  # when to change it; may be empty
    presets: tuple[str, ...]  # those that set it


def key_reference() -> list[Key]:
    """Every key, section by section. Stages repeat keys of `train` where their default differs."""
    rows = []
    for section, kind in ALL_SECTIONS.items():
        properties, defaults = (
            kind.model_json_schema()["properties"],
            kind().model_dump(mode="json"),
        )
        comments = _comments(kind)
        for leaf in kind.model_fields:
            name = _join(section, leaf)
            if name in SECTIONS or not _has_row(name):
                continue
            meaning, _, change = comments[leaf].partition("Change it")
            *values, last = _values(properties[leaf])
            rows.append(
                Key(
                    name,
                    " or ".join(filter(None, [", ".join(values), last])),
                    _yaml(defaults[leaf]),
                    meaning.strip().rstrip("."),
                    change.strip(),
                    tuple(_setters(name)),
                )
            )
    return rows


def markdown_reference() -> str:
    """docs/keys.md"""
    lines = [HEAD]
    for name, rows in groupby(key_reference(), key=lambda key: key.name.rpartition(".")[0]):
        about = vars(ALL_SECTIONS[name]).get("__doc__")
        lines += ["", f"## {name or 'Top level'}"]
        lines += ["", inspect.cleandoc(about)] if about else []
        lines += ["", "| key | values | default | meaning | when to change it | presets |"]
        lines += ["|---|---|---|---|---|---|"]
        for key in rows:
            cells = [f"`{key.name}`", key.values, f"`{key.default}`", key.meaning, key.change]
            lines.append(f"| {' | '.join([*cells, ', '.join(key.presets)])} |")
    return "\n".join(lines) + "\n"


def key_comments() -> dict[str, str]:
    """The comment beside or above each key."""
    comments = {
        _join(section, leaf): comment
        for section, kind in ALL_SECTIONS.items()
        for leaf, comment in _comments(kind).items()
    }
    return {key: comments[key] for key in KEYS}


def _comments(section: type[Section]) -> dict[str, str]:
    comments: dict[str, str] = {}
    for owner in reversed(section.__mro__[: section.__mro__.index(Section)]):
        above: list[str] = []
        for line in inspect.getsource(owner).splitlines():
            key = re.match(r"    (\w+): [^#]*(?:  # (.*))?$", line)
            if line.startswith("    # "):
                above.append(line[6:])
                continue
            if key and key[1] in section.model_fields:
                comment = " ".join([*above, *filter(None, [key[2]])])
                comments[key[1]] = comment or comments.get(key[1], "")
            above = []
    return comments


def _join(section: str, leaf: str) -> str:
    return f"{section}.{leaf}" if section else leaf


def _has_row(name: str) -> bool:
    """Whether a key is not one of `train` that a stage takes over with its default."""
    section, _, leaf = name.rpartition(".")
    return name not in SHARED or leaf in vars(SECTIONS[section])["__annotations__"]


def _yaml(value: Any) -> str:
    return format_yaml([value]).strip()[1:-1]


def _values(node: Mapping[str, Any]) -> Iterator[str]:
    """The values that a JSON schema allows, in words."""
    if "anyOf" in node:
        for each in node["anyOf"]:
            yield from _values(each)
    elif "enum" in node or "const" in node:
        yield from map(_yaml, node.get("enum", [node.get("const")]))
    elif node["type"] == "array":
        yield f"list of {next(_values(node['items']))}"
    elif node["type"] == "boolean":
        yield from ("true", "false")
    elif node["type"] == "null":
        yield "null"
    else:
        word = "path" if node.get("format") == "path" else WORDS[node["type"]]
        limits = [
            f"{sign} {node[name]:g}"
            for name, sign in LIMITS.items()
            if abs(node.get(name, LARGEST)) < LARGEST
        ]
        yield f"{word} {' and '.join(limits)}".strip()


def _setters(name: str) -> Iterator[str]:
    """The presets that set a key; for a key of `train` also those that set it for a stage."""
    aliases = [key for key, train in SHARED.items() if train == name and not _has_row(key)]
    for preset, content in PRESETS.items():
        stages = [f"`{key}`" for key in aliases if key in content.keys]
        if name in content.keys:
            yield preset
        elif stages:
            yield f"{preset} ({', '.join(stages)})"
