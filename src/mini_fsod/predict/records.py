"""Detections as JSON, COCO and CSV. Does not import torch."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

from mini_fsod import __version__
from mini_fsod.labels import LabelMap
from mini_fsod.predict.prediction import Prediction

COLUMNS = ("file", "frame", "category", "score", "x", "y", "width", "height")


def to_json(prediction: Prediction) -> dict[str, Any]:
    """One record of `mini predict --json`; `mini eval` reads it."""
    width, height = prediction.size
    return {
        "file": str(prediction.path),
        **({} if prediction.frame is None else {"frame": prediction.frame}),
        "width": width,
        "height": height,
        "detections": [
            {"category": name, "bbox": [round(v, 3) for v in box], "score": round(score, 6)}
            for name, box, score in zip(
                prediction.names, prediction.xywh.tolist(), prediction.scores.tolist(), strict=True
            )
        ],
    }


def coco_content(
    predictions: Sequence[Prediction], names: Sequence[str], labels: LabelMap
) -> dict[str, Any]:
    """A COCO file of all pictures, with a score in every annotation; ids count from 1.

    `names` are the pictures' file names. Frames of a video share its name and have a `frame`.
    """
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for id_, (prediction, name) in enumerate(zip(predictions, names, strict=True), start=1):
        width, height = prediction.size
        image = {"id": id_, "file_name": name, "width": width, "height": height}
        images.append(image | ({} if prediction.frame is None else {"frame": prediction.frame}))
        annotations += prediction.to_coco(id_, len(annotations) + 1)
    return {
        "info": {"description": f"detections of mini {__version__}", "label_map": labels.to_json()},
        "images": images,
        "annotations": annotations,
        "categories": coco_categories(labels.classes),
    }


def coco_categories(names: Sequence[str]) -> list[dict[str, Any]]:
    """COCO's categories of these classes, numbered from 1, as in `Prediction.to_coco`."""
    return [{"id": n, "name": name} for n, name in enumerate(names, start=1)]


def csv_text(predictions: Iterable[Prediction], names: Iterable[str]) -> str:
    """One line per detection, under the names of COLUMNS; boxes in pixels."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for prediction, file in zip(predictions, names, strict=True):
        frame = "" if prediction.frame is None else prediction.frame
        for record in to_json(prediction)["detections"]:
            row = (file, frame, record["category"], record["score"], *record["bbox"])
            writer.writerow(row)
    return text.getvalue()
