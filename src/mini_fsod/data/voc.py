"""PASCAL VOC: a devkit of several years, folders with Annotations, or XML beside pictures."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError

import numpy as np
from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.file_names import SUFFIXES, UNREAD, is_picture, is_unread, stays_inside
from mini_fsod.data.folder import report_invalid_name
from mini_fsod.data.layout import listing, names_in
from mini_fsod.data.problems import Report
from mini_fsod.data.text import is_text, number, shown
from mini_fsod.errors import Problem, UserError
from mini_fsod.files import is_file, is_folder, read_bytes
from mini_fsod.labels import VOC_CLASSES
from mini_fsod.limits import BOXES, BOXES_PER_LABEL, CLASSES, LABEL_BYTES, LIST_BYTES
from mini_fsod.remote import entries

SETS = ("train", "val", "trainval", "test")
DIRECTORIES = ("jpegimages", "images")
KEPT = {"name", "bndbox", "difficult"}
TAGS_NAMED = 50  # that are not read
NO_FILE = "in a list of images, but the file does not exist"

# (object, class, (x, y, width, height), difficult)
Row = tuple[int, str, tuple[float, float, float, float], bool]


@dataclass(frozen=True, slots=True)
class _Year:
    """One folder with annotations: VOC2007, VOC2012, or the data folder itself."""

    annotations: str  # folders and files relative to the data folder, "" or ending in /
    pictures: str
    xml: Mapping[str, str]  # stem: name of the XML file
    names: frozenset[str]  # files in the pictures' folder


def voc_folders(root: Path) -> list[str]:
    """The years of a devkit below `root`, like "VOC2007/"; [""] if `root` is a year itself."""
    if _has_xml(root / "Annotations"):
        return [""]
    return [f"{n}/" for n in listing(root) if _has_xml(root / n / "Annotations")]


def _has_xml(folder: Path) -> bool:
    """Whether a folder is VOC's Annotations: spelled exactly so, and not full of JSON."""
    if not is_folder(folder):
        return False
    try:
        if folder.name not in entries(folder.parent):
            return False
        names = entries(folder)
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
    pictures = {Path(n).stem for n in names if is_picture(n)}
    return any(is_xml(n) and Path(n).stem in pictures for n in names)


def read_voc(root: Path, years: list[str]) -> tuple[Dataset, list[Problem]]:
    """The images of all lists in ImageSets/Main, or of all XML files if there are no lists."""
    report = Report()
    index: dict[tuple[str, str], int] = {}  # (year, stem): image
    files: list[str] = []
    sources: list[str] = []
    sizes: list[tuple[int, int]] = []
    images, labels, records = array("q"), array("q"), array("q")
    xywh, difficult = array("d"), array("b")
    names: dict[str, int] = {}  # class: number in the order of appearance
    tags: set[str] = set()
    sets: dict[str, list[tuple[str, str]]] = {}
    for prefix in years:
        year = _year(root, prefix, report)
        lists = _lists(root, prefix, year.xml, report)
        if not lists and len(years) > 1:
            sets[prefix.rstrip("/")] = [(prefix, stem) for stem in year.xml]
        for name, listed in lists.items():
            keys = [(prefix, stem) for stem in listed]
            sets.setdefault(name, []).extend(keys)
            if len(years) > 1:
                sets[f"{prefix}{name}"] = keys
        wanted = {stem for listed in lists.values() for stem in listed}
        for stem in sorted(wanted or year.xml):
            file = year.annotations + year.xml.get(stem, f"{stem}.xml")
            of_file = report.of(file)
            if stem not in year.xml and "/" not in stem:
                of_file("annotation-missing", "", NO_FILE)
                continue
            tree = _parsed(root / file, of_file)
            if tree is None:
                continue
            index[prefix, stem] = i = len(files)
            sources.append(file)
            files.append(_picture(year, stem, tree, of_file))
            sizes.append(_size(tree, of_file))
            for n, name, box, is_difficult in _objects(tree, of_file):
                images.append(i)
                labels.append(names.setdefault(name, len(names)))
                records.append(n)
                xywh.extend(box)
                difficult.append(is_difficult)
            if len(tags) < TAGS_NAMED:
                tags |= {part.tag for part in tree.iterfind("object/*")} - KEPT
            if len(images) > BOXES or len(names) > CLASSES:
                most = f"{BOXES:,} boxes or {CLASSES:,} classes"
                what = f"more than {most}; later files were not read"
                of_file("data-too-large", "", what)
                break
    stems = tuple(stem for _, stem in index)
    unique = len(set(stems)) == len(stems)
    order = sorted(names)
    # the numbers of VOC, even where some of its classes are missing
    known = VOC_CLASSES if set(names) <= set(VOC_CLASSES) else order
    number_of = {name: n for n, name in enumerate(known, start=1)}
    position = {name: c for c, name in enumerate(order)}
    label = np.array([position[name] for name in names], dtype=np.int64)
    data = Dataset(
        kind="voc",
        root=root,
        classes=tuple(order),
        category_ids=tuple(number_of[name] for name in order),
        ids=stems if unique else tuple(prefix + stem for prefix, stem in index),
        short_ids=() if unique else stems,
        unread=tuple(f"<{tag[:60]}> of objects" for tag in sorted(tags)[:TAGS_NAMED]),
        files=tuple(files),
        sizes=np.array(sizes, dtype=np.int64).reshape(-1, 2),
        boxes=Boxes.of(
            np.array(images, dtype=np.int64),
            np.array(xywh),
            label[np.array(labels, dtype=np.int64)],
            record=np.array(records, dtype=np.int64),
            difficult=np.array(difficult, dtype=np.bool_),
        ),
        sources=tuple(sources),
        subsets={
            name: np.array([index[k] for k in dict.fromkeys(keys) if k in index], dtype=np.int64)
            for name, keys in sets.items()
        },
    )
    return data, report.problems


