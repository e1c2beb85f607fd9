"""What README, docs/ and messages tell people to type exists: commands, options, keys, links."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mini_fsod.cli import app
from mini_fsod.config.load import KEYS, SECTIONS, resolve

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
# what was typed at the time: decisions, lab notes and changes may name keys that are gone
HISTORY = ("CHANGELOG.md", "docs/decisions/", "docs/lab/")
CURRENT = [page for page in TEXTS if not page.startswith(HISTORY)]
SOURCES = sorted(p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("*.py"))

KEY = rf"(?<![\w./-])(?:{'|'.join(name for name in SECTIONS if '.' not in name)})\.[a-z_][\w.]*\w"
FILES = (".py", ".json", ".md", ".yaml", ".yml", ".png", ".safetensors", ".lock")


def keys_in(text: str) -> set[str]:
    """What looks like a configuration key, and not like a file or a function of a module."""
    return {
        name
        for name in re.findall(KEY, text)
        if name in KEYS or not (name.endswith(FILES) or names_a_module(name))
    }


def names_a_module(name: str) -> bool:
    """Whether `data.subsets` or `data.subsets.arranged` is in the package."""
    folder, module, *_ = name.split(".")
    return (ROOT / "src" / "mini_fsod" / folder / f"{module}.py").exists()


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", TEXTS[page], re.DOTALL)


@pytest.mark.parametrize("page", CURRENT)
def test_yaml_blocks_are_configurations(page: str, tmp_path: Path) -> None:
    for n, text in enumerate(blocks(page, "yaml")):
        if re.search(r"^rows:", text, re.MULTILINE):
            continue  # a study
        path = tmp_path / f"{n}.yaml"
        path.write_text(text)
        resolve(str(path))


def test_readme_begins_with_a_configuration_that_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "photos.yaml"
    path.write_text(blocks("README.md", "yaml")[0])
    resolve(str(path)).ready()


def typed_commands() -> list[str]:
    """The lines `mini ...` of README and current docs, in blocks and in sentences."""
    lines = [
        line for page in CURRENT for block in blocks(page, "sh") for line in block.splitlines()
    ]
    for page in CURRENT:
        lines += re.findall(r"`(mini [a-z-]+ [^`]*)`", TEXTS[page])
    return sorted({line.partition("  #")[0] for line in lines if line.startswith("mini ")})


@pytest.mark.parametrize("line", typed_commands())
def test_commands_and_options_exist(line: str) -> None:
    command: Any = typer.main.get_command(app)  # a class of the click inside Typer
    words = shlex.split(line)[1:]
    while hasattr(command, "commands"):
        is_listed = words and words[0] in command.commands
        default = "list" if "list" in command.commands else ""  # `mini runs` is `mini runs list`
        command = command.commands[words.pop(0) if is_listed else default]
    known = {name for parameter in command.params for name in (*parameter.opts, "--help")}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known


@pytest.mark.parametrize("page", CURRENT)
def test_keys_in_documents_exist(page: str) -> None:
    prose = re.sub(r"```.*?```", "", TEXTS[page], flags=re.DOTALL)
    spans = " ".join(re.findall(r"`([^`]+)`", prose))
    assert keys_in(spans) <= {*KEYS, *SECTIONS}


@pytest.mark.parametrize("source", SOURCES)
def test_keys_in_messages_exist(source: str) -> None:
    """In all strings of the source: errors, notes, help and docstrings."""
    tree = ast.parse((ROOT / "src" / source).read_text(encoding="utf-8"))
    strings = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert keys_in(" ".join(strings)) <= {*KEYS, *SECTIONS}


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_to_files_and_headings(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", TEXTS[page]):
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent / file if file else ROOT / page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), target
