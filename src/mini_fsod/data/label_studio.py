"""Label Studio's exports JSON and JSON-MIN: a list of tasks; coordinates are percentages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mini_fsod.data.collected import NO_SIZE, Collected, picture_name
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.file_names import is_picture, is_unread
from mini_fsod.data.json_stream import JsonError, elements
from mini_fsod.data.problems import Report
from mini_fsod.data.text import is_text
from mini_fsod.errors import Problem
from mini_fsod.limits import BOXES_PER_LABEL, PROBLEMS_OF_A_FILE

CORNERS = ("x", "y", "width", "height")
LABELS = ("rectanglelabels", "labels", "polygonlabels")
DRAWN, FOUND = ("annotations", "completions"), ("predictions",)  # by people, by a detector
OF_MIN = ("annotation_id", "annotator", "lead_time")  # what only JSON-MIN has at the top of a task
UPRIGHT = 0.01  # degrees
RESULTS = 100  # annotations of a task that are looked at

Json = Mapping[str, Any]


def is_label_studio(path: Path) -> bool:
    """Whether the first element of a JSON list is one of Label Studio's tasks."""
    try:
        first = next(elements(path), None)
    except (JsonError, OSError):
        return False
    if not isinstance(first, dict):
        return False
    full = isinstance(first.get("data"), dict) and {*DRAWN, *FOUND} & first.keys()
    drawn = any("original_width" in shape for shape in _lists(first) if _labels(shape))
    return bool(full) or drawn or any(key in first for key in OF_MIN)


def read_label_studio(path: Path, file: str) -> tuple[Dataset, list[Problem]]:
    """All tasks with a picture; boxes of the rectangles and polygons that people drew.

    Of several annotations of a task, the one marked as ground truth is read, else the first one.
    Predictions are read where a task has no annotations at all, as in a file for import. Rotated
    boxes, and boxes of rotated pictures, are problems.
    """
    report = Report(file)
    found = Collected("label studio", path.parent, report)
    several = 0
    # JSON-MIN repeats a task for each of its annotations
    read_tasks: set[int] = set()
    try:
        for index, task in enumerate(elements(path)):
            record = f"task {index + 1}"
            if not isinstance(task, dict):
                report("json-shape", record, "not an object", "remove the record")
                continue
            number = task.get("id")
            if type(number) is int:
                record = f"task {number}"
                if number in read_tasks:
                    several += 1
                    continue
                read_tasks.add(number)
            several += _task(task, record, found)
            if found.is_full or report.counts.total() > PROBLEMS_OF_A_FILE:
                break
    except JsonError as error:
        report("json-broken", error.record, error.what)
    except OSError as error:
        report("json-broken", "", f"cannot be read ({error.strerror})", "make it readable")
    if several:
        found.notes.append(
            f"{several:,} further annotations of tasks with several: the first of each, or the one "
            "marked as ground truth, is read"
        )
    return found.dataset(), report.problems


def _task(task: Json, record: str, found: Collected) -> int:
    """Add the picture of a task and its boxes; returns how many further annotations it has."""
    data = task.get("data")
    given = _picture(data if isinstance(data, dict) else task)
    name = picture_name(given)
    if not name or not is_text(name):
        found.report("key-missing", record, "no picture in its data", "add the path of its picture")
        return 0
    shapes: Sequence[Any]
    if isinstance(data, dict):
        chosen, further = _annotation(task)
        shapes = chosen
    else:
        shapes, further = [s for s in _lists(task) if _labels(s)], 0
    found.image(name, _size(shapes))
    for n, shape in enumerate(shapes, start=1):
        if n > BOXES_PER_LABEL:
            what = f"more than {BOXES_PER_LABEL:,} boxes of one picture; no more are read"
            found.report("json-shape", record, what)
            break
        _shape(shape, f"{record}, region {n}", found)
    return further


def _picture(data: Json) -> str:
    """The picture's path or address: the one value that names a picture, else `image`."""
    texts = {k: v for k, v in data.items() if isinstance(v, str) and len(v) < 10_000}
    plain = {key: _plain(value) for key, value in texts.items()}
    named = [p for p in plain.values() if is_picture(p) or is_unread(p)]
    return named[0] if len(named) == 1 else plain.get("image", named[0] if named else "")


