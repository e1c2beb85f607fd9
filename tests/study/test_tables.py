from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mini_fsod.study import tables
from mini_fsod.study.plan import Cell
from mini_fsod.study.studies import Row, Study
from study import fake

PAPER = (("tab:component", "TFA Base"), ("tab:voc_main", "TFA w/ cos"))
ABOUT = {"device": "NVIDIA H200", "commit": "0123456789abcdef", "versions": {"torch": "2.15.0"}}


def finished(folder: Path, figures: dict[Cell, tuple[float | None, float]], study: Study) -> Any:
    """A folder in which these cells have nAP50 and bAP50; the units of the study."""
    units = fake.planned(folder, study).units
    for unit in units:
        stages: dict[str, Any] = {"base": {"nAP50": None, "bAP50": 75.04, "seconds": 481.0}}
        if unit.cell in figures:
            novel, base = figures[unit.cell]
            stages[unit.last] = {"nAP50": novel, "bAP50": base, "seconds": 14.0}
        if unit.cell is None or unit.cell in figures:
            fake.finish(folder / unit.folder, stages, **ABOUT)
    return units


# the mean of 10, 12, 14 is 12, s = 2, t(0.975, 2) = 4.303: 4.303 x 2 / sqrt(3) = 4.97
# of 30 and 34 it is 32, s = sqrt(8), t(0.975, 1) = 12.706: 12.706 x sqrt(8) / sqrt(2) = 25.4
MARKDOWN = """\
# Study tfa

## Split 1

| nAP50               |      K = 1 |             K = 5 |
|---------------------|-----------:|------------------:|
| TFA                 | 12.0 ± 5.0 | 32.0 ± 25.4 (2/3) |
| *paper: TFA Base*   |     *41.9* |            *58.0* |
| *paper: TFA w/ cos* |     *39.8* |            *55.7* |
| other               | 20.0 (1/3) |                 - |

| bAP50 |      K = 1 |            K = 5 |
|-------|-----------:|-----------------:|
| TFA   | 74.0 ± 2.5 | 74.0 ± 0.0 (2/3) |
| other | 70.0 (1/3) |                - |

In percent; mean ± half width of the 95 % interval (Student's t) over 3 draws of the shots, \
seeds 0..1, 4.
6 of 12 runs are finished.
Where a figure is over fewer draws than its column has, (1/3) says so.
TFA Base: the paper's table "Effectiveness of each components".
TFA w/ cos: the paper's table "Performance (novel AP50) across three splits on PASCAL VOC dataset".
Shared by the runs: BASE, bAP50 75.0, 8:01 min.
vocsplit1-Kshot, transfer.rate=0.002, NVIDIA H200, torch 2.15.0, commit 0123456789.
"""

LATEX = r"""% \usepackage{booktabs}

\begin{table}[t]
  \centering
  \caption{Study tfa, split 1. CAPTION}
  \label{tab:tfa-split1}
  \begin{tabular}{@{}lrr@{}}
    \toprule
    & $K=1$ & $K=5$ \\
    \midrule
    nAP50 & & \\
    \quad TFA & 12.0 $\pm$ 5.0 & 32.0 $\pm$ 25.4 (2/3) \\
    \quad \textit{paper: TFA Base} & \textit{41.9} & \textit{58.0} \\
    \quad \textit{paper: TFA w/ cos} & \textit{39.8} & \textit{55.7} \\
    \quad other & 20.0 (1/3) & -- \\
    \midrule
    bAP50 & & \\
    \quad TFA & 74.0 $\pm$ 2.5 & 74.0 $\pm$ 0.0 (2/3) \\
    \quad other & 70.0 (1/3) & -- \\
    \bottomrule
  \end{tabular}
\end{table}
"""


