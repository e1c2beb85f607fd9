"""COCO JSON, read record by record; each wrong record is a problem of its own."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from mini_fsod.data.dataset import Bools, Boxes, Dataset, Ints
from mini_fsod.data.file_names import stays_inside
from mini_fsod.data.json_stream import JsonError, RepeatedKey, records
from mini_fsod.data.layout import KNOWN
from mini_fsod.data.problems import Report
from mini_fsod.data.text import is_text, score_of, shown
from mini_fsod.errors import Problem
from mini_fsod.limits import BOXES, CLASSES, IMAGES, JSON_KEYS, PROBLEMS_OF_A_FILE

NUMBERS = {int, float}
UNREAD_NAMED = 50  # keys that are not read
FLAGS = ("iscrowd", "ignore", "difficult")
KEPT = {
    "images": {"id", "file_name", "width", "height"},
    "annotations": {"id", "image_id", "category_id", "bbox", "area", "score", *FLAGS},
    "categories": {"id", "name"},
}
MOST = {"images": IMAGES, "annotations": BOXES, "categories": CLASSES}
NOUNS = {"images": "image", "annotations": "annotation", "categories": "category"}


class _Columns:
    """What has been read. Ids are resolved at the end: the lists come in any order."""

    def __init__(self, report: Report, up: int) -> None:
        self.report = report
        self.up = up  # how many folders up a picture's name may lead
        self.keys: dict[str, set[str]] = {name: set() for name in KEPT}
        self.names: dict[str, dict[int, str]] = {name: {} for name in KEPT}  # class or picture
        self.sizes: dict[int, tuple[int, int]] = {}  # by image id
        self.wrong_ids: dict[str, set[int]] = {name: set() for name in KEPT}  # left out
        self.ambiguous_ids: dict[str, set[int]] = {name: set() for name in KEPT}  # used twice
        self.ids, self.image_ids, self.category_ids = array("q"), array("q"), array("q")
        self.boxes, self.areas, self.flags = array("d"), array("d"), array("b")
        self.scores = array("d")

    def report_annotations(self, wrong: Bools, kind: str, what: str, ids: Ints) -> None:
        """A problem for each wrong annotation, with its id of `ids`."""
        for i in np.flatnonzero(wrong).tolist():
            self.report(kind, f"annotation {self.ids[i]}", what.format(ids[i]))


def read_coco(path: Path, file: str, up: int = 0) -> tuple[Dataset, list[Problem]]:
    """All valid records of one file, and a problem for each of the others.

    `file` is its name in messages. Image files are named as in the file, and the root is the file's
    folder: the caller finds the pictures. Names may lead `up` so many folders, to pictures beside
    the folder "annotations".
    """
    report = Report(file)
    columns = _Columns(report, up)
    lists: dict[str, None] = {}
    try:
        for key, index, value in records(path):
            lists[key] = None
            if key not in KEPT:
                continue
            if index < 0 and value != []:
                report("json-shape", key, f'"{key}" is not a list')
            elif isinstance(value, RepeatedKey):
                _repeated_key(columns, key, index, value)
            elif index >= 0 and type(value) is not dict:
                report("json-shape", f"{key}[{index}]", "not an object", "remove the record")
            elif index >= 0:
                if len(columns.keys[key]) < JSON_KEYS:
                    columns.keys[key].update(value)
                (_annotation if key == "annotations" else _named)(columns, key, index, value)
            if index >= MOST[key]:
                raise JsonError(f"{key}[{index}]", f"more than {MOST[key]:,} {key}")
            if report.counts and report.counts.total() > PROBLEMS_OF_A_FILE:
                raise JsonError(f"{key}[{index}]", "too many problems, stopped reading")
    except JsonError as error:
        fix = "write the file again, as an object with the lists images, annotations, categories"
        report("json-broken", error.record, error.what, fix)
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        report("json-broken", "", what, "make the file readable, or remove it")
    else:
        missing = [name for name in KEPT if name not in lists]
        if len(missing) > 1:
            return _resolve(columns, path.parent, []), [not_coco(file)]
        if missing:
            report("json-shape", "", f'the list "{missing[0]}" is missing')
    return _resolve(columns, path.parent, sorted(lists.keys() - KEPT)), report.problems


def not_coco(file: str, others: int = 0) -> Problem:
    """A JSON file that is not COCO, and the number of `others` like it."""
    more = f" (and {others:,} more files like it)" if others else ""
    what = f"not COCO: no object with the lists {', '.join(KEPT)}{more}"
    return Problem("not-coco", file, "", what, f"convert or remove it; {KNOWN}")


def _is_integer(value: Any) -> bool:
    """Whether it is a 64-bit integer; `true` is not one."""
    return type(value) is int and -(2**63) <= value < 2**63


def _is_box(value: Any) -> bool:
    return type(value) is list and len(value) == 4 and {*map(type, value)} <= NUMBERS


def _is_area(value: Any) -> bool:
    return type(value) in NUMBERS and 0 <= value <= sys.float_info.max


def _checked_id(
    columns: _Columns, key: str, index: int, record: Mapping[str, Any]
) -> tuple[int | None, str]:
    """(id or None, the record's name in messages)."""
    where = f"{key}[{index}]"
    number: Any = record.get("id")
    if "id" not in record:
        columns.report("key-missing", where, '"id" is missing')
    elif _is_integer(number):
        return number, f"{NOUNS[key]} {number}"
    else:
        columns.report("id-wrong", where, f"id {shown(number)} is not an integer")
        with suppress(ValueError, TypeError, OverflowError):
            intended = int(number)  # other tools read an integer from "7" or 7.0
            if _is_integer(intended):
                columns.wrong_ids[key].add(intended)
    return None, where


def _repeated_key(columns: _Columns, key: str, index: int, record: RepeatedKey) -> None:
    """What is meant is not known: the record is left out, and so are the boxes of its id."""
    number: Any = record.get("id")
    if _is_integer(number):
        columns.wrong_ids[key].add(number)
    what = f"the key {shown(record.key)} is given twice"
    columns.report("key-duplicate", f"{key}[{index}]", what)


def _named(columns: _Columns, key: str, index: int, record: Mapping[str, Any]) -> None:
    """Read an image or a category. An id with two names is ambiguous, and neither is used."""
    report = columns.report
    number, where = _checked_id(columns, key, index, record)
    name_key = "file_name" if key == "images" else "name"
    name = record.get(name_key)
    if not isinstance(name, str) or not name.strip():
        report("key-missing", where, f'"{name_key}" is missing or empty')
        name = ""
    elif not is_text(name):
        report("name-wrong", where, f"{name_key} {shown(name)} is not valid Unicode")
        name = ""
    size = (0, 0)
    if key == "images":
        name = name.replace("\\", "/")
        if name and not stays_inside(name, columns.up):
            report("path-outside", where, f"{shown(name)} is outside the data folder")
            name = ""
        size = _size(columns, where, record)
    else:
        name = name.strip()
    if number is None:
        return
    names = columns.names[key]
    if not name:
        columns.wrong_ids[key].add(number)
    elif number not in names:
        names[number] = name
        if key == "images":
            columns.sizes[number] = size
    elif names[number] == name:
        what = f"the record appears twice ({shown(name)})"
        report("record-duplicate", f"{NOUNS[key]} {number}", what)
    else:
        both = f"{shown(names[number])} and {shown(name)}"
        what = f"id used twice, for {both}; its boxes may mean either"
        report("id-duplicate", f"{NOUNS[key]} {number}", what)
        columns.ambiguous_ids[key].add(number)


def _size(columns: _Columns, where: str, record: Mapping[str, Any]) -> tuple[int, int]:
    width: Any = record.get("width")
    height: Any = record.get("height")
    if all(_is_integer(v) and 0 < v < 2**31 for v in (width, height)):
        return width, height
    missing = " and ".join(f'"{k}"' for k in ("width", "height") if record.get(k) is None)
    if missing:
        columns.report("size-missing", where, f"{missing} missing")
    else:
        what = f"{shown(width)} x {shown(height)} is not a valid picture size"
        columns.report("size-wrong", where, what)
    return 0, 0


def _annotation(columns: _Columns, key: str, index: int, record: Mapping[str, Any]) -> None:
    get = record.get
    number: Any = get("id")
    image: Any = get("image_id")
    category: Any = get("category_id")
    box: Any = get("bbox")
    crowd, ignore, difficult = get("iscrowd", 0), get("ignore", 0), get("difficult", 0)
    valid = (
        type(number) is type(image) is type(category) is int
        and _is_box(box)
        and crowd in (0, 1)  # equal to false and true
        and ignore in (0, 1)
        and difficult in (0, 1)
    )
    if not valid:
        _wrong_annotation(columns, key, index, record)
        return
    try:
        numbers = array("d", box)
        ids = array("q", (number, image, category))
    except OverflowError:
        columns.report("number-wrong", f"{key}[{index}]", "a number is too large")
        return
    area: Any = get("area")
    if not _is_area(area):
        if "area" in record:
            _wrong_area(columns, f"annotation {number}", area)
        area = min(numbers[2] * numbers[3], sys.float_info.max)
    columns.areas.append(area)
    columns.scores.append(score_of(get("score")))
    columns.boxes.extend(numbers)
    columns.ids.append(ids[0])
    columns.image_ids.append(ids[1])
    columns.category_ids.append(ids[2])
    columns.flags.append((1 if crowd else 0) | (2 if ignore else 0) | (4 if difficult else 0))


def _wrong_area(columns: _Columns, where: str, area: Any) -> None:
    columns.report("area-wrong", where, f"area {shown(area)} is not a finite number >= 0")


def _wrong_annotation(columns: _Columns, key: str, index: int, record: Mapping[str, Any]) -> None:
    """All problems of a record; kept out of `_annotation`, which runs for millions."""
    report = columns.report
    _, where = _checked_id(columns, key, index, record)
    for name in ("image_id", "category_id", "bbox"):
        value = record.get(name)
        if name not in record:
            report("key-missing", where, f'"{name}" is missing')
        elif name != "bbox" and not _is_integer(value):
            report("id-wrong", where, f"{name} {shown(value)} is not an integer")
        elif name == "bbox" and not _is_box(value):
            listed = value[:5] if isinstance(value, list) else None
            box = shown(value) if listed is None else f"[{', '.join(map(shown, listed))}]"
            report("box-shape", where, f"bbox {box} is not four numbers")
    for name in FLAGS:
        if record.get(name, 0) not in (0, 1):
            report("flag-wrong", where, f"{name} is {shown(record[name])}, not 0 or 1")
    if not _is_area(record.get("area", 0)):
        _wrong_area(columns, where, record["area"])


def _resolve(columns: _Columns, root: Path, unused: list[str]) -> Dataset:
    """Ids become indices; `unused` are keys of the file beyond its lists.

    Boxes of unknown images or categories are problems and left out. So are boxes of an ambiguous
    id or of a wrong record, without a problem of their own. An image of an ambiguous id is left
    out as well: without its boxes, it would pass for an image without objects.
    """
    ambiguous = columns.ambiguous_ids
    images = [id_ for id_ in columns.names["images"] if id_ not in ambiguous["images"]]
    categories = sorted(columns.names["categories"])
    ids = np.array(columns.ids, dtype=np.int64)
    index = {}
    for key, column, known in (
        ("images", columns.image_ids, images),
        ("categories", columns.category_ids, categories),
    ):
        values = np.array(column, dtype=np.int64)
        found = _index(values, np.array(known, dtype=np.int64))
        found[_isin(values, ambiguous[key])] = -1
        unknown = (found < 0) & ~_isin(values, columns.wrong_ids[key] | ambiguous[key])
        what = f"{NOUNS[key]} id {{}} is unknown"
        columns.report_annotations(unknown, "id-unknown", what, values)
        index[key] = found
    repeated = np.ones(len(ids), dtype=np.bool_)
    repeated[np.unique(ids, return_index=True)[1]] = False
    columns.report_annotations(repeated, "id-duplicate", "id used twice", ids)
    _report_shared_names(columns)
    kept = np.flatnonzero((index["images"] >= 0) & (index["categories"] >= 0))
    flags = np.array(columns.flags, dtype=np.int64)[kept]
    unused += [f"{k} of {part}" for part in KEPT for k in sorted(columns.keys[part] - KEPT[part])]
    return Dataset(
        kind="coco",
        root=root,
        classes=tuple(columns.names["categories"][k] for k in categories),
        category_ids=tuple(categories),
        ids=tuple(images),
        files=tuple(columns.names["images"][id_] for id_ in images),
        sizes=np.array([columns.sizes[id_] for id_ in images], dtype=np.int64).reshape(-1, 2),
        boxes=Boxes.of(
            index["images"][kept],
            np.array(columns.boxes, dtype=np.float64).reshape(-1, 4)[kept],
            index["categories"][kept],
            area=np.array(columns.areas, dtype=np.float64)[kept],
            record=ids[kept],
            crowd=flags & 1 > 0,
            ignore=flags & 2 > 0,
            difficult=flags & 4 > 0,
            score=np.array(columns.scores, dtype=np.float64)[kept],
        ),
        sources=(columns.report.file,) * len(images),
        unread=tuple(shown(key)[1:-1] for key in unused[:UNREAD_NAMED]),
    )


def _report_shared_names(columns: _Columns) -> None:
    """Several categories with one name: a detection of that name may mean any of them."""
    numbers: dict[str, list[int]] = {}
    for number, name in columns.names["categories"].items():
        numbers.setdefault(name, []).append(number)
    for name, group in numbers.items():
        if len(group) > 1:
            what = f"categories {', '.join(map(str, group[:9]))} are all named {shown(name)}"
            columns.report("class-duplicate", "categories", what)


def _isin(values: Ints, chosen: set[int]) -> Bools:
    return np.isin(values, np.array(sorted(chosen), dtype=np.int64))


def _index(values: Ints, table: Ints) -> Ints:
    """The index of each value in the table; -1 if it is not there."""
    if len(table) == 0:
        return np.full(len(values), -1, dtype=np.int64)
    order = np.argsort(table)
    index = order[np.minimum(np.searchsorted(table, values, sorter=order), len(table) - 1)]
    return np.where(table[index] == values, index, -1).astype(np.int64)
