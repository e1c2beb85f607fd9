"""What mining leaves behind for people and other tools, and a pool that comes back from them.

COCO in both directions. What the tools ask for, read at their sources: CVAT wants whole numbers as
ids, a `segmentation` with every box and no category 0; Label Studio a `score` and the pictures'
sizes; FiftyOne takes all of it, scores as confidence. They give back other ids: what stays the
same is a picture's name and a class's.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from mini_fsod import console
from mini_fsod.data.coco import read_coco
from mini_fsod.data.dataset import Dataset, Floats, Ints
from mini_fsod.data.json_stream import records
from mini_fsod.data.subsets import arranged
from mini_fsod.data.text import number, shown
from mini_fsod.errors import DataError, Problem, UserError, nearest
from mini_fsod.files import open_regular, write_bytes, write_json
from mini_fsod.labels import LabelMap
from mini_fsod.loader.cache import image_sizes
from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.thresholds import Threshold

DIGITS = 8  # of boxes and cosines; scores are written whole, so that thresholds can be checked

# of a file that a tool wrote: what boxes and names do not depend on
HARMLESS = {"size-missing", "size-wrong", "area-wrong", "record-duplicate"}
UPLOADED = re.compile(r"^[0-9a-f]{8}-")  # Label Studio's, before the names of uploaded pictures
REVIEWED = 1.0  # the score of a box that comes back without one: somebody has looked at it

HOW_TO_OPEN = {
    "pictures": "file_name is relative to the folder of the data set (DATA below)",
    "FiftyOne": "fiftyone.Dataset.from_dir(dataset_type=fiftyone.types.COCODetectionDataset, "
    "data_path=DATA, labels_path='pool.json')",
    "CVAT": "a task with the pictures, and the novel classes as labels; upload annotations, "
    "COCO 1.0",
    "Label Studio": "label-studio-converter import coco -i pool.json -o tasks.json "
    "--out-type predictions",
}


def write_candidates(path: Path, found: Candidates, data: Dataset, labels: LabelMap) -> None:
    """`candidates.json`: COCO results, a line a candidate, the whole population and nothing else.

    `data` knows all classes of the label map, with the numbers they have in its file.
    """
    images, categories = _numbers(data, labels)
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


def write_thresholds(path: Path, cut: float, table: Mapping[str, Threshold]) -> None:
    """`thresholds.json`: what decided about each class."""
    write_json(path, {"cut": cut, "classes": {name: t.to_json() for name, t in table.items()}})


def write_pool(path: Path, pool: Candidates, data: Dataset, labels: LabelMap) -> None:
    """`pool.json`: a COCO file of all images that were mined, with the boxes of the pool.

    Ids are those of `candidates.json`. The `source_id` of an image is its id in data whose ids are
    no numbers.
    """
    numbers, categories = _numbers(data, labels)
    images = [
        {"id": numbers[i], "file_name": data.files[i], "width": width, "height": height}
        | ({} if isinstance(data.ids[i], int) else {"source_id": data.ids[i]})
        for i, (height, width) in enumerate(image_sizes(data).tolist())
    ]
    boxes = _rounded(pool.xywh).tolist()
    annotations = [
        {
            "id": n + 1,
            "image_id": numbers[image],
            "category_id": categories[labels.novel[label]],
            "bbox": box,
            "area": box[2] * box[3],
            "iscrowd": 0,
            "segmentation": [],
            "score": score,
            "category": labels.novel[label],
        }
        for n, (image, label, box, score) in enumerate(
            zip(pool.image.tolist(), pool.label.tolist(), boxes, pool.score.tolist(), strict=True)
        )
    ]
    novel = ", ".join(labels.novel)
    info = {
        "description": f"Boxes of novel classes ({novel}) that a detector has found in images "
        "where nobody has marked them. Wrong ones may be deleted, moved or given another class, "
        "missing ones added; `mini` reads the file again.",
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


def _numbers(data: Dataset, labels: LabelMap) -> tuple[list[int], dict[str, int]]:
    """The number of each image and of each class: the data's own, where it has such.

    Text that stands for images is counted from 1. So are classes that the data counts from 0, as
    YOLO does: CVAT takes 0 for no class.
    """
    images = [own if isinstance(own, int) else n for n, own in enumerate(data.ids, start=1)]
    ids = arranged(data, labels).category_ids
    shift = int(data.kind != "coco" and min(ids, default=1) == 0)
    return images, {name: own + shift for name, own in zip(labels.classes, ids, strict=True)}


def _rounded(values: Floats) -> Floats:
    """To DIGITS significant digits: of single-precision numbers nothing is lost but noise."""
    exponent = np.floor(np.log10(np.where(values == 0, 1.0, np.abs(values))))
    scale = 10.0 ** np.clip(DIGITS - 1 - exponent, 0, 22)  # powers that are exact in binary
    return np.asarray(np.round(values * scale) / scale)


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """The pool H of a file: n boxes of novel classes, ordered by image."""

    image: Ints  # (n,) index of the image in the data set
    label: Ints  # (n,) place among the novel classes
    xywh: Floats  # (n, 4)
    score: Floats  # (n,) 1 where the file has none
    notes: tuple[str, ...]  # what was left out, a sentence each

    def __len__(self) -> int:
        return len(self.image)


def read_pool(path: Path, data: Dataset, labels: LabelMap) -> Pool:
    """The pool that a COCO file holds: ours, or what somebody has made of it in another tool.

    Images and classes are known by their names. Boxes of base classes (somebody has seen that the
    cow is a horse) are left out with a note, since base objects are annotated. What cannot be
    placed is a DataError that tells all of it.
    """
    given, problems = read_coco(path, str(path), up=99)
    problems = [p for p in problems if p.kind not in HARMLESS]
    boxes = given.boxes
    place, unplaced = _places(given, data, str(path))
    problems += unplaced
    for k in np.unique(boxes.label).tolist():
        name = given.classes[k]
        if name not in labels.classes:
            what = f"the class {shown(name)} is unknown.{nearest(name, labels.classes)}"
            fix = f"use the classes {', '.join(labels.classes[:20])}"
            record = f"category {given.category_ids[k]}"
            problems.append(Problem("unknown-class", str(path), record, what, fix))
    if not problems:  # scores are read from what is known to be sound
        scores = dict(_scores(path, problems))
    if problems:
        raise DataError(problems)

    novel = [labels.novel.index(c) if c in labels.novel else -1 for c in given.classes]
    label = np.array(novel, dtype=np.int64)[boxes.label] if len(boxes) else boxes.label
    seen = data.overlaps_picture(place[boxes.image], boxes.xywh)
    own = np.flatnonzero((label >= 0) & boxes.sound & seen)
    own = own[np.argsort(place[boxes.image[own]], kind="stable")]
    notes = []
    if (label < 0).any():
        names = sorted({given.classes[k] for k in boxes.label[label < 0].tolist()})
        count = console.count(int((label < 0).sum()), "box")
        notes.append(f"{path}: {count} of base classes left out: {', '.join(names)}")
    empty = int(((label >= 0) & ~boxes.sound).sum())
    if empty:
        notes.append(f"{path}: {console.count(empty, 'box')} without area left out")
    elsewhere = int(((label >= 0) & boxes.sound & ~seen).sum())
    if elsewhere:
        notes.append(
            f"{path}: {console.count(elsewhere, 'box')} wholly outside of the picture left out"
        )
    return Pool(
        place[boxes.image[own]],
        label[own],
        boxes.xywh[own],
        np.array([scores.get(r, REVIEWED) for r in boxes.record[own].tolist()], dtype=np.float64),
        tuple(notes),
    )


def _places(given: Dataset, data: Dataset, path: str) -> tuple[Ints, list[Problem]]:
    """For each image of the file its index in the data, and what cannot be placed.

    Images without a box do not matter, and get -1.
    """
    place = np.full(len(given), -1, dtype=np.int64)
    problems = []
    find = _finder(data.files)
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
        place[i] = found[0]
        here = data.sizes[found[0]]
        if (size > 0).all() and (here > 0).all() and (size != here).any():
            what = f"the picture is {size[0]} x {size[1]} there, and {here[0]} x {here[1]} here"
            fix = "export it without resizing the pictures"
            problems.append(Problem("size-changed", path, record, what, fix))
    return place, problems


def _scores(path: Path, problems: list[Problem]) -> Iterator[tuple[int, float]]:
    """(annotation id, its score), where it has one: its own, or CVAT's among its attributes."""
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
            place = f"annotation {record['id']}"
            problems.append(Problem("score-wrong", str(path), place, what, fix))
        else:
            yield record["id"], score