def _plain(address: str) -> str:
    """The path in an address; that of local storage comes after ?d=."""
    local = address.partition("/data/local-files/?d=")[2]
    return unquote(local or address.split("?")[0])


def _annotation(task: Json) -> tuple[list[Any], int]:
    """The regions of the annotation that counts, and how many others there are."""
    # a file for import has predictions alone; an export has annotations, even if there are none
    given = next((task[key] for key in (*DRAWN, *FOUND) if key in task), None)
    listed = given if isinstance(given, list) else []
    kept = [
        a for a in listed[:RESULTS]
        if isinstance(a, dict) and not a.get("was_cancelled") and isinstance(a.get("result"), list)
    ]  # fmt: skip
    if not kept:
        return [], 0
    first = next((a for a in kept if a.get("ground_truth") is True), kept[0])
    return first["result"], len(kept) - 1


def _lists(task: Json) -> Iterator[Any]:
    """The objects of all lists of a task in JSON-MIN: the key is the name of the control tag."""
    for value in task.values():
        if isinstance(value, list):
            yield from value


def _labels(value: Any) -> list[str]:
    if not isinstance(value, dict):
        return []
    none: list[Any] = []
    listed = next((value[key] for key in LABELS if isinstance(value.get(key), list)), none)
    return [name for name in listed if isinstance(name, str)]


def _size(shapes: Sequence[Any]) -> tuple[int, int]:
    """The picture's size, which Label Studio keeps in each region."""
    for shape in shapes[:BOXES_PER_LABEL]:
        if isinstance(shape, dict):
            width, height = shape.get("original_width"), shape.get("original_height")
            if all(type(v) is int and 0 < v < 2**31 for v in (width, height)):
                return int(width or 0), int(height or 0)
    return NO_SIZE


def _shape(shape: Any, where: str, found: Collected) -> None:
    """Add the box of one region: in JSON its coordinates are in `value`, in JSON-MIN beside it."""
    report = found.report
    if not isinstance(shape, dict):
        report("json-shape", where, "not an object", "remove the record")
        return
    value = shape["value"] if isinstance(shape.get("value"), dict) else shape
    corners: list[Any] = [value.get(key) for key in CORNERS]
    points = value.get("points")
    if isinstance(points, list) and "polygonlabels" in value:
        found.unread["polygons (their boxes are)"] = None
        corners = _around(points)
    elif not any(key in value for key in ("rectanglelabels", *CORNERS[2:])):
        kind = str(shape.get("type", "other regions"))[:60]
        found.unread[f"{kind} of tasks"] = None
        return
    elif shape.get("type") == "rectangle":
        return  # a region of its own without label; that with the label has the same id
    if not all(type(v) in (int, float) and abs(v) < 1e300 for v in corners):
        report("box-shape", where, "x, y, width, height are not four numbers")
        return
    names = _labels(value)
    if not names:
        report("key-missing", where, "the region has no label", "give it a label, or delete it")
        return
    turned = [_degrees(value.get("rotation")), _degrees(shape.get("image_rotation"))]
    if max(turned) > UPRIGHT:
        what = "the box" if turned[0] > UPRIGHT else "the picture"
        report("box-rotated", where, f"{what} is rotated by {max(turned):g} degrees")
        return
    width, height = found.sizes[-1]
    if not width:
        what = "original_width and original_height are missing, of which the box is a share"
        report("size-missing", where, what)
        return
    x, y, w, h = (v / 100 for v in corners)
    for name in names[:10]:
        xywh = (x * width, y * height, w * width, h * height)
        found.box(name, xywh, where, shape.get("score"))


def _around(points: Sequence[Any]) -> list[Any]:
    """x, y, width, height of the box around points."""
    pairs = [p for p in points if isinstance(p, list) and len(p) == 2]
    if not pairs or not all(type(v) in (int, float) for p in pairs for v in p):
        return [None]
    xs, ys = [p[0] for p in pairs], [p[1] for p in pairs]
    return [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]


def _degrees(value: Any) -> float:
    """How far from upright, 0 to 180; 0 where nothing valid is given."""
    if type(value) not in (int, float) or not abs(value) < 1e9:
        return 0.0
    turned = float(value) % 360
    return min(turned, 360 - turned)
