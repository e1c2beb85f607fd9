"""YOLO folders: data.yaml, pictures below images/, one text file a picture below labels/."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import yaml

from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.folder import pictures_below, unique_ids, unread_kinds
from mini_fsod.data.pictures import (
    PictureError,
    drawn_size,
    is_picture,
    is_unread,
    look_at,
    stays_inside,
)
from mini_fsod.data.text import is_text, number, shown
from mini_fsod.errors import Problem, nearest
from mini_fsod.files import is_file, is_folder, open_regular, real
from mini_fsod.plain_yaml import parse_yaml

SETS = ("train", "val", "valid", "test")
MOST_BYTES = 1 << 20  # of data.yaml
NOTHING = ("", "~", "null")  # how YAML leaves a value out


def read_yolo(config: Path) -> tuple[Dataset, list[Problem]]:
    """All pictures of all sets. A picture without a text file has no objects, as in YOLO tools.

    Coordinates in the text are shares of the picture's size, so every picture's header is read.
    """
    root = config.parent
    problems: list[Problem] = []

    def wrong(kind: str, record: str, what: str, fix: str, file: str = config.name) -> None:
        problems.append(Problem(kind, file, record, what, fix))

    table = _config(config, wrong)
    read = not problems  # else nothing more can be said of it
    names = _names(table, wrong) if read else {}
    unread: set[str] = set()  # pictures of other kinds
    sets = {
        key: list(dict.fromkeys(_pictures(root, table, key, problems.append, wrong, unread.update)))
        for key in SETS
        if table.get(key, "") not in NOTHING
    }
    if read and not sets:
        wrong("yaml-shape", "", "no image set is named", "add train: images/train, val: images/val")
    files = list(dict.fromkeys(f for part in sets.values() for f in part))
    sizes = np.zeros((len(files), 2), dtype=np.int64)
    rows: list[tuple[int, int, int, float, float, float, float]] = []
    polygons = 0
    absent: list[str] = []  # pictures without a text file
    for i, seen in enumerate(look_at([root / f for f in files])):
        if isinstance(seen, PictureError):
            continue  # told where pictures are looked at; without a size its boxes mean nothing
        sizes[i] = drawn_size(*seen)
        size = sizes[i].tolist()
        for polygon, row in _labels(root, files[i], names, size, wrong, absent.append):
            polygons += polygon
            rows.append((i, *row))
    place = {f: i for i, f in enumerate(files)}
    number_of = {number: c for c, number in enumerate(names)}
    ids, short_ids = unique_ids(files)
    data = Dataset(
        kind="yolo",
        root=root,
        classes=tuple(names.values()),
        category_ids=tuple(names),
        ids=ids,
        short_ids=short_ids,
        files=tuple(files),
        sizes=sizes,
        boxes=Boxes.of(
            [r[0] for r in rows],
            [r[3:] for r in rows],
            [number_of[r[2]] for r in rows],
            record=[r[1] for r in rows],
        ),
        sources=tuple(label_file(f) for f in files),
        unread=("polygons (their boxes are)",) if polygons else (),
        subsets={k: np.array([place[f] for f in part], dtype=np.int64) for k, part in sets.items()},
        notes=_unlabelled(absent, len(files)) + unread_kinds(unread),
    )
    return data, problems


def _unlabelled(absent: Sequence[str], of: int) -> tuple[str, ...]:
    """A sentence about pictures without a text file: it is right, or a folder of labels is lost."""
    if not absent:
        return ()
    example = f"{shown(absent[0])} would have {shown(label_file(absent[0]))}"
    counts = f"{len(absent):,} of {of:,} pictures"
    return (f"without a label file, and so without objects: {counts}; {example}",)


def configs(folder: Path, names: Sequence[str]) -> list[str]:
    """The files of a folder that may be its data.yaml under another name."""

    def silent(*_: str) -> None:
        """What is wrong with files that are no configuration matters to nobody."""

    tables = {
        n: _config(folder / n, silent) for n in names if n.lower().endswith((".yaml", ".yml"))
    }
    return [n for n, table in tables.items() if "names" in table and set(SETS) & set(table)]


def missing_config(folder: Path, names: Sequence[str]) -> Problem | None:
    """What to write, where all of YOLO is there but data.yaml, as in Label Studio's export."""
    if not {"classes.txt", "images", "labels"} <= set(names):
        return None
    try:
        with open_regular(folder / "classes.txt") as source:
            text = source.read(MOST_BYTES).decode("utf-8-sig")
    except (OSError, ValueError):
        text = ""
    classes = [line.strip() for line in text.splitlines() if line.strip()]
    listed = json.dumps(classes, ensure_ascii=False)
    listed = listed if classes and len(listed) < 1000 else "[the lines of classes.txt]"
    fix = f"write it, with the lines `train: images` and `names: {listed}`"
    what = "missing: images/, labels/ and classes.txt are there, but no image set is named"
    return Problem("yaml-missing", "data.yaml", "", what, fix)


