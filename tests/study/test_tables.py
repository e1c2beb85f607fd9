from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.fake_study import example_study, finish_cells
from mini_fsod.study.plan import Cell, plan_study
from mini_fsod.study.studies import Row, Study
from mini_fsod.study.tables import gather_results, write_tables

Figures = tuple[float | None, float]  # nAP50 and bAP50
PAPER = ("TFA Base", "TFA w/ cos")
ABOUT = {"device": "NVIDIA H200", "commit": "0123456789abcdef", "versions": {"torch": "2.15.0"}}


def finished(
    folder: Path, figures: dict[tuple[str, int], dict[int, Figures]], study: Study
) -> list[Cell]:
    """A folder in which cells, by row and K and seed, have nAP50 and bAP50; all cells."""
    plan = plan_study(study)
    stages = {
        cell.name: {
            "base": {"nAP50": None, "bAP50": 75.04, "seconds": 481.0},
            cell.last: {"nAP50": novel, "bAP50": base, "seconds": 14.0},
        }
        for cell in plan.cells
        if cell.seed in figures.get((cell.row, cell.shots), {})
        for novel, base in [figures[cell.row, cell.shots][cell.seed]]
    }
    finish_cells(folder, plan, stages, **ABOUT)
    return list(plan.cells)


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
(1/3): the mean is over 1 of the 3 draws.
TFA Base: the paper's table "Effectiveness of each components".
TFA w/ cos: the paper's table "Performance (novel AP50) across three splits on PASCAL VOC dataset".
Base detector of TFA: bAP50 75.0, 8:01 min.
Base detector of other: bAP50 75.0, 8:01 min.
voc-320, transfer.rate=0.002, NVIDIA H200, torch 2.15.0, commit 0123456789.
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


def test_write_tables_matches_tables_worked_by_hand(tmp_path: Path) -> None:
    study = example_study(
        name="tfa",
        rows=(Row("TFA", paper=PAPER), Row("other", ("seed=1",))),
        seeds=(0, 1, 4),
        sets=("data.root=/home/me/voc", "transfer.rate=0.002", "device=cuda:1"),
    )
    figures: dict[tuple[str, int], dict[int, Figures]] = {
        ("TFA", 1): {0: (10.0, 73.0), 1: (12.0, 74.0), 4: (14.0, 75.0)},
        ("TFA", 5): {0: (30.0, 74.0), 4: (34.0, 74.0)},
        ("other", 1): {1: (20.0, 70.0)},
    }
    text = write_tables(tmp_path, study, finished(tmp_path, figures, study))
    assert text == MARKDOWN
    assert (tmp_path / "study.md").read_text() == text
    latex = (tmp_path / "study.tex").read_text()
    caption = latex.partition("split 1. ")[2].partition("}\n")[0]
    assert latex.replace(caption, "CAPTION") == LATEX
    assert caption.startswith(r"In percent; mean $\pm$ half width of the 95 \% interval")
    assert "TFA Base: the paper's table ``Effectiveness of each components''." in caption


def test_write_tables_names_the_rows_of_a_table_of_the_paper_together(tmp_path: Path) -> None:
    names = ("TFA Base", "+TFA Mining")
    rows = tuple(Row(n, (f"seed={len(n)}",), paper=(n,)) for n in names)
    study = example_study(rows=rows)
    figures: dict[tuple[str, int], dict[int, Figures]] = {
        (n, k): {0: (10.0, 70.0)} for n in names for k in (1, 5)
    }
    text = write_tables(tmp_path, study, finished(tmp_path, figures, study))
    assert text.count("the paper's table") == 1
    assert "\nTFA Base, +TFA Mining: the paper's table " in text


def test_gather_results_has_an_interval_only_where_seeds_differ(tmp_path: Path) -> None:
    """A base detector that all seeds share is one result."""
    rows = (Row("TFA"), Row("base", (), "base"))
    study = example_study(rows=rows, shots=(1,), seeds=(0, 1))
    figures: dict[tuple[str, int], dict[int, Figures]] = {
        (row.label, 1): {seed: (10.0 + seed, 75.0) for seed in (0, 1)} for row in rows
    }
    summary = gather_results(tmp_path, study, finished(tmp_path, figures, study))["summary"]
    intervals = {entry["row"]: entry["interval95"]["nAP50"] for entry in summary}
    assert intervals["TFA"] == pytest.approx(6.35, abs=0.01)
    assert intervals["base"] is None


def test_write_tables_gives_the_share_of_the_gap_to_the_oracle(tmp_path: Path) -> None:
    rows = tuple(Row(name, (f"seed={n}",)) for n, name in enumerate(("TFA", "mined", "oracle")))
    study = example_study(rows=rows)
    figures: dict[tuple[str, int], dict[int, Figures]] = {
        ("TFA", 1): {0: (40.0, 70.0)},
        ("mined", 1): {0: (50.0, 70.0)},
        ("TFA", 5): {0: (50.0, 70.0)},
        ("mined", 5): {0: (60.0, 70.0)},
    }
    assert "gap" not in write_tables(tmp_path, study, finished(tmp_path, figures, study))
    figures["oracle", 1] = {0: (65.0, 70.0)}
    text = write_tables(tmp_path, study, finished(tmp_path, figures, study))
    assert "| % of the gap from TFA to oracle | K = 1 | K = 5 |\n" in text
    assert "| mined                           |    40 |     - |\n\n" in text
    assert text.count("| oracle ") == 2  # of nAP50 and bAP50 alone
    assert r"\% of the gap from TFA to oracle & & \\" in (tmp_path / "study.tex").read_text()