def test_tables_worked_by_hand(tmp_path: Path) -> None:
    study = fake.study(
        name="tfa",
        source="vocsplit{split}-{shots}shot",
        rows=(Row("TFA", paper=PAPER), Row("other", ("seed=1",))),
        seeds=(0, 1, 4),
        sets=("data.root=/home/me/voc", "transfer.rate=0.002", "device=cuda:1"),
    )
    figures: dict[Cell, tuple[float | None, float]] = {
        Cell("TFA", 1, 1, 0): (10.0, 73.0),
        Cell("TFA", 1, 1, 1): (12.0, 74.0),
        Cell("TFA", 1, 1, 4): (14.0, 75.0),
        Cell("TFA", 1, 5, 0): (30.0, 74.0),
        Cell("TFA", 1, 5, 4): (34.0, 74.0),
        Cell("other", 1, 1, 1): (20.0, 70.0),
    }
    units = finished(tmp_path, figures, study)
    text = tables.write(tmp_path, study, units)
    assert text.replace(units[0].name, "BASE") == MARKDOWN
    assert (tmp_path / "study.md").read_text() == text
    latex = (tmp_path / "study.tex").read_text()
    caption = latex.partition("split 1. ")[2].partition("}\n")[0]
    assert latex.replace(caption, "CAPTION") == LATEX
    assert caption.startswith(r"In percent; mean $\pm$ half width of the 95 \% interval")
    assert "TFA Base: the paper's table ``Effectiveness of each components''." in caption


def test_rows_of_one_table_of_the_paper_are_told_together(tmp_path: Path) -> None:
    names = ("TFA Base", "+TFA Mining")
    rows = tuple(Row(n, (f"seed={len(n)}",), paper=(("tab:component", n),)) for n in names)
    study = fake.study(rows=rows, shots=(1, 5), seeds=(0,))
    cells: dict[Cell, tuple[float | None, float]] = {
        Cell(n, 1, k, 0): (10.0, 70.0) for n in names for k in (1, 5)
    }
    text = tables.write(tmp_path, study, finished(tmp_path, cells, study))
    assert text.count("the paper's table") == 1
    assert "\nTFA Base, +TFA Mining: the paper's table " in text


def test_an_interval_where_each_seed_has_its_own_result(tmp_path: Path) -> None:
    """Also where that is handed on to another row; what all seeds share is one result."""
    rows = (
        Row("mined", ("mine.threshold=0.7",), "mine"),
        Row("tuned", ("mine.threshold=0.7",), "tune"),
        Row("base", (), "base"),
    )
    study = fake.study(rows=rows, shots=(1,), seeds=(0, 1))
    names = [row.label for row in rows]
    cells = {Cell(name, 1, 1, seed): (10.0 + seed, 70.0) for name in names for seed in (0, 1)}
    units = finished(tmp_path, dict(cells), study)
    assert [unit.stages for unit in units if unit.cell and unit.cell.row == "mined"] == [(), ()]
    summary = tables.gather(tmp_path, study, units)["summary"]
    intervals = {entry["row"]: entry["interval95"]["nAP50"] for entry in summary}
    assert intervals["mined"] == intervals["tuned"] == pytest.approx(6.35, abs=0.01)
    assert intervals["base"] is None


def test_the_way_to_the_oracle(tmp_path: Path) -> None:
    rows = tuple(Row(name, (f"seed={n}",)) for n, name in enumerate(("TFA", "mined", "oracle")))
    study = fake.study(rows=rows, seeds=(0,))
    figures: dict[Cell, tuple[float | None, float]] = {
        Cell("TFA", 1, 1, 0): (40.0, 70.0),
        Cell("mined", 1, 1, 0): (50.0, 70.0),
        Cell("TFA", 1, 5, 0): (50.0, 70.0),
        Cell("mined", 1, 5, 0): (60.0, 70.0),
    }
    assert "way" not in tables.write(tmp_path, study, finished(tmp_path, figures, study))
    figures[Cell("oracle", 1, 1, 0)] = (65.0, 70.0)
    text = tables.write(tmp_path, study, finished(tmp_path, figures, study))
    assert "| % of the way from TFA to oracle | K = 1 | K = 5 |\n" in text
    assert "| mined                           |    40 |     - |\n\n" in text
    assert text.count("| oracle ") == 2  # of nAP50 and bAP50 alone
    assert r"\% of the way from TFA to oracle & & \\" in (tmp_path / "study.tex").read_text()