def label_file(picture: str) -> str:
    """images/train/a.jpg -> labels/train/a.txt: the last folder called images becomes labels."""
    parts = picture.split("/")
    for n in range(len(parts) - 2, -1, -1):
        if parts[n] == "images":
            parts[n] = "labels"
            break
    return str(PurePosixPath(*parts).with_suffix(".txt"))


def _config(path: Path, wrong: Any) -> dict[Any, Any]:
    try:
        with open_regular(path) as source:
            content = source.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            wrong("yaml-broken", "", "far too large for a table of names and folders", "shorten it")
            return {}
        table = parse_yaml(content.decode("utf-8-sig"))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        what = f"broken YAML ({' '.join(str(error).split())[:120]})"
        wrong("yaml-broken", "", what, "correct it")
        return {}
    except OSError as error:
        wrong("yaml-broken", "", f"cannot be read ({error.strerror})", "make it readable")
        return {}
    if not isinstance(table, dict):
        wrong("yaml-shape", "", "not a table of keys", "write train:, val: and names:")
        return {}
    return table


def _names(table: Mapping[Any, Any], wrong: Any) -> dict[int, str]:
    """The classes by their number: that of a table, else counted from 0."""
    given = table.get("names")
    if isinstance(given, list):
        given = {str(n): name for n, name in enumerate(given)}
    if not isinstance(given, dict) or not given:
        wrong("yaml-shape", "names", "the class names are missing", "add names: [cat, dog]")
        return {}
    names: dict[int, str] = {}
    for key, name in given.items():
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10):
            wrong("yaml-shape", "names", f"{shown(key)} is not the number of a class", "count them")
        elif not isinstance(name, str) or name.strip() in NOTHING or not is_text(name):
            what = f"the name of class {key} is not text: {shown(name)}"
            wrong("name-wrong", "names", what, "name the class")
        elif name.strip() in names.values():
            what = f"{shown(name.strip())} is the name of several classes"
            wrong("class-twice", "names", what, "use one number for it")
            names[int(key)] = name.strip()
        else:
            names[int(key)] = name.strip()
    count = table.get("nc", "")
    if count not in NOTHING and count != str(len(given)):
        what = f"nc says {shown(count)}, but there are {len(given)} names"
        wrong("yaml-shape", "nc", what, "correct nc or the names")
    return dict(sorted(names.items()))


def _pictures(
    root: Path, table: Mapping[Any, Any], key: str, tell: Any, wrong: Any, skip: Any
) -> Iterator[str]:
    """The pictures of one set, relative to the root: a folder, a text file of paths, or a list."""
    entries = table[key] if isinstance(table[key], list) else [table[key]]
    base = table.get("path", "")
    for entry in entries:
        if not isinstance(entry, str) or not entry:
            wrong("yaml-shape", key, f"{shown(entry)} is no path", "name a folder below data.yaml")
            continue
        place = _inside(root, base if isinstance(base, str) else "", entry)
        if place is None:
            what = f"{shown(entry)} does not exist below the data folder"
            meant = nearest(entry, _folders(root)) or " Paths are relative to its own folder."
            wrong("set-missing", key, what, f"correct data.yaml.{meant}")
            continue
        below = place.relative_to(real(root)).as_posix()
        if is_folder(place):
            prefix = "" if below == "." else f"{below}/"
            unread: list[str] = []
            yield from (f"{prefix}{f}" for f in pictures_below(place, tell, unread.append))
            skip(f"{prefix}{f}" for f in unread)
        else:
            yield from _listed(place, below, key, wrong)


