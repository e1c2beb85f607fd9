"""Scores of detections: what `mini eval` prints and what stages record."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any, Literal, get_args

from mini_fsod.data.dataset import Dataset
from mini_fsod.errors import UserError, nearest
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.labels import LabelMap

Metric = Literal["voc07", "voc", "coco"]
PER_CLASS = ("AP50", "AP", "AP75")
COCO_ALONE = tuple("AP AP75 APs APm APl AR1 AR10 AR100 ARs ARm ARl".split())
NAMES = tuple(f"{prefix}{name}" for name in ("AP50", *COCO_ALONE) for prefix in ("n", "b", ""))


def score(
    dataset: Dataset, detections: DatasetDetections, labels: LabelMap, metric: Metric
) -> dict[str, Any]:
    """Scores in percent over novel (prefix n), base (prefix b) and all classes, and per class.

    {"metric", "nAP50", "bAP50", "AP50", ..., "per_class": {name: {"AP50": ...}}, "images",
    "detections"}; with coco also COCO_ALONE. A class without ground truth is None and left out of
    means; a mean over no classes is None. Never NaN.
    """
    figures = _class_figures(dataset, detections, metric)
    label = {name: i for i, name in enumerate(dataset.classes)}

    def percent(figure: str, name: str) -> float | None:
        value = figures[figure][label[name]] if name in label else None
        return None if value is None else 100 * value

    result: dict[str, Any] = {"metric": metric}
    for figure in figures:
        for prefix, names in (("n", labels.novel), ("b", labels.base), ("", labels.classes)):
            result[prefix + figure] = _mean(percent(figure, name) for name in names)
    shown = [figure for figure in PER_CLASS if figure in figures]
    result["per_class"] = {
        name: {figure: percent(figure, name) for figure in shown} for name in labels.classes
    }
    return result | {"images": len(dataset), "detections": len(detections)}


def _class_figures(
    dataset: Dataset, detections: DatasetDetections, metric: str
) -> dict[str, list[float | None]]:
    if metric == "coco":
        from mini_fsod.eval.coco import class_figures

        return class_figures(dataset, detections)
    known = get_args(Metric)
    if metric not in known:
        what = f'There is no metric "{metric}".{nearest(metric, known)}'
        raise UserError(what, f"Known: {', '.join(known)}.")
    from mini_fsod.eval.voc import class_ap

    classes = len(dataset.classes)
    return {"AP50": class_ap(dataset.boxes, detections, classes, eleven_points=metric == "voc07")}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) if known else None
