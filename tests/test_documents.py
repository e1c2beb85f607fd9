"""What documents and messages tell people to type exists: commands, options, keys, files, links.

Pages about measurements quote commands and keys as they were called at the commit they name. They
say so in their first lines (HISTORICAL), and are only checked against the table of renamed keys. In
a table whose first column is called "before", that column holds names that are gone.
"""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import typer.main
from packaging.requirements import Requirement

from mini_fsod import __version__
from mini_fsod.cli import app
from mini_fsod.config.load import KEYS, SECTIONS, resolve

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "mini_fsod"
NAMES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in NAMES), *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
SOURCES = sorted(p.relative_to(ROOT / "src").as_posix() for p in PACKAGE.rglob("*.py"))
KNOWN = {*KEYS, *SECTIONS}

HISTORICAL = "as they were called at the commit"
HEAD = 20  # lines in which a page says that it is historical

KEY = rf"(?<![\w./-])(?:{'|'.join(name for name in SECTIONS if '.' not in name)})\.[a-z_][\w.]*\w"
FILES = (".py", ".txt", ".json", ".jsonl", ".md", ".yaml", ".yml", ".png", ".safetensors", ".lock")


def is_historical(page: str) -> bool:
    return HISTORICAL in " ".join(" ".join(TEXTS[page].splitlines()[:HEAD]).split())


def current_text(page: str) -> str:
    """A page without what is about the past: older changes, and names in columns "before"."""
    text = TEXTS[page]
    if page == "CHANGELOG.md":
        text = text.split("\n## ")[1]
    lines, is_migration = [], False
    for line in text.splitlines():
        is_migration = line.startswith("|") and (is_migration or line.startswith("| before |"))
        lines.append(line.split("|", 2)[2] if is_migration else line)
    return "\n".join(lines)


CURRENT = {page: current_text(page) for page in TEXTS if not is_historical(page)}


def keys_in(text: str) -> set[str]:
    """What looks like a configuration key, and not like a file or a function of a module."""
    return {
        name
        for name in re.findall(KEY, text)
        if name in KEYS or not (name.endswith(FILES) or names_a_module(name))
    }


def keys_in_spans(text: str) -> set[str]:
    """Keys between backticks; not in blocks of code."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return keys_in(" ".join(re.findall(r"`([^`]+)`", prose)))


def names_a_module(name: str) -> bool:
    """Whether `data.subsets` or `data.subsets.arranged` is in the package."""
    folder, module, *_ = name.split(".")
    return (PACKAGE / folder / f"{module}.py").exists()


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", CURRENT[page], re.DOTALL)


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
    """The lines `mini ...` of current pages, in blocks and in sentences."""
    lines = [
        line for page in CURRENT for block in blocks(page, "sh") for line in block.splitlines()
    ]
    for text in CURRENT.values():
        lines += re.findall(r"`(mini [a-z-]+ [^`]*)`", text)
    return sorted({line.partition("  #")[0] for line in lines if re.match("mini [a-z]", line)})


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


SHOWN = [page for page in CURRENT if not page.startswith(("docs/decisions/", "docs/lab/"))]
LANGUAGES = {"sh", "yaml", "python"}  # yaml: above; python: test_python_pages.py
NO_CODE = ("src/",)  # how a block without a language begins: the tree in the README


@pytest.mark.parametrize("page", SHOWN)
def test_every_block_has_a_language_that_a_test_checks(page: str) -> None:
    fenced = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
    for language, content in fenced.findall(CURRENT[page]):
        assert language in LANGUAGES or content.startswith(NO_CODE), content


def shell_lines() -> list[str]:
    lines = [line for page in SHOWN for block in blocks(page, "sh") for line in block.splitlines()]
    return sorted({line.partition("  #")[0].strip() for line in lines if line.strip()})


@pytest.mark.parametrize("line", shell_lines())
def test_shell_lines_are_accepted(line: str) -> None:
    """`mini` reads each of its lines without an error; targets of make, extras of pip, and scripts
    with their options exist.
    """
    program, *words = shlex.split(line, comments=True)
    if program == "torchrun":
        from torch.distributed.run import parse_args

        launched = parse_args(words)
        assert launched.no_python
        program, words = launched.training_script, launched.training_script_args
    if program == "mini":
        command: Any = typer.main.get_command(app)
        while hasattr(command, "commands") and words and not words[0].startswith("-"):
            command = command.commands[words.pop(0)]
        with suppress(typer.Exit):  # --version
            command.make_context("mini", words)
        return
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{words[0]}:", makefile, re.M)
        return
    if program == "python":
        script = (ROOT / words[0]).read_text(encoding="utf-8")
        assert all(f'"{word}"' in script for word in words if word.startswith("-"))
        return
    if program == "cp":
        assert len(words) == 2  # test_quick_start.py runs it
        return
    assert (program, words[0]) == ("pip", "install"), "no test for this program"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    known = [Requirement(text) for text in (*project["dependencies"], *chain(*extras.values()))]
    for word in words[1:]:
        if word.startswith("-") or word == f"dist/mini_fsod-{__version__}-py3-none-any.whl":
            continue
        name, _, asked = word.removesuffix("]").partition("[")
        assert {*filter(None, asked.split(","))} <= extras.keys(), word
        name = re.split(r"[<>=]", name)[0]
        assert name in (".", "mini-fsod") or name in {each.name for each in known}, word


@pytest.mark.parametrize("page", CURRENT)
def test_keys_in_documents_exist(page: str) -> None:
    assert keys_in_spans(CURRENT[page]) <= KNOWN


def test_renamed_keys_has_every_key_of_historical_pages_that_is_gone() -> None:
    table = TEXTS["docs/results.md"].split("## Renamed keys")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    before = {key for old, _ in rows for key in keys_in(old)}
    assert not before & KNOWN
    assert {key for _, new in rows for key in keys_in(new)} <= KNOWN
    historical = [page for page in TEXTS if page not in CURRENT]
    assert "docs/results.md" in historical
    for page in historical:
        assert keys_in_spans(TEXTS[page]) <= KNOWN | before, page


@pytest.mark.parametrize("page", CURRENT)
def test_files_and_functions_in_documents_exist(page: str) -> None:
    """`mining/scan.py` and `mining/scan.py:scan` are in the package, or below the repository."""
    for file, name in re.findall(r"`([\w/]+\.py)(?::(\w+))?`", CURRENT[page]):
        path = next((p for p in (PACKAGE / file, ROOT / file) if p.is_file()), None)
        assert path is not None, file
        source = path.read_text(encoding="utf-8")
        pattern = rf"^(?:def|class) {name}\b"
        assert not name or re.search(pattern, source, re.MULTILINE), f"{file}:{name}"


@pytest.mark.parametrize("source", SOURCES)
def test_keys_in_messages_exist(source: str) -> None:
    """In all strings of the source: errors, notes, help and docstrings."""
    tree = ast.parse((ROOT / "src" / source).read_text(encoding="utf-8"))
    strings = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert keys_in(" ".join(strings)) <= KNOWN


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
