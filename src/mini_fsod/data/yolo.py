"""YOLO folders: data.yaml, pictures below images/, one text file a picture below labels/."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import yaml

from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.folder import pictures_below, unique_ids
from mini_fsod.data.pictures import PictureError, look_at, stays_inside
from mini_fsod.errors import Problem

SETS = ("train", "val", "valid", "test")


def read_yolo(config: Path) -> tuple[Dataset, list[Problem]]:
    """All pictures of all sets. A picture without a text file has no objects, as in YOLO tools.

    Coordinates in the text are shares of the picture's size, so every picture's header is read.
    """
    root = config.parent
    problems: list[Problem] = []

    def wrong(kind: str, record: str, what: str, fix: str, file: str = config.name) -> None:
        problems.append(Problem(kind, file, record, what, fix))

    table = _config(config, wrong)
    names = _names(table, wrong)
    sets = {
        key: list(_pictures(root, table, key, wrong)) for key in SETS if table.get(key) is not None
    }
    if not sets:
        wrong("yaml-shape", "", "no image set is named", "add train: images/train, val: images/val")
    files = list(dict.fromkeys(f for part in sets.values() for f in part))
    sizes = np.zeros((len(files), 2), dtype=np.int64)
    rows: list[tuple[int, int, int, float, float, float, float]] = []
    for i, seen in enumerate(look_at([root / f for f in files])):
        if isinstance(seen, PictureError):
            continue  # told where pictures are looked at; without a size its boxes mean nothing
        sizes[i] = seen[:2]
        rows += [(i, *r) for r in _labels(root, files[i], len(names), seen[:2], wrong)]
    place = {f: i for i, f in enumerate(files)}
    data = Dataset(
        kind="yolo",
        root=root,
        classes=tuple(names),
        category_ids=tuple(range(len(names))),
        ids=unique_ids(files),
        files=tuple(files),
        sizes=sizes,
        boxes=Boxes.of(
            [r[0] for r in rows],
            [r[3:] for r in rows],
            [r[2] for r in rows],
            record=[r[1] for r in rows],
        ),
        sources=tuple(label_file(f) for f in files),
        subsets={k: np.array([place[f] for f in part], dtype=np.int64) for k, part in sets.items()},
    )
    return data, problems


def label_file(picture: str) -> str:
    """images/train/a.jpg -> labels/train/a.txt: the last folder called images becomes labels."""
    parts = picture.split("/")
    for n in range(len(parts) - 2, -1, -1):
        if parts[n] == "images":
            parts[n] = "labels"
            break
    return str(PurePosixPath(*parts).with_suffix(".txt"))


def _config(path: Path, wrong: Any) -> dict[str, Any]:
    try:
        table = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        wrong(
            "yaml-broken", "", f"broken YAML ({' '.join(str(error).split())[:120]})", "correct it"
        )
        return {}
    except OSError as error:
        wrong("yaml-broken", "", f"cannot be read ({error.strerror})", "make it readable")
        return {}
    if not isinstance(table, dict):
        wrong("yaml-shape", "", "not a table of keys", "write train:, val: and names:")
        return {}
    return table


def _names(table: dict[str, Any], wrong: Any) -> list[str]:
    names = table.get("names")
    if isinstance(names, dict) and set(names) == set(range(len(names))):
        names = [names[i] for i in range(len(names))]
    if not isinstance(names, list) or not names:
        wrong("yaml-shape", "names", "the class names are missing", "add names: [cat, dog]")
        return []
    if any(not isinstance(n, str | int | float) or isinstance(n, bool) for n in names):
        wrong("yaml-shape", "names", "a class name is not text", "put names in quotes")
    if "nc" in table and table["nc"] != len(names):
        what = f"nc says {table['nc']}, but there are {len(names)} names"
        wrong("yaml-shape", "nc", what, "correct nc or the names")
    return [str(n).strip() for n in names]


def _pictures(root: Path, table: dict[str, Any], key: str, wrong: Any) -> Iterator[str]:
    """The pictures of one set, relative to the root: a folder, a text file of paths, or a list."""
    entries = table[key] if isinstance(table[key], list) else [table[key]]
    for entry in entries:
        if not isinstance(entry, str) or not entry:
            wrong("yaml-shape", key, f"{entry!r} is no path"[:100], "name a folder below data.yaml")
            continue
        place = _inside(root, str(table.get("path") or ""), entry)
        if place is None:
            what = f"{entry!r} does not exist below the data folder"
            wrong("path-outside", key, what, "put data.yaml beside images/ and use relative paths")
        elif place.is_dir():
            prefix = place.relative_to(root.resolve()).as_posix()
            yield from (f"{prefix}/{f}" if prefix != "." else f for f in pictures_below(place))
        else:
            for n, line in enumerate(place.read_text("utf-8", "replace").splitlines(), start=1):
                name = line.strip().removeprefix("./")
                if name and not stays_inside(name):
                    file = place.relative_to(root.resolve()).as_posix()
                    what, fix = f"{name!r} leaves the data folder", "use paths inside it"
                    wrong("path-outside", f"line {n}", what, fix, file)
                elif name:
                    yield name


def _inside(root: Path, base: str, entry: str) -> Path | None:
    """The folder or file an entry of data.yaml means, if it lies in the data folder.

    Exports of labelling sites say ../train/images beside train/, or name a folder of another
    machine in `path`; what lies beside data.yaml is meant then.
    """
    home = root.resolve()
    bare = entry
    while bare.startswith(("../", "./")):
        bare = bare.split("/", 1)[1]
    for guess in (home / base / entry, home / entry, home / bare):
        place = guess.resolve()
        if place.exists() and (place == home or home in place.parents):
            return place
    return None


def _labels(
    root: Path, picture: str, classes: int, size: tuple[int, int], wrong: Any
) -> Iterator[tuple[int, int, float, float, float, float]]:
    """(line, class, x, y, width, height) in pixels; a polygon gives its bounding box."""
    file = label_file(picture)
    try:
        text = (root / file).read_text("utf-8")
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        wrong("label-broken", "", f"cannot be read ({error})", "write the file again", file)
        return
    width, height = size
    for n, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        try:
            number, *values = (float(w) for w in words)
        except ValueError:
            wrong("label-broken", f"line {n}", "not all are numbers", "correct the line", file)
            continue
        if len(values) != 4 and (len(values) < 6 or len(values) % 2):
            what = f"{len(words)} numbers: a line has 5, or a class and the points of a polygon"
            wrong("label-broken", f"line {n}", what, "correct the line", file)
            continue
        if not number.is_integer() or not 0 <= number < classes:
            what = f"class {words[0][:20]} is not one of 0 to {classes - 1}"
            wrong("id-unknown", f"line {n}", what, "correct it, or add the class to names", file)
            continue
        if len(values) == 4:
            cx, cy, w, h = values
            left, top = cx - w / 2, cy - h / 2
        else:
            left, top = min(values[0::2]), min(values[1::2])
            w, h = max(values[0::2]) - left, max(values[1::2]) - top
        yield n, int(number), left * width, top * height, w * width, h * height
