"""COCO JSON: read record by record, and told what is wrong with each."""

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
from mini_fsod.data.text import is_text, shown
from mini_fsod.errors import Problem

NUMBERS = {int, float}
FLAGS = (0, 1)  # and true and false, which equal them
MOST_AREA = sys.float_info.max
KEPT = {
    "images": {"id", "file_name", "width", "height"},
    "annotations": {
        *("id", "image_id", "category_id", "bbox", "area", "iscrowd", "ignore", "difficult"),
    },
    "categories": {"id", "name"},
}
MOST_KEYS = 1000
# a file of another shape is wrong in every record; the point is made by then
MOST_PROBLEMS = 20_000


@dataclass(slots=True)
class _Columns:
    """What has been read so far. Ids are resolved at the end: the lists come in any order."""

    file: str
    up: int  # how many folders a picture's name may go up
    problems: list[Problem] = field(default_factory=list)
    lists: set[str] = field(default_factory=set)
    keys: dict[str, set[str]] = field(default_factory=lambda: {k: set() for k in ("", *KEPT)})
    categories: dict[int, str] = field(default_factory=dict)
    images: dict[int, int] = field(default_factory=dict)  # id: index
    wrong_ids: dict[str, set[int]] = field(default_factory=lambda: {k: set() for k in KEPT})
    unclear_ids: dict[str, set[int]] = field(default_factory=lambda: {k: set() for k in KEPT})
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

    def wrong_where(self, where: Bools, kind: str, what: Callable[[int], str], fix: str) -> None:
        """A problem for each of these annotations, up to the limit; the rest as a number."""
        bad = np.flatnonzero(where).tolist()
        room = max(MOST_PROBLEMS - len(self.problems), 1)
        for i in bad[:room]:
            self.wrong(kind, f"annotation {self.ids[i]}", what(i), fix)
        if len(bad) > room:
            self.wrong(kind, "annotations", f"{len(bad) - room:,} more are wrong like these", fix)


def read_coco(path: Path, file: str, up: int = 0) -> tuple[Dataset, list[Problem]]:
    """All sound records of one file, and a problem for each of the others.

    `file` is its name in messages. Files are as written there, and the root is the file's folder:
    where the pictures really lie is for the caller to find out. Their names may go `up` so many
    folders: to those beside the folder "annotations".
    """
    columns = _Columns(file, up)
    take = {"images": _image, "annotations": _annotation, "categories": _category}
    try:
        for key, index, value in records(path):
            if key not in take:
                columns.keys[""].add(key)
                continue
            columns.lists.add(key)
            if type(value) is dict and index >= 0:
                seen = columns.keys[key]
                if len(seen) < MOST_KEYS:
                    seen.update(value)
                take[key](columns, index, value)
            elif index >= 0:
                record = f"{key}[{index}]"
                columns.wrong("json-shape", record, "is not an object", "remove the record")
            elif value != []:
                columns.wrong("json-shape", key, f'"{key}" is not a list', f"make {key} a list")
            if len(columns.problems) > MOST_PROBLEMS:
                raise JsonError(f"{key}[{index}]", "too much is wrong to read on")
    except JsonError as error:
        fix = (
            "write the file again; COCO JSON is an object of lists: images, annotations, categories"
        )
        columns.wrong("json-broken", error.record, error.what, fix)
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        columns.wrong("json-broken", "", what, "make it a readable file, or remove it")
    else:
        missing = [name for name in KEPT if name not in columns.lists]
        if len(missing) > 1:
            columns.problems = [not_coco(file)]
        elif missing:
            what, fix = f'the list "{missing[0]}" is missing', f"add {missing[0]}: […]"
            columns.wrong("json-shape", "", what, fix)
    return _resolve(columns, path.parent), columns.problems


def not_coco(file: str, others: int = 0) -> Problem:
    """A JSON file of another kind, and so many others beside it."""
    more = f" (and {others:,} more files like it)" if others else ""
    what = f"not COCO: not an object with the lists {', '.join(KEPT)}{more}"
    return Problem("not-coco", file, "", what, f"convert or remove it; {KNOWN}")


def _integer(value: Any) -> bool:
    """JSON integers that fit an array; `true` is an int to Python, and no id."""
    return type(value) is int and -(2**63) <= value < 2**63


def _meant(value: Any) -> set[int]:
    """The integer that "7", 7.0 or true stand for, to other tools."""
    try:
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        return set()
    return {number} if _integer(number) else set()