def _year(root: Path, prefix: str, report: Report) -> _Year:
    def readable(folder: str) -> list[str]:
        try:
            found = listing(root / folder)
        except UserError:
            report("folder-unreadable", "", "the folder cannot be read", file=folder)
            return []
        for name in found:
            if not is_text(name):
                report_invalid_name(report, folder + name)
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
    root: Path, prefix: str, stems: Mapping[str, str], report_all: Report
) -> dict[str, list[str]]:
    """{image set: stems} of the files in ImageSets/Main."""
    lists: dict[str, list[str]] = {}
    for name in SETS:
        report = report_all.of(f"{prefix}ImageSets/Main/{name}.txt")
        if not is_file(root / report.file):
            continue
        found: dict[str, None] = {}  # each once, in order
        lists[name] = []
        try:
            content = BytesIO(read_bytes(root / report.file, LIST_BYTES))
        except OSError as error:
            report("list-unreadable", "", f"cannot be read ({error.strerror})")
            continue
        lines = TextIOWrapper(content, "utf-8-sig", "replace")
        for n, line in enumerate(map(str.strip, lines), start=1):
            if line in found:
                continue
            stem = line if line in stems else _listed(line, stems)
            if stem and not stays_inside(stem):
                report("path-outside", f"line {n}", f"{shown(stem)} is outside the data folder")
            elif stem:
                found[stem] = None
        lists[name] = [*found]
    return lists


def _listed(line: str, stems: Mapping[str, str]) -> str:
    """The id of a line: all of it, without the -1, 0 or 1 in the lists of one class."""
    words = line.rsplit(None, 1)
    return words[0] if line not in stems and words[1:] in (["-1"], ["0"], ["1"]) else line


def _parsed(path: Path, report: Report) -> Element | None:
    """The XML of an image; None if it cannot be used."""
    try:
        tree: Element = fromstring(read_bytes(path, LABEL_BYTES), forbid_dtd=True)
    except FileNotFoundError:
        report("annotation-missing", "", NO_FILE)
    except DefusedXmlException:
        report("xml-entities", "", "declares XML entities, which may expand without limit")
    except (ParseError, ValueError, LookupError, RecursionError) as error:
        report("xml-broken", "", f"broken XML ({str(error)[:120]})")
    except OSError as error:
        report("xml-broken", "", f"cannot be read ({error.strerror})", "make it readable")
    else:
        if tree.tag == "annotation":
            return tree
        report("xml-shape", "", f"the root is <{tree.tag[:60]}>, not <annotation>")
    return None


def _picture(year: _Year, stem: str, tree: Element, report: Report) -> str:
    """The picture named by <filename>, or one named like the XML file."""
    named = (tree.findtext("filename") or "").strip()
    if named and not stays_inside(named):
        report("path-outside", "filename", f"{shown(named)} is outside the data folder")
        named = ""
    # an unsupported format: some can be read, the others are reported by `picture_problems`
    for is_usable, suffixes in ((is_picture, SUFFIXES), (is_unread, UNREAD)):
        for guess in (named, *(stem + s for s in suffixes), *(stem + s.upper() for s in suffixes)):
            if guess in year.names and is_usable(guess):
                return year.pictures + guess
    return year.pictures + (named if is_picture(named) else f"{stem}.jpg")


def _size(tree: Element, report: Report) -> tuple[int, int]:
    texts = [(tree.findtext(f"size/{key}") or "").strip() for key in ("width", "height")]
    stated = " x ".join(t[:20] or "?" for t in texts)
    try:
        width, height = map(number, texts)
        if all(0 < v < 2**31 and v.is_integer() for v in (width, height)):
            return int(width), int(height)
        report("size-wrong", "size", f"{stated} is not a valid picture size")
    except ValueError:
        report("size-wrong", "size", f"the size {stated} is missing or not a number")
    return 0, 0


def _objects(tree: Element, report: Report) -> Iterator[Row]:
    for n, part in enumerate(tree.iterfind("object"), start=1):
        record = f"object {n}"
        if n > BOXES_PER_LABEL:
            what = f"more than {BOXES_PER_LABEL:,} objects of one picture; no more are read"
            report("xml-shape", record, what)
            return
        name = (part.findtext("name") or "").strip()
        if not name:
            report("key-missing", record, "<name> is missing or empty")
            continue
        box = part.find("bndbox")
        if box is None:
            report("key-missing", record, "<bndbox> is missing")
            continue
        corners = [box.findtext(k) or "" for k in ("xmin", "ymin", "xmax", "ymax")]
        try:
            x1, y1, x2, y2 = map(number, corners)
        except ValueError:
            report("box-shape", record, "xmin, ymin, xmax, ymax are not four numbers")
            continue
        difficult = (part.findtext("difficult") or "").strip()
        if difficult not in ("", "0", "1"):
            report("flag-wrong", record, f"<difficult> is {shown(difficult)}, not 0 or 1")
            continue
        # VOC counts pixels from 1, and xmax is the last one; our boxes have edges from 0
        yield n, name, (x1 - 1, y1 - 1, x2 - x1 + 1, y2 - y1 + 1), difficult == "1"