def test_write_tables_compares_rows_over_the_draws_they_share(tmp_path: Path) -> None:
    """Of three draws TFA has all, a row two and the oracle one."""
    rows = tuple(Row(name, (f"seed={n}",)) for n, name in enumerate(("TFA", "mined", "oracle")))
    study = example_study(rows=rows, shots=(1,), seeds=(0, 1, 2))
    figures: dict[tuple[str, int], dict[int, Figures]] = {
        ("TFA", 1): {0: (40.0, 70.0), 1: (30.0, 70.0), 2: (20.0, 70.0)},
        ("mined", 1): {1: (42.0, 70.0), 2: (38.0, 70.0)},
        ("oracle", 1): {0: (55.0, 70.0)},
    }
    cells = finished(tmp_path, figures, study)
    asked = [cell for cell in cells if cell.seed in figures[cell.row, 1]]
    text = write_tables(tmp_path, study, asked)
    assert "| mined  | 40.0 ± 25.4 (2/3) |\n| oracle |        55.0 (1/3) |\n" in text
    # seeds 1 and 2: from 25 to 40, of 25 to 55
    assert "| mined                           |    50 |\n" in text
    assert "(1/3): the mean is over 1 of the 3 draws." in text


def test_write_tables_writes_all_figures_to_study_json(tmp_path: Path) -> None:
    study = example_study(rows=(Row("TFA", paper=PAPER),), shots=(1, 4), splits=(2,))
    cells = finished(tmp_path, {("TFA", 1): {0: (21.5, 70.0)}}, study)
    write_tables(tmp_path, study, cells)
    content = json.loads((tmp_path / "study.json").read_text())
    assert content == gather_results(tmp_path, study, cells)
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
    assert (one["finished"], four["finished"]) == (True, False)
    assert (one["device"], one["keys"]) == ("NVIDIA H200", cells[0].keys)
    assert one["stages"]["transfer"] == {"nAP50": 21.5, "bAP50": 70.0, "seconds": 14.0}
    text = (tmp_path / "study.md").read_text()
    assert "one draw of the shots, seed 0." in text
    assert "\nBase detector: bAP50 75.0, 8:01 min.\n" in text


def test_write_tables_leaves_out_results_of_other_settings(tmp_path: Path) -> None:
    study = example_study(shots=(1,))
    finished(tmp_path, {("TFA", 1): {0: (21.5, 70.0)}}, study)
    other = replace(study, sets=("data.root=voc", "base.minutes=4"))
    text = write_tables(tmp_path, other, plan_study(other).cells)
    assert "| TFA   |     - |" in text
    assert "21.5" not in text


def test_write_tables_before_anything_is_finished(tmp_path: Path) -> None:
    study = example_study(splits=())
    text = write_tables(tmp_path, study, plan_study(study).cells)
    assert "## Split" not in text
    assert "| TFA   |     - |     - |" in text
    assert "0 of 2 runs are finished." in text
    assert "\\label{tab:example}" in (tmp_path / "study.tex").read_text()


def test_write_tables_escapes_labels(tmp_path: Path) -> None:
    study = example_study(name="a_b", rows=(Row("50% | *x*\n{y} & ~^\\ #1_$"),), shots=(1,))
    write_tables(tmp_path, study, plan_study(study).cells)
    assert r"| 50% \| \*x\* {y} & ~^\ #1_$ |" in (tmp_path / "study.md").read_text()
    latex = (tmp_path / "study.tex").read_text()
    row = r"50\% | *x* \{y\} \& \textasciitilde{}\textasciicircum{}\textbackslash{} \#1\_\$"
    assert f"\\quad {row} & -- \\\\" in latex
    assert "\\label{tab:a-b-split1}" in latex


@pytest.mark.parametrize(
    ("seeds", "text"),
    [
        ((0, 1), "2 draws of the shots, seeds 0..1."),
        ((0, 1, 2, 3, 7), "5 draws of the shots, seeds 0..3, 7."),
        ((1, 3, 5), "3 draws of the shots, seeds 1, 3, 5."),
        ((2, 3, 9, 10), "4 draws of the shots, seeds 2..3, 9..10."),
    ],
)
def test_write_tables_shortens_ranges_of_seeds(
    tmp_path: Path, seeds: tuple[int, ...], text: str
) -> None:
    study = example_study(shots=(1,), seeds=seeds)
    assert text in write_tables(tmp_path, study, plan_study(study).cells)


def test_gather_results_takes_names_of_classes_as_figures(tmp_path: Path) -> None:
    study = example_study(rows=(Row("TFA"),), figures=("nAP50", "bird", "bus"), shots=(1,))
    plan = plan_study(study)
    by_class = {"bird": {"AP50": 31.5}, "bus": {"AP50": None}}
    scores = {"nAP50": 31.5, "per_class": by_class}
    finish_cells(tmp_path, plan, {cell.name: {cell.last: scores} for cell in plan.cells})
    mean = gather_results(tmp_path, study, plan.cells)["summary"][0]["mean"]
    assert mean == {"nAP50": 31.5, "bird": 31.5, "bus": None}
