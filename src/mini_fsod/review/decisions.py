"""The journal of a review: a line of JSON for each decision, appended and synced at once.

A line says what was decided about a place, that is a box of a class in a picture. Nothing is ever
changed or deleted: an undo is a line too. So a killed process loses nothing that was acknowledged,
and the state of a review is what its lines say, read from the first to the last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field
from typing_extensions import TypedDict

from mini_fsod.data.text import is_text
from mini_fsod.errors import UserError
from mini_fsod.files import FREE_SPACE, mode, read_bytes, unwritten
from mini_fsod.limits import JOURNAL_BYTES
from mini_fsod.state_files import Finite, check_kind

JOURNAL = "review.jsonl"  # in a run's folder
FORMAT = 1  # of the journal
DIGITS = 2  # decimals of boxes that were drawn

Box = tuple[float, float, float, float]  # x, y, width, height in the picture's own pixels
Do = Literal["accept", "reject", "undo"]


class Place(NamedTuple):
    """A box of a class in a picture, as it was offered or drawn."""

    picture: str  # its name in the data, or in the folder of `mine.extra`
    extra: bool  # a picture of `mine.extra`
    name: str  # the class
    box: Box


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person said about a place."""

    place: Place
    do: Do
    mined: bool = False  # the place was in the pool before
    score: float | None = None  # of the mined box or candidate; None: drawn by hand
    as_name: str | None = None  # accept: the class it is, where that differs
    as_box: Box | None = None  # accept: where the object is, where the box differs
    of: int = 0  # undo: the number of the decision that is taken back
    number: int = 0  # its line in the journal; 0: not written yet

    @property
    def accepted(self) -> Place:
        """The place that an accepted box has in the end."""
        place = self.place
        return place._replace(name=self.as_name or place.name, box=self.as_box or place.box)


_Xywh = Annotated[list[Finite], Field(min_length=4, max_length=4)]
_Corrected = TypedDict("_Corrected", {"class": str, "bbox": _Xywh}, total=False)
_Line = TypedDict(
    "_Line",
    {
        "n": int,
        "do": Do,
        "picture": str,
        "extra": bool,
        "class": str,
        "bbox": _Xywh,
        "mined": bool,
        "score": Finite | None,
        "as": _Corrected,
        "of": int,
    },
    total=False,
)


def rounded(box: Sequence[float]) -> Box:
    """A box that was drawn, to a hundredth of a pixel."""
    x, y, width, height = (round(float(value), DIGITS) for value in box)
    return x, y, width, height


def settled(decisions: Sequence[Decision]) -> dict[Place, Decision | None]:
    """The decision in force about each place that was ever decided; None where it was undone.

    The last word about a place counts. Places are in the order of their first decision.
    """
    undone = {decision.of for decision in decisions if decision.do == "undo"}
    found: dict[Place, Decision | None] = {}
    for decision in decisions:
        if decision.do == "undo":
            continue
        in_force = decision.number not in undone
        found[decision.place] = decision if in_force else found.get(decision.place)
    return found


def last_in_force(decisions: Sequence[Decision]) -> Decision | None:
    """The decision that an undo takes back: the last one that is not undone."""
    undone = {decision.of for decision in decisions if decision.do == "undo"}
    standing = (d for d in reversed(decisions) if d.do != "undo" and d.number not in undone)
    return next(standing, None)


def read_decisions(path: Path) -> list[Decision]:
    """The decisions of a journal; none where there is no file.

    A last line that a killed process or a power cut has torn is left out: nobody was told that it
    is saved. Any other damaged line is a UserError.
    """
    return _parse(path, _content(path))[0]


class NotSaved(UserError):
    """The disk has not taken a decision."""


