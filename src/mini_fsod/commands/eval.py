"""`mini eval`: the field's own metrics for any tool's detections."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from mini_fsod import console
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.read import read
from mini_fsod.errors import DataError, Problem, UserError
from mini_fsod.eval.detections import Detections, read_detections
from mini_fsod.eval.score import Metric, score
from mini_fsod.eval.seeds import over_seeds
from mini_fsod.labels import VOC_CLASSES, LabelMap, label_map


def run(
    path: Path,
    detections: Sequence[Path],
    novel: str | None,
    split: str | None,
    subset: str | None,
    metric: Metric,
    as_json: bool,
) -> None:
    data = read(path, subset)
    if data.kind == "folder":
        raise UserError(
            f"{path}: pictures without annotations have nothing to score against.",
            "Give a data set.",
        )
    for line in data.notes:
        console.note(line)
    if data.subsets and subset is None:
        sets = ", ".join(data.subsets)
        console.note(f"all {len(data):,} images are scored; --subset chooses one of: {sets}")
    labels = label_map(data.classes, split, novel)
    data = knowing(data, labels)
    runs = [score(data, found, labels, metric) for found in read_all(detections, data)]
    result = (runs[0] if len(runs) == 1 else over_seeds(runs)) | {"label_map": labels.to_json()}
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        console.table(result_table(result, labels))


def read_all(files: Sequence[Path], data: Dataset) -> list[Detections]:
    """The detections of all files, or the problems of all files at once."""
    found: list[Detections] = []
    problems: list[Problem] = []
    for file in files:
        try:
            found.append(read_detections(file, data))
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(problems)
    return found


def knowing(data: Dataset, labels: LabelMap) -> Dataset:
    """The data set with all classes of a named split: detectors find what is not there too."""
    missing = [name for name in labels.classes if name not in data.classes]
    numbers: list[int] = []
    fresh = max(*data.category_ids, len(VOC_CLASSES) if data.kind == "voc" else 0, 0) + 1
    for n, name in enumerate(missing):
        own = VOC_CLASSES.index(name) + 1 if data.kind == "voc" and name in VOC_CLASSES else -1
        # VOC's classes have their numbers, unless the data counts its own classes otherwise
        numbers.append(own if own > 0 and own not in data.category_ids else fresh + n)
    return replace(
        data,
        classes=(*data.classes, *missing),
        category_ids=(*data.category_ids, *numbers),
    )


def result_table(result: dict[str, Any], labels: LabelMap) -> Table:
    """Means first, then each class; with several files the half width of the 95 % interval."""
    interval = result.get("interval95", {})
    figures = [f for f in ("AP", "AP50", "AP75") if f in result]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(f"{result['metric']}, {console.count(result['images'], 'image')}")
    for figure in figures:
        table.add_column(figure, justify="right")

    def cell(value: float | None, half: float | None = None) -> str:
        if value is None:
            return "-"
        return f"{value:.1f}" + (f" ± {half:.1f}" if half is not None else "")

    for prefix, name in (("n", "novel"), ("b", "base"), ("", "all")):
        if prefix != "n" or labels.novel:
            cells = [cell(result[prefix + f], interval.get(prefix + f)) for f in figures]
            table.add_row(name, *cells, style="bold")
    for name in labels.novel + labels.base:
        style = "magenta" if name in labels.novel else ""
        row = result["per_class"][name]
        table.add_row(f"  {console.plain(name)}", *(cell(row[f]) for f in figures), style=style)
    return table
