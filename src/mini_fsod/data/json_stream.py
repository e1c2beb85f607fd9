"""Large JSON objects record by record, in constant memory.

COCO files reach a gigabyte, and a wrong file may be any size. The standard decoder would build all
of it in memory before a word can be said about its shape; here a record is parsed, handed over and
forgotten, and the first thing that is not as it should be ends the reading.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from mini_fsod.files import open_regular

CHUNK = 1 << 22  # bytes read at a time
RECORD_LIMIT = 1 << 23  # characters of one record; the largest honest masks stay far below
LOOKED_THROUGH = 1 << 26  # bytes in which the keys of a COCO file show
MOST_STRAYS = 1_000_000  # elements of one list that are no objects: it is no list of records
SPACE = " \t\n\r"
DELIMITERS = set(SPACE + ",:]}")

_not_space = re.compile(r"[^ \t\n\r]")

_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


class JsonError(Exception):
    """What is wrong with the text, and in which record ("annotations[17]")."""

    def __init__(self, record: str, what: str) -> None:
        super().__init__(what)
        self.record = record
        self.what = what


def records(path: Path) -> Iterator[tuple[str, int, Any]]:
    """(key, index, element) of every top-level list, (key, -1, value) of every other value.

    An empty list has no element to hand over, and comes as (key, -1, []).
    """
    with open_regular(path) as source:
        yield from _records(source)


def first_keys(path: Path, wanted: set[str], enough: int) -> set[str]:
    """The top-level keys, up to the one that makes `enough` of the `wanted`.

    A file in which they are not found at once is a JsonError: it may be anything.
    """
    seen: set[str] = set()
    with open_regular(path) as source:
        for key, _, _ in _records(source):
            if key not in seen:
                seen.add(key)
                if len(seen & wanted) >= enough:
                    break
            if source.tell() > LOOKED_THROUGH:
                raise JsonError(key, "too large to tell what it is")
    return seen


def _records(source: BinaryIO) -> Iterator[tuple[str, int, Any]]:
    text = _Text(source)
    if text.next() != "{":
        raise JsonError("", "the file is not a JSON object, which starts with {")
    text.skip()
    if text.next() == "}":
        text.skip()
    else:
        yield from _members(text)
    if text.next():
        raise JsonError("", "there is more text behind the end of the JSON object")


def _members(text: _Text) -> Iterator[tuple[str, int, Any]]:
    seen = set()
    while True:
        key = text.value("the next key")
        if not isinstance(key, str):
            raise JsonError("", "a key of the object is not a string")
        if key in seen:
            raise JsonError(key, f'the key "{key}" appears twice')
        seen.add(key)
        text.expect(":", key)
        if text.next() == "[":
            text.skip()
            if text.next() == "]":
                text.skip()
                yield key, -1, []
            else:
                for index, value in enumerate(_elements(text, key)):
                    yield key, index, value
        else:
            yield key, -1, text.value(key)
        if text.next() == "}":
            text.skip()
            return
        text.expect(",", key)


def _elements(text: _Text, key: str) -> Iterator[Any]:
    index = strays = 0
    while True:
        value = text.value(f"{key}[{index}]")
        if type(value) is not dict:
            strays += 1
            if strays > MOST_STRAYS:
                raise JsonError(f"{key}[{index}]", "far too many elements that are no objects")
        yield value
        mark = text.next()
        if mark == "]":
            text.skip()
            return
        if mark != ",":
            text.expect(",", f"{key}[{index}]")
        text.skip()
        index += 1


class _Text:
    """A window on the text that grows until the next value is whole, and drops what was read."""

    def __init__(self, source: BinaryIO) -> None:
        self.source = source
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.text = ""
        self.at = 0
        self.ended = False

    def grow(self, record: str = "") -> None:
        # at least doubled, so that a long value is not scanned anew for every chunk
        block = self.source.read(max(CHUNK, len(self.text) - self.at))
        self.ended = not block
        try:
            more = self.decoder.decode(block, final=self.ended)
        except UnicodeDecodeError as error:
            raise JsonError(record, f"the text is not UTF-8 ({error.reason})") from None
        self.text = self.text[self.at :] + more
        self.at = 0

    def next(self) -> str:
        """The next character that is not white space, "" at the end of the file."""
        mark = self.text[self.at : self.at + 1]
        if mark == " ":  # a single one is common
            self.at += 1
            mark = self.text[self.at : self.at + 1]
        if mark not in SPACE:  # where "" is
            return mark
        while True:
            found = _not_space.search(self.text, self.at)
            if found:
                self.at = found.start()
                return found[0]
            self.at = len(self.text)
            if self.ended:
                return ""
            self.grow()

    def skip(self) -> None:
        self.at += 1

    def expect(self, mark: str, record: str) -> None:
        found = self.next()
        if found != mark:
            raise JsonError(
                record, f"{mark!r} expected behind it, found {found!r}" if found else ENDS
            )
        self.skip()

    def value(self, record: str) -> Any:
        if not self.next():
            raise JsonError(record, ENDS)
        while True:
            reason = ENDS
            try:
                value, end = _scan(self.text, self.at)
                # a number near the window's edge may go on behind it: 1.|5 reads as 1
                if self.ended or self.text[end : end + 1] in DELIMITERS:
                    self.at = end
                    return value
            except StopIteration:
                reason = "this is no JSON value"
            except RecursionError:
                raise JsonError(record, "JSON nested too deep") from None
            except ValueError as error:
                reason = f"broken JSON: {getattr(error, 'msg', error)}"
            if self.ended:
                raise JsonError(record, reason)
            if len(self.text) - self.at > RECORD_LIMIT:
                raise JsonError(record, f"no value ends within {RECORD_LIMIT >> 20} MB ({reason})")
            self.grow(record)


ENDS = "the file ends here: it is cut off"
