"""What a study found: study.json, and the same as tables in Markdown and LaTeX.

The tables are made from the content of study.json alone. A row of ours is the mean over the seeds;
below it, in italics, stands what the paper says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_fsod import console
from mini_fsod.eval.seeds import interval95, mean_or_none
from mini_fsod.files import write_bytes, write_json
from mini_fsod.study import paper
from mini_fsod.study.plan import Unit, what_matters
from mini_fsod.study.studies import Study
from mini_fsod.study.worker import is_done, results

Content = dict[str, Any]


def write(folder: Path, study: Study, units: Sequence[Unit]) -> str:
    """Write all three files from what is finished now; the Markdown. Call it under a lock."""
    content = gather(folder, study, units)
    text = markdown(content)
    write_json(folder / "study.json", content)
    write_bytes(folder / "study.md", text.encode(errors="backslashreplace"))
    write_bytes(folder / "study.tex", latex(content).encode(errors="backslashreplace"))
    return text


def gather(folder: Path, study: Study, units: Sequence[Unit]) -> Content:
    """The content of study.json: every cell, what cells share, and what they say together."""
    cells = [_cell(folder, unit) for unit in units if unit.cell]
    return {
        "study": study.name,
        "source": Path(study.source).name,
        "sets": what_matters(study),
        "figures": list(study.figures),
        "summary": _summary(study, cells),
        "cells": cells,
        "shared": [_shared(folder, unit, units) for unit in units if unit.cell is None],
    }


def _cell(folder: Path, unit: Unit) -> Content:
    assert unit.cell
    found = results(folder, unit)
    stages = found.get("stages", {})
    return {
        "name": unit.name,
        "row": unit.cell.row,
        "split": unit.cell.split,
        "shots": unit.cell.shots,
        "seed": unit.cell.seed,
        "last": unit.last,
        "ran": list(unit.stages),
        "made_by": unit.name if unit.stages else unit.needs[-1],
        "finished": is_done(folder, unit),
        "seconds": sum(stages.get(s, {}).get("seconds") or 0 for s in unit.stages),
        "device": found.get("device"),
        "commit": found.get("commit"),
        "versions": found.get("versions"),
        "stages": stages,
    }


def _shared(folder: Path, unit: Unit, units: Sequence[Unit]) -> Content:
    """A unit that cells share, with the splits it serves."""
    served, splits = {unit.name}, set()
    for other in units:  # each comes after what it needs
        if served.intersection(other.needs):
            served.add(other.name)
            if other.cell and other.cell.split is not None:
                splits.add(other.cell.split)
    stages = results(folder, unit).get("stages", {})
    return {
        "name": unit.name,
        "last": unit.last,
        "splits": sorted(splits),
        "finished": is_done(folder, unit),
        "seconds": sum(stages.get(s, {}).get("seconds") or 0 for s in unit.stages),
        "stages": stages,
    }


def _summary(study: Study, cells: Sequence[Content]) -> list[Content]:
    """Each (row, split, shots): means and intervals over its finished seeds, the paper's numbers.

    In the order of the table: by split, then rows, then K.
    """
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
        values = {f: [c["stages"][c["last"]].get(f) for c in done] for f in study.figures}
        # what seeds share is one result, however often it is told
        drawn = len({c["made_by"] for c in group}) == len(group)
        references = [
            {"row": row, "table": table, "nAP50": numbers[first["shots"]]}
            for table, row in papers.get(first["row"], ())
            if first["shots"] in (numbers := paper.numbers(table, row, first["split"]))
        ]
        summary.append(
            {
                "row": first["row"],
                "split": first["split"],
                "shots": first["shots"],
                "seeds": [c["seed"] for c in done],
                "planned": len(group),
                "mean": {f: mean_or_none(v) for f, v in values.items()},
                "interval95": {f: interval95(v) if drawn else None for f, v in values.items()},
                "paper": references,
            }
        )
    return summary


FLOOR, CEILING = "TFA", "oracle"  # rows
GAP = f"% of the way from {FLOOR} to {CEILING}"

Line = tuple[str, list[str], bool]  # label, a text for each K, whether it is the paper's


def blocks(content: Content, split: int | None) -> tuple[list[int], dict[str, list[Line]]]:
    """The K of a split, and for each figure the lines of its table."""
    entries = [e for e in content["summary"] if e["split"] == split]
    shots = sorted({e["shots"] for e in entries})
    rows = list(dict.fromkeys(e["row"] for e in entries))
    cells = [cell for cell in content["cells"] if cell["split"] == split]
    draws = {k: _draws(cells, k) for k in shots}
    found: dict[str, list[Line]] = {}
    for figure in content["figures"]:
        lines: list[Line] = []
        for row in rows:
            own = {e["shots"]: e for e in entries if e["row"] == row}
            lines.append((row, [_text(own.get(k), figure, draws[k]) for k in shots], False))
            if figure == "nAP50":
                said: dict[str, dict[int, float]] = {}
                for k, entry in own.items():
                    for reference in entry["paper"]:
                        said.setdefault(reference["row"], {})[k] = reference["nAP50"]
                lines += [
                    (f"paper: {name}", [f"{by[k]:.1f}" if k in by else "" for k in shots], True)
                    for name, by in said.items()
                ]
        found[figure] = lines
    closed = _gap_closed(cells, shots, rows)
    return shots, found | ({GAP: closed} if closed else {})


def _draws(cells: Sequence[Content], shots: int) -> int:
    """How many draws of K shots a table has, whether or not every row has them all."""
    return len({cell["seed"] for cell in cells if cell["shots"] == shots})


def _gap_closed(cells: Sequence[Content], shots: Sequence[int], rows: Sequence[str]) -> list[Line]:
    """How much of the way from TFA to the oracle each row goes, where both are there.

    TFA's and the row's are means over the draws that both have, for draws differ by more than rows;
    the oracle, which hardly knows the shots, counts with all of its own.
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
            tfa, own = novel.get((FLOOR, k), {}), novel.get((row, k), {})
            both = [seed for seed in tfa if seed in own]
            low, reached = (mean_or_none([by[seed] for seed in both]) for by in (tfa, own))
            high = mean_or_none(list(novel.get((CEILING, k), {}).values()))
            if low is None or reached is None or high is None or low == high:
                texts.append("-")
            else:
                texts.append(f"{100 * (reached - low) / (high - low):.0f}")
        lines.append((row, texts, False))
    between = [line for line in lines if line[0] not in (FLOOR, CEILING)]
    return between if any(text != "-" for _, texts, _ in between for text in texts) else []


