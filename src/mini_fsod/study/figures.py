"""The paper's figures from the results of a study: SVG and PNG, for light and dark pages.

Each figure has the data of the finished cells; one that has none is not drawn. It needs matplotlib
(`pip install "mini-fsod[figures]"`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from mini_fsod.errors import UserError
from mini_fsod.files import write_bytes
from mini_fsod.mining.pool_io import read_thresholds
from mini_fsod.study.figure_pictures import draw_mined_examples, draw_teaser_pictures
from mini_fsod.study.plan import Cell
from mini_fsod.study.tables import Content
from mini_fsod.study.worker import is_cell_finished
from mini_fsod.train.log import FILE, read_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = "figures"  # in the folder of the study
# After Okabe and Ito: people with colour-blindness can tell them apart; markers differ too
COLOURS = {
    "light": "#0072B2 #D55E00 #009E73 #CC79A7 #C58A00 #56B4E9 #7F7F7F #B5A000".split(),
    "dark": "#56B4E9 #F07B3F #2DC08D #E39CC4 #E69F00 #9AA4B1 #7F8CFF #D6C93C".split(),
}
MARKERS = "osD^vPX*"
THEMES = {  # page, text, grid
    "light": ("#ffffff", "#1f2328", "#d8dee4"),
    "dark": ("#0d1117", "#e6edf3", "#30363d"),
}
DPI = 160
POINTS = 40  # along the iterations: means of the readings between them


class _Results(NamedTuple):
    """What the figures of one split are drawn from."""

    folder: Path
    split: int | None
    cells: list[Cell]  # finished ones, of one seed
    entries: list[Content]  # means of each row and K
    score: str  # the first figure of the study's tables

    def of(self, cell: Cell) -> Path:
        return self.folder / "cells" / cell.name


def draw_figures(folder: Path, content: Content, cells: Sequence[Cell]) -> list[Path]:
    """Draw what the finished cells have data for; returns the files, two for each theme."""
    try:
        import matplotlib
        from cycler import cycler
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(
            "--figures needs matplotlib, which is not installed.",
            'Run: pip install "mini-fsod[figures]"',
        ) from None
    written = []
    drawn = product(_results(folder, content, cells), FIGURES.items())
    for results, (name, (size, draw)) in drawn:
        for theme, (page, text, grid) in THEMES.items():
            style: dict[Any, Any] = {
                "svg.fonttype": "none",  # text stays text
                "svg.hashsalt": "mini",  # the same file each time
                "font.size": 9,
                "text.color": text,
                "axes.labelcolor": text,
                "axes.edgecolor": grid,
                "axes.facecolor": page,
                "axes.grid": True,
                "axes.axisbelow": True,
                "axes.prop_cycle": cycler(color=COLOURS[theme]),  # C0, C1 ...
                "axes.titlesize": 10,
                "axes.titleweight": "bold",
                "axes.spines.top": False,
                "axes.spines.right": False,
                "grid.color": grid,
                "xtick.color": text,
                "ytick.color": text,
                "legend.frameon": False,
                "figure.facecolor": page,
            }
            with matplotlib.rc_context(style):
                figure = Figure(size, layout="constrained")
                if not draw(figure, text, results):
                    break
                for kind, about in (("svg", {"Date": None}), ("png", None)):
                    packed = BytesIO()
                    figure.savefig(packed, format=kind, dpi=DPI, metadata=about)
                    of = "" if results.split is None else f"-split{results.split}"
                    path = folder / FOLDER / f"{name}{of}-{theme}.{kind}"
                    write_bytes(path, packed.getvalue())
                    written.append(path)
    return written


def _results(folder: Path, content: Content, cells: Sequence[Cell]) -> list[_Results]:
    """The results of each split; of the shots' seeds, pictures and thresholds show the first."""
    seed = min((cell.seed for cell in cells), default=0)
    found = []
    for split in dict.fromkeys(cell.split for cell in cells):
        ours = [cell for cell in cells if cell.split == split and cell.seed == seed]
        done = [cell for cell in ours if is_cell_finished(folder, cell)]
        entries = [entry for entry in content["summary"] if entry["split"] == split]
        found.append(_Results(folder, split, done, entries, content["figures"][0]))
    return found


