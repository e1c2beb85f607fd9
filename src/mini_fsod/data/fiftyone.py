"""FiftyOne's own export (FiftyOneDataset): samples.json, metadata.json and pictures in data/."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mini_fsod.data.collected import NO_SIZE, Collected, picture_name
from mini_fsod.data.dataset import Dataset, areas_of
from mini_fsod.data.json_stream import JsonError, first_keys, records
from mini_fsod.data.pictures import PictureError, drawn_size, picture_sizes
from mini_fsod.data.problems import Report
from mini_fsod.data.text import is_text, shown
from mini_fsod.errors import Problem, UserError
from mini_fsod.limits import BOXES_PER_LABEL, PROBLEMS_OF_A_FILE

SAMPLES = "samples.json"
LABELS = "labels.json"  # of other exports
USUAL = "ground_truth"  # the field with what people drew
SETS = ("train", "validation", "val", "test")  # tags of samples that name an image set

Json = Mapping[str, Any]


def is_fiftyone(path: Path) -> bool:
    with suppress(JsonError, OSError):
        return path.name == SAMPLES and "samples" in first_keys(path, {"samples"}, 1)
    return False


def refuse_labels_without_names(path: Path) -> None:
    """UserError for FiftyOneImageDetectionDataset, whose pictures have no names, only stems."""
    with suppress(JsonError, OSError):
        if path.name == LABELS and {"classes", "labels"} <= first_keys(path, {"labels"}, 1):
            raise UserError(
                f"{path}: FiftyOne's FiftyOneImageDetectionDataset, which does not say which "
                "picture a box is in, only how its name begins.",
                "Export with dataset_type=fo.types.FiftyOneDataset or "
                "fo.types.COCODetectionDataset.",
            )


def read_fiftyone(path: Path, file: str) -> tuple[Dataset, list[Problem]]:
    """All samples with a picture. Boxes are shares of their pictures' sizes: see `in_pixels`.

    The boxes of the field ground_truth are read, or of the only field that holds boxes.
    """
    report = Report(file)
    found = Collected("fiftyone", path.parent, report)
    try:
        field = _field(path)
        for key, index, sample in records(path):
            if key != "samples" or index < 0:
                continue
            if isinstance(sample, dict):
                _sample(sample, f"sample {index + 1}", field, found)
            else:
                report("json-shape", f"samples[{index}]", "not an object", "remove the record")
            if found.is_full or report.counts.total() > PROBLEMS_OF_A_FILE:
                break
    except JsonError as error:
        report("json-broken", error.record, error.what)
    except OSError as error:
        report("json-broken", "", f"cannot be read ({error.strerror})", "make it readable")
    return found.dataset(), report.problems


def _field(path: Path) -> str:
    """The field with the boxes; UserError if several hold boxes and none is ground_truth."""
    fields: dict[str, None] = {}
    for key, index, sample in records(path):
        if key == "samples" and index >= 0 and isinstance(sample, dict):
            fields |= dict.fromkeys(k for k, v in sample.items() if _detections(v) is not None)
            if USUAL in fields:
                return USUAL
            if len(fields) > 100:
                break
    if len(fields) > 1:
        listed = ", ".join(map(shown, list(fields)[:10]))
        raise UserError(
            f"{path}: several fields hold boxes: {listed}.",
            f"Export one of them, or call it {USUAL}.",
        )
    return next(iter(fields), USUAL)


def _detections(value: Any) -> list[Any] | None:
    """The boxes of a field; None if it holds something else."""
    if not isinstance(value, dict):
        return None
    if value.get("_cls") == "Detection":
        return [value]
    listed = value.get("detections")
    return listed if value.get("_cls") == "Detections" and isinstance(listed, list) else None


def _sample(sample: Json, record: str, field: str, found: Collected) -> None:
    report = found.report
    given = sample.get("filepath")
    name = picture_name(given) if isinstance(given, str) else ""
    if not name or not is_text(name):
        report("key-missing", record, '"filepath" is missing or not valid')
        return
    if sample.get("_media_type", "image") != "image":
        report("json-shape", record, f"a {shown(sample['_media_type'])}, not an image", "remove it")
        return
    tags = sample.get("tags")
    sets = [tag for tag in tags if tag in SETS] if isinstance(tags, list) else []
    found.image(name, _size(sample.get("metadata")), sets[0] if len(sets) == 1 else "")
    for n, box in enumerate(_detections(sample.get(field)) or (), start=1):
        where = f"{record}, detection {n}"
        if n > BOXES_PER_LABEL:
            what = f"more than {BOXES_PER_LABEL:,} boxes of one picture; no more are read"
            report("json-shape", record, what)
            return
        if not isinstance(box, dict):
            report("json-shape", where, "not an object", "remove the record")
            continue
        label: Any = box.get("label")
        xywh: Any = box.get("bounding_box")
        if not isinstance(label, str):
            report("key-missing", where, '"label" is missing')
        elif not _is_box(xywh):
            report("box-shape", where, "bounding_box is not four numbers")
        else:
            found.box(label, [float(v) for v in xywh], where, box.get("confidence"))
            if box.get("mask") is not None or box.get("mask_path") is not None:
                found.unread["masks (their boxes are)"] = None


def _is_box(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and all(type(v) in (int, float) and abs(v) < 1e300 for v in value)
    )


def _size(metadata: Any) -> tuple[int, int]:
    """Width and height in the metadata, which only compute_metadata() writes; else (0, 0)."""
    if isinstance(metadata, dict):
        width, height = metadata.get("width"), metadata.get("height")
        if all(type(v) is int and 0 < v < 2**31 for v in (width, height)):
            return int(width or 0), int(height or 0)
    return NO_SIZE


def in_pixels(data: Dataset) -> Dataset:
    """The same data with its boxes in pixels; sizes that are not declared come from the pictures.

    Boxes of pictures that cannot be opened are left out: `picture_problems` reports the pictures.
    """
    sizes = data.sizes.copy()
    unknown = np.flatnonzero((sizes < 1).any(axis=1)).tolist()
    for i, size in zip(unknown, picture_sizes([data.path(i) for i in unknown]), strict=True):
        if not isinstance(size, PictureError):
            sizes[i] = drawn_size(*size)
    boxes = data.boxes
    of_box = np.tile(sizes[boxes.image], 2).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        xywh = boxes.xywh * of_box
    area = areas_of(xywh)
    known = np.flatnonzero((sizes[boxes.image] > 0).all(axis=1))
    return replace(data, sizes=sizes, boxes=replace(boxes, xywh=xywh, area=area).take(known))
