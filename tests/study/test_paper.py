"""Compared with the LaTeX source of the paper, where that is available."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mini_fsod.study.paper import SHOTS, TABLES, paper_numbers

SOURCE = Path(__file__).resolve().parents[2].parent / "shared" / "paper.tex.txt"

# How rows begin in LaTeX, where their label is not the same; spaces are left out
MARKS = {"x": r"\xmark", "c": r"\cmark"}
STARTS = {
    ("tab:mingling", "neither"): "xx",
    ("tab:mingling", "RPN"): "cx",
    ("tab:mingling", "R-CNN"): "xc",
    ("tab:mingling", "RPN and R-CNN"): "cc",
    **{
        (f"tab:generalization-{data}", row): marks
        for data in ("voc", "coco")
        for row, marks in (
            ("neither set", "xx"),
            ("base set", "cx"),
            ("extra set", "xc"),
            ("base and extra set", "cc"),
        )
    },
}
# the block of tab:hyper that a row is in: below this head, in the left or the right half
HYPER = {"alpha": (0, 0), "N": (3, 0), "delta": (0, 6), "beta": (3, 6)}


def number(cell: str) -> float | None:
    """The number of a cell such as 41.9, \\bd{\\R{72.0}} or -; ValueError for a label."""
    inner = re.sub(r"\\\w+|[{}\s]", "", cell.replace("\\\\", ""))
    return None if inner == "-" else float(inner)


def cells_of(body: str) -> list[list[str]]:
    lines = [line.partition("\\\\")[0] for line in body.splitlines() if "&" in line]
    return [[cell.strip() for cell in line.split("&")] for line in lines]


def label(cell: str) -> str:
    """A row's label without commands, citations and spaces."""
    cell = re.sub(r"~?\\cite\{.*?\}|\\hfilll|\\textit\{.*?\}|\\bd|\(Ours\)", "", cell)
    return re.sub(r"[{}$\\\s]", "", cell)


def found_numbers(table: str, row: str, rows: list[list[str]], count: int) -> list[float | None]:
    """The numbers behind the label of a row; two rows of a table may share a line."""
    if table == "tab:hyper":
        name, value = row.split("=")
        first, column = HYPER[name]
        lines = [line for line in rows if re.fullmatch(r"[\d.]+", label(line[0]))][first:][:3]
        line = next(line for line in lines if float(label(line[column])) == float(value))
        return [number(cell) for cell in line[column + 1 : column + 1 + count]]
    start = [MARKS[mark] for mark in STARTS.get((table, row), "")]
    wanted = row.replace(" ", "").removeprefix("TFAwithout").removeprefix("MINIwithout")
    wanted = "motor" if wanted == "motorbike" else wanted
    for line in rows:
        for n, cell in enumerate(line):
            if start and line[:2] == start:
                return [number(cell) for cell in line[2 : 2 + count]]
            if not start and label(cell).casefold() == wanted.casefold() and "nAP" not in line:
                return [number(cell) for cell in line[n + 1 : n + 1 + count]]
    raise AssertionError(f"{row} is not in {table}")


@pytest.mark.parametrize("name", TABLES)
def test_tables_have_the_numbers_of_the_paper(name: str) -> None:
    if not SOURCE.exists():
        pytest.skip("needs ../shared/paper.tex.txt, which is not part of the project")
    text, table = SOURCE.read_text(), TABLES[name]
    at = text.index(f"label{{{name}}}")
    plain = re.sub(r"\\emph\{(\w+)\}|\s+", lambda m: m[1] or " ", text)
    assert re.sub(": (TFA|MINI)$", "", table.title) in plain
    rows = cells_of(text[at : text.index("\\end{tabular}", at)])
    for row, lines in table.rows.items():
        wanted = [value for line in lines for value in line]
        assert found_numbers(name, row, rows, len(wanted)) == wanted, row


def test_paper_numbers_by_shots_and_split() -> None:
    main = dict(zip(SHOTS, (51.8, 53.6, 62.3, 62.1, 63.7), strict=True))
    numbers = {k: {"nAP50": value} for k, value in main.items()}
    assert paper_numbers("MINI", 2) == ("tab:voc_main", numbers)
    coco = {"nAP": 27.3, "nAP50": 44.9, "nAP75": 28.5}
    assert paper_numbers("MINI", None)[0] == "tab:coco_main"
    assert paper_numbers("MINI", None)[1][30] == coco
    assert paper_numbers("TFA Base", 1)[1][10] == {"nAP50": 58.4}
    assert paper_numbers("TFA Base", 2) == ("tab:component", {})
    assert paper_numbers("TFA Base", None) == ("tab:component", {})
    assert paper_numbers("base and extra set", None)[1] == {10: {"nAP": 23.6}, 30: {"nAP": 29.3}}
    assert paper_numbers("neither set", 1)[1][1] == {"nAP50": 41.9}
    assert paper_numbers("TFA without bus", 1)[1][1]["bus"] == 39.4


def test_paper_numbers_leave_out_what_the_paper_does_not_have() -> None:
    assert [*paper_numbers("MPSR", 1)[1]] == [1, 3, 5, 10]
    assert paper_numbers("DeFRCN", None)[1][10] == {"nAP": 18.5}


def test_tables_have_each_row_once_for_a_split() -> None:
    rows = [
        (row, split)
        for table in TABLES.values()
        for row in table.rows
        for split in {split for split, _ in table.lines}
    ]
    assert len(rows) == len(set(rows))