class Journal:
    """A journal that is open for appending. One process at a time: the caller holds a lock."""

    def __init__(self, path: Path, sync: Callable[[int], None] = os.fsync) -> None:
        self._sync = sync
        self._lock = Lock()
        content = _content(path)
        self.decisions, sound = _parse(path, content)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
            self._file.truncate(sound)  # a torn last line
            self._file.seek(sound)
            if not sound:
                self._write(json.dumps({"mini_review": FORMAT}))
            elif not content[:sound].endswith(b"\n"):
                self._write("", end="\n")
            folder = os.open(path.parent, os.O_RDONLY)  # the new name must outlive a power cut
            try:
                self._sync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise unwritten(path, error) from None
        self._path = path

    def append(self, decisions: Sequence[Decision]) -> list[Decision]:
        """Write the decisions and wait until the disk has them; returned with their numbers."""
        if not decisions:
            return []  # an empty line would be damage
        with self._lock:
            first = len(self.decisions) + 1
            numbered = [
                Decision(d.place, d.do, d.mined, d.score, d.as_name, d.as_box, d.of, first + k)
                for k, d in enumerate(decisions)
            ]
            size = self._file.tell()
            try:
                self._write("\n".join(_line(decision) for decision in numbered))
            except OSError as error:
                self._file.truncate(size)  # the file never ends in the middle of a line
                self._file.seek(size)
                raise NotSaved(
                    f"{self._path}: cannot be written ({error.strerror}).", FREE_SPACE
                ) from None
            self.decisions.extend(numbered)
            return numbered

    def close(self) -> None:
        self._file.close()

    def _write(self, text: str, end: str = "\n") -> None:
        data = memoryview((text + end).encode())
        while data:
            data = data[self._file.write(data) :]
        self._sync(self._file.fileno())


def _content(path: Path) -> bytes:
    if not mode(path):
        return b""
    try:
        return read_bytes(path, JOURNAL_BYTES)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}).", "Make it readable, or rename it."
        ) from None


def _parse(path: Path, content: bytes) -> tuple[list[Decision], int]:
    """The decisions in a journal, and how many bytes of it are sound."""
    found: list[Decision] = []
    lines = content.splitlines(keepends=True)
    position = 0
    for n, line in enumerate(lines):
        try:
            record = json.loads(line, parse_constant=_refuse)
            if n:
                found.append(_decision(record, n))
            elif not isinstance(record, dict) or record.get("mini_review") != FORMAT:
                raise ValueError("not the journal of a review")
        except (ValueError, RecursionError) as error:
            if n == len(lines) - 1 and not line.endswith(b"\n"):
                break  # torn
            raise UserError(
                f"{path}, line {n + 1}: cannot be read ({error}).",
                "Delete that line, or rename the file to start over.",
            ) from None
        position += len(line)
    return found, position


def _refuse(word: str) -> None:
    raise ValueError(f"{word}, which is not JSON")


def _decision(record: Any, number: int) -> Decision:
    check_kind(record, _Line)
    if record.get("n") != number:
        raise ValueError(f"it should have the number {number}")
    if record.get("do") == "undo":
        if not 0 < record.get("of", 0) < number:
            raise ValueError("it takes back a decision that is not before it")
        return Decision(NOWHERE, "undo", of=record["of"], number=number)
    if not {"do", "picture", "class", "bbox"} <= record.keys():
        raise ValueError("something is missing in it")
    place = Place(
        record["picture"], record.get("extra", False), record["class"], _box(record["bbox"])
    )
    corrected: Mapping[str, Any] = record.get("as", {})
    if not all(map(is_text, (place.picture, place.name, corrected.get("class", "")))):
        raise ValueError("a name in it is not text")
    return Decision(
        place,
        record["do"],
        record.get("mined", False),
        record.get("score"),
        corrected.get("class"),
        _box(corrected["bbox"]) if "bbox" in corrected else None,
        number=number,
    )


NOWHERE = Place("", False, "", (0.0, 0.0, 0.0, 0.0))  # an undo names a decision, not a place


def _box(values: Sequence[float]) -> Box:
    x, y, width, height = map(float, values)
    if width <= 0 or height <= 0:
        raise ValueError("a box without area")
    return x, y, width, height


def _line(decision: Decision) -> str:
    """The decision as JSON. Keys that say nothing are left out."""
    time = datetime.now(UTC).isoformat(timespec="seconds")
    record: dict[str, Any] = {"n": decision.number, "time": time, "do": decision.do}
    if decision.do == "undo":
        return json.dumps(record | {"of": decision.of})
    place = decision.place
    record |= {"picture": place.picture} | ({"extra": True} if place.extra else {})
    record |= {"class": place.name, "bbox": place.box}
    record |= {"mined": True} if decision.mined else {}
    record |= {} if decision.score is None else {"score": decision.score}
    corrected: dict[str, Any] = {}
    if decision.as_name not in (None, place.name):
        corrected["class"] = decision.as_name
    if decision.as_box not in (None, place.box):
        corrected["bbox"] = decision.as_box
    record |= {"as": corrected} if corrected else {}
    return json.dumps(record, ensure_ascii=False, allow_nan=False)