def _checked_id(
    columns: _Columns, key: str, word: str, index: int, record: Mapping[str, Any]
) -> tuple[int | None, str]:
    """(id or None, the record's name in messages)."""
    place = f"{key}[{index}]"
    if "id" not in record:
        columns.wrong("key-missing", place, '"id" is missing', "give it an integer id")
    elif not _integer(record["id"]):
        what = f"the id {shown(record['id'])} is not an integer"
        columns.wrong("id-wrong", place, what, "use integer ids")
        columns.wrong_ids[key].update(_meant(record["id"]))
    else:
        return record["id"], f"{word} {record['id']}"
    return None, place


def _checked_name(columns: _Columns, place: str, record: Mapping[str, Any], key: str) -> str:
    name = record.get(key)
    if not isinstance(name, str) or not name.strip():
        columns.wrong("key-missing", place, f'"{key}" is missing or empty', "name it")
    elif not is_text(name):
        what = f"the {key} {shown(name)} is not valid text"
        columns.wrong("name-wrong", place, what, "name it without half characters")
    else:
        return name
    return ""


def _new(columns: _Columns, key: str, number: int, name: str, before: str | None) -> bool:
    """Whether the id is new. An id of two names means neither; the same again is only told."""
    if before is None:
        return True
    word = {"images": "image", "categories": "category"}[key]
    place, fix = f"{word} {number}", "use another id"
    if before == name:
        what, fix = f"the record is there twice ({shown(name)})", "remove one of them"
        columns.wrong("record-twice", place, what, fix)
    else:
        what = f"the id is used twice ({shown(before)}, {shown(name)}): its boxes may mean either"
        columns.wrong("id-twice", place, what, fix)
        columns.unclear_ids[key].add(number)
    return False


def _category(columns: _Columns, index: int, record: Mapping[str, Any]) -> None:
    number, place = _checked_id(columns, "categories", "category", index, record)
    name = _checked_name(columns, place, record, "name").strip()
    if number is None:
        return
    if not name:
        columns.wrong_ids["categories"].add(number)
    elif _new(columns, "categories", number, name, columns.categories.get(number)):
        columns.categories[number] = name


def _image(columns: _Columns, index: int, record: Mapping[str, Any]) -> None:
    number, place = _checked_id(columns, "images", "image", index, record)
    name = _checked_name(columns, place, record, "file_name").replace("\\", "/")
    if name and not stays_inside(name, columns.up):
        what = f"{shown(name)} leaves the data folder"
        columns.wrong("path-outside", place, what, "use a path inside it")
        name = ""
    size = _size(columns, place, record)
    if number is None:
        return
    if not name:
        columns.wrong_ids["images"].add(number)
        return
    before = columns.images.get(number)
    known = None if before is None else columns.files[before]
    if _new(columns, "images", number, name, known):
        columns.images[number] = len(columns.files)
        columns.files.append(name)
        columns.sizes.extend(size)


def _size(columns: _Columns, place: str, record: Mapping[str, Any]) -> tuple[int, int]:
    width: Any = record.get("width")
    height: Any = record.get("height")
    if _integer(width) and _integer(height) and 0 < width < 2**31 and 0 < height < 2**31:
        return width, height
    missing = " and ".join(f'"{k}"' for k in ("width", "height") if record.get(k) is None)
    if missing:
        columns.wrong("size-missing", place, f"{missing} missing", "state the picture's own size")
    else:
        what = f"the size {shown(width)} x {shown(height)} is not one of a picture"
        columns.wrong("size-wrong", place, what, "state the picture's own size")
    return 0, 0


def _annotation(columns: _Columns, index: int, record: Mapping[str, Any]) -> None:
    get = record.get
    number: Any = get("id")
    image: Any = get("image_id")
    category: Any = get("category_id")
    box: Any = get("bbox")
    crowd, ignore, difficult = get("iscrowd", 0), get("ignore", 0), get("difficult", 0)
    sound = (
        type(number) is type(image) is type(category) is int
        and type(box) is list
        and len(box) == 4
        and {*map(type, box)} <= NUMBERS
        and crowd in FLAGS
        and ignore in FLAGS
        and difficult in FLAGS
    )
    if not sound:
        _wrong_annotation(columns, index, record)
        return
    try:
        numbers = array("d", box)
        ids = array("q", (number, image, category))
    except OverflowError:
        what = "a number is beyond all bounds"
        columns.wrong("number-wrong", f"annotations[{index}]", what, "correct it")
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


def _wrong_area(columns: _Columns, place: str, area: Any) -> None:
    what = f"the area {shown(area)} is not a finite number from 0"
    columns.wrong("area-wrong", place, what, "correct it, or leave area out")