def _scores(where: Any, text: str, results: _Results) -> bool:
    """A score of each row by K, with the paper's dashed; bars where there is one K. `where` is a
    figure or a part of one.
    """
    entries, figure = results.entries, results.score
    shots = sorted({e["shots"] for e in entries if e["mean"][figure] is not None})
    rows = list(dict.fromkeys(e["row"] for e in entries if e["mean"][figure] is not None))
    if not shots:
        return False
    axes = where.subplots()
    by = {(e["row"], e["shots"]): e for e in entries}
    ours = {r: [by[r, k]["mean"][figure] if (r, k) in by else None for k in shots] for r in rows}
    papers = {r: [_paper_value(by.get((r, k)), figure) for k in shots] for r in rows}
    if len(shots) == 1:
        places = range(len(rows))
        bars = axes.barh(list(places), [ours[r][0] or 0 for r in rows], 0.62, color="C0")
        axes.bar_label(bars, fmt="%.1f", padding=3, color=text)
        known = [(n, papers[r][0]) for n, r in enumerate(rows) if papers[r][0] is not None]
        if known:
            x, y = [value for _, value in known], [n for n, _ in known]
            axes.plot(x, y, "D", color="C1", label="the paper", linestyle="none")
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0))
        axes.set_yticks(list(places), rows)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"{figure}, K = {shots[0]}")
        axes.set_xlim(0, 100)
        return True
    for n, row in enumerate(rows):
        style: dict[str, Any] = {"color": f"C{n % 8}", "marker": MARKERS[n % 8]}
        places = range(len(shots))
        axes.plot(*_known(places, ours[row]), label=row, **style)
        if any(value is not None for value in papers[row]):
            faint = style | {"linestyle": "--", "alpha": 0.55, "markersize": 4}
            axes.plot(*_known(places, papers[row]), label=f"{row}, the paper", **faint)
    axes.set_xticks(range(len(shots)), [str(k) for k in shots])
    axes.set_xlabel("K, boxes of each new class")
    axes.set_ylabel(figure)
    axes.set_ylim(bottom=0)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return True


def _paper_value(entry: Content | None, figure: str) -> float | None:
    """The paper's number of the first row that it prints below ours."""
    references = [] if entry is None else entry["paper"]
    return next((each[figure] for each in references if figure in each), None)


def _known(places: Sequence[int], values: Sequence[float | None]) -> tuple[list[int], list[float]]:
    known = [(x, y) for x, y in zip(places, values, strict=True) if y is not None]
    return [x for x, _ in known], [y for _, y in known]


def _mined_by_shots(results: _Results, part: int) -> dict[int, Any]:
    """By K, the thresholds (part 0) or the audit (1) of the last row that has them.

    Thresholds are shown where each class has its own, audits where there was co-mining.
    """
    found: dict[int, Any] = {}
    for cell in results.cells:
        content = read_thresholds(results.of(cell) / "mine")[part]
        if content is None:
            continue
        classes: Mapping[str, Any] = content["classes"]
        if part == 0:
            usable = len({row["delta"] for row in classes.values()}) == len(classes) > 1
        else:
            usable = all(row.get("without_co_mining") for row in classes.values())
        if usable:
            found[cell.shots] = classes
    return dict(sorted(found.items()))


def _thresholds(figure: Figure, text: str, results: _Results) -> bool:
    """The threshold of each class (Eq. 5) by K."""
    found = _mined_by_shots(results, 0)
    if not found:
        return False
    axes = figure.subplots()
    for n, name in enumerate(next(iter(found.values()))):
        values = [classes.get(name, {}).get("delta") for classes in found.values()]
        x, y = _known(range(len(found)), values)
        axes.plot(x, y, label=name, color=f"C{n % 8}", marker=MARKERS[n % 8])
    axes.set_xticks(range(len(found)), [str(k) for k in found])
    axes.set_xlabel("K, boxes of each new class")
    axes.set_ylabel("threshold")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return True


