"""What README and docs/ tell people to type exists: keys, options, files, places in other pages."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from mini_fsod.commands.options import app
from mini_fsod.config.load import KEYS, SECTIONS, resolve

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
README = TEXTS["README.md"]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL)


def test_the_files_of_keys_are_ones(tmp_path: Path) -> None:
    """The second is told as what replaces the last two lines of the first."""
    whole, instead = blocks("yaml")
    *first, _, _ = whole.splitlines()
    for name, text in {"whole": whole, "instead": "\n".join([*first, instead])}.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        resolve(str(path)).ready()
    assert resolve(str(tmp_path / "instead.yaml")).online.batch == 4


def _typed() -> list[str]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    lines += re.findall(r"`(mini [a-z-]+ [^`]*)`", README)
    return [line.partition("  #")[0] for line in lines if line.startswith("mini ")]


@pytest.mark.parametrize("line", _typed())
def test_the_commands_have_these_options(line: str) -> None:
    command: Any = typer.main.get_command(app)  # of the click that Typer brings along
    words = shlex.split(line)[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    known = {name for parameter in command.params for name in (*parameter.opts, "--help")}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known


@pytest.mark.parametrize("page", TEXTS)
def test_the_keys_exist(page: str) -> None:
    sections = "|".join(name for name in SECTIONS if "." not in name)
    prose = re.sub(r"```.*?```", "", TEXTS[page], flags=re.DOTALL)
    spans = " ".join(re.findall(r"`([^`]+)`", prose))
    named = {*re.findall(rf"(?<![\w./-])(?:{sections})\.[a-z_][\w.]*\w", spans)}
    files = {name for name in named if name.endswith((".py", ".json", ".md", ".yaml"))}
    assert named - files <= {*KEYS, *SECTIONS}


def _anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", TEXTS[page]):
        file, _, anchor = target.partition("#")
        place = (ROOT / page).parent / file if file else ROOT / page
        assert place.exists(), target
        if anchor:
            assert anchor in _anchors(place.read_text(encoding="utf-8")), target
