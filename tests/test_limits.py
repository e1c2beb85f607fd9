"""The table of limits, and that messages stay short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers import tiny
from mini_fsod import limits
from mini_fsod.errors import DataError, Problem, UserError, brief, total

PACKAGE = Path(limits.__file__).parent
PAGE = PACKAGE.parents[1] / "docs" / "limits.md"
CONSTANTS = {name: value for name, value in vars(limits).items() if name.isupper()}


def test_limits_page_has_the_numbers_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+)( MB)? \|", PAGE.read_text(), re.MULTILINE)
    listed = {name: int(n.replace(",", "")) << (20 if mb else 0) for name, n, mb in rows}
    assert listed == CONSTANTS
    assert {name for name, _, mb in rows if mb} == {n for n in CONSTANTS if n.endswith("_BYTES")}


@pytest.mark.parametrize("name", CONSTANTS)
def test_limit_is_used(name: str) -> None:
    sources = (path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "limits.py")
    assert any(re.search(rf"\b{name}\b", text) for text in sources)


def test_pictures_are_opened_in_one_place() -> None:
    """Elsewhere, Pillow would choose among all its decoders, and wait for pipes."""
    found = [p.name for p in PACKAGE.rglob("*.py") if re.search(r"Image\.open\(", p.read_text())]
    assert found == ["pictures.py"]


@pytest.mark.parametrize("text", ["x" * 201, "x" * 10**6, "/".join(["folder"] * 1000)])
def test_errors_quote_at_most_200_characters_of_a_word(text: str) -> None:
    error = UserError(f"{text}: no such file.", f"Do not give {text}.")
    for said in (error.what, error.fix, str(error)):
        assert max(map(len, said.split())) <= limits.QUOTED
    assert error.what.startswith(text[:50])
    assert error.what.endswith("no such file.")


def test_brief_keeps_usual_messages() -> None:
    classes = ", ".join(f"class {n}" for n in range(80))
    text = f"{'x' * 199}: not one of the classes {classes}"
    assert brief(text) == text
    assert len(brief("many words " * 1000)) <= limits.MESSAGE


def test_total_counts_problems_that_are_not_listed() -> None:
    first = Problem("box-nan", "a.json", "annotation 1", "is nan", "correct it")
    rest = Problem("box-nan", "a.json", "", "99 more of this kind", "correct it", 99)
    assert total([first, rest]) == 100
    assert str(DataError([first, rest])).endswith("(and 99 more problems)")


def test_commands_quote_at_most_200_characters_of_what_was_given(mini, tmp_path: Path) -> None:
    long = "no such " * 400
    tiny.write_coco(tmp_path)
    for words in (
        ["check", long],
        ["check", tmp_path, "--novel", long],
        ["check", tmp_path, "--split", long],
        ["check", tmp_path, "--subset", long],
        ["check", tmp_path, "--fix", "x" * 5000],
        ["run", long],
        ["run", "demo", "--set", f"seed={long}"],
        ["run", "demo", "--set", long],
        ["run", "demo", "--set", f"data.root={long}", "--out", tmp_path / "run"],
        ["eval", tmp_path, "--detections", long],
        ["study", long],
        ["predict", long, long],
        ["mine", long],
        ["sample", long],
    ):
        code, _, said = mini(*words)
        assert code == 2, words
        assert said.count("such") <= 2 * limits.QUOTED // len("no such "), words
        assert max(map(len, said.split())) <= limits.QUOTED
