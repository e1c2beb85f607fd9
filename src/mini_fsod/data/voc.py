"""PASCAL VOC: a devkit of one or several years, a folder with Annotations, or loose XML files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ParseError

import numpy as np
from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.pictures import SUFFIXES, is_picture, stays_inside
from mini_fsod.errors import Problem
from mini_fsod.labels import VOC_CLASSES

SETS = ("train", "val", "trainval", "test")
MOST_BYTES = 1 << 24  # an XML file of one image; anything larger is something else
DIRECTORIES = ("JPEGImages", "images", "Images", ".")


@dataclass(frozen=True, slots=True)
class _Year:
    """One folder with annotations: VOC2007, VOC2012, or the data folder itself."""

    annotations: str  # folders and files relative to the data folder, "" or ending in /
    pictures: str
    names: frozenset[str]  # files in the pictures' folder


@dataclass(slots=True)
class _Record:
    source: str
    file: str
    size: tuple[int, int]
    objects: list[tuple[int, str, tuple[float, float, float, float], bool]]


def voc_folders(root: Path) -> list[str]:
    """The years of a devkit below `root` ("VOC2007/"); [""] if `root` is such a folder itself."""
    if (root / "Annotations").is_dir():
        return [""]
    children = sorted(p for p in root.iterdir() if (p / "Annotations").is_dir())
    return [f"{p.name}/" for p in children]


def read_voc(root: Path, years: list[str]) -> tuple[Dataset, list[Problem]]:
    """The images of all lists in ImageSets/Main (without lists: all XML files), years united."""
    problems: list[Problem] = []
    rows: dict[tuple[str, str], _Record] = {}
    sets: dict[str, list[tuple[str, str]]] = {}
    for prefix in years:
        year = _year(root, prefix)
        lists = _lists(root, prefix, problems)
        for name, stems in lists.items():
            keys = [(prefix, stem) for stem in stems]
            sets.setdefault(name, []).extend(keys)
            if len(years) > 1:
                sets[f"{prefix}{name}"] = keys
        wanted = dict.fromkeys(s for stems in lists.values() for s in stems)
        for stem in sorted(wanted or _stems(root / year.annotations)):
            record = _read_file(root, year, stem, problems)
            if record is not None:
                rows[prefix, stem] = record
    return _assemble(root, rows, sets), problems


def _year(root: Path, prefix: str) -> _Year:
    annotations = f"{prefix}Annotations/" if (root / prefix / "Annotations").is_dir() else prefix
    for directory in DIRECTORIES:
        if (root / prefix / directory).is_dir():
            pictures = prefix if directory == "." else f"{prefix}{directory}/"
            return _Year(annotations, pictures, frozenset(os.listdir(root / pictures)))
    raise AssertionError("the folder itself is always there")


def _stems(folder: Path) -> Iterator[str]:
    return (p.stem for p in folder.glob("*.xml"))


def _lists(root: Path, prefix: str, problems: list[Problem]) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {}
    for name in SETS:
        path = root / prefix / "ImageSets" / "Main" / f"{name}.txt"
        if path.is_file():
            lists[name] = []
            for n, line in enumerate(path.read_text("utf-8", "replace").splitlines(), start=1):
                stem = line.split()[0] if line.split() else ""
                if stem and not stays_inside(stem):
                    file = f"{prefix}ImageSets/Main/{name}.txt"
                    what, fix = f"{stem!r} leaves the data folder", "list ids only"
                    problems.append(Problem("path-outside", file, f"line {n}", what, fix))
                elif stem:
                    lists[name].append(stem)
    return lists


def _read_file(root: Path, year: _Year, stem: str, problems: list[Problem]) -> _Record | None:
    name = f"{year.annotations}{stem}.xml"

    def wrong(kind: str, record: str, what: str, fix: str) -> None:
        problems.append(Problem(kind, name, record, what, fix))

    path = root / name
    try:
        if path.stat().st_size > MOST_BYTES:
            wrong(
                "xml-broken", "", "far too large for the annotation of one image", "remove the file"
            )
            return None
        tree = fromstring(path.read_bytes(), forbid_dtd=True)
    except FileNotFoundError:
        wrong(
            "annotation-missing", "", "listed, but there is no such file", "add it or unlist the id"
        )
        return None
    except DefusedXmlException:
        wrong(
            "xml-bomb",
            "",
            "declares XML entities, which can unpack without end",
            "remove the DOCTYPE",
        )
        return None
    except (ParseError, ValueError, LookupError, RecursionError) as error:
        wrong("xml-broken", "", f"broken XML ({error})", "write the file again")
        return None
    except OSError as error:
        wrong("xml-broken", "", f"cannot be read ({error.strerror})", "make it readable")
        return None
    if tree.tag != "annotation":
        wrong(
            "xml-shape", "", f"the root is <{tree.tag}>, not <annotation>", "write a VOC annotation"
        )
        return None
    return _Record(
        source=name,
        file=_picture(year, stem, tree, wrong),
        size=_size(tree, wrong),
        objects=list(_objects(tree, wrong)),
    )


def _picture(year: _Year, stem: str, tree: Element, wrong: Any) -> str:
    """The picture named by <filename>, or found by the id with any usual suffix."""
    named = (tree.findtext("filename") or "").strip()
    if named and not stays_inside(named):
        wrong(
            "path-outside", "filename", f"{named!r} leaves the data folder", "name the file alone"
        )
        named = ""
    for guess in (named, *(stem + s for s in SUFFIXES), *(stem + s.upper() for s in SUFFIXES)):
        if guess in year.names and is_picture(guess):
            return year.pictures + guess
    # whether the picture exists is asked where pictures are looked at
    return year.pictures + (named if is_picture(named) else f"{stem}.jpg")


def _size(tree: Element, wrong: Any) -> tuple[int, int]:
    texts = [(tree.findtext(f"size/{key}") or "").strip() for key in ("width", "height")]
    try:
        width, height = (int(float(t)) for t in texts)
        if 0 < width < 2**31 and 0 < height < 2**31:
            return width, height
        what = f"the size {width} x {height} is not one of a picture"
    except (ValueError, OverflowError):
        what = f"the size {' x '.join(t or '?' for t in texts)} is missing or no number"[:100]
    wrong("size-wrong", "size", what, "state the picture's own size")
    return 0, 0


def _objects(
    tree: Element, wrong: Any
) -> Iterator[tuple[int, str, tuple[float, float, float, float], bool]]:
    for n, part in enumerate(tree.findall("object"), start=1):
        place = f"object {n}"
        name = (part.findtext("name") or "").strip()
        if not name:
            wrong("key-missing", place, "<name> is missing or empty", "name the class")
            continue
        box = part.find("bndbox")
        if box is None:
            wrong("key-missing", place, "<bndbox> is missing", "add the box or remove the object")
            continue
        try:
            x1, y1, x2, y2 = (
                float(box.findtext(k) or "") for k in ("xmin", "ymin", "xmax", "ymax")
            )
        except ValueError:
            wrong(
                "box-shape", place, "xmin, ymin, xmax, ymax are not four numbers", "correct the box"
            )
            continue
        difficult = (part.findtext("difficult") or "0").strip() not in ("", "0")
        # VOC counts pixels from 1 and includes the last one; ours are edges from 0
        yield n, name, (x1 - 1, y1 - 1, x2 - x1 + 1, y2 - y1 + 1), difficult


def _assemble(
    root: Path, rows: dict[tuple[str, str], _Record], sets: dict[str, list[tuple[str, str]]]
) -> Dataset:
    place = {key: i for i, key in enumerate(rows)}
    stems = [stem for _, stem in rows]
    unique = len(set(stems)) == len(stems)
    objects = [(i, *o) for i, record in enumerate(rows.values()) for o in record.objects]
    names = sorted({o[2] for o in objects})
    number = {name: i for i, name in enumerate(names)}
    # a part of VOC keeps the numbers of the whole
    table = VOC_CLASSES if set(names) <= set(VOC_CLASSES) else names
    return Dataset(
        kind="voc",
        root=root,
        classes=tuple(names),
        category_ids=tuple(table.index(name) + 1 for name in names),
        ids=tuple(stems if unique else (prefix + stem for prefix, stem in rows)),
        files=tuple(record.file for record in rows.values()),
        sizes=np.array([r.size for r in rows.values()], dtype=np.int64).reshape(-1, 2),
        boxes=Boxes.of(
            [o[0] for o in objects],
            [o[3] for o in objects],
            [number[o[2]] for o in objects],
            record=[o[1] for o in objects],
            difficult=[o[4] for o in objects],
        ),
        sources=tuple(record.source for record in rows.values()),
        subsets={
            name: np.array([place[k] for k in dict.fromkeys(keys) if k in place], dtype=np.int64)
            for name, keys in sets.items()
        },
    )