def _true_positives(figure: Figure, text: str, results: _Results) -> bool:
    """Right boxes in the pool of each class, with and without the discriminator."""
    found = _mined_by_shots(results, 1)
    if not found:
        return False
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, (k, classes) in zip(panels, found.items(), strict=True):
        places = range(len(classes))
        for shift, label, rows in (
            (-0.2, "detector alone", [row["without_co_mining"] for row in classes.values()]),
            (0.2, "with co-mining", list(classes.values())),
        ):
            counts = [row["true_positives"] for row in rows]
            x = [place + shift for place in places]
            colour, hatch = ("C4", "///") if shift < 0 else ("C0", "")
            bars = axes.bar(x, counts, 0.38, label=label, color=colour, hatch=hatch)
            if len(found) < 3:
                axes.bar_label(bars, fontsize=7)
        axes.set_xticks(list(places), list(classes), rotation=30, ha="right")
        axes.set_title(f"K = {k}")
        axes.grid(axis="x", visible=False)
    panels[0].set_ylabel("right boxes in the pool")
    panels[0].legend(loc="upper left")
    return True


def _kept_instances(figure: Figure, text: str, results: _Results) -> bool:
    """Mined boxes that a training with a teacher uses: those of the pool and the teacher's."""
    found: dict[int, list[dict[str, Any]]] = {}
    for cell in results.cells:
        lines = read_log(results.of(cell) / "online" / FILE)
        readings = [line for line in lines if "offline" in line and "online" in line]
        if readings:
            found[cell.shots] = readings
    if not found:
        return False
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, (k, readings) in zip(panels, sorted(found.items()), strict=True):
        size = math.ceil(len(readings) / POINTS)
        parts = [readings[n : n + size] for n in range(0, len(readings), size)]
        steps = [part[-1]["step"] for part in parts]
        offline = [fmean(line["offline"] for line in part) for part in parts]
        both = [fmean(line["offline"] + line["online"] for line in part) for part in parts]
        axes.fill_between(steps, offline, color="C0", alpha=0.85, label="of the pool")
        kind: dict[str, Any] = {"color": "C1", "alpha": 0.85, "hatch": "///"}
        kind["label"] = "the teacher's"
        axes.fill_between(steps, offline, both, **kind)
        axes.set_title(f"K = {k}")
        axes.set_xlabel("iteration")
        axes.set_xlim(steps[0], max(steps[-1], steps[0] + 1))
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("mined boxes per image")
    panels[0].legend(loc="upper left")
    return True


def _mined_examples(figure: Figure, text: str, results: _Results) -> bool:
    return draw_mined_examples(figure, text, [results.of(cell) for cell in results.cells])


def _teaser(figure: Figure, text: str, results: _Results) -> bool:
    """Training pictures with their boxes and the mined ones, and the scores beside them."""
    parts: Any = figure.subfigures(1, 2, width_ratios=(1.15, 1))
    runs = [results.of(cell) for cell in results.cells]
    return draw_teaser_pictures(parts[0], text, runs) and _scores(parts[1], text, results)


Draw = Callable[["Figure", str, _Results], bool]  # with the colour of text; False without data
FIGURES: dict[str, tuple[tuple[float, float], Draw]] = {  # inches
    "scores": ((6.4, 4.2), _scores),
    "thresholds": ((4.6, 3.2), _thresholds),
    "true-positives": ((6.4, 3.0), _true_positives),
    "kept-instances": ((6.4, 3.0), _kept_instances),
    "mined": ((6.4, 6.6), _mined_examples),
    "teaser": ((9.0, 3.2), _teaser),
}
