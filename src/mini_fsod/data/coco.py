"""COCO JSON: read record by record, told what is wrong with each, and written."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from mini_fsod.data.dataset import Boxes, Dataset, ImageId, Ints
from mini_fsod.data.json_stream import JsonError, records
from mini_fsod.data.pictures import stays_inside
from mini_fsod.errors import Problem
from mini_fsod.files import write_json
from mini_fsod.labels import LabelMap

NUMBERS = {int, float}
LISTS = ("images", "annotations", "categories")
MOST_PROBLEMS = (
    20_000  # a file of another shape is wrong in every record; the point is made by then
)


@dataclass(slots=True)
class _Columns:
    """What has been read so far. Ids are resolved at the end: the lists come in any order."""

    file: str
    problems: list[Problem] = field(default_factory=list)
    lists: set[str] = field(default_factory=set)
    categories: dict[int, str] = field(default_factory=dict)
    images: dict[int, int] = field(default_factory=dict)  # id: index
    files: list[str] = field(default_factory=list)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    ids: array[int] = field(default_factory=lambda: array("q"))
    image_ids: array[int] = field(default_factory=lambda: array("q"))
    labels: array[int] = field(default_factory=lambda: array("q"))
    boxes: array[float] = field(default_factory=lambda: array("d"))
    areas: array[float] = field(default_factory=lambda: array("d"))
    flags: array[int] = field(default_factory=lambda: array("b"))

    def wrong(self, kind: str, record: str, what: str, fix: str) -> None:
        self.problems.append(Problem(kind, self.file, record, what, fix))


def read_coco(path: Path, file: str) -> tuple[Dataset, list[Problem]]:
    """All sound records of one file, and a problem for each of the others.

    `file` is its name in messages. Files are as written there, and the root is the file's folder:
    where the pictures really lie is for the caller to find out.
    """
    columns = _Columns(file)
    take = {"images": _image, "annotations": _annotation, "categories": _category}
    try:
        for key, index, value in records(path):
            if key in take:
                columns.lists.add(key)
                if index < 0:
                    columns.wrong("json-shape", key, f'"{key}" is not a list', f"make {key} a list")
                elif not isinstance(value, dict):
                    record = f"{key}[{index}]"
                    columns.wrong("json-shape", record, "is not an object", "remove the record")
                else:
                    take[key](columns, index, value)
                if len(columns.problems) > MOST_PROBLEMS:
                    raise JsonError(f"{key}[{index}]", "too much is wrong to read on")
    except JsonError as error:
        fix = (
            "write the file again; COCO JSON is an object of lists: images, annotations, categories"
        )
        columns.wrong("json-broken", error.record, error.what, fix)
    else:
        for name in LISTS:
            if name not in columns.lists:
                columns.wrong("json-shape", "", f'the list "{name}" is missing', f"add {name}: […]")
    return _resolve(columns, path.parent), columns.problems


def _integer(value: Any) -> bool:
    """JSON integers that fit an array; `true` is an int to Python, and no id."""
    return type(value) is int and -(2**63) <= value < 2**63


def _checked_id(columns: _Columns, what: str, index: int, record: Mapping[str, Any]) -> int | None:
    if "id" not in record:
        columns.wrong("key-missing", f"{what}[{index}]", '"id" is missing', "give it an integer id")
    elif not _integer(record["id"]):
        wrong = f"the id {record['id']!r} is not an integer"
        columns.wrong("id-wrong", f"{what}[{index}]", wrong[:80], "use integer ids")
    else:
        return int(record["id"])
    return None


def _category(columns: _Columns, index: int, record: Mapping[str, Any]) -> None:
    number = _checked_id(columns, "categories", index, record)
    if number is None:
        return
    name = record.get("name")
    if not isinstance(name, str) or not name.strip():
        columns.wrong("key-missing", f"category {number}", '"name" is missing or empty', "name it")
    elif number in columns.categories:
        columns.wrong("id-twice", f"category {number}", "the id is used twice", "use another id")
    else:
        columns.categories[number] = name.strip()


def _image(columns: _Columns, index: int, record: Mapping[str, Any]) -> None:
    number = _checked_id(columns, "images", index, record)
    if number is None:
        return
    place = f"image {number}"
    name = record.get("file_name")
    if not isinstance(name, str) or not name:
        columns.wrong("key-missing", place, '"file_name" is missing', "name its picture")
        return
    if not stays_inside(name):
        columns.wrong(
            "path-outside", place, f"{name!r} leaves the data folder", "use a path inside it"
        )
        return
    if number in columns.images:
        columns.wrong("id-twice", place, f"the id is used twice ({name})", "use another id")
        return
    width, height = record.get("width"), record.get("height")
    if width is None or height is None:
        columns.wrong("key-missing", place, '"width" or "height" is missing', "state the size")
        width = height = 0
    elif not (_integer(width) and _integer(height) and 0 < width < 2**31 and 0 < height < 2**31):
        what = f"the size {width!r} x {height!r} is not one of a picture"
        columns.wrong("size-wrong", place, what[:100], "state the picture's own size")
        width = height = 0
    columns.images[number] = len(columns.files)
    columns.files.append(name.replace("\\", "/"))
    columns.sizes.extend((width, height))


def _annotation(columns: _Columns, index: int, record: Mapping[str, Any]) -> None:
    get = record.get
    number: Any = get("id")
    image: Any = get("image_id")
    category: Any = get("category_id")
    box: Any = get("bbox")
    sound = type(number) is type(image) is type(category) is int and type(box) is list
    if not sound or len(box) != 4 or not {*map(type, box)} <= NUMBERS:
        _wrong_annotation(columns, index, record)
        return
    area: Any = get("area")
    try:
        numbers = array("d", box)
        ids = array("q", (number, image, category))
        stated = type(area) in NUMBERS and isfinite(area)
        columns.areas.append(area if stated else numbers[2] * numbers[3])
    except OverflowError:
        what = "a number is beyond all bounds"
        columns.wrong("number-wrong", f"annotations[{index}]", what, "correct it")
        return
    columns.boxes.extend(numbers)
    columns.ids.append(ids[0])
    columns.image_ids.append(ids[1])
    columns.labels.append(ids[2])
    crowd, ignore, difficult = get("iscrowd"), get("ignore"), get("difficult")
    columns.flags.append((1 if crowd else 0) | (2 if ignore else 0) | (4 if difficult else 0))


def _wrong_annotation(columns: _Columns, index: int, record: Mapping[str, Any]) -> None:
    """Which part of a record is wrong. Apart from the reading, which meets a million sound ones."""
    number = _checked_id(columns, "annotations", index, record)
    if number is None:
        return
    place = f"annotation {number}"
    for key in ("image_id", "category_id", "bbox"):
        if key not in record:
            columns.wrong("key-missing", place, f'"{key}" is missing', "complete the annotation")
        elif key == "bbox":
            what = f"the bbox {record[key]!r} is not four numbers"
            columns.wrong("box-shape", place, what[:100], "give x, y, width, height")
        elif not _integer(record[key]):
            what = f"{key} {record[key]!r} is not an integer"
            columns.wrong("id-wrong", place, what[:100], "use an id of the file")
        else:
            continue
        return


def _resolve(columns: _Columns, root: Path) -> Dataset:
    """Ids become indices; boxes of unknown images or categories are told and left out."""
    image_ids = np.array(columns.image_ids, dtype=np.int64)
    category_ids = np.array(columns.labels, dtype=np.int64)
    ids = np.array(columns.ids, dtype=np.int64)
    known = sorted(columns.categories)
    image = _index(image_ids, np.array(list(columns.images), dtype=np.int64))
    label = _index(category_ids, np.array(known, dtype=np.int64))
    for i in np.flatnonzero(image < 0).tolist():
        what, fix = f"image id {image_ids[i]} is unknown", "add the image or remove the annotation"
        columns.wrong("id-unknown", f"annotation {ids[i]}", what, fix)
    for i in np.flatnonzero(label < 0).tolist():
        what = f"category id {category_ids[i]} is unknown"
        columns.wrong(
            "id-unknown", f"annotation {ids[i]}", what, "add the category or correct the id"
        )
    repeated = np.ones(len(ids), dtype=bool)
    repeated[np.unique(ids, return_index=True)[1]] = False
    for i in np.flatnonzero(repeated).tolist():
        columns.wrong("id-twice", f"annotation {ids[i]}", "the id is used twice", "use another id")
    sound = np.flatnonzero((image >= 0) & (label >= 0))
    flags = np.array(columns.flags, dtype=np.int64)[sound]
    return Dataset(
        kind="coco",
        root=root,
        classes=tuple(columns.categories[k] for k in known),
        category_ids=tuple(known),
        ids=tuple(columns.images),
        files=tuple(columns.files),
        sizes=np.array(columns.sizes, dtype=np.int64).reshape(-1, 2),
        boxes=Boxes.of(
            image[sound],
            np.array(columns.boxes, dtype=np.float64).reshape(-1, 4)[sound],
            label[sound],
            area=np.array(columns.areas, dtype=np.float64)[sound],
            record=ids[sound],
            crowd=flags & 1 > 0,
            ignore=flags & 2 > 0,
            difficult=flags & 4 > 0,
        ),
        sources=(columns.file,) * len(columns.files),
    )


def _index(values: Ints, table: Ints) -> Ints:
    """Where each value stands in the table, -1 if nowhere."""
    if len(table) == 0:
        return np.full(len(values), -1, dtype=np.int64)
    order = np.argsort(table)
    place = order[np.minimum(np.searchsorted(table, values, sorter=order), len(table) - 1)]
    return np.where(table[place] == values, place, -1).astype(np.int64)


def write_coco(
    path: Path, data: Dataset, labels: LabelMap, info: Mapping[str, Any], first: int = 1
) -> None:
    """The data set as COCO JSON. Ids that are no numbers are counted from `first`, and kept as
    `source_id`. The numbers of the classes stay; their roles go along in `info.label_map`.
    """
    numbers: dict[ImageId, int] = {
        own: own if isinstance(own, int) else n for n, own in enumerate(data.ids, start=first)
    }
    images = [
        {"id": numbers[own], "file_name": name, "width": width, "height": height}
        | ({} if isinstance(own, int) else {"source_id": own})
        for own, name, (width, height) in zip(
            data.ids, data.files, data.sizes.tolist(), strict=True
        )
    ]
    boxes = data.boxes
    annotations = []
    for n, (image, box, label, area) in enumerate(
        zip(*(a.tolist() for a in (boxes.image, boxes.xywh, boxes.label, boxes.area)), strict=True)
    ):
        annotations.append(
            {
                "id": n + 1,
                "image_id": numbers[data.ids[image]],
                "category_id": data.category_ids[label],
                "bbox": box,
                "area": area,
                "iscrowd": int(boxes.crowd[n]),
            }
            | ({"ignore": 1} if boxes.ignore[n] else {})
            | ({"difficult": 1} if boxes.difficult[n] else {})
        )
    categories = [
        {"id": number, "name": name}
        for number, name in zip(data.category_ids, data.classes, strict=True)
    ]
    write_json(
        path,
        {
            "info": {**info, "label_map": labels.to_json()},
            "images": images,
            "annotations": annotations,
            "categories": categories,
        },
    )
