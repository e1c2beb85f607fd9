"""The results of a study: study.json, and the same as tables in Markdown and LaTeX.

The tables are made from the content of study.json alone. A row of ours is the mean over the seeds;
the paper's numbers are printed below it in italics.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_fsod import console
from mini_fsod.eval.score import NAMES
from mini_fsod.eval.seeds import interval95, mean_or_none
from mini_fsod.files import write_bytes, write_json
from mini_fsod.study import paper
from mini_fsod.study.plan import Cell, shown_settings
from mini_fsod.study.studies import Study
from mini_fsod.study.worker import cell_results, is_cell_finished

Content = dict[str, Any]


def write_tables(folder: Path, study: Study, cells: Sequence[Cell]) -> str:
    """Write study.json, .md and .tex from what is finished now; returns the Markdown.

    Call it under a lock.
    """
    content = gather_results(folder, study, cells)
    text = to_markdown(content)
    write_json(folder / "study.json", content)
    write_bytes(folder / "study.md", text.encode(errors="backslashreplace"))
    write_bytes(folder / "study.tex", to_latex(content).encode(errors="backslashreplace"))
    return text


def gather_results(folder: Path, study: Study, cells: Sequence[Cell]) -> Content:
    """The content of study.json: every cell, and the means over seeds."""
    found = [_cell(folder, cell) for cell in cells]
    return {
        "study": study.name,
        "source": Path(study.source).name,
        "sets": shown_settings(study),
        "figures": list(study.figures),
        "summary": _summary(study, found),
        "cells": found,
    }


def _cell(folder: Path, cell: Cell) -> Content:
    finished = is_cell_finished(folder, cell)
    results = cell_results(folder, cell) if finished else {}
    plan = ("name", "row", "split", "shots", "seed", "last", "keys")
    return {
        **{key: getattr(cell, key) for key in plan},
        "finished": finished,
        **{key: results.get(key) for key in ("device", "commit", "versions")},
        "stages": results.get("stages", {}),
    }


def _summary(study: Study, cells: Sequence[Content]) -> list[Content]:
    """Mean and interval over the finished seeds, and the paper's numbers, by split, row and K."""
    papers = {row.label: row.paper for row in study.rows}
    labels = list(dict.fromkeys([*papers, *(cell["row"] for cell in cells)]))
    groups: dict[tuple[int, int, int], list[Content]] = {}
    for cell in cells:
        key = (cell["split"] or 0, labels.index(cell["row"]), cell["shots"])
        groups.setdefault(key, []).append(cell)
    summary = []
    for _, group in sorted(groups.items()):
        first = group[0]
        done = sorted((c for c in group if c["finished"]), key=lambda c: c["seed"])
        values = {f: [_figure(c["stages"][c["last"]], f) for c in done] for f in study.figures}
        # seeds that share one result (a base detector, for example) have no interval
        distinct = len({c["keys"][c["last"]] for c in group}) == len(group)
        references = []
        for row in papers.get(first["row"], ()):
            table, numbers = paper.paper_numbers(row, first["split"])
            if first["shots"] in numbers:
                references.append({"row": row, "table": table, **numbers[first["shots"]]})
        summary.append(
            {
                "row": first["row"],
                "split": first["split"],
                "shots": first["shots"],
                "seeds": [c["seed"] for c in done],
                "planned": len(group),
                "mean": {f: mean_or_none(v) for f, v in values.items()},
                "interval95": {f: interval95(v) if distinct else None for f, v in values.items()},
                "paper": references,
            }
        )
    return summary


def _figure(scores: Content, name: str) -> float | None:
    """A score by its name, or the AP (VOC: AP50) of the class of that name."""
    if name in NAMES:
        return scores.get(name)
    by_class: dict[str, float] = (scores.get("per_class") or {}).get(name) or {}
    return by_class.get("AP", by_class.get("AP50"))


LOWER, UPPER = "TFA", "oracle"  # rows
GAP = f"% of the gap from {LOWER} to {UPPER}"

Line = tuple[str, list[str], bool]  # label, a text for each K, whether it is the paper's