def _finder(files: tuple[str, ...]) -> Callable[[str], list[int]]:
    """A function from the name of a picture, as some tool knows it, to the images it may mean.

    Tools drop folders or add some: among pictures of one name those win that share most of the
    folders right before it.
    """
    exact = {file: i for i, file in enumerate(files)}
    by_name: dict[str, list[int]] = defaultdict(list)
    for i, file in enumerate(files):
        by_name[PurePosixPath(file).name].append(i)

    def find(name: str) -> list[int]:
        if name in exact:
            return [exact[name]]
        path = PurePosixPath(name)
        same = by_name.get(path.name) or by_name.get(UPLOADED.sub("", path.name)) or []
        shared = [_common_tail(path.parent, PurePosixPath(files[i]).parent) for i in same]
        return [i for i, n in zip(same, shared, strict=True) if n == max(shared)]

    return find


def _common_tail(a: PurePosixPath, b: PurePosixPath) -> int:
    """How many folders the two paths share, counted from the end."""
    count = 0
    for one, other in zip(reversed(a.parts), reversed(b.parts), strict=False):
        if one != other:
            break
        count += 1
    return count


def read_candidates(path: Path, data: Dataset, labels: LabelMap) -> Candidates:
    """The candidates of our own `candidates.json`, in its order."""
    place = {file: i for i, file in enumerate(data.files)}
    try:
        with open_regular(path) as source:
            records = json.load(source)
        image = np.array([place[r["file_name"]] for r in records], dtype=np.int64)
        label = np.array([labels.novel.index(r["category"]) for r in records], dtype=np.int64)
        xywh = np.array([r["bbox"] for r in records], dtype=np.float64).reshape(-1, 4)
        score, own, similar = (
            np.array([r[key] for r in records], dtype=np.float64)  # null becomes nan
            for key in ("score", "score_detector", "cosine")
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not the candidates of these images ({error}).", "Mine again: --from mine."
        ) from None
    return Candidates(image, label, xywh, score, own, None if np.isnan(similar).any() else similar)