def _text(entry: Content | None, figure: str, draws: int) -> str:
    """Mean and interval, with (3/5) where it is not over all draws of its column; - if there is
    none yet.
    """
    if entry is None:
        return ""
    value, half = entry["mean"][figure], entry["interval95"][figure]
    if value is None:
        return "-"
    text = f"{value:.1f}" if half is None else f"{value:.1f} ± {half:.1f}"
    done = len(entry["seeds"])
    return text if done == draws else f"{text} ({done}/{draws})"


def notes(content: Content, split: int | None) -> list[str]:
    """What a reader has to know of a table, in sentences."""
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
        lines.append("Where a figure is over fewer draws than its column has, (1/3) says so.")
    tables: dict[str, dict[str, None]] = {}  # and its rows, each once
    for entry in entries:
        for reference in entry["paper"]:
            tables.setdefault(reference["table"], {})[reference["row"]] = None
    for table, rows in tables.items():
        lines.append(f'{", ".join(rows)}: the paper\'s table "{paper.TITLES[table]}".')
    for unit in content["shared"]:
        told = unit["last"] == "base"  # later ones are rows themselves, or in study.json
        if told and unit["finished"] and (split in unit["splits"] or split is None):
            figures = unit["stages"][unit["last"]]
            known = [f for f in content["figures"] if figures.get(f) is not None]
            said = ", ".join(f"{f} {figures[f]:.1f}" for f in known)
            lines.append(
                f"Shared by the runs: {unit['name']}, {said}{', ' * bool(said)}"
                f"{console.duration(unit['seconds'])}."
            )
    source = content["source"].replace("{split}", str(split)).replace("{shots}", "K")
    sets = [f"{k}={v}" for k, v in content["sets"].items() if k != "data.root"]
    return [*lines, f"{', '.join([source, *sets, *_origin(done)])}."]


