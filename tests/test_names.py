"""Rules of CONTRIBUTING.md that hold for the whole package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import mini_fsod

PACKAGE = Path(mini_fsod.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
LINES = 400


def test_a_public_name_stands_in_one_module() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if definition and not node.name.startswith("_"):
                modules[node.name].append(path.relative_to(PACKAGE).as_posix())
    assert len(modules) > 500
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}


@pytest.mark.parametrize("folder", ["", "../../benchmarks", "../../tests"])
def test_no_file_is_longer_than_400_lines(folder: str) -> None:
    root = PACKAGE / folder
    if not root.is_dir():
        pytest.skip("only in a checkout")
    length = {path.name: len(path.read_text().splitlines()) for path in root.rglob("*.py")}
    assert {name: lines for name, lines in length.items() if lines > LINES} == {}


VAGUE = {"own", "again", "held", "seen", "told", "small"}


def test_no_name_is_vague() -> None:
    """These words say nothing of what a variable, function or parameter holds."""
    found = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = node.name
            elif isinstance(node, ast.arg):
                name = node.arg
            else:
                continue
            if name.strip("_").lower() in VAGUE:
                found.add(f"{path.relative_to(PACKAGE).as_posix()}: {name}")
    assert found == set()
