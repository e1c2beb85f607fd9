"""The files of mining, for people and annotation tools, and a pool that comes back from them.

All is COCO. CVAT needs integer ids, a `segmentation` with every box and no category 0; Label Studio
a `score` and the image sizes. Tools return other ids, but the same names of images and classes.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict

from mini_fsod import console
from mini_fsod.data.coco import read_coco
from mini_fsod.data.dataset import NO_BOXES, Boxes, Dataset, Floats, Ints
from mini_fsod.data.json_stream import JsonError, elements, records
from mini_fsod.data.subsets import arranged
from mini_fsod.data.text import number, shown
from mini_fsod.errors import DataError, Problem, UserError, nearest
from mini_fsod.files import mode, write_bytes, write_json
from mini_fsod.labels import LabelMap
from mini_fsod.limits import CANDIDATES_BYTES
from mini_fsod.loader.cache import image_sizes
from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.names import REJECTED, REVIEWED, finder
from mini_fsod.mining.thresholds import Threshold
from mini_fsod.state_files import Count, Finite, Kind, check_kind, read_state_file

POOL, CANDIDATES = "pool.json", "candidates.json"
THRESHOLDS, AUDIT = "thresholds.json", "audit.json"
DIGITS = 8  # of boxes and cosines; scores are exact, so that thresholds can be checked

# problems of a tool's file that concern neither boxes nor names
HARMLESS = {"size-missing", "size-wrong", "area-wrong", "record-duplicate"}


HOW_TO_OPEN = {
    "images": "file_name is relative to the folder of the data set (DATA below)",
    "FiftyOne": "fiftyone.Dataset.from_dir(dataset_type=fiftyone.types.COCODetectionDataset, "
    "data_path=DATA, labels_path='pool.json')",
    "CVAT": "a task with the images, and the novel classes as labels; upload annotations, COCO 1.0",
    "Label Studio": "label-studio-converter import coco -i pool.json -o tasks.json "
    "--out-type predictions",
}


def write_candidates(path: Path, found: Candidates, data: Dataset, labels: LabelMap) -> None:
    """`candidates.json`: COCO results, all candidates, one per line.

    `data` has all classes of the label map.
    """
    images, categories = _ids(data, labels)
    rows = zip(
        found.image.tolist(),
        found.label.tolist(),
        _rounded(found.xywh).tolist(),
        found.score.tolist(),
        _rounded(found.score_detector).tolist(),
        [None] * len(found) if found.cosine is None else _rounded(found.cosine).tolist(),
        strict=True,
    )
    lines = (
        json.dumps(
            {
                "image_id": images[image],
                "category_id": categories[labels.novel[label]],
                "bbox": box,
                "score": score,
                "category": labels.novel[label],
                "score_detector": detector,
                "cosine": cosine,
                "file_name": data.files[image],
            },
            ensure_ascii=False,
            allow_nan=False,
        )
        for image, label, box, score, detector, cosine in rows
    )
    text = ",\n ".join(lines)
    write_bytes(path, f"[{text}]\n".encode())


def write_thresholds(path: Path, min_score: float, table: Mapping[str, Threshold]) -> None:
    """`thresholds.json`: how the boxes of each class were chosen."""
    classes = {name: threshold.to_json() for name, threshold in table.items()}
    write_json(path, {"min_score": min_score, "classes": classes})


class _Threshold(Kind):
    candidates: Count
    delta: Finite | None
    kept: Count


class _Thresholds(Kind):
    classes: dict[str, _Threshold]


class _Precision(Kind):
    precision: Finite | None
    recall: Finite | None


class _PoolPrecision(_Precision):
    candidates: Count
    kept: Count


class _Audit(Kind):
    pool: _PoolPrecision
    classes: dict[str, _Precision]


def read_thresholds(folder: Path) -> tuple[Any, Any]:
    """The content of `thresholds.json`, and of `audit.json` where there is one, else None."""
    fix = f"Delete {folder} and repeat the command: it mines again."
    thresholds = read_state_file(folder / THRESHOLDS, _Thresholds, fix)
    return thresholds, read_state_file(folder / AUDIT, _Audit, fix)


def write_pool(
    path: Path, pool: Candidates, data: Dataset, labels: LabelMap, as_found: Floats | None = None
) -> None:
    """`pool.json`: a COCO file of all images that were mined, with the boxes of the pool.

    `as_found` (n, 4) are the detector's own boxes; one that was tightened is kept as `bbox_found`.
    Ids are those of `candidates.json`. `source_id` is an image's own id where that is no number.
    """
    image_ids, categories = _ids(data, labels)
    images = [
        {"id": image_ids[i], "file_name": data.files[i], "width": width, "height": height}
        | ({} if isinstance(data.ids[i], int) else {"source_id": data.ids[i]})
        for i, (height, width) in enumerate(image_sizes(data).tolist())
    ]
    columns = (
        pool.image.tolist(),
        pool.label.tolist(),
        _rounded(pool.xywh).tolist(),
        _rounded(pool.xywh if as_found is None else as_found).tolist(),
        pool.score.tolist(),
    )
    annotations = [
        {
            "id": n + 1,
            "image_id": image_ids[image],
            "category_id": categories[labels.novel[label]],
            "bbox": box,
            "area": box[2] * box[3],
            "iscrowd": 0,
            "segmentation": [],
            "score": score,
            "category": labels.novel[label],
        }
        | ({} if box == found else {"bbox_found": found})
        for n, (image, label, box, found, score) in enumerate(zip(*columns, strict=True))
    ]
    novel = ", ".join(labels.novel)
    info = {
        "description": f"Boxes of novel classes ({novel}) that a detector found in images without "
        "annotations of these classes. Correct the copy in the run's folder: delete, move, "
        "relabel or add boxes; `mini run` then trains on the corrected boxes.",
        "how_to_open": HOW_TO_OPEN,
        "label_map": labels.to_json(),
    }
    write_json(
        path,
        {
            "info": info,
            "images": images,
            "annotations": annotations,
            "categories": [{"id": categories[name], "name": name} for name in labels.classes],
        },
    )


def _ids(data: Dataset, labels: LabelMap) -> tuple[list[int], dict[str, int]]:
    """The id of each image and of each class: the data's own where they are numbers.

    Otherwise ids count from 1. So do those of classes that count from 0, as in YOLO: CVAT takes 0
    for no class.
    """
    images = [id_ if isinstance(id_, int) else n for n, id_ in enumerate(data.ids, start=1)]
    ids = arranged(data, labels).category_ids
    shift = int(data.kind != "coco" and min(ids, default=1) == 0)
    return images, {name: id_ + shift for name, id_ in zip(labels.classes, ids, strict=True)}


def _rounded(values: Floats) -> Floats:
    """Values rounded to DIGITS significant digits, more than single precision has."""
    exponent = np.floor(np.log10(np.where(values == 0, 1.0, np.abs(values))))
    scale = 10.0 ** np.clip(DIGITS - 1 - exponent, 0, 22)  # powers that are exact in binary
    return np.asarray(np.round(values * scale) / scale)


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """The pool H of a file: n boxes of novel classes, ordered by image."""

    image: Ints  # (n,) index of the image in the data set
    label: Ints  # (n,) index among the novel classes
    xywh: Floats  # (n, 4)
    score: Floats  # (n,) 1 where a person has accepted the box, or the file has none
    notes: tuple[str, ...]  # what was left out
    rejected: Boxes = NO_BOXES  # places without an object of their novel class, says a person

    def __len__(self) -> int:
        return len(self.image)


NO_POOL = Pool(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 4)), np.zeros(0), ())


def read_pool(path: Path, data: Dataset, labels: LabelMap) -> Pool:
    """The pool in a COCO file: ours, or one that was edited in another tool.

    Images and classes are found by their names. Boxes of base classes (a person found that the cow
    is a horse) are left out with a note, since base objects are annotated. Unknown images and
    classes are a DataError that lists all of them.
    """
    given, problems = read_coco(path, str(path), up=99)
    problems = [p for p in problems if p.kind not in HARMLESS]
    boxes = given.boxes
    index, unknown = _image_indices(given, data, str(path))
    problems += unknown
    for k in np.unique(boxes.label).tolist():
        name = given.classes[k]
        if name not in labels.classes:
            what = f"the class {shown(name)} is unknown.{nearest(name, labels.classes)}"
            fix = f"use the classes {', '.join(labels.classes[:20])}"
            record = f"category {given.category_ids[k]}"
            problems.append(Problem("unknown-class", str(path), record, what, fix))
    if not problems:  # scores are read from a file known to be sound
        scores = dict(_scores(path, problems))
        rejected = _rejected(path, data, labels, problems)
    if problems:
        raise DataError(problems)

    novel = [labels.novel.index(c) if c in labels.novel else -1 for c in given.classes]
    label = np.array(novel, dtype=np.int64)[boxes.label] if len(boxes) else boxes.label
    inside = data.overlaps_picture(index[boxes.image], boxes.xywh)
    kept = np.flatnonzero((label >= 0) & boxes.sound & inside)
    kept = kept[np.argsort(index[boxes.image[kept]], kind="stable")]
    names = sorted({given.classes[k] for k in boxes.label[label < 0].tolist()})
    novel_boxes = label >= 0
    notes = [
        f"{path}: {console.count(int(mask.sum()), 'box')} {why}"
        for mask, why in (
            (~novel_boxes, f"of base classes left out: {', '.join(names)}"),
            (novel_boxes & ~boxes.sound, "without area left out"),
            (novel_boxes & boxes.sound & ~inside, "outside of the picture left out"),
        )
        if mask.any()
    ]
    return Pool(
        index[boxes.image[kept]],
        label[kept],
        boxes.xywh[kept],
        np.array([scores.get(r, REVIEWED) for r in boxes.record[kept].tolist()], dtype=np.float64),
        tuple(notes),
        rejected,
    )


def _rejected(path: Path, data: Dataset, labels: LabelMap, problems: list[Problem]) -> Boxes:
    """The rejected places in a pool, with labels among the novel classes."""
    find = finder(data.files)
    rows: list[tuple[int, list[float], int]] = []
    for key, n, record in records(path):
        if key != REJECTED or n < 0:
            continue
        try:
            check_kind(record, _Rejected)
            (image,) = find(record["file_name"])
            rows.append((image, record["bbox"], labels.novel.index(record["category"])))
        except ValueError as error:
            what = f"not a rejected place of these pictures and classes ({error})"
            fix = f'remove it, or the whole list "{REJECTED}"'
            problems.append(Problem("rejected-wrong", str(path), f"{REJECTED}[{n}]", what, fix))
    xywh = np.array([box for _, box, _ in rows]).reshape(-1, 4)
    return Boxes.of([image for image, *_ in rows], xywh, [label for *_, label in rows])


def _image_indices(given: Dataset, data: Dataset, path: str) -> tuple[Ints, list[Problem]]:
    """For each image of the file its index in the data, and the problems in finding it.

    Images without a box do not matter, and get -1.
    """
    index = np.full(len(given), -1, dtype=np.int64)
    problems = []
    find = finder(data.files)
    for i in np.unique(given.boxes.image).tolist():
        file, size, record = given.files[i], given.sizes[i], f"image {given.ids[i]}"
        found = find(file)
        if len(found) != 1:
            what = f"the data has no picture {shown(file)}"
            if found:
                what = f"{shown(file)} may be any of {', '.join(data.files[k] for k in found[:3])}"
            fix = "give pictures the names they have in the data, with their folders"
            problems.append(Problem("unknown-image", path, record, what, fix))
            continue
        index[i] = found[0]
        actual = data.sizes[found[0]]
        if (size > 0).all() and (actual > 0).all() and (size != actual).any():
            file_size, data_size = (f"{width} x {height}" for width, height in (size, actual))
            what = f"the picture is {file_size} in the file, {data_size} in the data"
            fix = "export it without resizing the pictures"
            problems.append(Problem("size-changed", path, record, what, fix))
    return index, problems


def _scores(path: Path, problems: list[Problem]) -> Iterator[tuple[int, float]]:
    """(annotation id, score) where there is a score: the box's own, or in CVAT's attributes."""
    for key, _, record in records(path):
        if key != "annotations" or not isinstance(record, dict):
            continue
        attributes = record.get("attributes")
        more = attributes.get("score") if isinstance(attributes, dict) else None
        given = record.get("score", more)
        if given is None:
            continue
        try:
            if isinstance(given, bool | list | dict):
                raise ValueError(given)
            score = number(given) if isinstance(given, str) else float(given)
            if not 0 <= score <= 1:
                raise ValueError(given)
        except (ValueError, OverflowError):
            what = f"the score {shown(given)} is not a number from 0 to 1"
            fix = "correct it, or leave it out: the box then counts as reviewed"
            name = f"annotation {record['id']}"
            problems.append(Problem("score-wrong", str(path), name, what, fix))
        else:
            yield record["id"], score


class _Rejected(TypedDict):
    file_name: str
    category: str
    bbox: Annotated[list[Finite], Field(min_length=4, max_length=4)]


class _Candidate(_Rejected):
    score: Finite
    score_detector: Finite
    cosine: Finite | None


def read_candidates(path: Path, data: Dataset, labels: LabelMap) -> Candidates:
    """The candidates of a `candidates.json` that we wrote, in its order."""
    index = {file: i for i, file in enumerate(data.files)}
    fix = f"Delete the folder {path.parent} and repeat the command: it mines again."
    if not mode(path):
        raise UserError(f"{path}: the file is missing.", fix)
    novel = {name: k for k, name in enumerate(labels.novel)}
    indices, values = array("q"), array("d")  # 2 and 7 of each candidate
    try:
        for record in elements(path, CANDIDATES_BYTES):
            check_kind(record, _Candidate)
            indices.extend((index[record["file_name"]], novel[record["category"]]))
            cosine = math.nan if record["cosine"] is None else record["cosine"]
            values.extend((*record["bbox"], record["score"], record["score_detector"], cosine))
    except (OSError, ValueError, OverflowError, KeyError, JsonError) as error:
        why = str(getattr(error, "strerror", None) or error)[:200]
        raise UserError(f"{path}: not the candidates of these images ({why}).", fix) from None
    image, label = np.array(indices, dtype=np.int64).reshape(-1, 2).T
    numbers = np.array(values, dtype=np.float64).reshape(-1, 7)
    xywh, (score, detector, cosine) = numbers[:, :4], numbers[:, 4:].T
    return Candidates(
        image, label, xywh, score, detector, None if np.isnan(cosine).any() else cosine
    )