def _folders(root: Path) -> list[str]:
    """Folders that an entry could have meant."""
    return [
        path.relative_to(root).as_posix()
        for pattern in ("*", "*/*")
        for path in sorted(root.glob(pattern))
        if is_folder(path)
    ][:1000]


def _listed(place: Path, file: str, key: str, wrong: Any) -> Iterator[str]:
    """The pictures that a text file names, a line each."""
    fix = "name a folder of pictures, or a text file that lists them"
    if is_picture(file):
        wrong("yaml-shape", key, f"{shown(file)} is a single picture", fix)
        return
    try:
        with open_regular(place) as source:
            text = source.read().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", "not UTF-8 text")
        wrong("yaml-shape", key, f"{shown(file)} cannot be read ({reason})", fix)
        return
    for n, line in enumerate(text.splitlines(), start=1):
        name = line.strip().removeprefix("./")
        if is_unread(name):
            what = f"{shown(name)} is a picture of a kind that is not read"
            wrong("list-broken", f"line {n}", what, "save it as JPEG or PNG", file)
        elif name and not is_picture(name):
            wrong("list-broken", f"line {n}", f"{shown(name)} is no picture", "list pictures", file)
        elif name and not stays_inside(name):
            what, fix = f"{shown(name)} leaves the data folder", "use paths inside it"
            wrong("path-outside", f"line {n}", what, fix, file)
        elif name:
            yield name


def _inside(root: Path, base: str, entry: str) -> Path | None:
    """The folder or file an entry of data.yaml means, if it lies in the data folder.

    Exports of labelling sites say ../train/images beside train/, or name a folder of another
    machine in `path`; what lies beside data.yaml is meant then.
    """
    home = real(root)
    bare = entry
    while bare.startswith(("../", "./")):
        bare = bare.split("/", 1)[1]
    for guess in (home / base / entry, home / entry, home / bare):
        place = real(guess)
        inside = place == home or home in place.parents
        if inside and (is_folder(place) or is_file(place)):
            return place
    return None


def _labels(
    root: Path, picture: str, names: Mapping[int, str], size: list[int], wrong: Any, absent: Any
) -> Iterator[tuple[bool, tuple[int, int, float, float, float, float]]]:
    """(line, class, x, y, width, height) in pixels; a polygon, told first, gives its box.

    Without a text file none, and `absent` is told.
    """
    file = label_file(picture)
    try:
        with open_regular(root / file) as source:
            text = source.read().decode("utf-8-sig")
    except FileNotFoundError:
        absent(picture)
        return
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", "not UTF-8 text")
        wrong("label-broken", "", f"cannot be read ({reason})", "write the file again", file)
        return
    width, height = size
    for n, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        try:
            own, *values = (number(w) for w in words)
        except ValueError:
            wrong("label-broken", f"line {n}", "not all are numbers", "correct the line", file)
            continue
        if len(values) != 4 and (len(values) < 6 or len(values) % 2):
            what = f"{len(words)} numbers: a line has 5, or a class and the points of a polygon"
            wrong("label-broken", f"line {n}", what, "correct the line", file)
            continue
        if own not in names:
            known = ", ".join(map(str, list(names)[:20]))
            what = f"class {words[0][:20]} is not one of {known}"
            wrong("id-unknown", f"line {n}", what, "correct it, or add the class to names", file)
            continue
        if len(values) == 4:
            cx, cy, w, h = values
            left, top = cx - w / 2, cy - h / 2
        else:
            left, top = min(values[0::2]), min(values[1::2])
            w, h = max(values[0::2]) - left, max(values[1::2]) - top
        row = (n, int(own), left * width, top * height, w * width, h * height)
        yield len(values) > 4, row
