"""YOLO folders: data.yaml, pictures below images/, one text file per picture below labels/."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import yaml

from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.file_names import is_picture, is_unread, stays_inside
from mini_fsod.data.folder import pictures_below, unique_ids, unread_formats
from mini_fsod.data.layout import names_in
from mini_fsod.data.pictures import PictureError, drawn_size, picture_sizes
from mini_fsod.data.problems import Report
from mini_fsod.data.text import is_text, number, read_text, shown
from mini_fsod.data.yolo_exports import (
    NAMES,
    export_table,
    labels_elsewhere,
    report_lost_pictures,
)
from mini_fsod.errors import Problem, nearest
from mini_fsod.files import is_file, is_folder, real
from mini_fsod.limits import (
    BOXES,
    BOXES_PER_LABEL,
    CLASSES,
    LABEL_BYTES,
    LABEL_LINES,
    LIST_BYTES,
    YAML_BYTES,
)
from mini_fsod.plain_yaml import parse_yaml

SETS = ("train", "val", "valid", "test")
NOTHING = ("", "~", "null")  # empty values in YAML


class LabelRow(NamedTuple):
    """A box of a label file."""

    line: int
    number: int  # of the class
    xywh: tuple[float, float, float, float]  # in pixels
    polygon: bool


def read_yolo(config: Path, pictures: Path | None = None) -> tuple[Dataset, list[Problem]]:
    """All pictures of all image sets. A picture without a text file has no objects, as in YOLO.

    `config` is data.yaml, or the file of class names of an export without it. Coordinates are
    shares of the picture's size, so every picture's header is read. With `pictures`, the folder of
    pictures that are not below data.yaml, there is one for each label file, and no image sets.
    """
    root = config.parent
    report = Report(config.name)
    table = (export_table if config.name in NAMES else _read_config)(config, report)
    readable = not report.kept
    names = _class_names(table, report) if readable else {}
    unread: set[str] = set()  # pictures of unsupported formats
    sets: dict[str, list[str]] = {}
    if pictures is not None:
        files, sources = map(tuple, labels_elsewhere(root, pictures, report))
    else:
        sets = {
            key: list(dict.fromkeys(_pictures(root, table, key, report, unread)))
            for key in SETS
            if table.get(key, "") not in NOTHING
        }
        if readable and not sets:
            report("yaml-shape", "", "no image sets", "add train: images/train, val: images/val")
        files = tuple(dict.fromkeys(f for part in sets.values() for f in part))
        sources = tuple(map(label_file, files))
        if sets and not files and not report.kept:
            report_lost_pictures(root, report)
    index = {f: i for i, f in enumerate(files)}
    folder = pictures or root
    sizes = np.zeros((len(files), 2), dtype=np.int64)
    images, labels, lines, xywh = array("q"), array("q"), array("q"), array("d")
    has_polygons = False
    label_of = {number: c for c, number in enumerate(names)}
    unlabelled: list[str] = []
    for i, found in enumerate(picture_sizes([folder / f for f in files])):
        if isinstance(found, PictureError):
            continue  # `picture_problems` reports it; without a size its boxes mean nothing
        sizes[i] = drawn_size(*found)
        text = _label_lines(root, files[i], sources[i], report, unlabelled)
        for row in _boxes(text, names, sizes[i].tolist(), report, sources[i]):
            images.append(i)
            labels.append(label_of[row.number])
            lines.append(row.line)
            xywh.extend(row.xywh)
            has_polygons |= row.polygon
        if len(images) > BOXES:
            what = f"more than {BOXES:,} boxes; the labels of later pictures were not read"
            report("data-too-large", "", what)
            break
    ids, short_ids = unique_ids(files)
    data = Dataset(
        kind="yolo",
        root=folder,
        classes=tuple(names.values()),
        category_ids=tuple(names),
        ids=ids,
        short_ids=short_ids,
        files=files,
        sizes=sizes,
        boxes=Boxes.of(
            np.array(images, dtype=np.int64),
            np.array(xywh),
            np.array(labels, dtype=np.int64),
            record=np.array(lines, dtype=np.int64),
        ),
        sources=sources,
        unread=("polygons (their boxes are)",) if has_polygons else (),
        subsets={k: np.array([index[f] for f in part], dtype=np.int64) for k, part in sets.items()},
        notes=_unlabelled_note(unlabelled, len(files)) + unread_formats(unread),
    )
    return data, report.problems


def _unlabelled_note(files: Sequence[str], total: int) -> tuple[str, ...]:
    """A note on pictures without a text file: no objects in them, or their labels are missing."""
    if not files:
        return ()
    counts = f"{len(files):,} of {total:,} pictures"
    example = f"{shown(files[0])} would have {shown(label_file(files[0]))}"
    return (f"{counts} have no label file, so no objects; {example}",)


def find_configs(folder: Path, names: Sequence[str]) -> list[str]:
    """Files of a folder that look like its data.yaml under another name."""
    found = [n for n in names if n.lower().endswith((".yaml", ".yml"))]
    tables = {n: _read_config(folder / n, Report()) for n in found}
    return [n for n, table in tables.items() if "names" in table and set(SETS) & set(table)]


def label_file(picture: str) -> str:
    """images/train/a.jpg -> labels/train/a.txt: the last folder called images becomes labels."""
    before, images, after = f"/{picture}".rpartition("/images/")
    path = f"{before}/labels/{after}" if images else after
    return str(PurePosixPath(path.removeprefix("/")).with_suffix(".txt"))


def _read_config(path: Path, report: Report) -> Mapping[Any, Any]:
    try:
        table = parse_yaml(read_text(path, YAML_BYTES))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        report("yaml-broken", "", f"broken YAML ({' '.join(str(error).split())[:120]})")
    except OSError as error:
        report("yaml-broken", "", f"cannot be read ({error.strerror})", "make it readable")
    else:
        if isinstance(table, dict):
            return table
        report("yaml-shape", "", "not a table of keys")
    return {}


def _class_names(table: Mapping[Any, Any], report: Report) -> dict[int, str]:
    """{number: name}; the names of a list are numbered from 0."""
    given = table.get("names")
    if isinstance(given, list):
        given = {str(n): name for n, name in enumerate(given)}
    if not isinstance(given, dict) or not given:
        report("yaml-shape", "names", "no class names", "add names: [cat, dog]")
        return {}
    if len(given) > CLASSES:
        report("yaml-shape", "names", f"more than {CLASSES:,} classes")
        return {}
    names: dict[int, str] = {}
    used: set[str] = set()
    for key, name in given.items():
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10):
            what = f"{shown(key)} is not a class number"
            report("yaml-shape", "names", what, "number the classes from 0")
            continue
        if not isinstance(name, str) or name.strip() in NOTHING or not is_text(name):
            report("name-wrong", "names", f"class {key} has no valid name: {shown(name)}")
            continue
        if name.strip() in used:
            report("class-duplicate", "names", f"several classes are named {shown(name.strip())}")
        used.add(name.strip())
        names[int(key)] = name.strip()
    count = table.get("nc", "")
    if count not in NOTHING and count != str(len(given)):
        what = f"nc is {shown(count)}, but there are {len(given)} names"
        report("yaml-shape", "nc", what, "correct nc or the names")
    return dict(sorted(names.items()))


def _pictures(
    root: Path, table: Mapping[Any, Any], key: str, report: Report, unread: set[str]
) -> Iterator[str]:
    """The pictures of one image set, relative to the root: a folder, a text file, or a list.

    Pictures of unsupported formats are added to `unread`.
    """
    entries = table[key] if isinstance(table[key], list) else [table[key]]
    base = table.get("path", "")
    for entry in entries:
        if not isinstance(entry, str) or not entry:
            what = f"{shown(entry)} is not a path"
            report("yaml-shape", key, what, "name a folder below data.yaml")
            continue
        path = _find_below(root, base if isinstance(base, str) else "", entry)
        if path is None:
            hint = nearest(entry, _folders(root))
            what = f"{shown(entry)} does not exist below the data folder" + (hint and f".{hint}")
            report("set-missing", key, what)
            continue
        relative = PurePosixPath(path.relative_to(real(root)).as_posix())
        if is_folder(path):
            skipped: list[str] = []
            for name in pictures_below(path, report.add, skipped.append):
                yield str(relative / name)
            unread.update(str(relative / name) for name in skipped)
        else:
            yield from _listed_pictures(path, str(relative), key, report)


def _folders(root: Path) -> list[str]:
    """Folders that a wrong entry may mean."""
    top = [n for n in names_in(root) if is_folder(root / n)]
    below = [f"{n}/{m}" for n in top for m in names_in(root / n) if is_folder(root / n / m)]
    return [*top, *below][:1000]


def _listed_pictures(path: Path, file: str, key: str, report: Report) -> Iterator[str]:
    """The pictures that a text file names, one per line."""
    fix = "name a folder of pictures, or a text file that lists them"
    if is_picture(file):
        report("yaml-shape", key, f"{shown(file)} is a single picture", fix)
        return
    try:
        text = read_text(path, LIST_BYTES)
    except OSError as error:
        report("yaml-shape", key, f"{shown(file)} cannot be read ({error.strerror})", fix)
        return
    for n, line in enumerate(text.splitlines(), start=1):
        name, record = line.strip().removeprefix("./"), f"line {n}"
        if is_unread(name):
            what = f"{shown(name)} has an unsupported picture format"
            report("list-broken", record, what, "save it as JPEG or PNG", file)
        elif name and not is_picture(name):
            report("list-broken", record, f"{shown(name)} is not a picture", file=file)
        elif name and not stays_inside(name):
            what = f"{shown(name)} is outside the data folder"
            report("path-outside", record, what, file=file)
        elif name:
            yield name


def _find_below(root: Path, base: str, entry: str) -> Path | None:
    """The folder or file that an entry of data.yaml means, if it is in the data folder.

    Exports of labelling sites say ../train/images for train/ beside data.yaml, or name a folder of
    another machine in `path`.
    """
    folder = real(root)
    plain = entry
    while plain.startswith(("../", "./")):
        plain = plain.split("/", 1)[1]
    for guess in (folder / base / entry, folder / entry, folder / plain):
        path = real(guess)
        inside = path == folder or folder in path.parents
        if inside and (is_folder(path) or is_file(path)):
            return path
    return None


def _label_lines(
    root: Path, picture: str, file: str, report: Report, unlabelled: list[str]
) -> list[str]:
    """The lines of a picture's text file; a picture without one is added to `unlabelled`."""
    try:
        return read_text(root / file, LABEL_BYTES).splitlines()
    except FileNotFoundError:
        unlabelled.append(picture)
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        report("label-broken", "", what, "write the file again", file)
    return []


