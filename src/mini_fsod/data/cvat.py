"""CVAT's own format, "CVAT for images 1.1": one XML file with all images and their shapes."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import iterparse

from mini_fsod.data.collected import NO_SIZE, Collected, picture_name
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.problems import Report
from mini_fsod.data.text import is_text, number, shown
from mini_fsod.errors import Problem
from mini_fsod.files import length_of, open_regular
from mini_fsod.limits import BOXES_PER_LABEL, CVAT_BYTES, CVAT_ELEMENTS, PROBLEMS_OF_A_FILE

HEAD_BYTES = 1 << 12
ROOT = re.compile(rb"^\s*(<\?xml[^>]*\?>)?\s*(<!--.*?-->\s*)*<annotations\b", re.DOTALL)
UPRIGHT = 0.01  # degrees: editors leave traces of a rotation that was undone

XYWH = tuple[float, float, float, float]


def cvat_file(folder: Path, names: Sequence[str]) -> Path | None:
    """The XML file of CVAT in a folder, such as annotations.xml."""
    found = [folder / n for n in names if n.lower().endswith(".xml") and is_cvat(folder / n)]
    return found[0] if found else None


def is_cvat(path: Path) -> bool:
    """Whether the root of an XML file is CVAT's."""
    try:
        with open_regular(path) as source:
            return bool(ROOT.match(source.read(HEAD_BYTES).removeprefix(b"\xef\xbb\xbf")))
    except OSError:
        return False


def read_cvat(path: Path, file: str) -> tuple[Dataset, list[Problem]]:
    """All images of the file; its pictures are named as in the file.

    The boxes of polygons and masks are read; other shapes are named as not read. Rotated boxes
    are problems.
    """
    report = Report(file)
    found = Collected("cvat", path.parent, report)
    try:
        for part in _parts(path):
            if part.tag == "label":
                if part.find("parent") is None:  # those of a skeleton's points have one
                    found.declare((part.findtext("name") or "").strip())
            elif part.tag == "track":
                what = "a track of CVAT for video"
                fix = 'export as "CVAT for images 1.1", or as COCO'
                report("xml-shape", "track", what, fix)
                break
            else:
                _image(part, found)
            if found.is_full or report.counts.total() > PROBLEMS_OF_A_FILE:
                break
    except DefusedXmlException:
        report("xml-entities", "", "declares XML entities, which may expand without limit")
    except (ParseError, ValueError, LookupError, RecursionError) as error:
        report("xml-broken", "", f"broken XML ({str(error)[:120]})")
    except OSError as error:
        report("xml-broken", "", f"cannot be read ({error.strerror})", "make it readable")
    return found.dataset(), report.problems


def _parts(path: Path) -> Iterator[Element]:
    """The labels, images and tracks of the file, each one dropped when the next is read."""
    with open_regular(path) as source:
        if length_of(source) > CVAT_BYTES:
            raise OSError(errno.EFBIG, f"larger than {CVAT_BYTES >> 20} MB")
        way: list[Element] = []
        in_memory = 0  # elements in memory
        for event, element in iterparse(source, events=("start", "end"), forbid_dtd=True):
            if event == "start":
                way.append(element)
                in_memory += 1
                if in_memory > CVAT_ELEMENTS:
                    raise ValueError(f"more than {CVAT_ELEMENTS:,} elements in one image")
                if len(way) > 100:
                    raise ValueError("elements nested too deep")
                continue
            way.pop()
            is_label = element.tag == "label" and len(way) > 1 and way[-1].tag == "labels"
            if is_label or (len(way) == 1 and element.tag in ("image", "track")):
                yield element
            if len(way) <= 1 or is_label:
                element.clear()
                if way:
                    way[-1].remove(element)
                in_memory = len(way)


def _image(part: Element, found: Collected) -> None:
    report, given = found.report, part.get("name", "")
    record = f"image {shown(given)}"
    name = picture_name(given)
    if not name or not is_text(name):
        report("key-missing", record, "the name is missing or not valid")
        return
    found.image(name, _size(part, report, record), _image_set(part.get("subset", "")))
    for n, shape in enumerate(part, start=1):
        where = f"{record}, shape {n}"
        if n > BOXES_PER_LABEL:
            what = f"more than {BOXES_PER_LABEL:,} shapes of one image; no more are read"
            report("xml-shape", where, what)
            return
        read = SHAPES.get(shape.tag)
        if read is None:
            found.unread[f"<{shape.tag[:60]}> of images"] = None
            continue
        try:
            xywh = read(shape.attrib)
            turned = number(shape.get("rotation", "0")) % 360
        except (KeyError, ValueError):
            report("box-shape", where, f"<{shape.tag[:60]}> without valid coordinates")
            continue
        if not (turned < UPRIGHT or turned > 360 - UPRIGHT):
            report("box-rotated", where, f"the box is rotated by {turned:g} degrees")
            continue
        if shape.tag != "box":
            found.unread[f"<{shape.tag}> (their boxes are)"] = None
        found.box(shape.get("label", ""), xywh, where, _score(shape))


def _score(shape: Element) -> str | None:
    """The attribute score of a shape, which labels of imported detections have."""
    given = (part.text for part in shape if part.tag == "attribute" and part.get("name") == "score")
    return next(given, None)


def _image_set(subset: str) -> str:
    """CVAT offers Train, Validation and Test, and calls images without a subset default."""
    lower = subset.lower()
    if not is_text(subset) or lower == "default":
        return ""
    return lower if lower in ("train", "validation", "test") else subset


def _size(part: Element, report: Report, record: str) -> tuple[int, int]:
    texts = [part.get(key, "") for key in ("width", "height")]
    try:
        width, height = map(number, texts)
        if all(0 < v < 2**31 and v.is_integer() for v in (width, height)):
            return int(width), int(height)
    except ValueError:
        pass
    report("size-wrong", record, f"{shown(' x '.join(texts))} is not a valid picture size")
    return NO_SIZE


def _box(of: Mapping[str, str]) -> XYWH:
    left, top, right, bottom = (number(of[key]) for key in ("xtl", "ytl", "xbr", "ybr"))
    return left, top, right - left, bottom - top


def _polygon(of: Mapping[str, str]) -> XYWH:
    points = [tuple(map(number, point.split(","))) for point in of["points"].split(";")]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)


def _mask(of: Mapping[str, str]) -> XYWH:
    left, top, width, height = (number(of[key]) for key in ("left", "top", "width", "height"))
    return left, top, width, height


SHAPES: Mapping[str, Callable[[Mapping[str, str]], XYWH]] = {
    "box": _box,
    "polygon": _polygon,
    "mask": _mask,
}
