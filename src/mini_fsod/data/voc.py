"""PASCAL VOC: a devkit of several years, folders with Annotations, or XML beside pictures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError

import numpy as np
from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.folder import invalid_name
from mini_fsod.data.layout import listing, names_in
from mini_fsod.data.pictures import SUFFIXES, UNREAD, is_picture, is_unread, stays_inside
from mini_fsod.data.text import Report, is_text, number, shown
from mini_fsod.errors import Problem, UserError
from mini_fsod.files import is_file, is_folder, open_regular
from mini_fsod.labels import VOC_CLASSES

SETS = ("train", "val", "trainval", "test")
MOST_BYTES = 1 << 24  # of the XML file of one image
DIRECTORIES = ("jpegimages", "images")
KEPT = {"name", "bndbox", "difficult"}


@dataclass(frozen=True, slots=True)
class _Year:
    """One folder with annotations: VOC2007, VOC2012, or the data folder itself."""

    annotations: str  # folders and files relative to the data folder, "" or ending in /
    pictures: str
    xml: Mapping[str, str]  # stem: name of the XML file
    names: frozenset[str]  # files in the pictures' folder


@dataclass(slots=True)
class _Record:
    source: str
    file: str
    size: tuple[int, int]
    objects: list[tuple[int, str, tuple[float, float, float, float], bool]]
    unread: set[str]  # tags of objects that are not used


def voc_folders(root: Path) -> list[str]:
    """The years of a devkit below `root`, like "VOC2007/"; [""] if `root` is a year itself."""
    names = listing(root)
    if "Annotations" in names and _has_xml(root / "Annotations"):
        return [""]
    return [f"{n}/" for n in names if _has_xml(root / n / "Annotations")]


def _has_xml(folder: Path) -> bool:
    """Whether a folder is VOC's Annotations: spelled exactly so, and not full of JSON."""
    if not is_folder(folder):
        return False
    try:
        if folder.name not in os.listdir(folder.parent):
            return False
        names = os.listdir(folder)
    except OSError:
        return True  # reported when it is read
    return any(map(is_xml, names)) or not any(n.lower().endswith(".json") for n in names)


def is_xml(name: str) -> bool:
    return name.lower().endswith(".xml")


def other_folders(root: Path) -> list[str]:
    """Like `voc_folders`, for other layouts: annotations/ in any spelling, XML beside pictures.

    Either may be split into folders, such as train/ and test/.
    """
    names = names_in(root)
    if any(map(is_xml, names)) or _annotations(root, names):
        return [""]
    below = {n: names_in(root / n) for n in names if is_folder(root / n)}
    return [
        f"{n}/"
        for n, names in below.items()
        if _annotations(root / n, names) or _is_beside_pictures(names)
    ]


def _annotations(folder: Path, names: list[str]) -> str:
    """The folder of XML files called Annotations, in any case; "" if there is none."""
    found = [n for n in names if n.lower() == "annotations"]
    return next((n for n in found if any(map(is_xml, names_in(folder / n)))), "")


def _is_beside_pictures(names: list[str]) -> bool:
    """Whether an XML file has the name of a picture."""
    return bool(
        {Path(n).stem for n in names if is_xml(n)} & {Path(n).stem for n in names if is_picture(n)}
    )


def read_voc(root: Path, years: list[str]) -> tuple[Dataset, list[Problem]]:
    """The images of all lists in ImageSets/Main, or of all XML files if there are no lists."""
    problems: list[Problem] = []
    rows: dict[tuple[str, str], _Record] = {}
    sets: dict[str, list[tuple[str, str]]] = {}
    for prefix in years:
        year = _year(root, prefix, problems)
        lists = _lists(root, prefix, year.xml, problems)
        if not lists and len(years) > 1:
            sets[prefix.rstrip("/")] = [(prefix, stem) for stem in year.xml]
        for name, stems in lists.items():
            keys = [(prefix, stem) for stem in stems]
            sets.setdefault(name, []).extend(keys)
            if len(years) > 1:
                sets[f"{prefix}{name}"] = keys
        wanted = dict.fromkeys(s for stems in lists.values() for s in stems)
        for stem in sorted(wanted or year.xml):
            record = _read_file(root, year, stem, problems)
            if record is not None:
                rows[prefix, stem] = record
    return _assemble(root, rows, sets), problems


