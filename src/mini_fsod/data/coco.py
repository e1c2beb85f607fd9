"""COCO JSON, read record by record; each wrong record is a problem of its own."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mini_fsod.data.dataset import Bools, Boxes, Dataset, Ints
from mini_fsod.data.json_stream import JsonError, records
from mini_fsod.data.layout import KNOWN
from mini_fsod.data.pictures import stays_inside
from mini_fsod.data.text import Report, is_text, shown
from mini_fsod.errors import Problem

NUMBERS = {int, float}
FLAGS = (0, 1)  # equal to false and true
MOST_AREA = sys.float_info.max
KEPT = {
    "images": {"id", "file_name", "width", "height"},
    "annotations": {
        *("id", "image_id", "category_id", "bbox", "area", "iscrowd", "ignore", "difficult"),
    },
    "categories": {"id", "name"},
}
MOST_KEYS = 1000
SIZE_FIX = "use the size of the picture"
MOST_PROBLEMS = 20_000  # a file of another kind is wrong in every record


@dataclass(slots=True)
class _Columns:
    """What has been read. Ids are resolved at the end: the lists come in any order."""

    report: Report
    up: int  # how many folders up a picture's name may lead
    lists: set[str] = field(default_factory=set)
    keys: dict[str, set[str]] = field(default_factory=lambda: {k: set() for k in ("", *KEPT)})
    categories: dict[int, str] = field(default_factory=dict)
    images: dict[int, int] = field(default_factory=dict)  # id: index
    wrong_ids: dict[str, set[int]] = field(default_factory=lambda: {k: set() for k in KEPT})
    ambiguous_ids: dict[str, set[int]] = field(default_factory=lambda: {k: set() for k in KEPT})
    files: list[str] = field(default_factory=list)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    ids: array[int] = field(default_factory=lambda: array("q"))
    image_ids: array[int] = field(default_factory=lambda: array("q"))
    labels: array[int] = field(default_factory=lambda: array("q"))
    boxes: array[float] = field(default_factory=lambda: array("d"))
    areas: array[float] = field(default_factory=lambda: array("d"))
    flags: array[int] = field(default_factory=lambda: array("b"))

    def wrong_annotations(
        self, wrong: Bools, kind: str, what: Callable[[int], str], fix: str
    ) -> None:
        """A problem for each wrong annotation; beyond the limit, one for the rest."""
        rows = np.flatnonzero(wrong).tolist()
        room = max(MOST_PROBLEMS - len(self.report.problems), 1)
        for i in rows[:room]:
            self.report(kind, f"annotation {self.ids[i]}", what(i), fix)
        if len(rows) > room:
            more = f"{len(rows) - room:,} more have the same problem"
            self.report(kind, "annotations", more, fix)


def read_coco(path: Path, file: str, up: int = 0) -> tuple[Dataset, list[Problem]]:
    """All valid records of one file, and a problem for each of the others.

    `file` is its name in messages. Image files are named as in the file, and the root is the file's
    folder: the caller finds the pictures. Names may lead `up` so many folders, to pictures beside
    the folder "annotations".
    """
    report = Report(file)
    columns = _Columns(report, up)
    read_record = {"images": _image, "annotations": _annotation, "categories": _category}
    try:
        for key, index, value in records(path):
            if key not in read_record:
                columns.keys[""].add(key)
                continue
            columns.lists.add(key)
            if type(value) is dict and index >= 0:
                keys = columns.keys[key]
                if len(keys) < MOST_KEYS:
                    keys.update(value)
                read_record[key](columns, index, value)
            elif index >= 0:
                report("json-shape", f"{key}[{index}]", "not an object", "remove the record")
            elif value != []:
                report("json-shape", key, f'"{key}" is not a list', f"make {key} a list")
            if len(report.problems) > MOST_PROBLEMS:
                raise JsonError(f"{key}[{index}]", "too many problems, stopped reading")
    except JsonError as error:
        fix = "write the file again, as an object with the lists images, annotations, categories"
        report("json-broken", error.record, error.what, fix)
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        report("json-broken", "", what, "make the file readable, or remove it")
    else:
        missing = [name for name in KEPT if name not in columns.lists]
        if len(missing) > 1:
            report.problems[:] = [not_coco(file)]
        elif missing:
            what = f'the list "{missing[0]}" is missing'
            report("json-shape", "", what, f"add {missing[0]}: […]")
    return _resolve(columns, path.parent), report.problems


def not_coco(file: str, others: int = 0) -> Problem:
    """A JSON file that is not COCO, and the number of `others` like it."""
    more = f" (and {others:,} more files like it)" if others else ""
    what = f"not COCO: no object with the lists {', '.join(KEPT)}{more}"
    return Problem("not-coco", file, "", what, f"convert or remove it; {KNOWN}")


def _integer(value: Any) -> bool:
    """Whether it is a 64-bit integer; `true` is not one."""
    return type(value) is int and -(2**63) <= value < 2**63


def _intended_ids(value: Any) -> set[int]:
    """The integer that other tools read from "7" or 7.0."""
    try:
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        return set()
    return {number} if _integer(number) else set()


def _checked_id(
    columns: _Columns, key: str, noun: str, index: int, record: Mapping[str, Any]
) -> tuple[int | None, str]:
    """(id or None, the record's name in messages)."""
    where = f"{key}[{index}]"
    if "id" not in record:
        columns.report("key-missing", where, '"id" is missing', "add an integer id")
    elif not _integer(record["id"]):
        what = f"id {shown(record['id'])} is not an integer"
        columns.report("id-wrong", where, what, "use integer ids")
        columns.wrong_ids[key].update(_intended_ids(record["id"]))
    else:
        return record["id"], f"{noun} {record['id']}"
    return None, where


def _checked_name(columns: _Columns, where: str, record: Mapping[str, Any], key: str) -> str:
    name = record.get(key)
    if not isinstance(name, str) or not name.strip():
        columns.report("key-missing", where, f'"{key}" is missing or empty', f"add {key}")
    elif not is_text(name):
        what = f"{key} {shown(name)} is not valid Unicode"
        columns.report("name-wrong", where, what, "rename it")
    else:
        return name
    return ""


def _is_new(columns: _Columns, key: str, number: int, name: str, before: str | None) -> bool:
    """Whether the id is new. An id with two names is ambiguous, and neither is used."""
    if before is None:
        return True
    where = f"{'image' if key == 'images' else 'category'} {number}"
    if before == name:
        what = f"the record appears twice ({shown(name)})"
        columns.report("record-duplicate", where, what, "remove one of them")
    else:
        what = f"id used twice, for {shown(before)} and {shown(name)}; its boxes may mean either"
        columns.report("id-duplicate", where, what, "use another id")
        columns.ambiguous_ids[key].add(number)
    return False


def _category(columns: _Columns, index: int, record: Mapping[str, Any]) -> None:
    number, where = _checked_id(columns, "categories", "category", index, record)
    name = _checked_name(columns, where, record, "name").strip()
    if number is None:
        return
    if not name:
        columns.wrong_ids["categories"].add(number)
    elif _is_new(columns, "categories", number, name, columns.categories.get(number)):
        columns.categories[number] = name


def _image(columns: _Columns, index: int, record: Mapping[str, Any]) -> None:
    number, where = _checked_id(columns, "images", "image", index, record)
    name = _checked_name(columns, where, record, "file_name").replace("\\", "/")
    if name and not stays_inside(name, columns.up):
        what = f"{shown(name)} is outside the data folder"
        columns.report("path-outside", where, what, "use a path inside it")
        name = ""
    size = _size(columns, where, record)
    if number is None:
        return
    if not name:
        columns.wrong_ids["images"].add(number)
        return
    before = columns.images.get(number)
    known = None if before is None else columns.files[before]
    if _is_new(columns, "images", number, name, known):
        columns.images[number] = len(columns.files)
        columns.files.append(name)
        columns.sizes.extend(size)


def _size(columns: _Columns, where: str, record: Mapping[str, Any]) -> tuple[int, int]:
    width: Any = record.get("width")
    height: Any = record.get("height")
    if _integer(width) and _integer(height) and 0 < width < 2**31 and 0 < height < 2**31:
        return width, height
    missing = " and ".join(f'"{k}"' for k in ("width", "height") if record.get(k) is None)
    if missing:
        columns.report("size-missing", where, f"{missing} missing", SIZE_FIX)
    else:
        what = f"{shown(width)} x {shown(height)} is not a valid picture size"
        columns.report("size-wrong", where, what, SIZE_FIX)
    return 0, 0


def _annotation(columns: _Columns, index: int, record: Mapping[str, Any]) -> None:
    get = record.get
    number: Any = get("id")
    image: Any = get("image_id")
    category: Any = get("category_id")
    box: Any = get("bbox")
    crowd, ignore, difficult = get("iscrowd", 0), get("ignore", 0), get("difficult", 0)
    valid = (
        type(number) is type(image) is type(category) is int
        and type(box) is list
        and len(box) == 4
        and {*map(type, box)} <= NUMBERS
        and crowd in FLAGS
        and ignore in FLAGS
        and difficult in FLAGS
    )
    if not valid:
        _wrong_annotation(columns, index, record)
        return
    try:
        numbers = array("d", box)
        ids = array("q", (number, image, category))
    except OverflowError:
        what = "a number is too large"
        columns.report("number-wrong", f"annotations[{index}]", what, "correct it")
        return
    area: Any = get("area")
    if type(area) not in NUMBERS or not 0 <= area <= MOST_AREA:
        if "area" in record:
            _wrong_area(columns, f"annotation {number}", area)
        area = numbers[2] * numbers[3]
    columns.areas.append(area)
    columns.boxes.extend(numbers)
    columns.ids.append(ids[0])
    columns.image_ids.append(ids[1])
    columns.labels.append(ids[2])
    columns.flags.append((1 if crowd else 0) | (2 if ignore else 0) | (4 if difficult else 0))


def _wrong_area(columns: _Columns, where: str, area: Any) -> None:
    what = f"area {shown(area)} is not a finite number >= 0"
    columns.report("area-wrong", where, what, "correct it, or remove area")


def _wrong_annotation(columns: _Columns, index: int, record: Mapping[str, Any]) -> None:
    """All problems of a record; kept out of `_annotation`, which runs for millions."""
    _, where = _checked_id(columns, "annotations", "annotation", index, record)
    for key in ("image_id", "category_id", "bbox"):
        if key not in record:
            columns.report("key-missing", where, f'"{key}" is missing', f"add {key}")
        elif key == "bbox":
            box = record[key]
            if type(box) is not list or len(box) != 4 or not {*map(type, box)} <= NUMBERS:
                what = f"bbox {_shown_box(box)} is not four numbers"
                columns.report("box-shape", where, what, "use [x, y, width, height]")
        elif not _integer(record[key]):
            what = f"{key} {shown(record[key])} is not an integer"
            columns.report("id-wrong", where, what, "use an id from the file")
    for key in ("iscrowd", "ignore", "difficult"):
        if record.get(key, 0) not in FLAGS:
            what = f"{key} is {shown(record[key])}, not 0 or 1"
            columns.report("flag-wrong", where, what, "use 0 or 1")
    area = record.get("area", 0)
    if type(area) not in NUMBERS or not 0 <= area <= MOST_AREA:
        _wrong_area(columns, where, area)


def _shown_box(box: Any) -> str:
    if isinstance(box, list) and len(box) <= 4:
        return f"[{', '.join(shown(v) for v in box)}]"
    return f"of {len(box):,} entries" if isinstance(box, list) else shown(box)


def _resolve(columns: _Columns, root: Path) -> Dataset:
    """Ids become indices.

    Boxes of unknown images or categories are problems and left out. So are boxes of an ambiguous
    id or of a wrong record, without a problem of their own.
    """
    image_ids = np.array(columns.image_ids, dtype=np.int64)
    category_ids = np.array(columns.labels, dtype=np.int64)
    ids = np.array(columns.ids, dtype=np.int64)
    known = sorted(columns.categories)
    image = _index(image_ids, np.array(list(columns.images), dtype=np.int64))
    label = _index(category_ids, np.array(known, dtype=np.int64))
    wrong_image, wrong_label, ambiguous_image, ambiguous_label = (
        np.isin(values, np.array(sorted(bad_ids[key]), dtype=np.int64))
        for bad_ids in (columns.wrong_ids, columns.ambiguous_ids)
        for values, key in ((image_ids, "images"), (category_ids, "categories"))
    )
    columns.wrong_annotations(
        (image < 0) & ~wrong_image,
        "id-unknown",
        lambda i: f"image id {image_ids[i]} is unknown",
        "add the image or remove the annotation",
    )
    columns.wrong_annotations(
        (label < 0) & ~wrong_label,
        "id-unknown",
        lambda i: f"category id {category_ids[i]} is unknown",
        "add the category or correct the id",
    )
    repeated = np.ones(len(ids), dtype=bool)
    repeated[np.unique(ids, return_index=True)[1]] = False
    columns.wrong_annotations(repeated, "id-duplicate", lambda _: "id used twice", "use another id")
    _report_shared_names(columns)
    kept = np.flatnonzero((image >= 0) & (label >= 0) & ~ambiguous_image & ~ambiguous_label)
    flags = np.array(columns.flags, dtype=np.int64)[kept]
    data = Dataset(
        kind="coco",
        root=root,
        classes=tuple(columns.categories[k] for k in known),
        category_ids=tuple(known),
        ids=tuple(columns.images),
        files=tuple(columns.files),
        sizes=np.array(columns.sizes, dtype=np.int64).reshape(-1, 2),
        boxes=Boxes.of(
            image[kept],
            np.array(columns.boxes, dtype=np.float64).reshape(-1, 4)[kept],
            label[kept],
            area=np.array(columns.areas, dtype=np.float64)[kept],
            record=ids[kept],
            crowd=flags & 1 > 0,
            ignore=flags & 2 > 0,
            difficult=flags & 4 > 0,
        ),
        sources=(columns.report.file,) * len(columns.files),
        unread=_unread(columns),
    )
    # an image of an ambiguous id has lost its boxes, and would pass for an image without objects
    clear = [i for id_, i in columns.images.items() if id_ not in columns.ambiguous_ids["images"]]
    return data if len(clear) == len(data) else data.select(clear)


def _report_shared_names(columns: _Columns) -> None:
    """Several categories with one name: a detection of that name may mean any of them."""
    numbers: dict[str, list[int]] = {}
    for number, name in columns.categories.items():
        numbers.setdefault(name, []).append(number)
    for name, group in numbers.items():
        if len(group) > 1:
            what = f"categories {', '.join(map(str, group[:9]))} are all named {shown(name)}"
            columns.report("class-duplicate", "categories", what, "merge them")


def _unread(columns: _Columns) -> tuple[str, ...]:
    """Keys that are not used, as in "segmentation of annotations"."""
    unused = [shown(k)[1:-1] for k in sorted(columns.keys[""])]
    for part, kept in KEPT.items():
        unused += [f"{shown(k)[1:-1]} of {part}" for k in sorted(columns.keys[part] - kept)]
    return tuple(unused)


def _index(values: Ints, table: Ints) -> Ints:
    """The index of each value in the table; -1 if it is not there."""
    if len(table) == 0:
        return np.full(len(values), -1, dtype=np.int64)
    order = np.argsort(table)
    index = order[np.minimum(np.searchsorted(table, values, sorter=order), len(table) - 1)]
    return np.where(table[index] == values, index, -1).astype(np.int64)