def _wrong_annotation(columns: _Columns, index: int, record: Mapping[str, Any]) -> None:
    """All that is wrong with a record. Apart from the reading, which meets a million sound ones."""
    _, place = _checked_id(columns, "annotations", "annotation", index, record)
    for key in ("image_id", "category_id", "bbox"):
        if key not in record:
            columns.wrong("key-missing", place, f'"{key}" is missing', "complete the annotation")
        elif key == "bbox":
            box = record[key]
            if type(box) is not list or len(box) != 4 or not {*map(type, box)} <= NUMBERS:
                what = f"the bbox {_shown_box(box)} is not four numbers"
                columns.wrong("box-shape", place, what, "give x, y, width, height")
        elif not _integer(record[key]):
            what = f"{key} {shown(record[key])} is not an integer"
            columns.wrong("id-wrong", place, what, "use an id of the file")
    for key in ("iscrowd", "ignore", "difficult"):
        if record.get(key, 0) not in FLAGS:
            what = f"{key} is {shown(record[key])}, which says neither yes nor no"
            columns.wrong("flag-wrong", place, what, "use 0 or 1")
    area = record.get("area", 0)
    if type(area) not in NUMBERS or not 0 <= area <= MOST_AREA:
        _wrong_area(columns, place, area)


def _shown_box(box: Any) -> str:
    if isinstance(box, list) and len(box) <= 4:
        return f"[{', '.join(shown(v) for v in box)}]"
    return f"of {len(box):,} entries" if isinstance(box, list) else shown(box)


def _resolve(columns: _Columns, root: Path) -> Dataset:
    """Ids become indices; boxes of unknown images or categories are told and left out.

    Where the record itself was told as wrong they go with it, as do boxes of an id with two
    meanings.
    """
    image_ids = np.array(columns.image_ids, dtype=np.int64)
    category_ids = np.array(columns.labels, dtype=np.int64)
    ids = np.array(columns.ids, dtype=np.int64)
    known = sorted(columns.categories)
    image = _index(image_ids, np.array(list(columns.images), dtype=np.int64))
    label = _index(category_ids, np.array(known, dtype=np.int64))
    told_image, told_label, unclear_image, unclear_label = (
        np.isin(values, np.array(sorted(told[key]), dtype=np.int64))
        for told in (columns.wrong_ids, columns.unclear_ids)
        for values, key in ((image_ids, "images"), (category_ids, "categories"))
    )
    columns.wrong_where(
        (image < 0) & ~told_image,
        "id-unknown",
        lambda i: f"image id {image_ids[i]} is unknown",
        "add the image or remove the annotation",
    )
    columns.wrong_where(
        (label < 0) & ~told_label,
        "id-unknown",
        lambda i: f"category id {category_ids[i]} is unknown",
        "add the category or correct the id",
    )
    repeated = np.ones(len(ids), dtype=bool)
    repeated[np.unique(ids, return_index=True)[1]] = False
    columns.wrong_where(repeated, "id-twice", lambda _: "the id is used twice", "use another id")
    _tell_names(columns)
    sound = np.flatnonzero((image >= 0) & (label >= 0) & ~unclear_image & ~unclear_label)
    flags = np.array(columns.flags, dtype=np.int64)[sound]
    data = Dataset(
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
        unread=_unread(columns),
    )
    # without its boxes an image would say that there is nothing on it
    clear = [i for own, i in columns.images.items() if own not in columns.unclear_ids["images"]]
    return data if len(clear) == len(data) else data.select(clear)


def _tell_names(columns: _Columns) -> None:
    """One name of several categories: which of them a detection of that name means is open."""
    numbers: dict[str, list[int]] = {}
    for number, name in columns.categories.items():
        numbers.setdefault(name, []).append(number)
    for name, group in numbers.items():
        if len(group) > 1:
            what = f"{shown(name)} is the name of the categories {', '.join(map(str, group[:9]))}"
            columns.wrong("class-twice", "categories", what, "use one category for it")


def _unread(columns: _Columns) -> tuple[str, ...]:
    """What the file holds beyond boxes, as in "segmentation of annotations"."""
    beyond = [shown(k)[1:-1] for k in sorted(columns.keys[""])]
    for part, kept in KEPT.items():
        beyond += [f"{shown(k)[1:-1]} of {part}" for k in sorted(columns.keys[part] - kept)]
    return tuple(beyond)


def _index(values: Ints, table: Ints) -> Ints:
    """Where each value stands in the table, -1 if nowhere."""
    if len(table) == 0:
        return np.full(len(values), -1, dtype=np.int64)
    order = np.argsort(table)
    place = order[np.minimum(np.searchsorted(table, values, sorter=order), len(table) - 1)]
    return np.where(table[place] == values, place, -1).astype(np.int64)