def _year(root: Path, prefix: str, problems: list[Problem]) -> _Year:
    def readable(folder: str) -> list[str]:
        try:
            found = listing(root / folder)
        except UserError as error:
            what = "the folder cannot be read"
            problems.append(Problem("folder-unreadable", folder, "", what, error.fix))
            return []
        problems.extend(invalid_name(folder + n) for n in found if not is_text(n))
        return [n for n in found if is_text(n)]

    names = readable(prefix)
    name = _annotations(root / prefix, names) or ("Annotations" if "Annotations" in names else "")
    annotations = f"{prefix}{name}/" if name else prefix
    folders = [
        n for d in DIRECTORIES for n in names if n.lower() == d and is_folder(root / prefix / n)
    ]
    pictures = f"{prefix}{folders[0]}/" if folders else prefix
    files = names if annotations == prefix else readable(annotations)
    return _Year(
        annotations,
        pictures,
        {n[:-4]: n for n in files if is_xml(n)},
        frozenset(names if pictures == prefix else readable(pictures)),
    )


def _lists(
    root: Path, prefix: str, stems: Mapping[str, str], problems: list[Problem]
) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {}
    for name in SETS:
        file = f"{prefix}ImageSets/Main/{name}.txt"
        if not is_file(root / file):
            continue
        lists[name] = []
        try:
            with open_regular(root / file) as source:
                lines = source.read().decode("utf-8-sig", "replace").splitlines()
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
            problems.append(Problem("list-unreadable", file, "", what, "make it readable"))
            continue
        for n, line in enumerate(lines, start=1):
            stem = _listed(line.strip(), stems)
            if stem and not stays_inside(stem):
                what, fix = f"{shown(stem)} is outside the data folder", "list ids only"
                problems.append(Problem("path-outside", file, f"line {n}", what, fix))
            elif stem:
                lists[name].append(stem)
    return lists


def _listed(line: str, stems: Mapping[str, str]) -> str:
    """The id of a line: all of it, without the -1, 0 or 1 in the lists of one class."""
    words = line.rsplit(None, 1)
    return words[0] if line not in stems and words[1:] in (["-1"], ["0"], ["1"]) else line


def _read_file(root: Path, year: _Year, stem: str, problems: list[Problem]) -> _Record | None:
    name = year.annotations + year.xml.get(stem, f"{stem}.xml")

    report = Report(name, problems)
    try:
        with open_regular(root / name) as source:
            if os.fstat(source.fileno()).st_size > MOST_BYTES:
                report("xml-broken", "", "too large for one image", "remove the file")
                return None
            content = source.read()
        tree = fromstring(content, forbid_dtd=True)
    except FileNotFoundError:
        what = "in a list of images, but the file does not exist"
        report("annotation-missing", "", what, "add it, or remove it from the list")
        return None
    except DefusedXmlException:
        what = "declares XML entities, which may expand without limit"
        report("xml-entities", "", what, "remove the DOCTYPE")
        return None
    except (ParseError, ValueError, LookupError, RecursionError) as error:
        report("xml-broken", "", f"broken XML ({str(error)[:120]})", "write the file again")
        return None
    except OSError as error:
        report("xml-broken", "", f"cannot be read ({error.strerror})", "make it readable")
        return None
    if tree.tag != "annotation":
        what = f"the root is <{tree.tag[:60]}>, not <annotation>"
        report("xml-shape", "", what, "write a VOC annotation")
        return None
    return _Record(
        source=name,
        file=_picture(year, stem, tree, report),
        size=_size(tree, report),
        objects=list(_objects(tree, report)),
        unread={e.tag for part in tree.iterfind("object") for e in part} - KEPT,
    )