def _blocks(content: Content, split: int | None) -> tuple[list[int], dict[str, list[Line]]]:
    """The values of K of a split, and the lines of the table by figure."""
    entries = [e for e in content["summary"] if e["split"] == split]
    shots = sorted({e["shots"] for e in entries})
    rows = list(dict.fromkeys(e["row"] for e in entries))
    cells = [cell for cell in content["cells"] if cell["split"] == split]
    draws = {k: _draws(cells, k) for k in shots}
    found: dict[str, list[Line]] = {}
    for figure in content["figures"]:
        lines: list[Line] = []
        for row in rows:
            by_shots = {e["shots"]: e for e in entries if e["row"] == row}
            lines.append((row, [_text(by_shots.get(k), figure, draws[k]) for k in shots], False))
            papers: dict[str, dict[int, float]] = {}
            for k, entry in by_shots.items():
                for reference in entry["paper"]:
                    if figure in reference:
                        papers.setdefault(reference["row"], {})[k] = reference[figure]
            lines += [
                (f"paper: {name}", [f"{by[k]:.1f}" if k in by else "" for k in shots], True)
                for name, by in papers.items()
            ]
        found[figure] = lines
    gap = _gap_lines(cells, shots, rows)
    return shots, found | ({GAP: gap} if gap else {})


def _draws(cells: Sequence[Content], shots: int) -> int:
    """How many draws of K shots a column has; a single row may have fewer."""
    return len({cell["seed"] for cell in cells if cell["shots"] == shots})


def _gap_lines(cells: Sequence[Content], shots: Sequence[int], rows: Sequence[str]) -> list[Line]:
    """Share of the gap between TFA and the oracle that each row closes, where both are finished.

    For TFA and the row, the mean is over the draws that both have, because draws differ by more
    than rows. For the oracle, which hardly depends on the shots, it is over all its draws.
    """
    novel: dict[tuple[str, int], dict[int, float]] = {}
    for cell in cells:
        value = cell["stages"][cell["last"]].get("nAP50") if cell["finished"] else None
        if value is not None:
            novel.setdefault((cell["row"], cell["shots"]), {})[cell["seed"]] = value
    lines: list[Line] = []
    for row in rows:
        texts = []
        for k in shots:
            tfa, of_row = novel.get((LOWER, k), {}), novel.get((row, k), {})
            both = [seed for seed in tfa if seed in of_row]
            low, reached = (mean_or_none([by[seed] for seed in both]) for by in (tfa, of_row))
            high = mean_or_none(list(novel.get((UPPER, k), {}).values()))
            if low is None or reached is None or high is None or low == high:
                texts.append("-")
            else:
                texts.append(f"{100 * (reached - low) / (high - low):.0f}")
        lines.append((row, texts, False))
    between = [line for line in lines if line[0] not in (LOWER, UPPER)]
    return between if any(text != "-" for _, texts, _ in between for text in texts) else []


def _text(entry: Content | None, figure: str, draws: int) -> str:
    """Mean and interval, with (3/5) where it is over 3 of the 5 draws; - if there is none yet."""
    if entry is None:
        return ""
    value, half = entry["mean"][figure], entry["interval95"][figure]
    if value is None:
        return "-"
    text = f"{value:.1f}" if half is None else f"{value:.1f} ± {half:.1f}"
    done = len(entry["seeds"])
    return text if done == draws else f"{text} ({done}/{draws})"


def _notes(content: Content, split: int | None) -> list[str]:
    """The sentences below a table."""
    cells = [c for c in content["cells"] if c["split"] == split]
    done = [c for c in cells if c["finished"]]
    seeds = sorted({c["seed"] for c in cells})
    if len(seeds) == 1:
        lines = [f"In percent; one draw of the shots, seed {seeds[0]}."]
    else:
        over = f"{len(seeds)} draws of the shots, seeds {_ranges(seeds)}"
        lines = [f"In percent; mean ± half width of the 95 % interval (Student's t) over {over}."]
    if len(done) < len(cells):
        lines.append(f"{len(done)} of {len(cells)} runs are finished.")
    entries = [e for e in content["summary"] if e["split"] == split]
    if any(0 < len(e["seeds"]) < _draws(cells, e["shots"]) for e in entries):
        lines.append("(1/3): the mean is over 1 of the 3 draws.")
    tables: dict[str, dict[str, None]] = {}  # and its rows, each once
    for entry in entries:
        for reference in entry["paper"]:
            tables.setdefault(reference["table"], {})[reference["row"]] = None
    for table, rows in tables.items():
        lines.append(f'{", ".join(rows)}: the paper\'s table "{paper.TABLES[table].title}".')
    lines += _base_notes(content["figures"], done)
    sets = [f"{k}={v}" for k, v in content["sets"].items() if k != "data.root"]
    return [*lines, f"{', '.join([content['source'], *sets, *_origin(done)])}."]


