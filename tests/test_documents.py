"""What README, CONTRIBUTING, CHANGELOG and docs/ name exists: keys, commands, functions, pages.

Pages about measurements quote commands and keys as they were called at the commit they name. They
say so in their first lines (HISTORICAL), and their keys are not checked. In a table whose first
column is called "before", that column holds names that are gone.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from mini_fsod.cli import app
from mini_fsod.config.load import KEYS, SECTIONS, resolve

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "mini_fsod"
NAMES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
PAGES = [*(ROOT / name for name in NAMES), *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
README = TEXTS["README.md"]
RESULTS = "docs/results.md"

HISTORICAL = "as they were called at the commit"
FILES = (".py", ".json", ".jsonl", ".md", ".yaml", ".safetensors")
HEAD = 20  # lines in which a page says that it is historical


def is_checked(page: str) -> bool:
    """Whether a page names keys and commands of today."""
    return HISTORICAL not in " ".join("\n".join(TEXTS[page].splitlines()[:HEAD]).split())


def of_today(page: str) -> str:
    """The text of a page without the parts that are about the past."""
    text = TEXTS[page]
    if page == "CHANGELOG.md":
        text = text.split("\n## ")[1]  # the unreleased part
    lines, in_table = [], False
    for line in text.splitlines():
        in_table = line.startswith("|") and (in_table or line.startswith("| before "))
        lines.append(line.partition("|")[2].partition("|")[2] if in_table else line)
    return "\n".join(lines)


CHECKED = [page for page in TEXTS if is_checked(page)]


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", of_today(page), re.DOTALL)


def keys_in(text: str) -> set[str]:
    """Dotted keys between backticks, file names left out."""
    sections = "|".join(name for name in SECTIONS if "." not in name)
    spans = " ".join(re.findall(r"`([^`]+)`", text))
    named = {*re.findall(rf"(?<![\w./-])(?:{sections})\.[a-z_][\w.]*\w", spans)}
    return {name for name in named if not name.endswith(FILES)}


def commands() -> list[tuple[str, str]]:
    """Each command of the pages, once."""
    found: dict[str, str] = {}
    for page in CHECKED:
        joined = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
        lines = joined.splitlines()
        lines += re.findall(r"`(mini [a-z-]+ [^`]*)`", of_today(page))
        for line in lines:
            command = " ".join(line.partition("  #")[0].split())
            if command.startswith("mini "):
                found.setdefault(command, page)
    return list(found.items())


def test_configurations_of_the_readme_are_valid(tmp_path: Path) -> None:
    found = blocks("README.md", "yaml")
    assert found
    for text in found:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        resolve(str(path)).ready()


@pytest.mark.parametrize("command", [c for c, _ in commands()], ids=[c[:60] for c, _ in commands()])
def test_commands_in_documents_have_these_options(command: str) -> None:
    found: Any = typer.main.get_command(app)  # of the click that Typer brings along
    words = shlex.split(command)[1:]
    while hasattr(found, "commands"):
        # `mini runs` alone is `mini runs list`
        found = found.commands[words.pop(0) if words[:1] and words[0] in found.commands else "list"]
    known = {name for parameter in found.params for name in (*parameter.opts, "--help")}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known


@pytest.mark.parametrize("page", CHECKED)
def test_keys_in_documents_exist(page: str) -> None:
    prose = re.sub(r"```.*?```", "", of_today(page), flags=re.DOTALL)
    assert keys_in(prose) <= {*KEYS, *SECTIONS}


def test_renamed_keys_table_leads_to_keys_of_today() -> None:
    """The table for readers of historical pages: every key in them that is gone is in it."""
    table = TEXTS[RESULTS].split("## Renamed keys")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    before = {key for row in rows for key in keys_in(row[0])}
    assert not before & {*KEYS}
    assert {key for row in rows for key in keys_in(row[1])} <= {*KEYS, *SECTIONS}
    for page in TEXTS:
        if page not in CHECKED:
            assert keys_in(TEXTS[page]) <= {*KEYS, *SECTIONS, *before}, page


@pytest.mark.parametrize("page", CHECKED)
def test_functions_and_files_in_documents_exist(page: str) -> None:
    """`mining/scan.py:scan` and `mining/scan.py` are below src/mini_fsod."""
    for file, name in re.findall(r"`([a-z_/0-9]+\.py)(?::(\w+))?`", of_today(page)):
        path = next((p for p in (SOURCE / file, ROOT / file) if p.is_file()), None)
        assert path is not None, file
        if name:
            source = path.read_text(encoding="utf-8")
            assert re.search(rf"^ *(?:def|class) {name}\b", source, re.MULTILINE), f"{file}:{name}"


def _anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_to_files_and_headings(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", TEXTS[page]):
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent / file if file else ROOT / page
        assert path.exists(), target
        if anchor:
            assert anchor in _anchors(path.read_text(encoding="utf-8")), target