def test_rows_with_other_draws(tmp_path: Path) -> None:
    """Of three draws TFA has all, a row two and the oracle one, in a folder that grew by rows."""
    rows = tuple(Row(name, (f"seed={n}",)) for n, name in enumerate(("TFA", "mined", "oracle")))
    study = fake.study(rows=rows, shots=(1,), seeds=(0, 1, 2))
    of_tfa, of_mined = {0: 40.0, 1: 30.0, 2: 20.0}, {1: 42.0, 2: 38.0}
    figures: dict[Cell, tuple[float | None, float]] = {
        **{Cell("TFA", 1, 1, seed): (value, 70.0) for seed, value in of_tfa.items()},
        **{Cell("mined", 1, 1, seed): (value, 70.0) for seed, value in of_mined.items()},
        Cell("oracle", 1, 1, 0): (55.0, 70.0),
    }
    units = [u for u in finished(tmp_path, figures, study) if not u.cell or u.cell in figures]
    text = tables.write(tmp_path, study, units)
    assert "| mined  | 40.0 ± 25.4 (2/3) |\n| oracle |        55.0 (1/3) |\n" in text
    # seeds 1 and 2: from 25 to 40, of 25 to 55
    assert "| mined                           |    50 |\n" in text
    assert "Where a figure is over fewer draws than its column has, (1/3) says so." in text


def test_study_json(tmp_path: Path) -> None:
    study = fake.study(rows=(Row("TFA", paper=PAPER),), shots=(1, 4), splits=(2,))
    cell = Cell("TFA", 2, 1, 0)
    units = finished(tmp_path, {cell: (21.5, 70.0)}, study)
    tables.write(tmp_path, study, units)
    content = json.loads((tmp_path / "study.json").read_text())
    assert content == tables.gather(tmp_path, study, units)
    first, second = content["summary"]
    assert first == {
        "row": "TFA",
        "split": 2,
        "shots": 1,
        "seeds": [0],
        "planned": 1,
        "mean": {"nAP50": 21.5, "bAP50": 70.0},
        "interval95": {"nAP50": None, "bAP50": None},
        "paper": [{"row": "TFA w/ cos", "table": "tab:voc_main", "nAP50": 23.5}],
    }
    assert (second["mean"]["nAP50"], second["seeds"], second["paper"]) == (None, [], [])
    one, four = content["cells"]
    assert one["finished"]
    assert not four["finished"]
    assert (one["seconds"], one["ran"], one["device"]) == (14.0, ["transfer"], "NVIDIA H200")
    assert one["stages"]["transfer"]["nAP50"] == 21.5
    (base,) = content["shared"]
    assert (base["last"], base["splits"], base["seconds"]) == ("base", [2], 481.0)
    assert "one draw of the shots, seed 0." in (tmp_path / "study.md").read_text()


def test_what_seeds_share_has_no_interval(tmp_path: Path) -> None:
    study = fake.study(rows=(Row("base", last="base"),), shots=(1,), seeds=(0, 1))
    cells = {Cell("base", 1, 1, seed): (None, 75.0) for seed in (0, 1)}
    content = tables.gather(tmp_path, study, finished(tmp_path, cells, study))
    assert content["summary"][0]["mean"] == {"nAP50": None, "bAP50": 75.0}
    assert content["summary"][0]["interval95"]["bAP50"] is None


def test_nothing_is_finished_yet(tmp_path: Path) -> None:
    study = fake.study(splits=())
    text = tables.write(tmp_path, study, fake.planned(tmp_path, study).units)
    assert "## Split" not in text
    assert "| TFA   |     - |     - |" in text
    assert "0 of 2 runs are finished." in text
    assert "\\label{tab:fake}" in (tmp_path / "study.tex").read_text()


def test_other_peoples_words(tmp_path: Path) -> None:
    study = fake.study(name="a_b", rows=(Row("50% | *x*\n{y} & ~^\\ #1_$"),), shots=(1,))
    tables.write(tmp_path, study, fake.planned(tmp_path, study).units)
    assert r"| 50% \| \*x\* {y} & ~^\ #1_$ |" in (tmp_path / "study.md").read_text()
    latex = (tmp_path / "study.tex").read_text()
    row = r"50\% | *x* \{y\} \& \textasciitilde{}\textasciicircum{}\textbackslash{} \#1\_\$"
    assert f"\\quad {row} & -- \\\\" in latex
    assert "\\label{tab:a-b-split1}" in latex


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([0], "0"),
        ([0, 1, 2, 3, 7], "0..3, 7"),
        ([1, 3, 5], "1, 3, 5"),
        ([2, 3, 9, 10], "2..3, 9..10"),
    ],
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert tables._ranges(numbers) == text