def _base_notes(figures: Sequence[str], cells: Sequence[Content]) -> list[str]:
    """One sentence for each base detector of finished cells."""
    found: dict[str, tuple[Content, dict[str, None]]] = {}  # and the rows that use it
    for cell in cells:
        if cell["last"] != "base" and "base" in cell["keys"] and "base" in cell["stages"]:
            rows = found.setdefault(cell["keys"]["base"], (cell["stages"]["base"], {}))[1]
            rows[cell["row"]] = None
    lines = []
    for base, rows in found.values():
        parts = [f"{name} {base[name]:.1f}" for name in figures if base.get(name) is not None]
        if base.get("seconds"):
            parts.append(console.duration(base["seconds"]))
        of = f" of {', '.join(rows)}" if len(found) > 1 else ""
        lines.append(f"Base detector{of}: {', '.join(parts) or 'not scored'}.")
    return lines


def _origin(cells: Sequence[Content]) -> list[str]:
    """Devices, torch versions and commits of finished cells."""
    torch = {str((c["versions"] or {}).get("torch", "")) for c in cells} - {""}
    commits = {re.sub(r"^([0-9a-f]{10})[0-9a-f]+", r"\1", c["commit"] or "") for c in cells} - {""}
    words = sorted({c["device"] for c in cells if c["device"]})
    words += [f"torch {version}" for version in sorted(torch)]
    return words + [f"commit {commit}" for commit in sorted(commits)]


def _ranges(numbers: Sequence[int]) -> str:
    """0..3, 7 for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{r[0]}..{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)


def _splits(content: Content) -> list[int | None]:
    return list(dict.fromkeys(e["split"] for e in content["summary"]))


def to_markdown(content: Content) -> str:
    """Columns are padded, so that the source is readable too."""
    parts = [f"# Study {_escape_markdown(content['study'])}"]
    for split in _splits(content):
        if split is not None:
            parts.append(f"## Split {split}")
        shots, found = _blocks(content, split)
        for figure, lines in found.items():
            table = [[figure, *(f"K = {k}" for k in shots)]]
            for label, texts, italic in lines:
                mark = "*" if italic else ""
                cells = [f"{mark}{_escape_markdown(t)}{mark}" if t else "" for t in (label, *texts)]
                table.append(cells)
            widths = [max(3, *(len(row[i]) for row in table)) for i in range(len(shots) + 1)]
            lined = [
                " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
                for row in table
            ]
            rule = "|".join(["-" * (widths[0] + 2), *("-" * (w + 1) + ":" for w in widths[1:])])
            head, *rows = [f"| {text} |" for text in lined]
            parts.append("\n".join([head, f"|{rule}|", *rows]))
        parts.append("\n".join(_escape_markdown(line) for line in _notes(content, split)))
    return "\n\n".join(parts) + "\n"


def _escape_markdown(text: str) -> str:
    """Labels are free text: a bar or a line break would start another cell or row."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("*", "\\*")


def to_latex(content: Content) -> str:
    """One table per split; needs the package booktabs."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", content["study"]).strip("-").lower()
    parts = ["% \\usepackage{booktabs}\n"]
    for split in _splits(content):
        shots, found = _blocks(content, split)
        of = "" if split is None else f", split {split}"
        caption = " ".join([f"Study {content['study']}{of}.", *_notes(content, split)])
        label = f"tab:{name}" + ("" if split is None else f"-split{split}")
        heads = " & ".join(f"$K={k}$" for k in shots)
        rows: list[str] = []
        for figure, lines in found.items():
            rows += ["\\midrule", f"{_escape_latex(figure)}{' &' * len(shots)} \\\\"]
            for label_of_row, texts, italic in lines:
                cells = [_escape_latex("--" if t == "-" else t) for t in (label_of_row, *texts)]
                if italic:
                    cells = [f"\\textit{{{c}}}" if c else "" for c in cells]
                rows.append(f"\\quad {' & '.join(cells)} \\\\")
        body = "\n    ".join(rows)
        parts.append(f"""\
\\begin{{table}}[t]
  \\centering
  \\caption{{{_escape_latex(caption)}}}
  \\label{{{label}}}
  \\begin{{tabular}}{{@{{}}l{"r" * len(shots)}@{{}}}}
    \\toprule
    & {heads} \\\\
    {body}
    \\bottomrule
  \\end{{tabular}}
\\end{{table}}
""")
    return "\n".join(parts)


# applied in one pass, so that no replacement is replaced again
ESCAPES = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "±": "$\\pm$",
}


def _escape_latex(text: str) -> str:
    """Escape special characters; a pair of straight quotes becomes ``...''."""
    words = "".join(ESCAPES.get(c, c) for c in re.sub(r"\s+", " ", text))
    return re.sub(r'"([^"]*)"', r"``\1''", words)
