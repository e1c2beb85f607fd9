"""The configuration as a person reads it: the choices, their reasons, and what comes next."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from mini_fsod import console
from mini_fsod.plain_yaml import format_yaml
from mini_fsod.start.choose import Choice

WIDTH = 88
COLUMN = 44  # of comments behind values, where they fit

# Keys that a person may want next, as comments: (section, lines)
LATER = {
    "base": ("minutes: 40                 # default 20; the learning rate falls within that time",),
    "online": ("minutes: 30                 # default 15, in photos-cpu 10; longer finds more",),
    "train": ("batch: 8                    # if memory runs out",),
    "mine": (
        "mean_score: 0.85            # fewer, surer extra boxes (0.75 at K = 5); try: mini mine",
    ),
}


def text_of(choices: Sequence[Choice], command: str, name: str) -> str:
    """YAML with comments; every value can be read back as it is."""
    lines = [
        f"# Written by: {console.CONTROLS.sub(' ', command)}",
        f"# Run it:     mini run {console.CONTROLS.sub(' ', name)}",
        "# All keys:   mini presets " + str(choices[0].value) + ", and mini presets --keys",
        "",
        *(_line("", choice) for choice in choices if "." not in choice.key),
    ]
    sections: dict[str, list[Choice]] = {}
    for choice in choices:
        section, dot, key = choice.key.partition(".")
        if not dot:
            continue
        sections.setdefault(section, []).append(choice._replace(key=key))
    for section in dict.fromkeys((*sections, *LATER)):
        given = sections.get(section, [])
        lines.append(f"{section}:" if given else f"# {section}:")
        lines += [_line("  ", choice) for choice in given]
        known = {choice.key for choice in given}
        later = [text for text in LATER.get(section, ()) if text.split(":")[0] not in known]
        if section == "base" and "checkpoint" in known:
            later = []
        lines += [f"#   {text}" for text in later]
    return "\n".join(lines) + "\n"


def _line(indent: str, choice: Choice) -> str:
    text = f"{indent}{_entry(choice.key, choice.value)}"
    if not choice.why:
        return text
    if len(text) < COLUMN and COLUMN + len(choice.why) < WIDTH + 12:
        return f"{text:<{COLUMN}}# {choice.why}"
    above = textwrap.wrap(choice.why, WIDTH - len(indent) - 2)
    return "\n".join([*(f"{indent}# {line}" for line in above), text])


def _entry(key: str, value: Any) -> str:
    return format_yaml({key: value}).rstrip("\n")