def _boxes(
    lines: Sequence[str],
    names: Mapping[int, str],
    size: Sequence[int],
    report: Report,
    file: str,
) -> Iterator[LabelRow]:
    """The boxes of a picture of this size: a box or a polygon in each line."""
    width, height = size
    count = 0
    for n, line in enumerate(lines, start=1):
        if n > LABEL_LINES:
            what = f"more than {LABEL_LINES:,} lines; no more are read"
            report("label-broken", f"line {n}", what, file=file)
            return
        words = line.split()
        if not words:
            continue
        try:
            label, *values = map(number, words)
        except ValueError:
            report("label-broken", f"line {n}", "not all values are numbers", file=file)
            continue
        if len(values) != 4 and (len(values) < 6 or len(values) % 2):
            what = f"{len(words)} numbers: a line has 5, or a class and the points of a polygon"
            report("label-broken", f"line {n}", what, file=file)
            continue
        if label not in names:
            known = ", ".join(map(str, islice(names, 20)))
            what = f"class {words[0][:20]} is not one of {known}"
            report("id-unknown", f"line {n}", what, file=file)
            continue
        count += 1
        if count > BOXES_PER_LABEL:
            what = f"more than {BOXES_PER_LABEL:,} boxes of one picture; no more are read"
            report("label-broken", f"line {n}", what, file=file)
            return
        if len(values) == 4:
            cx, cy, w, h = values
            left, top = cx - w / 2, cy - h / 2
        else:
            left, top = min(values[0::2]), min(values[1::2])
            w, h = max(values[0::2]) - left, max(values[1::2]) - top
        xywh = (left * width, top * height, w * width, h * height)
        yield LabelRow(n, int(label), xywh, len(values) > 4)
