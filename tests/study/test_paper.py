"""Compared with the LaTeX source of the paper, where that is available."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mini_fsod.study.paper import SHOTS, TABLES, TITLES, paper_numbers

SOURCE = Path(__file__).resolve().parents[2].parent / "shared" / "paper.tex.txt"


def figures(line: str) -> list[float]:
    return [float(n) for n in re.findall(r"(?<![\d.])\d+\.\d(?!\d)", line.partition("&")[2])]


def row_start(row: str) -> str:
    """How the row of a table begins in LaTeX, spaces left out."""
    marks = {"neither": "xx", "RPN": "cx", "R-CNN": "xc", "RPN and R-CNN": "cc"}
    if row in marks:
        return "&".join({"x": "\\xmark", "c": "\\cmark"}[mark] for mark in marks[row])
    return {"MINI": "\\bd{MINI(Ours)}"}.get(row, row.replace(" ", ""))


@pytest.mark.parametrize("table", TABLES)
def test_tables_have_the_numbers_of_the_paper(table: str) -> None:
    if not SOURCE.exists():
        pytest.skip("needs ../shared/paper.tex.txt, which is not part of the project")
    text = SOURCE.read_text()
    label = text.index(f"\\label{{{table}}}")
    body = text[label : text.index("\\end{tabular}", label)]
    assert TITLES[table] in text[label - 400 : label]
    for row, lines in TABLES[table].items():
        found = [
            line for line in body.splitlines() if line.replace(" ", "").startswith(row_start(row))
        ]
        assert len(found) == 1, row
        assert figures(found[0]) == [value for line in lines for value in line], row


def test_paper_numbers_by_shots_and_split() -> None:
    main = dict(zip(SHOTS, (51.8, 53.6, 62.3, 62.1, 63.7), strict=True))
    assert paper_numbers("MINI", 2) == ("tab:voc_main", main)
    assert paper_numbers("TFA Base", 1)[1][10] == 58.4
    assert paper_numbers("TFA Base", 2) == ("tab:component", {})
    assert paper_numbers("TFA Base", None) == ("tab:component", {})


def test_tables_have_each_row_once() -> None:
    rows = [row for table in TABLES.values() for row in table]
    assert len(rows) == len(set(rows))