def _origin(cells: Sequence[Content]) -> list[str]:
    """Devices, versions of torch and commits of finished cells."""
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


def markdown(content: Content) -> str:
    """Columns are padded: it reads as it is, too."""
    parts = [f"# Study {_bars(content['study'])}"]
    for split in _splits(content):
        if split is not None:
            parts.append(f"## Split {split}")
        shots, found = blocks(content, split)
        for figure, lines in found.items():
            table = [[figure, *(f"K = {k}" for k in shots)]]
            for label, texts, italic in lines:
                mark = "*" if italic else ""
                cells = [f"{mark}{_bars(t)}{mark}" if t else "" for t in (label, *texts)]
                table.append(cells)
            widths = [max(3, *(len(row[i]) for row in table)) for i in range(len(shots) + 1)]
            lined = [
                " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
                for row in table
            ]
            rule = "|".join(["-" * (widths[0] + 2), *("-" * (w + 1) + ":" for w in widths[1:])])
            head, *rows = [f"| {text} |" for text in lined]
            parts.append("\n".join([head, f"|{rule}|", *rows]))
        parts.append("\n".join(_bars(line) for line in notes(content, split)))
    return "\n\n".join(parts) + "\n"


def _bars(text: str) -> str:
    """Other people's words in a table: a bar or line break would begin another cell or row."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("*", "\\*")


def latex(content: Content) -> str:
    """A table for each split; booktabs is all they need."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", content["study"]).strip("-").lower()
    parts = ["% \\usepackage{booktabs}\n"]
    for split in _splits(content):
        shots, found = blocks(content, split)
        of = "" if split is None else f", split {split}"
        caption = " ".join([f"Study {content['study']}{of}.", *notes(content, split)])
        label = f"tab:{name}" + ("" if split is None else f"-split{split}")
        heads = " & ".join(f"$K={k}$" for k in shots)
        body: list[str] = []
        for figure, lines in found.items():
            body.append("\\midrule")
            body.append(f"{escaped(figure)}{' &' * len(shots)} \\\\")
            for text, texts, italic in lines:
                cells = [escaped(text), *(escaped("--" if t == "-" else t) for t in texts)]
                if italic:
                    cells = [f"\\textit{{{c}}}" if c else "" for c in cells]
                body.append(f"\\quad {' & '.join(cells)} \\\\")
        lines_of_table = [
            "\\begin{table}[t]",
            "  \\centering",
            f"  \\caption{{{escaped(caption)}}}",
            f"  \\label{{{label}}}",
            f"  \\begin{{tabular}}{{@{{}}l{'r' * len(shots)}@{{}}}}",
            "    \\toprule",
            f"    & {heads} \\\\",
            *(f"    {line}" for line in body),
            "    \\bottomrule",
            "  \\end{tabular}",
            "\\end{table}",
        ]
        parts.append("\n".join(lines_of_table) + "\n")
    return "\n".join(parts)


# one pass over the text, so that no replacement is replaced again
ESCAPES = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "±": "$\\pm$",
}


def escaped(text: str) -> str:
    """Words as LaTeX sets them, a pair of straight quotes as ``...''."""
    words = "".join(ESCAPES.get(c, c) for c in re.sub(r"\s+", " ", text))
    return re.sub(r'"([^"]*)"', r"``\1''", words)