def _picture(year: _Year, stem: str, tree: Element, report: Report) -> str:
    """The picture named by <filename>, or one named like the XML file."""
    named = (tree.findtext("filename") or "").strip()
    if named and not stays_inside(named):
        what = f"{shown(named)} is outside the data folder"
        report("path-outside", "filename", what, "use the bare file name")
        named = ""
    for guess in (named, *(stem + s for s in SUFFIXES), *(stem + s.upper() for s in SUFFIXES)):
        if guess in year.names and is_picture(guess):
            return year.pictures + guess
    # an unsupported format: some can be read, the others are reported by `picture_problems`
    for guess in (named, *(stem + s for s in UNREAD), *(stem + s.upper() for s in UNREAD)):
        if guess in year.names and is_unread(guess):
            return year.pictures + guess
    return year.pictures + (named if is_picture(named) else f"{stem}.jpg")


def _size(tree: Element, report: Report) -> tuple[int, int]:
    texts = [(tree.findtext(f"size/{key}") or "").strip() for key in ("width", "height")]
    stated = " x ".join(t[:20] or "?" for t in texts)
    try:
        width, height = (number(t) for t in texts)
        if all(0 < v < 2**31 and v.is_integer() for v in (width, height)):
            return int(width), int(height)
        what = f"{stated} is not a valid picture size"
    except ValueError:
        what = f"the size {stated} is missing or not a number"
    report("size-wrong", "size", what, "use the size of the picture")
    return 0, 0


def _objects(
    tree: Element, report: Report
) -> Iterator[tuple[int, str, tuple[float, float, float, float], bool]]:
    for n, part in enumerate(tree.findall("object"), start=1):
        record = f"object {n}"
        name = (part.findtext("name") or "").strip()
        if not name:
            report("key-missing", record, "<name> is missing or empty", "name the class")
            continue
        box = part.find("bndbox")
        if box is None:
            report("key-missing", record, "<bndbox> is missing", "add the box or remove the object")
            continue
        try:
            x1, y1, x2, y2 = (
                number(box.findtext(k) or "") for k in ("xmin", "ymin", "xmax", "ymax")
            )
        except ValueError:
            what = "xmin, ymin, xmax, ymax are not four numbers"
            report("box-shape", record, what, "correct the box")
            continue
        difficult = (part.findtext("difficult") or "").strip()
        if difficult not in ("", "0", "1"):
            what = f"<difficult> is {shown(difficult)}, not 0 or 1"
            report("flag-wrong", record, what, "use 0 or 1")
            continue
        # VOC counts pixels from 1, and xmax is the last one; our boxes have edges from 0
        yield n, name, (x1 - 1, y1 - 1, x2 - x1 + 1, y2 - y1 + 1), difficult == "1"


def _assemble(
    root: Path, rows: dict[tuple[str, str], _Record], sets: dict[str, list[tuple[str, str]]]
) -> Dataset:
    index = {key: i for i, key in enumerate(rows)}
    stems = tuple(stem for _, stem in rows)
    unique = len(set(stems)) == len(stems)
    unread = sorted({tag for record in rows.values() for tag in record.unread})
    objects = [(i, *o) for i, record in enumerate(rows.values()) for o in record.objects]
    names = sorted({o[2] for o in objects})
    label = {name: i for i, name in enumerate(names)}
    # the numbers of VOC, even where some of its classes are missing
    table = VOC_CLASSES if set(names) <= set(VOC_CLASSES) else names
    return Dataset(
        kind="voc",
        root=root,
        classes=tuple(names),
        category_ids=tuple(table.index(name) + 1 for name in names),
        ids=stems if unique else tuple(prefix + stem for prefix, stem in rows),
        short_ids=() if unique else stems,
        unread=tuple(f"<{tag[:60]}> of objects" for tag in unread[:50]),
        files=tuple(record.file for record in rows.values()),
        sizes=np.array([r.size for r in rows.values()], dtype=np.int64).reshape(-1, 2),
        boxes=Boxes.of(
            [o[0] for o in objects],
            [o[3] for o in objects],
            [label[o[2]] for o in objects],
            record=[o[1] for o in objects],
            difficult=[o[4] for o in objects],
        ),
        sources=tuple(record.source for record in rows.values()),
        subsets={
            name: np.array([index[k] for k in dict.fromkeys(keys) if k in index], dtype=np.int64)
            for name, keys in sets.items()
        },
    )
