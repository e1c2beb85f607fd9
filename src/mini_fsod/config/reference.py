"""The reference of all keys, made of the types and comments in schema.py."""

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

_SECTION_ORDER = ("", *SECTIONS)
WORDS = {"integer": "whole number", "number": "number", "string": "text"}
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
LIMITS |= {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}

HEAD = """\
# Keys of a configuration

Generated from `src/mini_fsod/config/schema.py` by `mini presets --keys > docs/keys.md`.

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
    schema = Config.model_json_schema()
    comments = key_comments()
    default = dict(zip(KEYS, _values(Config()), strict=True))
    rows = []
    for name in sorted(KEYS, key=lambda key: _SECTION_ORDER.index(key.rpartition(".")[0])):
        if not _has_row(name):
            continue
        meaning, _, change = comments[name].partition("Change it")
        values = list(_kinds(_property(schema, name)))
        rows.append(
            Key(
                name,
                " or ".join(filter(None, [", ".join(values[:-1]), values[-1]])),
                format_yaml([default[name]]).strip()[1:-1],
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
        about = vars(_section(name)).get("__doc__")
        lines += ["", f"## {name or 'Top level'}"]
        lines += ["", inspect.cleandoc(about)] if about else []
        lines += ["", "| key | values | default | meaning | when to change it | presets |"]
        lines += ["|---|---|---|---|---|---|"]
        for key in rows:
            cells = [f"`{key.name}`", key.values, f"`{key.default}`", key.meaning, key.change]
            lines.append(f"| {' | '.join([*cells, ', '.join(key.presets)])} |")
    return "\n".join(lines) + "\n"


def key_comments() -> Mapping[str, str]:
    """The comment beside or above each key in schema.py."""
    return dict(_comments(Config, ""))


def _comments(section: type[Section], prefix: str) -> Iterator[tuple[str, str]]:
    found: dict[str, str] = {}
    for owner in reversed(section.__mro__[: section.__mro__.index(Section)]):
        above: list[str] = []
        for line in inspect.getsource(owner).splitlines():
            key = re.match(r"    (\w+): [^#]*(?:  # (.*))?$", line)
            if line.startswith("    # "):
                above.append(line[6:])
                continue
            if key and key[1] in section.model_fields:
                comment = " ".join([*above, *filter(None, [key[2]])])
                found[key[1]] = comment or found.get(key[1], "")
            above = []
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _comments(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", found[name]


def _section(name: str) -> type[Section]:
    section: type[Section] = Config
    for part in filter(None, name.split(".")):
        kind = section.model_fields[part].annotation
        assert isinstance(kind, type)
        assert issubclass(kind, Section)
        section = kind
    return section


def _has_row(name: str) -> bool:
    """Whether a key is not one of `train` that a stage takes over with its default."""
    section, _, leaf = name.rpartition(".")
    return name not in SHARED or leaf in vars(_section(section))["__annotations__"]


def _values(config: Config) -> Iterator[Any]:
    table = config.model_dump(mode="json")
    for key in KEYS:
        value: Any = table
        for part in key.split("."):
            value = value[part]
        yield value


def _property(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The JSON schema of a key."""
    node: Mapping[str, Any] = schema
    for part in name.split("."):
        reference = node.get("$ref")
        node = schema["$defs"][reference.rpartition("/")[2]] if reference else node
        node = node["properties"][part]
    return node


def _kinds(node: Mapping[str, Any]) -> Iterator[str]:
    """The values that a JSON schema allows, in words."""
    if "anyOf" in node:
        for each in node["anyOf"]:
            yield from _kinds(each)
    elif "enum" in node or "const" in node:
        choices = node.get("enum", [node.get("const")])
        yield from (format_yaml([value]).strip()[1:-1] for value in choices)
    elif node["type"] == "array":
        yield f"list of {next(_kinds(node['items']))}"
    elif node["type"] == "boolean":
        yield from ("true", "false")
    elif node["type"] == "null":
        yield "null"
    else:
        word = "path" if node.get("format") == "path" else WORDS[node["type"]]
        limits = [f"{sign} {node[name]:g}" for name, sign in LIMITS.items() if name in node]
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
