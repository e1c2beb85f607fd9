"""`mini eval`: VOC and COCO metrics for the detections of any tool."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from typer import Option

from mini_fsod import console
from mini_fsod.commands.options import AsJson, Data, Novel, Split, Subset, app, read_data
from mini_fsod.errors import DataError, Problem
from mini_fsod.labels import VOC_CLASSES, LabelMap, label_map

if TYPE_CHECKING:
    from mini_fsod.data.dataset import Dataset
    from mini_fsod.eval.detections import DatasetDetections


class MetricName(StrEnum):
    voc07 = "voc07"
    voc = "voc"
    coco = "coco"


@app.command("eval")
def eval_command(
    data: Data,
    detections: Annotated[
        list[Path],
        Option(
            metavar="FILE",
            help="Detections as COCO results JSON; given several times: mean and 95 % interval. "
            "Example: --detections seed0.json --detections seed1.json",
        ),
    ],
    metric: Annotated[
        MetricName, Option(help="VOC 2007, VOC 2010 or COCO. Example: --metric voc07")
    ] = MetricName.coco,
    novel: Novel = None,
    split: Split = None,
    subset: Subset = None,
    as_json: AsJson = False,
) -> None:
    """Score detections of any tool on novel and base classes.

    Example: mini eval VOCdevkit --subset test --split voc-split1 --metric voc07 --detections d.json
    """
    from mini_fsod.eval.score import score
    from mini_fsod.eval.seeds import over_seeds

    dataset = read_data(data, subset, "cannot be scored against")
    if dataset.subsets and subset is None:
        sets = ", ".join(dataset.subsets)
        console.note(f"all {len(dataset):,} images are scored; --subset chooses one of: {sets}")
    labels = label_map(dataset.classes, split, novel)
    dataset = _with_missing_classes(dataset, labels)
    found = _read_detections(detections, dataset)
    scores = [score(dataset, of_file, labels, metric.value) for of_file in found]
    result = (scores[0] if len(scores) == 1 else over_seeds(scores)) | {
        "label_map": labels.to_json()
    }
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        console.table(_score_table(result, labels))


def _read_detections(files: Sequence[Path], dataset: Dataset) -> list[DatasetDetections]:
    """The detections of all files, or the problems of all files together."""
    from mini_fsod.eval.detections import read_detections

    found: list[DatasetDetections] = []
    problems: list[Problem] = []
    for file in files:
        try:
            found.append(read_detections(file, dataset))
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(problems)
    return found


def _with_missing_classes(dataset: Dataset, labels: LabelMap) -> Dataset:
    """The data set with all classes of the split: detections may be of classes it has no box of.

    In VOC data, VOC classes keep their usual category ids unless the data uses these otherwise.
    """
    missing = [name for name in labels.classes if name not in dataset.classes]
    voc_ids = dict(zip(VOC_CLASSES, range(1, 21), strict=True)) if dataset.kind == "voc" else {}
    unused = max(*dataset.category_ids, len(voc_ids), 0) + 1
    ids: list[int] = []
    for n, name in enumerate(missing):
        voc_id = voc_ids.get(name)
        ids.append(unused + n if voc_id is None or voc_id in dataset.category_ids else voc_id)
    return replace(
        dataset, classes=(*dataset.classes, *missing), category_ids=(*dataset.category_ids, *ids)
    )


def _score_table(result: dict[str, Any], labels: LabelMap) -> Table:
    """Means, then each class; for several files with half the width of the 95 % interval."""
    interval = result.get("interval95", {})
    figures = [f for f in ("AP", "AP50", "AP75") if f in result]
    images = console.count(result["images"], "image")
    table = console.columns(f"{result['metric']}, {images}", *(f">{figure}" for figure in figures))

    def cell(value: float | None, half_width: float | None = None) -> str:
        if value is None:
            return "-"
        return f"{value:.1f}" + (f" ± {half_width:.1f}" if half_width is not None else "")

    for prefix, name in (("n", "novel"), ("b", "base"), ("", "all")):
        if prefix != "n" or labels.novel:
            cells = [cell(result[prefix + f], interval.get(prefix + f)) for f in figures]
            table.add_row(name, *cells, style="bold")
    for name in labels.novel + labels.base:
        style = "magenta" if name in labels.novel else ""
        row = result["per_class"][name]
        table.add_row(f"  {console.plain(name)}", *(cell(row[f]) for f in figures), style=style)
    return table
